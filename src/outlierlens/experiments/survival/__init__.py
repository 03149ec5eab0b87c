"""Whether a model's outlier dimensions survive fine-tuning; `outlierlens.experiments.survival.measure` finds it out."""
