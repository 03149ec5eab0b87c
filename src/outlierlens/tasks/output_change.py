"""How far a model's outputs move from those of the intact model: for encoders and taggers without a vocabulary head.

    task = OutputChange(loaded, texts, TaskOptions())      # keeps the intact outputs at once
    values, weights = task.per_text()                      # 0 while the model is intact
    task = SentenceChange(loaded, texts, TaskOptions())    # of the texts' own vectors instead of their tokens'

`texts` may be pictures or recordings (`media.Items`).

The value is the KL divergence of the head's distribution (nats) where there are logits, else the cosine distance
between intact and present vectors, in [0, 2]; it says how much outputs change, not whether they get worse.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.media import Items
from outlierlens.data.texts import Batch, collate, encoded
from outlierlens.errors import BadInput
from outlierlens.models.devices import fast_products
from outlierlens.models.forward import text_reader
from outlierlens.models.hooks import tapped
from outlierlens.models.inputs import check_readable, model_inputs, token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.models.media import ItemRows
from outlierlens.models.model_class import takes_alone
from outlierlens.tasks.base import Task, TaskOptions, in_passes, weighted_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_KEPT_BYTES = 4_000_000_000  # intact outputs are kept in memory


def _classes(loaded: LoadedModel) -> int:
    """Size of the head's distribution: the vocabulary of a generator, the labels of a classifier, 1 for a bare score."""
    name = type(loaded.model).__name__
    if loaded.head == "none" or name.endswith("PreTraining"):
        return 1
    head = loaded.model.get_output_embeddings()  # type: ignore[operator]
    return (
        int(getattr(head, "out_features", 0) or head.num_embeddings)
        if head is not None
        else len(loaded.config.get("id2label") or ())
    )


@dataclass(frozen=True)
class _OutputRows:
    """One forward pass: its batch, the slot and the number of the text of each row."""

    batch: Batch
    slots: tuple[int, ...]
    texts: tuple[int, ...]
    n_tokens: int


class OutputChange(Task):
    """Change of outputs against the model as it was when the task was made."""

    name = "output change"

    def __init__(self, loaded: LoadedModel, texts: Sequence[str] | Items, options: TaskOptions):
        self.loaded, self.options = loaded, options
        self._rows = (
            ItemRows(loaded, texts) if isinstance(texts, Items) else _TextRows(loaded, texts, options.max_length)
        )
        # Of a model of texts and pictures, pictures run the tower that reads them; so do texts without a head of their own.
        self._reader: Any = loaded.model
        if isinstance(self._rows, ItemRows):
            if len(self._rows.prepare.stacks) < len(loaded.stacks):
                self._reader = self._rows.prepare.reader
        elif loaded.head == "none" or not takes_alone(loaded.model, "input_ids"):
            read = loaded.text_stacks
            self._reader = text_reader(loaded, read) if 0 < len(read) < len(loaded.stacks) else loaded.model
        self.text, self.lengths = self._rows.what, self._rows.lengths
        self.notes = self._rows.notes
        self.texts, self.n_texts = self._rows.texts, len(self.lengths)
        self.weights = self._weights()
        self.n_tokens = int(self.lengths.sum())
        # A single logit (a regression, a detector of replaced tokens) is no distribution: vectors are compared there.
        classes = _classes(loaded) if self._reader is loaded.model else 1
        needed = self.n_tokens * (classes + stream_width(loaded.model, loaded.stacks[-1])) * 4
        if needed > MAX_KEPT_BYTES:
            raise BadInput(
                f"the intact outputs of {self.n_tokens:,} tokens would take {needed / 1e9:.1f} GB; use fewer texts (--limit)"
            )
        self._intact: list[tuple[Tensor, Tensor]] = [()] * self.n_texts  # type: ignore[list-item]
        feeds = list(self.feeds(range(self.n_texts)))
        for feed, (states, logits) in zip(feeds, loaded.run(partial(self._run, feed) for feed in feeds), strict=True):
            for row, slot in enumerate(feed.slots):
                length = int(self.lengths[slot])
                kept = logits[row, :length] if logits.ndim == 3 else logits[row] if len(logits) else logits
                self._intact[slot] = (states[row, :length].clone(), kept.clone())
        self._has_logits = classes > 1 and all(logits.numel() for _, logits in self._intact)
        self.unit = "KL divergence (nats)" if self._measure == "kl" else "cosine distance"
        self._also: dict[str, float] = {}

    @property
    def _measure(self) -> str:
        return "kl" if self._has_logits else "cosine distance"

    def _weights(self) -> np.ndarray:
        return self.lengths.astype(np.float64)

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[_OutputRows]:
        """See `Task`."""
        for slots, mine in in_passes(self._rows, texts, self.options.batch_size, tokens, self.loaded.device):
            yield _OutputRows(self._rows.batch(mine), tuple(slots), tuple(mine), int(self.lengths[mine].sum()))

    def _run(self, feed: _OutputRows) -> tuple["Tensor", "Tensor"]:
        """(token vectors [batch, token, dim], logits or an empty tensor), as float32."""
        import torch

        headless = self.loaded.head == "none" or self._reader is not self.loaded.model
        with torch.inference_mode(), fast_products():
            output: Any = self._reader(**model_inputs(self.loaded, feed.batch), output_hidden_states=not headless)
        states = getattr(output, "last_hidden_state", None)
        if states is None:
            # An encoder-decoder's answer is the decoder's.
            each = getattr(output, "decoder_hidden_states", None) or getattr(output, "hidden_states", None)
            states = each[-1] if each else self._last_states(feed)
        logits = getattr(output, "logits", None)
        return states.float(), torch.empty(0) if logits is None else logits.float()

    def _last_states(self, feed: _OutputRows) -> "Tensor":
        """What the last block gives [batch, token, dim], of a model that returns no hidden states when asked."""
        import torch

        stack, found = self.loaded.stacks[-1], {}

        def look(_: BoundStack, layer: int, states: "Tensor") -> None:
            found[layer] = states

        with torch.inference_mode(), fast_products(), tapped(self.loaded.model, [stack], look):
            self._reader(**model_inputs(self.loaded, feed.batch))
        last: Tensor = found[stack.n_layers - 1]
        return last

    def _changes(self, feed: _OutputRows) -> dict[str, "Tensor"]:
        """Each measure's mean over the tokens of each row [row]."""
        import torch
        from torch.nn import functional
        from torch.nn.utils.rnn import pad_sequence

        after, logits_after = self._run(feed)
        kept = [self._intact[text] for text in feed.texts]
        before = pad_sequence([states for states, _ in kept], batch_first=True)
        valid = feed.batch.valid
        n_valid = valid.sum(1)  # [row]

        def mean(per_token: "Tensor") -> "Tensor":
            return (per_token.to(_wide(per_token)) * valid).sum(1) / n_valid

        def apart(one: "Tensor", other: "Tensor") -> "Tensor":
            return (1 - functional.cosine_similarity(one, other, dim=-1)).clamp_min(0)  # rounding goes below

        pooled = [(states * valid[..., None]).sum(1) / n_valid[:, None] for states in (before, after)]
        changes = {
            "cosine distance": mean(apart(before, after)),
            "relative change": mean((after - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-12)),
            "pooled cosine distance": apart(pooled[0], pooled[1]),
        }
        if self._has_logits:
            per_token = logits_after.ndim == 3
            kept_logits = [logits for _, logits in kept]
            logits_before = pad_sequence(kept_logits, batch_first=True) if per_token else torch.stack(kept_logits)
            kl = (
                functional.kl_div(
                    logits_after.log_softmax(-1), logits_before.log_softmax(-1), reduction="none", log_target=True
                )
                .sum(-1)
                .clamp_min(0)
            )
            changes["kl"] = mean(kl) if kl.shape == valid.shape else kl.reshape(len(kept), -1).mean(1)
        return changes

    def sums(self, feed: _OutputRows) -> "Tensor":
        """Change of each row's text × its weight [row]; see `Task`."""
        import torch

        change = self._changes(feed)[self._measure]
        return change.to(_wide(change)) * torch.tensor(self.weights[list(feed.texts)]).to(change.device, _wide(change))

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(change [text], tokens [text]) of the model as it is now."""
        named: dict[str, np.ndarray] = {}

        def add(feed: _OutputRows) -> None:
            for name, change in self._changes(feed).items():
                values = named.setdefault(name, np.zeros(self.n_texts))
                values[list(feed.slots)] = change.cpu().double().numpy()

        with self.loaded.ordered_weights():
            self.loaded.run(partial(add, feed) for feed in self.feeds(range(self.n_texts)))
        self._also = {name: weighted_mean(values, self.weights) for name, values in named.items()}
        return named[self._measure], self.weights

    def also(self) -> dict[str, float]:
        """All measures of the last call: cosine distance, relative change, pooled cosine distance, and KL if any."""
        return dict(self._also)


class SentenceChange(OutputChange):
    """Change of each text's own vector, the mean of its tokens' last states, special tokens counted; texts weigh alike."""

    name = "sentence change"

    @property
    def _measure(self) -> str:
        return "pooled cosine distance"

    def _weights(self) -> np.ndarray:
        return np.ones(self.n_texts)


class _TextRows:
    """Texts by their tokens: what `media.passes.ItemRows` is to pictures. Texts of no token are left out: `texts` are kept."""

    notes: tuple[str, ...] = ()

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], max_length: int):
        self.loaded = loaded
        length = token_limit(loaded, max_length)
        self.what = f"line of at most {length} tokens"
        check_readable(loaded, texts)
        made = encoded(loaded.tokenizer, texts, length)
        kept = [number for number, ids in enumerate(made["input_ids"]) if ids]
        if not kept:
            raise BadInput("no text has a token; give longer texts")
        self.texts = tuple(kept)
        self._encoded = [{key: made[key][number] for key in made} for number in kept]
        self.lengths = np.array([len(one["input_ids"]) for one in self._encoded])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These texts (repeats allowed) as one batch."""
        mine = [self._encoded[number] for number in numbers]
        rows = {key: [one[key] for one in mine] for key in mine[0]}
        return collate(self.loaded.tokenizer, rows, tuple(numbers), self.loaded.device)

    def apart(self, numbers: Sequence[int]) -> list[list[int]]:
        """Places in `numbers` that can share batches: all of them."""
        return [list(range(len(numbers)))]


def _wide(values: "Tensor") -> "torch.dtype":
    import torch

    return torch.float32 if values.device.type == "mps" else torch.float64
