"""Which parts of a block can take factors without a change of its output: neurons, values, keys, and norms with their readers.

    found = Factors(small, bound, layer, call).search()      # fields of a row: neurons, rectified, heads, readers, axes, mlp

Every declaration is tried: its pairs (`architectures.pairs`) take random powers of two and signs. What gives them must change
the output of the block, and with what takes them the output must be as it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.bind import BoundStack
from outlierlens.architectures.experiment.anatomy import BlockProbe, first_tensor, given_to, restored, same
from outlierlens.architectures.experiment.small import SmallModel
from outlierlens.architectures.experiment.streams import Call
from outlierlens.architectures.live import live_parameters
from outlierlens.architectures.pairs import BlockPairs, Kind, Pair, Side
from outlierlens.architectures.stack import Heads, Rotary, Stack, parameter
from outlierlens.errors import OutlierlensError

if TYPE_CHECKING:
    from torch import Tensor

# How one linear may give queries, keys and values (see `architectures.stack`): what it gives of each, by the part for values.
TOGETHER = {"[v]": ("[q]", "[k]"), "[head v]": ("[head q]", "[head k]"), "[2/3]": ("[0/3]", "[1/3]")}
ROTARY: tuple[Rotary, ...] = ("", "halves", "neighbours")


class Factors:
    """One block of a small model, with a row that says what writes to its stream."""

    def __init__(self, small: SmallModel, bound: BoundStack, layer: int, call: Call):
        self.small, self.bound, self.path = small, bound, bound.blocks[layer]
        self.stack: Stack = bound.stack
        self.live: dict[str, Any] = live_parameters(small.model)
        block = small.model.get_submodule(self.path)
        self.probe = BlockProbe(block, call.args, call.kwargs, call.got.shape[-1])
        self.intact = self._output()
        self.reads: dict[str, Tensor] = {}  # of each module that ran once, in order
        self.gives: dict[str, Tensor] = {}
        self._watch()
        writes = (*self.stack.other_writes, *self.stack.last_linear)
        # A matrix, or one for each expert: not the kernel of a convolution.
        self.writers = [
            name
            for name in writes
            if (weight := self._weight(name)) is not None and (weight.ndim == 2 or name.endswith("()"))
        ]
        self.linears = [name for name in self._linears() if name not in self.writers]

    def search(self) -> dict[str, Any]:
        """The fields, of what this block has."""
        found: dict[str, Any] = {"neurons": {}, "rectified": {}, "readers": {}, "axes": {}, "heads": ()}
        for last in self.writers:
            if up := self._up(last, found["axes"]):
                found["neurons"][last] = up
            elif first := self._first(last):
                found["rectified"][last] = first
        mlps = {*found["neurons"], *found["rectified"]}
        if mlps and mlps.isdisjoint(self.stack.last_linear):
            found["mlp"] = next(name for name in self.writers if name in mlps)
        found["heads"] = tuple(heads for output in self.writers if output not in mlps for heads in self._heads(output))
        for norm in self.stack.reading_norms:
            if names := self._readers(norm, found["axes"]):
                found["readers"][norm] = names
        return {name: value for name, value in found.items() if value}

    def keep_factor(self, raw_readers: Mapping[str, str]) -> bool:
        """Whether all that writes, times 2, and states that come in, times 2, give twice the output, but for epsilons of norms.

        `raw_readers` read half of that in blocks that have not the norm, if any, through which they read. A stream that blocks
        norm themselves keeps no factor.
        """
        stack, bound = self.stack, self.bound
        layer = bound.blocks.index(self.path)
        normed = stack.norm_site == "write"
        norms = [norm for norm in (*stack.other_norms, stack.last_norm) if norm and normed]
        linears = {
            name: layers[layer]
            for name, layers in bound.linears.items()
            if not normed or name.removesuffix(".weight").removesuffix(".bias") in stack.raw_writes
        }
        writes = {
            param.name
            for layers in (*linears.values(), *(bound.norms[one][layer] for one in norms if one in bound.norms))
            for param in layers
        }
        offsets = {f"{self.path}.{norm}.weight" for norm in norms} if stack.norm_offset else set[str]()
        with restored(self.probe.block):
            for name in writes:
                shift = 1.0 if name in offsets else 0.0
                self.live[name].add_(shift).mul_(2).sub_(shift)
            for name, norm in raw_readers.items():
                if self.has(name) and not (norm and self.has(norm)):
                    self._values(name).mul_(0.5)
            found = self.probe.output(factor=2.0)
        wanted = 2 * self.intact
        return bool(((found - wanted).abs().max() <= 1e-3 * wanted.abs().max()).item())

    def has(self, name: str) -> bool:
        """Whether the block has a linear or a norm of this name."""
        return f"{self.path}.{parameter(name.partition('[')[0], 'weight')}" in self.live

    # --- candidates

    def _neurons_of(self, last: str) -> int:
        """How many inputs a linear that writes has."""
        return int(self._block().channels(last, writes=True).shape[-1])

    def _of_its_token(self, last: str) -> list[str]:
        """What may come before a linear that writes, at the same token: linears, or for experts other parameters of theirs."""
        if last.endswith("()"):
            return [name for name in self.linears if name.endswith("()")]
        return self._sides(last)[0]

    def _up(self, last: str, axes: dict[str, int]) -> str:
        """The linear whose outputs multiply what `last` reads, a half of it or all; its axis of the stream where unusual."""
        n = self._neurons_of(last)
        for name in self._of_its_token(last):
            for axis in (-1, -2) if name.endswith("()") else (None,):
                turned = {parameter(name, "weight"): axis} if axis in (-2,) else {}
                n_given = self._n_given(name, turned)
                for part in {n: ("",), 2 * n: ("[1/2]", "[0/2]")}.get(n_given, ()):
                    if self._holds("neurons", axes=turned, neurons={last: name + part}):
                        axes |= turned
                        return name + part
        return ""

    def _first(self, last: str) -> str:
        """The linear each of whose outputs reaches what `last` reads in one neuron alone, by way of an activation."""
        if last.endswith("()"):
            return ""
        n = self._neurons_of(last)
        writes = self._values(last)
        for name in self._of_its_token(last):
            if self._n_given(name, {}) != n:
                continue
            with restored(self.probe.block):
                self._slice(writes, self._block().stream_axis(last, writes=True) == -1).zero_()
                without = self._output()
                self._slice(self._values(name), self._block().stream_axis(name, writes=False) == -1).mul_(-2)
                alone = same(self._output(), without)
            with restored(self.probe.block):
                self._slice(self._values(name), self._block().stream_axis(name, writes=False) == -1).mul_(-2)
                if alone and not same(self._output(), self.intact):
                    return name
        return ""

    def _heads(self, output: str) -> Iterator[Heads]:
        """The attention whose values `output` mixes, where one is found."""
        if output.endswith("()") or output not in self.reads:
            return
        n = self._neurons_of(output)
        own, others = self._sides(output)
        for name in others:
            n_given = self._n_given(name, {})
            parts = [""] if n % n_given == 0 else []
            parts += ["[v]", "[head v]"] if n_given > n else []
            parts += ["[2/3]"] * (n_given == 3 * n) + ["[1/2]"] * (n_given == 2 * n)
            for part in parts:
                heads = Heads(output, (name + part,))
                if self._holds("values", heads=(heads,)):
                    yield self._with_keys(heads, name, part, own, others)
                    return

    def _with_keys(self, heads: Heads, name: str, part: str, own: list[str], others: list[str]) -> Heads:
        """`heads` with keys and queries, and the norms behind them, where these are found."""
        if part in TOGETHER:
            query, key = (name + one for one in TOGETHER[part])
            choices = [(key, query)]
        else:
            keys = [f"{name}[0/2]"] if part else [one for one in others if one != name]
            choices = [(key, query) for key in keys for query in own]
        for key, query in choices:
            norms = [("", ""), *((k, q) for k in self._norms_behind(key) for q in self._norms_behind(query))]
            for key_norm, query_norm in norms:
                for rotary in ROTARY:
                    tried = replace(
                        heads, key=(key,), query=(query,), key_norm=key_norm, query_norm=query_norm, rotary=rotary
                    )
                    if self._holds("keys", heads=(tried,)):
                        return tried
        return heads

    def _readers(self, norm: str, axes: dict[str, int]) -> tuple[str, ...]:
        """All that reads what a norm gives; () where that is not all known."""
        if norm not in self.gives:
            return ()
        given = self.gives[norm]
        reads = {
            name
            for name, one in self.reads.items()
            if one.numel() == given.numel() and same(one.reshape(given.shape), given)
        }
        names = [name for name in self.linears if (name.rpartition(".")[0] if name.endswith("()") else name) in reads]
        turned = dict(axes)
        for name in names:
            weight = self._values(name)
            if name.endswith("()") and weight.shape[-1] != self.probe.width:
                turned[parameter(name, "weight")] = -2
        if names and self._holds("norms", axes=turned, readers={norm: tuple(names)}):
            axes |= turned
            return tuple(names)
        return ()

    # --- what runs

    def _watch(self) -> None:
        counts: dict[str, int] = {}
        with ExitStack() as hooks:
            for name, module in self.probe.block.named_modules():

                def keep(_: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                    with suppress(TypeError):
                        counts[name] = counts.get(name, 0) + 1
                        self.reads[name], self.gives[name] = given_to(args, kwargs), first_tensor(output)

                hooks.enter_context(module.register_forward_hook(keep, with_kwargs=True))
            self._output()
        for name in [name for name, count in counts.items() if count > 1]:
            self.reads.pop(name, None), self.gives.pop(name, None)

    def _linears(self) -> Iterator[str]:
        """Linears of the block that ran, and matrices that modules hold bare, as rows name them."""
        for name, one in self.probe.block.named_parameters():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight" and one.ndim == 2 and module in self.gives:
                yield module
            elif one.ndim == 3 and leaf not in ("weight", "bias") and module in self.reads:
                yield f"{name}()"

    def _sides(self, output: str) -> tuple[list[str], list[str]]:
        """(linears whose output at a token reaches what `output` reads at that token alone, those that reach others)."""
        import torch

        kept: dict[str, Tensor] = {}
        ends: list[Tensor] = []
        with ExitStack() as hooks, torch.enable_grad():
            for name in self.linears:
                if name.endswith("()"):
                    continue

                def keep(_: Any, __: Any, made: Any, name: str = name) -> Any:
                    if not isinstance(made, torch.Tensor):
                        return made  # a router's choice
                    kept[name] = made.detach().clone().requires_grad_()
                    return kept[name] + 0  # which a model may change in place

                hooks.enter_context(self.probe.block.get_submodule(name).register_forward_hook(keep))
            reader = self.probe.block.get_submodule(output)
            hooks.enter_context(reader.register_forward_pre_hook(lambda _, args: ends.append(args[0])))
            self._output(track=True)
        if len(ends) != 1 or not ends[0].requires_grad or (end := self._by_token(ends[0])) is None:
            return [], []
        token = end.shape[1] // 2
        weights = torch.randn(end.shape[-1], generator=torch.Generator().manual_seed(0))
        try:
            found = torch.autograd.grad((end[:, token] * weights).sum(), list(kept.values()), allow_unused=True)
        except RuntimeError:
            return [], []
        own, others = list[str](), list[str]()
        for name, gradient in zip(kept, found, strict=True):
            by_token = None if gradient is None else self._by_token(gradient)
            if by_token is None or not by_token.any():
                continue
            at = by_token.abs().sum((0, 2))
            alone = len(at) == end.shape[1] and float(at.sum() - at[token]) <= 1e-6 * float(at[token])
            (own if alone else others).append(name)
        return own, others

    def _by_token(self, states: "Tensor") -> "Tensor | None":
        """States as [batch, token, channel], also those that hold the tokens of all inputs in one axis; None for others."""
        batch, tokens = self.probe.given.shape[:2]
        if states.ndim == 2 and len(states) == batch * tokens:
            return states.reshape(batch, tokens, -1)
        return states if states.ndim == 3 else None

    def _norms_behind(self, linear: str) -> list[str]:
        """Modules with one vector for a weight that read what a linear gives, in whatever shape."""
        name = linear.partition("[")[0]
        given = self.gives[name].flatten().sort().values
        return [
            module
            for module, read in self.reads.items()
            if self.has(module)
            and self._values(module).ndim == 1
            and read.numel() == given.numel()
            and same(read.flatten().sort().values, given)
        ]

    # --- trials

    def _block(self, **fields: Any) -> BlockPairs:
        axes = {**self.stack.axes, **fields.pop("axes", {})}
        bound = replace(self.bound, stack=replace(self.stack, axes=axes, **fields))
        model: Any = self.small.model
        return BlockPairs("small", model.config, bound, self.path, self.live)

    def _weight(self, name: str) -> Any:
        return self.live.get(f"{self.path}.{parameter(name, 'weight')}")

    def _values(self, name: str) -> "Tensor":
        values: Tensor = self._weight(name).detach()
        return values

    def _n_given(self, name: str, axes: Mapping[str, int]) -> int:
        shape = self._block(axes=axes).channels(name, writes=False).shape
        return int(shape[-1]) if shape else 0

    @staticmethod
    def _slice(values: "Tensor", rows: bool) -> "Tensor":
        """Neuron 1 of a matrix, by its rows or its columns."""
        return values[1] if rows else values[:, 1]

    def _holds(self, kind: Kind, **fields: Any) -> bool:
        """Whether factors on what is declared change nothing, and those on its first half alone something."""
        import torch

        random = torch.Generator().manual_seed(0)
        try:
            pairs = list(self._block(**fields).of(kind))
        except (OutlierlensError, ArithmeticError, LookupError, RuntimeError, AttributeError, TypeError):
            return False  # sizes that do not fit the declaration
        for pair in pairs:
            n = len(pair.shared)
            if any(int(channel.max()) >= n for _, channel in (*pair.gives, *pair.takes)):
                return False
            exponents = torch.randint(-2, 3, (n,), generator=random)[pair.shared]
            signs = (torch.randint(0, 2, (n,), generator=random) * 2 - 1)[pair.shared]
            factors = torch.exp2(exponents.float()) * signs
            with restored(self.probe.block):
                self._multiply(pair.gives, factors, pair)
                if same(self._output(), self.intact):
                    return False
                self._multiply(pair.takes, 1 / factors, pair, inverse=True)
                if not same(self._output(), self.intact, within=2e-5):
                    return False
        return bool(pairs)

    def _multiply(self, sides: tuple[Side, ...], factors: "Tensor", pair: Pair, *, inverse: bool = False) -> None:
        import torch

        whole = torch.cat([factors, factors.new_ones(1)])  # −1 is of no channel
        offset = pair.offset and (not inverse or pair.kind == "keys")
        with torch.no_grad():
            for name, channel in sides:
                values = self.live[name]
                shift = 1.0 if offset and name.endswith("weight") else 0.0
                values.add_(shift).mul_(whole[channel]).sub_(shift)

    def _output(self, *, track: bool = False) -> "Tensor":
        return self.probe.output(track=track)


def agreed(blocks: Sequence[tuple["Factors", Mapping[str, Any]]]) -> dict[str, Any]:
    """Findings that hold in all blocks that have those parts, as fields of one row."""
    found: dict[str, Any] = {}
    for name in ("neurons", "rectified", "readers"):
        each: dict[str, Any] = {}
        for key in dict.fromkeys(key for _, fields in blocks for key in fields.get(name, {})):
            said = [fields.get(name, {}).get(key) for block, fields in blocks if block.has(key)]
            values = dict.fromkeys(said)
            if None in values:
                continue
            if name == "readers":
                each[key] = tuple(dict.fromkeys(one for names in values for one in names))
            elif len(values) == 1:
                each[key] = next(iter(values))
        if each:
            found[name] = each
    heads = []
    for output in dict.fromkeys(one.output for _, fields in blocks for one in fields.get("heads", ())):
        said = [
            next((one for one in fields.get("heads", ()) if one.output == output), None)
            for block, fields in blocks
            if block.has(output)
        ]
        if (one := _same_heads(said)) is not None:
            heads.append(one)
    if heads:
        found["heads"] = tuple(heads)
    if axes := {key: axis for _, fields in blocks for key, axis in fields.get("axes", {}).items()}:
        found["axes"] = axes
    if mlps := {fields["mlp"] for _, fields in blocks if "mlp" in fields}:
        found["mlp"] = mlps.pop() if len(mlps) == 1 else ""
    return found


def _same_heads(said: Sequence[Heads | None]) -> Heads | None:
    """One attention as several blocks have it: some may turn no keys, and then the others' pairs hold for them, too."""
    whole = [one for one in said if one is not None]
    if len(whole) < len(said):
        return None
    if len({replace(one, rotary="") for one in whole}) == 1:
        turned = {one.rotary for one in whole} - {""}
        if len(turned) < 2:
            return replace(whole[0], rotary=turned.pop() if turned else "")
    if len({(one.output, one.value) for one in whole}) == 1:
        return Heads(whole[0].output, whole[0].value)
    return None
