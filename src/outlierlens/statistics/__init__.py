"""Tests, intervals and resampling, each once, with its source; NumPy alone until an interval is asked for.

p_values.py      rank p, p of positions, of overlaps, of a rank correlation; Holm, Benjamini and Hochberg
ranks.py         ranks with ties, Pearson's and Spearman's correlation, of resampled items too, and what Fisher's z gives
means.py         the interval of a mean over texts, noise of repeats, Student's t
bootstrap.py     BCa intervals of what sums over items decide
resampling.py    weights of texts drawn again, percentile and jackknife intervals, training that is drawn again
subsampling.py   intervals of correlations and of their differences

docs/methods.md says which is used where and why.
"""

SIGNIFICANT = 0.05
"""The p, or false discovery rate, at and below which a finding is called one."""
