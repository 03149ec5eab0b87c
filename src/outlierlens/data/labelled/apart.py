"""Texts to fit on that are none of the evaluated ones, and evaluated ones that hang together.

fit, dropped = apart(read_texts("train.parquet"), evaluated, limit=10_000, seed=0)
family = families(first, second)                  # number of the family of each pair: pairs of one share sentences
"""

from collections.abc import Collection, Hashable, Sequence

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput


def apart(fit: Texts, evaluated: Collection[str], *, limit: int | None = None, seed: int = 0) -> tuple[Texts, int]:
    """(texts of `fit` that are not `evaluated`, how many are), each once, and of them `limit` drawn by `seed`.

    Texts are the same where they differ in spaces at most.

    Raises:
        BadInput: less than two texts are left, as where `fit` is the evaluated data itself.
    """
    seen = {plain(text) for text in evaluated}
    given = once(fit.texts)
    left = [text for key, text in given.items() if key not in seen]
    dropped = len(given) - len(left)
    if len(left) < 2:
        raise BadInput(
            f"{fit.source}: {dropped:,} of its {len(given):,} texts are evaluated ones, so {len(left)} is left to fit "
            f"on; give another text (--fit-data)"
        )
    if limit is not None and limit < len(left):
        drawn = np.random.default_rng([seed, 11]).permutation(len(left))[:limit]
        left = [left[i] for i in sorted(drawn.tolist())]
    return Texts(fit.source, tuple(left), fit.column), dropped


def once(texts: Sequence[str]) -> dict[str, str]:
    """{plain text: the first text that is so}, in order."""
    found: dict[str, str] = {}
    for text in texts:
        found.setdefault(plain(text), text)
    return found


def plain(text: str) -> str:
    """A text with single spaces: two are the same where these are."""
    return " ".join(text.split())


def families(*parts: Sequence[Hashable]) -> np.ndarray:
    """Which items hang together, int [item]: those that share a value in any of the `parts` [item], directly or over others.

    Pairs of which two share a sentence are no two independent pairs: `families(pairs.first, pairs.second)`.
    """
    above = list(range(len(parts[0])))

    def top(item: int) -> int:
        while above[item] != item:
            above[item] = above[above[item]]
            item = above[item]
        return item

    first: dict[Hashable, int] = {}
    for part in parts:
        for item, value in enumerate(part):
            one, other = top(item), top(first.setdefault(value, item))
            above[max(one, other)] = min(one, other)
    return np.unique([top(item) for item in range(len(above))], return_inverse=True)[1]
