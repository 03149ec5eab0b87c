"""Find the handful of dimensions a Transformer cannot live without, ablate them, and measure what breaks.

import outlierlens as ol

found = ol.scan("mpnet-base")                        # weights alone: no torch, no model in memory
loaded = ol.load_model("smollm2-135m")
texts = ol.read_texts("excerpt")
seen = ol.observe(loaded, texts)                     # activations, one streaming pass
damage = ol.ablate(loaded, texts, [100, 247, 507])   # ablated, compared with fair controls
swept = ol.sweep(loaded, texts)                      # every dimension in turn, with intervals
with ol.zeroed_weights(loaded, [507]):
    ...

Settings are keywords; their classes are in `outlierlens.options`. `outlierlens.commands` has the functions of the other
commands.
"""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlierlens.ablation.switches import clip, edited_hidden, removed_writes, zeroed_weights
    from outlierlens.data.texts import read_texts
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.load import from_objects
    from outlierlens.results.document import load
    from outlierlens.training.callback import OutlierCallback
    from outlierlens.vectors.states import states

    _called: list[Callable[..., Any]]  # functions that take more than their signatures say: see `commands`
    (
        ablate, attention, compare, embed, fingerprint, frequency, geometry, load_model, mask, observe, origin, plan, probe,
        prune_check, quantize, range_of, repair, report, scan, sweep, trace, track, verify, watch,
    ) = _called  # fmt: skip

__all__ = [
    "OutlierCallback", "OutlierlensError", "ablate", "attention", "clip", "compare", "edited_hidden", "embed",
    "fingerprint", "frequency", "from_objects", "geometry", "load", "load_model", "mask", "observe", "origin", "plan", "probe",
    "prune_check", "quantize", "range_of", "read_texts", "removed_writes", "repair", "report", "scan", "states", "sweep",
    "trace", "track", "verify", "watch", "zeroed_weights",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Resolved on first use: `import outlierlens` and `scan` must not pay for torch."""
    if name == "report":
        return import_module("outlierlens.report")  # which is called as its function
    if name in __all__:
        found = globals()[name] = getattr(
            import_module("outlierlens.commands"), name
        )  # once: it stays the same function
        return found
    remedy = ""
    for place in ("commands", "options") * (not name.startswith("_")):
        if hasattr(import_module(f"outlierlens.{place}"), name):
            remedy = f"; from outlierlens.{place} import {name}"
    raise AttributeError(f"module 'outlierlens' has no attribute {name!r}{remedy}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
