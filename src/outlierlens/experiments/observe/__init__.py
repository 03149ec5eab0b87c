"""`observe`: statistics of every layer and dimension in one pass; `outlierlens.activations` measures them."""
