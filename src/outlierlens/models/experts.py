"""Look at experts while a model runs: what each reads and gives, of which tokens, and what its router multiplies that by.

    with tapped_experts(model, {"model.layers.0.mlp.experts.down_proj": look}):      # look(ExpertCall) for each expert
        model(**batch)
    unreached(reached, experts)                    # a note on experts that no token reached

Packed experts are parameters [expert, …] and no modules, so products with their matrices are recognised by the memory that
these lie in. Experts run one by one meanwhile; what they give is added to the tokens that they were given, which names these.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import NO_EXPERT, expert_of, live_parameters
from outlierlens.architectures.live import is_offloaded
from outlierlens.errors import BadInput
from outlierlens.models.changes import BY_BLOCK, hang, temporary
from outlierlens.models.hooks import function_calls, refuse_compiled
from outlierlens.view.section import runs

if TYPE_CHECKING:
    from torch import Tensor, nn

TOLD = 4  # layers whose experts a note lists
LISTED = 8  # of a layer


@dataclass(frozen=True)
class ExpertCall:
    """One expert in one pass.

    Attributes:
        expert: its number in the parameter; 0 where that is one expert's alone.
        read, given: [row, channel], what its matrix reads, and gives with its bias.
        tokens: row of the flat batch [batch * token] that each row is of, int64 [row]; None where that cannot be told.
        weights: what its router multiplies each row of `given` by, float64 [row], of last linears; None where nobody can tell.
        n_tokens: rows of the flat batch; 0 where tokens cannot be told.
    """

    expert: int
    read: "Tensor"
    given: "Tensor"
    tokens: "Tensor | None" = None
    weights: "Tensor | None" = None
    n_tokens: int = 0


Look = Callable[[ExpertCall], "Tensor | None"]


@temporary
def tapped_experts(model: "nn.Module", looks: Mapping[str, Look], *, blind: set[str] | None = None) -> Iterator[None]:
    """Call the function of each parameter, packed or one expert's own, at its products with one expert's matrix.

    What it returns, if anything, goes on in place of what a last linear has given.

    Raises:
        BadInput: in a pass, experts ran and multiplied in a way of their own; with `blind` their parameters are added to that.
    """
    if not looks:
        yield
        return
    refuse_compiled(model)
    if getattr(model, BY_BLOCK, None) is not None:
        raise BadInput(
            "what each expert reads needs the model whole; load it without by_block, or name a residual stream"
        )
    watch = _Watch(model, looks, blind)
    with ExitStack() as undo:
        for module in watch.held:
            hang(undo, module.register_forward_pre_hook, watch.enter)
            hang(undo, module.register_forward_hook, watch.leave)
            config: Any = getattr(module, "config", None)
            if hasattr(config, "_experts_implementation"):
                undo.callback(config.__setattr__, "_experts_implementation", config._experts_implementation)
                config._experts_implementation = "eager"
        undo.enter_context(function_calls(watch.called))
        yield


class _Watch:
    """Products that were seen in the experts that run, until it is known whose tokens they are."""

    def __init__(self, model: "nn.Module", looks: Mapping[str, Look], blind: set[str] | None):
        import torch
        from torch.nn import functional

        self.model, self.looks, self.live = model, looks, live_parameters(model)
        # By where they lie; those that are placed for each pass are looked for while their module runs.
        self.names = self._places(name for name in looks if not is_offloaded(self.live[name]))
        self.products = {functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
        self.batched, self.added = {torch.bmm, torch.Tensor.bmm}, torch.Tensor.index_add_
        self.open: list[tuple[str, ExpertCall]] = []
        self.running: list[str] = []
        self.blind, self.seen = blind, False  # whether any product was, in the experts that run
        self.held: dict[nn.Module, list[str]] = {}  # by the module that holds experts, their parameters
        for name in looks:
            above = name.removesuffix(".weight").rpartition(".")[0]
            path = name.partition(".experts.")[0] + ".experts" if expert_of(name) != NO_EXPERT else above
            self.held.setdefault(model.get_submodule(path), []).append(name)

    def _places(self, names: Iterable[str]) -> dict[int, tuple[str, Any]]:
        """{where it begins in memory: (name, parameter)} of those that have values now."""
        now = {name: self.model.get_parameter(name) for name in names}
        return {one.untyped_storage().data_ptr(): (name, one) for name, one in now.items() if not one.is_meta}

    def _found(self, matrix: "Tensor") -> tuple[str, Any] | None:
        """The parameter that a matrix is of, and its name."""
        at = matrix.untyped_storage().data_ptr()
        return self.names.get(at) or self._places(self.running).get(at)

    def enter(self, module: "nn.Module", _: Any) -> None:
        """The experts of a block begin."""
        self.running = [name for name in self.held[module] if is_offloaded(self.live[name])]

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of torch's functions, and see whether it is an expert's."""
        if func is self.added and self.open and len(args) == 4:
            args = (*args[:3], self._told(*args[2:], len(args[0])))
        made = func(*args, **kwargs)
        if func in self.products and len(args) > 1 and args[1].ndim == 2:
            self._product(args[0], args[1], made)
        elif func in self.batched and len(args) > 1:
            self._all_at_once(args[0], args[1], made)
        return made

    def _product(self, read: "Tensor", matrix: "Tensor", made: "Tensor") -> None:
        if (found := self._found(matrix)) is None:
            return
        (name, packed), expert, self.seen = found, 0, True
        if packed.ndim == 3:
            expert = (matrix.storage_offset() - packed.storage_offset()) // packed.stride(0)
            bias = self.live.get(f"{name}_bias")
            made = made if bias is None else made + bias[expert]
        self.open.append((name, ExpertCall(expert, read, made)))

    def _told(self, tokens: "Tensor", written: "Tensor", n_tokens: int) -> "Tensor":
        """What an expert writes is about to be added to these tokens: the calls before are of them; what is added."""
        calls, self.open = self.open, []
        for name, call in calls:
            weights = None
            if call.given.shape == written.shape:
                given = call.given.detach().double()
                weights = (given * written.detach()).sum(-1) / given.square().sum(-1).clamp(min=1e-300)
            mine = tokens if len(tokens) == len(call.read) else None
            changed = self.looks[name](ExpertCall(call.expert, call.read, call.given, mine, weights, n_tokens))
            if changed is not None and weights is not None:
                written = written + ((changed - call.given) * weights[:, None]).to(written)
        return written

    def _all_at_once(self, read: "Tensor", packed: "Tensor", made: "Tensor") -> None:
        """Every expert reads every token [expert, token, channel]; rows of zeros are of tokens that are not its own."""
        import torch

        if (found := self._found(packed)) is None or packed.ndim != 3 or len(packed) != len(found[1]):
            return
        name, self.seen = found[0], True
        for expert in range(len(packed)):
            tokens = read[expert].any(-1).nonzero().flatten()
            if not len(tokens):
                continue
            ones = torch.ones(len(tokens), dtype=torch.float64, device=tokens.device)
            call = ExpertCall(expert, read[expert, tokens], made[expert, tokens], tokens, ones, read.shape[1])
            if (changed := self.looks[name](call)) is not None:
                made[expert, tokens] = changed

    def leave(self, module: "nn.Module", args: tuple[Any, ...], output: Any) -> None:
        """The experts of a block are done: whose tokens the calls are that are left is not known."""
        calls, self.open, seen, self.seen, self.running = self.open, [], self.seen, False, []
        for name, call in calls:
            self.looks[name](call)
        if seen or (args and not args[0].numel()):
            return
        if self.blind is None:
            raise BadInput(
                f"{self.held[module][0]}: these experts multiply in a way of their own, which cannot be watched"
            )
        self.blind.update(self.held[module])


def unreached(reached: Collection[tuple[int, int]], experts: Collection[tuple[int, int]]) -> tuple[str, ...]:
    """A note on those of `experts` (layer, expert) that no token reached; () where all were."""
    missing: dict[int, list[int]] = {}
    for layer, expert in experts:
        if (layer, expert) not in reached:
            missing.setdefault(layer, []).append(expert)
    if not missing:
        return ()
    n, told = sum(map(len, missing.values())), list(missing.items())[:TOLD]
    listed = "; ".join(f"layer {layer}: {_few(numbers)}" for layer, numbers in told)
    more = f"; and some in {len(missing) - TOLD} other layers" if len(missing) > TOLD else ""
    return (f"no token reached {n:,} of {len(experts):,} experts, so their values are unknown ({listed}{more})",)


def _few(numbers: Sequence[int]) -> str:
    """ "0–2, 5", of many how many."""
    parts = runs(numbers)
    return parts if parts.count(",") < LISTED else f"{len(numbers)} of them"
