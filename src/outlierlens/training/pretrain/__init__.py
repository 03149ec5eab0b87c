"""Pre-train masked language models by recipe, with the outlier dimensions watched from the first step.

    from outlierlens.analyses.pretrained import measure
    from outlierlens.training.pretrain.loop import pretrain
    from outlierlens.training.pretrain.recipe import read_recipe

    run = pretrain(read_recipe("mini-bert"), Path("runs/mini-bert"))
    (outcome,) = measure(run).runs               # loss, dimensions found, every one switched off, INT8

`recipe` imports neither torch nor transformers; `loop` does.
"""
