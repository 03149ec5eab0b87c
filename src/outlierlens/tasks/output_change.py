"""How far a model's outputs move from those of the intact model: for encoders and taggers without a vocabulary head.

    task = OutputChange(loaded, texts, TaskOptions())      # keeps the intact outputs at once
    values, weights = task.per_text()                      # 0 while the model is intact

The value is the KL divergence of the head's distribution (nats) where there are logits, else the cosine distance
between intact and present vectors, in [0, 2]; it says how much outputs change, not whether they get worse.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablate import stream_width
from outlierlens.data import Batch, batches
from outlierlens.errors import BadInput
from outlierlens.inputs import model_inputs, token_limit
from outlierlens.models import LoadedModel
from outlierlens.tasks.base import TaskOptions, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

MAX_KEPT_BYTES = 4_000_000_000  # intact outputs are kept in memory


def _classes(loaded: LoadedModel) -> int:
    """Size of the head's distribution: the vocabulary of a generator, the labels of a classifier, 1 for a bare score."""
    name = type(loaded.model).__name__
    if loaded.head == "none" or name.endswith("PreTraining"):
        return 1
    head = loaded.model.get_output_embeddings()  # type: ignore[operator]
    return int(head.out_features) if head is not None else len(loaded.config.get("id2label") or ())


def _width(loaded: LoadedModel) -> int:
    return stream_width(loaded.model, loaded.stacks[-1])


class OutputChange:
    """Change of outputs against the model as it was when the task was made."""

    name = "output change"
    is_loss = False

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        self.loaded = loaded
        length = token_limit(loaded, options.max_length)
        found = batches(loaded.tokenizer, texts, max_length=length, batch_size=options.batch_size, device=loaded.device)
        self._batches = list(found)
        self.texts = tuple(sorted(number for batch in self._batches for number in batch.texts))
        if not self.texts:
            raise BadInput("no text has a token; give longer texts")
        self._row_of = {number: row for row, number in enumerate(self.texts)}
        self.n_texts = len(self.texts)
        self.n_tokens = sum(int(batch.valid.sum()) for batch in self._batches)
        # A single logit (a regression, a detector of replaced tokens) is no distribution: vectors are compared there.
        classes = _classes(loaded)
        needed = sum(batch.valid.numel() for batch in self._batches) * (classes + _width(loaded)) * 4
        if needed > MAX_KEPT_BYTES:
            raise BadInput(
                f"the intact outputs of {self.n_tokens:,} tokens would take {needed / 1e9:.1f} GB; use fewer texts (--limit)"
            )
        self._intact = [self._run(batch) for batch in self._batches]
        self._has_logits = classes > 1 and all(len(logits) for _, logits in self._intact)
        self.unit = "KL divergence (nats)" if self._has_logits else "cosine distance"
        self._also: dict[str, float] = {}

    def _run(self, batch: Batch) -> tuple["Tensor", "Tensor"]:
        """(token vectors [batch, token, dim], logits or an empty tensor), as float32 on the CPU."""
        import torch

        headless = self.loaded.head == "none"
        with torch.inference_mode():
            output: Any = self.loaded.model(**model_inputs(self.loaded, batch), output_hidden_states=not headless)
        states = getattr(output, "last_hidden_state", None)
        if states is None:
            # An encoder-decoder's answer is the decoder's.
            states = (getattr(output, "decoder_hidden_states", None) or output.hidden_states)[-1]
        logits = getattr(output, "logits", None)
        return states.float().cpu(), torch.empty(0) if logits is None else logits.float().cpu()

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(change [text], tokens [text]) of the model as it is now."""
        from torch.nn import functional

        named: dict[str, np.ndarray] = {
            name: np.zeros(self.n_texts)
            for name in ("cosine distance", "relative change", "pooled cosine distance", "kl")
        }
        weights = np.zeros(self.n_texts)
        for batch, (before, logits_before) in zip(self._batches, self._intact, strict=True):
            after, logits_after = self._run(batch)
            valid = batch.valid.cpu()
            rows = [self._row_of[number] for number in batch.texts]
            n_valid = valid.sum(1)  # [batch]

            def mean(per_token: "Tensor", valid: "Tensor" = valid, n: "Tensor" = n_valid) -> np.ndarray:
                return ((per_token.double() * valid).sum(1) / n).numpy()

            named["cosine distance"][rows] = mean(1 - functional.cosine_similarity(before, after, dim=-1))
            named["relative change"][rows] = mean((after - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-12))
            pooled = [(states * valid[..., None]).sum(1) / n_valid[:, None] for states in (before, after)]
            named["pooled cosine distance"][rows] = (
                1 - functional.cosine_similarity(pooled[0], pooled[1], dim=-1)
            ).numpy()
            if self._has_logits:
                kl = functional.kl_div(
                    logits_after.log_softmax(-1), logits_before.log_softmax(-1), reduction="none", log_target=True
                ).sum(-1)
                named["kl"][rows] = mean(kl) if kl.shape == valid.shape else kl.reshape(len(rows), -1).mean(1).numpy()
            weights[rows] = n_valid.numpy()
        if not self._has_logits:
            del named["kl"]
        self._also = {name: weighted_mean(values, weights) for name, values in named.items()}
        return named["kl" if self._has_logits else "cosine distance"], weights

    def also(self) -> dict[str, float]:
        """All measures of the last call: cosine distance, relative change, pooled cosine distance, and KL if any."""
        return dict(self._also)
