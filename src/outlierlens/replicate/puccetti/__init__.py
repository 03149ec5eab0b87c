"""Puccetti et al. (2022) whole, for one model; `outlierlens.replicate.puccetti.measure` measures it."""
