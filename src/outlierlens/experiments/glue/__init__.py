"""GLUE with outliers off, as two papers did it; `outlierlens.replicate.run` measures it."""
