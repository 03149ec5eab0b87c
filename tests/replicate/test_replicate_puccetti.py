"""Puccetti et al. on a small model: parts are kept, a stopped run goes on, and the page says what they say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tuned_models
from outlierlens.data.texts import read_texts
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.replicate.puccetti import NAMES, PARTS, PuccettiOptions, PuccettiReplication, replicate_puccetti
from outlierlens.report import rerender
from outlierlens.results.document import from_json, load, to_json
from paper_runs import gone_on

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


def made_of(
    place: Path, name: str, *, model: str = "tiny", limit: int | None = None, **asked: Any
) -> PuccettiReplication:
    loaded, texts = load_model(str(place / model), LOAD), read_texts(str(place / "texts.txt"), limit=limit)
    return replicate_puccetti(loaded, texts, PuccettiOptions(**asked), folder=place / name)


@pytest.fixture(scope="module")
def whole(place: Path) -> PuccettiReplication:
    return made_of(place, "whole")


def test_every_part_that_the_model_can_do_is_measured_and_kept(place: Path, whole: PuccettiReplication) -> None:
    assert set(whole.dims) == set(tuned_models.PLANTED)
    assert [one.part for one in whole.measured] == ["frequency", "attention", "layers", "bands"]
    assert any("what the model says without them: left out, for" in note for note in whole.notes)
    assert any("token frequencies are those of the measured texts (240 tokens)" in note for note in whole.notes)
    kept = {path.stem for path in (place / "whole/parts").glob("*.json")}
    assert kept == {"sweep", *(one.part for one in whole.measured)}
    swept, story = load(place / "whole/parts/sweep.json"), whole.part("layers")
    assert swept.windows == "single"
    # every outlier alone and all together, in each of four layers; the story has a line for each
    assert len(swept.effects) == 4 * tuned_models.LAYERS
    labels = dict.fromkeys(row.dims for row in story.by_layer)
    assert [*labels] == [*map(str, sorted(whole.dims)), ", ".join(map(str, whole.dims))]
    assert len(story.by_layer) == len(labels) * tuned_models.LAYERS


def test_it_says_what_each_part_says_first(whole: PuccettiReplication) -> None:
    said = list(whole.sentences())
    assert said == [next(part.sentences()) for part in whole.parts]
    difference = whole.part("frequency").contrast("log").difference
    assert f"a difference of {difference.value:+.3f}" in said[0]


def test_a_stopped_run_goes_on_and_other_settings_are_not_mixed_in(
    place: Path, whole: PuccettiReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = place / "stopped/rows"
    again = gone_on(PARTS, "bands", rows, lambda: made_of(place, "stopped"), monkeypatch)
    for mine, other in zip(again.parts, whole.parts, strict=True):
        pd.testing.assert_frame_equal(mine.to_pandas(), other.to_pandas(), rtol=1e-12)
    fewer = made_of(place, "stopped", limit=30, parts=("frequency",))
    assert fewer.part("frequency").about.n_texts == 30
    alone = made_of(place, "fewer", limit=30, parts=("frequency",))
    pd.testing.assert_frame_equal(fewer.part("frequency").to_pandas(), alone.part("frequency").to_pandas())


def test_where_the_weights_name_nothing_the_strongest_are_a_fallback_that_is_said(place: Path, words: Any) -> None:
    tuned_models.save_model(place / "plain", words, planted=False)
    found = made_of(place, "plain-run", model="plain", parts=("frequency",))
    assert len(found.dims) == 2
    assert found.about.named_by == "largest |z| in the weights, as the scan names none"
    assert any("are the 2 of largest |z| in the weights, which is no finding" in note for note in found.notes)
    alone = made_of(place, "alone", parts=("layers",))
    assert alone.parts == ()
    assert any(
        "a rank correlation over layers needs 4 layers, and frequency or attention" in one for one in alone.notes
    )


@pytest.mark.usefixtures("no_picture_files")
def test_the_command_writes_a_report_with_what_was_found(place: Path, whole: Any, run: Any) -> None:
    code, out, err = run(
        "replicate", "puccetti", str(place / "tiny"), "--data", str(place / "texts.txt"), "-o", str(place / "whole")
    )
    assert code == 0, err
    assert next(whole.sentences()) in out.replace("\n", " ")
    page = (place / "whole/report.html").read_text()
    for title in (
        "Token frequency (Puccetti et al. 2022)",
        "Damage and correlation, layer by layer",
        "Where attention goes",
    ):
        assert title in page
    assert rerender(place / "whole") == page
    assert (place / "whole/charts/puccetti-layers.vl.json").is_file()
    assert json.loads((place / "whole/results.json").read_text())["findings"][-1]["counts"] == whole.counts
    data = load(place / "whole/results.json")
    assert [one.windows for one in data.sweeps] == ["single"]
    (read,) = data.of(PuccettiReplication)
    assert read.dims == whole.dims
    assert to_json(from_json(to_json(read))) == to_json(read)
    code, _, err = run(
        "replicate", "puccetti", str(place / "tiny"), "--data", str(place / "texts.txt"), "--parts", "poems"
    )
    assert code == 1
    assert "unknown part 'poems'; parts are frequency, attention, layers, bands, predictions" in err


def test_the_parts_of_the_command_are_the_parts_there_are() -> None:
    assert tuple(PARTS) == NAMES == PuccettiOptions().parts
