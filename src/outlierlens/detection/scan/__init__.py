"""Outlier dimensions from weights alone; `outlierlens.detection.scan.measure` finds them."""
