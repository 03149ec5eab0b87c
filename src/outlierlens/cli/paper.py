"""A paper whole: measured part by part in a run directory, its report beside the parts, its sections on the terminal.

shown(session, "luo", make)                   # make(directory, say, progress) -> ReportData
"""

from collections.abc import Callable
from pathlib import Path

from outlierlens.cli.common import Progress, resumable, say, warn
from outlierlens.cli.experiment import tell
from outlierlens.report.result import ReportData
from outlierlens.session import Session


def shown(session: Session, paper: str, make: Callable[[Path, Callable[[str], None], Progress], ReportData]) -> None:
    """Measure, write the report, and show what it says of `paper`, a field of `ReportData`."""
    from outlierlens.report.files import OURS, write

    output = session.output
    directory = output.output or Path("runs") / f"{Path(session.subject.model).name}-{paper}"
    with resumable(directory / "parts"), Progress(output.tells_progress) as progress:
        made = make(directory, warn if output.tells_progress else lambda _: None, progress)
    written = write(made, directory, overwrite=any((directory / name).exists() for name in OURS))
    tell(session, getattr(made, paper))
    if output.for_people:
        say(f"report: {written.page}")
