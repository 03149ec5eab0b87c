"""What a report is made of, which is also what `results.json` holds: `ReportData`, a list of findings.

data.findings                                # in the order of the table of experiments
data.of(Ablation)                            # those of one kind
data.page_sections()                         # what each says and shows, with the report's names in its charts
sections_of((found, other))                  # likewise of any findings
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from outlierlens.analyses.ablate import Ablation
from outlierlens.analyses.observe import Observation
from outlierlens.analyses.observe_pictures import vector_panels
from outlierlens.analyses.scan import Scan, found_first
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.track import Track
from outlierlens.errors import BadInput, option, shell
from outlierlens.experiments import BY_RESULT
from outlierlens.replicate.luo import LuoReplication
from outlierlens.results.document import TOPICS, Advice, Provenance, Result, about
from outlierlens.view.section import Rows, Section, notes_of, numbered

NAMED_BY_RULE = 3
FIRST = 3  # sentences of each finding that stand at the head
# Results that are no part of a report of one model, and where they belong.
ELSEWHERE = {
    "Scan": "the report scans the model itself; report --compare shows the scans of two",
    "Observation": "the report observes the model itself",
    "ReportData": "give it in place of the model, or two of them to report --compare",
    "Fingerprint": "a record, not a finding; give what verify says of it",
    "EmbedderExport": "it describes the written folder, and lies in it",
    "Exploration": "the state of a live page; give the result of ablate",
}
# Results of several models or runs, which name them: no single one is that of a report.
OF_SEVERAL = frozenset({"Comparison", "Outcomes", "Track"})
KINDS = tuple(BY_RESULT)
T = TypeVar("T")


@dataclass(frozen=True)
class ReportData(Result):
    """What one run of the main job found, and the results of other commands that joined it.

    Attributes:
        provenance: of the whole run; its command makes the report again.
        findings: in the order of the table of experiments; one is the scan. The first ablation is the headline.
        notes: remarks that belong beside the results.

    Raises:
        BadInput: no scan is among the findings.
    """

    provenance: Provenance
    findings: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.of(Scan):
            raise BadInput("a report holds the scan of its model; make it again")
        in_order = sorted(self.findings, key=lambda one: KINDS.index(type(one).__name__))
        object.__setattr__(self, "findings", tuple(in_order))

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """The findings of one kind."""
        return tuple(one for one in self.findings if isinstance(one, kind))

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per outlier that weights name."""
        return self.scan.records()

    @property
    def scan(self) -> Scan:
        """Outliers from weights."""
        return self.of(Scan)[0]

    @property
    def observation(self) -> Observation | None:
        """Statistics of activations; None where the model was not run."""
        return next(iter(self.of(Observation)), None)

    @property
    def damages(self) -> tuple[Ablation, ...]:
        """What switching off did, by the report's own runs: those that compare no treatments."""
        return tuple(one for one in self.of(Ablation) if not one.compares)

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Dimensions (or sets) switched off one after the other."""
        return self.of(Sweep)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Outliers over training steps."""
        return self.of(Track)

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

    def named(self, stream: str) -> tuple[int, ...]:
        """Dimensions of a stream that get a name in pictures: found in weights, in activations, switched off, swept, tracked.

        Of those found in weights the strongest come first. Rules on activations and sweeps that list many dimensions do not
        crowd out the rest: the strongest few of each are named.
        """
        weights = [dim for stack in self.scan.stacks if stack.stack == stream for dim in found_first(stack)]
        seen = [s for s in self.observation.stacks if s.stack == stream] if self.observation else []
        by_rule: dict[str, list[tuple[float, int]]] = {}
        for outlier in (o for stack in seen for o in stack.outliers):
            by_rule.setdefault(outlier.rule, []).append((-max(outlier.strength, default=0.0), outlier.dim))
        strongest = [dim for found in by_rule.values() for _, dim in sorted(found)[:NAMED_BY_RULE]]
        off = [dim for d in self.damages if d.about.stack == stream for dim in d.dims]
        sweeps = [sweep for sweep in self.sweeps if sweep.about.stack == stream]
        swept = [dim for s in sweeps for dim in [d for d in s.named() if d not in s.found][:NAMED_BY_RULE]]
        emerged = [dim for track in self.tracks if track.about.stack == stream for dim in track.dims]
        return tuple(dict.fromkeys([*weights, *strongest, *off, *swept, *emerged]))

    def advice(self) -> tuple[Advice, ...]:
        """What to do about it: what the findings say that no other finding answers; never empty."""
        kinds = {type(found).__name__ for found in self.findings}
        said: dict[object, Advice] = {}
        for step in (step for found in self.findings for step in found.advice() if kinds.isdisjoint(step.until)):
            said.setdefault((step.topic, step.commands or step.text), step)
        steps = sorted(said.values(), key=lambda step: TOPICS.index(step.topic))
        if not steps:
            why = "no damage beyond chance was shown" if self.scan.found() else "none is an outlier"
            ask = about(self.provenance, "observe", "--rule", "all")  # fourteen definitions instead of one
            steps = [Advice("nothing", "No dimension needs special care by these measurements.", why, (ask,))]
        missing = [
            name
            for name, there in (("observe", self.observation), ("ablate", self.damages or self.sweeps))
            if not there
        ]
        if missing:
            text = f"Run {' and '.join(missing)} before relying on this: the weights alone do not show what breaks."
            again = (about(self.provenance, "report"),)
            steps.append(Advice("trust", text, f"not measured here: {' and '.join(missing)}", again))
        streams = {stack.stack for stack in self.scan.stacks}
        only = (
            f" {shell(*option('--stack', *streams))}" if len(streams) == 1 else ""
        )  # of one stream no command need name it
        return tuple(
            replace(one, commands=tuple(line.removesuffix(only) for line in one.commands), until=()) for one in steps
        )

    def finding(self) -> tuple[str, ...]:
        """In sentences, most important first; the first one stands alone. Of each finding of its own the first ones."""
        said = [*self.scan.headline(self.model)]
        if self.scan.found() and not self.damages and not self.sweeps:
            said.append("The effect of ablating them was not measured.")
        sections = sections_of((*self.damages, *self.sweeps, *self.tracks, *self.of(Observation)))
        return (*said, *(sentence for section in sections for sentence in section.sentences[:FIRST]))

    def sections(self, *, verbose: bool = False) -> Iterator[Section]:
        """Where there is no page: the findings, and what to do about them; `verbose` says no more."""
        steps = tuple((step.topic, step.text, step.because, "; ".join(step.commands) or None) for step in self.advice())
        table = Rows("What to do", ("for", "what", "why", "command"), steps)
        yield Section("report", self.provenance.subject, self.finding(), (), (table,))

    def page_sections(self) -> tuple[Section, ...]:
        """What every finding says and shows; its charts name the dimensions that the report names."""
        streams = [stack.stack for stack in self.scan.stacks]
        streams += [stack.stack for stack in self.observation.stacks] if self.observation else []
        named = {stream: self.named(stream) for stream in streams}
        return tuple(map(self._with_panels, sections_of(self.findings, named)))

    def _with_panels(self, section: Section) -> Section:
        """Of Luo et al.'s report the observation also shows the average vector of every layer."""
        seen = self.observation
        if seen is None or not self.of(LuoReplication) or section.name != seen.name:
            return section
        more = tuple(
            vector_panels(stack, self.named(stack.stack), prefix=f"{number}-" if number else "")
            for number, stack in enumerate(seen.stacks)
        )
        return replace(section, drawn=(*section.charts, *more))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes of the report and of all its findings, each once."""
        return tuple(dict.fromkeys((*self.notes, *(note for found in self.findings for note in notes_of(found)))))


def check_joins(result: Any, where: str = "result") -> None:
    """Raise BadInput for a result of a kind that has no place in a report; `where` says which it is."""
    kind = type(result).__name__
    if kind not in BY_RESULT or kind in ELSEWHERE:
        raise BadInput(
            f"{where} holds {kind}, which does not join a report: {ELSEWHERE.get(kind, 'it has no section')}"
        )


def sections_of(findings: Iterable[Result], named: Mapping[str, Sequence[int]] | None = None) -> tuple[Section, ...]:
    """The sections of all of them; `named` are dimensions that charts of streams name, by stream."""
    before, made = Counter[str](), list[Section]()
    for found in findings:
        kind, more = type(found).__name__, dict[str, Any]()
        if isinstance(found, Scan | Observation):
            more["named"] = named or {}
        made += [numbered(_of_its_model(section, found), before[kind]) for section in found.sections(**more)]
        before[kind] += 1
    return tuple(made)


def _of_its_model(section: Section, found: Result) -> Section:
    """The section, which says what model it is of."""
    where = getattr(found, "provenance", None)
    if where is None or any(where.model in sentence for sentence in section.sentences):
        return section
    return replace(section, sentences=(*section.sentences, f"Measured on {where.model}."))
