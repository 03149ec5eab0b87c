"""What is said of a whole report where there is no page: `sections(data)`."""

from collections.abc import Iterator

from outlierlens.report.advice import advice
from outlierlens.report.result import ReportData
from outlierlens.report.words import finding
from outlierlens.view.section import Rows, Section


def sections(found: ReportData, *, verbose: bool = False) -> Iterator[Section]:
    """The findings, and what to do about them; `verbose` says no more."""
    steps = tuple((step.topic, step.text, step.because, "; ".join(step.commands) or None) for step in advice(found))
    table = Rows("What to do", ("for", "what", "why", "command"), steps)
    yield Section("report", found.provenance.model, finding(found), (), (table,))
