"""Results of other commands join a report: their sections, charts and remarks, once each, and again from its file."""

import json
from pathlib import Path
from typing import Any

import pytest

import pruning_results
import synthetic_report as synthetic
import treated_results
from outlierlens.errors import BadInput
from outlierlens.report import write
from outlierlens.report.joined import Joined, joined_notes, joined_sections, kinds, with_result
from outlierlens.report.results import ReportData
from outlierlens.results import load, save


def test_every_kind_that_joins_has_a_section_and_its_remarks() -> None:
    results: dict[str, Any] = {"BeyondZero": treated_results.beyond_zero(), "PruneCheck": pruning_results.check()}
    results["PruneExperiment"] = pruning_results.experiment()
    assert set(results) <= {kind.__name__ for kind in kinds()}
    joined = Joined()
    for kind in (one for one in kinds() if one.__name__ in results):
        before = len(joined_sections(joined))
        joined = with_result(joined, results[kind.__name__])
        assert len(joined_sections(joined)) == before + 1
        assert with_result(joined, results[kind.__name__]) is joined  # once
    assert "a note" in joined_notes(joined)
    names = [section.name for section in joined_sections(joined)]
    assert len(set(names)) == len(names)
    with pytest.raises(
        BadInput, match=r"x\.json holds Scan, which has no section in a report; those with one: BeyondZero, "
    ):
        with_result(joined, synthetic.report_data().scan, "x.json")


def test_two_results_of_a_kind_have_charts_of_their_own() -> None:
    first = treated_results.beyond_zero()
    second = type(first)(**{**vars(first), "data": "other.txt"})
    joined = with_result(with_result(Joined(), first), second)
    assert [section.charts[0].name for section in joined_sections(joined)] == ["beyond-zero", "beyond-zero-2"]


def test_a_report_is_drawn_again_with_more_results(tmp_path: Path, run: Any) -> None:
    save(treated_results.beyond_zero(), tmp_path / "beyond.json")
    save(synthetic.report_data(observed=False, damages=()).scan, tmp_path / "scan.json")
    write(synthetic.report_data(observed=False, damages=()), tmp_path / "run")
    results = str(tmp_path / "run" / "results.json")
    code, _, err = run("report", results, "--result", str(tmp_path / "beyond.json"))
    assert code == 0, err
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<h2 id="beyond-zero">Beyond zero: 3 and 7</h2>' in page
    assert "mostly a bias that is fixed for each position" in page
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert "charts/beyond-zero.vl.json" in manifest["files"]
    data = load(results)
    assert isinstance(data, ReportData)
    assert data.joined.beyond_zero[0].treated[0].verdict == "by position"
    code, _, err = run("report", results, "--result", str(tmp_path / "scan.json"))
    assert code == 1
    assert "scan.json holds Scan, which has no section in a report" in err


def test_results_of_an_older_report_have_nothing_joined() -> None:
    from outlierlens.results import from_json, to_json

    document = json.loads(to_json(synthetic.report_data(observed=False, damages=())))
    del document["joined"]
    assert from_json(json.dumps(document)).joined == Joined()
