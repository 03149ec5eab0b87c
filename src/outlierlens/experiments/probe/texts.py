"""Which texts a probe is trained on and which it is evaluated on; no text is both.

split = split_texts(read_texts("train.jsonl"), read_texts("dev.jsonl"), seed=0)
split = split_texts(read_texts("all.txt"), None, seed=0)         # a fifth of the texts is held out
"""

from dataclasses import dataclass

import numpy as np

from outlierlens.data.labelled.apart import apart, once
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput

HELD_OUT = 5  # one text in so many, where one data set is all there is
FEWEST = 10  # texts that can be split


@dataclass(frozen=True)
class Split:
    """Texts to train on and to evaluate, both in an order drawn by the seed, and what is to be said of them."""

    train: Texts
    dev: Texts
    notes: tuple[str, ...] = ()


def split_texts(data: Texts, dev: Texts | None, *, seed: int) -> Split:
    """`data` to train on and `dev` to evaluate; without `dev` a fifth of the texts of `data`, drawn by `seed`.

    A text counts once, however often it stands in `data`; one that is evaluated is not trained on.

    Raises:
        BadInput: both are the same, too few texts are left, or fewer than ten are to be split.
    """
    if dev is not None:
        if dev.digest == data.digest:
            raise BadInput(
                f"{data.source} and {dev.source} hold the same texts; evaluate on others (--dev-data), or leave --dev-data "
                f"out and a fifth of the texts is held out"
            )
        train, dropped = apart(data, dev.texts)
        gone = f"{dropped:,} texts of {data.source} are evaluated, so they were not trained on"
        return Split(_shuffled(train, seed), _shuffled(dev, seed), (gone,) if dropped else ())
    different = tuple(once(data.texts).values())
    if len(different) < FEWEST:
        raise BadInput(
            f"{data.source} holds {len(different)} different texts, and {FEWEST} are needed to train on some and evaluate on "
            f"others; give more, or name others with --dev-data"
        )
    drawn = _shuffled(Texts(data.source, different, data.column), seed)
    n = len(drawn) // HELD_OUT
    note = f"{n:,} of {len(drawn):,} texts of {data.source} were held out for evaluation, drawn by the seed"
    return Split(Texts(data.source, drawn.texts[n:], data.column), drawn.first(n), (note,))


def _shuffled(texts: Texts, seed: int) -> Texts:
    order = np.random.default_rng([seed, 13]).permutation(len(texts))
    return Texts(texts.source, tuple(texts.texts[i] for i in order.tolist()), texts.column)
