"""What an atlas knows of a model: its outlier dimensions, its relatives, what switching them off costs.

`lineage.py` says whether two models share an origin, from the vectors of their norms alone.
"""
