"""Replicating the papers' tables on a model whose outliers are planted: what must come out damaging does, random does not."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuned_models
from conftest import Words
from finetune_runs import tuned
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.data.labelled import find_task, read_examples
from outlierlens.errors import BadFile, BadInput, Offline
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.replicate.glue.measure import Hooks, Replicating, replicate, sweeps_of
from outlierlens.replicate.glue.models import find_tuned
from outlierlens.replicate.glue.pictures import read_replication, write_views
from outlierlens.replicate.glue.result import Replication, TaskTable
from outlierlens.results.document import from_json, load, save, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.training.finetune.options import FinetuneSettings

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


def job(
    place: Path, directory: Path, *, model: str = "model", tasks: tuple[str, ...] = ("cola",), **more: Any
) -> Replicating:
    tuned = {task: (str(place / model),) for task in tasks}
    settings = {"paper": "kovaleva-glue", "n_random": 9, "n_matched": 3} | more
    return Replicating(base="tiny", tasks=tasks, directory=directory, data=str(place / "data"), tuned=tuned, **settings)


@pytest.fixture(scope="module")
def made(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Replicating, Replication]:
    mine = job(place, tmp_path_factory.mktemp("run"))
    return mine, replicate(mine, LOAD)


def test_what_was_computed_in_is_told(place: Path, made: Any, tmp_path: Path) -> None:
    assert made[1].provenance.dtype == made[1].tables[0].dtype == "float32"
    reduced = replicate(job(place, tmp_path), replace(LOAD, dtype="bfloat16"))
    assert reduced.provenance.dtype == reduced.tables[0].dtype == "bfloat16"
    (note,) = (note for note in reduced.tables[0].notes if "bfloat16" in note)
    assert "predicted classes are other than in float32" in note


def by_label(table: TaskTable) -> dict[str, Any]:
    return {row.label: row for row in table.rows}


def oracle(place: Path, dims: tuple[int, ...] | dict[int, tuple[int, ...]], task: str = "cola") -> float:
    """The metric with `dims` off, by the library's score of one plain pass."""
    loaded = load_model(str(place / "model"), LOAD)
    score = LabelledScore(loaded, read_examples(find_task(task), place / "data" / task), TaskOptions(max_length=256))
    if not dims:
        return score.outputs().scores[find_task(task).metric]
    with zeroed_weights(loaded, dims):
        return score.outputs().scores[find_task(task).metric]


def test_planted_dimensions_are_named_and_cost_what_a_plain_loop_says(place: Path, made: Any) -> None:
    (table,) = made[1].tables
    assert table.dims == PLANTED
    assert table.by_rule
    assert table.named_by == "the rule of Kovaleva et al. at 3 σ in the weights of the fine-tuned model (cola model)"
    rows = by_label(table)
    intact = oracle(place, ())
    assert rows["intact"].value == pytest.approx(intact)
    assert rows["intact"].low < intact < rows["intact"].high
    for dims in (*((dim,) for dim in PLANTED), PLANTED):
        row = rows[", ".join(map(str, dims))]
        assert row.value == pytest.approx(oracle(place, dims))
        assert row.lost == pytest.approx(intact - row.value)
        assert row.lost_low <= row.lost <= row.lost_high
    together = table.outliers_row
    assert together is rows["5, 11, 20"]
    assert together.lost > 0.5
    assert together.lost_low > 0
    assert together.p == 0.1  # 1 / (1 + 9)
    assert together.enough
    assert not rows["20"].enough


def test_random_and_matched_sets_cost_next_to_nothing(made: Any) -> None:
    (table,) = made[1].tables
    rows = by_label(table)
    for label in ("9 random dimensions", "9 random sets of 3", "3 sets of 3, as large weights elsewhere"):
        assert abs(rows[label].lost) < 0.1, label
        assert rows[label].lost_low <= rows[label].lost <= rows[label].lost_high
    assert rows["3 sets of 3, as large weights elsewhere"].closeness < 0.5  # nothing else is as large
    assert table.family("random").label == "9 random sets of 3"
    assert table.family("random", 1).label == "9 random dimensions"


def test_parameters_are_counted_as_in_the_paper(place: Path, made: Any) -> None:
    (table,) = made[1].tables
    together = table.outliers_row
    assert together.n_parameters == 3 * 2 * 4  # dimensions × (scale, bias) × layers
    total = sum(one.numel() for one in load_model(str(place / "model"), LOAD).model.parameters())
    assert (table.n_parameters, together.share) == (total, pytest.approx(24 / total))


def test_single_layers_of_one_task(place: Path, made: Any) -> None:
    (table,) = made[1].tables
    assert len(table.windows) == 4 * 4  # layers × (each outlier, all of them)
    assert [row.window for row in table.windows[::4]] == ["layer 0", "layer 1", "layer 2", "layer 3"]
    last = next(row for row in table.windows if row.window == "layer 3" and row.kind == "together")
    assert last.value == pytest.approx(oracle(place, {3: PLANTED}))
    assert last.n_parameters == 6


def test_the_result_survives_json_and_gives_rows(made: Any) -> None:
    mine, result = made
    assert to_json(from_json(to_json(result))) == to_json(result)
    assert to_json(load(mine.directory / "replication.json")) == to_json(result)
    rows = result.records()
    assert len(rows) == len(result.tables[0].rows) + len(result.tables[0].windows)
    lost = next(row["lost"] for row in rows if row["off"] == "5, 11, 20")
    assert lost == pytest.approx(result.tables[0].outliers_row.lost)
    assert result.settings["random"] == 9


def test_a_finished_run_measures_nothing_and_a_stopped_one_goes_on(place: Path, made: Any, tmp_path: Path) -> None:
    mine, first = made
    measured = []

    @contextmanager
    def count() -> Iterator[Any]:
        yield lambda state: measured.append(state.texts)

    again = replicate(mine, LOAD, Hooks(view=count))
    assert max(measured) == 0
    assert to_json(replace(again, provenance=first.provenance)) == to_json(first)

    class Stop(Exception):
        pass

    @contextmanager
    def stop() -> Iterator[Any]:
        def heard(state: Any) -> None:
            if state.texts > 300:
                raise Stop

        yield heard

    other = replace(mine, directory=tmp_path)
    with pytest.raises(Stop):
        replicate(other, LOAD, Hooks(view=stop))
    assert (tmp_path / "cola-model" / "rows.jsonl").is_file()
    rest = replicate(other, LOAD)
    assert str(rest.records()) == str(first.records())  # as text, because NaN is not NaN


def test_every_dimension_makes_figure_2(place: Path, tmp_path: Path) -> None:
    mine = job(place, tmp_path, tasks=("cola", "sst2"), every=True, windows_task="none")
    mine = replace(mine, tuned={"cola": (str(place / "model"),), "sst2": (str(place / "sst2"),)})
    result = replicate(mine, LOAD)
    first, second = sweeps_of(tmp_path, result)
    assert [sweep.metric for sweep in (first, second)] == ["mcc", "accuracy"]
    assert len(first.singles()) == tuned_models.WIDTH
    row = by_label(result.tables[0])["5"]
    others = [e.change for e in first.singles() if e.dims[0] not in PLANTED]
    assert row.p == 1 / tuned_models.WIDTH  # the rank among all others: those without a name alone give no p
    assert by_label(result.tables[0])["61 random dimensions"].mean == pytest.approx(np.mean(others))
    assert not result.tables[0].windows
    pages = write_views(tmp_path, result, [result])
    assert [page.name for page in pages] == ["figure-2.html", "outliers-against-random.html"]
    assert (tmp_path / "charts" / "figure-2.png").read_bytes().startswith(b"\x89PNG")
    assert "glue:sst2: accuracy" in (tmp_path / "figure-2.html").read_text("utf-8")


def test_puccetti_keeps_what_costs_five_times_random(place: Path, tmp_path: Path) -> None:
    result = replicate(job(place, tmp_path, paper="puccetti-glue", windows_task="none"), LOAD)
    (table,) = result.tables
    assert table.dims == PLANTED
    assert "the rule of Puccetti et al. at 2.5 σ" in table.named_by
    kept = next(row for row in table.rows if row.kind == "at least 5 × random")
    assert kept.dims == CARRIERS
    assert kept.value == pytest.approx(oracle(place, CARRIERS))
    assert by_label(table)["9 random sets of 2"].size == 2
    assert "5, 11 each cost at least 5 × random: chosen and measured on the same examples" in table.notes


def test_without_outliers_there_are_random_pairs_and_a_fallback_on_request(place: Path, tmp_path: Path) -> None:
    (table,) = replicate(job(place, tmp_path / "a", model="plain"), LOAD).tables
    assert table.dims == ()
    assert [(row.kind, row.size, row.n_sets) for row in table.rows] == [("intact", 0, 1), ("random", 2, 9)]
    assert table.outliers_row is None
    assert not table.windows
    assert any("names no dimension, so there is none to switch off" in note for note in table.notes)
    (table,) = replicate(job(place, tmp_path / "b", model="plain", dims="strongest"), LOAD).tables
    assert len(table.dims) == 2
    assert not table.by_rule
    assert table.named_by.startswith("fallback: the 2 of largest |z|")
    assert any("are a fallback, the strongest by |z|" in note for note in table.notes)


def test_dims_override_the_rule_and_the_base_can_name_them(place: Path, tmp_path: Path) -> None:
    (table,) = replicate(job(place, tmp_path / "a", dims=(20,), windows_task="none"), LOAD).tables
    assert [row.label for row in table.rows] == [
        "intact", "20", "9 random dimensions", "3 dimensions, as large weights elsewhere",
    ]  # fmt: skip
    assert table.named_by.startswith("given, not the rule of Kovaleva et al.")
    assert table.outliers_row.label == "20"
    mine = replace(
        job(place, tmp_path / "b", model="plain", outliers_of="base", windows_task="none"), base=str(place / "model")
    )
    (table,) = replicate(mine, LOAD).tables
    assert table.dims == PLANTED
    assert "the pre-trained model" in table.named_by
    with pytest.raises(BadInput, match=r"dimension 64 does not exist; .* has dimensions 0 to 63"):
        replicate(job(place, tmp_path / "c", dims=(64,)), LOAD)


def test_a_model_that_is_not_named_is_fine_tuned_first(place: Path, tmp_path: Path) -> None:
    mine = Replicating(
        "kovaleva-glue", str(place / "model"), tmp_path, tasks=("cola",), data=str(place / "data"),
        settings=FinetuneSettings(epochs=1, batch=16, learning_rate=1e-4), seeds=(1, 2), n_random=2, n_matched=0,
        windows_task="none",
    )  # fmt: skip
    lines: list[str] = []
    result = replicate(mine, LOAD, Hooks(lines.append))
    assert [table.label for table in result.tables] == ["cola seed-1", "cola seed-2"]
    assert len({table.fingerprint for table in result.tables}) == 2
    assert result.settings["finetune learning_rate"] == 1e-4
    assert result.settings["finetune seeds"] == [1, 2]
    assert (tmp_path / "tuned" / "cola" / "seed-2" / "model" / "config.json").is_file()
    run = find_tuned("glue:cola", str(tmp_path / "tuned" / "cola"))
    assert [(one.label, one.base) for one in run] == [
        ("cola seed-1", str(place / "model")),
        ("cola seed-2", str(place / "model")),
    ]
    (one,) = find_tuned("glue:cola", str(tmp_path / "tuned" / "cola" / "seed-2"))
    assert (one.label, one.base) == ("cola seed-2", str(place / "model"))
    with pytest.raises(BadInput, match="was fine-tuned on glue:cola, not on glue:sst2"):
        find_tuned("glue:sst2", str(tmp_path / "tuned" / "cola"))
    with pytest.raises(BadInput, match=r"neither a model \(config.json\) nor a run of finetune with a finished seed"):
        find_tuned("glue:cola", str(place / "data"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paper": "devlin"}, r"unknown paper 'devlin'; replicate takes kovaleva-glue, puccetti-glue"),
        ({"tasks": ()}, "tasks are none; name at least one"),
        ({"tasks": ("cola", "glue:cola")}, "none twice"),
        ({"tuned": {"rte": ("x",)}}, "is named for glue:rte, which is not among the tasks"),
        ({"windows_task": "mnli"}, "mnli, is not among the tasks"),
        ({"outliers_of": "both"}, "use tuned or base"),
        ({"dims": "all"}, "name dimensions or 'strongest'"),
        ({"n_matched": -1}, "n_matched is -1; it must be at least 0"),
        ({"n_sigma": 0}, "n_sigma is 0; it must be more than 0"),
        ({"labels": {"cola": ("a", "b"), "glue:cola": ("b", "a")}}, "labels are named for a task by two names"),
        ({"labels": {"rte": ("a", "b")}}, "labels are named for glue:rte, which is not among the tasks"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    place: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        replace(job(place, tmp_path), **change)


def test_data_is_checked_before_any_model_is_loaded(place: Path, tmp_path: Path) -> None:
    mine = replace(job(place, tmp_path / "run", tasks=("cola",)), tasks=("cola", "rte"), base="no-such-model")
    with pytest.raises(BadInput, match=r"no folder rte with the examples of glue:rte; it has cola, sst2"):
        replicate(mine, LOAD)
    with pytest.raises(BadInput, match=r"--data takes a folder with one folder per task, such as .*/cola"):
        replicate(replace(job(place, tmp_path / "run"), data=str(tmp_path / "nothing")), LOAD)
    assert not (tmp_path / "run").exists()


def test_models_are_checked_before_anything_is_computed(place: Path, tmp_path: Path, made: Any) -> None:
    mine = job(place, tmp_path / "run", tasks=("cola", "sst2"))  # the model of CoLA for both
    with pytest.raises(BadInput, match="which are not those of glue:sst2"):
        replicate(mine, LOAD)
    with pytest.raises(BadInput, match=r"dimension 64 does not exist; .*model has dimensions 0 to 63"):
        replicate(replace(job(place, tmp_path / "run"), dims=(64,)), LOAD)
    with pytest.raises(BadInput, match="dimension 64 does not exist"):  # of the model that would be fine-tuned
        replicate(replace(job(place, tmp_path / "run"), base=str(place / "model"), tuned={}, dims=(64,)), LOAD)
    with pytest.raises(Offline, match="no/such: not in the local cache"):
        replicate(replace(job(place, tmp_path / "run"), tuned={"cola": ("no/such",)}), replace(LOAD, offline=True))
    assert not (tmp_path / "run").exists()
    named = replace(mine, labels={"sst2": ("positive", "negative")}, windows_task="none", limit=20, n_random=1)
    notes = [note for table in replicate(named, LOAD).tables for note in table.notes]
    assert not any("--labels was taken" in note for note in notes)  # the config's names are not those of the task
    with pytest.raises(
        BadInput, match="run holds kovaleva-glue of tiny; name another directory with -o, or replace it"
    ):
        replicate(replace(named, base="other"), LOAD)
    replicate(replace(named, base="other", overwrite=True), LOAD)


def test_a_model_of_another_base_or_task_is_refused(place: Path, tmp_path: Path) -> None:
    tuned_run = tmp_path / "run"
    shutil.copytree(place / "model", tuned_run / "seed-42" / "model")
    save(tuned("glue:cola", "distilbert-cased"), tuned_run / "finetuned.json")
    named = {"cola": (str(tuned_run / "seed-42" / "model"),)}
    quick = replace(job(place, tmp_path / "a", limit=20, n_random=1, windows_task="none"), tuned=named)
    (note,) = (note for note in replicate(quick, LOAD).tables[0].notes if "fine-tuned from" in note)
    assert note.endswith("model was fine-tuned from distilbert-cased; whether that is tiny cannot be told")
    with pytest.raises(
        BadInput, match="model was fine-tuned from distilbert-cased, not from minilm-l6; name that model"
    ):
        replicate(replace(quick, directory=tmp_path / "b", base="minilm-l6"), LOAD)
    save(tuned("glue:cola", str(place / "model")), tuned_run / "finetuned.json")
    shutil.copytree(place / "model", tmp_path / "copy")
    notes = replicate(replace(quick, directory=tmp_path / "c", base=str(tmp_path / "copy")), LOAD).tables[0].notes
    assert not any("fine-tuned from" in note for note in notes)  # the same weights in another folder
    with pytest.raises(BadInput, match=r"not from .*plain; name that model"):
        replicate(replace(quick, directory=tmp_path / "d", base=str(place / "plain")), LOAD)
    save(tuned("hans", "distilbert-cased"), tuned_run / "finetuned.json")
    (one,) = find_tuned("glue:mnli-mm", *named["cola"])  # HANS is scored on, MNLI was learned
    assert one.base == "distilbert-cased"
    save(tuned("glue:cola", "distilbert-cased"), tuned_run / "finetuned.json")
    for one in (tuned_run, tuned_run / "seed-42", tuned_run / "seed-42" / "model"):
        with pytest.raises(BadInput, match="was fine-tuned on glue:cola, not on glue:sst2"):
            find_tuned("glue:sst2", str(one))


def test_the_command(place: Path, tmp_path: Path, run: Any) -> None:
    arguments = (
        "replicate", "kovaleva-glue", "tiny", "--tasks", "cola", "--data", str(place / "data"), "--dtype", "float32",
        "--device", "cpu", "--random", "4", "--matched", "0", "--windows-task", "none", "--limit", "50",
        "-o", str(tmp_path / "run"),
    )  # fmt: skip
    code, out, err = run(*arguments, "--tuned", f"cola={place / 'model'}")
    assert code == 0, err
    assert "tiny on glue:cola (cola model): mcc × 100 on 50 examples" in out
    assert "outliers: 5, 11, 20 (the rule of Kovaleva et al. at 3 σ" in out
    assert "5, 11, 20 together" in out
    assert "tiny: the outliers cost at least 5 times what random sets cost in 1 of 1 (cola model)" in out
    assert "figure-2.html" in out
    assert read_replication(tmp_path / "run").tables[0].dims == PLANTED
    code, out, _ = run(*arguments, "--tuned", f"cola={place / 'model'}", "--json", "--beside", str(tmp_path / "run"))
    assert json.loads(out)["kind"] == "Replication"
    code, _, err = run(*arguments, "--tuned", "cola")
    assert code != 0
    assert "--tuned is 'cola'; write it as rte=DIR" in err
    code, _, err = run(
        *arguments, "--tuned", f"cola={place / 'model'}", "--labels", "unacceptable,acceptable", "--overwrite"
    )
    assert code == 0, err
    for given, said in (("a=b,c", "labels are named for"), ("=b", "write it as rte=NAME,NAME")):
        code, _, err = run(*arguments, "--labels", given)
        assert code != 0
        assert said in err or "unknown task" in err
    both = ["cola,sst2" if word == "cola" else word for word in arguments]
    code, _, err = run(*both, "--labels", "b,c")
    assert "--labels is 'b,c', and there are 2 tasks; write it as cola=b,c" in err
    code, _, err = run(*arguments, "--seeds", "a")
    assert "cannot read seeds 'a'; write 42,43" in err
    with pytest.raises(BadFile, match="no such result file"):
        read_replication(place)
