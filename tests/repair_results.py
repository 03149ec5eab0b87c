"""A repaired model's result, by hand."""

from typing import Any

from outlierlens.analyses.repair import FitCheck, Repair, SizeChange
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About


def repaired() -> Repair:
    """A stream of two blocks divided by 16."""
    before = FitCheck(model="before", largest=190000.0, spikes=900.0, finite=0.0, distance=float("nan"), named=(7,))
    after = FitCheck(model="after", largest=11875.0, spikes=450.0, finite=1.0, distance=0.0125, named=())
    changed: dict[str, Any] = {
        "exponent": -4,
        "channels": {"neurons": 2},
        "epsilons": {"rms_norm_eps": (1e-5, 1e-5 / 256)},
    }
    return Repair(
        provenance=Provenance("mini", "0" * 64), about=About(data="d.txt", n_texts=16, n_tokens=900, max_length=128),
        models=(before, after), kinds=(SizeChange(tensor="stream", before=190000.0, after=11875.0),), folder="fits",
        fit="fp16", margin=4, rotated=False, untied=True, n_changed=9, n_parameters=21, n_random=64, exact=False,
        reasons=("norms multiply by 1 + weight",), difference=1e-6, notes=("a note",), **changed,
    )  # fmt: skip
