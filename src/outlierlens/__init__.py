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

__version__ = "0.1.0"

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlierlens.ablation.switches import clip, edited_hidden, removed_writes, zeroed_weights
    from outlierlens.checkpoints.samples import fetch
    from outlierlens.data.texts import read_texts
    from outlierlens.detection.observe.measure import observe
    from outlierlens.detection.observe.options import ObserveOptions
    from outlierlens.detection.rules import Rule
    from outlierlens.detection.scan.measure import ScanOptions, scan
    from outlierlens.errors import OutlierlensError
    from outlierlens.experiments.attack.measure import attack
    from outlierlens.experiments.attack.updates import update_check
    from outlierlens.experiments.attention.measure import attention
    from outlierlens.experiments.beyond_zero.measure import beyond_zero
    from outlierlens.experiments.compare.measure import compare
    from outlierlens.experiments.count.measure import count_tokens
    from outlierlens.experiments.detectors.measure import detectors
    from outlierlens.experiments.disable.measure import disable
    from outlierlens.experiments.disable.options import DisableOptions
    from outlierlens.experiments.embedder.measure import export_embedder
    from outlierlens.experiments.frequency.measure import frequency
    from outlierlens.experiments.frequency_geometry.measure import frequency_geometry
    from outlierlens.experiments.frozen.measure import frozen
    from outlierlens.experiments.geometry.measure import geometry
    from outlierlens.experiments.integrity.fingerprint import fingerprint
    from outlierlens.experiments.integrity.verify import verify
    from outlierlens.experiments.layer_story.result import layer_story
    from outlierlens.experiments.lookup.measure import lookup
    from outlierlens.experiments.mask.apply import activation_mask
    from outlierlens.experiments.mask.measure import mask
    from outlierlens.experiments.mask.options import MaskOptions
    from outlierlens.experiments.one_dimension.measure import one_dimension
    from outlierlens.experiments.origin.measure import origin
    from outlierlens.experiments.plan.measure import plan
    from outlierlens.experiments.plan.options import PlanOptions
    from outlierlens.experiments.predictions.measure import predictions
    from outlierlens.experiments.probe.measure import probe_positions
    from outlierlens.experiments.pruning.check import prune_check
    from outlierlens.experiments.pruning.experiment import prune_experiment
    from outlierlens.experiments.pruning.protect import protect
    from outlierlens.experiments.pruning.torch_guard import same_position_guard
    from outlierlens.experiments.quantization.measure import quantize
    from outlierlens.experiments.quantization.options import QuantizeOptions
    from outlierlens.experiments.range.measure import range_of
    from outlierlens.experiments.range.options import RangeOptions
    from outlierlens.experiments.recover.measure import recover
    from outlierlens.experiments.repair.measure import repair
    from outlierlens.experiments.similarity.sts import sts
    from outlierlens.experiments.similarity.wic import wic
    from outlierlens.experiments.survival.measure import survival
    from outlierlens.experiments.sweep.measure import sweep
    from outlierlens.experiments.sweep.options import SweepOptions
    from outlierlens.experiments.trace.measure import trace
    from outlierlens.experiments.trace.options import TraceOptions
    from outlierlens.experiments.track.measure import TrackOptions, track
    from outlierlens.models.load import from_objects, load_model
    from outlierlens.replicate.luo.measure import replicate_luo
    from outlierlens.replicate.puccetti.measure import replicate_puccetti
    from outlierlens.results.document import load, save
    from outlierlens.training.callback import OutlierCallback
    from outlierlens.training.finetune.loop import finetune
    from outlierlens.training.pretrain.loop import pretrain
    from outlierlens.training.watch import WatchOptions, watch

# Resolved on first use: `import outlierlens` and `scan` must not pay for torch. Functions of experiments stand in their rows.
_HOME = {
    "OutlierlensError": "errors",
    "Rule": "detection.rules",
    "ScanOptions": "detection.scan.measure",
    "fetch": "checkpoints.samples",
    "load_model": "models.load",
    "from_objects": "models.load",
    "read_texts": "data.texts",
    "ObserveOptions": "detection.observe.options",
    "zeroed_weights": "ablation.switches",
    "edited_hidden": "ablation.switches",
    "removed_writes": "ablation.switches",
    "clip": "ablation.switches",
    "DisableOptions": "experiments.disable.options",
    "SweepOptions": "experiments.sweep.options",
    "watch": "training.watch",
    "WatchOptions": "training.watch",
    "OutlierCallback": "training.callback",
    "TrackOptions": "experiments.track.measure",
    "QuantizeOptions": "experiments.quantization.options",
    "PlanOptions": "experiments.plan.options",
    "RangeOptions": "experiments.range.options",
    "MaskOptions": "experiments.mask.options",
    "TraceOptions": "experiments.trace.options",
    "activation_mask": "experiments.mask.apply",
    "same_position_guard": "experiments.pruning.torch_guard",
    "load": "results.document",
    "save": "results.document",
}


_SWITCHES = ("zeroed_weights", "edited_hidden", "removed_writes")


@cache
def _homes() -> dict[str, str]:
    """{public name: module below this package}; the table of experiments is read when a name is asked for."""
    from outlierlens.experiments import EXPERIMENTS

    functions = {row.python.rpartition(":")[2]: row.place(row.python, "measure") for row in EXPERIMENTS if row.python}
    return _HOME | functions


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name == "charts":
        return importlib.import_module("outlierlens.view.charts")
    home = _HOME.get(name) or _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'outlierlens' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"outlierlens.{home}"), name)
    if name in _SWITCHES or name not in _HOME:
        from outlierlens.experiments.given import accepting

        found = globals()[name] = accepting(found)  # once: it stays the same function
    return found


def __dir__() -> list[str]:
    return sorted({"__version__", *_homes()})
