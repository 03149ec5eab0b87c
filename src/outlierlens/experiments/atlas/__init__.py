"""The atlas: the outlier dimensions of many models, a row for each residual stream of each."""
