"""What a reduced precision does to a sweep's effects, measured against the same model in float32."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.experiments.sweep.result import Precision
from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.schedule import State
from outlierlens.models.changes import temporary
from outlierlens.models.devices import out_of_memory
from outlierlens.tasks.metrics import CORRELATIONS

if TYPE_CHECKING:
    from torch import nn

N_SETS, N_TEXTS = 8, 8
OF_METRIC = 4, 100  # likewise for a metric: a prediction is the same or another one, which few texts do not show


def compared_with_float32(runner: Runner, state: State) -> Precision | None:
    """The largest difference over the strongest and some evenly spread effects; None for a model in float32 already."""
    if runner.loaded.dtype == "float32":
        return None
    n_sets, n_texts = (N_SETS, N_TEXTS) if runner.functional is None else OF_METRIC
    ranked = sorted(range(len(state.units)), key=lambda number: -state.change(number))
    spread = np.linspace(n_sets // 2, len(ranked) - 1, n_sets - n_sets // 2).astype(int).clip(max=len(ranked) - 1)
    chosen = list(dict.fromkeys([*ranked[: n_sets // 2], *(ranked[place] for place in spread)]))
    span = (0, min(n_texts, runner.n_texts))
    plans = [{}, *(state.units[number].plan for number in chosen)]
    reduced = runner.values(plans, span)
    runner.forget()
    try:
        with _as_float32(runner.loaded.model):
            full = runner.values(plans, span)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        runner.notes.append("the deviation from float32 was not measured: the model in float32 does not fit in memory")
        return None
    finally:
        runner.forget()
    name = runner.loaded.dtype
    weights = runner.weights[span[0] : span[1]]
    if runner.functional is not None:
        values = runner.functional.statistic.metric in CORRELATIONS
        moved = float(np.abs(reduced - full).max() if values else np.mean(reduced != full))
        return Precision(name, moved, len(chosen), span[1], "values" if values else "classes")
    changes = [np.average(values[1:] - values[0], axis=1, weights=weights) for values in (reduced, full)]
    return Precision(
        dtype=name,
        deviation=float(np.max(np.abs(changes[0] - changes[1]))),
        n_sets=len(chosen),
        n_texts=span[1],
    )


@temporary
def _as_float32(model: "nn.Module") -> Iterator[None]:
    """The model's floating-point values as float32 inside; going back is exact, for they came from there."""
    before = {name: value.dtype for name, value in [*model.named_parameters(), *model.named_buffers()]}
    try:
        model.float()
        yield
    finally:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = value.data.to(before[name])
