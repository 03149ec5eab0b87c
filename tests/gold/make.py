"""Make the gold files again: `python tests/gold/make.py` all, `python tests/gold/make.py views charts` these.

`git diff tests/gold` then says what changed: on one machine, to six digits; the test allows what processors differ by.

refusals   what each number of a command is refused for
runs       the result of every command on the smallest model
views      how every kind of result is shown on a terminal, in a notebook, as a table, in a section of the report
charts     every chart: words, numbers, specification
pages      a report of everything, two models side by side, a model card
names      what the functions and classes of `outlierlens` take; `--help-all` has what the commands take
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from gold import commands, files, names, refusals, runs, views

HERE = Path(__file__).parent
PARTS = ("refusals", "runs", "views", "charts", "pages", "names")
RAN = {"runs", "refusals"}


def path_of(part: str, name: str) -> Path:
    """The gold file of one thing."""
    return HERE / part / f"{(name or 'outlierlens').replace(' ', '-').lower()}.json"


def made(part: str, folder: Path) -> dict[str, Any]:
    """{name: what its gold file holds} of one part but runs and refusals, made now in an empty folder."""
    if part == "names":
        return names.public()
    show = {"views": views.views, "charts": views.drawn, "pages": views.pages}[part]
    return show(views.everything(folder), folder)


def ran(folder: Path, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """{"runs": …, "refusals": …}, those that are wanted, made in an empty folder, which the caller has made the current one."""
    import every_command

    every_command.fill(folder)
    said = every_command.run_all(json_where={name for name in every_command.RUNS if "--json" in commands.spelt(name)})
    found = {"runs": runs.results(said, folder)}
    return found | ({"refusals": refusals.refusals()} if "refusals" in wanted else {})


def main(wanted: list[str]) -> None:
    """Write the files of these parts, or of all."""
    import torch

    torch.set_num_threads(1)
    if unknown := set(wanted) - set(PARTS):
        raise SystemExit(f"no such part: {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    found: dict[str, dict[str, Any]] = {}
    for part in set(wanted or PARTS) - RAN:
        with tempfile.TemporaryDirectory() as place:
            found[part] = made(part, Path(place).resolve())
    if RAN & set(wanted or PARTS):
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            os.environ["OUTLIERLENS_CACHE"] = str(Path(place) / "cache")
            found |= ran(Path(place).resolve(), set(wanted or PARTS))
            os.chdir(HERE)
    for part in wanted or PARTS:
        for old in (HERE / part).glob("*.json"):
            old.unlink()
        for name, value in found[part].items():
            files.write(path_of(part, name), value)


if __name__ == "__main__":
    main(sys.argv[1:])
