"""Results of other commands that join a report, each with sections of its own: `Joined`, `joined_sections(joined)`.

joined = with_result(Joined(), load("beyond.json"))
joined_sections(joined), joined_notes(joined)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from outlierlens.errors import BadInput
from outlierlens.experiments import BY_RESULT
from outlierlens.results.document import Result, to_json
from outlierlens.view.section import Section, numbered

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
T = TypeVar("T")


@dataclass(frozen=True)
class Joined:
    """Results of other commands, in the order in which they were given."""

    results: tuple[Result, ...] = ()

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """Those of one kind."""
        return tuple(one for one in self.results if isinstance(one, kind))


def with_result(joined: Joined, result: Any, where: str = "result") -> Joined:
    """`joined` and `result`, once; raises BadInput for a kind that has no place in a report."""
    kind = type(result).__name__
    if kind not in BY_RESULT or kind in ELSEWHERE:
        raise BadInput(
            f"{where} holds {kind}, which does not join a report: {ELSEWHERE.get(kind, 'it has no section')}"
        )
    if to_json(result) in map(to_json, joined.results):  # arrays do not compare as a whole
        return joined
    return replace(joined, results=(*joined.results, result))


def joined_sections(joined: Joined) -> tuple[Section, ...]:
    """The sections of all of them, in the order of the table of experiments."""
    return tuple(_sections(joined))


def _sections(joined: Joined) -> Iterator[Section]:
    for kind, row in BY_RESULT.items():
        of_kind = [one for one in joined.results if type(one).__name__ == kind]
        for number, found in enumerate(of_kind):
            yield from (numbered(section, number) for section in row.sections()(found))


def joined_notes(joined: Joined) -> tuple[str, ...]:
    """Remarks of all of them, each once."""
    notes: list[str] = []
    for found in joined.results:
        notes += getattr(found, "notes", ())
        parts = (*getattr(found, "stacks", ()), *getattr(found, "tuned", ()), *getattr(found, "tables", ()))
        notes += (note for part in parts for note in getattr(part, "notes", ()))
    return tuple(dict.fromkeys(notes))
