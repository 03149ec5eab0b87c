"""Find the handful of dimensions a Transformer cannot live without, switch them off, and measure what breaks.

import outlierlens as ol

found = ol.scan("mpnet-base")                        # weights alone: no torch, no model in memory
loaded = ol.load_model("smollm2-135m")
texts = ol.read_texts("excerpt")
seen = ol.observe(loaded, texts)                     # activations, one streaming pass
damage = ol.disable(loaded, texts, [100, 247, 507])  # switched off, beside fair controls
swept = ol.sweep(loaded, texts)                      # every dimension in turn, with intervals
with ol.zeroed_weights(loaded, [507]):
    ...
"""

import importlib
from typing import TYPE_CHECKING, Any

from outlierlens._version import __version__
from outlierlens.errors import OutlierlensError
from outlierlens.experiments import EXPERIMENTS

if TYPE_CHECKING:
    from outlierlens.ablate import clip, edited_hidden, removed_writes, zeroed_weights
    from outlierlens.activations import observe
    from outlierlens.attacks.run import attack
    from outlierlens.attacks.updates import update_check
    from outlierlens.bench import disable
    from outlierlens.beyond import beyond_zero
    from outlierlens.callback import OutlierCallback
    from outlierlens.comparison import compare
    from outlierlens.data import read_texts
    from outlierlens.definitions.run import detectors
    from outlierlens.detect import Rule
    from outlierlens.experiments.disable.options import DisableOptions
    from outlierlens.experiments.observe.options import ObserveOptions
    from outlierlens.integrity.fingerprint import fingerprint
    from outlierlens.integrity.verify import verify
    from outlierlens.models import from_objects, load_model
    from outlierlens.pruning.check import prune_check
    from outlierlens.pruning.torch_guard import same_position_guard
    from outlierlens.quantization.options import QuantizeOptions
    from outlierlens.quantization.run import quantize
    from outlierlens.results import load, save
    from outlierlens.samples import fetch
    from outlierlens.sweeps.loop import sweep
    from outlierlens.sweeps.options import SweepOptions
    from outlierlens.tracking import TrackOptions, track
    from outlierlens.watcher import WatchOptions, watch
    from outlierlens.weights import ScanOptions, scan

# Resolved on first use: `import outlierlens` and `scan` must not pay for torch. Functions of experiments stand in their rows.
_HOME = {
    "Rule": "detect",
    "ScanOptions": "weights",
    "fetch": "samples",
    "load_model": "models",
    "from_objects": "models",
    "read_texts": "data",
    "ObserveOptions": "experiments.observe.options",
    "zeroed_weights": "ablate",
    "edited_hidden": "ablate",
    "removed_writes": "ablate",
    "clip": "ablate",
    "DisableOptions": "experiments.disable.options",
    "SweepOptions": "sweeps.options",
    "watch": "watcher",
    "WatchOptions": "watcher",
    "OutlierCallback": "callback",
    "TrackOptions": "tracking",
    "QuantizeOptions": "quantization.options",
    "same_position_guard": "pruning.torch_guard",
    "load": "results",
    "save": "results",
}

_HOME |= {row.python.rpartition(":")[2]: row.place(row.python, "measure") for row in EXPERIMENTS if row.python}

__all__ = [
    "DisableOptions",
    "ObserveOptions",
    "OutlierCallback",
    "OutlierlensError",
    "QuantizeOptions",
    "Rule",
    "ScanOptions",
    "SweepOptions",
    "TrackOptions",
    "WatchOptions",
    "__version__",
    "attack",
    "beyond_zero",
    "clip",
    "compare",
    "detectors",
    "disable",
    "edited_hidden",
    "fetch",
    "fingerprint",
    "from_objects",
    "load",
    "load_model",
    "observe",
    "prune_check",
    "quantize",
    "read_texts",
    "removed_writes",
    "same_position_guard",
    "save",
    "scan",
    "sweep",
    "track",
    "update_check",
    "verify",
    "watch",
    "zeroed_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'outlierlens' has no attribute {name!r}")
    return getattr(importlib.import_module(f"outlierlens.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME})
