"""What it costs to force a pruning budget onto one position: `prune_experiment`.

effect = prune_experiment(load_model("smollm2-135m"), read_texts("excerpt"))
effect.chosen.change, effect.magnitude.change          # nats per token, the same number of weights pruned
effect.verdict

Every condition prunes exactly as many weights of the blocks' last operations. `magnitude` takes the smallest. The others take
the weights of some positions first, then the smallest of what is left: `chosen` the outliers in all layers, the controls random
positions in all layers, random ones that differ by layer, and ones about as large that differ by layer.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.bench import AblationBench, Progress, Steps
from outlierlens.ablation.controls import Plan, compared, matched_sets, random_sets
from outlierlens.ablation.damage import Condition
from outlierlens.architectures import live_parameters
from outlierlens.data.texts import Texts
from outlierlens.detection.observe.measure import magnitude as strength_of
from outlierlens.detection.scan.measure import scan_live
from outlierlens.errors import BadInput
from outlierlens.experiments.pruning.options import ExperimentOptions
from outlierlens.experiments.pruning.removal import Cells
from outlierlens.experiments.pruning.result import PruneExperiment, Removal
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.load import LoadedModel
from outlierlens.options import FIND
from outlierlens.session import Session
from outlierlens.statistics.words import unseen_note
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from torch import nn


def prune_experiment(
    loaded: LoadedModel,
    texts: Texts,
    options: ExperimentOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | None = None,
) -> PruneExperiment:
    """Measure the loss with one budget of weights pruned by magnitude, and with it forced onto positions.

    With `rows`, every finished condition is appended to that file, and conditions found there are not measured again.

    Raises:
        BadInput: no outlier to force the budget onto, unknown positions, or no usable text.
    """
    options = options or ExperimentOptions()
    budget = _Budget(loaded, options)
    task_options = replace(options.task, seed=options.seed)
    task = make_task(loaded, texts, task_options)
    bench = AblationBench(loaded, task, seed=options.seed)
    families, closeness = budget.families()
    swaps: dict[str, int] = {}

    def pruned(label: str, plan: Plan) -> Condition:
        """The weights of `plan` and the smallest others pruned; how many these are is known without the rows."""
        taken = budget.pruner.pruned(plan, budget.n)
        swaps[label] = int(np.count_nonzero(taken & ~budget.alone))
        found = bench.condition(label, plan, lambda: budget.pruner.off(taken))
        return replace(found, n_parameters=int(np.count_nonzero(taken)), score=replace(found.score, also={}))

    report = Steps(progress, 3 + sum(map(len, families.values())))
    identity = bench.identity(texts, task_options, stack=budget.stack.name, budget=budget.n)
    with bench.resumed(rows, identity):
        bench.announce(report.total - 1, inputs=texts.plural)
        report("intact")
        intact = bench.intact_condition()
        report("magnitude")
        magnitude = pruned("magnitude", {})
        report("chosen")
        chosen = pruned("chosen", dict.fromkeys(range(budget.cells.n_layers), budget.dims))
        measured: dict[str, list[Condition]] = {}
        for kind, plans in families.items():
            for number, plan in enumerate(plans):
                report(kind)
                measured.setdefault(kind, []).append(pruned(f"{kind} {number + 1}", plan))
    report("done")
    norms = "norms here multiply by 1 + weight: a pruned value is −1, where the factor is 0"
    beyond = (norms,) if budget.cells.beyond_masks else ()
    return PruneExperiment(
        provenance=loaded.provenance(seed=options.seed, digest=bench.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=task.name,
        unit=task.unit,
        stack=budget.stack.name,
        site=budget.cells.site,
        dims=budget.dims,
        dims_source=budget.dims_source,
        n_layers=budget.cells.n_layers,
        hidden_size=budget.cells.width,
        n_candidates=budget.pruner.n_candidates,
        forced=budget.forced,
        budget=budget.n,
        n_texts=task.n_texts,
        n_tokens=task.n_tokens,
        intact=replace(intact, score=replace(intact.score, also={})),
        magnitude=magnitude,
        chosen=chosen,
        controls=compared(measured, chosen, ranked="random position", closeness=closeness),
        swaps=swaps,
        notes=(*loaded.notes, *task.notes, unseen_note(task.n_texts), *beyond),
    )


def run(session: Session, options: ExperimentOptions) -> PruneExperiment:
    """The experiment, as the command runs it."""
    texts, _ = session.texts()
    return prune_experiment(session.loaded, texts, options, progress=session.progress, rows=session.rows.rows)


class Pruner:
    """The weights of a stream's last operations in one row, and which of them a budget takes."""

    def __init__(self, model: "nn.Module", cells: Cells):
        self.model, self.cells = model, cells
        self.live = live_parameters(model)
        self.params = list({param.name: param for layer in cells.params for param in layer}.values())
        sizes = [self.live[param.name].numel() for param in self.params]
        ends = np.cumsum([0, *sizes])
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
        left = budget - int(np.count_nonzero(taken))
        if left > 0:
            sizes = np.where(taken, np.inf, self.scores)
            edge = np.partition(sizes, left - 1)[left - 1]
            smaller = sizes < edge
            equal = np.flatnonzero(sizes == edge)
            smaller[equal[: left - int(np.count_nonzero(smaller))]] = True
            taken |= smaller
        return taken

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


class _Budget:
    """The positions of a model, and how many weights of its blocks' last operations are pruned: `n`."""

    def __init__(self, loaded: LoadedModel, options: ExperimentOptions):
        self.loaded, self.options = loaded, options
        self.stack = loaded.stack(options.stack)
        shapes = {name: tuple(value.shape) for name, value in live_parameters(loaded.model).items()}
        self.cells = Cells.of(self.stack, shapes, Removal())
        self.dims, self.dims_source = self._named()
        self.pruner = Pruner(loaded.model, self.cells)
        self.forced = int(self.cells.total.sum()) * len(self.dims)
        self.n = max(self.forced, round(options.sparsity * self.pruner.n_candidates))
        self.alone = self.pruner.pruned({}, self.n)

    def _named(self) -> tuple[tuple[int, ...], str]:
        asked = () if self.options.dims == FIND else tuple(dict.fromkeys(self.options.dims))
        bad = [dim for dim in asked if not 0 <= dim < self.cells.width]
        if bad:
            raise BadInput(
                f"dimension {bad[0]} does not exist; stream {self.stack.name!r} has 0 to {self.cells.width - 1}"
            )
        if asked:
            return asked, "given"
        found = next(one for one in scan_live(self.loaded).stacks if one.stack == self.stack.name)
        if not found.dims:
            raise BadInput(
                f"{self.loaded.name}: the scan finds no outlier; name positions to force the budget onto with --dims"
            )
        return found.dims, found.named_by

    def families(self) -> tuple[dict[str, list[Plan]], float | None]:
        """(the control plans by kind, how near the matched ones came)."""
        options, n_layers, size = self.options, self.cells.n_layers, len(self.dims)
        everywhere = dict.fromkeys(range(n_layers), self.dims)
        found: dict[str, list[Plan]] = {}
        closeness = None
        if options.n_random:
            sets = random_sets(self.cells.width, size, n=options.n_random, seed=options.seed, other_than=self.dims)
            found["random position"] = [dict.fromkeys(range(n_layers), dims) for dims in sets]
        if options.n_scattered:
            found["scattered"] = [self._scattered(size, number) for number in range(options.n_scattered)]
        if options.n_matched and self.stack.weight_layers == tuple(range(n_layers)):
            strength = strength_of(self.loaded, self.stack)
            sets_ = matched_sets(strength, everywhere, avoid=(), n=options.n_matched, seed=options.seed)
            found["matched"] = [one.plan for one in sets_]
            closeness = float(np.median([one.closeness for one in sets_]))
        return found, closeness

    def _scattered(self, size: int, number: int) -> Plan:
        """As many random positions in each layer, none of them twice while there are fresh ones."""
        random = np.random.default_rng([self.options.seed, number])
        free = np.setdiff1d(np.arange(self.cells.width), self.dims)
        rounds = -(-self.cells.n_layers * size // len(free))
        drawn = np.concatenate([random.permutation(free) for _ in range(rounds)])
        return {
            layer: tuple(sorted(set(drawn[layer * size : (layer + 1) * size].tolist())))
            for layer in range(self.cells.n_layers)
        }
