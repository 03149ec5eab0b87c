"""Pre-train masked language models by recipe, with the outlier dimensions watched from the first step."""
