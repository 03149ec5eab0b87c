"""Intervals in words, and what they leave open. No heavy library is imported.

interval_text(low, high, "+.3f")              # "+1.543 to +2.164"; "not settled"; "no change"
no_change(5428, "pairs", 1258)                # "no change on 5,428 pairs (at most 0.24 % of all, 95 %)"
no_interval(8)                                # "8 texts are too few for an interval; read 16 or more"
unseen(64)                                    # 0.0457: rarer kinds of texts may be missing among 64
"""

import math
import re

FEWEST_TEXTS = 16  # below, an interval of a mean covers 92 % of log-normal changes
FEWEST_PAIRS = 598  # below, an interval of a correlation may lack a kind that makes up 0.5 % of all items
FEWEST_CHANGED = 10  # texts that changed at all: of fewer, nothing covers


def unseen(n: int, level: float = 0.95) -> float:
    """The share of all texts that a kind may make up and still be missing among `n` of them: 1 − (1 − level)^(1/n)."""
    return -math.expm1(math.log1p(-level) / n)


def unseen_note(n: int, plural: str = "texts") -> str:
    """What an interval over `n` texts leaves open, in words."""
    return (
        f"among {n:,} {plural} a kind that makes up less than {unseen(n):.1%} of all may be missing (at 95 %): "
        "the interval does not cover it"
    )


def no_interval(n: int, plural: str = "texts", times: int = 1, *, metric: str = "") -> str:
    """Why there is no interval over `n` texts, and what settles it; `times` texts are read for each of these.

    `metric` is of what: "pearson" and "spearman" need more items than a mean.
    """
    few, fewest = f"fewer than {FEWEST_CHANGED} of {n:,} {plural} change", FEWEST_TEXTS
    if metric in ("pearson", "spearman"):
        few, fewest = f"a few of {n:,} {plural} decide the correlation", FEWEST_PAIRS
    if n >= fewest:
        return f"{few}, or a value is not finite, so there is no interval; read {2 * times * n:,}"
    return f"{n:,} {plural} are too few for an interval; read {times * fewest:,} or more"


def interval_text(low: float, high: float, form: str = "+.3f", nothing: str = "no change", why: str = "") -> str:
    """An interval in words: its ends; "not settled" where there is none, with `why`; `nothing` where every value was 0."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"not settled: {why}" if why else "not settled"
    form = re.sub(r"^([+]?)z?", r"\1z", form)  # an end that rounds to 0 has no minus
    return nothing if low == high == 0 else f"{low:{form}} to {high:{form}}"


def no_change(n: int, plural: str, independent: int | None = None) -> str:
    """What is said where none of `n` items changed, with how many of all may change for all that (`unseen`).

    `independent` is the number of groups of items that hang together, of which that share is.
    """
    return f"no change on {n:,} {plural} (at most {100 * unseen(independent or n):.2g} % of all, 95 %)"
