"""Training examples as the Trainer takes them: rows in the order of the steps, padded batch by batch.

Trainer(train_dataset=Rows(encoded, order), data_collator=Collator(loaded))
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from outlierlens.data.labelled.encode import NOT_A_LABEL, Encoded
from outlierlens.models.heads import padding_side
from outlierlens.models.load import LoadedModel


class Rows(Dataset[dict[str, Any]]):
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
