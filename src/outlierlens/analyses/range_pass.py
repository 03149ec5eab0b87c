"""The pass of `range`: which modules give which kind of tensor, maxima with their places, and counts by exponent.

    one = Pass(loaded, reading)
    one.consume(batch)                           # for each batch; one is held at a time, and memory does not grow with them
    one.tally.found[("model", "stream", "0")].largest, one.never_fed()

The architecture's row names the linears that write to the stream and the norms. The other linears of a block belong to its
attention where their path says so ("self_attn", "attention"), else to its MLP.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.quantize_places import linear_kind
from outlierlens.analyses.quantize_schemes import Scheme, fake_quantize_inputs
from outlierlens.architectures import NO_EXPERT, BoundStack, expert_of, live_parameters, packs_experts
from outlierlens.data.texts import Batch
from outlierlens.models.attention_maps import MapLooks, tapped_logits
from outlierlens.models.experts import ExpertCall, tapped_experts, unreached
from outlierlens.models.hooks import head_read, layer_name, tapped, tapped_calls
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

    from outlierlens.models.forward import Side
    from outlierlens.models.inputs import Reading

Key = tuple[str, str, str]  # stream, kind, layer
FINE = 21  # bits of a float32 below the first two of its fraction: a bin is a quarter of an exponent's range
BINS = 256 * (1 << (23 - FINE)) + 1  # bin 0 is of zeros alone
ROWS = 4096  # sampled vectors whose exponents are counted at once
HEAD_ROWS = 256  # tokens whose logits are held at once


@dataclass
class TensorPeak:
    """Statistics of one tensor, or an expert's: its largest |x| with its place, sampled values by bin [bin], any NaN."""

    largest: float = -1.0
    text: int = -1
    token: int = -1
    word: int = -1  # number of the token
    dim: int = -1
    module: str = ""
    counts: Any = None
    nan: bool = False
    expert: int = NO_EXPERT

    def merged(self, other: "TensorPeak") -> "TensorPeak":
        """Both as one tensor, with the place of the larger value, or of the earlier text or token."""
        first, second = sorted((self, other), key=lambda one: (-one.largest, one.text, one.token))
        counts = [one.counts for one in (self, other) if one.counts is not None]
        return replace(first, counts=sum(counts) if counts else None, nan=first.nan or second.nan)

    def take(self, value: float, place: tuple[int, int, int, int], module: str) -> None:
        """Keep a value where it is larger, or as large and of an earlier text or token."""
        earlier = value == self.largest and place[:2] < (self.text, self.token)
        if value > self.largest or earlier:
            self.largest, self.module = value, module
            self.text, self.token, self.word, self.dim = place


@dataclass
class RangeTally:
    """What all batches held so far, by stream, kind and layer; medians and shares of every `every`-th token vector."""

    every: int
    found: dict[Key, TensorPeak] = field(default_factory=dict)
    modules: dict[tuple[str, str], float] = field(default_factory=dict)  # largest |x| by module and kind of tensor
    sides: dict[str, Any] = field(default_factory=dict)  # of the batch that runs; `begin` says what they are
    texts: tuple[int, ...] = ()
    _samples: dict[str, Any] = field(default_factory=dict)
    _last: Any = None  # the tensor that came last, and what it was taken for: several linears read one
    _keys: dict[Key, Any] = field(default_factory=dict)  # of that tensor: its largest |x|
    _of: list[tuple[str, str, Any]] = field(default_factory=list)  # module, kind, and largest |x| of this batch
    _seen: list[tuple[Any, ...]] = field(default_factory=list)  # maxima of this batch, still on the device

    def begin(self, sides: "dict[str, Side]", texts: tuple[int, ...]) -> None:
        """A batch: what each stream reads of its `texts`.

        Which tokens are counted does not depend on how texts are batched.
        """
        import torch

        self.sides, self.texts = sides, texts
        for name, (_, _, valid) in sides.items():
            number = torch.tensor(texts, device=valid.device)[:, None]
            chosen = valid & ((number + torch.arange(valid.shape[1], device=valid.device)) % self.every == 0)
            self._samples[name] = chosen.flatten().nonzero().flatten()

    def add(self, key: Key, module: str, states: "Tensor", rows: "Tensor | None" = None) -> None:
        """Take a tensor [batch, token, dim], or [row, dim] of `rows`, see `peak`.

        Of another shape all rows count, and nobody knows whose they are. What several modules read is counted once.
        """
        import torch

        if not states.numel():
            return
        if self._last is None or _place(self._last) != _place(states):
            self._last, self._keys = states, {}
        if key in self._keys:
            self._of.append((module, key[1], self._keys[key]))
            return
        flat = states.reshape(-1, states.shape[-1])
        sizes = states.amax(-1).maximum(-states.amin(-1))  # much faster than one pass of `aminmax` over rows
        kept = self.peak(key, module, sizes, flat, rows)
        self._keys[key] = self._of[-1][2]
        chosen = self._samples[key[0]]
        if rows is not None:
            sample = flat[torch.isin(rows, chosen)]
        else:
            known = sizes.shape == self.sides[key[0]].valid.shape
            sample = flat.index_select(0, chosen) if known else flat[:: self.every]
        for part in sample.split(ROWS):
            counts = exponents(part)
            kept.counts = counts if kept.counts is None else kept.counts + counts

    def peak(
        self, key: Key, module: str, sizes: "Tensor", flat: "Tensor | None" = None, rows: "Tensor | None" = None
    ) -> TensorPeak:
        """Note the largest of `sizes` [batch, token], not below 0, and where in its row of `flat` [row, dim] it is.

        `rows` [row] are their places in the flat batch, where only some of its tokens have one; without it, sizes of another
        shape belong to no token.
        """
        import torch

        valid = self.sides[key[0]].valid
        known, sizes = rows is not None or sizes.shape == valid.shape, sizes.float().flatten()
        if known and rows is None:
            sizes = sizes.masked_fill(~valid.flatten(), -1.0)
        value, row = sizes.nan_to_num(nan=math.inf, posinf=math.inf).max(0)
        dim = row.new_tensor(-1)
        if flat is not None:
            vector = flat.index_select(0, row[None])[0].float().abs()
            dim = vector.nan_to_num(nan=math.inf, posinf=math.inf).argmax()
        place = torch.stack([row if rows is None else rows[row], dim, sizes.isnan().any().to(row)])
        self._seen.append((key, module, known, value, place))
        self._of.append((module, key[1], value))
        expert = key[2].partition(":")[2]
        return self.found.setdefault(key, TensorPeak(expert=int(expert) if expert else NO_EXPERT))

    def end(self) -> None:
        """Fetch the maxima of the batch and keep what is larger than all before."""
        import torch

        seen, self._seen, self._last = self._seen, [], None
        of, self._of = self._of, []
        if not seen:
            return
        for (module, kind, _), size in zip(of, torch.stack([one[2] for one in of]).tolist(), strict=True):
            self.modules[module, kind] = max(size, self.modules.get((module, kind), 0.0))
        values, places = (torch.stack([one[column] for one in seen]).tolist() for column in (3, 4))
        tokens = {name: side.tokens.cpu() for name, side in self.sides.items()}
        for (key, module, known, *_), value, (row, dim, nan) in zip(seen, values, places, strict=True):
            kept = self.found[key]
            kept.nan |= bool(nan)
            if not known:
                kept.take(value, (-1, -1, -1, dim), module)
            elif value >= 0:
                text, token = divmod(row, tokens[key[0]].shape[1])
                kept.take(value, (self.texts[text], token, int(tokens[key[0]][text, token]), dim), module)


def _place(states: "Tensor") -> tuple[Any, ...]:
    """Where values lie; the same for no other tensor while this one lives."""
    return states.data_ptr(), states.shape, states.stride()


def exponents(values: "Tensor") -> "Tensor":
    """How many values lie in each bin of |x| [bin], the float32's exponent and the first two bits of its fraction.

    Bin 0 has zeros; bin 1 + n is of the bits n at the top of a float32 without its sign. The edges are exact, powers of two
    among them, so shares below a power of two are those of the values counted.
    """
    import torch

    bits = values.float().contiguous().view(torch.int32).flatten() & 0x7FFFFFFF
    return torch.bincount((bits >> FINE) + (bits != 0), minlength=BINS)


def median_of(counts: np.ndarray) -> float:
    """The median of |x| of counts by bin, linear within its bin, whose ends are at most a quarter apart; NaN of none."""
    total = int(counts.sum())
    if not total:
        return math.nan
    reached = np.cumsum(counts)
    place = int(np.searchsorted(reached, total / 2))
    if place == 0:
        return 0.0
    low, high = np.array([place - 1 << FINE, place << FINE], dtype=np.uint32).view(np.float32).tolist()
    before = int(reached[place - 1])
    return float(low + (high - low) * (total / 2 - before) / int(counts[place])) if math.isfinite(high) else math.inf


def below(counts: np.ndarray, smallest: float) -> float:
    """Share of values that are not 0 and below a power of two; NaN of none."""
    edge, total = int(np.float32(smallest).view(np.uint32)) >> FINE, int(counts.sum())
    return float(counts[1 : 1 + edge].sum() / total) if total else math.nan


@dataclass
class CacheErrors:
    """Σ (rounded − x)² of each channel, float64 on the CPU, by layer, tensor ("k", "v") and setting; Σ x² as setting ""."""

    sums: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, layer: int, name: str, states: "Tensor", valid: "Tensor") -> None:
        """Take keys or values [batch, token, channel], as attention multiplies them; padding is left out."""
        kept = states.float().masked_fill(~valid[..., None], 0.0)
        across = kept.transpose(1, 2)  # a channel of a text shares a step as a token does
        rounded = {"": kept * 0}
        for number in ("int8", "int4"):
            whole, token = (Scheme(number, grain) for grain in ("tensor", "token"))
            rounded[f"{number}_token"] = fake_quantize_inputs(kept, token, valid)
            rounded[f"{number}_channel"] = fake_quantize_inputs(across, token).transpose(1, 2)
            rounded[f"{number}_tensor"] = fake_quantize_inputs(kept, whole, valid)
        sums = self.sums.setdefault((layer, name), dict.fromkeys(rounded, 0.0))
        for setting, one in rounded.items():
            sums[setting] += (one - kept).masked_fill(~valid[..., None], 0.0).double().square().sum((0, 1)).cpu()

    def relative(self) -> Iterator[dict[str, Any]]:
        """By layer in order: what each setting loses of the median channel, and of the `whole`; none where all values are 0."""
        for (layer, name), sums in sorted(self.sums.items()):
            used = (power := sums[""]) > 0
            lost = {setting: one for setting, one in sums.items() if setting}
            if bool(used.any()):
                whole = {key: float((one.sum() / power.sum()).sqrt()) for key, one in lost.items()}
                middle = {key: float((one[used] / power[used]).sqrt().median()) for key, one in lost.items()}
                yield {"layer": layer, "tensor": name, "whole": whole, **middle}


@dataclass(frozen=True)
class TensorPlace:
    """A module that is looked at: kinds of its input and output, and of norms whether they take the mean away."""

    name: str
    module: "nn.Module" = field(repr=False, compare=False)
    reads: str = ""
    gives: str = ""
    layer: str = ""  # "embeddings" or "final"; "" where the running layer says it
    squares: bool = False
    centred: bool = False


def find_places(loaded: LoadedModel, stack: BoundStack) -> tuple[TensorPlace, ...]:
    """Linears and norms of a stream's blocks, and the norms before the first and after the last block, each once."""
    modules = dict(loaded.model.named_modules())
    blocks = dict.fromkeys(stack.blocks)
    after = {f"{block}.{path}" for block in blocks for path in stack.stack.other_writes}
    last = {f"{block}.{path}" for block in blocks for path in stack.stack.last_linear}
    between, found = _between(stack), {}
    for name, module in modules.items():
        block = next((path for path in blocks if name.startswith(f"{path}.")), None)
        if block is None or expert_of(f"{name}.") != NO_EXPERT:
            continue
        if "norm" in type(module).__name__.lower() and not any(True for _ in module.children()):
            found[id(module)] = _norm(name, module, *between.get(name, ()))
        elif linear_kind(module):
            part = name.removeprefix(f"{block}.").lower()
            if name in last:
                kinds = ("MLP inner", "MLP output")
            elif name in after:
                kinds = ("attention mix", "attention output")
            else:
                of_attention = "attn" in part or "attention" in part
                kinds = ("attention input", "attention linears") if of_attention else ("MLP input", "gate/up")
            found[id(module)] = TensorPlace(name, module, *kinds)
    for layer, params in (("embeddings", stack.embedding_norm), ("final", stack.final_norm)):
        name = params[0].name.rpartition(".")[0] if params else ""
        if params and name in modules:
            found[id(modules[name])] = _norm(name, modules[name], layer=layer)
    return tuple(found.values())


def expert_kinds(loaded: LoadedModel, stack: BoundStack) -> dict[str, tuple[str, str]]:
    """{parameter of packed experts, or of one: kinds of what it reads and gives}."""
    live, first, last = live_parameters(loaded.model), ("MLP input", "gate/up"), ("MLP inner", "MLP output")
    writing = {param.name: param for layers in stack.linears.values() for params in layers for param in params}
    packed = {name for name, param in writing.items() if packs_experts(param, live[name].shape)}
    around = tuple(f"{name.rpartition('.')[0]}." for name in packed)
    inside = tuple(f"{block}." for block in dict.fromkeys(stack.blocks))
    return {
        name: last if name in writing else first
        for name, weight in live.items()
        if (weight.ndim == 3 and name.startswith(around))
        or (weight.ndim == 2 and expert_of(name) != NO_EXPERT and name.startswith(inside))
    }


def _between(stack: BoundStack) -> dict[str, tuple[str, str]]:
    """{norm that reads or gives the stream between attention and MLP: kinds of both}."""
    kind = "stream after attention"
    if stack.stack.norm_site == "stream":
        return {f"{block}.{path}": ("", kind) for block in stack.blocks for path in stack.stack.other_norms}
    return {norm.name.rpartition(".")[0]: (kind, "norm output") for norms in stack.reading for norm in norms[1:]}


def _norm(name: str, module: "nn.Module", reads: str = "", gives: str = "norm output", layer: str = "") -> TensorPlace:
    centred = "layernorm" in type(module).__name__.lower() and getattr(module, "bias", None) is not None
    return TensorPlace(name, module, reads, gives, layer, squares=True, centred=centred)


class _StreamInPass:
    """Where a stream is in a pass: the layer that runs, −1 outside, and the stream as the layer reads it."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack) -> None:
        self.stack, self.layer, self.states = stack, -1, None
        self.places, self.experts = find_places(loaded, stack), expert_kinds(loaded, stack)

    def key(self, kind: str, layer: str = "", expert: int = NO_EXPERT) -> tuple[str, str, str]:
        """Of a tensor of the layer that runs, or of the one next to it; of an expert "layer:expert"."""
        layer = layer or str(min(max(self.layer, 0), self.stack.n_layers - 1))
        return self.stack.name, kind, layer if expert == NO_EXPERT else f"{layer}:{expert}"


@dataclass
class RangePass:
    """One reading of all texts.

    Attributes:
        every: medians and shares rest on every so many-th token vector. cache: what takes keys and values, if anything.
        watched: (path of a module, or parameter of experts, "reads" or "gives") whose entries are kept apart.
        peaks: largest |x| of each entry of these [expert, entry]; one row of what is no expert's.
    """

    loaded: LoadedModel
    reading: "Reading"
    every: int = 16
    cache: CacheErrors | None = None
    watched: Collection[tuple[str, str]] = ()
    n_tokens: int = 0
    peaks: dict[tuple[str, str], "Tensor"] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.tally, self.fed, self.blind = RangeTally(self.every), set[str](), set[str]()
        self.running = [_StreamInPass(self.loaded, stack) for stack in self.reading.stacks]
        head: Any = getattr(self.loaded.language, "get_output_embeddings", lambda: None)()
        self._has_head = head is not None and (
            self.reading.inputs == "texts" or self.reading.stacks[-1].name == "decoder"
        )

    def consume(self, batch: Batch) -> None:
        """Run the model on a batch and take all its tensors."""
        mine = copy.copy(self)  # where the pass stands is its own: others may run meanwhile
        mine.tally = RangeTally(self.every, self.tally.found, self.tally.modules)
        mine.running = [copy.copy(one) for one in self.running]
        mine._read(batch)
        mine.tally, mine.running = self.tally, []  # a mode of torch's holds `mine` until the collector comes
        self.n_tokens += int(batch.valid.sum())

    def _read(self, batch: Batch) -> None:
        import torch

        self.tally.begin(self.reading.sides(batch), batch.texts)
        looks: dict[Any, Callable[..., None]] = {}
        experts: dict[str, Callable[..., None]] = {}
        for one in self.running:
            one.layer, one.states = -1, None
            looks |= {place.module: partial(self._look_at, one, place) for place in one.places}
            experts |= {name: partial(self._look_at_expert, one, name) for name in one.experts}
        attention = MapLooks(self._attended, partial(self._sizes, "q·k"), partial(self._sizes, "attention logits"))
        model = self.loaded.model
        with torch.inference_mode(), ExitStack() as open_:
            open_.enter_context(tapped(model, self.reading.stacks, self._stream))
            open_.enter_context(tapped_calls(model, looks))
            open_.enter_context(tapped_experts(model, experts, blind=self.blind))
            open_.enter_context(tapped_logits(attention))
            if self._has_head:
                open_.enter_context(head_read(self.loaded.language, self._logits))
                self.loaded.language(**self.reading.arguments(batch))
            else:
                self.reading(batch)
        self.tally.end()

    def _stream(self, stack: BoundStack, layer: int, states: Any) -> None:
        one = next(one for one in self.running if one.stack is stack)
        one.layer, one.states = layer + 1, states
        self.tally.add(one.key("stream", layer_name(layer)), "" if layer < 0 else stack.blocks[layer], states)

    def _inside(self) -> _StreamInPass | None:
        """The stream one of whose blocks runs."""
        return next((one for one in self.running if 0 <= one.layer < one.stack.n_layers), None)

    def _look_at(self, one: _StreamInPass, place: TensorPlace, given: "Tensor", made: "Tensor") -> None:
        """Take the input and output of a module, in the layer that runs."""
        if given.numel():
            self.fed.add(place.name)
        read, gave = (self._as_rows(one, states) for states in (given, made))
        for side, states in (("reads", read), ("gives", gave)):
            if (place.name, side) in self.watched:
                valid = self._valid(one)
                tokens = states[valid] if states.shape[:2] == valid.shape else states.flatten(0, -2)
                self._watch((place.name, side), tokens)
        # Where attention and MLP run side by side, the second norm reads the block's input too.
        beside = one.states is not None and given.data_ptr() == one.states.data_ptr()
        if place.reads and not (place.squares and beside):
            self.tally.add(one.key(place.reads, place.layer), place.name, read)
        for kind in dict.fromkeys((place.gives, "norm output" if place.squares else place.gives)):
            self.tally.add(one.key(kind, place.layer), place.name, gave)
        if place.squares:
            self.tally.peak(one.key("norm sum of squares", place.layer), place.name, self._squares(place, given, one))

    def _look_at_expert(self, one: _StreamInPass, name: str, call: ExpertCall) -> None:
        """Take the input and output of one expert's matrix, of tokens that are no padding."""
        weight, number, path = self.loaded.model.get_parameter(name), expert_of(name), name.removesuffix(".weight")
        number, packed = (call.expert, len(weight)) if number == NO_EXPERT else (number, 0)
        tokens, both = call.tokens, (call.read, call.given)
        if tokens is not None:
            kept = self.tally.sides[one.stack.name].valid.flatten()[tokens]
            tokens, both = tokens[kept], (call.read[kept], call.given[kept])
        if not len(both[0]):
            return
        self.fed.add(f"{name}, expert {number}" if packed else path)
        for side, kind, states in zip(("reads", "gives"), one.experts[name], both, strict=True):
            self.tally.add(one.key(kind, expert=number), path, states, tokens)
            if (path, side) in self.watched:
                self._watch((path, side), states, call.expert, max(packed, 1))

    def _watch(self, key: tuple[str, str], rows: "Tensor", expert: int = 0, n_experts: int = 1) -> None:
        """Keep the largest |x| of each entry of `rows` [row, entry]; infinite of what is no number."""
        top = rows.float().abs().amax(0).cpu().nan_to_num(nan=math.inf, posinf=math.inf)
        kept = self.peaks.setdefault(key, top.new_zeros(n_experts, len(top)))
        kept[expert] = kept[expert].maximum(top)

    def _squares(self, place: TensorPlace, given: "Tensor", one: _StreamInPass) -> "Tensor":
        """Σx² of what a norm reads, or Σ(x − mean)² [batch, token]; of several heads the largest."""
        given = given.float()
        squares = given.norm(dim=-1).square()
        if place.centred:
            squares = (squares - given.sum(-1).square() / given.shape[-1]).clamp_min(0)
        rows = self._as_rows(one, squares[..., None])
        return rows.amax(-1) if rows.ndim == 3 else squares

    def _valid(self, one: _StreamInPass) -> "Tensor":
        """Which tokens of the stream are no padding, bool [batch, token]."""
        valid: Tensor = self.tally.sides[one.stack.name].valid
        return valid

    def _as_rows(self, one: _StreamInPass, states: "Tensor") -> "Tensor":
        """[batch, token, dim] of a tensor that has the batch's tokens in another order of axes; else as it is."""
        shape = self._valid(one).shape
        if one.stack.stack.token_first and states.shape[:2] == shape[::-1] and states.ndim > 2:
            states = states.transpose(0, 1)
        if states.ndim == 4 and states.shape[:2] != shape and states.shape[::2][:2] == shape:
            states = states.transpose(1, 2)  # [batch, head, token, dim]
        if states.shape[:2] == shape and states.ndim > 3:
            return states.flatten(2)
        if states.ndim == 2 and len(states) == shape.numel() and shape.numel() > 0:
            return states.reshape(*shape, -1)
        return states

    def _attended(self, name: str, states: "Tensor") -> None:
        if one := self._inside():
            self.tally.add(one.key(name), "", states)
            valid = self._valid(one)
            if self.cache is not None and name != "q" and states.shape[:2] == valid.shape:
                self.cache.add(one.layer, name, states, valid)

    def _sizes(self, kind: str, sizes: "Tensor") -> None:
        if one := self._inside():
            self.tally.peak(one.key(kind), "", sizes)

    def _logits(self, states: "Tensor", head: Callable[["Tensor"], "Tensor"]) -> None:
        """Logits of the tokens that are no padding, some at a time."""
        valid = self._valid(self.running[-1])
        if states.shape[:2] == valid.shape:
            flat = states.reshape(-1, states.shape[-1])
            for some in valid.flatten().nonzero().flatten().split(HEAD_ROWS):
                made = head(flat.index_select(0, some))
                sizes = made.amax(-1).maximum(-made.amin(-1))
                self.tally.peak(self.running[-1].key("logits", "head"), "", sizes, made, some)

    def beyond(self, limit: float) -> Iterator[dict[str, Any]]:
        """Modules that read, give or (a norm) sum up more than `limit`, each with what must not run in such a format.

        That is the module; or the one around it, where the input is made between modules (gate times up, attention).
        """
        modules = dict(self.loaded.model.named_modules())
        for (module, kind), size in sorted(self.tally.modules.items()):
            if size > limit and module and not kind.startswith("stream"):
                made_around = kind in ("MLP inner", "attention mix") or module not in modules
                around = module.rpartition(".")[0] if made_around else module
                yield {"module": module, "around": around, "largest": size, "norm": kind == "norm sum of squares"}
        for (stack, kind, layer), peak in self.tally.found.items():
            if kind in ("q·k", "attention logits") and peak.largest > limit:
                one = next(one for one in self.running if one.stack.name == stack)
                block = f"{one.stack.blocks[int(layer)]}."
                for place in one.places:
                    if place.reads == "attention mix" and place.name.startswith(block):
                        around = place.name.rpartition(".")[0]
                        yield {"module": place.name, "around": around, "largest": peak.largest, "norm": False}

    def never_fed(self) -> tuple[str, ...]:
        """Modules, and experts of packed ones, that no token reached."""
        names = [place.name for one in self.running for place in one.places]
        names += [told for one in self.running for _, _, told in self._experts(one)]
        return tuple(name for name in dict.fromkeys(names) if name not in self.fed)

    def unreached(self) -> tuple[str, ...]:
        """Notes on experts that no token reached."""
        notes = [
            f"not seen: what {name} reads and gives; its experts multiply in a way of their own"
            for name in sorted(self.blind)
        ]
        for one in self.running:
            experts = {(layer, expert): told in self.fed for layer, expert, told in self._experts(one)}
            notes += unreached([place for place, fed in experts.items() if fed], experts)
        return tuple(notes)

    def _experts(self, one: _StreamInPass) -> Iterator[tuple[int, int, str]]:
        """(layer, expert, how it is told) of all experts of a stream, of each parameter."""
        layers = {block: layer for layer, block in enumerate(one.stack.blocks)}
        for name in (name for name in one.experts if name not in self.blind):
            weight, number = self.loaded.model.get_parameter(name), expert_of(name)
            layer = next(layer for block, layer in layers.items() if name.startswith(f"{block}."))
            if number != NO_EXPERT:
                yield layer, number, name.removesuffix(".weight")
            else:
                yield from ((layer, expert, f"{name}, expert {expert}") for expert in range(len(weight)))
