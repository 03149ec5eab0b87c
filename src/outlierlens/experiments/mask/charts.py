"""γ of every block, with sinks and without: `masks`.

charts.masks(found)
"""

import math

from outlierlens.detection.observe.charts import GAMMA
from outlierlens.experiments.mask.result import Mask
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, chart, field, round_to
from outlierlens.view.charts.forms import lines

WITH, WITHOUT = "all tokens", "without sinks"


def masks(found: Mask, *, name: str = "masks") -> Chart:
    """‖mean‖ / ‖standard deviation‖ of hidden states by block, of all tokens and of those that are no sinks."""
    rows: list[Spec] = []
    for one in found.layers:
        for which, gamma in ((WITH, one.gamma), (WITHOUT, one.gamma_kept)):
            if math.isfinite(gamma):
                rows.append({"layer": one.layer, "which": which, "gamma": round_to(gamma), "sinks": one.n_sinks})
    what = draw.columns(layer="block:N", which="tokens:N", gamma="γ", sinks="sink tokens")
    x = draw.layer_axis([one.layer for one in found.layers])
    y = field("gamma", title=GAMMA)
    top = max(found.layers, key=lambda one: one.gamma_kept)
    return chart(
        name=name,
        title=f"{found.provenance.model}: how far hidden states lie from 0, for their spread",
        reading=(
            f"γ of each block's output, of all tokens and without sinks. Without sinks it is largest after block {top.layer}: "
            f"{round_to(top.gamma_kept)}."
        ),
        layers=lines(rows, x, y, draw.both("which", [WITH, WITHOUT]), list(what), size=40),
        height=260,
        **what.table(rows),
    )
