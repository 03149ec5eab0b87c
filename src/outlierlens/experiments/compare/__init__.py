"""What became of outliers between two models: `outlierlens.experiments.compare.result` says it of two scans."""
