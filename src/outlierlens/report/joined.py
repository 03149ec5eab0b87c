"""Results of other commands that join a report, each with sections of its own: `Joined`, `joined_sections(joined)`.

    joined = with_result(Joined(), load("beyond.json"))
    joined_sections(joined), joined_notes(joined)

A kind of result joins by a field of `Joined` and a line of `_sections`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from outlierlens.attacked import Attack
from outlierlens.defined import Detectors
from outlierlens.errors import BadInput
from outlierlens.pruned import PruneCheck, PruneExperiment
from outlierlens.quantized import Quantized
from outlierlens.report.attack import attack_sections
from outlierlens.report.beyond_zero import beyond_zero_sections
from outlierlens.report.detectors import detectors_sections
from outlierlens.report.integrity import integrity_notes, integrity_sections
from outlierlens.report.pruning import pruning_notes, pruning_sections
from outlierlens.report.quantization import quantization_notes, quantization_sections
from outlierlens.report.sections import Section
from outlierlens.results import to_json
from outlierlens.treated import BeyondZero
from outlierlens.updated import UpdateCheck
from outlierlens.verified import Verification


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


def kinds() -> dict[type, str]:
    """{class of a result that can join: the field it joins}."""
    hints = get_type_hints(Joined)
    return {get_args(hints[field.name])[0]: field.name for field in fields(Joined)}


def with_result(joined: Joined, result: Any, where: str = "result") -> Joined:
    """`joined` and `result`, once; raises BadInput for a kind that has no place in a report."""
    field = kinds().get(type(result))
    if field is None:
        known = ", ".join(kind.__name__ for kind in kinds())
        raise BadInput(
            f"{where} holds {type(result).__name__}, which has no section in a report; those with one: {known}"
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
    notes = [note for found in joined.beyond_zero for note in found.notes]
    notes += [note for found in joined.detectors for note in found.notes]
    notes += pruning_notes(joined.prune_checks, joined.prune_experiments)
    notes += quantization_notes(joined.quantized)
    notes += integrity_notes(joined.verifications)
    notes += [note for found in joined.attacks for note in found.notes]
    notes += [note for found in joined.update_checks for note in found.notes]
    return tuple(dict.fromkeys(notes))


def _sections(joined: Joined) -> Iterator[Section]:
    yield from beyond_zero_sections(joined.beyond_zero)
    yield from detectors_sections(joined.detectors)
    yield from pruning_sections(joined.prune_checks, joined.prune_experiments)
    yield from quantization_sections(joined.quantized)
    yield from integrity_sections(joined.verifications)
    yield from attack_sections(joined.attacks, joined.update_checks)
