"""Luo et al. on a small model and small data: parts are kept, a stopped run goes on, and the page says what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuned_models
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions
from outlierlens.replicate.luo import measure as luo_parts
from outlierlens.replicate.luo import measure as module
from outlierlens.replicate.luo import options
from outlierlens.replicate.luo.data import LuoData, published_for, shares_for
from outlierlens.replicate.luo.measure import PARTS, LuoJob, replicate_luo
from outlierlens.replicate.luo.result import Effect, LuoReplication, Published, effect_rows, extremes
from outlierlens.replicate.luo.view import effect_table, sections, sentences
from outlierlens.replicate.papers import checkpoint_of
from outlierlens.report import rerender
from outlierlens.results.document import from_json, load, save, to_json

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


def job(place: Path, name: str, **more: Any) -> LuoJob:
    return LuoJob(str(place / "tiny"), LuoData(str(place / "data")), place / name, **more)


@pytest.fixture(scope="module")
def whole(place: Path) -> Any:
    return replicate_luo(job(place, "whole"), LOAD)


def test_every_part_with_data_is_measured_and_kept(place: Path, whole: Any) -> None:
    found = whole.luo
    assert None not in (found.origin, found.probe, found.geometry, found.words, found.sts)
    assert [one.task for one in found.frozen] == ["glue:sst2"]
    kept = {path.stem for path in (place / "whole/parts").glob("*.json")}
    assert kept == {"observation", "origin", "probe", "geometry", "words", "sts", "frozen-sst2"}
    assert set(found.seconds) == kept
    assert any("SST-5: left out, for" in note and "has no folder sst5" in note for note in found.notes)
    assert any("similarity: without SICK-R, STS12, STS13, STS14, STS15, STS16, for" in note for note in found.notes)
    assert load(place / "whole/parts/sts.json").task("stsb").n_pairs == 60
    # every part clips what the observation found, and the planted dimensions are among that
    assert found.clipped == {layer: tuple(dims) for layer, dims in found.clipped.items() if dims}
    assert set(tuned_models.PLANTED) & {dim for dims in found.clipped.values() for dim in dims}
    assert found.sts.fitted.clipped == found.clipped
    assert found.geometry.clipped == found.clipped
    # its position vectors are all zero
    assert "bert.embeddings.position_embeddings.weight: no row differs from a constant, so it says nothing" in (
        found.origin.stacks[0].notes
    )
    assert "token vectors in at least 25% of the blocks, observed on" in found.clipping


def test_effects_are_those_of_the_parts(whole: Any) -> None:
    found = whole.luo
    effects = {(one.data, one.how): one for one in found.effects("whiten")}
    assert list(effects) == [
        ("wic", "best"), ("wic", "held out"), ("stsb", "best"), ("stsb", "held out"), ("sst2", "best"), ("sst2", "held out"),
    ]  # fmt: skip
    stsb = found.sts.task("stsb").choice("whiten", "best")
    assert effects["stsb", "best"].value == stsb.score
    assert effects["stsb", "best"].says == stsb.verdict
    mine = found.frozen[0].fix("whiten").selected
    assert (effects["sst2", "held out"].change, effects["sst2", "held out"].layer) == (mine.change, mine.layer)
    word = found.words.choice("whiten")
    assert (effects["wic", "held out"].value, effects["wic", "best"].value) == (word.crossed, word.accuracy)
    assert found.effects("nothing") == ()
    # in a layer where nothing is clipped, clipped vectors are the raw ones
    elsewhere = replace(found, clipped={"99": (5,)})
    assert {one.says for one in elsewhere.effects()} == {"nothing to clip there"}
    assert "has nothing to act on at the layer chosen for WiC, STS-B and SST-2" in sentences(elsewhere)[0]
    everywhere = replace(found, clipped=dict.fromkeys(("embeddings", "0", "1", "2", "3"), (5,)))
    assert "nothing to clip there" not in {one.says for one in everywhere.effects()}
    frame = found.to_pandas()
    assert set(frame["fix"]) == {"clip", "standardize", "abtt:3", "whiten"}
    assert len(frame) == 4 * len(effects) + 1
    (there,) = (one for one in found.effects() if one.how == "clipped layer")
    assert (there.data, there.layer) == ("stsb", there.raw_layer)
    assert f"At the best layer that is clipped ({there.layer}), it " in " ".join(sentences(found))


def test_a_stopped_run_goes_on_with_what_is_missing(place: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    for name, part in PARTS.items():

        def measure(at: Any, part: Any = part, name: str = name) -> Any:
            measured.append(name)
            return part.measure(at)

        monkeypatch.setitem(PARTS, name, type(part)(part.title, part.needs, measure))
    again = replicate_luo(job(place, "whole"), LOAD)
    assert measured == []
    assert again.luo.seconds == whole.luo.seconds
    (place / "whole/parts/words.json").unlink()
    assert replicate_luo(job(place, "whole"), LOAD).luo.words.data[0].n_pairs == 60
    assert measured == ["words"]


def test_data_that_changed_does_not_mix_with_what_is_there(place: Path, whole: Any) -> None:
    path = place / "data/wic/validation.jsonl"
    before = path.read_text()
    try:
        path.write_text(before + before.splitlines()[0] + "\n")
        with pytest.raises(BadInput, match=r"words\.json was made with other settings, data or weights"):
            replicate_luo(job(place, "whole"), LOAD)
    finally:
        path.write_text(before)
    assert replicate_luo(job(place, "whole"), LOAD).luo.words is not None


def test_other_settings_do_not_mix_with_what_is_there(place: Path, whole: Any) -> None:
    with pytest.raises(
        BadInput, match=r"observation\.json was made with other settings, data or weights; name another"
    ):
        replicate_luo(job(place, "whole", seed=1), LOAD)
    made = replicate_luo(job(place, "mine", parts=("origin",), clip="5"), LOAD)
    with pytest.raises(BadInput, match=r"origin\.json was made with other settings"):
        replicate_luo(job(place, "mine", parts=("origin",), clip="11"), LOAD)
    assert made.luo.clipped == {str(layer): (5,) for layer in range(tuned_models.LAYERS)}
    over = replicate_luo(job(place, "mine", parts=("origin",), clip="11", overwrite=True), LOAD)
    assert 11 in over.luo.origin.stacks[0].dims


def test_where_the_rule_names_nothing_the_most_extreme_are_clipped(place: Path, words: Any) -> None:
    tuned_models.save_model(place / "plain", words, planted=False)
    made = replicate_luo(
        LuoJob(str(place / "plain"), LuoData(str(place / "data")), place / "fallback", parts=("words",)), LOAD
    )
    (seen,) = made.observation.stacks
    view = seen.view("without_special")
    lowest = seen.dims[int(np.asarray(view.argmin_share)[1:].mean(0).argmax())]
    highest = seen.dims[int(np.asarray(view.argmax_share)[1:].mean(0).argmax())]
    if "a fallback, for no dimension" in made.luo.clipping:
        assert set(made.luo.clipped.values()) == {tuple(sorted({lowest, highest}))}
        assert f"{lowest} is the smallest entry of" in made.luo.clipping
    else:
        pytest.fail(f"the rule named {made.luo.clipped}: the model has no outliers")
    # in full the page shows all sentences, and what is clipped still comes from those that no part measures
    full = replicate_luo(
        LuoJob(str(place / "plain"), LuoData(str(place / "data")), place / "whole-fallback", ("origin",), full=True),
        LOAD,
    )
    assert full.luo.clipping == made.luo.clipping
    assert full.observation.n_texts == 400
    assert load(place / "whole-fallback/parts/observation-held-out.json").n_texts == made.observation.n_texts == 200


def test_a_sentence_that_clipped_dimensions_come_from_is_measured_nowhere(place: Path, tmp_path: Path) -> None:
    rows = [{"sentence": text, "label": 1} for text in ("w1 w2", "w3 w4", "w5", "w1  w2", "w6 w7", "w3 w4")]
    write(tmp_path / "data/sst2/train.jsonl", rows)
    run = module._LuoRun(LuoJob(str(place / "tiny"), LuoData(str(tmp_path / "data")), tmp_path / "run"), LOAD)
    assert run.held_out.texts == ("w3 w4", "w1  w2", "w3 w4")
    assert run.sentences.texts == ("w5", "w6 w7")


def test_neither_nothing_to_clip_nor_more_than_can_be_followed_stops_a_run(
    place: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = replicate_luo(job(place, "nothing", parts=("origin", "sts"), clip="none"), LOAD)
    assert nothing.luo.clipped == {}
    assert {one.says for one in nothing.luo.effects()} == {"nothing to clip there"}
    monkeypatch.setattr(luo_parts, "MAX_NAMED", 2)
    made = replicate_luo(job(place, "many", parts=("origin",), clip="3,5,11"), LOAD)
    assert made.luo.origin.stacks[0].dims == (3, 5)


@pytest.mark.usefixtures("no_picture_files")
def test_the_page_and_the_command_say_what_was_found(place: Path, whole: Any, run: Any) -> None:
    code, out, err = run(
        "replicate", "luo", str(place / "tiny"), "--data", str(place / "data"), "-o", str(place / "whole"), "--dtype",
        "float32", "--device", "cpu", "--no-progress",
    )  # fmt: skip
    assert code == 0, err
    sentence = sentences(whole.luo)[0]
    assert sentence in out
    page = (place / "whole/report.html").read_text("utf-8")
    for title in ("Positional artefacts (Luo et al. 2021)", "Where positions can be read", "How vectors lie in space"):
        assert title in page
    assert rerender(place / "whole") == page
    assert (place / "whole/charts/luo-sts.vl.json").is_file()
    assert (place / "whole/charts/vector-panels.vl.json").is_file()
    code, _, err = run("replicate", "luo", str(place / "tiny"), "--parts", "poems", "-o", str(place / "x"))
    assert code == 1
    assert "unknown part 'poems'; parts are origin, probe, geometry, words, sts" in err
    code, _, err = run("replicate", "luo", str(place / "tiny"), "--data", str(place / "none"), "-o", str(place / "x"))
    assert "no such folder; --data takes a folder with one folder per data set" in err


def test_a_result_file_reads_back_the_same(whole: Any, tmp_path: Path) -> None:
    path = save(whole.luo, tmp_path / "luo.json")
    assert to_json(load(path)) == to_json(whole.luo)
    assert isinstance(from_json(path.read_text()), LuoReplication)


def test_data_is_found_in_either_layout(place: Path, tmp_path: Path) -> None:
    data = LuoData(str(place / "data"))
    assert data.folder("sst2") == str(place / "data/glue/sst2")
    assert data.pairs_root() == place / "data/sts"
    assert not data.has("imdb")
    assert data.has("sts")
    assert data.lacking_pairs() == ("SICK-R", "STS12", "STS13", "STS14", "STS15", "STS16")
    # GLUE's copy has no scores to test on, and is no reason to go to the hub
    (tmp_path / "glue/stsb").mkdir(parents=True)
    assert not LuoData(str(tmp_path)).has("sts")
    assert LuoData(None).lacking_pairs() == ()
    assert len(data.sentences(limit=3)) == 3
    (tmp_path / "wic").mkdir()
    with pytest.raises(BadInput, match="no folder sst2 with the sentences that most parts read; it has glue, wic"):
        LuoData(str(tmp_path)).sentences()
    assert LuoData(None).has("imdb")


def test_published_numbers_are_those_of_the_very_checkpoint() -> None:
    roberta = {"model_type": "roberta", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 50265}
    assert checkpoint_of("roberta-base", roberta) == "roberta-base"
    assert checkpoint_of("roberta-base", roberta | {"num_hidden_layers": 6}) is None
    distil = {"model_type": "distilbert", "n_layers": 6, "dim": 768, "vocab_size": 28996}
    assert checkpoint_of("distilbert/distilbert-base-cased", distil) == "distilbert-base-cased"
    stsb = {one.data: one for one in published_for("distilbert-base-cased")}["stsb"]
    # the paper's exception: clipping hurts DistilBERT
    assert (stsb.raw, stsb.clipped) == pytest.approx((0.5965, 0.5662))
    assert "inferred" in stsb.evidence
    assert published_for(None) == published_for("minilm") == ()


def test_the_commonest_extremes_stand_beside_the_papers_shares(whole: Any) -> None:
    seen = whole.observation.stacks[0]
    smallest, largest = (shares for shares in seen.pooled_shares().values())
    found = {one.end: one for one in whole.luo.extremes}
    assert [found[end].share for end in found] == pytest.approx([smallest.max(), largest.max()], abs=1e-6)
    assert found["largest entry"].dim == seen.dims[int(largest.argmax())]
    assert {one.published for one in found.values()} == {None}
    # dimension 3 is the paper's, whatever it is here
    beside = extremes(seen, {("smallest entry", 3): 0.5})
    mine = next(one for one in beside if one.published is not None)
    assert (mine.dim, mine.end) == (3, "smallest entry")
    assert mine.share == pytest.approx(smallest[seen.dims.index(3)], abs=1e-6)
    assert shares_for("roberta-base")["largest entry", 588] == 1.0
    assert shares_for(None) == {}
    table = next(sections(replace(whole.luo, extremes=beside))).tables[-1]
    assert table.columns[-1] == "published"
    assert 50.0 in [row[-1] for row in table.rows]
    assert next(sections(whole.luo)).tables[-1].columns == ("dim", "is the", "% of token vectors")


def test_published_numbers_stand_beside_scores_chosen_their_way() -> None:
    known = Published("stsb", 0.5660, 0.6061, "Luo et al. 2021, table 2", "the paper's checkpoint")
    one = Effect(
        "stsb", "Spearman's ρ", "clip", "best", "3", "2", 0.56, 0.60, 0.04, 0.02, 0.06, "+2.00 to +6.00", "helps", known
    )
    other = Effect(
        "sickr",
        "Spearman's ρ",
        "clip",
        "best",
        "3",
        "2",
        0.61,
        0.60,
        -0.01,
        -0.03,
        0.01,
        "-3.00 to +1.00",
        "no difference",
    )
    table = effect_table((one, other), "title")
    assert table.columns[-2:] == ("published raw", "published clipped")
    assert table.rows[0][-2:] == pytest.approx((56.60, 60.61))
    assert table.rows[1][-2:] == (None, None)
    assert table.note.endswith("Published: Luo et al. 2021, table 2 (the paper's checkpoint).")
    assert [row["published"] for row in effect_rows((one, other))] == [0.6061, None]


def test_the_parts_of_the_command_are_the_parts_there_are() -> None:
    assert tuple(PARTS) == options.PARTS
    assert module.CLIP_TEXTS == 1000
