"""Replicating the papers' tables on a model whose outliers are planted: what must come out damaging does, random does not."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuned_models
from conftest import Words
from finetune_runs import tuned
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.analyses.finetune import FinetuneSettings
from outlierlens.data.labelled import find_task, read_examples
from outlierlens.errors import BadInput, Offline
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.replicate.glue import GlueOptions, Loss, Replication, find_tuned, replicate, sweeps_of
from outlierlens.results.document import save, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore

PLANTED, CARRIERS, INERT = tuned_models.PLANTED, tuned_models.CARRIERS, tuned_models.INERT
LOAD = LoadOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` of CoLA, the same for SST-2 and without planted outliers, and the data of both tasks."""
    folder = tmp_path_factory.mktemp("tuned")
    tuned_models.save_model(folder / "model", Words.build)
    tuned_models.save_model(folder / "sst2", Words.build, names=("negative", "positive"))
    tuned_models.save_model(folder / "plain", Words.build, planted=False)
    tuned_models.write_data(folder / "data")
    return folder


def asked(place: Path, *, model: str = "model", tasks: tuple[str, ...] = ("cola",), **more: Any) -> GlueOptions:
    tuned = tuple(f"{task}={place / model}" for task in tasks)
    settings = {"tuned": tuned, "data": str(place / "data"), "n_random": 9, "n_matched": 3} | more
    return GlueOptions(tasks=tasks, **settings)


def made_of(options: GlueOptions, folder: Path, base: str = "tiny", **more: Any) -> Replication:
    return replicate(base, options, folder, **{"load": LOAD} | more)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def made(place: Path, run_folder: Path) -> Replication:
    return made_of(asked(place, layers=True), run_folder)


def test_what_was_computed_in_is_told(place: Path, made: Replication, tmp_path: Path) -> None:
    assert made.provenance.dtype == "float32"
    reduced = made_of(asked(place), tmp_path, load=replace(LOAD, dtype="bfloat16"))
    assert reduced.provenance.dtype == "bfloat16"
    (note,) = (note for note in reduced.notes if "bfloat16" in note)
    assert "predicted classes are other than in float32" in note


def by_dims(made: Replication) -> dict[tuple[int, ...], Loss]:
    return {row.dims: row for row in made.losses}


def oracle(place: Path, dims: tuple[int, ...] | dict[int, tuple[int, ...]], task: str = "cola") -> float:
    """The metric with `dims` off, by the library's score of one plain pass."""
    loaded = load_model(str(place / "model"), LOAD)
    score = LabelledScore(loaded, read_examples(find_task(task), place / "data" / task), TaskOptions(max_length=256))
    if not dims:
        return score.outputs().scores[find_task(task).metric]
    with zeroed_weights(loaded, dims):
        return score.outputs().scores[find_task(task).metric]


def test_planted_dimensions_are_named_and_cost_what_a_plain_loop_says(place: Path, made: Replication) -> None:
    (model,) = made.models
    assert model.dims == made.dims == PLANTED
    assert model.by_rule
    assert model.named_by == "the rule of Kovaleva et al. at 3 sigma"
    rows = by_dims(made)
    intact = oracle(place, ())
    assert model.intact.value == pytest.approx(intact)
    assert model.intact.low < intact < model.intact.high
    for dims in (*((dim,) for dim in PLANTED), PLANTED):
        row = rows[dims]
        assert row.value == pytest.approx(oracle(place, dims))
        assert row.lost.value == pytest.approx(intact - row.value)
        assert row.lost.low <= row.lost.value <= row.lost.high
    together = made.all_off("cola model")
    assert together is rows[PLANTED]
    assert together.lost.value > 0.5
    assert together.lost.side() == 1
    assert together.p == 0.1  # 1 / (1 + 9)
    assert together.passes == "yes"
    assert rows[INERT,].passes == "no"
    with pytest.raises(BadInput, match="no model 'rte'; there are cola model"):
        made.all_off("rte")


def test_random_and_matched_sets_cost_next_to_nothing(made: Replication) -> None:
    rows = by_dims(made)
    for dims in ((CARRIERS[0],), PLANTED):
        assert len(rows[dims].random) == 9
        assert max(map(abs, rows[dims].random)) < 0.1
    assert len(rows[PLANTED].matched) == 3
    assert abs(rows[PLANTED].matched_median) < 0.1
    assert rows[PLANTED].closeness < 0.5  # nothing else is as large


def test_parameters_are_counted_as_in_the_paper(place: Path, made: Replication) -> None:
    assert made.all_off("cola model").n_parameters == 3 * 2 * 4  # dimensions × (scale, bias) × layers
    total = sum(one.numel() for one in load_model(str(place / "model"), LOAD).model.parameters())
    assert made.models[0].n_parameters == total


def test_single_layers(place: Path, made: Replication) -> None:
    assert len(made.by_layer) == 4 * 4  # layers × (each outlier, all of them)
    assert [row.layer for row in made.by_layer[::4]] == [0, 1, 2, 3]
    last = next(row for row in made.by_layer if row.layer == 3 and row.kind == "all")
    assert last.value == pytest.approx(oracle(place, {3: PLANTED}))
    assert last.n_parameters == 6


def test_a_finished_run_measures_nothing_and_a_stopped_one_goes_on(
    place: Path, made: Replication, run_folder: Path, tmp_path: Path
) -> None:
    (rows,) = (run_folder / "cola-model" / "rows").glob("*.jsonl")
    before = rows.read_bytes()
    again = made_of(asked(place, layers=True), run_folder)
    assert rows.read_bytes() == before
    assert to_json(replace(again, provenance=made.provenance)) == to_json(made)

    class Stop(Exception):
        pass

    heard: list[str] = []

    def stop(label: str, *_: int) -> None:
        heard.append(label)
        if "sweep-together" in label:
            raise Stop

    with pytest.raises(Stop):
        made_of(asked(place, layers=True), tmp_path, progress=stop)
    assert any(label.startswith("cola-model, sweep: ") for label in heard)
    (stopped,) = (tmp_path / "cola-model" / "rows").glob("*.jsonl")
    assert 0 < len(stopped.read_bytes()) < len(before)
    rest = made_of(asked(place, layers=True), tmp_path)
    assert rest.losses == made.losses
    assert rest.by_layer == made.by_layer


def test_every_dimension_makes_figure_2(place: Path, tmp_path: Path) -> None:
    tuned_both = (f"cola={place / 'model'}", f"sst2={place / 'sst2'}")
    made = made_of(asked(place, tasks=("cola", "sst2"), every=True, tuned=tuned_both), tmp_path)
    first, second = sweeps_of(tmp_path, made)
    assert [sweep.about.metric for sweep in (first, second)] == ["mcc", "accuracy"]
    assert len(first.singles()) == tuned_models.WIDTH
    row = next(row for row in made.losses if row.model == "cola model" and row.dims == (5,))
    others = [e.change.value for e in first.singles() if e.dims[0] not in PLANTED]
    assert row.p == 1 / tuned_models.WIDTH  # the rank among all others: those without a name alone give no p
    assert len(row.random) == 61
    assert np.mean(row.random) == pytest.approx(np.mean(others))
    assert not made.by_layer


def test_puccetti_keeps_what_costs_five_times_random(place: Path, tmp_path: Path) -> None:
    made = made_of(asked(place, paper="puccetti-glue"), tmp_path)
    assert made.models[0].dims == PLANTED
    assert made.models[0].named_by == "the rule of Puccetti et al. at 2.5 sigma"
    kept = next(row for row in made.losses if row.kind == "passing")
    assert kept.dims == CARRIERS
    assert kept.value == pytest.approx(oracle(place, CARRIERS))
    assert len(kept.random) == 9
    assert "5 and 11 each cost at least 5 × random: chosen and measured on the same examples" in made.notes


def test_where_the_rule_names_nothing_the_strongest_two_are_off_which_is_said(place: Path, tmp_path: Path) -> None:
    made = made_of(asked(place, model="plain"), tmp_path)
    (model,) = made.models
    assert len(model.dims) == 2
    assert not model.by_rule
    assert model.named_by == "largest |z| in the weights, as the scan names none"
    assert any("the scan names no outlier" in note and "which is not a finding" in note for note in made.notes)
    assert next(made.sentences()).startswith("tiny: the ablated dimensions (not by the rule) cost at least 5 times")


def test_dims_override_the_rule(place: Path, tmp_path: Path) -> None:
    made = made_of(asked(place, dims=(20,)), tmp_path / "a")
    assert [(row.kind, row.off, len(row.random), len(row.matched)) for row in made.losses] == [("all", "20", 9, 3)]
    assert (made.models[0].named_by, made.models[0].by_rule) == ("given", False)
    same = made_of(asked(place, dims=PLANTED, n_random=1, limit=20), tmp_path / "b")
    assert same.models[0].by_rule


def test_a_model_that_is_not_named_is_fine_tuned_first(place: Path, tmp_path: Path) -> None:
    options = asked(
        place, tuned=(), settings=FinetuneSettings(epochs=1, batch=16, learning_rate=1e-4), seeds=(1, 2), n_random=2,
        n_matched=0,
    )  # fmt: skip
    lines: list[str] = []
    base = str(place / "model")
    made = made_of(options, tmp_path, base, progress=lambda label, *_: lines.append(label))
    assert [model.model for model in made.models] == ["cola seed-1", "cola seed-2"]
    assert len({model.fingerprint for model in made.models}) == 2
    assert made.settings["settings"]["learning_rate"] == 1e-4
    assert made.settings["seeds"] == (1, 2)
    assert lines
    assert (tmp_path / "tuned" / "cola" / "seed-2" / "model" / "config.json").is_file()
    run = find_tuned("glue:cola", [str(tmp_path / "tuned" / "cola")])
    assert [(one.label, one.base) for one in run] == [("cola seed-1", base), ("cola seed-2", base)]
    one, other = find_tuned(
        "glue:cola", [str(tmp_path / "tuned" / "cola" / f"seed-{seed}" / "model") for seed in (1, 2)]
    )
    assert (one.label, other.label, other.base) == ("cola model (1)", "cola model (2)", base)
    with pytest.raises(BadInput, match="was fine-tuned on glue:cola, not on glue:sst2"):
        find_tuned("glue:sst2", [str(tmp_path / "tuned" / "cola")])
    with pytest.raises(BadInput, match=r"neither a model \(config.json\) nor a finished run of finetune"):
        find_tuned("glue:cola", [str(place / "data")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paper": "devlin"}, r"unknown paper 'devlin'; there are kovaleva-glue, puccetti-glue"),
        ({"tasks": (), "tuned": ()}, "tasks are none; name at least one"),
        ({"tasks": ("cola", "glue:cola")}, "none twice"),
        ({"tuned": ("rte=x",)}, "--tuned is named for rte, which is not among the tasks"),
        ({"tuned": ("cola",)}, "--tuned is 'cola'; write it as rte=DIR"),
        ({"n_matched": -1}, "n_matched is -1; it must be at least 0"),
        ({"tasks": ("cola", "rte"), "labels": ("a", "b")}, "labels are of one task's models, and there are 2 tasks"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(place: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(asked(place), **change)


def test_data_is_checked_before_any_model_is_loaded(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder rte with the examples of glue:rte; it has cola, sst2"):
        made_of(replace(asked(place), tasks=("cola", "rte")), tmp_path / "run", "no-such-model")
    with pytest.raises(BadInput, match=r"--data takes a folder with one folder per data set, such as .*/sst2"):
        made_of(replace(asked(place), data=str(tmp_path / "nothing")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_models_are_checked_before_anything_is_computed(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="which are not those of glue:sst2"):
        made_of(asked(place, tasks=("cola", "sst2")), tmp_path / "run")  # the model of CoLA for both
    with pytest.raises(BadInput, match=r"dimension 64 does not exist; .*model has dimensions 0 to 63"):
        made_of(asked(place, dims=(64,)), tmp_path / "run")
    with pytest.raises(BadInput, match="dimension 64 does not exist"):  # of the model that would be fine-tuned
        made_of(asked(place, tuned=(), dims=(64,)), tmp_path / "run", str(place / "model"))
    with pytest.raises(Offline, match="no/such: not in the local cache"):
        made_of(asked(place, tuned=("cola=no/such",)), tmp_path / "run", load=replace(LOAD, offline=True))
    assert not (tmp_path / "run").exists()
    quick = asked(place, model="sst2", tasks=("sst2",), labels=("positive", "negative"), limit=20, n_random=1)
    other_way = made_of(quick, tmp_path / "run")
    right_way = made_of(replace(quick, labels=()), tmp_path / "right")
    assert other_way.models[0].intact.value == pytest.approx(1 - right_way.models[0].intact.value)
    again = made_of(quick, tmp_path / "run", overwrite=True)
    assert again.losses == other_way.losses


def test_a_model_of_another_base_is_said_and_of_another_task_is_refused(place: Path, tmp_path: Path) -> None:
    tuned_run = tmp_path / "run"
    shutil.copytree(place / "model", tuned_run / "seed-42" / "model")
    save(tuned("glue:cola", "distilbert-cased"), tuned_run / "finetuned.json")
    named = str(tuned_run / "seed-42" / "model")
    quick = asked(place, limit=20, n_random=1, tuned=(f"cola={named}",))
    (note,) = (note for note in made_of(quick, tmp_path / "a").notes if "fine-tuned from" in note)
    assert note.endswith("model was fine-tuned from distilbert-cased; whether that is tiny was not checked")
    notes = made_of(quick, tmp_path / "b", "distilbert-cased").notes
    assert not any("fine-tuned from" in note for note in notes)
    save(tuned("hans", "distilbert-cased"), tuned_run / "finetuned.json")
    (one,) = find_tuned("glue:mnli-mm", [named])  # HANS is scored on, MNLI was learned
    assert one.base == "distilbert-cased"
    save(tuned("glue:cola", "distilbert-cased"), tuned_run / "finetuned.json")
    for place_of_it in (tuned_run, tuned_run / "seed-42" / "model"):
        with pytest.raises(BadInput, match="was fine-tuned on glue:cola, not on glue:sst2"):
            find_tuned("glue:sst2", [str(place_of_it)])
