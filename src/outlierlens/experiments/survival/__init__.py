"""Whether a model's outlier dimensions survive fine-tuning; `outlierlens.survival` finds it out."""
