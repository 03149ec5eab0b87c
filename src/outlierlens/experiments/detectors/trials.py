"""What a model loses without its super weights: zero, restore, scale, beside other weights (Yu et al. 2024, Table 1).

tested = with_trials(loaded, stack, found, task, TrialOptions())

zeroed     the weights are 0; of several, also the first few each alone
restored   they are 0, but what they had written, their super activation, is put back at the tokens where it spiked
scaled     multiplied by a factor
random     as many weights of the same layers at random, several times; largest: the largest of the others there
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.entries import Place, largest_places, random_places, scaled
from outlierlens.experiments.detectors.linears import last_linears
from outlierlens.experiments.detectors.super_weights import SuperWeights, Trial
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import valid_tokens
from outlierlens.models.load import LoadedModel
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks import Task, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrialOptions:
    """`factors` to multiply by, `n_alone` weights tested each alone, `n_random` draws of others, `seed` of draws, intervals."""

    factors: tuple[float, ...] = (0.5, 1.5, 2.0, 3.0)
    n_alone: int = 4
    n_random: int = 3
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        if not all(np.isfinite(factor) for factor in self.factors) or min(self.n_random, self.n_alone) < 0:
            raise BadInput(
                f"factors are {self.factors}, n_alone {self.n_alone} and n_random {self.n_random}; factors must be numbers, "
                "and the others at least 0"
            )


def with_trials(
    loaded: LoadedModel, stack: BoundStack, found: SuperWeights, task: Task, options: TrialOptions
) -> SuperWeights:
    """`found` with its trials on `task`; as it is where no weight was found."""
    places: list[Place] = [(one.layer, one.row, one.column) for one in found.weights]
    if not places:
        return found
    feeds = list(task.feeds(range(task.n_texts)))
    recorded = _Recorded(loaded, stack, places)
    intact = _per_text(task, feeds, recorded.recording)
    trials = [Trial("intact", "intact", 1.0, weighted_mean(intact, task.weights), 0.0, 0.0, 0.0)]
    plan, restored = _plan(loaded, stack, places, options), 0
    for number, (name, kind, factor, chosen) in enumerate(plan):
        back = _Restoring(recorded, chosen, found.spike) if kind == "restored" else None
        with scaled(loaded, stack, chosen, factor if kind == "scaled" else 0.0):
            values = _per_text(task, feeds, back.restored if back else lambda _: nullcontext())
        restored = back.count if back and chosen == places else restored
        change = values - intact
        low, high = mean_interval(change, task.weights)
        trials.append(
            Trial(
                name, kind, factor, weighted_mean(values, task.weights), weighted_mean(change, task.weights), low, high
            )
        )
        if options.progress:
            options.progress("testing super weights", number + 1, len(plan))
    return replace(
        found, task=task.name, unit=task.unit, n_texts=task.n_texts, restored_tokens=restored, trials=tuple(trials)
    )


def _per_text(task: Task, feeds: list[Any], around: Callable[[int], AbstractContextManager[None]]) -> np.ndarray:
    """Value of each text [text], each feed inside `around(its number)`."""
    import torch

    values = np.zeros(task.n_texts)
    for number, feed in enumerate(feeds):
        with torch.inference_mode(), around(number):
            np.add.at(values, list(feed.slots), task.sums(feed).cpu().double().numpy())
    return values / task.weights


def _plan(
    loaded: LoadedModel, stack: BoundStack, places: list[Place], options: TrialOptions
) -> list[tuple[str, str, float, list[Place]]]:
    """(name, kind, factor, weights) of every trial but the intact one."""
    unknown = float("nan")
    plan = [("zeroed", "zeroed", 0.0, places), ("restored", "restored", unknown, places)]
    for place in places[: options.n_alone] if len(places) > 1 else ():
        where = f"{place[0]} [{place[1]}, {place[2]}]"
        plan += [(f"zeroed {where}", "zeroed", 0.0, [place]), (f"restored {where}", "restored", unknown, [place])]
    plan += [(f"× {factor:g}", "scaled", factor, places) for factor in options.factors]
    plan += [
        (f"random {draw}", "random", unknown, random_places(loaded, stack, places, seed=options.seed + draw))
        for draw in range(options.n_random)
    ]
    return [*plan, ("largest", "largest", unknown, largest_places(loaded, stack, places))]


class _Recorded:
    """What the intact model writes at the rows of super weights, of every feed."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack, places: Sequence[Place]):
        self.loaded, self.stack, self.rows = loaded, stack, _rows(places)
        self.kept: dict[int, dict[tuple[int, int], Tensor]] = {}  # by feed, then (layer, row): [batch, token]

    @temporary
    def recording(self, number: int) -> Iterator[None]:
        """Keep what feed `number` writes; a task that runs the model more than once for a feed writes the same again."""
        kept = self.kept.setdefault(number, {})

        def use(layer: int, _: "Tensor", written: "Tensor") -> None:
            for row in self.rows.get(layer, ()):
                kept[layer, row] = written[..., row].clone()

        with last_linears(self.loaded, self.stack, use):
            yield


class _Restoring:
    """Puts back what was recorded for `places`, at the tokens where it was above the spike; `count` says how often."""

    def __init__(self, recorded: _Recorded, places: Sequence[Place], spike: float):
        self.recorded, self.rows, self.spike, self.count = recorded, _rows(places), spike, 0

    @temporary
    def restored(self, number: int) -> Iterator[None]:
        """While feed `number` runs."""
        import torch

        with ExitStack() as inside:
            mask_of = inside.enter_context(valid_tokens(self.recorded.loaded.model))

            def use(layer: int, _: "Tensor", written: "Tensor") -> "Tensor | None":
                if layer not in self.rows:
                    return None
                changed = written.clone()
                for row in self.rows[layer]:
                    before = self.recorded.kept[number][layer, row]
                    spiked = before.abs() > self.spike
                    if written.ndim == 3:
                        spiked &= mask_of(written)
                    self.count += int(spiked.sum())
                    changed[..., row] = torch.where(spiked, before, written[..., row])
                return changed

            inside.enter_context(last_linears(self.recorded.loaded, self.recorded.stack, use))
            yield


def _rows(places: Sequence[Place]) -> dict[int, tuple[int, ...]]:
    """{layer: rows}, each once."""
    layers = dict.fromkeys(layer for layer, _, _ in places)
    return {layer: tuple(dict.fromkeys(row for at, row, _ in places if at == layer)) for layer in layers}
