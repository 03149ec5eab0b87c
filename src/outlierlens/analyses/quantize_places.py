"""Where a model's linears are, and which of them read a residual stream or write to it.

    for place in find_places(loaded, "model"):
        place.name, place.layer, place.reads, place.writes, place.weight()     # [out, in]
    seen = calibrate(loaded, places, texts, stack=None, max_length=128, batch_size=16)
    smooth_factors(places, seen, alpha=0.5)       # SmoothQuant's scales: {name: [in]}

A linear *writes* where the architecture's row names it as a write. It *reads* where it takes as many inputs as the stream has
dimensions and does not write; those that several blocks hand the very same tensor (cross-attention to another stream) do
not count.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack, live_parameters, refuse_packed, refuse_sharded, weight_of
from outlierlens.architectures.live import in_memory, is_multiplied_out
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import BadInput
from outlierlens.models.changes import hang, temporary
from outlierlens.models.hooks import refuse_compiled
from outlierlens.models.inputs import read_together, reading_of
from outlierlens.models.load import LoadedModel, stream_width

if TYPE_CHECKING:
    from torch import Tensor, nn

FEW_TOKENS = 8  # enough to see which linears read the same tensor
LEAST = 1e-5  # of factors and of what they are made of: an input that is never used has no largest value


@dataclass(frozen=True)
class LinearPlace:
    """One linear of a block.

    Attributes:
        name: module path. layer: of its block, the first where several layers share it. part: path inside the block.
        reads: its input is the stream, or a norm of it: input column d belongs to dimension d.
        writes: its output is added to the stream: row d belongs to dimension d.
        transposed: the module stores [in, out] (Conv1D).
    """

    name: str
    layer: int
    part: str
    module: "nn.Module" = field(repr=False, compare=False)
    reads: bool
    writes: bool
    transposed: bool

    def weight(self) -> "Tensor":
        """The live weight as [out, in], a view."""
        stored: Tensor = weight_of(self.module).detach()
        return stored.T if self.transposed else stored

    def values(self) -> "Tensor":
        """`weight`, read where the model is read block by block."""
        stored = in_memory(weight_of(self.module)).detach()
        return stored.T if self.transposed else stored

    def bias(self) -> "Tensor | None":
        """The live bias [out], or None."""
        found: Any = weight_of(self.module, "bias")
        return None if found is None else found.detach()


def find_places(loaded: LoadedModel, stack: str | None = None) -> tuple[LinearPlace, ...]:
    """Every linear inside the blocks of a stream, in the order of the model.

    Raises:
        BadInput: the blocks hold no linear, or one whose weights are no floating-point values in memory.
    """
    bound = loaded.stack(stack)
    refuse_sharded(loaded.model)
    width = stream_width(loaded.model, bound)
    layer_of = {path: layer for layer, path in reversed(list(enumerate(bound.blocks)))}
    written = (*bound.stack.other_writes, *bound.stack.last_linear)
    writers = {f"{block}.{module}" for block in bound.blocks for module in written if not module.endswith("()")}
    found: list[LinearPlace] = []
    seen: set[int] = set()
    live = live_parameters(loaded.model)
    for name, module in loaded.model.named_modules():
        kind = linear_kind(module)
        block = next((path for path in layer_of if name.startswith(f"{path}.")), None) if kind else None
        if block is None or id(module) in seen:
            continue
        seen.add(id(module))
        weight: Any = live.get(f"{name}.weight", module.weight)
        if is_multiplied_out(weight) or weight.device.type == "meta" or not weight.is_floating_point():
            what = "not loaded (meta device)" if weight.device.type == "meta" else f"of type {module.weight.dtype}"
            raise BadInput(
                f"{name}.weight is {what} and cannot be quantized; load the model unquantized, on one device"
            )
        transposed = kind == "conv1d"
        n_inputs = weight.shape[0 if transposed else 1]
        writes = name in writers
        part = name.removeprefix(f"{block}.")
        found.append(
            LinearPlace(name, layer_of[block], part, module, n_inputs == width and not writes, writes, transposed)
        )
    refuse_packed(loaded.model, bound.blocks)
    if not found:
        raise BadInput(
            f"{loaded.name}: the blocks of stream {bound.name!r} hold no linear that this can round (packed experts, bare "
            f"parameters)"
        )
    return tuple(found)


def cast_notes(places: Iterable[LinearPlace]) -> tuple[str, ...]:
    """A remark where linears are of a type that rounds once more what a scheme has rounded."""
    kinds = {str(place.weight().dtype).removeprefix("torch.") for place in places}
    said = f"weights and inputs are {', '.join(sorted(kinds))}: quantized values are rounded to that once more; "
    return (f"{said}--dtype float32 avoids it",) if kinds - {"float32", "float64"} else ()


def without_foreign_readers(places: Sequence[LinearPlace], shared: Sequence[Sequence[str]]) -> tuple[LinearPlace, ...]:
    """`places` without `reads` where one tensor is read in several blocks: `shared` holds names by the tensor they read."""
    layer = {place.name: place.layer for place in places}
    foreign = {name for group in shared if len({layer[name] for name in group}) > 1 for name in group}
    return tuple(replace(place, reads=False) if place.name in foreign else place for place in places)


def linear_kind(module: "nn.Module") -> str:
    """ "linear", "conv1d" or "" for anything else."""
    from torch import nn

    if isinstance(module, nn.Linear):
        return "linear"
    # By name: importing transformers' class would cost a second where the model needs none of it.
    return "conv1d" if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else ""


@dataclass(frozen=True)
class Calibration:
    """Inputs of the intact model.

    Attributes:
        largest: {name of a linear: [in], largest |x| over all tokens that are no padding}.
        shared: names of the linears that read one tensor, for each tensor.
    """

    largest: Mapping[str, "Tensor"]
    shared: tuple[tuple[str, ...], ...]


def by_text(reads: "Tensor", masks: Sequence["Tensor"], bound: BoundStack) -> tuple["Tensor", "Tensor | None"]:
    """What a linear reads as ([text, token, in], its valid tokens [text, token] or None where no mask fits).

    Blocks may carry [token, text, in] or all tokens in a row; without a mask that fits, a row of the input is a text.
    """
    if reads.ndim == 3:
        states = reads.transpose(0, 1) if bound.stack.token_first else reads
        return states, next((mask.bool() for mask in masks if mask.shape == states.shape[:2]), None)
    flat = reads.reshape(-1, reads.shape[-1])
    for mask in masks:
        if mask.numel() == len(flat):
            return flat.unflatten(0, tuple(mask.shape)), mask.bool()
    return flat[None], None


def shaped_like(other: "Tensor", states: "Tensor", bound: BoundStack) -> "Tensor":
    """`states` [text, token, n] in the order of axes of `other`: what `by_text` undid."""
    if other.ndim == 3 and bound.stack.token_first:
        return states.transpose(0, 1)
    return states.reshape(*other.shape[:-1], states.shape[-1])


@temporary
def looked_at(
    loaded: LoadedModel, places: Sequence[LinearPlace], look: Callable[[LinearPlace, "Tensor"], None]
) -> Iterator[None]:
    """Call `look(place, reads)` on what each linear reads, as the model hands it over."""
    refuse_compiled(loaded.model)
    with ExitStack() as hooks:
        for place in places:
            hang(hooks, place.module.register_forward_pre_hook, partial(_look, look, place))
        yield


def _look(
    look: Callable[[LinearPlace, "Tensor"], None], place: LinearPlace, _: "nn.Module", args: tuple[Any, ...]
) -> None:
    import torch

    with torch._C.DisableTorchFunction():  # else `fast_products` asks at every function
        look(place, args[0])


def calibrate(
    loaded: LoadedModel,
    places: Sequence[LinearPlace],
    texts: Data,
    *,
    stack: str | None,
    max_length: int,
    batch_size: int,
) -> Calibration:
    """Run the intact model on `texts` and look at what every linear reads."""
    import torch

    bound, reading = loaded.stack(stack), reading_of(loaded, texts, max_length)
    largest: dict[str, Tensor] = {}

    def look(valid: "Tensor", place: LinearPlace, reads: "Tensor") -> None:
        states, mask = by_text(reads, [valid], bound)
        size = states.abs() if mask is None else states.abs().masked_fill(~mask[..., None], 0.0)
        top, before = size.flatten(0, 1).amax(0).float(), largest.get(place.name)
        largest[place.name] = top if before is None else torch.maximum(before, top)

    def read(batch: Batch) -> None:
        with looked_at(loaded, places, partial(look, batch.valid)):
            reading(batch)

    read_together(loaded, read, reading.batches(texts, batch_size=batch_size))
    return Calibration(largest, _shared(loaded, places, texts))


def _shared(loaded: LoadedModel, places: Sequence[LinearPlace], texts: Data) -> tuple[tuple[str, ...], ...]:
    """Names of the linears by the tensor that they read, seen on the first tokens of one text."""
    reading = reading_of(loaded, texts, FEW_TOKENS)
    alive: list[Tensor] = []  # so that no two tensors of the pass have one address
    names: dict[tuple[int, int], list[str]] = {}

    def look(place: LinearPlace, reads: "Tensor") -> None:
        alive.append(reads)
        names.setdefault((reads.data_ptr(), reads.numel()), []).append(place.name)

    (batch,) = reading.batches(texts.first(1), batch_size=1, max_length=FEW_TOKENS)
    with looked_at(loaded, places, look):
        reading(batch)
    return tuple(dict.fromkeys(tuple(dict.fromkeys(group)) for group in names.values()))


def smooth_factors(places: Sequence[LinearPlace], seen: Calibration, alpha: float) -> dict[str, "Tensor"]:
    """SmoothQuant's scale of every input of the linears that read the stream: {name: [in]}.

    s_j = max|X_j|^α / max|W_j|^(1 − α) (Xiao et al. 2023, eq. 4), at least 1e-5; W_j runs over all linears that read the same
    tensor, so they share one scale. What is read is divided by it, and the weights' columns are multiplied.
    """
    import torch

    readers = {place.name: place for place in places if place.reads}
    factors: dict[str, Tensor] = {}
    for group in seen.shared:
        mine = [readers[name] for name in group if name in readers]
        if not mine or any(place.name in factors for place in mine):
            continue
        weights = torch.stack([place.values().float().abs().amax(0) for place in mine]).amax(0).clamp(min=LEAST)
        reads = torch.stack([seen.largest[place.name] for place in mine]).amax(0)
        scale = (reads**alpha / weights ** (1 - alpha)).clamp(min=LEAST)
        factors |= {place.name: scale for place in mine}
    return factors
