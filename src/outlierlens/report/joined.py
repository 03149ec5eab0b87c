"""Results of other commands that join a report, each with sections of its own: `Joined`, `joined_sections(joined)`.

    joined = with_result(Joined(), load("beyond.json"))
    joined_sections(joined), joined_notes(joined)

A kind of result joins by a field of `Joined` and a line of `_sections`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from outlierlens.attacked import Attack
from outlierlens.attended import Attention
from outlierlens.comparison import Comparison
from outlierlens.defined import Detectors
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_RESULT
from outlierlens.finetuned import FineTuned
from outlierlens.frequency_bands import FrequencyBands
from outlierlens.frequent import Frequency
from outlierlens.frozen_scores import FrozenScores
from outlierlens.geometrical import Geometry
from outlierlens.layer_story import LayerStory
from outlierlens.one_dimension import OneDimension
from outlierlens.origins import Origin
from outlierlens.predicted import Predictions
from outlierlens.pretrained import Outcome, Outcomes
from outlierlens.probed import PositionProbe
from outlierlens.pruned import PruneCheck, PruneExperiment
from outlierlens.quantized import Quantized
from outlierlens.recovered import Recovery
from outlierlens.replicated import Replication
from outlierlens.report.attack import attack_sections
from outlierlens.report.beyond_zero import beyond_zero_sections
from outlierlens.report.detectors import detectors_sections
from outlierlens.report.downstream import (
    comparison_section,
    finetuned_section,
    frozen_section,
    one_dimension_section,
    outcome_section,
    outcomes_section,
    recovery_section,
    replication_section,
    similarity_section,
    survival_section,
    words_section,
)
from outlierlens.report.integrity import integrity_sections
from outlierlens.report.luo import geometry_section, origin_section, probe_section
from outlierlens.report.pruning import pruning_sections
from outlierlens.report.puccetti import (
    attention_section,
    bands_section,
    frequency_section,
    predictions_section,
    story_section,
)
from outlierlens.results import to_json
from outlierlens.similar import Similarity, WordInContext
from outlierlens.survived import Survival
from outlierlens.treated import BeyondZero
from outlierlens.updated import UpdateCheck
from outlierlens.verified import Verification
from outlierlens.view.section import Section, numbered


@dataclass(frozen=True)
class Joined:
    """Results of other commands, by kind, in the order in which they were given."""

    beyond_zero: tuple[BeyondZero, ...] = ()
    detectors: tuple[Detectors, ...] = ()
    prune_checks: tuple[PruneCheck, ...] = ()
    prune_experiments: tuple[PruneExperiment, ...] = ()
    quantized: tuple[Quantized, ...] = ()
    verifications: tuple[Verification, ...] = ()
    attacks: tuple[Attack, ...] = ()
    update_checks: tuple[UpdateCheck, ...] = ()
    origins: tuple[Origin, ...] = ()
    probes: tuple[PositionProbe, ...] = ()
    geometries: tuple[Geometry, ...] = ()
    frequencies: tuple[Frequency, ...] = ()
    frequency_bands: tuple[FrequencyBands, ...] = ()
    attentions: tuple[Attention, ...] = ()
    layer_stories: tuple[LayerStory, ...] = ()
    predictions: tuple[Predictions, ...] = ()
    similarities: tuple[Similarity, ...] = ()
    words: tuple[WordInContext, ...] = ()
    frozen: tuple[FrozenScores, ...] = ()
    one_dimensions: tuple[OneDimension, ...] = ()
    survivals: tuple[Survival, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    finetuned: tuple[FineTuned, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    outcome: tuple[Outcome, ...] = ()
    outcomes: tuple[Outcomes, ...] = ()
    replications: tuple[Replication, ...] = ()


# A section for each result of these fields: how it is made from the result and its name.
ONE_BY_ONE: dict[str, Callable[[Any, str], Section]] = {
    "origins": lambda found, name: origin_section(found, name, f"{name}-"),
    "probes": probe_section,
    "geometries": geometry_section,
    "frequencies": frequency_section,
    "frequency_bands": bands_section,
    "attentions": attention_section,
    "layer_stories": story_section,
    "predictions": predictions_section,
    "similarities": similarity_section,
    "words": words_section,
    "frozen": frozen_section,
    "one_dimensions": one_dimension_section,
    "survivals": survival_section,
    "recoveries": recovery_section,
    "finetuned": finetuned_section,
    "comparisons": comparison_section,
    "outcome": outcome_section,
    "outcomes": outcomes_section,
    "replications": replication_section,
}
# Results that are no part of a report of one model, and where they belong.
ELSEWHERE = {
    "Scan": "the report scans the model itself; report --compare shows the scans of two",
    "Scans": "a report is of one model; report --compare shows two",
    "Observation": "the report observes the model itself",
    "ReportData": "give it in place of the model, or two of them to report --compare",
    "Fingerprint": "a record, not a finding; give what verify says of it",
    "Exported": "it says what was written, and lies beside that model",
    "Explored": "the state of a live page; give the result of disable",
}


def kinds() -> dict[type, str]:
    """{class of a result that can join: the field it joins}."""
    hints = get_type_hints(Joined)
    return {get_args(hints[field.name])[0]: field.name for field in fields(Joined)}


def with_result(joined: Joined, result: Any, where: str = "result") -> Joined:
    """`joined` and `result`, once; raises BadInput for a kind that has no place in a report."""
    field = kinds().get(type(result))
    if field is None:
        kind = type(result).__name__
        raise BadInput(
            f"{where} holds {kind}, which does not join a report: {ELSEWHERE.get(kind, 'it has no section')}"
        )
    there = getattr(joined, field)
    if to_json(result) in map(to_json, there):  # arrays do not compare as a whole
        return joined
    return replace(joined, **{field: (*there, result)})


def joined_sections(joined: Joined) -> tuple[Section, ...]:
    """The sections of all of them."""
    return tuple(_sections(joined))


def joined_notes(joined: Joined) -> tuple[str, ...]:
    """Remarks of all of them, each once."""
    notes: list[str] = []
    for field in fields(joined):
        for found in getattr(joined, field.name):
            notes += getattr(found, "notes", ())
            parts = (*getattr(found, "stacks", ()), *getattr(found, "tuned", ()), *getattr(found, "tables", ()))
            notes += (note for part in parts for note in getattr(part, "notes", ()))
    return tuple(dict.fromkeys(notes))


def _sections(joined: Joined) -> Iterator[Section]:
    yield from beyond_zero_sections(joined.beyond_zero)
    yield from detectors_sections(joined.detectors)
    yield from pruning_sections(joined.prune_checks, joined.prune_experiments)
    yield from integrity_sections(joined.verifications)
    yield from attack_sections(joined.attacks, joined.update_checks)
    for kind, field in kinds().items():
        row = BY_RESULT.get(kind.__name__)
        for number, found in enumerate(getattr(joined, field)):
            if row is not None:
                yield from (numbered(section, number) for section in row.sections()(found))
            elif field in ONE_BY_ONE:
                yield ONE_BY_ONE[field](found, field.replace("_", "-") + (f"-{number + 1}" if number else ""))
