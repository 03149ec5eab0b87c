"""Numbers that README and docs state: they stand there as they were made, and the cheap ones are made again."""

import datetime
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import claims
import numpy as np
import pytest
import tables
from safetensors.numpy import save_file

from outlierlens.cli.app import read

ROOT = Path(__file__).parents[2]
CLAIMS = claims.claims()
CHEAP = [one for one in CLAIMS.values() if one.cost == "cheap"]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_is_whole_and_its_pages_say_it(claim: Any) -> None:
    assert claim.cost in claims.COSTS
    assert claim.dtype in claims.DTYPES
    assert claim.dtype != "unknown" or claim.cost == "recorded"
    assert set(claim.kept) == set(claim.values), f"run: python scripts/claims.py --write {claim.name}"
    assert bool(claim.why) == (claim.cost == "recorded")
    if claim.file.exists():  # a scan runs no model, a benchmark says none
        about = json.loads(claim.file.read_text("utf-8"))
        assert about["command"] == claim.command
        assert about["provenance"].get("dtype") in (None, claim.dtype)
    named = " ".join(text for texts in claim.says.values() for text in texts)
    named += "".join(f"{{{name}" for tables in claim.rows.values() for name in tables)
    assert all(f"{{{name}" in named for name in claim.values), "a value that no page states"
    assert not claim.missing(), f"make it again, or mend the page: python scripts/claims.py --write {claim.name}"


@pytest.mark.parametrize("claim", CHEAP, ids=[one.name for one in CHEAP])
def test_what_is_cheap_is_made_again(claim: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if "data" in claim.needs and not os.environ.get("OUTLIERLENS_DATA"):
        pytest.skip("OUTLIERLENS_DATA is not set")
    for name in set(claim.needs) - {"data"}:
        request.getfixturevalue("sample")(name)
    assert not claims.differs(claim, claims.run(claim, tmp_path)[0])


def test_kept_results_are_of_claims() -> None:
    assert {path.stem for path in claims.RESULTS.glob("*.json")} == {
        one.name for one in CLAIMS.values() if one.cost != "recorded"
    }


def test_every_number_of_every_table_is_claimed_or_its_table_is_listed() -> None:
    known, every = tables.listed(), tables.tables()
    listed = {(page, head) for page, heads in known["definitions"].items() for head in heads}
    listed |= {(one["page"], one["head"]) for one in known["recorded"]}
    loose = {(one.page, one.head): one.uncovered() for one in every if one.uncovered()}
    assert {table: rows for table, rows in loose.items() if table not in listed} == {}
    assert listed - loose.keys() == set(), "listed in docs/tables.toml, and gone or claimed"
    # Numbers of the first page have claims alone.
    assert "README.md" not in {page for page, _ in listed}
    assert {one.page for one in every} >= {"README.md", "docs/results.md", "benchmarks/README.md"}


@pytest.mark.parametrize("one", tables.listed()["recorded"], ids=lambda one: f"{one['page']}: {one['head'][:30]}")
def test_a_recorded_table_names_what_made_it(one: dict[str, Any]) -> None:
    assert one["made"] <= datetime.date.today()
    assert one["by"]
    for by in one["by"]:
        if by not in CLAIMS:
            runs(by)


def test_a_number_that_no_claim_states_is_found() -> None:
    stated = next(
        text for page, text in CLAIMS["predictions-mini"].sentences(CLAIMS["predictions-mini"].kept) if "|" in text
    )
    assert tables.uncovered("docs/frequency.md", stated) == []
    assert tables.uncovered("docs/results.md", stated) != []  # another page's sentence
    assert tables.uncovered("docs/frequency.md", "| `--limit 3` | BERT2 | 4-bit | +1.25 (−0.5) | [x](y-7.md) |") == [
        "1.25",
        "0.5",
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_a_page_with_results_has_a_claim(path: Path) -> None:
    page = path.relative_to(ROOT).as_posix()
    text = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", claims.read(page), flags=re.DOTALL)
    results = re.findall(r"[+−]\d+\.\d|\d\.\d+ \(\d", text)  # changes and intervals
    assert len(results) < 5 or any(page in one.says for one in CLAIMS.values())


def test_a_number_that_changes_is_found_and_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("It costs\n+1.50 nats [−0.25,\n+2.00] more.")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    expressions = {name: name for name in ("change", "low", "high")}
    says = {"page.md": ["costs {change:+.2f} nats [{low:+.2f}, {high:+.2f}] more"]}
    claim = claims.Claim("one", ["outlierlens x"], expressions, says, "dear")
    before, made = {"change": 1.5, "low": -0.25, "high": 2.0}, {"change": 1.6, "low": -0.25, "high": -2.125}
    claims.keep(claim, before, {})
    assert claim.kept == before
    assert not claim.missing()
    assert [line.split(":")[0] for line in claims.differs(claim, made)] == ["change", "high"]
    claims.keep(claim, made, {})
    assert len(claim.missing()) == 1
    claims.rewrite(claim, before, made)
    assert (tmp_path / "page.md").read_text() == "It costs\n+1.60 nats [−0.25,\n−2.12] more."
    assert not claim.missing()


@pytest.mark.parametrize("before", [{}, {"n": None}, {"n": 1.0}, {"n": [1.0]}, {"n": "none"}, {"m": [1.0, 2.0]}])
def test_values_of_another_shape_replace_no_sentence_and_are_told(
    before: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    says = "from {n[0]:.2f} to {n[1]:.2f}"
    claim = claims.Claim("x", ["true"], {"n": ""}, {"page.md": [says]}, "cheap")
    (tmp_path / "page.md").write_text("It went from 1.00 to 2.00.")
    claims.keep(claim, before, {})
    assert claim.missing() == [("page.md", says)]
    claims.rewrite(claim, before, {"n": [3.0, 4.0]})
    claims.keep(claim, {"n": [3.0, 4.0]}, {})
    assert (tmp_path / "page.md").read_text() == "It went from 1.00 to 2.00."
    assert claim.missing() == [("page.md", "from 3.00 to 4.00")]


def test_tolerance() -> None:
    for one, new in ((1.0, 1.0009), ([1, 2.0], [1, 2.001]), ("a", "a"), (0.0, 1e-6), (None, None)):
        assert claims.alike(one, new, 1e-3)
    for one, new in ((1.0, 1.002), ([1], [1, 2]), ("a", "b"), (0.0, 1e-4), (None, 0.0), ("1", 1)):
        assert not claims.alike(one, new, 1e-3)


def test_what_ran_does_not_run_again(tmp_path: Path) -> None:
    claim = claims.Claim(
        "scan", ["outlierlens scan mini-planted -o out.json"], {"dims": "r.stacks[0].dims"}, {}, "cheap"
    )
    values, about = claims.run(claim, tmp_path)
    assert values == {"dims": [8, 24, 40, 56, 72, 88, 104, 120]}
    assert about["model"] == "mini-planted"
    again = claims.Claim("scan", ["outlierlens no-such-command"], {"said": "printed[:12]"}, {}, "cheap")
    assert claims.run(again, tmp_path)[0] == {"said": "mini-planted"}


def test_a_command_that_fails_leaves_nothing_that_ran(tmp_path: Path) -> None:
    save_file(
        {
            f"encoder.layer.{i}.output.LayerNorm.{part}": np.zeros(128, bool)
            for i in range(4)
            for part in ("weight", "bias")
        },
        tmp_path / "masks.safetensors",
    )
    broken = claims.Claim(
        "check",
        [f"outlierlens prune check mini-planted {tmp_path / 'masks.safetensors'}"],
        {},
        {},
        "cheap",
    )
    with pytest.raises(subprocess.CalledProcessError):
        claims.run(broken, tmp_path / "run")
    assert not (tmp_path / "run" / "printed.txt").exists()


def runs(line: str) -> None:
    """Fails where a command is none of the product, or a script that is not there."""
    words = shlex.split(line)
    if words[0] == "outlierlens":
        read(words[1:])
    else:
        assert words[0] == "python"
        assert words[1] == "-c" or (ROOT / words[1]).is_file()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_its_command_can_be_run(claim: Any) -> None:
    for line in claim.command:
        runs(line)
