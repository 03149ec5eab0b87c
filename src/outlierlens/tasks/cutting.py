"""Cut texts into forward passes that waste little: few passes, little padding.

slices = list(cheapest_cuts(lengths, tokens=2048, start=32))      # of lengths that descend
"""

import numpy as np


def cheapest_cuts(lengths: np.ndarray, *, tokens: int, start: int) -> list[slice]:
    """Slices of rows, whose `lengths` (int [row]) descend, for one forward pass each of at most `tokens` tokens.

    Of all ways to cut where the length changes, the one that computes least: rows × the longest of them, and `start` tokens
    for each pass. Where rows of one length alone are too many, they are cut as well. A row longer than `tokens` is alone.
    """
    if not len(lengths):
        return []
    first = np.flatnonzero(np.r_[True, lengths[1:] != lengths[:-1]])  # row where each length begins
    longest, ends = lengths[first], np.r_[first[1:], len(lengths)]
    fitting = np.maximum(1, tokens // longest)  # rows of a pass that begins at this length
    best, before = np.zeros(len(ends) + 1), np.zeros(len(ends) + 1, dtype=int)
    for place, end in enumerate(ends, 1):
        rows = end - first[:place]
        cost = best[:place] + rows * longest[:place] + start * -(-rows // fitting[:place])
        before[place] = np.argmin(cost)
        best[place] = cost[before[place]]
    found: list[slice] = []
    place = len(ends)
    while place:
        begin, end, size = int(first[before[place]]), int(ends[place - 1]), int(fitting[before[place]])
        found += [slice(row, min(row + size, end)) for row in range(begin, end, size)][::-1]
        place = int(before[place])
    return found[::-1]
