"""One of every kind of result: `made_in(folder)["Sweep"]`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import attack_results
import attention_results
import detector_results
import downstream_results
import explore_models
import exported_results
import finetune_runs
import frequency_bands_results
import frequency_results
import geometry_results
import integrity_results
import layer_story_results
import mask_results
import observation_results
import origin_models
import plan_results
import predicted_results
import pretrain_runs
import probe_results
import pruning_results
import quantized_results
import range_results
import repair_results
import runs
import similar_results
import synthetic_report
import synthetic_tasks
import trace_results
from outlierlens.detection.observe.result import ActivationOutlier, Observation
from outlierlens.detection.scan.result import Scans
from outlierlens.experiments.compare.measure import compare
from outlierlens.experiments.lookup.measure import lookup
from outlierlens.experiments.track.measure import track
from outlierlens.replicate.luo.result import LuoReplication
from outlierlens.replicate.puccetti.result import PuccettiReplication
from outlierlens.training.pretrain.result import Outcomes


def of_model(result: Any, model: str) -> Any:
    """The result as one of a model of this name; as it is where it names none."""
    made = getattr(result, "provenance", None)
    return result if made is None else replace(result, provenance=replace(made, model=model))


def made_in(folder: Path) -> dict[str, Any]:
    """{kind: a small result of it}; some are read from runs and models that are written to `folder`."""
    data = synthetic_report.report_data()
    made: dict[str, Any] = {
        "Scan": data.scan,
        "Observation": _observation(),
        "Ablation": data.damages[0],
        "ReportData": data,
    }
    made |= {
        "Scans": Scans((data.scan,)),
        "Comparison": compare(data.scan, data.scan),
        "Lookup": lookup("mini-planted"),
    }
    made["Sweep"] = synthetic_report.sweep()
    made["Replication"] = synthetic_tasks.replication()
    made["Track"] = track([runs.write_run(folder / "run", (0, 100))])
    made["Outcome"] = pretrain_runs.outcome("mini", 0, 4.0, 1.0)
    made["Outcomes"] = Outcomes((made["Outcome"],))
    made["FineTuned"] = finetune_runs.tuned()
    made["Exported"] = exported_results.exported()
    made["Repaired"] = repair_results.repaired()
    made["Explored"] = explore_models.explored()
    made["Geometry"] = geometry_results.geometry()
    made["Detectors"] = detector_results.detectors()
    made["Attention"] = attention_results.attention()
    made["Predictions"] = predicted_results.predictions()
    made["Frequency"] = frequency_results.frequency()
    made["FrequencyBands"] = frequency_bands_results.frequency_bands()
    made["Origin"] = origin_models.found(folder / "origin")
    made |= similar_results.made()
    made |= attack_results.made()
    made |= integrity_results.made()
    made |= downstream_results.made() | probe_results.made()
    made |= {"PruneCheck": pruning_results.check(), "PruneTest": pruning_results.costs()}
    made["LayerStory"] = layer_story_results.story()
    made["Quantized"] = quantized_results.quantized()
    made["Ranges"] = range_results.found()
    made["Mask"] = mask_results.found()
    made["Trace"] = trace_results.found()
    made["PrecisionPlan"] = plan_results.found()
    return made | _papers(data.provenance, made)


def _observation() -> Observation:
    two = observation_results.TWO
    found = ActivationOutlier("massive", 1, ("0", "1"), (2000.0, 3000.0))
    return replace(two, stacks=(replace(two.stacks[0], outliers=(found,)), *two.stacks[1:]))


def _papers(provenance: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Replications, made of the others."""
    luo = {
        "words": "WordInContext",
        "sts": "Similarity",
        "geometry": "Geometry",
        "probe": "PositionProbe",
        "origin": "Origin",
    }
    parts: Any = {part: made[kind] for part, kind in luo.items()}
    found = LuoReplication(provenance, "", "by hand", {"0": (5,)}, frozen=(made["FrozenScores"],), **parts)
    named = {"frequency": "Frequency", "attention": "Attention", "story": "LayerStory", "bands": "FrequencyBands"}
    parts = {part: made[kind] for part, kind in (named | {"predictions": "Predictions"}).items()}
    other = PuccettiReplication(provenance, "", (2, 5), "the weights", "counts", **parts)
    return {"LuoReplication": found, "PuccettiReplication": other}
