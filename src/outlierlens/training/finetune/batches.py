"""Training examples as the Trainer takes them: rows in the order of the steps, padded batch by batch.

Trainer(train_dataset=Rows(encoded, order), data_collator=Collator(loaded))

The order of training examples: random, with examples of like length in one batch; a function of the seed alone.

order = training_order(lengths, batch=32, epochs=4, seed=42)       # int [epochs × steps × batch]
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from outlierlens.data.labelled.labels import NOT_A_LABEL, Encoded
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.models.model_class import padding_side

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


class ExampleRows(Dataset[dict[str, Any]]):
    """The examples numbered `order` [place], one after another."""

    def __init__(self, encoded: Encoded, order: np.ndarray):
        self.encoded, self.order = encoded, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, Any]:
        number = int(self.order[place])
        row: dict[str, Any] = {key: values[number] for key, values in self.encoded.inputs.items()}
        return {**row, "labels": self.encoded.labels[number]}


class Collator:
    """Rows of one step, padded to the longest."""

    def __init__(self, loaded: LoadedModel):
        self.tokenizer: Any = loaded.tokenizer
        self.side = padding_side(loaded.model)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        labels = [row["labels"] for row in rows]
        inputs = self.tokenizer.pad(
            [{key: value for key, value in row.items() if key != "labels"} for row in rows],
            return_tensors="pt", padding_side=self.side,
        )  # fmt: skip
        if isinstance(labels[0], list):
            longest = inputs["input_ids"].shape[1]
            fill = [[NOT_A_LABEL] * (longest - len(row)) for row in labels]
            labels = [
                row + more if self.side == "right" else more + row for row, more in zip(labels, fill, strict=True)
            ]
        kind = torch.float32 if isinstance(labels[0], float) else torch.int64
        return {**inputs, "labels": torch.tensor(labels, dtype=kind)}
