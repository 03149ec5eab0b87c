"""What is cited of Luo et al. (2021) is there: every section, figure, table and appendix that code, docs and examples name.

A section must also be about what it is cited for: one of its words stands near the citation.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = {"src": "py toml jinja", "docs": "md", "examples": "py md ipynb"}
FILES = [
    path for folder, kinds in KINDS.items() for kind in kinds.split() for path in (ROOT / folder).rglob(f"*.{kind}")
]
FILES = [*sorted(FILES), ROOT / "README.md"]

# section: words of which one stands near a citation of it
SECTIONS = {
    "1": "introduc",
    "2": "share smallest largest average arg 557 588",
    "3": "rank probe row norm position",
    "4": "clip",
    "4.1": "pairs cosine geometry anisotropy",
    "4.2": "wic word cosine grid",
    "4.3": "sentence sts cosine",
    "4.4": "classifier train_batch trained",
    "5": "whiten discuss",
    "6": "related",
    "7": "conclu",
    "A": "_FOUND finds large distil",
    "B": "probe neuron contribution",
    "B.1": "probe neuron contribution",
    "B.2": "probe neuron contribution",
    "C": "pre-train trained positions",
    "C.1": "pre-train trained table",
    "C.2": "pre-train trained",
    "D": "clip",
    "D.1": "clip anisotropy",
    "D.2": "wic word",
}
FIGURES = range(1, 17)
TABLES = range(1, 8)
AUTHOR = re.compile(
    r"Luo|Positional Artefacts|Kovaleva|BERT Busters|Puccetti|Timkey|Bark and|Dettmers|LLM\.int8\(\)|Yu et al|Sun et al"
    r"|Massive Act|Ethayarajh|Vaswani|Raffel|Press|Cochran|Jennison|Micikevicius|Lin et al|Pocock"
)
ONE = r"(?:[A-D]\b(?:\.\d)?|\d+(?:\.\d+)?)"
CITED = re.compile(
    rf"\b([Ss]ections?|[Ff]igures?|[Ff]ig\.|[Tt]ables?|[Aa]ppendix|[Aa]ppendices) ({ONE}[a-d]?(?:(?:, | and | to |–){ONE})*)"
)


def cited(path: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, number, what stands around it) of every citation of the paper in a file."""
    text = re.sub(r"[#\s]+", " ", path.read_text("utf-8"))
    own = "luo" in str(path.relative_to(ROOT))
    for found in CITED.finditer(text):
        before, after = text[max(0, found.start() - 220) : found.start()], text[found.end() :][:8]
        named = list(AUTHOR.finditer(before))
        whose = AUTHOR.search(after) if after.startswith(" of ") else (named[-1] if named else None)
        if whose[0] not in ("Luo", "Positional Artefacts") if whose else not own:
            continue
        kind = found[1].lower().rstrip(".")[:3]
        around = before + text[found.end() :][:160]
        for number in numbers(found[2]):
            yield kind, number, around


def numbers(written: str) -> list[str]:
    """ "1, 2 and 7 to 9" as ["1", "2", "7", "8", "9"]."""
    every: list[str] = []
    for part in re.split(r", | and ", written):
        first, *last = re.split(r" to |–", part)
        if last and first.isdigit():
            every += map(str, range(int(first), int(last[0]) + 1))
        else:
            every.append(re.sub(r"(?<=\d)[a-d]$", "", first))
    return every


def test_numbers_are_read() -> None:
    assert numbers("1, 2 and 7 to 9") == ["1", "2", "7", "8", "9"]
    assert numbers("5a") == ["5"]
    assert numbers("4.1") == ["4.1"]


def test_citations_are_found() -> None:
    found = [(kind, number) for path in FILES for kind, number, _ in cited(path)]
    assert len(found) >= 90
    assert {kind for kind, _ in found} >= {"sec", "fig", "tab", "app"}
    assert {number for kind, number in found if kind == "sec"} == {"2", "3", "4", "4.1", "4.2", "4.3", "4.4"}


@pytest.mark.parametrize("path", [path for path in FILES if any(cited(path))], ids=lambda path: path.name)
def test_what_is_cited_is_there(path: Path) -> None:
    for kind, number, around in cited(path):
        if kind in ("fig", "tab"):
            assert int(number) in (FIGURES if kind == "fig" else TABLES), (kind, number, around)
        else:
            assert any(word.lower() in around.lower() for word in SECTIONS[number].split()), (kind, number, around)
