"""Numbers and lists as words of a sentence: `listed((100, 247))`, `factor(6.9)`, `percent(0.5)`."""

import math
from collections.abc import Sequence

from outlierlens.charts.base import number, power_of_ten

LISTED = 12
TASKS = {"causal loss": "perplexity", "masked loss": "the perplexity of masked tokens"}


def listed(dims: Sequence[int | str]) -> str:
    """Dimensions in a sentence: "100, 247 and 507"."""
    shown = [str(dim) for dim in dims[:LISTED]]
    if len(dims) > LISTED:
        return ", ".join(shown) + f" and {len(dims) - LISTED} more"
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def these(dims: Sequence[int]) -> str:
    """Dimensions in a sentence, called so: "dimensions 100, 247 and 507"."""
    return f"dimension{'s' if len(dims) > 1 else ''} {listed(dims)}"


def factor(change: float) -> str:
    """exp(change) for reading, without the sign ×: "1.02", "992", "12,300", "3.1·10⁹"."""
    return power_of_ten(change / math.log(10)) if change > math.log(1e6) else number(math.exp(change))
