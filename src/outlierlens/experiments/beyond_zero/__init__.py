"""Beyond zero: the same dimensions zeroed, set to means, shuffled, scaled and restored; a fixed bias, or information?

beyond_zero(loaded, texts)                       # run.py: the loop, its bench and the numbers
choose(loaded, stack, texts, asked, options)     # dims.py: which dimensions, and who names them
"""

from outlierlens.experiments.beyond_zero.measure import beyond_zero
from outlierlens.experiments.beyond_zero.options import BeyondOptions

__all__ = ["BeyondOptions", "beyond_zero"]
