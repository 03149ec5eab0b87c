"""The numbers that README and docs state: docs/claims.toml has, for each, the command that makes it and where it stands.

    python scripts/claims.py                    # run the cheap claims anew
    python scripts/claims.py NAME…              # run these; --dear alone: all of the dear ones, minutes to hours each
    python scripts/claims.py --write NAME…      # run, keep the result, put its numbers into the pages
    python scripts/claims.py --in DIR NAME…     # run in DIR/NAME, where what has run stays and does not run again

A claim has
    command   one or several lines, run in an empty folder; DATA stands for $OUTLIERLENS_DATA
    values    {name: Python expression} over what the command wrote: `load("sweep.json")`, `r` for load("out.json"), `printed`
    says      {page: sentences} with the values in Python's format: "{change:+.2f} nats"; these must stand in the page
    rows      {page: {value: row}}: of a value that is a list of rows, each row of a table: "| {0} | {1:+.2f} |"
    cost      "cheap" (seconds, run anew by the tests), "dear", or "recorded": read off a clock, or printed by a run whose
              files were not kept, as `why` says; its `values` are the numbers themselves
    needs     sample models, and "data"
    dtype     what a running model was computed in (default float32); "weights" where none ran, "unknown" of some recorded ones
    tolerance how far a value may be off when it is made again, relative (default 0.001); 0 asks for equality

Values are kept in docs/results/NAME.json, with versions. Exit code 1: something is not as the pages say.
"""

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import string
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "docs" / "claims.toml"
RESULTS = ROOT / "docs" / "results"
TOLERANCE = 1e-3
COSTS = ("cheap", "dear", "recorded")
DTYPES = ("float32", "bfloat16", "weights", "unknown")


@dataclass(frozen=True)
class Claim:
    """Numbers that one command makes, and the sentences that state them."""

    name: str
    command: list[str]
    values: dict[str, Any]
    says: dict[str, list[str]]
    cost: str
    needs: list[str] = field(default_factory=list)
    dtype: str = "float32"
    tolerance: float = TOLERANCE
    why: str = ""
    rows: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where its values are kept."""
        return RESULTS / f"{self.name}.json"

    @property
    def kept(self) -> dict[str, Any]:
        """The values as they were when they were last made."""
        if self.cost == "recorded":
            return self.values
        return dict(json.loads(self.file.read_text("utf-8"))["values"]) if self.file.exists() else {}

    def sentences(self, values: dict[str, Any]) -> list[tuple[str, str]]:
        """(page, sentence) of every sentence with these values in it; as it is written where they do not fit into it."""
        said = [(page, filled(text, values)) for page, texts in self.says.items() for text in texts]
        return said + [
            (page, filled(row, {"row": cells}))
            for page, tables in self.rows.items()
            for name, text in tables.items()
            for row in [re.sub(r"\{(\d+)", r"{row[\1]", text)]
            for cells in values.get(name, [])
        ]

    def missing(self) -> list[tuple[str, str]]:
        """(page, sentence) of the sentences with the kept values that do not stand in their page."""
        return [(page, text) for page, text in self.sentences(self.kept) if plain(text) not in plain(read(page))]


def filled(text: str, values: dict[str, Any]) -> str:
    """`text` with the values; `text` itself, which no page says, where one is missing or has another shape."""
    try:
        return string.Formatter().vformat(text, (), values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return text


def claims() -> dict[str, Claim]:
    """All claims by name."""
    found = {}
    for name, given in tomllib.loads(CLAIMS.read_text("utf-8")).items():
        command = given.pop("command")
        found[name] = Claim(name=name, command=[command] if isinstance(command, str) else command, **given)
    return found


def read(page: str) -> str:
    """A page's text."""
    return (ROOT / page).read_text("utf-8")


def plain(text: str) -> str:
    """Without line breaks, and with a plain minus sign."""
    return " ".join(text.replace("−", "-").split())


def run(claim: Claim, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the claim's values, where they come from), made in `folder`; commands that have run there do not run again."""
    from outlierlens.results.document import load

    folder.mkdir(parents=True, exist_ok=True)
    printed, read = folder / "printed.txt", {}

    def result(name: str) -> Any:
        return read.setdefault(name, load(folder / name))

    def found(kind: str) -> Any:
        return next(one for one in result("results.json").findings if type(one).__name__ == kind)

    if not printed.exists():
        text = "".join(command(line, folder) for line in claim.command)
        printed.write_text(text, "utf-8")
    made = result("out.json") if (folder / "out.json").exists() else None
    known = {"r": made, "load": result, "found": found, "printed": printed.read_text("utf-8"), "re": re, "math": math}
    values = {name: simple(eval(expression, known)) for name, expression in claim.values.items()}
    told = [asdict(one.provenance) for one in read.values() if hasattr(one, "provenance")]
    return values, {key: value for key, value in (told or [{}])[0].items() if key not in ("command", "seed") and value}


def command(line: str, folder: Path) -> str:
    """What a command prints, run in `folder`: outlierlens within this process, a script in its own."""
    from outlierlens.cli.app import run as call

    words = [word.replace("DATA", os.environ.get("OUTLIERLENS_DATA", "DATA")) for word in shlex.split(line)]
    if words[0] != "outlierlens":  # python benchmarks/scan.py, python -c '…'
        words = [sys.executable, words[1] if words[1] == "-c" else str(ROOT / words[1]), *words[2:]]
        return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            call(words[1:])
        except SystemExit as ended:  # it was interrupted, or says that it could not
            raise subprocess.CalledProcessError(ended.code if isinstance(ended.code, int) else 1, line) from None
    return printed.getvalue()


def simple(value: Any) -> Any:
    """Plain Python: numbers, words, and lists of them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [simple(one) for one in value] if isinstance(value, list | tuple) else value


def differs(claim: Claim, made: dict[str, Any]) -> list[str]:
    """What is not as it is kept, a line each."""
    kept = claim.kept
    pairs = {name: (kept.get(name), made[name]) for name in made}
    return [
        f"{name}: kept {one}, made {new}" for name, (one, new) in pairs.items() if not alike(one, new, claim.tolerance)
    ]


def alike(one: Any, new: Any, tolerance: float) -> bool:
    """Whether two values are the same to within a relative tolerance."""
    if isinstance(one, list) and isinstance(new, list):
        return len(one) == len(new) and all(alike(a, b, tolerance) for a, b in zip(one, new, strict=True))
    if isinstance(one, int | float) and isinstance(new, int | float):
        return math.isclose(one, new, rel_tol=tolerance, abs_tol=tolerance * 1e-2)
    return bool(one == new)


def keep(claim: Claim, made: dict[str, Any], about: dict[str, Any]) -> None:
    """Write the values, with what they were made by."""
    RESULTS.mkdir(exist_ok=True)
    whole = {"command": claim.command, "provenance": about, "values": made}
    claim.file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")


def rewrite(claim: Claim, before: dict[str, Any], made: dict[str, Any]) -> None:
    """Put the new numbers into the pages where the old sentences stand; what cannot be placed is left to `missing`."""
    for (page, old), (_, new) in zip(claim.sentences(before), claim.sentences(made), strict=False):
        if old == new:
            continue
        text, olds, news = read(page), old.split(), new.split()
        found = re.search(r"\s+".join(re.escape(word).replace(r"\-", "[-−]") for word in olds), text)
        if found and len(olds) == len(news):
            gaps = re.findall(r"\s+", found[0])
            signed = [word if "-" in found[0] else re.sub(r"-(?=\d)", "−", word) for word in news]
            placed = "".join(word + gap for word, gap in zip(signed, [*gaps, ""], strict=True))
            (ROOT / page).write_text(text[: found.start()] + placed + text[found.end() :], "utf-8")
            print(f"{page}: {old}  ->  {new}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the numbers of README and docs again.")
    parser.add_argument("names", nargs="*", help="claims; default: all cheap ones")
    parser.add_argument("--dear", action="store_true", help="without names: the dear ones")
    parser.add_argument("--write", action="store_true", help="keep what was made, and put it into the pages")
    parser.add_argument("--in", dest="folder", type=Path, help="run in NAME below this folder, and leave it there")
    asked, known, bad = parser.parse_args(), claims(), 0
    for unknown in set(asked.names) - set(known):
        parser.error(f"no claim is named {unknown}; docs/claims.toml has {', '.join(known)}")
    wanted = asked.names or [name for name, one in known.items() if one.cost == ("dear" if asked.dear else "cheap")]
    for claim in map(known.__getitem__, wanted):
        print(f"{claim.name}:", "; ".join(claim.command), flush=True)
        with tempfile.TemporaryDirectory() as own:
            folder = (asked.folder or Path(own)).resolve() / claim.name
            before = claim.kept
            made, about = (before, {}) if claim.cost == "recorded" else run(claim, folder)
        changed = differs(claim, made)
        print(*(f"  {line}" for line in changed), sep="\n", end="\n" * bool(changed))
        if asked.write and (changed or set(before) != set(made)):
            keep(claim, made, about)
            rewrite(claim, before, made)
        missing = claim.missing()
        print(*(f"  {page} does not say: {text}" for page, text in missing), sep="\n", end="\n" * bool(missing))
        bad += bool(missing or (changed and not asked.write))
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
