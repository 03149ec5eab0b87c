"""Puccetti et al. on a small model: parts are kept, a stopped run goes on, and the page says what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuned_models
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions
from outlierlens.replicate.puccetti import measure as puccetti_parts
from outlierlens.replicate.puccetti import options
from outlierlens.replicate.puccetti.measure import PARTS, PuccettiJob, replicate_puccetti
from outlierlens.replicate.puccetti.view import link_table, sentences
from outlierlens.report import rerender
from outlierlens.results.document import from_json, load, to_json

LOAD = LoadOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, words: Any) -> Path:
    """A classifier with planted outliers, and texts whose words are more and less frequent."""
    folder = tmp_path_factory.mktemp("puccetti")
    tuned_models.save_model(folder / "tiny", words)
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, tuned_models.WORDS + 1)
    said = [
        " ".join(f"w{one}" for one in random.choice(tuned_models.WORDS, 6, p=share / share.sum())) for _ in range(40)
    ]
    (folder / "texts.txt").write_text("\n".join(said) + "\n")
    return folder


def job(place: Path, name: str, **more: Any) -> PuccettiJob:
    return PuccettiJob(str(place / "tiny"), str(place / "texts.txt"), place / name, **more)


@pytest.fixture(scope="module")
def whole(place: Path) -> Any:
    return replicate_puccetti(job(place, "whole"), LOAD)


def test_every_part_that_the_model_can_do_is_measured_and_kept(place: Path, whole: Any) -> None:
    found = whole.puccetti
    assert set(found.dims) == set(tuned_models.PLANTED)
    assert None not in (found.frequency, found.attention, found.story, found.bands)
    assert found.predictions is None
    assert any("what the model says without them: left out, for" in note for note in found.notes)
    assert any("token frequencies are those of the measured texts (240 tokens)" in note for note in found.notes)
    kept = {path.stem for path in (place / "whole/parts").glob("*.json")}
    assert kept == {"frequency", "attention", "layers", "bands"} == set(found.seconds)
    (swept,) = whole.sweeps
    assert swept.windows == "single"
    # every outlier alone and all together, in each of four layers; the story has a line for each
    assert len(swept.effects) == 4 * tuned_models.LAYERS
    assert [line.dims for line in found.story.lines] == [*((dim,) for dim in sorted(found.dims)), found.dims]
    assert found.story.lines[0].link("frequency, raw").value.shape == (tuned_models.LAYERS,)


def test_links_are_those_of_the_frequency_part(whole: Any) -> None:
    found = whole.puccetti
    links = list(found.links())
    assert [(one.what, one.tokens) for one in links] == [
        ("frequency, raw", "without_special"), ("frequency, log", "without_special"),
        ("frequency, raw", "all"), ("frequency, log", "all"),
    ]  # fmt: skip
    contrast = found.frequency.contrast("log")
    assert (links[1].difference, links[1].low, links[1].p) == (contrast.difference, contrast.low, contrast.p)
    table = link_table(found)
    assert table.rows[1][4] == contrast.difference
    said = sentences(found)
    assert "5, 11 and 20" in said[0] or "11" in said[0]
    assert f"a difference of {contrast.difference:+.3f}" in " ".join(said)
    assert links[1].says == contrast.verdict


def test_a_stopped_run_goes_on_and_other_settings_are_not_mixed_in(
    place: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    for name, part in PARTS.items():

        def measure(at: Any, texts: Any, name: str = name, part: Any = part) -> Any:
            measured.append(name)
            return part.measure(at, texts)

        monkeypatch.setitem(puccetti_parts.PARTS, name, replace(part, measure=measure))
    again = replicate_puccetti(job(place, "whole"), LOAD)
    assert measured == []
    assert to_json(again.puccetti.frequency) == to_json(whole.puccetti.frequency)
    (place / "whole/parts/attention.json").unlink()
    replicate_puccetti(job(place, "whole"), LOAD)
    assert measured == ["attention"]
    with pytest.raises(BadInput, match=r"frequency\.json was made with other settings, data or weights"):
        replicate_puccetti(job(place, "whole", limit=30), LOAD)


def test_where_the_weights_name_nothing_the_strongest_are_a_fallback_that_is_said(place: Path, words: Any) -> None:
    tuned_models.save_model(place / "plain", words, planted=False)
    plain = replace(job(place, "plain-run", parts=("frequency",)), model=str(place / "plain"))
    found = replicate_puccetti(plain, LOAD).puccetti
    assert len(found.dims) == 2
    assert found.named_by.startswith("fallback: the 2 of largest |z|")
    assert any("are a fallback, the strongest by |z|" in note for note in found.notes)
    assert found.story is None


@pytest.mark.usefixtures("no_picture_files")
def test_the_command_writes_a_report_with_what_was_found(place: Path, whole: Any, run: Any) -> None:
    code, out, err = run(
        "replicate", "puccetti", str(place / "tiny"), "--data", str(place / "texts.txt"), "-o", str(place / "whole")
    )
    assert code == 0, err
    assert "Outliers and token frequency" in out
    page = (place / "whole/report.html").read_text()
    for title in (
        "Token frequency (Puccetti et al. 2022)",
        "Damage and correlation, layer by layer",
        "Where attention goes",
    ):
        assert title in page
    assert rerender(place / "whole") == page
    assert (place / "whole/charts/puccetti-layers.vl.json").is_file()
    assert json.loads((place / "whole/results.json").read_text())["puccetti"]["dims"] == list(whole.puccetti.dims)
    read = load(place / "whole/results.json").puccetti
    assert to_json(from_json(to_json(read))) == to_json(read)
    code, _, err = run(
        "replicate", "puccetti", str(place / "tiny"), "--data", str(place / "texts.txt"), "--parts", "poems"
    )
    assert code == 1
    assert "unknown part 'poems'; parts are frequency, attention, layers, bands, predictions" in err


def test_the_parts_of_the_command_are_the_parts_there_are() -> None:
    assert tuple(PARTS) == options.PARTS
