"""The tables of README, docs and benchmarks, and which of their numbers no claim states: `tables()`.

    python scripts/tables.py                    # every table with such numbers, and what docs/tables.toml says of it

A number is covered where a sentence or a row of docs/claims.toml has it. What a test holds equal to what it measures is covered
as a whole. docs/tables.toml names the rest: definitions, and measurements with their command and day.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claims

ROOT = Path(__file__).resolve().parent.parent
MADE = re.compile(r"docs/architectures\.md")  # a whole page, with a test
GENERATED = re.compile(r"<!-- python (?:tests|scripts)/\w+\.py -->.*?<!-- end -->", re.DOTALL)
NAMED = re.compile(r"[A-Za-z][\w.-]*\d[\w.-]*|\d+-(?:bit|D)\b")  # names with digits are no numbers
ASIDE = re.compile(r"`[^`]*`|\]\([^)]*\)")


@dataclass(frozen=True)
class Table:
    """A table of a page: its head as it stands, its rows, and the line of its head, from 1."""

    page: str
    head: str
    rows: tuple[str, ...]
    line: int

    def uncovered(self) -> dict[str, list[str]]:
        """{row: its numbers that no claim states}, rows without any left out."""
        found = {row: uncovered(self.page, row) for row in self.rows}
        return {row: numbers for row, numbers in found.items() if numbers}


def tables() -> list[Table]:
    """Every table of README, docs and benchmarks, generated ones left out."""
    found = []
    for path in [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        if MADE.fullmatch(page):
            continue
        blank = GENERATED.sub(lambda made: "\n" * made[0].count("\n"), path.read_text("utf-8"))
        text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), blank, flags=re.DOTALL | re.MULTILINE)
        for block in re.finditer(r"^\|.*\n\|[-:| ]+\n(?:\|.*\n)+", text, flags=re.MULTILINE):
            head, _, *rows = block[0].splitlines()
            found.append(Table(page, head, tuple(rows), text[: block.start()].count("\n") + 1))
    return found


def uncovered(page: str, text: str) -> list[str]:
    """Numbers of a text that no claim of its page states: names with digits, code and links aside."""
    text = claims.plain(ASIDE.sub(" ", text))
    for where, sentence in _stated():
        if where == page:
            text = text.replace(sentence, " ")
    return re.findall(r"\d[\d,.]*", NAMED.sub(" ", text))


_STATED: list[tuple[str, str]] = []


def _stated() -> list[tuple[str, str]]:
    """(page, sentence) of all claims, the longest first: a short one may be a part of another."""
    if not _STATED:
        said = [(page, text) for one in claims.claims().values() for page, text in one.sentences(one.kept)]
        _STATED.extend(
            sorted(((page, claims.plain(ASIDE.sub(" ", text))) for page, text in said), key=lambda of: -len(of[1]))
        )
    return _STATED


def listed() -> dict[str, Any]:
    """What docs/tables.toml says."""
    return tomllib.loads((ROOT / "docs" / "tables.toml").read_text("utf-8"))


def main() -> int:
    """Print the tables; the exit status is 1 where one is not listed."""
    known = listed()
    recorded = {(one["page"], one["head"]): f"{one['made']}, {'; '.join(one['by'])}" for one in known["recorded"]}
    said = {(page, head): "a definition" for page, heads in known["definitions"].items() for head in heads} | recorded
    missing = 0
    for table in tables():
        if numbers := sum(map(len, table.uncovered().values())):
            what = said.get((table.page, table.head), "NOT LISTED")
            missing += what == "NOT LISTED"
            print(f"{table.page}:{table.line}: {numbers} numbers: {what}")
    return int(missing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
