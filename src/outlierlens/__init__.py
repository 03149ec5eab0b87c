"""Find the handful of dimensions a Transformer cannot live without, switch them off, and measure what breaks.

import outlierlens as ol

found = ol.scan("mpnet-base")                        # weights alone: no torch, no model in memory
loaded = ol.load_model("smollm2-135m")
texts = ol.read_texts("excerpt")
seen = ol.observe(loaded, texts)                     # activations, one streaming pass
damage = ol.ablate(loaded, texts, [100, 247, 507])  # switched off, beside fair controls
swept = ol.sweep(loaded, texts)                      # every dimension in turn, with intervals
with ol.zeroed_weights(loaded, [507]):
    ...
"""

__version__ = "0.1.0"

import importlib
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlierlens.ablation.switches import clip, edited_hidden, removed_writes, zeroed_weights
    from outlierlens.analyses.ablate import AblateOptions
    from outlierlens.analyses.definitions import DefinitionOptions, definitions
    from outlierlens.analyses.embed import EmbedOptions
    from outlierlens.analyses.embed_export import ExportOptions
    from outlierlens.analyses.mask import MaskOptions, activation_mask
    from outlierlens.analyses.plan import PlanOptions
    from outlierlens.analyses.prune_guard import same_position_guard
    from outlierlens.analyses.quantize import QuantizeOptions
    from outlierlens.analyses.range import RangeOptions
    from outlierlens.analyses.sweep.options import SweepOptions
    from outlierlens.analyses.trace import TraceOptions
    from outlierlens.analyses.track import TrackOptions
    from outlierlens.checkpoints.samples import fetch
    from outlierlens.data.texts import read_texts
    from outlierlens.detection.activations import ObserveOptions
    from outlierlens.detection.rules import Rule
    from outlierlens.detection.weights import ScanOptions
    from outlierlens.errors import OutlierlensError
    from outlierlens.models.load import from_objects
    from outlierlens.results.document import load, save
    from outlierlens.training.callback import OutlierCallback
    from outlierlens.training.watch import WatchOptions

    _called: list[Callable[..., Any]]  # functions that take more than their signatures say: see `given`
    (
        ablate, attack, attention, compare, count_tokens, embed, export_embedder, finetune, fingerprint,
        frequency, frequency_bands, frozen, geometry, load_model, lookup, mask, observe, one_dimension,
        origin, plan, predictions, pretrain, probe_positions, protect, prune_check, prune_test, quantize, range_of,
        recover, repair, replicate_luo, replicate_puccetti, report, scan, sweep, trace, track, update_check,
        verify, watch,
    ) = _called  # fmt: skip

# Resolved on first use: `import outlierlens` and `scan` must not pay for torch. Functions of experiments stand in their rows.
_HOME = {
    "OutlierlensError": "errors",
    "Rule": "detection.rules",
    "ScanOptions": "detection.weights",
    "fetch": "checkpoints.samples",
    "load_model": "models.load",
    "from_objects": "models.load",
    "read_texts": "data.texts",
    "ObserveOptions": "detection.activations",
    "zeroed_weights": "ablation.switches",
    "edited_hidden": "ablation.switches",
    "removed_writes": "ablation.switches",
    "clip": "ablation.switches",
    "AblateOptions": "analyses.ablate",
    "definitions": "analyses.definitions",
    "DefinitionOptions": "analyses.definitions",
    "recover": "analyses.recover",
    "predictions": "analyses.predictions",
    "frequency_bands": "analyses.geometry",
    "count_tokens": "analyses.frequency_counts",
    "update_check": "analyses.compare_updates",
    "one_dimension": "analyses.probe_one_dimension",
    "frozen": "analyses.probe_frozen",
    "EmbedOptions": "analyses.embed",
    "ExportOptions": "analyses.embed_export",
    "export_embedder": "analyses.embed_export",
    "SweepOptions": "analyses.sweep.options",
    "watch": "training.watch",
    "WatchOptions": "training.watch",
    "OutlierCallback": "training.callback",
    "TrackOptions": "analyses.track",
    "QuantizeOptions": "analyses.quantize",
    "PlanOptions": "analyses.plan",
    "RangeOptions": "analyses.range",
    "MaskOptions": "analyses.mask",
    "TraceOptions": "analyses.trace",
    "activation_mask": "analyses.mask",
    "same_position_guard": "analyses.prune_guard",
    "load": "results.document",
    "save": "results.document",
    "report": "report.job",
}


@cache
def _homes() -> dict[str, str]:
    """{public name: module below this package}; the table of experiments is read when a name is asked for."""
    from outlierlens.experiments import EXPERIMENTS

    functions = {row.python.rpartition(":")[2]: row.place(row.python, "measure") for row in EXPERIMENTS if row.python}
    return _HOME | functions


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in ("charts", "report"):
        return importlib.import_module("outlierlens.view.charts" if name == "charts" else "outlierlens.report")
    home = _HOME.get(name) or _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'outlierlens' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"outlierlens.{home}"), name)
    if isinstance(found, FunctionType):
        from outlierlens.given import accepting

        found = globals()[name] = accepting(found)  # once: it stays the same function
    return found


def __dir__() -> list[str]:
    return sorted({"__version__", *_homes()})
