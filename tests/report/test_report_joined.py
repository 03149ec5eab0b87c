"""Results of other commands join a report: their sections, charts and remarks, once each, and again from its file."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import every_result
import synthetic_report as synthetic
import treated_results
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_RESULT
from outlierlens.experiments.beyond_zero.result import BeyondZero
from outlierlens.report import job, render, write
from outlierlens.report.result import ELSEWHERE, Joined, ReportData, joined_notes, joined_sections, with_result
from outlierlens.results.document import HOMES, load, save


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of every kind of result."""
    return every_result.made_in(tmp_path_factory.mktemp("results"))


def joins() -> set[str]:
    """The kinds that join a report."""
    return set(BY_RESULT) - set(ELSEWHERE) - {kind.__name__ for kind in job.PLACES}


def test_every_kind_of_result_has_a_place_or_a_reason(made: dict[str, Any]) -> None:
    joining = joins()
    places = {kind.__name__ for kind in job.PLACES}
    assert joining | places | set(ELSEWHERE) == set(HOMES)
    assert not (joining & places) | (joining & set(ELSEWHERE)) | (places & set(ELSEWHERE))
    for kind, why in ELSEWHERE.items():
        with pytest.raises(BadInput) as refused:
            with_result(Joined(), made[kind], "x.json")
        assert str(refused.value) == f"x.json holds {kind}, which does not join a report: {why}"


def test_every_kind_that_joins_has_sections_of_its_own_and_its_remarks(made: dict[str, Any]) -> None:
    joined = Joined()
    for kind in joins():
        before = len(joined_sections(joined))
        joined = with_result(joined, made[kind])
        assert len(joined_sections(joined)) > before, kind
        assert with_result(joined, made[kind]) is joined  # once
    assert "a note" in joined_notes(joined)
    sections = joined_sections(joined)
    assert all(section.sentences or section.charts for section in sections)
    names = [section.name for section in sections] + [chart.name for section in sections for chart in section.charts]
    charts = [chart.name for section in sections for chart in section.charts]
    assert len(set(charts)) == len(charts)
    assert len({section.name for section in sections}) == len(sections)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_a_page_of_everything_has_unique_ids_and_links(made: dict[str, Any], tmp_path: Path) -> None:
    data = made["ReportData"]
    paths = {tmp_path / kind: result for kind, result in made.items() if kind not in ELSEWHERE and kind != "Sweep"}
    data = job.with_results(
        replace(data, sweeps=(made["Sweep"],)), {p: r for p, r in paths.items() if p.name != "Track"}
    )
    assert job.with_results(data, {tmp_path / "again": made["Damage"]}) is data  # its own damage, once
    page = render(data)
    found = re.findall(r'<[a-z0-9]+ [^>]*?\bid="([^"]+)"', page.split("<script type")[0])
    assert len(found) == len(set(found))
    assert set(re.findall(r'href="#([^"]+)"', page.split("<script type")[0])) <= set(found)
    assert len(page.encode()) < 4e6
    assert "Verification was measured on" in page
    with pytest.raises(BadInput, match="x is of stream 'elsewhere'; the report's model has model"):
        job.with_results(data, {Path("x"): replace(made["Damage"], stack="elsewhere")})
    with pytest.raises(BadInput, match="x: the report holds another LuoReplication already"):
        job.with_results(data, {Path("x"): replace(made["LuoReplication"], clipping="otherwise")})


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
    assert data.joined.of(BeyondZero)[0].treated[0].verdict == "by position"
    code, _, err = run("report", results, "--result", str(tmp_path / "scan.json"))
    assert code == 1
    assert "scan.json holds Scan, which does not join a report: the report scans the model itself" in err


def test_results_of_an_older_report_have_nothing_joined() -> None:
    from outlierlens.results.document import from_json, to_json

    document = json.loads(to_json(synthetic.report_data(observed=False, damages=())))
    del document["joined"]
    assert from_json(json.dumps(document)).joined == Joined()
