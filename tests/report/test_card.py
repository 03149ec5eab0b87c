"""The model card's section: the report's sentences and numbers, provenance, and names that cannot break it."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import synthetic_report
from every_command import M
from outlierlens.report.files import card
from outlierlens.results.document import load, save


@pytest.fixture(scope="module")
def data() -> Any:
    return synthetic_report.report_data()


def plain(text: str) -> str:
    return text.replace("\\", "")


def test_every_row_of_a_table_has_its_cells(data: Any) -> None:
    hostile = "a|b <script>x</script> [l](http://e) `c`\n# head ```"
    made = replace(data.provenance, model=hostile, command=f"outlierlens report '{hostile}'")
    text = card(replace(data, provenance=made, notes=(hostile,)))
    assert "<script>" not in text.replace(r"\<script", "").split("\n    outlierlens")[0]
    assert "\n# head" not in text
    assert r"a\|b \<script\>x\</script\> \[l\](http\://e) \`c\` \# head" in text
    widths = {}
    for block in text.split("\n\n"):
        rows = [line.replace(r"\|", "") for line in block.splitlines() if line.startswith("|")]
        widths[block] = {row.count("|") for row in rows}
    assert all(len(width) <= 1 for width in widths.values())
    assert any(widths.values())


def test_nothing_measured_is_said(data: Any) -> None:
    text = plain(card(synthetic_report.changed(data, observation=None, damages=(), sweeps=(), tracks=())))
    assert "The effect of ablating them was not measured." in text
    assert "Ablation:" not in text
    assert "Run observe and ablate before relying on this" in text


@pytest.mark.usefixtures("no_picture_files")
def test_report_writes_it_from_results(data: Any, run: Any, tmp_path: Path) -> None:
    results, out = save(data, tmp_path / "results.json"), tmp_path / "card.md"
    code, said, err = run("report", str(results), "--card", str(out))
    assert code == 0, err
    assert f"card: {out}" in said
    assert out.read_text("utf-8") == card(data)
    code, _, err = run("report", str(results), "--card", str(out))
    assert code == 1
    assert f"{out} exists; give another name or --overwrite" in err
    code, said, _ = run("report", str(results), "--card", str(out), "--overwrite", "-q")
    assert (code, said) == (0, "")
    out.write_text("# My model\n\nMuch work.\n")
    code, _, err = run("report", str(results), "--card", str(out), "--overwrite", "-q")
    assert (code, out.read_text("utf-8")) == (1, "# My model\n\nMuch work.\n")
    assert f"{out}: no card's section of outlierlens, so it is not replaced; name another file with --card" in err


@pytest.mark.usefixtures("no_picture_files")
def test_a_disk_that_is_full_for_the_card_leaves_no_report_and_the_command_that_is_printed_goes_on(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"The film was number {i}, and it was good.\n" for i in range(4)))
    out, made = tmp_path / "card.md", tmp_path / "made"
    few = ("--data", tmp_path / "texts.txt", "--max-length", "16", "--dims", "8", "--random", "1", "--matched", "1")
    words = [str(word) for word in ("report", M, *few, "--card", out, "-o", made, "--device", "cpu")]

    def full(_: int) -> None:
        if list(tmp_path.glob(".card.md.*.part")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, _, err = run(*words)
    assert code == 1
    assert f"error: {out}: No space left on device" in err
    assert {path.name for path in made.iterdir() if path.is_file()} == {"rows.jsonl"}
    code, said, err = run(*words)
    assert code == 0, err
    assert f"card: {out}" in said
    assert out.read_text("utf-8") == card(load(made / "results.json"))
