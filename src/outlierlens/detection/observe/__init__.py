"""`observe`: statistics of every layer and dimension in one pass; `outlierlens.detection.observe.measure` measures them."""
