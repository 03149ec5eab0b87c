"""`layer-story`: where a dimension does its damage, beside where it follows frequency and attention.

`outlierlens.layer_story` has the measure and its result.
"""
