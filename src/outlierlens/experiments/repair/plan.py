"""What a rewriting by powers of two changes: exponents of parameters, epsilons, and whether the head is untied.

    plan = stream_plan(loaded, exponent=-4)      # the residual stream a 16th of what it was
    plan.exponents["model.embed_tokens.weight"]  # -4
    plan.reasons                                 # () where fp32 outputs stay equal bit for bit

A power of two changes exponents alone, so that whatever is linear in between stays the same bit for bit. A norm divides by
sqrt(mean(h²) + ε): with the stream times s its epsilon takes s², and what it gives stays the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.errors import BadInput
from outlierlens.experiments.repair.epsilon import Epsilons, epsilons
from outlierlens.experiments.repair.pairs import Pair
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

MASK_TOKENS = "mask_token"  # takes the place of a picture's patch in some passes, so that it writes to the stream too
OFFSET = "norms multiply by 1 + weight, and a factor of that is not always a number of the weight's type"


@dataclass
class Plan:
    """A rewriting of one model.

    Attributes:
        exponents: parameter -> the powers of two that it is multiplied by: each a number, or a tensor of them that broadcasts.
        offsets: norms' weights that stand for 1 + weight: the factor is of that.
        epsilons: config key -> exponent of its factor. norms: the paths of the norms that these keys set.
        untie: whether the head becomes a parameter of its own.
        reasons: why outputs are only nearly the same; none where they are equal bit for bit.
    """

    exponents: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    offsets: set[str] = field(default_factory=set)
    epsilons: dict[str, int] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    untie: bool = False
    reasons: tuple[str, ...] = ()

    def scale(self, names: Iterable[str], exponent: int) -> None:
        """Multiply parameters by 2^exponent, once however often they are named."""
        self.exponents |= dict.fromkeys(names, (exponent,))

    def times(self, names: Iterable[str], exponent: Any) -> None:
        """Multiply parameters by 2^exponent, on top of what is planned for them."""
        for name in names:
            before = self.exponents.get(name, ())
            added = isinstance(exponent, int) and before and isinstance(before[0], int)
            self.exponents[name] = (before[0] + exponent, *before[1:]) if added else (*before, exponent)

    def pair(self, pair: Pair, exponent: "Tensor") -> None:
        """Give each channel of a pair its power of two [channel]; one whose channels all have 0 changes nothing."""
        import torch

        if not exponent.any():
            return
        whole = torch.cat([exponent, exponent.new_zeros(1)])  # −1 is of no channel
        for sides, sign in ((pair.gives, 1), (pair.takes, -1)):
            for side in sides:
                self.times([side.parameter], sign * whole[side.channel])
        if pair.offset:
            self.offset(
                [side.parameter for side in (*pair.gives, *pair.takes)]
                if pair.kind == "keys"
                else [side.parameter for side in pair.gives]
            )

    def offset(self, names: Iterable[str]) -> None:
        """Take these for norms' weights that stand for 1 + weight."""
        self.offsets |= {name for name in names if name.endswith("weight")}
        self.reasons += () if OFFSET in self.reasons else (OFFSET,)

    def exponent(self, name: str) -> "Tensor":
        """What parameter `name` is multiplied by, as one exponent, or some that broadcast to its shape."""
        import torch

        first, *rest = self.exponents[name]
        return sum(rest, start=torch.as_tensor(first, dtype=torch.int))

    def changed(self, name: str, values: "Tensor", exponent: "Tensor | None" = None) -> "Tensor":
        """The new values of parameter `name`, or of some of its rows with their exponents.

        Raises:
            BadInput: their type cannot hold them, as when small ones vanish.
        """
        import torch

        exponent = (self.exponent(name) if exponent is None else exponent).to(values.device)
        if name in self.offsets:
            return ((1 + values.double()) * torch.exp2(exponent.double()) - 1).to(values.dtype)
        most = 14 if values.dtype == torch.float16 else 126  # exponents whose powers, up and down, the type holds
        if exponent.abs().max() <= most:
            up, down = (torch.exp2(sign * exponent.double()).to(values.dtype) for sign in (1, -1))
            made = values * up
            same = _same_bits(made * down, values)
        else:
            wide = values.double() * torch.exp2(exponent.double())
            made = wide.to(values.dtype)
            same = torch.equal(made.double(), wide)
        if not same:
            kind = str(values.dtype).removeprefix("torch.")
            raise BadInput(
                f"{name}: values times a power of two lie outside what {kind} holds; use a smaller --margin, or a copy of the "
                f"model in float32"
            )
        return made

    def same(self, model: "nn.Module") -> set[str]:
        """Names of the parameters that stay as they are."""
        live = live_parameters(model)
        changed = {id(live[name]) for name in self.exponents}
        return {name for name, values in live.items() if id(values) not in changed}

    def tensors(self, parameters: "dict[str, Tensor]") -> "dict[str, Tensor]":
        """{name: new values} of all that changes, from parameters or from a checkpoint under the same names."""
        return {name: self.changed(name, parameters[name]) for name in self.exponents}


def stream_plan(loaded: LoadedModel, exponent: int) -> Plan:
    """All residual streams of the model times 2^exponent, its outputs as they were.

    Raises:
        BadInput: a stream has a scale of its own; the message says why, and what can be done.
    """
    for stack in loaded.stacks:
        refuse_fixed(loaded.name, stack)
    plan = Plan()
    found = epsilons(loaded.model)
    reading = {path for stack in loaded.stacks for path in _reading(loaded.model, stack)}
    keys = sorted({key for path in reading if (key := found.key_of(path))})
    plan.epsilons = dict.fromkeys(keys, 2 * exponent)
    plan.norms = {path: 2 * exponent for key in keys for path in found.keys[key]}
    if fixed := sorted(reading & found.fixed):
        plan.reasons += (f"the epsilon of {len(fixed)} norms ({fixed[0]}, …) is written in the model's code",)
    known = set(reading)
    for stack in loaded.stacks:
        known |= _scale_stream(plan, loaded, stack, exponent, found)
    for path in sorted(set(plan.norms) - known):
        if not _scale_inner(plan, loaded, path, exponent):
            key = found.key_of(path)
            plan.reasons += (f"{path} shares {key} with the norms of the stream, and what it reads stays as it was",)
    _head(plan, loaded)
    return _once(plan, loaded.model)


def refuse_fixed(name: str, bound: BoundStack) -> None:
    """Raise BadInput where no factor passes through the stream."""
    what = f"{name}: the stream {bound.name!r} cannot be rescaled"
    if bound.stack.norm_site == "stream":
        raise BadInput(
            f"{what}: its blocks norm the stream itself (post-norm), which sets its scale anew each time; only pairs inside a "
            f"block can take factors"
        )
    if bound.stack.fixed_scale:
        raise BadInput(f"{what}: {bound.stack.fixed_scale}; keep it in bfloat16 or float32")


def _reading(model: "nn.Module", bound: BoundStack) -> Iterator[str]:
    """Paths of the norms that read the stream."""
    modules = {path for path, _ in model.named_modules()}
    paths = [f"{block}.{norm}" for block in dict.fromkeys(bound.blocks) for norm in bound.stack.reading_norms]
    paths += [bound.prefix + bound.stack.final_norm] if bound.stack.final_norm else []
    return (path for path in paths if path in modules)


def _scale_stream(plan: Plan, loaded: LoadedModel, bound: BoundStack, exponent: int, found: Epsilons) -> set[str]:
    """Plan one stream's writers and those who read it without a norm; the paths of norms that are taken care of."""
    stack, known = bound.stack, set()
    modules = dict(loaded.model.named_modules())
    shares = set(plan.norms)
    # Of a linear and its LayerScale the linear takes it: what it gives comes down too.
    writers = [param.name for layers in bound.linears.values() for layer in layers for param in layer]
    if stack.norm_site == "write":
        names = [norm for norm in (*stack.other_norms, stack.last_norm) if norm]
        after = {f"{block}.{norm}" for block in bound.blocks for norm in names}
        known |= after
        weights = {param.name for norm in names for layer in bound.norms.get(norm, ()) for param in layer}
        _scale_norms(plan, bound, weights, exponent)
        writers = writers if after & shares else []
    plan.scale(writers, exponent)
    tables = [param.name for param in bound.embeddings]
    tables += [name for name in live_parameters(loaded.model) if name.rpartition(".")[2] == MASK_TOKENS]
    if stack.embedding_norm:
        path = bound.prefix + stack.embedding_norm
        known.add(path)
        _scale_norms(plan, bound, {param.name for param in bound.embedding_norm}, exponent)
        tables = tables if path in shares else []
    plan.scale(tables, exponent)
    for block in dict.fromkeys(bound.blocks):
        for linear, norm in stack.raw_readers.items():
            path = f"{block}.{norm}"
            if not norm or type(modules.get(path)).__name__ == "Identity":
                plan.times([f"{block}.{linear}.weight"], -exponent)
    return known


def _scale_norms(plan: Plan, bound: BoundStack, names: set[str], exponent: int) -> None:
    plan.scale(names, exponent)
    if bound.stack.norm_offset:
        plan.offset(names)


def _scale_inner(plan: Plan, loaded: LoadedModel, path: str, exponent: int) -> bool:
    """Plan what a norm inside attention reads; whether it is one."""
    parameters = live_parameters(loaded.model)
    for bound in loaded.stacks:
        for block in bound.blocks:
            for heads in bound.stack.heads:
                linears = next((read for norm, read in heads.norms.items() if path == f"{block}.{norm}"), ())
                names = [f"{block}.{name}.{leaf}" for name in linears for leaf in ("weight", "bias")]
                if names:
                    plan.times([name for name in names if name in parameters], exponent)
                    return True
    return False


def _head(plan: Plan, loaded: LoadedModel) -> None:
    """A head that is the token table takes its factor too: the final norm takes it back, or the head is untied."""
    model: Any = loaded.model
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    parameters = live_parameters(model)
    scaled = [name for name in plan.exponents if parameters[name] is weight]
    if weight is None or not scaled:
        return
    bound = next((one for one in loaded.stacks if one.name == "decoder"), loaded.stacks[-1])
    reads_norm = loaded.head == "causal" or loaded.config.get("is_encoder_decoder")
    if reads_norm and bound.final_norm and not bound.stack.norm_offset:
        plan.times([param.name for param in bound.final_norm], -plan.exponents[scaled[0]][0])
    else:
        plan.untie = True


def _same_bits(one: "Tensor", other: "Tensor") -> bool:
    """Whether two tensors of a type hold the same bits: three times as fast as `torch.equal`, and a NaN equals itself."""
    import torch

    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return np.array_equal(one.view(whole).numpy(force=True), other.view(whole).numpy(force=True))


def _once(plan: Plan, model: "nn.Module") -> Plan:
    """The plan with one name for each shared parameter, and without factors of 1."""
    parameters = live_parameters(model)
    first: dict[int, str] = {}
    for name in plan.exponents:
        first.setdefault(id(parameters[name]), name)
    kept = {
        name: exponent
        for name, exponent in plan.exponents.items()
        if first[id(parameters[name])] == name and exponent != (0,)
    }
    return replace(plan, exponents=kept)
