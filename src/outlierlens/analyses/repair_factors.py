"""Which channels of a model take a power of two, and which one: what is seen while it reads, and what follows.

sizes = sizes_of(loaded, check_of(loaded, texts, max_length=128, seed=0))
sizes.stream_exponent("fp16", margin=4)              # -1: half of the stream has room
sizes.pair_exponents("fp16", margin=4)               # [(pair, exponents [channel])]
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.range import FORMATS, TensorRange, tensor_rows
from outlierlens.analyses.range_pass import RangePass
from outlierlens.architectures import live_parameters, refuse_offloaded
from outlierlens.architectures.pairs import KINDS, BlockPairs, Kind, Pair, Peaks
from outlierlens.data.media.items import Items
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import edited
from outlierlens.models.inputs import Reading, check_known, reading_of, token_limit
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

    Factors = list[tuple["Pair", Tensor]]  # exponents [channel]

# The largest number that a format holds; int8 has no range of its own, but one scale for all values of a tensor.
LIMITS = {fit: FORMATS[form][0] for fit, form in (("fp16", "fp16"), ("bf16", "bf16"), ("fp8", "e4m3"))}
WHOLE = {"fp16": "float16", "bf16": "bfloat16"}
N_RANDOM, RANDOM_LENGTH = 2, 32  # rows of random tokens, and their length
OUTPUTS = (
    "logits",
    "image_embeds",
    "pooler_output",
    "last_hidden_state",
)  # the first that a model gives is what it is for
Arguments = Sequence[dict[str, Any]]  # of the model, for each batch
ON_STREAM = ("stream", "stream after attention", "attention output", "MLP output")


# --- pairs ---------------------------------------------------------------------------------------------------------


def pairs_of(loaded: LoadedModel, kinds: Sequence[Kind] = KINDS) -> list[Pair]:
    """Every pair of the model that its architecture's rows declare, blocks in order.

    Raises:
        BadInput: heads share keys or values, and the config does not say how wide they are.
    """
    live = live_parameters(loaded.model)
    blocks = [
        BlockPairs(loaded.name, loaded.model.config, bound, path, live)
        for bound in loaded.stacks
        for path in dict.fromkeys(bound.blocks)
    ]
    return [pair for block in blocks for kind in kinds for pair in block.of(kind)]


# --- what is seen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckData:
    """Data as a model reads it: each text, picture or recording, then random ones.

    Attributes:
        data, max_length: what is read, and tokens of a text at most.
        batches, arguments: of each, and what the model takes for it; the random ones last.
        n_tokens, n_random: tokens of the data, and random ones.
    """

    data: Data
    max_length: int
    batches: tuple[Batch, ...]
    arguments: Arguments
    n_tokens: int
    n_random: int


@dataclass(frozen=True)
class Sizes:
    """How large tensors get: `rows` by kind and layer, and `peaks` of each entry of what `pairs` can scale."""

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
    def inputs(self) -> "Factors":
        """Of each pair of neurons: the largest |x| of each that the last linear reads [neuron]."""
        read = [(pair, self.peaks.get(pair.seen[0][:2])) for pair in self.pairs if pair.kind == "neurons"]
        return [(pair, size.flatten()) for pair, size in read if size is not None]

    @property
    def spikes(self) -> float:
        """The largest ratio of the largest neuron to the median one; 0.0 where no neuron can take a factor."""
        return max((float(one.max() / one.median().clamp(min=1e-30)) for _, one in self.inputs), default=0.0)

    def stream_exponent(self, fit: str, margin: int) -> int:
        """The exponent ≤ 0 of the stream's factor with which all that was seen of it has room in the format."""
        largest = self.of(*ON_STREAM)
        return -max(0, math.ceil(math.log2(largest * margin / LIMITS[fit]))) if fit in LIMITS and largest > 0 else 0

    def pair_exponents(self, fit: str, margin: int) -> "Factors":
        """Every pair that lacks room in the format, with the exponents that give it."""
        found = [(pair, pair.room(self.peaks, LIMITS[fit] / margin)) for pair in self.pairs if fit in LIMITS]
        return [(pair, exponents) for pair, exponents in found if exponents.any()]

    def balanced_exponents(self, cap: float, share: float) -> "Factors":
        """Neurons whose largest input is more than `cap` times that of the median neuron of their linear.

        In logarithms they come down by `share` of what they are above that: the rest stays with the inputs, so that the weights
        behind them grow by less (SmoothQuant's α; Xiao et al. 2023, eq. 4).
        """
        import torch

        found = []
        for pair, top in self.inputs:
            channel = pair.takes[0][1]
            n_rows = channel.shape[0] if channel.ndim > 2 else 1  # each packed expert has a median of its own
            rows = top.double().reshape(n_rows, -1)
            most = cap * rows.median(1, keepdim=True).values
            above = torch.where(most > 0, rows / most.clamp(min=1e-30), 1.0).flatten()
            exponents = -torch.floor(share * torch.log2(above.clamp(min=1))).int()
            if exponents.any():
                found.append((pair, exponents))
        return found


def check_of(loaded: LoadedModel, data: Data, *, max_length: int, seed: int) -> CheckData:
    """Batches of `data`, then two of random tokens, or one of noise for pictures and recordings.

    Raises:
        BadInput: the data reaches but a part of the model, or holds no token that its tokenizer knows; or weights are codes.
    """
    import torch

    model: Any = loaded.model
    refuse_offloaded(model, "a rewriting")
    codes = any(not one.is_floating_point() for one in model.parameters())
    if codes or getattr(model.config, "quantization_config", None):
        raise BadInput(
            f"{loaded.name}: its weights run quantized, and codes take no factor; repair the model that was quantized, in "
            "full precision, then quantize it"
        )
    reading = reading_of(loaded, data, max_length)
    if other := [stack.name for stack in loaded.stacks if stack not in reading.stacks]:
        raise BadInput(
            f"{loaded.name}: {reading.inputs} do not reach its stream {', '.join(other)}, so that it cannot be checked; "
            f"repair the towers one by one, each loaded by itself"
        )
    batches = list(reading.batches(data, batch_size=1))
    check_known(loaded)
    random, drawn = torch.Generator().manual_seed(seed), []
    if isinstance(data, Items):
        noise = {
            name: torch.randn(one.shape, generator=random).to(one) if one.is_floating_point() else one
            for name, one in batches[0].inputs.items()
        }
        drawn.append(replace(batches[0], inputs=noise, texts=(len(data),)))
    else:
        shape = N_RANDOM, min(RANDOM_LENGTH, token_limit(loaded, max_length))
        rows = torch.randint(model.get_input_embeddings().weight.shape[0], shape, generator=random).to(loaded.device)
        for number, ids in enumerate(rows.split(1), len(data)):
            valid = torch.ones_like(ids, dtype=torch.bool)
            drawn.append(Batch({"input_ids": ids, "attention_mask": valid.to(ids)}, valid, ~valid, (number,)))
    n_tokens, n_random = (sum(int(batch.valid.sum()) for batch in some) for some in (batches, drawn))
    whole = (*batches, *drawn)
    return CheckData(data, max_length, whole, tuple(map(reading.arguments, whole)), n_tokens, n_random)


def outputs(model: Any, arguments: Arguments) -> "list[Tensor]":
    """What the model gives for each batch: its logits; without a head an embedding of it, or the last hidden state."""
    import torch

    weight, found = next(model.parameters()), []
    with torch.inference_mode():
        for batch in arguments:
            tensors = {name: one for name, one in batch.items() if isinstance(one, torch.Tensor)}
            kinds = {name: weight.dtype if one.is_floating_point() else None for name, one in tensors.items()}
            out = model(**{name: one.to(weight.device, kinds[name]) for name, one in tensors.items()})
            found.append(next(out[name] for name in OUTPUTS if out.get(name) is not None).float().cpu())
    return found


def sizes_of(loaded: LoadedModel, check: CheckData, reading: Reading | None = None) -> Sizes:
    """How large the tensors of a model get on a check; raises BadInput where hidden states are not finite."""
    pairs, reading = tuple(pairs_of(loaded)), reading or reading_of(loaded, check.data, check.max_length)
    one = RangePass(loaded, reading, watched={sight[:2] for pair in pairs for sight in (*pair.seen, *pair.inverse)})
    for batch in check.batches:
        one.consume(batch)
    sizes = Sizes(tensor_rows(one), one.peaks, pairs)
    if not math.isfinite(sizes.of(*ON_STREAM)):
        raise BadInput(f"{loaded.name}: hidden states are not finite in float32; {USE_FLOAT32}")
    return sizes


@temporary
def in_format(loaded: LoadedModel, fit: str) -> Iterator[Any]:
    """The float32 model, or a copy of it, that runs in `fit` while the context lasts.

    fp16, bf16: all of it. fp8: hidden states after each block are rounded to e4m3 without a scale, as where they are kept in
    it. int8: weights and inputs of every linear inside the blocks, one scale per tensor each.
    """
    import torch

    def fp8(_: int, states: "Tensor") -> "Tensor":
        # A cast takes what lies above the largest number to that number; without a scale it would be lost.
        kept = states.to(torch.float8_e4m3fn).to(states.dtype)
        return kept.masked_fill(states.abs() > LIMITS["fp8"], float("nan"))

    with ExitStack() as undo:
        for bound in loaded.stacks:
            if fit == "int8":
                undo.enter_context(rounded(loaded, parse("int8-tensor/int8-tensor"), stack=bound.name))
            elif fit == "fp8":
                undo.enter_context(edited(loaded.model, bound, fp8))
        yield copy.deepcopy(loaded.model).to(getattr(torch, WHOLE[fit])) if fit in WHOLE else loaded.model
