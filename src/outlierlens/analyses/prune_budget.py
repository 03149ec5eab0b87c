"""A number of weights to prune, and which they are: `Budget` for a model's options, `Pruner` for any plan.

budget = Budget(loaded, options)
taken = budget.pruner.pruned({0: (6,), 2: (6, 1)}, budget.n)       # these positions' weights first, then the smallest
with budget.pruner.off(taken): ...
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.controls import Plan, matched_sets, random_sets
from outlierlens.analyses.prune_cells import Cells, Removal, smallest
from outlierlens.architectures import live_parameters
from outlierlens.detection.observe.measure import magnitude as strength_of
from outlierlens.detection.scan.measure import scan_live
from outlierlens.errors import BadInput
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND

if TYPE_CHECKING:
    from torch import nn

    from outlierlens.analyses.prune import PruneTestOptions


class Pruner:
    """The weights of a stream's last operations in one row, and which of them a budget takes."""

    def __init__(self, model: "nn.Module", cells: Cells):
        self.model, self.cells = model, cells
        self.live = live_parameters(model)
        self.params = list({param.name: param for layer in cells.params for param in layer}.values())
        ends = np.cumsum([0, *(self.live[param.name].numel() for param in self.params)])
        self.slices = {p.name: slice(a, b) for p, a, b in zip(self.params, ends[:-1], ends[1:], strict=True)}
        self.n_candidates = int(ends[-1])
        self.scores = np.concatenate([
            (self.live[p.name].detach().float() - p.off).abs().reshape(-1).cpu().numpy() for p in self.params
        ])  # fmt: skip

    def forced(self, plan: Plan) -> np.ndarray:
        """bool [weight]: all weights of the positions of `plan`, {layer: positions}."""
        taken = np.zeros(self.n_candidates, dtype=bool)
        for layer, dims in plan.items():
            for param in self.cells.params[layer]:
                shaped = taken[self.slices[param.name]].reshape(tuple(self.live[param.name].shape))
                np.moveaxis(shaped, param.axis, 0)[list(dims)] = True
        return taken

    def pruned(self, plan: Plan, budget: int) -> np.ndarray:
        """bool [weight]: those of `plan`, then the smallest of the others up to `budget` in all."""
        taken = self.forced(plan)
        return taken | smallest(np.where(taken, np.inf, self.scores), budget - int(np.count_nonzero(taken)))

    @temporary
    def off(self, taken: np.ndarray) -> Iterator[int]:
        """Switch weights off inside the block, and put every value back bit for bit; yields how many are off."""
        import torch

        with ExitStack() as undo:
            settable = Settable(undo, self.model)
            for param in self.params:
                here = torch.from_numpy(taken[self.slices[param.name]]).reshape(self.live[param.name].shape)
                if here.any():
                    settable.set_values(param.name, (here,), param.off)
            yield int(np.count_nonzero(taken))


class Budget:
    """The positions of a model, and how many weights of its blocks' last operations are pruned: `n`."""

    def __init__(self, loaded: LoadedModel, options: "PruneTestOptions"):
        self.loaded, self.options = loaded, options
        self.stack = loaded.stack(options.stack)
        shapes = {name: tuple(value.shape) for name, value in live_parameters(loaded.model).items()}
        self.cells = Cells.of(self.stack, shapes, Removal())
        self.dims, self.named_by = self._named()
        self.pruner = Pruner(loaded.model, self.cells)
        self.forced = int(self.cells.total.sum()) * len(self.dims)
        self.n = max(self.forced, round(options.sparsity * self.pruner.n_candidates))
        self.alone = self.pruner.pruned({}, self.n)

    def _named(self) -> tuple[tuple[int, ...], str]:
        if self.options.dims != FIND and self.options.dims:
            return self.cells.checked(self.options.dims), "given"
        found = next(one for one in scan_live(self.loaded).stacks if one.stack == self.stack.name)
        if not found.dims:
            raise BadInput(
                f"{self.loaded.name}: the scan finds no outlier; name positions to force the budget onto with --dims"
            )
        return found.dims, found.named_by

    def controls(self, chosen: Plan) -> tuple[list[tuple[str, Plan]], float | None]:
        """(the control plans by label, how near the matched ones came)."""
        options, size, width = self.options, len(self.dims), self.cells.width
        random, matched = list[Plan](), list[Plan]()
        closeness = None
        if options.n_random:
            sets = random_sets(width, size, n=options.n_random, seed=options.seed, other_than=self.dims)
            random = [dict.fromkeys(chosen, dims) for dims in sets]
        if options.n_matched and self.stack.weight_layers == tuple(chosen):
            strength = strength_of(self.loaded, self.stack)
            near = matched_sets(strength, chosen, avoid=(), n=options.n_matched, seed=options.seed)
            matched, closeness = [one.plan for one in near], float(np.median([one.closeness for one in near]))
        scattered = [self._scattered(size, number) for number in range(options.n_scattered)]
        families = {"random position": random, "scattered": scattered, "matched": matched}
        found = [(f"{name} {i + 1}", plan) for name, plans in families.items() for i, plan in enumerate(plans)]
        return found, closeness

    def _scattered(self, size: int, number: int) -> Plan:
        """As many random positions in each layer, none of them twice while there are fresh ones."""
        random = np.random.default_rng([self.options.seed, number])
        free = np.setdiff1d(np.arange(self.cells.width), self.dims)
        rounds = -(-self.cells.n_layers * size // len(free))
        drawn = np.concatenate([random.permutation(free) for _ in range(rounds)])
        return {i: tuple(sorted(set(drawn[i * size : (i + 1) * size].tolist()))) for i in range(self.cells.n_layers)}
