"""Super weights: the single weights behind the largest activations, found on one prompt (Yu et al. 2024).

found = super_weights(loaded, stack, "One short text.", settings)
[weight.place for weight in found.weights]

In each layer, k is where the MLP's last linear reads its largest |value| and j where it writes its largest. Where both are
above `super_spike`, weight [j, k] joins them. The first such layer's weight is removed and the prompt runs again, until
nothing spikes, or `super_rounds` are removed. A weight without which more than `super_left` of the layer's largest output is
left is put back, and its layer is left alone: where a whole column writes, no single weight is behind the spike.

What a model loses without its super weights: zero, restore, scale, beside other weights (Yu et al. 2024, Table 1).

tested = with_trials(loaded, stack, found, task, TrialOptions())

zeroed     the weights are 0; of several, also the first few each alone
restored   they are 0, but what they had written, their super activation, is put back at the tokens where it spiked
scaled     multiplied by a factor
random     as many weights of the same layers at random, several times; largest: the largest of the others there
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.linears import (
    Place,
    entries,
    largest_places,
    last_linears,
    random_places,
    rank_of,
    scaled,
)
from outlierlens.experiments.detectors.options import Settings, TrialOptions
from outlierlens.experiments.detectors.result import Spikes, SuperWeight, SuperWeights, Trial
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import valid_tokens
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import TextReading
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import Task, values_of, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Seen:
    """Spikes of one pass, and by layer the signed (input, output) at them and the input k at the token of the output."""

    spikes: Spikes
    peaks: tuple[tuple[float, float, float], ...]


def super_weights(
    loaded: LoadedModel, stack: BoundStack, prompt: str, settings: Settings, *, max_length: int = 128
) -> SuperWeights:
    """Search on `prompt`, removing what is found one by one; the model is as before afterwards.

    Raises:
        BadInput: the prompt has no token, or the model reads no text.
    """
    reading = TextReading(loaded, max_length)
    batch = next(reading.batches((prompt,), batch_size=1), None)
    if batch is None:
        raise BadInput(f"the tokenizer makes no token of the prompt {prompt!r}; give another")
    tokens = reading.words(reading.sides(batch)[stack.name][0][0].tolist())
    found: list[SuperWeight] = []
    refused: dict[int, str] = {}
    before = now = _look(loaded, stack, reading, batch)
    while True:
        spiking = [layer for layer in _spiking(now.spikes, settings.super_spike) if layer not in refused]
        if not spiking or len(found) == settings.super_rounds:
            break
        layer = spiking[0]
        row, column = now.spikes.row[layer], now.spikes.column[layer]
        removed = [(one.layer, one.row, one.column) for one in found]
        if (layer, row, column) in removed:
            refused[layer] = f"{layer} ([{row}, {column}] is removed already)"
            continue
        read, written, there = now.peaks[layer]
        position = now.spikes.write_position[layer]
        with scaled(loaded, stack, removed, 0.0):
            weight = entries(loaded, stack, layer)
            value, rank = float(weight[row, column]), rank_of(weight, row, column)
            with scaled(loaded, stack, [(layer, row, column)], 0.0):
                after = _look(loaded, stack, reading, batch)
        left = float(after.spikes.written[layer])
        if left > settings.super_left * abs(written):
            refused[layer] = f"{layer} ({left / abs(written):.0%} is left without [{row}, {column}])"
            continue
        now = after
        share = value * there / written
        found.append(
            SuperWeight(layer, row, column, value, rank, read, written, position, tokens[position], share, left)
        )
    return SuperWeights(
        prompt, settings.super_spike, tuple(found), _why(spiking, refused, settings), before.spikes, now.spikes
    )


def _spiking(spikes: Spikes, spike: float) -> list[int]:
    """Layers whose input and output are both above `spike`."""
    return np.flatnonzero((spikes.read > spike) & (spikes.written > spike)).tolist()


def _why(spiking: list[int], refused: dict[int, str], settings: Settings) -> str:
    """Why the search ended."""
    above = f"above {settings.super_spike:g}"
    if spiking:
        layers = ", ".join(map(str, spiking))
        return f"{settings.super_rounds} weights are removed, the limit; layers {layers} still spike {above}"
    if refused:
        return f"what still spikes {above} is no single weight's doing: layer {', '.join(refused.values())}"
    return f"no layer reads and writes {above}"


def _look(loaded: LoadedModel, stack: BoundStack, reading: TextReading, batch: Batch) -> _Seen:
    """One forward pass on the prompt."""
    rows: list[tuple[float, int, int, float, int, int]] = [(0.0, 0, 0, 0.0, 0, 0)] * stack.n_layers
    peaks = [(0.0, 0.0, 0.0)] * stack.n_layers

    def use(layer: int, read: "Tensor", written: "Tensor") -> None:
        into, out = (values.reshape(*batch.valid.shape, -1)[batch.valid].float() for values in (read, written))
        (at, column), (position, row) = (
            divmod(int(values.abs().argmax()), values.shape[1]) for values in (into, out)
        )  # [token, …]
        peaks[layer] = (float(into[at, column]), float(out[position, row]), float(into[position, column]))
        rows[layer] = (abs(peaks[layer][0]), column, at, abs(peaks[layer][1]), row, position)

    with last_linears(loaded, stack, use):
        reading(batch)
    read, column, at, written, row, position = zip(*rows, strict=True)
    return _Seen(Spikes(np.array(read), column, at, np.array(written), row, position), tuple(peaks))


def with_trials(
    loaded: LoadedModel, stack: BoundStack, found: SuperWeights, task: Task, options: TrialOptions
) -> SuperWeights:
    """`found` with its trials on `task`; as it is where no weight was found."""
    places: list[Place] = [(one.layer, one.row, one.column) for one in found.weights]
    if not places:
        return found
    feeds = list(task.feeds(range(task.n_texts)))
    recorded = _Recorded(loaded, stack, places)
    intact = values_of(task, feeds, task.weights, lambda number, _: recorded.recording(number))
    trials = [Trial("intact", "intact", 1.0, weighted_mean(intact, task.weights), 0.0, 0.0, 0.0)]
    plan, restored = _plan(loaded, stack, places, options), 0
    for number, (name, kind, factor, chosen) in enumerate(plan):
        back = _Restoring(recorded, chosen, found.spike) if kind == "restored" else None
        around = (lambda number, _, back=back: back.restored(number)) if back else None
        with scaled(loaded, stack, chosen, factor if kind == "scaled" else 0.0):
            values = values_of(task, feeds, task.weights, around)
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
