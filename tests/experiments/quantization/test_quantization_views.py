"""What `quant` shows: the command on a shipped model, its text, charts that compile, the report's section."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quantized_results
from outlierlens import charts
from outlierlens.cli.experiment import print_sections
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.quantization.result import Quantized
from outlierlens.report.result import Joined, joined_notes, joined_sections, with_result
from outlierlens.results.document import from_json, to_json
from outlierlens.view.section import cell_text
from outlierlens.view.words import these


def made() -> Quantized:
    return quantized_results.quantized()


def test_the_command_measures_draws_and_writes(tmp_path: Path, run: Any) -> None:
    out, picture = tmp_path / "q.json", tmp_path / "q.json.svg"
    options = (
        "--data",
        "reviews",
        "--limit",
        "2",
        "--calibrate",
        "2",
        "--random",
        "1",
        "--max-length",
        "16",
        "--verbose",
    )
    schemes = ("--schemes", "int8-tensor/int8-tensor,int4-group32/none", "--dims", "7,3", "--chart", str(picture))
    code, text, error = run("quant", "mini-planted", *options, *schemes, "-o", str(out), "--no-progress")
    assert (code, error.count("\n")) == (0, 1)
    assert error.startswith("mini-planted: 2 texts, read ")
    found = from_json(out.read_text())
    assert isinstance(found, Quantized)
    assert (found.n_texts, found.n_calibration, found.dims, found.dims_source) == (2, 2, (3, 7), "given")
    assert [one.scheme for one in found.roundings] == ["int8-tensor/int8-tensor", "int4-group32/none"]
    assert text.splitlines()[0].lower() == f"{found.verdict}.".lower()
    assert "SmoothQuant scales (alpha 0.5)" in text
    assert picture.read_text().startswith("<svg")


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
    code, text, error = run("quant", "mini-planted", "--limit", "2", "--max-length", "8", "--no-progress", *given)
    assert (code, text) == (1 if given[-1] in ("999", "int4-group100/none") else 2, "")
    assert says in error


def test_what_is_printed_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(BY_NAME["quant"], made(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "Keep dimension 5 in 16 bit: int8-tensor/int8-tensor +2 → +0.1 (random +2); keeping dimension 5 does not make up for "
        "int4-channel/none +1; int8-channel/int8-token: no cost that can be told, nothing to keep (nats per token)."
    )
    (row,) = [line.split() for line in lines if "int8-tensor/int8-tensor" in line and "+1.9 to +2.1" in line]
    assert row[:6] == ["int8-tensor/int8-tensor", "+2", "+1.9", "to", "+2.1", "0.012"]
    assert " ".join(row[-3:]) == "keep the outliers"
    assert "12 %" in " ".join(row)
    (row,) = [
        line.split() for line in lines if line.startswith("int8-tensor/int8-tensor ") and "+1.85 to +1.95" in line
    ]
    assert row[1:6] == ["+1.9", "+1.85", "to", "+1.95", "0.021"]
    assert any(made().noise_note in line for line in lines)
    assert "1e-6 (3 more runs of 2 texts)" in made().noise_note
    assert any("5: 40 in layer 0 (up), rank 1 of 8, median 2" in line for line in lines)
    assert lines[-1] == "note: a note"


def test_charts_compile_and_say_what_they_show() -> None:
    pytest.importorskip("vl_convert")
    for drawn in (charts.quantization(made()), charts.quantization_losses(made()), charts.quantization_errors(made())):
        assert charts.picture(drawn, "svg").startswith(b"<svg")
        json.dumps(drawn.spec, allow_nan=False)
    losses = charts.quantization_losses(made())
    assert "int8-tensor/int8-tensor: 2.00 all rounded, 0.10 with outliers kept, 2.00 with random ones" in losses.reading
    assert len(losses.rows) == 6 + 6 + 4
    errors = charts.quantization_errors(made())
    assert errors.title == "Error of every block's output, int8-tensor/int8-tensor"
    assert ("all dimensions", "1", "outliers kept", pytest.approx(0.2001)) in errors.rows
    assert "in layer 1, 0.20 there with dimension 5 kept; 30% of it lies in them" in errors.reading
    with pytest.raises(BadInput, match=r"no scheme 'x' in this result; there are int8-tensor/int8-tensor, "):
        charts.quantization_errors(made(), "x")


def test_the_report_has_a_section() -> None:
    joined = with_result(Joined(), made())
    (section,) = joined_sections(joined)
    assert joined_notes(joined) == ("a note",)
    assert [chart.name for chart in section.charts] == ["quantization-losses", "quantization-errors"]
    assert section.sentences[0].startswith("Keep dimension 5 in 16 bit: int8-tensor/int8-tensor +2 → +0.1")
    assert section.sentences[2:3] == (
        "int8-tensor/int8-tensor: keeping dimension 5 (20 % of the weights) gives back 95 % of the cost (+1.9, 95 % interval "
        "+1.85 to +1.95, noise 0.021).",
    )
    losses, _, errors = section.tables
    assert losses.rows[0][:4] == ("int8-tensor/int8-tensor", 2.0, (1.9, 2.1), 0.012)
    assert [row[-1] for row in losses.rows] == [
        "keep the outliers",
        "no cost that can be told",
        "outliers are not what costs",
    ]
    assert losses.rows[2][-4:-1] == (None, None, None)
    assert "Mixed: inputs with |x| of at least 6 kept. Smoothed: SmoothQuant, alpha 0.5." in losses.note
    assert list(map(cell_text, errors.rows[2][3:5])) == ["–", "–"]
    assert cell_text(errors.rows[0][-2]) == "30 %"
    again = with_result(joined, replace(made(), threshold=None, alpha=None))
    assert [one.name for one in joined_sections(again)] == ["quantization", "quantization-2"]
    assert "Mixed" not in joined_sections(again)[1].tables[0].note


def test_results_are_read_back_and_tabled() -> None:
    text = to_json(made())
    assert to_json(from_json(text)) == text
    before = json.loads(text)
    del before["noise_draws"], before["n_noise_texts"]
    for one in before["roundings"]:
        for part in (one["rounded"], one["kept"], one["regained"]):
            del part["noise"]
    old = from_json(json.dumps(before))
    assert (old.noise_draws, math.isnan(old.worst.rounded.noise), math.isnan(old.worst.regained.noise)) == (
        0,
        True,
        True,
    )
    assert "was not measured" in old.noise_note
    rows = list(made().records())
    assert [row["what"] for row in rows[:4]] == ["intact", "rounded", "kept", "random"]
    assert rows[2]["change"] == pytest.approx(0.1)
    assert len(rows) == 17
    assert made().worst.scheme == "int8-tensor/int8-tensor"


def test_dimensions_are_named_as_in_a_sentence() -> None:
    assert these((507,)) == "dimension 507"
    assert these((1, 2, 3)) == "dimensions 1, 2 and 3"
    assert these(tuple(range(15))) == "dimensions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more"
