"""The constraint for `torch.nn.utils.prune`: any of its methods, one tensor or global, with its budget met exactly.

guard = same_position_guard(model)
prune.global_unstructured(parameters, pruning_method=guard.method(parameters, prune.L1Unstructured), amount=0.4)
guard.apply(layer.output.dense, "weight", prune.RandomUnstructured, amount=100)
guard.last.says(), guard.broken()

The method chooses; where its choice would remove a position in too many layers, the guard keeps that position's largest
weights and prunes as many others, the smallest ones.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens import architectures as arch
from outlierlens.errors import BadInput
from outlierlens.experiments.pruning.guard import Guarded, State, guarded_masks
from outlierlens.experiments.pruning.removal import Cells, per_dim_off
from outlierlens.experiments.pruning.result import Removal
from outlierlens.models.load import LoadedModel, config_dict

if TYPE_CHECKING:
    from torch import Tensor, nn

    Target = tuple["nn.Module", str]


def same_position_guard(
    model: "LoadedModel | nn.Module",
    rule: Removal | None = None,
    *,
    protect: Sequence[int] = (),
    stack: str | None = None,
) -> "SamePositionGuard":
    """A guard for `model`: what it prunes removes no position in `rule.min_layer_fraction` of the layers.

    Positions in `protect` (outliers, say) lose no weight of the blocks' last operations at all. With `stack`, only that
    stream is guarded.

    Raises:
        UnknownArchitecture: no row describes the model. BadInput: no such stream.
    """
    module = model.model if isinstance(model, LoadedModel) else model
    names = {name.removesuffix("_orig"): tensor for name, tensor in arch.live_parameters(module).items()}
    stacks = tuple(one.stack for one in model.stacks) if isinstance(model, LoadedModel) else None
    config = config_dict(module)
    bound = arch.bind(stacks or arch.stacks_of(config, type(module).__name__), names, config)
    chosen = [one for one in bound if stack in (None, one.name)]
    if not chosen:
        raise BadInput(f"no stream {stack!r}; streams are {', '.join(one.name for one in bound)}")
    shapes = {name: tuple(tensor.shape) for name, tensor in names.items()}
    cells = [Cells.of(one, shapes, rule or Removal()) for one in chosen]
    return SamePositionGuard(module, cells, tuple(protect))


class SamePositionGuard:
    """Prunes a model with methods of `torch.nn.utils.prune` such that every position stays in enough layers.

    Attributes:
        last: what the last pruning cost; None before the first, and for whole channels.
    """

    def __init__(self, model: "nn.Module", cells: Sequence[Cells], protect: tuple[int, ...]):
        self.model, self.cells, self.protect = model, list(cells), protect
        self.last: Guarded | None = None
        self._names: dict[tuple[int, str], str] = {
            (id(module), leaf.removesuffix("_orig")): f"{path}.{leaf}".lstrip(".").removesuffix("_orig")
            for path, module in model.named_modules(remove_duplicate=False)
            for leaf, _ in module.named_parameters(recurse=False)
        }

    def method(self, parameters: "Iterable[Target]", base: Any) -> Any:
        """`base`, an unstructured method, under guard: for `prune.global_unstructured` on the same `parameters`.

        Raises:
            BadInput: a parameter that is not the model's; a method that prunes whole channels.
        """
        if base.PRUNING_TYPE != "unstructured":
            raise BadInput(
                f"{base.__name__} prunes whole channels of one tensor; use guard.apply(module, name, {base.__name__}, …)"
            )
        return self._guarding([(self._name(module, name), module, name) for module, name in parameters], base)

    def _guarding(self, targets: Any, make: Any) -> Any:
        """A pruning method that asks what `make(**options)` would prune of the targets, and puts it right."""
        from torch.nn.utils import prune

        guard = self

        class Guarding(prune.BasePruningMethod):
            """A pruning method whose masks obey the guard."""

            PRUNING_TYPE = "unstructured"

            def __init__(self, **options: Any):
                self.inner = make(**options)

            def compute_mask(self, t: "Tensor", default_mask: "Tensor") -> "Tensor":
                return guard._unstructured(targets, self.inner, t, default_mask)

        return Guarding

    def apply(self, module: "nn.Module", name: str, base: Any, *args: Any, **options: Any) -> "nn.Module":
        """Prune one tensor by `base` under guard, as `base.apply(module, name, …)` would without one.

        `importance_scores` may be given among the options. A structured method must prune along the stream (whole positions),
        or the guard only checks what it did.

        Raises:
            BadInput: the budget is more than the constraint leaves, or a structured method breaks it.
        """
        import torch
        from torch.nn.utils import prune

        parameter = self._name(module, name)
        scores = options.pop("importance_scores", None)
        scores = getattr(module, name).detach() if scores is None else scores
        mask = getattr(module, f"{name}_mask", None)
        mask = torch.ones_like(scores) if mask is None else mask.detach().clone()
        inner = base(*args, **options)
        inner._tensor_name = name
        if base.PRUNING_TYPE == "structured":
            new = self._structured(parameter, inner, scores, mask)
        else:
            container = prune.PruningContainer()
            container._tensor_name = name
            guarding = self._guarding([(parameter, module, name)], lambda: inner)()
            guarding._tensor_name = name
            container.add_pruning_method(guarding)
            new = container.compute_mask(scores, mask)
        prune.custom_from_mask(module, name, mask=new)
        return module

    def broken(self) -> dict[str, tuple[int, ...]]:
        """Positions by stream that are removed in too many layers, as the model is now."""
        state = self._state()
        found = {}
        for one in self.cells:
            removed = one.removed(self._off(one, state))
            found[one.bound.name] = tuple(one.broken(removed).tolist())
        return found

    def _name(self, module: "nn.Module", name: str) -> str:
        found = self._names.get((id(module), name))
        if found is None:
            raise BadInput(
                f"{type(module).__name__}.{name} is no parameter of the guarded model; take it from that model"
            )
        return found

    def _state(self) -> State:
        """Masks and zeros of all parameters that the constraint is about."""
        pruned, zero = {}, {}
        for one in self.cells:
            for param in {param for layer in one.params for param in layer}:
                path, _, leaf = param.name.rpartition(".")
                module = self.model.get_submodule(path)
                values = getattr(module, f"{leaf}_orig", None)
                values = getattr(module, leaf) if values is None else values
                zero[param.name] = (values.detach() == param.off).cpu().numpy()
                mask = getattr(module, f"{leaf}_mask", None)
                # Masks set to 0, which is not where a norm that multiplies by 1 + weight is off.
                if mask is not None and not param.off:
                    pruned[param.name] = (mask.detach() == 0).cpu().numpy()
        return State(pruned, zero)

    def _off(self, cells: Cells, state: State) -> np.ndarray:
        off = np.zeros((cells.n_layers, cells.width), dtype=np.int64)
        for layer, params in enumerate(cells.params):
            for param in params:
                gone = state.zero[param.name] | state.pruned.get(param.name, False)
                off[layer] += per_dim_off(gone, param)
        return off

    def _unstructured(self, targets: Any, inner: Any, t: "Tensor", default_mask: "Tensor") -> "Tensor":
        """The method's mask of `t` (all weights of the targets, or those not yet pruned), put right."""
        import torch

        masks = [_mask_of(module, name) for _, module, name in targets]
        flat = torch.cat([mask.reshape(-1) for mask in masks]).to(t.device) == 1
        everything = t.numel() == flat.numel()
        here = torch.ones_like(flat) if everything else flat
        if int(here.sum()) != t.numel():
            raise BadInput(f"{t.numel():,} weights are to be pruned, {int(flat.sum()):,} of the guard's parameters are left; "
                           "give the same parameters to guard.method and to the pruning function")  # fmt: skip
        chosen = inner.compute_mask(t, default_mask)
        took = torch.zeros_like(flat)
        took[here] = (chosen.reshape(-1) == 0) & (default_mask.reshape(-1) != 0)
        sizes = torch.zeros(len(flat), dtype=torch.float64, device=t.device)
        sizes[here] = t.detach().reshape(-1).abs().double()
        state = self._state()
        scores, first, pruned, start = {}, {}, dict(state.pruned), 0
        for (parameter, _, _), mask in zip(targets, masks, strict=True):
            end, shape = start + mask.numel(), tuple(mask.shape)
            scores[parameter] = sizes[start:end].reshape(shape).cpu().numpy()
            first[parameter] = took[start:end].reshape(shape).cpu().numpy()
            pruned[parameter] = (mask == 0).cpu().numpy()
            start = end
        count = int(took.sum())
        self.last = guarded_masks(
            scores, count, self.cells, protect=self.protect, state=State(pruned, state.zero, first)
        )
        stays = np.concatenate([self.last.masks[parameter].ravel() for parameter, _, _ in targets])
        new = torch.from_numpy(stays).to(t.device)[here].reshape(t.shape)
        return new.to(default_mask.dtype)

    def _structured(self, parameter: str, inner: Any, scores: "Tensor", mask: "Tensor") -> "Tensor":
        """The method's mask of whole channels, with channels swapped where they are positions of the stream."""
        import torch

        new = inner.compute_mask(scores, mask) * mask
        dim = inner.dim % scores.ndim
        state = self._state()
        for one in self.cells:
            for layer, params in enumerate(one.params):
                for param in (p for p in params if p.name == parameter):
                    if param.axis % scores.ndim == dim:
                        new = self._swap(one, layer, dim, (scores, mask, new), state)
                    gone = dict(state.pruned) | {parameter: (new == 0).cpu().numpy()}
                    broken = one.broken(one.removed(self._off(one, State(gone, state.zero))))
                    if len(broken):
                        raise BadInput(
                            f"{parameter}: {type(inner).__name__} along axis {dim} would remove position {broken[0]} in "
                            f"{one.limit} of {one.n_layers} layers; lower the amount"
                        )
        self.last = None
        return new.to(torch.as_tensor(mask).dtype)

    def _swap(
        self, cells: Cells, layer: int, dim: int, tensors: "tuple[Tensor, Tensor, Tensor]", state: State
    ) -> "Tensor":
        """Let only positions go that stay in enough other layers: the method's first, then those of least norm."""
        import torch

        scores, mask, new = tensors
        others = [axis for axis in range(scores.ndim) if axis != dim]
        removed = cells.removed(self._off(cells, state))
        free = np.delete(removed, layer, axis=0).sum(axis=0) < cells.limit - 1
        free[list(self.protect)] = False
        alive = (mask.sum(dim=others) != 0).cpu().numpy()
        took = (new.sum(dim=others) == 0).cpu().numpy() & alive
        count, allowed = int(took.sum()), np.flatnonzero(free & alive)
        if len(allowed) < count:
            raise BadInput(
                f"{len(allowed)} positions can be pruned within the constraint, the budget is {count}; lower the amount"
            )
        norm = torch.linalg.vector_norm((scores * mask).float(), dim=others).cpu().numpy()
        order = allowed[np.lexsort((norm[allowed], ~took[allowed]))][:count]
        stays = torch.ones(scores.shape[dim], dtype=mask.dtype, device=mask.device)
        stays[torch.as_tensor(order.copy(), device=mask.device)] = 0
        return mask * stays.reshape([-1 if axis == dim else 1 for axis in range(scores.ndim)])


def _mask_of(module: "nn.Module", name: str) -> "Tensor":
    """The mask of a parameter as it is, ones where it has none."""
    import torch

    mask = getattr(module, f"{name}_mask", None)
    if mask is not None:
        found: Tensor = mask.detach()
        return found
    return torch.ones_like(getattr(module, name).detach())
