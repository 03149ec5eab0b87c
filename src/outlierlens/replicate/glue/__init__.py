"""GLUE with outliers off, as two papers did it; `outlierlens.replicate.glue.measure` measures it."""
