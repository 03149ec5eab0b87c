"""Outlier dimensions from weights alone; `outlierlens.weights` finds them."""
