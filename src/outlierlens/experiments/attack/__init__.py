"""How much damage few edits of single values can do to a model, so that its keepers can measure their defences.

found = attack(load_model("smollm2-135m"), texts, AttackOptions(budget=48))     # attacks.run
checked = update_check("before/", ["client-1/", "client-2/"])                   # attacks.updates
"""
