"""Luo et al. (2021) whole, for one model; `outlierlens.replicate.luo.measure` measures it."""
