"""One of every kind of result: `made_in(folder)["Sweep"]`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import attack_results
import attention_results
import definition_results
import downstream_results
import embed_results
import explore_models
import finetune_runs
import fingerprint_results
import frequency_results
import geometry_results
import layer_story_results
import mask_results
import memory_checkpoint
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
import synthetic_report
import synthetic_tasks
import trace_results
from outlierlens.analyses.atlas_lookup import lookup
from outlierlens.analyses.compare import compare
from outlierlens.analyses.compare_copy import copy_error
from outlierlens.analyses.observe import Observation, observed_rows
from outlierlens.analyses.track import track
from outlierlens.detection.rules import ActivationOutlier
from outlierlens.replicate.luo import LuoReplication, effects_of
from outlierlens.replicate.puccetti import PuccettiReplication
from outlierlens.replicate.runner import MeasuredPart
from outlierlens.results.finding import About


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
        "Comparison": compare(data.scan, data.scan),
        "QuantizedCopy": copy_error(
            weights := memory_checkpoint.of_model("llama", "CausalLM"), weights.rounded("BF16"), (5,)
        ),
        "Lookup": lookup("mini-planted"),
    }
    made["Sweep"] = synthetic_report.sweep()
    made["Replication"] = synthetic_tasks.replication()
    made["Track"] = track([runs.write_run(folder / "run", (0, 100))])
    made["Outcomes"] = pretrain_runs.outcome("mini", 0, 4.0, 1.0)
    made["FineTunedModel"] = finetune_runs.tuned()
    made["Repair"] = repair_results.repaired()
    made["Exploration"] = explore_models.explored()
    made["Geometry"] = geometry_results.geometry()
    made["Definitions"] = definition_results.definitions()
    made["Attention"] = attention_results.attention()
    made["Predictions"] = predicted_results.predictions()
    made["Frequency"] = frequency_results.frequency()
    made["FrequencyBands"] = geometry_results.frequency_bands()
    made["Origin"] = origin_models.found(folder / "origin")
    made |= embed_results.made()
    made |= attack_results.made()
    made |= fingerprint_results.made()
    made |= {"Recovery": downstream_results.recovery()} | probe_results.made()
    made |= {"PruneCheck": pruning_results.check(), "PruneTest": pruning_results.costs()}
    made["LayerStory"] = layer_story_results.story()
    made["Quantization"] = quantized_results.quantized()
    made["Ranges"] = range_results.found()
    made["Mask"] = mask_results.found()
    made["Trace"] = trace_results.found()
    made["PrecisionPlan"] = plan_results.found()
    return made | _papers(data.provenance, made)


def _observation() -> Observation:
    two = observation_results.TWO
    found = ActivationOutlier("massive", 1, ("0", "1"), (2000.0, 3000.0))
    stacks = (replace(two.stacks[0], outliers=(found,)), *two.stacks[1:])
    return replace(two, stacks=stacks, **observed_rows(stacks))


def _papers(provenance: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Replications, made of the others."""
    luo = {
        "origin": "Origin",
        "probe": "PositionProbe",
        "geometry": "Geometry",
        "sts": "Similarity",
        "frozen-sst2": "FrozenScores",
    }
    parts: Any = {name: made[kind] for name, kind in luo.items()} | {"words": embed_results.words()}
    clipped = {"0": (5,)}
    found = LuoReplication(
        **_whole(provenance, parts), clipped=clipped, clipping="by hand", effects=tuple(effects_of(parts, clipped))
    )
    puccetti = {"frequency": "Frequency", "attention": "Attention", "layers": "LayerStory", "bands": "FrequencyBands"}
    parts = {name: made[kind] for name, kind in (puccetti | {"predictions": "Predictions"}).items()}
    other = PuccettiReplication(**_whole(provenance, parts), counts="counts")
    return {"LuoReplication": found, "PuccettiReplication": other}


def _whole(provenance: Any, parts: dict[str, Any]) -> dict[str, Any]:
    measured = tuple(MeasuredPart(part=name, title=name) for name in parts)
    return {
        "provenance": provenance,
        "about": About(dims=("2", "5")),
        "measured": measured,
        "parts": tuple(parts.values()),
    }
