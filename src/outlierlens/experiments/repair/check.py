"""What a model is run on to choose factors and to check them, how large its tensors get, and what it gives.

check = check_of(loaded, texts, max_length=128, seed=0)
seen = seen_of(loaded, check)                        # ranges, and peaks of what pairs can scale
outputs(loaded.model, check)                         # of each batch, float32 on the CPU
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outlierlens.analyses.range import TensorRange, tensor_rows
from outlierlens.analyses.range_pass import Pass
from outlierlens.data.media.items import Items
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.repair.pairs import Pair, Peaks, pairs_of
from outlierlens.models.inputs import check_known, token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import Reading, reading_of

if TYPE_CHECKING:
    from torch import Tensor

N_RANDOM, RANDOM_LENGTH = 2, 32  # rows of random tokens, and their length
OUTPUTS = ("logits", "last_hidden_state")
STREAM = ("stream", "stream after attention")
WRITES = ("attention output", "MLP output")


@dataclass(frozen=True)
class Check:
    """Data as a model reads it: each text, picture or recording, then random ones.

    Attributes:
        data, max_length, inputs: what is read, tokens of a text at most, and what it is: "texts".
        batches, arguments: of each, and what the model takes for it; the random ones last.
        n_tokens, n_random: tokens of all, and of the random ones.
    """

    data: Data
    max_length: int
    inputs: str
    batches: tuple[Batch, ...]
    arguments: tuple[dict[str, Any], ...]
    n_tokens: int
    n_random: int

    def every(self, first: int) -> "Check":
        """Every other of what is read, from `first` on; the numbers of tokens stay those of all."""
        return replace(self, batches=self.batches[first::2], arguments=self.arguments[first::2])


@dataclass(frozen=True)
class Seen:
    """How large tensors got: `rows` by kind and layer, and `peaks` of each entry of what `pairs` can scale."""

    rows: tuple[TensorRange, ...]
    peaks: Peaks
    pairs: tuple[Pair, ...]

    def of(self, *kinds: str) -> float:
        """The largest |x| of these kinds; 0.0 of none."""
        return max((row.largest for row in self.rows if row.kind in kinds), default=0.0)

    @property
    def layers(self) -> tuple[float, ...]:
        """The largest |h| after each block, all streams in a row."""
        return tuple(row.largest for row in self.rows if row.kind == "stream" and row.layer != "embeddings")

    @property
    def kinds(self) -> dict[str, float]:
        """The largest |x| by kind."""
        return {kind: self.of(kind) for kind in dict.fromkeys(row.kind for row in self.rows)}

    @property
    def inputs(self) -> "list[tuple[Pair, Tensor]]":
        """Of each pair of neurons: the largest |x| of each that the last linear reads [neuron]."""
        found = []
        for pair in self.pairs:
            size = self.peaks.get((pair.where, "reads")) if pair.kind == "neurons" else None
            if size is not None:
                found.append((pair, size.flatten()))
        return found

    @property
    def spikes(self) -> float:
        """The largest ratio of the largest neuron to the median one; 0.0 where no neuron can take a factor."""
        return max((float(one.max() / one.median().clamp(min=1e-30)) for _, one in self.inputs), default=0.0)


def check_of(loaded: LoadedModel, data: Data, *, max_length: int, seed: int) -> Check:
    """Batches of `data`, then two of random tokens, or one of noise beside pictures and recordings.

    Raises:
        BadInput: the data reaches but a part of the model, or holds no token that its tokenizer knows.
    """
    import torch

    reading = reading_of(loaded, data, max_length)
    if other := [stack.name for stack in loaded.stacks if stack not in reading.stacks]:
        raise BadInput(
            f"{loaded.name}: {reading.inputs} do not reach its stream {', '.join(other)}, so that it cannot be checked; "
            f"repair the towers one by one, each loaded by itself"
        )
    batches = list(reading.batches(data, batch_size=1))
    check_known(loaded)
    random = torch.Generator().manual_seed(seed)
    if isinstance(data, Items):
        noise = {
            name: torch.randn(one.shape, generator=random).to(one) if one.is_floating_point() else one
            for name, one in batches[0].inputs.items()
        }
        drawn = [replace(batches[0], inputs=noise, texts=(len(data),))]
    else:
        length = min(RANDOM_LENGTH, token_limit(loaded, max_length))
        n_rows = loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        rows = torch.randint(n_rows, (N_RANDOM, length), generator=random).to(loaded.device)
        drawn = [_tokens(rows[[row]], len(data) + row) for row in range(N_RANDOM)]
    whole = (*batches, *drawn)
    arguments = tuple(reading.arguments(batch) for batch in whole)
    n_tokens, n_random = (sum(int(batch.valid.sum()) for batch in some) for some in (whole, drawn))
    return Check(data, max_length, reading.inputs, whole, arguments, n_tokens, n_random)


def _tokens(ids: "Tensor", number: int) -> Batch:
    valid = ids >= 0
    return Batch({"input_ids": ids, "attention_mask": valid.to(ids.dtype)}, valid, ~valid, (number,))


def outputs(model: Any, check: Check) -> "list[Tensor]":
    """What the model gives for each batch: its logits, or its last hidden state where it has no head."""
    import torch

    weight = next(model.parameters())
    found = []
    with torch.inference_mode():
        for arguments in check.arguments:
            given = {
                name: one.to(weight.device, weight.dtype if one.is_floating_point() else None)
                for name, one in arguments.items()
                if isinstance(one, torch.Tensor)
            }
            out = model(**given)
            found.append(next(out[name] for name in OUTPUTS if name in out).float().cpu())
    return found


def seen_of(loaded: LoadedModel, check: Check) -> Seen:
    """How large the tensors of a model get on a check; raises BadInput where hidden states are not finite."""
    reading = reading_of(loaded, check.data, check.max_length)
    seen = seen_by(loaded, reading, check.batches)
    if not math.isfinite(seen.of(*STREAM, *WRITES)):
        raise BadInput(f"{loaded.name}: hidden states are not finite in float32; {USE_FLOAT32}")
    return seen


def seen_by(loaded: LoadedModel, reading: Reading, batches: Iterable[Batch]) -> Seen:
    """How large the tensors of a model get while it reads these batches."""
    pairs = tuple(pairs_of(loaded))
    watched = {(sight.path, sight.side) for pair in pairs for sight in (*pair.seen, *pair.inverse)}
    one = Pass(loaded, reading, watched=watched)
    for batch in batches:
        one.consume(batch)
    return Seen(tensor_rows(one), one.peaks, pairs)
