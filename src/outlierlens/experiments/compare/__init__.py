"""What became of outliers between two models: `outlierlens.comparison` says it of two scans."""
