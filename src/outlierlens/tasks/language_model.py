"""Masked and causal language-model loss, in nats per token, text by text.

    task = CausalLoss(loaded, texts, TaskOptions(max_length=128))
    values, weights = task.per_text()            # mean nats of each text, its number of predicted tokens

Tokens, windows and masks are made once, so every condition reads the very same input. The vocabulary head is computed
only where a token is predicted.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data import Batch, collate
from outlierlens.errors import BadInput
from outlierlens.hidden import head_only_at
from outlierlens.inputs import token_limit
from outlierlens.models import LoadedModel
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from torch import Tensor

HEAD_ROWS = 4096  # logits of this many tokens at once: 0.8 GB for a vocabulary of 50,000 in fp32


@dataclass(frozen=True)
class _Rows:
    """One batch: where to predict (bool [batch, token]), what ([selected]) and for which text ([selected])."""

    batch: Batch
    positions: "Tensor"
    targets: "Tensor"
    texts: "Tensor"


@dataclass(frozen=True)
class _Window:
    """Token ids of one row, the positions whose output is read, and the token each should predict."""

    text: int
    ids: list[int]
    positions: list[int]
    targets: list[int]


class LanguageModelLoss(ABC):
    """Mean negative log-likelihood of the predicted tokens of each text."""

    name: str
    unit = "nats per token"
    is_loss = True

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        if loaded.tokenizer is None:
            raise BadInput(f"{loaded.name} has no tokenizer beside it, so texts cannot be read; pass one")
        self.loaded, self.options = loaded, options
        self.max_length = token_limit(loaded, options.max_length)
        windows = [window for number, text in enumerate(texts) for window in self._windows(number, text)]
        windows = [window for window in windows if window.positions]
        if not windows:
            raise BadInput(f"no text has a token to predict ({len(texts)} texts); give longer texts")
        numbers = sorted({window.text for window in windows})
        self._row_of = {number: row for row, number in enumerate(numbers)}
        self.n_texts, self.n_tokens = len(numbers), sum(len(window.positions) for window in windows)
        self.texts = tuple(numbers)
        self._batches = list(self._collate(windows))

    @abstractmethod
    def _windows(self, number: int, text: str) -> list[_Window]:
        """Rows of token ids for one text."""

    def _collate(self, windows: list[_Window]) -> Any:
        import torch

        ordered = sorted(windows, key=lambda window: (-len(window.ids), window.text))
        device = self.loaded.device
        for start in range(0, len(ordered), self.options.batch_size):
            rows = ordered[start : start + self.options.batch_size]
            encoded = {"input_ids": [row.ids for row in rows], "attention_mask": [[1] * len(row.ids) for row in rows]}
            batch = collate(self.loaded.tokenizer, encoded, tuple(row.text for row in rows), device)
            positions = torch.zeros_like(batch.valid)
            for i, row in enumerate(rows):
                positions[i, torch.tensor(row.positions, device=device)] = True
            targets = torch.tensor([token for row in rows for token in row.targets], device=device)
            texts = torch.tensor([self._row_of[row.text] for row in rows for _ in row.positions], device=device)
            yield _Rows(batch, positions, targets, texts)

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean nats [text], predicted tokens [text]) of the model as it is now."""
        import torch

        device = self.loaded.device
        wide = torch.float32 if device.type == "mps" else torch.float64
        sums = torch.zeros(self.n_texts, dtype=wide, device=device)
        counts = torch.zeros(self.n_texts, dtype=wide, device=device)
        with torch.inference_mode():
            for rows in self._batches:
                losses = self._losses(rows).to(wide)
                sums.index_add_(0, rows.texts, losses)
                counts.index_add_(0, rows.texts, torch.ones_like(losses))
        return (sums / counts).cpu().double().numpy(), counts.cpu().double().numpy()

    def _losses(self, rows: _Rows) -> "Tensor":
        """Nats of every predicted token of a batch [selected]."""
        import torch
        from torch.nn import functional

        model = self.loaded.model
        with head_only_at(model, rows.positions):
            logits = model(**rows.batch.inputs, **self._model_options).logits
        parts = [
            functional.cross_entropy(
                logits[i : i + HEAD_ROWS].float(), rows.targets[i : i + HEAD_ROWS], reduction="none"
            )
            for i in range(0, len(logits), HEAD_ROWS)
        ]
        return torch.cat(parts)

    @property
    def _model_options(self) -> dict[str, Any]:
        return {"use_cache": False} if self.loaded.head == "causal" else {}

    def also(self) -> dict[str, float]:
        """Nothing beside the loss."""
        return {}


class CausalLoss(LanguageModelLoss):
    """Next-token loss over sliding windows; every token but the text's first is predicted exactly once."""

    name = "causal loss"

    def _windows(self, number: int, text: str) -> list[_Window]:
        length = self.max_length
        # Windows overlap by a token at least: the first token of a window has no context to be predicted from.
        stride = min(self.options.stride or length, length - 1)
        ids = list(self.loaded.tokenizer(text)["input_ids"])  # type: ignore[misc]
        windows, done = [], 1
        for start in range(0, max(1, len(ids) - 1), stride):
            end = min(start + length, len(ids))
            fresh = range(max(done, start + 1), end)
            windows.append(_Window(number, ids[start:end], [i - 1 - start for i in fresh], [ids[i] for i in fresh]))
            done = end
            if end == len(ids):
                break
        return windows


class MaskedLoss(LanguageModelLoss):
    """Loss at masked tokens; masks are drawn once per text from (seed, number of the text) and kept for every condition.

    Devlin et al. (2019): of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are
    never chosen, and every text with an ordinary token has at least one.
    """

    name = "masked loss"

    def _windows(self, number: int, text: str) -> list[_Window]:
        tokenizer: Any = self.loaded.tokenizer
        if tokenizer.mask_token_id is None:
            raise BadInput(f"{self.loaded.name}: its tokenizer has no mask token, so the masked loss is undefined")
        ids = list(tokenizer(text, truncation=True, max_length=self.max_length)["input_ids"])
        special = set(tokenizer.all_special_ids)
        ordinary = [i for i, token in enumerate(ids) if token not in special]
        if not ordinary:
            return []
        random = np.random.default_rng([self.options.seed, number])
        chosen = [i for i in ordinary if random.random() < self.options.mask_fraction]
        chosen = chosen or [ordinary[int(random.integers(len(ordinary)))]]
        masked = list(ids)
        for i in chosen:
            kind = random.random()
            if kind < 0.8:
                masked[i] = tokenizer.mask_token_id
            elif kind < 0.9:
                masked[i] = int(random.integers(len(tokenizer)))
        return [_Window(number, masked, chosen, [ids[i] for i in chosen])]
