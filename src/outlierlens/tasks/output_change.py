"""How far a model's outputs move from those of the intact model: for encoders and taggers without a vocabulary head.

    task = OutputChange(loaded, texts, TaskOptions())      # keeps the intact outputs at once
    values, weights = task.per_text()                      # 0 while the model is intact

The value is the KL divergence of the head's distribution (nats) where there are logits, else the cosine distance
between intact and present vectors, in [0, 2]; it says how much outputs change, not whether they get worse.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.data import Batch, batches, decoder_side
from outlierlens.errors import BadInput
from outlierlens.models import LoadedModel
from outlierlens.tasks.base import TaskOptions, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


def _classes(loaded: LoadedModel) -> int:
    """Size of the head's distribution: the vocabulary of a generator, the labels of a classifier, 1 for a bare score."""
    head = loaded.model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:
        return int(head.out_features)
    return len(loaded.config.get("id2label") or ()) if not type(loaded.model).__name__.endswith("PreTraining") else 1


class OutputChange:
    """Change of outputs against the model as it was when the task was made."""

    name = "output change"
    is_loss = False

    def __init__(self, loaded: LoadedModel, texts: Sequence[str], options: TaskOptions):
        self.loaded = loaded
        # A single logit (a regression, a detector of replaced tokens) is no distribution: vectors are compared there.
        self._shifted = bool(loaded.config.get("is_encoder_decoder"))
        self._has_logits = loaded.head == "other" and _classes(loaded) > 1
        self.unit = "nats (KL of the head's distribution)" if self._has_logits else "cosine distance of token vectors"
        self._batches = list(
            batches(
                loaded.tokenizer,
                texts,
                max_length=options.max_length,
                batch_size=options.batch_size,
                device=loaded.device,
            )
        )
        self.texts = tuple(sorted(number for batch in self._batches for number in batch.texts))
        if not self.texts:
            raise BadInput("no text has a token; give longer texts")
        self._row_of = {number: row for row, number in enumerate(self.texts)}
        self.n_texts = len(self.texts)
        self.n_tokens = sum(int(batch.valid.sum()) for batch in self._batches)
        self._intact = [self._run(batch) for batch in self._batches]
        self._also: dict[str, float] = {}

    def _run(self, batch: Batch) -> tuple["Tensor", "Tensor"]:
        """(token vectors [batch, token, dim], logits or an empty tensor), as float32 on the CPU."""
        import torch

        inputs: dict[str, Any] = dict(batch.inputs)
        if self._shifted:
            inputs["decoder_input_ids"], _ = decoder_side(batch, self.loaded.config)
            inputs["decoder_attention_mask"] = batch.valid.long()
        with torch.inference_mode():
            output: Any = self.loaded.model(**inputs, output_hidden_states=self.loaded.head == "other")
        if not self._has_logits:
            last = getattr(output, "last_hidden_state", None)
            return (output.hidden_states[-1] if last is None else last).float().cpu(), torch.empty(0)
        states = output.decoder_hidden_states if self._shifted else output.hidden_states
        return states[-1].float().cpu(), output.logits.float().cpu()

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
