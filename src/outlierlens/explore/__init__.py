"""The live page: type a sentence, switch dimensions off, and see the model with random ones off beside it.

explorer = open_explorer("mini-planted")                          # explore.look
explorer.look(State(text="A film worth seeing.", dims=(8, 24))).loss("chosen").change
serve(explorer, explorer.start())                                 # explore.serve: the page, on loopback only
"""
