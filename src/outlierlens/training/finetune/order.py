"""The order of training examples: random, with examples of like length in one batch; a function of the seed alone.

order = training_order(lengths, batch=32, epochs=4, seed=42)       # int [epochs × steps × batch]
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.errors import BadInput

BATCHES_SORTED = 50  # among so many batches, examples are sorted by length: padding nearly goes, chance stays


def steps_per_epoch(n_examples: int, batch: int) -> int:
    """Whole batches of an epoch: up to batch − 1 examples, others in every epoch, are left out of it.

    Raises:
        BadInput: fewer examples than a batch.
    """
    if n_examples < batch:
        raise BadInput(f"{n_examples} training examples do not fill a batch of {batch}; use a smaller --batch-size")
    return n_examples // batch


def training_order(lengths: Sequence[int], *, batch: int, epochs: int, seed: int) -> np.ndarray:
    """Numbers of the examples in the order they are trained on, epoch after epoch, int [step × batch]."""
    found = []
    size = np.asarray(lengths)
    steps = steps_per_epoch(len(size), batch)
    for epoch in range(epochs):
        random = np.random.default_rng([seed, epoch])
        drawn = random.permutation(len(size))[: steps * batch]
        whole = batch * BATCHES_SORTED
        batches = []
        for start in range(0, len(drawn), whole):
            part = drawn[start : start + whole]
            part = part[np.argsort(-size[part], kind="stable")]
            batches += [part[place : place + batch] for place in range(0, len(part), batch)]
        found += [batches[place] for place in random.permutation(len(batches))]
    return np.concatenate(found)
