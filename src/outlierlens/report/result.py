"""What a report is made of, which is also what `results.json` holds: `ReportData`.

Results of other commands join it, each with sections of its own:

joined = with_result(Joined(), load("beyond.json"))
joined_sections(joined), joined_notes(joined)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outlierlens.analyses.ablate import Ablation
from outlierlens.detection.observe.result import Observation, StackObservation
from outlierlens.detection.scan.charts import found_first
from outlierlens.detection.scan.result import Scan, StackScan
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_RESULT
from outlierlens.experiments.sweep.result import Sweep, names
from outlierlens.experiments.track.result import Track
from outlierlens.replicate.luo.result import LuoReplication
from outlierlens.replicate.puccetti.result import PuccettiReplication
from outlierlens.results.document import Provenance, Result, to_json
from outlierlens.view.section import Section, notes_of, numbered

NAMED_BY_RULE = 3
# Results that are no part of a report of one model, and where they belong.
ELSEWHERE = {
    "Scan": "the report scans the model itself; report --compare shows the scans of two",
    "Scans": "a report is of one model; report --compare shows two",
    "Observation": "the report observes the model itself",
    "ReportData": "give it in place of the model, or two of them to report --compare",
    "Fingerprint": "a record, not a finding; give what verify says of it",
    "Exported": "it says what was written, and lies beside that model",
    "Explored": "the state of a live page; give the result of ablate",
}
# Results of several models or runs, which name them: no single one is that of a report.
OF_SEVERAL = frozenset({"Comparison", "Survival", "Outcome", "Outcomes", "Track"})
T = TypeVar("T")


@dataclass(frozen=True)
class Joined:
    """Results of other commands, in the order in which they were given."""

    results: tuple[Result, ...] = ()

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """Those of one kind."""
        return tuple(one for one in self.results if isinstance(one, kind))


@dataclass(frozen=True)
class ReportData(Result):
    """All results of one run of the main job.

    Attributes:
        provenance: of the whole run; its command makes the report again.
        scan: outliers from weights.
        observation: activation statistics; None where the model was not run.
        damages: what switching off did; the first one is the headline.
        sweeps: dimensions (or sets) switched off one after the other.
        tracks: outliers over training steps.
        notes: remarks that belong beside the results.
        luo: Luo et al. 2021 for this model. puccetti: Puccetti et al. 2022.
        joined: results of other commands.
    """

    provenance: Provenance
    scan: Scan
    observation: Observation | None = None
    damages: tuple[Ablation, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    tracks: tuple[Track, ...] = ()
    notes: tuple[str, ...] = ()
    luo: LuoReplication | None = None
    puccetti: PuccettiReplication | None = None
    joined: Joined = field(default_factory=Joined)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per outlier that weights name."""
        return self.scan.records()

    @property
    def measured(self) -> tuple[Provenance, ...]:
        """What tells the model from others: the files that were scanned, then each measure of the running model."""
        parts = (self.scan, self.observation, *self.damages)
        return tuple(part.provenance for part in parts if part is not None)

    @property
    def model(self) -> str:
        """The model's name for reading: as given, of a path its last part."""
        given = self.provenance.model
        is_path = given.startswith(("/", "./", "../", "~")) or "\\" in given
        return (given.replace("\\", "/").rstrip("/").rpartition("/")[2] or given) if is_path else given

    def streams(self) -> Iterator[tuple[str, StackScan | None, StackObservation | None]]:
        """Each residual stream once: its name, its first scan and its observation where there is one."""
        scans = {stack.stack: stack for stack in reversed(self.scan.stacks)}
        seen = {stack.stack: stack for stack in self.observation.stacks} if self.observation else {}
        for name in dict.fromkeys([*(stack.stack for stack in self.scan.stacks), *seen]):
            yield name, scans.get(name), seen.get(name)

    def named(self, stream: str) -> tuple[int, ...]:
        """Dimensions of a stream that get a name in pictures: found in weights, in activations, switched off, swept.

        Of those found in weights the strongest come first. Rules on activations that list many dimensions do not crowd out the
        rest: the strongest few of each are named.
        """
        weights = [dim for stack in self.scan.stacks if stack.stack == stream for dim in found_first(stack)]
        seen = [s for s in self.observation.stacks if s.stack == stream] if self.observation else []
        by_rule: dict[str, list[tuple[float, int]]] = {}
        for outlier in (o for stack in seen for o in stack.outliers):
            by_rule.setdefault(outlier.rule, []).append((-max(outlier.strength, default=0.0), outlier.dim))
        strongest = [dim for found in by_rule.values() for _, dim in sorted(found)[:NAMED_BY_RULE]]
        off = [dim for d in self.damages if d.about.stack == stream for dim in d.dims]
        return tuple(dict.fromkeys([*weights, *strongest, *off, *self.strongest(stream), *self.emerged(stream)]))

    def strongest(self, stream: str) -> tuple[int, ...]:
        """Dimensions of a stream that the sweeps name beside those found in weights, the first few of each sweep."""
        sweeps = [sweep for sweep in self.sweeps if sweep.stack == stream]
        return tuple(dim for s in sweeps for dim in [d for d in names(s) if d not in s.found][:NAMED_BY_RULE])

    def emerged(self, stream: str) -> tuple[int, ...]:
        """Dimensions of a stream that stand out at the end of a tracked run, for scale or for bias."""
        tracks = [track for track in self.tracks if track.stack == stream]
        return tuple(one.dim for track in tracks for one in track.emergences if one.passes != "neither")


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
            for section in row.sections()(found):
                yield numbered(_of_its_model(section, found), number)


def _of_its_model(section: Section, found: Result) -> Section:
    """The section, which says what model it is of."""
    where = getattr(found, "provenance", None)
    if where is None or any(where.model in sentence for sentence in section.sentences):
        return section
    return replace(section, sentences=(*section.sentences, f"Measured on {where.model}."))


def joined_notes(joined: Joined) -> tuple[str, ...]:
    """Remarks of all of them, each once."""
    return tuple(dict.fromkeys(note for found in joined.results for note in notes_of(found)))
