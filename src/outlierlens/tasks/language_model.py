"""Masked and causal language-model loss, in nats per token, text by text.

    task = CausalLoss(loaded, texts, TaskOptions(max_length=128))
    values, weights = task.per_text()            # mean nats of each text, its number of predicted tokens

Tokens, windows and masks are made once, so every condition reads the very same input. The vocabulary head is computed
only where a token is predicted.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures.experiment.small import small_model
from outlierlens.data.texts import TokenText
from outlierlens.data.token_texts import added_ends, special_ids
from outlierlens.errors import BadInput, UnknownArchitecture
from outlierlens.models.devices import fast_products, linear, tokens_at_once
from outlierlens.models.folder import refuse_unknown, row_count
from outlierlens.models.hooks import (
    head_inputs,
    head_only_at,
    norm_before_last_mlp,
    only_at,
    tapped_calls,
    vocabulary_head,
)
from outlierlens.models.inputs import check_known, check_readable, token_ids, token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, TaskOptions, cut, log_sum_exp_, values_of

if TYPE_CHECKING:
    from torch import Tensor, nn

BLANK_LINE = "\n\n"  # between the texts of a block
HEAD_ROWS = 4096  # logits of this many tokens at once: 0.8 GB for a vocabulary of 50,000 in fp32
# Words whose logits are computed at once: on a CPU, in cache.
VOCABULARY_PART = {"cpu": 1024, "cuda": 16384, "mps": 8192}


@dataclass(frozen=True)
class PredictionRows:
    """One forward pass: its inputs, where to predict (rows and tokens, [selected] each) and what ([selected]).

    `read` holds the same tokens row by row, [row, place], filled up with 0; `places` (rows and places, [selected] each) is
    where they stand in it. `slots` says which of the texts asked for each row is of.
    """

    inputs: dict[str, "Tensor"]
    positions: tuple["Tensor", "Tensor"]
    read: "Tensor"
    places: tuple["Tensor", "Tensor"]
    targets: "Tensor"
    slots: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Window:
    """Token ids of one row, the positions whose output is read, and the token each should predict."""

    text: int
    ids: list[int]
    positions: list[int]
    targets: list[int]


class LanguageModelLoss(Task):
    """Mean negative log-likelihood of the predicted tokens of each text."""

    unit = "nats per token"
    is_loss = True

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        self.loaded, self.options, self.model = loaded, options, loaded.language
        self.max_length = token_limit(loaded, options.max_length)
        self.n_known = row_count(loaded.model)
        windows = [window for window in self._all_windows(texts) if window.positions]
        for window in windows:
            refuse_unknown([*window.ids, *window.targets], self.n_known, loaded.tokenizer, loaded.name)
        check_known(loaded)
        if not windows:
            raise BadInput(f"no text has a token to predict ({len(texts)} texts); give longer texts")
        by_text: dict[int, list[Window]] = {}
        for window in windows:
            by_text.setdefault(window.text, []).append(window)
        self.texts = tuple(sorted(by_text))
        self._windows_of = [by_text[number] for number in self.texts]
        self.weights = np.array([sum(len(w.positions) for w in mine) for mine in self._windows_of], dtype=np.float64)
        self.lengths = np.array([sum(len(w.ids) for w in mine) for mine in self._windows_of])
        self.n_texts, self.n_tokens = len(self.texts), int(self.weights.sum())
        self._norm: nn.Module | None = None  # behind which passes see the tokens that are read alone
        self._by_parts = self._agrees_by_parts()

    @abstractmethod
    def _windows(self, number: int, text: str) -> list[Window]:
        """Rows of token ids for one text."""

    def _all_windows(self, texts: Sequence[str]) -> Iterator[Window]:
        for number, text in enumerate(texts):
            yield from self._windows(number, text)

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[PredictionRows]:
        """See `Task`."""
        windows = [(slot, window) for slot, text in enumerate(texts) for window in self._windows_of[text]]
        windows.sort(key=lambda item: -len(item[1].ids))
        lengths = [len(window.ids) for _, window in windows]
        for rows in cut(lengths, self.options.batch_size, tokens, self.loaded.device):
            yield self._collate(windows[rows])

    def _collate(self, rows: list[tuple[int, Window]]) -> PredictionRows:
        """Pad on the right, as `data.collate` does, straight into tensors: this runs once per forward pass of a sweep."""
        padding = getattr(self.loaded.tokenizer, "pad_token_id", None) or 0
        longest = max(len(window.ids) for _, window in rows)
        ids = np.full((len(rows), longest), padding, dtype=np.int64)
        valid = np.zeros((len(rows), longest), dtype=np.int64)
        for row, (_, window) in enumerate(rows):
            ids[row, : len(window.ids)] = window.ids
            valid[row, : len(window.ids)] = 1
        counts = [len(window.positions) for _, window in rows]
        tokens = np.array([token for _, window in rows for token in window.positions], dtype=np.int64)
        read = np.zeros((len(rows), max(counts)), dtype=np.int64)
        of_row, place = np.nonzero(np.arange(max(counts)) < np.array(counts)[:, None])  # as `tokens` are ordered
        read[of_row, place] = tokens
        moved = self._move(of_row)
        targets = np.array([token for _, window in rows for token in window.targets], dtype=np.int64)
        return PredictionRows(
            inputs={"input_ids": self._move(ids), "attention_mask": self._move(valid)},
            positions=(moved, self._move(tokens)),
            read=self._move(read),
            places=(moved, self._move(place)),
            targets=self._move(targets),
            slots=tuple(slot for slot, _ in rows),
            n_tokens=int(valid.sum()),
        )

    def _move(self, values: np.ndarray) -> "Tensor":
        import torch

        return torch.from_numpy(values).to(self.loaded.device, non_blocking=True)

    def sums(self, feed: PredictionRows) -> "Tensor":
        """Nats of each row, summed over its predicted tokens [row]; see `Task`."""
        import torch

        losses = self._losses_by_parts(feed) if self._by_parts else self._losses(feed)
        device = self.loaded.device
        wide = torch.float32 if device.type == "mps" else torch.float64
        total = torch.zeros(len(feed.slots), dtype=wide, device=device)
        return total.index_add(0, feed.positions[0], losses.to(wide))

    def _losses(self, feed: PredictionRows) -> "Tensor":
        """Nats of every predicted token [selected], from the model's own logits."""
        import torch
        from torch.nn import functional

        with head_only_at(self.model, feed.positions):
            logits = self._run(feed).logits
        parts = [
            functional.cross_entropy(
                logits[i : i + HEAD_ROWS].float(), feed.targets[i : i + HEAD_ROWS], reduction="none"
            )
            for i in range(0, len(logits), HEAD_ROWS)
        ]
        return torch.cat(parts)

    def _losses_by_parts(self, feed: PredictionRows) -> "Tensor":
        """The same from the head's weights, a part of the vocabulary at a time: no [selected, vocabulary] is ever kept."""

        model: Any = self.model
        narrow = nullcontext() if self._norm is None else only_at(self._norm, feed.read)
        with narrow:
            states = head_inputs(model, feed.positions if self._norm is None else feed.places, lambda: self._run(feed))
        head = model.get_output_embeddings()
        with self.loaded.weights_of(head):
            return self._nats(feed, states, head)

    def _nats(self, feed: PredictionRows, states: "Tensor", head: Any) -> "Tensor":
        """Nats of every predicted token [selected], of what the head reads [selected, dim]."""
        import torch

        bias, size = head.bias, VOCABULARY_PART.get(states.device.type, VOCABULARY_PART["cpu"])
        right = torch.zeros(len(states), device=states.device)
        sums = []
        for start in range(0, len(head.weight), size):
            weight = head.weight[start : start + size]
            logits = linear(states, weight, None if bias is None else bias[start : start + size]).float()
            place = feed.targets - start
            inside = (place >= 0) & (place < len(weight))
            here = logits.gather(1, place.clamp(0, len(weight) - 1)[:, None])[:, 0]
            right = torch.where(inside, here, right)
            sums.append(log_sum_exp_(logits))
        return torch.stack(sums).logsumexp(0) - right

    def _agrees_by_parts(self) -> bool:
        """Whether the head is a plain linear whose output nothing changes, tried on one text."""
        import torch

        model: Any = self.model
        if not isinstance(model.get_output_embeddings(), torch.nn.Linear):
            return False
        if self.loaded.blocks is not None:  # a pass would read all weights
            return _has_plain_head(self.loaded.config)
        feed = next(self.feeds([int(self.lengths.argmin())]))
        with torch.no_grad():
            whole, parts = self._losses(feed), self._losses_by_parts(feed)
        close = 1e-4 if model.dtype is torch.float32 else 2e-2
        return bool(torch.allclose(whole, parts, rtol=close, atol=close, equal_nan=True))

    @contextmanager
    def narrowed(self) -> Iterator[None]:
        """See `Task`."""
        self._norm = self._narrowest
        try:
            yield
        finally:
            self._norm = None

    @cached_property
    def _narrowest(self) -> "nn.Module | None":
        """The norm before the last MLP, if what follows works token by token: tried on the shortest and the longest text."""
        import torch

        stacks = self.loaded.stacks
        norm = norm_before_last_mlp(self.loaded.model, stacks[0]) if self._by_parts and len(stacks) == 1 else None
        if norm is None or self.n_tokens > self.lengths.sum() / 2:
            return None
        feed = self._collate([(0, self._windows_of[i][0]) for i in (self.lengths.argmax(), self.lengths.argmin())])
        whole = self._losses_by_parts(feed)
        self._norm, near = norm, 1e-4 if self.loaded.model.dtype is torch.float32 else 2e-2
        try:
            return norm if torch.allclose(whole, self._losses_by_parts(feed), rtol=near, atol=near) else None
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None
        finally:
            self._norm = None

    def _run(self, feed: PredictionRows) -> Any:
        with fast_products():
            return self.model(**feed.inputs, **({"use_cache": False} if self.loaded.head == "causal" else {}))

    @cached_property
    def _passes(self) -> list[PredictionRows]:
        """All texts, `batch_size` of the longest in one pass, or fewer where the device does better with fewer tokens."""
        longest = max(len(window.ids) for windows in self._windows_of for window in windows)
        tokens = min(self.options.batch_size * longest, tokens_at_once(self.loaded.device))
        return list(self.feeds(range(self.n_texts), tokens))

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean nats [text], predicted tokens [text]) of the model as it is now."""
        return values_of(self, self._passes, self.weights), self.weights

    def per_token(self) -> tuple[np.ndarray, np.ndarray]:
        """(nats, number of the text) of every predicted token [prediction], of the model as it is now."""
        import torch

        losses = self._losses_by_parts if self._by_parts else self._losses
        with torch.inference_mode(), self.loaded.ordered_weights():
            nats = self.loaded.run(partial(losses, feed) for feed in self._passes)
        texts = [np.array(feed.slots)[feed.positions[0].cpu().numpy()] for feed in self._passes]
        return np.concatenate([one.cpu().double().numpy() for one in nats]), np.concatenate(texts)


def _has_plain_head(config: Mapping[str, Any]) -> bool:
    """Whether nothing changes what the head gives, seen in a small random model of this config."""
    import torch

    try:
        small = small_model(config)
    except UnknownArchitecture:
        return False
    given: list[Tensor] = []
    head = vocabulary_head(small.model)
    if head is None:
        return False
    with torch.no_grad(), tapped_calls(small.model, {head: lambda _, made: given.append(made)}):
        model: Any = small.model
        logits = model(**small.inputs).logits
    return bool(given) and torch.equal(given[-1], logits)


class CausalLoss(LanguageModelLoss):
    """Next-token loss over windows or blocks; every token of a text is predicted exactly once.

    Each window and each block begins as the tokenizer begins a text (`<bos>` for Llama and Gemma, nothing for GPT-2). What
    the tokenizer adds is read and never predicted; what it adds behind a text is left out, as no token reads it. Where it adds
    nothing in front, the first token of a text or block has nothing to be predicted from, and is not.
    """

    name = "causal loss"

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        check_readable(loaded, texts)
        self.front, self._back = added_ends(loaded.tokenizer, texts)
        super().__init__(loaded, texts, options)
        self.text = f"{'block' if options.blocks else 'line, windows'} of {self.max_length} tokens"
        self.notes = tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        name: Any = getattr(self.loaded.tokenizer, "convert_ids_to_tokens", None)
        what = "block" if self.options.blocks else "window"
        if self.front:
            yield (
                f"every {what} begins with {' '.join(name(list(self.front)))}, as the tokenizer begins a text: among its "
                f"{self.max_length} tokens, and not predicted"
            )
        if self._back:
            yield f"{' '.join(name(list(self._back)))}, which the tokenizer puts behind a text, is left out"

    @property
    def _room(self) -> int:
        """Tokens of a text that a window holds."""
        room = self.max_length - len(self.front)
        if room < 1:
            raise BadInput(
                f"windows of {self.max_length} tokens hold none of a text: the tokenizer puts {len(self.front)} in front; "
                f"ask for at least {len(self.front) + 1}"
            )
        return room

    def _ids(self, text: str) -> list[int]:
        return token_ids(self.loaded, text, add_special_tokens=False)

    def _window(self, number: int, ids: list[int], start: int, fresh: range) -> Window:
        """The window of tokens `ids` that begin at `start` of their text, and predict those numbered `fresh`."""
        shift = len(self.front) - start
        row = [*self.front, *ids]
        return Window(number, row, [i + shift - 1 for i in fresh], [row[i + shift] for i in fresh])

    @property
    def _unseen(self) -> int:
        """Tokens at the beginning of a window that nothing predicts."""
        return 0 if self.front else 1

    def _all_windows(self, texts: Sequence[str]) -> Iterator[Window]:
        if not self.options.blocks:
            yield from super()._all_windows(texts)
            return
        if all(isinstance(text, TokenText) for text in texts):
            room, ids = self._room, [token for text in texts for token in self._ids(text)]
        else:
            room, ids = self._room, self._ids(BLANK_LINE.join(texts))
        for number in range(max(1, len(ids) // room)):
            block = ids[number * room : (number + 1) * room]
            yield self._window(number, block, 0, range(self._unseen, len(block)))

    def _windows(self, number: int, text: str) -> list[Window]:
        room, ids = self._room, self._ids(text)
        # Windows overlap by a token where they have room: the first of a window is predicted from nothing of its text.
        stride = max(1, min(self.options.stride or room, room - 1))
        windows, done = [], self._unseen
        for start in range(0, len(ids), stride):
            end = min(start + room, len(ids))
            windows.append(self._window(number, ids[start:end], start, range(max(done, start + self._unseen), end)))
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

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        tokenizer_of(loaded)  # whose mask token it takes
        super().__init__(loaded, texts, options)
        self.text = f"line of at most {self.max_length} tokens"

    def _windows(self, number: int, text: str) -> list[Window]:
        tokenizer: Any = self.loaded.tokenizer
        ids = token_ids(self.loaded, text, truncation=True, max_length=self.max_length)
        special = special_ids(tokenizer)
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
                masked[i] = int(random.integers(min(len(tokenizer), self.n_known or len(tokenizer))))
        return [Window(number, masked, chosen, [ids[i] for i in chosen])]
