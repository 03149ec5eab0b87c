"""Pre-training runs side by side, seeds of one recipe together."""
