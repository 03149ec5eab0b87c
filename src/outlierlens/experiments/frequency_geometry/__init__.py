"""`frequency-geometry`: vectors of frequent and of rare tokens, and what outlier dimensions have to do with the difference.

`outlierlens.frequency_geometry` measures it, and its result is `outlierlens.frequency_bands.FrequencyBands`.
"""
