"""Where outlier dimensions come from, read off the weights; `outlierlens.experiments.origin.measure` measures it."""
