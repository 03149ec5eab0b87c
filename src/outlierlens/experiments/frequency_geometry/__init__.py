"""`frequency-geometry`: vectors of frequent and of rare tokens, and what outlier dimensions have to do with the difference."""
