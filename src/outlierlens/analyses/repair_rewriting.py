"""A model rewritten so that its outputs stay: by powers of two, or with its streams turned by an orthogonal matrix.

    plan = stream_plan(loaded, exponent=-4)      # the residual stream a 16th of what it was
    plan.exponents["model.embed_tokens.weight"]  # (-4,)
    plan.reasons                                 # () where outputs in float32 stay equal bit for bit
    with repaired(loaded, plan): ...             # afterwards all of it is as it was
    with rotated(loaded, run, seed=0): ...       # outputs are equal within `TOLERANCE`

A power of two changes exponents alone, so that whatever is linear in between stays the same bit for bit. A norm divides by
sqrt(mean(h²) + ε): with the stream times s its epsilon takes s², and what it gives stays the same.

RMS norms do not notice a turn of what they read, once their weights have moved into the linears behind them (Ashkboos et al.
2024, QuaRot, arXiv:2404.00456; the invariance is SliceGPT's, arXiv:2401.15024). What writes to the stream is turned with it,
what reads it is turned back.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.analyses.range_pass import expert_kinds
from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.errors import BadInput
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.models.hooks import readers_of
from outlierlens.models.load import LoadedModel, stream_width

if TYPE_CHECKING:
    from torch import Tensor, nn

    from outlierlens.analyses.repair_factors import Factors

MASK_TOKENS = "mask_token"  # takes the place of a picture's patch in some passes, so that it writes to the stream too
OFFSET = "norms multiply by 1 + weight, and a factor of that is not always a number of the weight's type"
EPSILONS = ("variance_epsilon", "eps", "epsilon")  # of a norm's attribute
MARK = 0.15625  # an epsilon that no model has; float32 holds it
MATRIX = "a random orthogonal matrix times a Hadamard matrix (Kronecker), rows with random signs"
TOLERANCE = 2e-4  # of the largest logit's size: turning rounds each weight once, and every sum in another order
_KEY = re.compile(r"(^|_)(eps|epsilon)$")


@dataclass
class RewritingPlan:
    """A rewriting of one model.

    Attributes:
        exponents: parameter -> the powers of two that it is multiplied by: each a number, or a tensor of them that broadcasts.
        offsets: norms' weights that stand for 1 + weight: the factor is of that.
        epsilons: config key -> (before, after). norms: the paths of the norms that these keys set -> exponent of their factor.
        untie: whether the head becomes a parameter of its own.
        reasons: why outputs are only nearly the same; none where they are equal bit for bit.
    """

    exponents: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    offsets: set[str] = field(default_factory=set)
    epsilons: dict[str, tuple[float, float]] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    untie: bool = False
    reasons: tuple[str, ...] = ()

    def scale(self, names: Iterable[str], exponent: int, *, offset: float = 0.0) -> None:
        """Multiply parameters by 2^exponent, once however often they are named; `offset` is what norms add to a weight."""
        self.exponents |= dict.fromkeys(names, (exponent,))
        if offset:
            self.offset(names)

    def times(self, names: Iterable[str], exponent: Any) -> None:
        """Multiply parameters by 2^exponent, on top of what is planned for them."""
        for name in names:
            before = self.exponents.get(name, ())
            added = isinstance(exponent, int) and before and isinstance(before[0], int)
            self.exponents[name] = (before[0] + exponent, *before[1:]) if added else (*before, exponent)

    def pairs(self, factors: "Factors") -> "RewritingPlan":
        """Give each channel of these pairs its power of two [channel] on top; returns the plan itself."""
        import torch

        for pair, exponent in factors:
            whole = torch.cat([exponent, exponent.new_zeros(1)])  # −1 is of no channel
            for sides, sign in ((pair.gives, 1), (pair.takes, -1)):
                for name, channel in sides if exponent.any() else ():
                    self.times([name], sign * whole[channel])
            if pair.offset and exponent.any():
                self.offset(name for name, _ in (*pair.gives, *(pair.takes if pair.kind == "keys" else ())))
        return self

    def offset(self, names: Iterable[str]) -> None:
        """Take these for norms' weights that stand for 1 + weight."""
        self.offsets |= {name for name in names if name.endswith("weight")}
        self.reasons += () if OFFSET in self.reasons else (OFFSET,)

    @property
    def settings(self) -> dict[str, Any]:
        """What changes in the config, by dotted key."""
        ties = {"tie_word_embeddings": False} if self.untie else {}
        return {key: new for key, (_, new) in self.epsilons.items()} | ties

    def same(self, model: "nn.Module") -> set[str]:
        """Names of the parameters that stay as they are."""
        live = live_parameters(model)
        changed = {id(live[name]) for name in self.exponents}
        return {name for name, values in live.items() if id(values) not in changed}

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
            # Of bits: three times as fast as `torch.equal`, and a NaN equals itself.
            whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
            same = np.array_equal((made * down).view(whole).numpy(force=True), values.view(whole).numpy(force=True))
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


@temporary
def repaired(loaded: LoadedModel, plan: RewritingPlan) -> Iterator[LoadedModel]:
    """The model rewritten as planned inside the block; raises BadInput where a parameter's type cannot hold its values."""
    model: Any = loaded.model
    parameters = live_parameters(model)
    new = {name: plan.changed(name, parameters[name].detach()) for name in plan.exponents}
    with ExitStack() as undo:
        if plan.untie:
            untie(undo, model)
        settable = SettableParameters(undo, model)
        for name, values in new.items():
            settable.set_values(name, slice(None), values)
        norms = [(model.get_submodule(path), exponent) for path, exponent in plan.norms.items()]
        after = [(one, (name := _epsilon_name(one)), getattr(one, name) * 2.0**exponent) for one, exponent in norms]
        after += [(*setting(model.config, key), new) for key, (_, new) in plan.epsilons.items()]
        for owner, name, value in after:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield loaded


def untie(undo: ExitStack, model: Any) -> None:
    """Give the head a weight of its own until `undo` is closed."""
    import torch

    head, tied = model.get_output_embeddings(), model.config.tie_word_embeddings
    undo.callback(lambda: setattr(head, "weight", model.get_input_embeddings().weight))
    undo.callback(setattr, model.config, "tie_word_embeddings", tied)
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    model.config.tie_word_embeddings = False


# --- epsilons ------------------------------------------------------------------------------------------------------


def epsilons(model: "nn.Module") -> dict[str, str]:
    """{path of a norm: the config key that sets its epsilon, "" where it is written in the model's code}.

    Found by building the model anew without memory. A key of a nested config has dots: "text_config.rms_norm_eps".

    Raises:
        BadInput: the model cannot be built anew from its config.
    """
    import torch

    config: Any = getattr(model, "config", None)
    found = {path: "" for path, module in model.named_modules() if _epsilon_name(module)}
    for key in _keys(config.to_dict()) if config is not None else ():
        other = copy.deepcopy(config)
        setattr(*setting(other, key), MARK)
        try:
            with torch.device("meta"):
                made = type(model)(other)
        except Exception as error:  # each family checks its own config, with its own errors
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise BadInput(
                f"{type(model).__name__} cannot be built from its config ({text}), so no key is known"
            ) from error
        for path, one in made.named_modules():
            if found.get(path) == "" and getattr(one, _epsilon_name(one), None) == MARK:
                found[path] = key
    return found


def setting(config: Any, key: str) -> tuple[Any, str]:
    """(what holds a dotted key of a live config, the name of its attribute)."""
    within, _, name = key.rpartition(".")
    return attrgetter(within)(config) if within else config, name


def _epsilon_name(module: "nn.Module") -> str:
    return next((name for name in EPSILONS if isinstance(getattr(module, name, None), float)), "")


def _keys(config: dict[str, Any], within: str = "") -> Iterator[str]:
    """The dotted keys that are named like an epsilon and hold a number above 0."""
    for name, value in config.items():  # id2label has numbers for names
        if isinstance(value, dict):
            yield from _keys(value, f"{within}{name}.")
        elif isinstance(name, str) and _KEY.search(name) and isinstance(value, float) and value > 0:
            yield within + name


# --- the residual stream -------------------------------------------------------------------------------------------


def stream_plan(loaded: LoadedModel, exponent: int) -> RewritingPlan:
    """All residual streams of the model times 2^exponent, its outputs as they were.

    Raises:
        BadInput: a stream has a scale of its own; the message says why, and what can be done.
    """
    for bound in loaded.stacks:
        what = f"{loaded.name}: the stream {bound.name!r} cannot be rescaled"
        if bound.stack.norm_site == "stream":
            raise BadInput(
                f"{what}: its blocks norm the stream itself (post-norm), which sets its scale anew each time; only pairs "
                f"inside a block can take factors"
            )
        if bound.stack.fixed_scale:
            raise BadInput(f"{what}: {bound.stack.fixed_scale}; keep it in bfloat16 or float32")
        if not bound.stack.final_norm:
            raise BadInput(f"{what}: no norm follows its last block, so whatever reads the output would see the factor")
    found, modules, config = epsilons(loaded.model), dict(loaded.model.named_modules()), loaded.model.config
    known = {bound.prefix + bound.stack.final_norm for bound in loaded.stacks if bound.stack.final_norm}
    known |= {f"{block}.{norm}" for one in loaded.stacks for block in one.blocks for norm in one.stack.reading_norms}
    known &= modules.keys()
    keys = sorted({found[path] for path in known if found.get(path)})
    plan = RewritingPlan(norms={path: 2 * exponent for path, key in found.items() if key in keys})
    plan.epsilons = {key: (old, old * 4.0**exponent) for key in keys for old in [getattr(*setting(config, key))]}
    if fixed := sorted(path for path in known if found.get(path) == ""):
        plan.reasons += (f"the epsilon of {len(fixed)} norms ({fixed[0]}, …) is written in the model's code",)
    for bound in loaded.stacks:
        known |= _scale_stream(plan, loaded, bound, exponent)
    inner = {  # what a norm inside attention reads; the first attention that has it counts
        f"{block}.{norm}": [f"{block}.{name}.{leaf}" for name in linears for leaf in ("weight", "bias")]
        for bound in reversed(loaded.stacks)
        for block in bound.blocks
        for heads in reversed(bound.stack.heads)
        for norm, linears in heads.norms.items()
        if linears
    }
    parameters, first = live_parameters(loaded.model), dict[int, str]()
    for path in sorted(plan.norms.keys() - known):
        plan.times([name for name in inner.get(path, ()) if name in parameters], exponent)
        said = f"{path} shares {found[path]} with the norms of the stream, and what it reads stays as it was"
        plan.reasons += () if path in inner else (said,)
    _scale_head(plan, loaded)
    for name in plan.exponents:  # one name of each shared parameter
        first.setdefault(id(parameters[name]), name)
    plan.exponents = {name: plan.exponents[name] for name in first.values() if plan.exponents[name] != (0,)}
    return plan


def _scale_stream(plan: RewritingPlan, loaded: LoadedModel, bound: BoundStack, exponent: int) -> set[str]:
    """Plan one stream's writers and those who read it without a norm; the paths of norms that are taken care of."""
    stack, known, offset = bound.stack, set[str](), bound.stack.norm_offset
    modules = dict(loaded.model.named_modules())
    # Of a linear and its LayerScale the linear takes it: what it gives comes down too.
    writers = [param.name for layers in bound.linears.values() for layer in layers for param in layer]
    if stack.norm_site == "write":
        names = [norm for norm in (*stack.other_norms, stack.last_norm) if norm]
        known |= {f"{block}.{norm}" for block in bound.blocks for norm in names}
        weights = {param.name for norm in names for layer in bound.norms.get(norm, ()) for param in layer}
        plan.scale(weights, exponent, offset=offset)
        writers = writers if known & plan.norms.keys() else []
    plan.scale(writers, exponent)
    tables = [param.name for param in bound.embeddings]
    tables += [name for name in live_parameters(loaded.model) if name.rpartition(".")[2] == MASK_TOKENS]
    if stack.embedding_norm:
        path = bound.prefix + stack.embedding_norm
        known.add(path)
        plan.scale({param.name for param in bound.embedding_norm}, exponent, offset=offset)
        tables = tables if path in plan.norms else []
    plan.scale(tables, exponent)
    for block in dict.fromkeys(bound.blocks):
        for linear, norm in stack.raw_readers.items():
            if not norm or type(modules.get(f"{block}.{norm}")).__name__ == "Identity":
                plan.times([f"{block}.{linear}.weight"], -exponent)
    return known


def _scale_head(plan: RewritingPlan, loaded: LoadedModel) -> None:
    """A head that is the token table takes its factor too: the final norm takes it back, or the head is untied."""
    weight: Any = getattr(head_of(loaded.model), "weight", None)
    parameters = live_parameters(loaded.model)
    scaled = [name for name in plan.exponents if parameters[name] is weight]
    if weight is None or not scaled:
        return
    bound = next((one for one in loaded.stacks if one.name == "decoder"), loaded.stacks[-1])
    reads_norm = loaded.head == "causal" or loaded.config.get("is_encoder_decoder")
    if reads_norm and bound.final_norm and not bound.stack.norm_offset:
        plan.times([param.name for param in bound.final_norm], -plan.exponents[scaled[0]][0])
    else:
        plan.untie = True


def head_of(model: Any) -> Any:
    """The module that gives the logits; None where there is none."""
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


# --- streams that are turned ---------------------------------------------------------------------------------------


def rotation(width: int, seed: int = 0) -> np.ndarray:
    """An orthogonal matrix [width, width] of which every row is spread over all columns.

    The Kronecker product of a random orthogonal matrix and a Hadamard matrix of the largest power of two that divides
    `width`, with random signs of the rows: for 576 a random 9 × 9 and a Hadamard 64 × 64 matrix.
    """
    random = np.random.default_rng(seed)
    power = width & -width
    hadamard = np.ones((1, 1))
    while len(hadamard) < power:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rest, upper = np.linalg.qr(random.normal(size=(width // power, width // power)))
    rest *= np.sign(np.diag(upper))  # without it QR's own signs are no even choice
    signs = random.choice((-1.0, 1.0), size=(width, 1))
    return np.asarray(signs * np.kron(rest, hadamard / np.sqrt(power)))


@temporary
def rotated(loaded: LoadedModel, run: Callable[[], "Tensor"], *, seed: int = 0) -> Iterator[bool]:
    """The model with every stream turned, while the context lasts; afterwards every value is what it was, bit for bit.

    The head has weights of its own where it shared them with the embeddings; what is entered yields whether it did.

    Args:
        run: a forward pass of the model, in which the readers of each norm are seen; it gives the outputs.

    Raises:
        BadInput: a stream that cannot be turned, or outputs that differ by more than `TOLERANCE`, with the reason.
    """
    import torch

    _refuse_turn(loaded)
    model: Any = loaded.model
    before, turned = run(), set[int]()  # tables that two streams share are turned once
    with ExitStack() as undo:
        head, last = head_of(model), loaded.stacks[-1]
        tied = head is not None and head.weight is model.get_input_embeddings().weight
        if tied:
            untie(undo, model)
        settable, modules = SettableParameters(undo, model), dict(model.named_modules())
        live = settable.parameters
        readers = readers_of(model, [norm for bound in loaded.stacks for norm in _norms(bound)], run)
        for name in [name for name, module in modules.items() if module is head and last.final_norm][:1]:
            norm = _norms(last)[-1]
            readers[norm] = tuple(dict.fromkeys((*readers[norm], name)))  # behind a factor it is not seen

        def along(name: str, axis: int, matrix: "Tensor", factor: "Tensor | None" = None) -> None:
            """Multiply a parameter's `axis` by a factor of each dimension, then by the matrix."""
            if id(live[name]) in turned:
                return
            turned.add(id(live[name]))
            values = live[name].detach().double().movedim(axis, -1)
            values = values if factor is None else values * factor
            settable.set_values(name, ..., (values @ matrix).movedim(-1, axis).to(live[name]))

        for bound in loaded.stacks:
            matrix = torch.as_tensor(
                rotation(stream_width(model, bound), seed), device=live[bound.scale[0][0].name].device
            )
            linears = [param for layers in bound.linears.values() for layer in layers for param in layer]
            for param in (*bound.embeddings, *linears):
                along(param.name, param.axis, matrix)
            for norm in _norms(bound):
                weight, offset = live[f"{norm}.weight"], bound.stack.norm_offset
                for name in readers[norm]:
                    conv = type(modules[name]).__name__ == "Conv1D"
                    along(f"{name}.weight", 0 if conv else 1, matrix, weight.detach().double() + offset)
                settable.set_values(f"{norm}.weight", ..., torch.full_like(weight, 1 - offset))
        off = float((run() - before).abs().max() / before.abs().max())
        if not off <= TOLERANCE:
            raise BadInput(
                f"{loaded.name}: turned, its outputs differ by {off:.2g} of the largest, above {TOLERANCE:g}: something reads "
                "the stream that is not known here; nothing was changed"
            )
        yield tied


def _refuse_turn(loaded: LoadedModel) -> None:
    import torch

    for bound in loaded.stacks:
        where = f"{loaded.name}, stream {bound.name!r}"
        if bound.stack.norm_site != "read":
            raise BadInput(f"{where}: its norms stand on the stream or on writes; only pre-norm families are turned")
        if bound.stack.write_scales or bound.embedding_norm:
            raise BadInput(f"{where}: its writes pass a scale of single dimensions, so it cannot be turned")
        if packed := expert_kinds(loaded, bound):
            raise BadInput(
                f"{where}: the weights of its experts are one parameter ({next(iter(packed))}); they cannot be turned"
            )
        for name in _norms(bound):
            norm: Any = loaded.model.get_submodule(name)
            x = torch.randn(1, 1, len(norm.weight), generator=torch.Generator().manual_seed(0)).to(norm.weight)
            with torch.no_grad():
                if torch.allclose(norm(x), norm(x + 1), atol=1e-3):
                    raise BadInput(
                        f"{where}: {name} subtracts the mean (LayerNorm); only streams of RMS norms are turned"
                    )


def _norms(bound: BoundStack) -> list[str]:
    """Module paths of the norms that read the stream, the one after the last block last."""
    params = [norm for norms in bound.reading for norm in norms] + list(bound.final_norm[:1])
    return list(dict.fromkeys(param.name.rpartition(".")[0] for param in params))
