"""Where outlier dimensions come from, read off the weights; `outlierlens.origin` measures it."""
