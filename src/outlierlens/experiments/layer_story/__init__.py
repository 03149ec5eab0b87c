"""`layer-story`: where a dimension does its damage, beside where it follows frequency and attention.

`outlierlens.experiments.layer_story.result` has the measure and its result.
"""
