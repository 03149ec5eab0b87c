"""What became of outliers between two models: `outlierlens.experiments.compare.measure` says it of two scans."""
