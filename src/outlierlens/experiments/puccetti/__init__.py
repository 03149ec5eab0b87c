"""Puccetti et al. (2022) whole, for one model; `outlierlens.replicate.puccetti` measures it."""
