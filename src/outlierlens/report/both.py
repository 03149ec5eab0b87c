"""Two reports on one page: what `compare` finds of their scans, then the findings of each, one list behind the other.

both = ReportPair((load("runs/base/results.json"), load("runs/tuned/results.json")))
both.finding(), both.advice(), both.page_sections()
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from outlierlens.analyses.compare import Comparison, compare
from outlierlens.errors import BadInput, command, operand
from outlierlens.report.result import ReportData, sections_of
from outlierlens.results.document import Advice
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Section


@dataclass(frozen=True)
class ReportPair:
    """Two reports, and where the page of each lies, relative to theirs; "" where there is none."""

    sides: tuple[ReportData, ReportData]
    pages: tuple[str, str] = ("", "")

    @property
    def names(self) -> tuple[str, str]:
        """What each is called."""
        one, other = (side.model for side in self.sides)
        return (one, other) if one != other else (f"{one} (A)", f"{other} (B)")

    @cached_property
    def compared(self) -> Comparison | str:
        """What `compare` finds, or why it finds nothing."""
        try:
            return compare(self.sides[0].scan, self.sides[1].scan)
        except BadInput as error:
            return f"No dimension is held against its counterpart: {error}."

    @property
    def texts(self) -> tuple[str, ...]:
        """What each was measured on, where that was not the same; () where it was, or one was not measured on texts."""
        read = [
            found.about
            for side in self.sides
            for found in [side.observation or next(iter(side.damages), None)]
            if found
        ]
        lengths = {one.max_length for one in read if one.max_length}  # 0 where it is not known
        if len(read) < 2 or (len({one.data_digest for one in read}) == 1 and len(lengths) < 2):
            return ()
        cut = [f", {one.max_length} tokens each" * (one.max_length > 0) for one in read]
        return tuple(f"{one.n_texts:,} texts of {one.data}{more}" for one, more in zip(read, cut, strict=True))

    def finding(self) -> tuple[str, ...]:
        """What became of the outliers, what makes numbers incomparable, then what each finds; the first one stands alone."""
        if isinstance(self.compared, str):
            said = ["; ".join(side.finding()[0].removesuffix(".") for side in self.sides) + ".", self.compared]
        else:
            said = [*self.compared.sentences()]
        each = [
            f"{name}: {sentence}"
            for name, side in zip(self.names, self.sides, strict=True)
            for sentence in side.finding()[1:3]
        ]
        return (said[0], *self._unlike(), *each, *said[1:])

    def _unlike(self) -> Iterator[str]:
        if self.texts:
            told = ", ".join(map(" ".join, zip(self.names, self.texts, strict=True)))
            yield (
                "What each loses and what it reaches while it runs cannot be compared, for they read different texts: "
                f"{told}."
            )
        tasks = [damage.about.task for side in self.sides for damage in side.damages[:1]]
        if len({*tasks}) == 2:
            yield f"One was measured by {tasks[0]}, the other by {tasks[1]}: their numbers have different scales."

    def advice(self) -> tuple[Advice, ...]:
        """What to do about both, then about each."""
        steps = [] if isinstance(self.compared, str) else [*self.compared.advice()]
        if self.texts:
            text = "Measure both on the same texts before you compare what they lose."
            models = (operand(side.provenance.model) for side in self.sides)
            steps.append(
                Advice("compare", text, "a loss depends on the text", (command("report", "--compare", *models),))
            )
        for name, side in zip(self.names, self.sides, strict=True):
            steps += [replace(step, text=f"{name}: {step.text}") for step in side.advice()]
        return tuple(steps)

    def page_sections(self) -> tuple[Section, ...]:
        """What `compare` finds, then those of each report."""
        found = self.compared
        sections = [] if isinstance(found, str) else [*sections_of((found,))]
        for letter, name, side in zip("ab", self.names, self.sides, strict=True):
            sections += [_of_side(one, letter, name) for one in side.page_sections()]
        return tuple(sections)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes of both, each once."""
        own = () if isinstance(self.compared, str) else self.compared.notes
        return tuple(dict.fromkeys((*own, *(note for side in self.sides for note in side.remarks))))


def _of_side(section: Section, letter: str, name: str) -> Section:
    def drawn() -> tuple[Chart, ...]:
        return tuple(replace(one, name=f"{letter}-{one.name}") for one in section.charts)

    return replace(section, name=f"{letter}-{section.name}", title=f"{name}: {section.title}", drawn=drawn)
