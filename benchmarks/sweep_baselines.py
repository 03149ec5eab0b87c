"""What `benchmarks/sweep.py` compares with: the released scripts' way and a careful plain loop, written from scratch.

    rows = masked_rows(task)                                   # the very inputs and targets that the task reads
    released(folder, dims, rows, ReleasedOptions(256))         # model load, padding to the maximum, Trainer.evaluate
    loop = PlainLoop(loaded.model, rows, pad=0)                # one model, length-sorted batches, zero and restore
    loop.loss([7], batch_size=16)

Both give the mean loss in nats per predicted token; neither uses the package's ablations or forward passes.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

# The last operation of a block: post-norm encoders end in a norm (scale and bias), Llama-like decoders in a linear
# whose rows write to the stream. The released scripts match names likewise.
LAST_OPERATIONS = (
    re.compile(r"(^|\.)encoder\.layer\.\d+\.output\.LayerNorm\.(weight|bias)$"),
    re.compile(r"(^|\.)layers\.\d+\.mlp\.down_proj\.weight$"),
)
IGNORED = -100  # label of a position that is not predicted


@dataclass(frozen=True)
class Row:
    """One text as a model reads it: token ids, and the labels it is scored against (`IGNORED` where it is not)."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def n_predicted(self) -> int:
        """Labels that count."""
        return sum(label != IGNORED for label in self.labels)


def masked_rows(task: Any) -> list[Row]:
    """Inputs and labels of every text of a language-model task of one window a text, in the task's order."""
    causal = task.name == "causal loss"
    rows: list[Row | None] = [None] * task.n_texts
    for feed in task.feeds(range(task.n_texts), 1):
        (slot,) = feed.slots
        if rows[slot] is not None:
            raise ValueError("a text of several windows; give texts that fit one")
        ids = feed.inputs["input_ids"][0].tolist()
        labels = [IGNORED] * len(ids)
        for position, target in zip(feed.positions[1].tolist(), feed.targets.tolist(), strict=True):
            # transformers' causal models shift labels themselves.
            labels[position + causal] = target
        rows[slot] = Row(tuple(ids), tuple(labels))
    return [row for row in rows if row is not None]


def switch_off(model: Any, dims: Sequence[int]) -> list[tuple[Any, Any]]:
    """Zero the last operation of every block at `dims`, in place; returns (parameter, rows before) to put back."""
    index, before = torch.tensor(dims, dtype=torch.long), []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(pattern.search(name) for pattern in LAST_OPERATIONS):
                before.append((parameter, parameter[index].clone()))
                parameter[index] = 0
    if not before:
        raise ValueError(f"{type(model).__name__}: no last operation of a block is known by its name")
    return before


@contextmanager
def off(model: Any, dims: Sequence[int]) -> Iterator[None]:
    """`switch_off` inside, everything back at the end."""
    before = switch_off(model, dims) if dims else []
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, rows in before:
                parameter[torch.tensor(dims)] = rows


@dataclass(frozen=True)
class ReleasedOptions:
    """Settings of the released scripts: every text padded to `max_length`, batches of 64."""

    max_length: int
    batch_size: int = 64
    pad: int = 0
    causal: bool = False


def released(folder: Path, dims: Sequence[int], rows: Sequence[Row], options: ReleasedOptions) -> float:
    """Mean loss over batches as the released scripts take it: the model anew from disk, then `Trainer.evaluate`.

    Kovaleva et al. (2021) and Puccetti et al. (2022) do this once for each set of dimensions. Their collator draws the
    same masks for each set; here they are given, so that every way reads the same inputs.
    """
    loader = AutoModelForCausalLM if options.causal else AutoModelForMaskedLM
    model = loader.from_pretrained(folder, dtype=torch.float32)
    if dims:
        switch_off(model, dims)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch, per_device_eval_batch_size=options.batch_size, report_to=[], use_cpu=True, disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        padded = [_padded(row, options) for row in rows]
        trainer = Trainer(model, arguments, data_collator=default_data_collator, eval_dataset=padded)
        trainer.remove_callback(PrinterCallback)
        return float(trainer.evaluate()["eval_loss"])


def _padded(row: Row, options: ReleasedOptions) -> dict[str, list[int]]:
    missing = options.max_length - len(row.ids)
    return {
        "input_ids": [*row.ids, *[options.pad] * missing],
        "attention_mask": [1] * len(row.ids) + [0] * missing,
        "labels": [*row.labels, *[IGNORED] * missing],
    }


def as_released(values: np.ndarray, weights: np.ndarray, batch_size: int = 64) -> float:
    """The number that `released` gives for losses `values` [text] of `weights` [text] predicted tokens.

    Its batches are means over predicted tokens, and the result is the mean over texts of their batch's.
    """
    parts = [slice(start, start + batch_size) for start in range(0, len(values), batch_size)]
    means = [np.average(values[part], weights=weights[part]) for part in parts]
    return float(np.average(means, weights=[len(values[part]) for part in parts]))


class PlainLoop:
    """The loop that a careful person writes: one model, batches sorted by length and padded to their longest text."""

    def __init__(self, model: Any, rows: Sequence[Row], pad: int = 0):
        self.model, self.pad = model, pad
        self.rows = sorted(rows, key=lambda row: -len(row.ids))
        self._batches: dict[int, list[tuple[dict[str, Any], int]]] = {}

    def loss(self, dims: Sequence[int], batch_size: int) -> float:
        """Mean loss in nats per predicted token with `dims` off, over all texts."""
        if batch_size not in self._batches:  # made once, like everything that is the same for every set
            parts = [self.rows[start : start + batch_size] for start in range(0, len(self.rows), batch_size)]
            self._batches[batch_size] = [(self._batch(some), sum(row.n_predicted for row in some)) for some in parts]
        total, count = 0.0, 0
        with off(self.model, dims), torch.inference_mode():
            for batch, predicted in self._batches[batch_size]:
                total += float(self.model(**batch).loss) * predicted
                count += predicted
        return total / count

    def _batch(self, rows: Sequence[Row]) -> dict[str, Any]:
        length = max(len(row.ids) for row in rows)
        options = ReleasedOptions(length, pad=self.pad)
        padded = [_padded(row, options) for row in rows]
        batch = {key: torch.tensor([row[key] for row in padded]) for key in padded[0]}
        return batch | ({"use_cache": False} if hasattr(self.model.config, "num_key_value_heads") else {})


def save_bert(folder: Path, texts: Sequence[str], *, layers: int = 12, width: int = 768) -> None:
    """Write a masked LM of BERT-base's size with random weights, and a WordPiece tokenizer learnt from `texts`.

    Weights are drawn wider than BERT's and the norms' scales differ between dimensions, so that switching one off changes
    the loss by much more than rounding does: equal losses then say that the ways agree.
    """
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(texts, vocab_size=30522, min_frequency=1, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    words.save_model(str(folder))
    BertTokenizer.from_pretrained(folder, model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width,
        initializer_range=0.05,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if LAST_OPERATIONS[0].search(name) and name.endswith("weight"):
                parameter.mul_(torch.exp(torch.randn_like(parameter)))
    model.save_pretrained(folder)
