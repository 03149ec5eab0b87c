"""Pre-train masked language models by recipe, with the outlier dimensions watched from the first step.

run = pretrain(read_recipe("mini-bert"), Path("runs/mini-bert"))         # loop.pretrain, recipe.read_recipe
(outcome,) = measure(run).runs               # analyses.pretrained: loss, dimensions found, each switched off, INT8
"""
