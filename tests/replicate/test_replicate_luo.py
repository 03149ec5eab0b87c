"""Luo et al. on a small model and small data: parts are kept, a stopped run goes on, and the page says what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tuned_models
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.replicate import luo as module
from outlierlens.replicate.luo import PARTS, LuoOptions, LuoReplication, effects_of, extremes, replicate_luo
from outlierlens.replicate.papers import (
    PAIRS,
    PaperData,
    PublishedNumber,
    checkpoint_of,
    published_extremes,
    published_for,
)
from outlierlens.results.document import load
from paper_runs import gone_on

LOAD = LoadOptions(dtype="float32", device="cpu")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, words: Any) -> Path:
    """A model with outliers and data in the paper's layout, without SST-5 and IMDB."""
    folder = tmp_path_factory.mktemp("luo")
    tuned_models.save_model(folder / "tiny", words)
    random = np.random.default_rng(0)
    values = tuned_models.word_values().sum(1)

    def sentence() -> str:
        return " ".join(f"w{word}" for word in random.integers(0, tuned_models.WORDS, int(random.integers(3, 8))))

    def worth(text: str) -> float:
        return float(np.mean([values[int(word[1:])] for word in text.split()]))

    for split, n in (("train", 400), ("validation", 40)):
        texts = [sentence() for _ in range(n)]
        write(
            folder / "data/glue/sst2" / f"{split}.jsonl", [{"sentence": t, "label": int(worth(t) > 0)} for t in texts]
        )
        rows = []
        for _ in range(60):
            one, two = sentence(), sentence()
            same = one.split()[1]
            other = two.split()
            other[0] = same
            rows.append(
                {"word": same, "sentence1": one, "sentence2": " ".join(other), "index1": 1, "index2": 0}
                | {"label": bool(random.integers(0, 2))}
            )
        write(folder / "data/wic" / f"{split}.jsonl", rows)
    for split in ("train", "validation", "test"):
        rows = [{"sentence1": sentence(), "sentence2": sentence()} for _ in range(60 if split == "test" else 150)]
        write(
            folder / "data/sts/stsb" / f"{split}.jsonl",
            [row | {"score": 5 - abs(worth(row["sentence1"]) - worth(row["sentence2"]))} for row in rows],
        )
    return folder


def made_of(place: Path, name: str, *, model: str = "tiny", overwrite: bool = False, **asked: Any) -> LuoReplication:
    loaded, data = load_model(str(place / model), LOAD), PaperData(str(place / "data"))
    return replicate_luo(loaded, data, LuoOptions(**asked), folder=place / name, overwrite=overwrite)


def held_out(place: Path, name: str) -> Any:
    return load(place / name / "parts/observation.json")


@pytest.fixture(scope="module")
def whole(place: Path) -> LuoReplication:
    return made_of(place, "whole")


def test_every_part_with_data_is_measured_and_kept(place: Path, whole: LuoReplication) -> None:
    names = [one.part for one in whole.measured]
    assert names == ["origin", "probe", "geometry", "words", "sts", "frozen-sst2"]
    assert whole.part("frozen-sst2").about.task == "glue:sst2"
    kept = {path.stem for path in (place / "whole/parts").glob("*.json")}
    assert kept == {"observation", *names}
    assert any("SST-5: left out, for" in note and "has no folder sst5" in note for note in whole.notes)
    assert any("similarity: without sickr, sts12, sts13, sts14, sts15, sts16, for" in note for note in whole.notes)
    assert load(place / "whole/parts/sts.json").data[0].n_pairs == 60
    # every part clips what the observation found, and the planted dimensions are among that
    assert all(whole.clipped.values())
    assert set(tuned_models.PLANTED) & {dim for dims in whole.clipped.values() for dim in dims}
    assert whole.part("sts").clipped == whole.clipped
    assert whole.part("geometry").clipped == whole.clipped
    # its position vectors are all zero
    assert "bert.embeddings.position_embeddings.weight: no row differs from a constant, so it says nothing" in (
        whole.part("origin").notes
    )
    assert "token vectors in at least 25% of the blocks, observed on" in whole.clipping
    with pytest.raises(BadInput, match="no part 'imdb'; there are origin, probe"):
        whole.part("imdb")


def test_effects_are_those_of_the_parts(whole: LuoReplication) -> None:
    effects = {(one.data, one.chosen): one for one in whole.of_fix("whiten")}
    assert set(effects) == {
        ("wic", "best"), ("wic", "held out"), ("stsb", "best"), ("stsb", "held out"), ("sst2", "best"), ("sst2", "held out"),
    }  # fmt: skip
    stsb = whole.part("sts").choice("stsb", "whiten", "best")
    assert effects["stsb", "best"].score == stsb.score
    assert effects["stsb", "best"].says == stsb.says
    mine = whole.part("frozen-sst2").choice("whiten")
    assert (effects["sst2", "held out"].change, effects["sst2", "held out"].layer) == (mine.change, mine.layer)
    for chosen in ("best", "held out"):
        assert effects["wic", chosen].score == whole.part("words").choice("wic train", "whiten", chosen).score
    assert whole.of_fix("nothing") == ()
    # in a layer where nothing is clipped, clipped vectors are the raw ones
    parts = dict(zip((one.part for one in whole.measured), whole.parts, strict=True))
    elsewhere = replace(whole, effects=tuple(effects_of(parts, {"99": (5,)})))
    assert {one.says for one in elsewhere.of_fix()} == {"nothing to clip there"}
    assert "has nothing to act on at the layer chosen for wic, stsb and sst2" in next(elsewhere.sentences())
    everywhere = effects_of(parts, dict.fromkeys(("embeddings", "0", "1", "2", "3"), (5,)))
    assert "nothing to clip there" not in {one.says for one in everywhere}
    frame = whole.to_pandas()
    assert set(frame["fix"]) == {"clip", "standardize", "abtt:3", "whiten"}
    assert len(frame) == 4 * len(effects) + 1
    (there,) = (one for one in whole.of_fix() if one.chosen == "clipped layer")
    assert (there.data, there.layer) == ("stsb", there.raw_layer)
    assert f"At the best layer that is clipped ({there.layer}), it " in " ".join(whole.sentences())


def test_a_stopped_run_goes_on_with_what_is_missing(
    place: Path, whole: LuoReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = place / "stopped/rows"
    again = gone_on(PARTS, "words", rows, lambda: made_of(place, "stopped"), monkeypatch)
    for one in whole.measured:
        same(again.part(one.part), whole.part(one.part))
    done = {path: path.read_bytes() for path in rows.glob("*.jsonl")}
    made_of(place, "stopped")
    assert {path: path.read_bytes() for path in rows.glob("*.jsonl")} == done


def same(one: Any, other: Any) -> None:
    """Whether two parts say the same."""
    assert [*one.all_rows()] == [*other.all_rows()]
    for name in one.all_rows():
        pd.testing.assert_frame_equal(one.to_pandas(name), other.to_pandas(name), rtol=1e-12)


def test_data_or_settings_that_changed_do_not_mix_with_what_is_there(place: Path, whole: LuoReplication) -> None:
    path = place / "data/wic/validation.jsonl"
    before = path.read_text()
    try:
        path.write_text(before + before.splitlines()[0] + "\n")
        assert made_of(place, "whole", parts=("words",)).part("words").data[1].n_pairs == 61
    finally:
        path.write_text(before)
    again = made_of(place, "whole", parts=("words",))
    same(again.part("words"), whole.part("words"))
    made = made_of(place, "mine", parts=("origin", "sts"), clip="5")
    assert made.clipped == {str(layer): (5,) for layer in range(tuned_models.LAYERS)}
    over = made_of(place, "mine", parts=("origin", "sts"), clip="11")
    assert 11 in over.part("origin").dims
    same(over.part("sts"), made_of(place, "new", parts=("sts",), clip="11").part("sts"))


def test_where_the_rule_names_nothing_the_most_extreme_are_clipped(place: Path, words: Any) -> None:
    tuned_models.save_model(place / "plain", words, planted=False)
    made = made_of(place, "fallback", model="plain", parts=("words",))
    (seen,) = held_out(place, "fallback").stacks
    view = seen.view("without_special")
    lowest = seen.dims[int(np.asarray(view.argmin_share)[1:].mean(0).argmax())]
    highest = seen.dims[int(np.asarray(view.argmax_share)[1:].mean(0).argmax())]
    assert "a fallback, for no dimension" in made.clipping
    assert set(made.clipped.values()) == {tuple(sorted({lowest, highest}))}
    assert f"{lowest} is the smallest entry of" in made.clipping
    # in full the page shows all sentences, and what is clipped still comes from those that no part measures
    full = made_of(place, "whole-fallback", model="plain", parts=("origin",), full=True)
    assert full.clipping == made.clipping
    assert held_out(place, "whole-fallback").about.n_texts == 400
    assert held_out(place, "fallback").about.n_texts == 200


def test_a_sentence_that_clipped_dimensions_come_from_is_measured_nowhere(place: Path, tmp_path: Path) -> None:
    rows = [{"sentence": text, "label": 1} for text in ("w1 w2", "w3 w4", "w5", "w1  w2", "w6 w7", "w3 w4")]
    write(tmp_path / "data/sst2/train.jsonl", rows)
    loaded, data = load_model(str(place / "tiny"), LOAD), PaperData(str(tmp_path / "data"))
    run = module.LuoRun(loaded, data, LuoOptions(), tmp_path / "run", progress=None)
    assert run.held_out.texts == ("w3 w4", "w1  w2", "w3 w4")
    assert run.sentences.texts == ("w5", "w6 w7")


def test_neither_nothing_to_clip_nor_more_than_can_be_followed_stops_a_run(
    place: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = made_of(place, "nothing", parts=("origin", "sts"), clip="none")
    assert nothing.clipped == {}
    assert {one.says for one in nothing.of_fix()} == {"nothing to clip there"}
    monkeypatch.setattr(module, "MAX_NAMED", 2)
    made = made_of(place, "many", parts=("origin",), clip="3,5,11")
    assert made.part("origin").dims == (3, 5)


def test_data_is_found_in_either_layout(place: Path, tmp_path: Path) -> None:
    data = PaperData(str(place / "data"))
    assert data.folder("sst2") == str(place / "data/glue/sst2")
    assert data.folder(PAIRS) == str(place / "data/sts")
    assert not data.has("imdb")
    assert data.has("sts")
    assert data.lacking_pairs() == ("sickr", "sts12", "sts13", "sts14", "sts15", "sts16")
    # GLUE's copy has no scores to test on, and is no reason to go to the hub
    (tmp_path / "glue/stsb").mkdir(parents=True)
    assert not PaperData(str(tmp_path)).has("sts")
    assert PaperData(None).lacking_pairs() == ()
    assert len(data.sentences()) > 3
    (tmp_path / "wic").mkdir()
    with pytest.raises(BadInput, match="no folder sst2 with the sentences that most parts read; it has glue, wic"):
        PaperData(str(tmp_path)).sentences()
    assert PaperData(None).has("imdb")


def test_published_numbers_are_those_of_the_very_checkpoint() -> None:
    roberta = {"model_type": "roberta", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 50265}
    assert checkpoint_of("roberta-base", roberta) == "roberta-base"
    assert checkpoint_of("roberta-base", roberta | {"num_hidden_layers": 6}) == ""
    distil = {"model_type": "distilbert", "n_layers": 6, "dim": 768, "vocab_size": 28996}
    assert checkpoint_of("distilbert/distilbert-base-cased", distil) == "distilbert-base-cased"
    stsb = {one.data: one for one in published_for("luo", "distilbert-base-cased")}["stsb"]
    # the paper's exception: clipping hurts DistilBERT
    assert (stsb.before, stsb.after, stsb.change) == pytest.approx((0.5965, 0.5662, -0.0303))
    assert "inferred" in stsb.evidence
    assert published_for("luo", "") == published_for("luo", "minilm") == ()


def test_the_commonest_extremes_stand_beside_the_papers_shares(place: Path, whole: LuoReplication) -> None:
    seen = held_out(place, "whole").stacks[0]
    smallest, largest = seen.pooled_shares().values()
    found = {one.end: one for one in whole.extremes}
    assert [found[end].share for end in found] == pytest.approx([smallest.max(), largest.max()], abs=1e-6)
    assert found["largest entry"].dim == seen.dims[int(largest.argmax())]
    assert {one.published for one in found.values()} == {None}
    # dimension 3 is the paper's, whatever it is here
    beside = tuple(extremes(seen, {("smallest entry", 3): 0.5}))
    mine = next(one for one in beside if one.published is not None)
    assert (mine.dim, mine.end) == (3, "smallest entry")
    assert mine.share == pytest.approx(smallest[seen.dims.index(3)], abs=1e-6)
    assert published_extremes("roberta-base")["largest entry", 588] == 1.0
    table = next(replace(whole, extremes=beside).sections()).tables[1]
    assert table.columns[-1] == "published"
    assert 0.5 in [row[-1] for row in table.rows]
    assert next(whole.sections()).tables[1].columns == ("dim", "is the", "of token vectors")


def test_published_numbers_stand_beside_scores_chosen_their_way(whole: LuoReplication) -> None:
    known = PublishedNumber(
        data="stsb",
        before=0.5660,
        after=0.6061,
        change=0.0401,
        source="Luo et al. 2021, table 2",
        evidence="the paper's",
    )
    parts = {"sts": whole.part("sts"), "words": whole.part("words")}
    effects = tuple(effects_of(parts, whole.clipped, (known,)))
    beside = {(one.data, one.fix, one.chosen) for one in effects if one.published is not None}
    assert beside == {("stsb", "clip", "best")}
    made = replace(whole, effects=effects, published=(known,))
    table = next(made.sections()).tables[0]
    assert table.columns[-2:] == ("published raw", "published clipped")
    assert (0.5660, 0.6061) in [row[-2:] for row in table.rows]
    assert next(made.sections(verbose=True)).tables[2].title == "Published numbers"
    assert not any("None of the paper's numbers" in said for said in made.sentences())
