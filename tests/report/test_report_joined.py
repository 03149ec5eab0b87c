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
from outlierlens.analyses.ablate import Ablation
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_RESULT
from outlierlens.report import job, render, write
from outlierlens.report.result import ELSEWHERE, ReportData, check_joins, sections_of
from outlierlens.results.document import HOMES, load, save
from outlierlens.view.section import notes_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of every kind of result."""
    return every_result.made_in(tmp_path_factory.mktemp("results"))


def joins() -> set[str]:
    """The kinds that join a report."""
    return set(BY_RESULT) - set(ELSEWHERE)


def test_every_kind_of_result_has_a_place_or_a_reason(made: dict[str, Any]) -> None:
    assert joins() | set(ELSEWHERE) == set(HOMES)
    for kind in joins():
        check_joins(made[kind])
    for kind, why in ELSEWHERE.items():
        with pytest.raises(BadInput) as refused:
            check_joins(made[kind], "x.json")
        assert str(refused.value) == f"x.json holds {kind}, which does not join a report: {why}"


def test_every_kind_that_joins_has_sections_of_its_own_and_its_remarks(made: dict[str, Any]) -> None:
    found = [made[kind] for kind in sorted(joins())]
    assert all(sections_of((one,)) for one in found)
    assert any("a note" in notes_of(one) for one in found)
    sections = sections_of(found)
    assert all(section.sentences or section.charts for section in sections)
    names = [section.name for section in sections] + [chart.name for section in sections for chart in section.charts]
    charts = [chart.name for section in sections for chart in section.charts]
    assert len(set(charts)) == len(charts)
    assert len({section.name for section in sections}) == len(sections)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_a_page_of_everything_has_unique_ids_and_links(made: dict[str, Any], tmp_path: Path) -> None:
    data = made["ReportData"]
    paths = {
        tmp_path / kind: every_result.of_model(result, data.provenance.model)
        for kind, result in made.items()
        if kind not in ELSEWHERE and kind != "Sweep"
    }
    data = job.with_results(
        synthetic.changed(data, sweeps=(made["Sweep"],)), {p: r for p, r in paths.items() if p.name != "Track"}
    )
    assert job.with_results(data, {tmp_path / "again": made["Ablation"]}) is data  # its own damage, once
    page = render(data)
    found = re.findall(r'<[a-z0-9]+ [^>]*?\bid="([^"]+)"', page.split("<script type")[0])
    assert len(found) == len(set(found))
    assert set(re.findall(r'href="#([^"]+)"', page.split("<script type")[0])) <= set(found)
    assert len(page.encode()) < 4e6
    with pytest.raises(BadInput, match="x is of stream 'elsewhere'; the report's model has model"):
        job.with_results(
            data, {Path("x"): replace(made["Ablation"], about=replace(made["Ablation"].about, stack="elsewhere"))}
        )
    with pytest.raises(BadInput, match="x: the report holds another LuoReplication already"):
        job.with_results(data, {Path("x"): replace(made["LuoReplication"], clipping="otherwise")})


def test_a_result_of_another_model_does_not_join(made: dict[str, Any]) -> None:
    data, path = made["ReportData"], Path("found.json")
    (damage,) = data.damages[:1]
    own = damage.provenance

    def of(**changes: Any) -> Any:
        return replace(treated_results.ablation(), provenance=replace(own, **changes))

    assert job.with_results(data, {path: of(model="elsewhere/smollm2")}) != data  # the same values: any name
    assert job.with_results(data, {path: of(fingerprint="e" * 64, dtype="float32")}) != data  # another precision
    for other in (of(fingerprint="e" * 64), of(model="gpt2", fingerprint="e" * 64, dtype="float32")):
        with pytest.raises(BadInput) as refused:
            job.with_results(data, {path: other})
        assert str(refused.value).startswith(
            f"found.json is of {other.provenance.model} (fingerprint eeeeeeeeeeee), not of smollm2-135m (9f9f9f9f9f9f)"
        )
    with pytest.raises(BadInput, match=r"is of smollm2-135m \(fingerprint eeee"):
        job.with_results(data, {path: replace(damage, provenance=replace(own, fingerprint="e" * 64))})
    sweep = replace(made["Sweep"], provenance=replace(own, fingerprint="e" * 64))
    with pytest.raises(BadInput, match=r"^sweep.json is of gpt2 \("):
        job.with_results(data, {Path("sweep.json"): every_result.of_model(sweep, "gpt2")})


def test_every_section_that_joins_says_its_model() -> None:
    found = every_result.of_model(treated_results.ablation(), "some-model")
    for section in sections_of((found,)):
        assert any("some-model" in sentence for sentence in section.sentences)


def test_two_results_of_a_kind_have_charts_of_their_own() -> None:
    first = treated_results.ablation()
    second = replace(first, about=replace(first.about, data="other.txt"))
    name = "ablation"
    assert [section.charts[0].name for section in sections_of((first, second))] == [name, f"{name}-2"]


def test_a_report_is_drawn_again_with_more_results(tmp_path: Path, run: Any) -> None:
    save(every_result.of_model(treated_results.ablation(), "smollm2-135m"), tmp_path / "beyond.json")
    save(treated_results.ablation(), tmp_path / "other.json")
    save(synthetic.report_data(observed=False, damages=()).scan, tmp_path / "scan.json")
    write(synthetic.report_data(observed=False, damages=()), tmp_path / "run")
    results = str(tmp_path / "run" / "results.json")
    code, _, err = run("report", results, "--result", str(tmp_path / "beyond.json"))
    assert code == 0, err
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<h2 id="ablation">Ablation: 3, 7</h2>' in page
    assert "mostly a bias that is fixed for each position" in page
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert "charts/ablation.vl.json" in manifest["files"]
    data = load(results)
    assert isinstance(data, ReportData)
    assert data.of(Ablation)[0].verdict("3, 7") == "by position"
    assert (
        "Measured on smollm2-135m." in page or "smollm2-135m" in page.partition('id="ablation"')[2].partition("<h2")[0]
    )
    code, _, err = run("report", results, "--result", str(tmp_path / "other.json"))
    assert code == 1
    assert (
        "other.json is of m (fingerprint f), not of smollm2-135m (9f9f9f9f9f9f); a result joins the report of its"
        in err
    )
    code, _, err = run("report", results, "--result", str(tmp_path / "scan.json"))
    assert code == 1
    assert "scan.json holds Scan, which does not join a report: the report scans the model itself" in err


def test_a_report_without_its_scan_is_refused() -> None:
    with pytest.raises(BadInput, match="a report holds the scan of its model"):
        ReportData(synthetic.PROVENANCE, (treated_results.ablation(),))
