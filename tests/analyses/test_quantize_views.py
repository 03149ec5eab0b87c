"""What `quantize` shows: the command on a shipped model, its text, a picture that compiles, the report's section."""

import json
from pathlib import Path
from typing import Any

import pytest

import quantized_results
from outlierlens.analyses.quantize import Quantized
from outlierlens.cli.experiment import print_sections
from outlierlens.report.result import remarks_of, sections_of
from outlierlens.results.document import from_json, to_json
from outlierlens.view.charts.base import picture
from outlierlens.view.section import cell_text, these


def made() -> Quantized:
    return quantized_results.quantized()


def test_the_command_measures_draws_and_writes(tmp_path: Path, run: Any) -> None:
    out, drawing = tmp_path / "q.json", tmp_path / "q.json.svg"
    given = "--data reviews --limit 2 --calibrate 2 --random 1 --max-length 16 --verbose --chart"
    options = (*given.split(), str(drawing))
    schemes = ("--schemes", "int8-tensor/int8-tensor,int4-group32/none", "--dims", "7,3")
    words = ("quantize", "mini-planted", *options, *schemes, "--no-progress")
    code, text, error = run(*words, "-o", str(out))
    assert (code, error.count("\n")) == (0, 1)
    assert error.startswith("mini-planted: 2 texts, read ")
    assert error.rstrip().endswith(".jsonl keeps what is finished")
    found = from_json(out.read_text())
    assert isinstance(found, Quantized)
    assert (found.about.n_texts, found.n_calibration, found.dims, found.about.named_by) == (2, 2, (3, 7), "given")
    assert list(found.says) == ["int8-tensor/int8-tensor", "int4-group32/none"]
    assert text.splitlines()[0].lower() == f"{found.verdict}.".lower()
    assert drawing.read_text().startswith("<svg")
    code, text, error = run(*words, "--overwrite", "-q")
    assert (code, text, error) == (0, "", "")
    code, again, error = run(*[one for one in words if one not in ("--chart", str(drawing))])
    assert "every measurement is taken from there" in error
    assert again.splitlines()[0].lower() == f"{found.verdict}.".lower()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--schemes", "int8"), "cannot read scheme 'int8'"),
        (("--threshold", "six"), "cannot read 'six'; write a number, or none"),
        (("--dims", "3:4"), "names layers"),
        (("--dims", "999"), "dimension 999 does not exist"),
        (("--schemes", "int4-group100/none"), "groups of 100 do not divide"),
    ],
)
def test_the_command_refuses_in_one_line(given: tuple[str, ...], says: str, run: Any) -> None:
    code, text, error = run("quantize", "mini-planted", "--limit", "2", "--max-length", "8", "--no-progress", *given)
    assert (code, text) == (1 if given[-1] in ("999", "int4-group100/none") else 2, "")
    assert says in error


def test_what_is_printed_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(made())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "Keep dimension 5 in 16 bit: int8-tensor/int8-tensor +2 → +0.1 (random +2); keeping dimension 5 does not make up for "
        "int4-channel/none +1; int8-channel/int8-token: no cost that can be told, nothing to keep (nats per token)."
    )
    rows = [line.split() for line in lines]
    cost, last = (one for one in rows if one[:3] == ["int8-tensor/int8-tensor", "all", "rounded"])
    assert last[3:5] == ["1", "4.002"]
    assert cost[3:8] == ["+2", "+1.9", "to", "+2.1", "0.012"]
    row, _ = (one for one in rows if one[:3] == ["int8-tensor/int8-tensor", "outliers", "kept"])
    assert " ".join(row[8:]) == "+1.9 +1.85 to +1.95 20 %"
    (row,) = (one for one in rows if one[:2] == ["int8-tensor/int8-tensor", "keep"])
    assert row[2:6] == ["+1.9", "+1.85", "to", "+1.95"]
    assert any(made().noise_note in line for line in lines)
    assert "1e-6 (3 more runs of 2 texts)" in made().noise_note
    assert lines[-1] == "note: a note"


def test_a_picture_compiles_and_says_what_it_shows() -> None:
    pytest.importorskip("vl_convert")
    drawn = made().chart()
    assert picture(drawn, "svg").startswith(b"<svg")
    json.dumps(drawn.spec, allow_nan=False)
    assert (
        "int8-tensor/int8-tensor +2 (+1.9 to +2.1); outliers kept int8-tensor/int8-tensor +0.1 (+0 to +0.2)"
        in drawn.reading
    )
    assert "6 sets of random dimensions kept: median +1, largest +2" in drawn.reading
    assert "relative squared error: all rounded 0 2.001; all rounded 1 4.002; outliers kept 0 0.1" in drawn.reading
    assert len(drawn.rows) == 1 + 4 + 4 + 2
    assert "Error of every block's output, int8-tensor/int8-tensor" in json.dumps(drawn.spec)


def test_the_report_has_a_section() -> None:
    found = made()
    (section,) = sections_of((found,))
    assert remarks_of((found,)) == ("a note",)
    assert [chart.name for chart in section.charts] == ["rounded-to-few-bits"]
    assert section.sentences[1:3] == (
        "int8-tensor/int8-tensor: keeping dimension 5 (20 % of the weights) gives back 95 % of the cost: +1.9 (95 % interval "
        "+1.85 to +1.95).",
        "int8-tensor/int8-tensor: large inputs kept leaves least: +0.01.",
    )
    costs, gains, errors = section.tables
    assert costs.rows[1][:5] == ("int8-tensor/int8-tensor", "all rounded", 2.0, (1.9, 2.1), 0.012)
    assert [row[1] for row in gains.rows] == ["keep", "free", "no use"]
    assert [row[:3] for row in errors.rows[:2]] == [(*costs.rows[1][:2], 1), (*costs.rows[2][:2], 1)]
    assert cell_text(errors.rows[0][-1]) == "30 %"
    again = (found, quantized_results.quantized(threshold=None, alpha=None))
    assert [one.name for one in sections_of(again)] == ["rounded-to-few-bits", "rounded-to-few-bits-2"]


def test_results_are_read_back_and_tabled() -> None:
    text = to_json(made())
    assert to_json(from_json(text)) == text
    rows = list(made().records())
    assert [row["setting"] for row in rows[:3]] == ["intact", "all rounded", "outliers kept"]
    assert rows[2]["change"] == pytest.approx(0.1)
    assert len(rows) == 11
    assert len(list(made().records("draws"))) == 6
    assert made().worst == "int8-tensor/int8-tensor"


def test_dimensions_are_named_as_in_a_sentence() -> None:
    assert these((507,)) == "dimension 507"
    assert these((1, 2, 3)) == "dimensions 1, 2 and 3"
    assert these(tuple(range(15))) == "dimensions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more"
