"""Fine-tuning: what is trained on, what is kept, what switched-off dimensions do, and whose folder it is."""

import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional
from transformers import BertForMaskedLM

from finetune_runs import examples, tiny, train, tuned, write_data
from outlierlens import load
from outlierlens.ablation import switches as ablate
from outlierlens.analyses.finetune import SeedFolder, card, claim, named_by_weights
from outlierlens.data.labelled import find_task, plain_task
from outlierlens.data.labelled.examples import check_splits, read_splits
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.models.model_class import NewHead
from outlierlens.results.row_store import RowStore, alone_in, read_rows
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore, Outputs
from outlierlens.training.finetune import steps_per_epoch, training_order

EXACT = LoadOptions(dtype="float32", device="cpu", notice=lambda line: None)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base"), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(base: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two seeds of three epochs, and their folder."""
    folder = tmp_path_factory.mktemp("run") / "run"
    torch.set_num_threads(1)
    return train(
        base, data, folder, seeds=(1, 2), epochs=3, learning_rate=2e-3, options={"command": "outlierlens x"}
    ), folder


# What is trained


def test_two_seeds_learn_and_leave_their_models(run: Any, data: Path) -> None:
    found, folder = run
    assert [seed.seed for seed in found.seeds] == [1, 2]
    assert found.n_train == 96
    assert found.about.n_texts == 40
    for seed in found.seeds:
        assert seed.best.scores["accuracy"] > 0.9
        assert seed.best.scores["accuracy"] == max(row.scores["accuracy"] for row in seed.epochs)
        assert [row.step for row in seed.epochs] == [12, 24, 36]
        assert seed.value.low <= seed.value.value == seed.best.scores["accuracy"] <= seed.value.high
        loaded = load_model(seed.folder, EXACT)
        again = LabelledScore(loaded, examples(data)[1], TaskOptions(max_length=16)).outputs()
        assert again.scores == pytest.approx(seed.best.scores)
        assert again.losses.mean() == pytest.approx(seed.best.loss, rel=1e-5)
        with np.load(Path(seed.folder) / "dev_predictions.npz") as kept:
            np.testing.assert_array_equal(kept["predicted"], again.predicted)
    assert found.seeds[0].epochs != found.seeds[1].epochs
    assert {path.name for path in (folder / "seed-1").iterdir()} == {"rows.jsonl", "model"}
    assert load(folder / "finetuned.json").seeds == found.seeds


def test_the_first_step_s_loss_is_that_of_its_rows(base: str, data: Path, tmp_path: Path) -> None:
    training, dev = examples(data)
    some = training.some(range(8))
    found = train(base, (some, dev), tmp_path / "run", epochs=1, seeds=(5,))
    loaded = load_model(base, EXACT, NewHead(("no", "yes"), seed=5))
    losses = []
    for text, label in zip(some.texts, some.labels, strict=True):
        ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]  # type: ignore[misc]
        with torch.no_grad():
            logits = loaded.model(input_ids=ids).logits
        losses.append(float(functional.cross_entropy(logits, torch.tensor([label]))))
    assert found.seeds[0].epochs[0].train_loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_training_loss_of_an_epoch_is_a_mean_over_its_steps(base: str, data: Path, tmp_path: Path) -> None:
    logged: list[tuple[int, float]] = []
    found = train(
        base, data, tmp_path / "run", save_steps=5,
        options={"on_log": lambda seed, step, steps, logs: logged.append((step, logs["loss"]))},
    )  # fmt: skip
    steps = [step for step, _ in logged]
    assert {5, 10, 12, 15, 20, 24} <= set(steps)
    weights = np.diff([0, *steps])
    first = [place for place, step in enumerate(steps) if step <= 12]
    assert found.seeds[0].epochs[0].train_loss == pytest.approx(
        np.average([logged[place][1] for place in first], weights=weights[first])
    )


def test_the_limit_draws_examples_by_seed(base: str, data: Path, tmp_path: Path) -> None:
    found = train(base, data, tmp_path / "run", train_limit=16, epochs=1)
    assert found.n_train == 16
    assert found.seeds[0].epochs[0].step == 2


def test_regression(base: str, data: Path, tmp_path: Path) -> None:
    found = train(base, examples(data, "regress", label="value"), tmp_path / "run", epochs=3, learning_rate=2e-3)
    best = found.seeds[0].best
    assert list(best.scores) == ["pearson", "spearman"]
    loaded: Any = load_model(found.seeds[0].folder, EXACT)
    assert loaded.model.config.num_labels == 1
    dev = examples(data, "regress", label="value")[1]
    outputs = LabelledScore(loaded, dev, TaskOptions(max_length=16)).outputs()
    assert best.loss == pytest.approx(np.mean((outputs.predicted - np.array(dev.labels)) ** 2), rel=1e-5)


def test_words_are_learned_and_their_interval_draws_whole_texts(base: str, data: Path, tmp_path: Path) -> None:
    both = examples(data, "tokens", text="words", label="tags")
    found = train(base, both, tmp_path / "run", epochs=1, learning_rate=1e-3).seeds[0]
    with np.load(Path(found.folder) / "dev_predictions.npz") as kept:
        right = kept["truth"] == kept["predicted"]
    lengths = [len(words) for words in both[1].words]
    assert len(right) == sum(lengths)
    assert found.best.scores["token accuracy"] == pytest.approx(right.mean())
    # Of a share by clusters, the delta method: the spread of its texts' residuals.
    ends = np.cumsum(lengths)
    residuals = [right[end - n : end].sum() - right.mean() * n for end, n in zip(ends, lengths, strict=True)]
    spread = math.sqrt(np.sum(np.square(residuals))) / sum(lengths)
    assert found.value.high - found.value.low == pytest.approx(2 * 1.96 * spread, rel=0.3)


def test_bfloat16_leaks_into_neither_scores_nor_model(base: str, data: Path, tmp_path: Path) -> None:
    found = train(base, data, tmp_path / "run", epochs=1, precision="bfloat16").seeds[0]
    exact = train(base, data, tmp_path / "exact", epochs=1).seeds[0]
    assert "- precision: bfloat16\n" in (Path(found.folder) / "README.md").read_text()
    assert found.epochs[0].train_loss != exact.epochs[0].train_loss
    assert found.epochs[0].train_loss == pytest.approx(exact.epochs[0].train_loss, rel=0.05)
    loaded = load_model(found.folder, EXACT)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    outputs = LabelledScore(loaded, examples(data)[1], TaskOptions(max_length=16, batch_size=64)).outputs()
    with np.load(Path(found.folder) / "dev_predictions.npz") as kept:
        np.testing.assert_allclose(kept["losses"], outputs.losses, rtol=1e-5)


# Dimensions switched off


def last_norms(model: Any, dims: list[int]) -> torch.Tensor:
    """Scale and bias of each block's last norm at `dims` [block, 2, dim]."""
    norms = [block.output.LayerNorm for block in model.bert.encoder.layer]
    return torch.stack([torch.stack([norm.weight[dims], norm.bias[dims]]) for norm in norms]).detach()


@pytest.mark.parametrize("hold", [True, False])
def test_dimensions_off_stay_off_or_grow_back(hold: bool, run: Any, data: Path, tmp_path: Path) -> None:
    start = run[0].seeds[0].folder
    said: list[str] = []
    options = {"progress": said.append, "notice": said.append}
    found = train(start, data, tmp_path / "run", epochs=1, off=(3, 7), hold=hold, options=options)
    loaded = load_model(found.seeds[0].folder, EXACT)
    values = last_norms(loaded.model, [3, 7])
    assert values.shape == (2, 2, 2)
    assert bool(values.any()) is not hold
    assert last_norms(loaded.model, [4]).all()
    assert any("goes on with its stored head for no, yes" in line for line in said)
    assert "seed 42: 8 values of dimensions (3, 7) set to zero" in said
    assert found.settings["off"] == [3, 7]
    # The first step sees the ablated model, with the head that was stored.
    training, dev = examples(data)
    one = train(start, (training.some(range(8)), dev), tmp_path / "one", epochs=1, off=(3, 7), hold=hold)
    ablated = load_model(start, EXACT)
    with ablate.zeroed_weights(ablated, [3, 7]):
        outputs = LabelledScore(ablated, training.some(range(8)), TaskOptions(max_length=16)).outputs()
    assert one.seeds[0].epochs[0].train_loss == pytest.approx(outputs.losses.mean(), rel=1e-5)


def test_a_dimension_that_does_not_exist_stops_before_training_and_occupies_nothing(
    base: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="dimension 32 does not exist"):
        train(base, data, tmp_path / "run", off=(32,))
    assert train(base, data, tmp_path / "run", off=(31,), epochs=1).settings["off"] == [31]


# The head


def head_of(loaded: Any) -> torch.Tensor:
    return torch.cat([loaded.model.classifier.weight.flatten(), loaded.model.classifier.bias])


def test_a_stored_head_is_kept_only_for_the_same_labels_in_their_order(run: Any, tmp_path: Path) -> None:
    start = run[0].seeds[0].folder
    stored = head_of(load_model(start, EXACT))
    said: list[str] = []
    options = LoadOptions(dtype="float32", device="cpu", notice=said.append)
    same = load_model(start, options, NewHead(("No", "yes"), seed=1))
    assert torch.equal(head_of(same), stored)
    assert said.pop().endswith("goes on with its stored head for no, yes")
    for labels in (("yes", "no"), ("negative", "positive")):
        new = head_of(load_model(start, options, NewHead(labels, seed=1)))
        assert not torch.equal(new[:64], stored[:64])
        assert said.pop().endswith(f"its head for no, yes gives way to a new one for {', '.join(labels)}")
        assert torch.equal(new, head_of(load_model(start, options, NewHead(labels, seed=1))))  # drawn by the seed
        assert not torch.equal(new, head_of(load_model(start, options, NewHead(labels, seed=2))))
        said.clear()
    three: Any = load_model(start, options, NewHead(("a", "b", "c")))
    assert three.model.classifier.weight.shape == (3, 32)
    # A head of another class has weights of the same name and shape.
    words = load_model(start, options, NewHead(("no", "yes"), tokens=True, seed=1))
    assert not torch.equal(head_of(words), stored)


def test_a_regression_goes_on_with_an_unnamed_output(base: str, data: Path, tmp_path: Path) -> None:
    found = train(base, examples(data, "regress", label="value"), tmp_path / "run", epochs=1)
    config = Path(found.seeds[0].folder) / "config.json"
    values = json.loads(config.read_text())
    assert values["id2label"] == {"0": "value"}
    config.write_text(json.dumps(values | {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}))
    said: list[str] = []
    load_model(found.seeds[0].folder, LoadOptions(device="cpu", notice=said.append), NewHead(()))
    assert "goes on with its stored head for LABEL_0" in said[0]


def test_a_decoder_without_a_padding_token_gets_the_tokenizer_s(tmp_path: Path) -> None:
    from architectures import FAMILIES, build
    from conftest import Words

    build(FAMILIES["gpt2"]).save_pretrained(tmp_path)
    Words.build(kind="causal").save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).get("pad_token_id") is None
    loaded: Any = load_model(str(tmp_path), EXACT, NewHead(("a", "b")))
    assert loaded.model.config.pad_token_id == 0


# The best epoch, and the folder


def keep(folder: Path, *scores: float) -> SeedFolder:
    """The seed's folder once epochs with these scores are added; "model" holds the epoch's number."""
    with RowStore.open(folder / "rows.jsonl", {}) as rows:
        kept = SeedFolder(folder, rows, "accuracy")
        for epoch, value in enumerate(scores, 1):

            def write(place: Path, epoch: int = epoch) -> None:
                (place / "config.json").write_text(str(epoch))

            said = Outputs(np.full(2, 0.5), np.zeros(2), np.zeros(2), {"accuracy": value})
            kept.add(float(epoch), epoch, said, None, write)
            assert len(list(folder.glob("best-*"))) == 1
        return kept


def test_the_first_of_the_best_epochs_is_kept(tmp_path: Path) -> None:
    kept = keep(tmp_path, 0.5, 0.9, 0.9, 0.7)
    assert kept.finish() == tmp_path / "model"
    assert (tmp_path / "model" / "config.json").read_text() == "2"
    assert keep(tmp_path).best.epoch == 2.0
    assert keep(tmp_path).model == tmp_path / "model"


def test_without_its_model_a_stopped_run_begins_anew(tmp_path: Path) -> None:
    keep(tmp_path, 0.5)
    (tmp_path / "checkpoint-12").mkdir()
    shutil.rmtree(tmp_path / "best-1")
    assert keep(tmp_path).epochs == []
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    identity = {"model": "m", "epochs": 4}
    claim(tmp_path / "run", identity, overwrite=False)
    (tmp_path / "run" / "seed-2").mkdir(parents=True)  # as a run that is killed at once leaves it
    claim(tmp_path / "run", identity, overwrite=False)
    keep(tmp_path / "run" / "seed-1")
    with pytest.raises(BadInput, match=r"rows.jsonl holds rows of other work \(model was None, is 'm'; epochs"):
        claim(tmp_path / "run", identity, overwrite=False)
    claim(tmp_path / "run", {}, overwrite=False)
    claim(tmp_path / "run", identity, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["seed-2"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="thesis is not empty and holds no run"):
        claim(tmp_path / "thesis", identity, overwrite=True)


def test_a_folder_belongs_to_the_weights_it_began_from(tmp_path: Path, data: Path) -> None:
    """Another path to the same model is the same run; the same path to other weights is not."""
    base = tiny(tmp_path / "base")
    train(base, data, tmp_path / "run", seeds=(1,), epochs=1)
    moved = shutil.copytree(base, tmp_path / "elsewhere" / "renamed")
    assert len(train(str(moved), data, tmp_path / "run", seeds=(1, 2), epochs=1).seeds) == 2
    model = BertForMaskedLM.from_pretrained(base)
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias.add_(1)
    model.save_pretrained(base)
    with pytest.raises(
        BadInput, match=r"seed-\d/rows.jsonl holds rows of other work \(weights was '\w+', is '\w+'\); use"
    ):
        train(base, data, tmp_path / "run", seeds=(2, 3), epochs=1)


def test_two_processes_do_not_share_a_folder(tmp_path: Path, data: Path, base: str) -> None:
    with (
        alone_in(tmp_path / "run"),
        pytest.raises(BadInput, match="run: another run is writing to it; wait for it or name another directory"),
    ):
        train(base, data, tmp_path / "run", epochs=1)
    train(base, data, tmp_path / "run", epochs=1)
    with alone_in(tmp_path / "run"), pytest.raises(BadInput, match="another run is writing to it"):
        train(base, data, tmp_path / "run", epochs=2, options={"overwrite": True})
    assert (tmp_path / "run" / "seed-42" / "model" / "config.json").is_file()  # it removes nothing that is in use


def test_a_folder_that_bears_a_sample_s_name_is_not_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "minilm-l6").mkdir()
    monkeypatch.chdir(tmp_path)
    assert named_by_weights("minilm-l6") == {"model": "minilm-l6"}
    assert set(named_by_weights(str(tmp_path / "minilm-l6"))) == {"weights"}


def test_a_finished_run_is_read_and_says_what_is_wrong_with_it(run: Any, tmp_path: Path) -> None:
    found, folder = run
    copy = tmp_path / "seed-1"
    shutil.copytree(folder / "seed-1", copy)
    identity, done = read_rows(copy / "rows.jsonl")
    with RowStore.open(copy / "rows.jsonl", identity) as rows:
        again = SeedFolder(copy, rows, "accuracy").run(1)
        assert again is not None
        assert again.folder == str(copy / "model")
        assert (again.epochs, again.value) == (found.seeds[0].epochs, found.seeds[0].value)
        for wrong in ([1], {**done["done"], "low": "small"}):
            rows.done["done"] = wrong
            with pytest.raises(BadFile, match=r"not what a run leaves"):
                SeedFolder(copy, rows, "accuracy").run(1)
        rows.done |= done
        shutil.rmtree(copy / "model")
        with pytest.raises(BadFile, match="the run is finished, and its model is gone"):
            SeedFolder(copy, rows, "accuracy")


def test_more_seeds_in_a_second_call(run: Any, base: str, data: Path, tmp_path: Path) -> None:
    found, folder = run
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    said: list[str] = []
    again = train(base, data, copy, seeds=(1, 2, 9), epochs=3, learning_rate=2e-3, options={"progress": said.append})
    assert [seed.epochs for seed in again.seeds[:2]] == [seed.epochs for seed in found.seeds]
    assert [line for line in said if "finished earlier" in line] == [
        f"seed {seed}: finished earlier, read from {copy}/seed-{seed}" for seed in (1, 2)
    ]


# What is refused before anything is computed


def test_too_few_examples_and_bad_seeds(base: str, data: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"batch": 97}, "96 training examples do not fill a batch of 97; use a smaller --batch-size"),
        ({"train_limit": 4}, "4 training examples do not fill a batch of 8"),
        ({"seeds": (1, 1)}, "name at least one, none twice"),
        ({"options": {"report_to": ("nowhere",)}}, "cannot report to nowhere"),
    ):
        with pytest.raises(BadInput, match=message):
            train(base, data, tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()


def test_a_gpu_by_number_is_refused(base: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.training.trainer.pick_device", lambda _: torch.device("cuda:1"))
    with pytest.raises(BadInput, match=r"device cuda:1: .* choose one by CUDA_VISIBLE_DEVICES=1"):
        train(base, data, tmp_path / "run")


def lines(path: Path, *values: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


def test_splits_are_checked_against_each_other(tmp_path: Path, data: Path) -> None:
    task = plain_task("classify", "text", "label")
    training = str(data / "train.jsonl")
    with pytest.raises(BadInput, match=r"train\.jsonl is one file, and fine-tuning needs dev examples too"):
        read_splits(task, training)
    with pytest.raises(BadInput, match="owner/name:en:train names one split"):
        read_splits(task, "owner/name:en:train")
    odd = lines(tmp_path / "odd.jsonl", {"text": "a", "label": "perhaps"})
    with pytest.raises(BadInput, match="unknown label 'perhaps'"):
        read_splits(task, training, odd)
    few = lines(tmp_path / "few.jsonl", {"text": "a", "label": "yes"})
    assert read_splits(task, training, few)[1].labels == (1,)  # a class that dev lacks keeps its number
    with pytest.raises(BadInput, match=r"few\.jsonl has one class, 'yes'; a classifier needs at least two"):
        read_splits(task, few, few)
    alone = lines(tmp_path / "alone.jsonl", {"text": "a", "label": 1})
    named = plain_task("classify", "text", "label", labels=("no", "yes"))
    with pytest.raises(
        BadInput, match=r"alone\.jsonl: every label is 'yes', and a classifier learns from at least two"
    ):
        read_splits(named, alone, alone)
    alike = lines(tmp_path / "alike.jsonl", {"text": "a", "label": "a-b"}, {"text": "a", "label": "A b"})
    with pytest.raises(BadInput):
        read_splits(task, alike, alike)
    empty = lines(tmp_path / "empty.jsonl")
    with pytest.raises(BadInput):
        read_splits(task, training, empty)
    three = lines(tmp_path / "three.jsonl", *({"text": "a", "label": name} for name in ("no", "yes", "so")))
    with pytest.raises(BadInput, match=r"has 2 classes \(no, yes\), .* has 3 \(no, so, yes\); both must have the same"):
        check_splits(read_splits(task, training, few)[0], read_splits(task, three, three)[1])
    with pytest.raises(BadInput, match="tasks of different kinds"):
        check_splits(read_splits(task, training, few)[0], examples(data, "regress", label="value")[1])


def test_hans_and_mismatched_mnli_are_trained_on_mnli(base: str, tmp_path: Path) -> None:
    pair = {"premise": "w1 w2", "hypothesis": "w3"}
    mnli = [{**pair, "label": label} for label in (0, 1, 2, 0, 1, 2, 0, 1)]
    lines(tmp_path / "train.jsonl", *mnli)
    lines(tmp_path / "validation_mismatched.jsonl", *mnli)
    training, dev = read_splits(find_task("mnli-mm"), str(tmp_path))
    assert (training.task.name, dev.task.name) == ("glue:mnli", "glue:mnli-mm")
    hans = lines(tmp_path / "hans.jsonl", {**pair, "label": 0}, {**pair, "label": 1}, {**pair, "label": 1})
    both = read_splits(find_task("hans"), str(tmp_path), hans)
    found = train(base, both, tmp_path / "run", epochs=1)
    assert found.about.task == "hans"
    loaded: Any = load_model(found.seeds[0].folder, EXACT)
    assert loaded.model.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}


# Order


def test_the_order_is_random_and_of_like_lengths() -> None:
    lengths = [5, 9, 2, 7, 3, 8, 1, 6, 4, 10, 11]
    order = training_order(lengths, batch=2, epochs=3, seed=0)
    assert len(order) == 3 * 5 * 2
    assert steps_per_epoch(11, 2) == 5
    for epoch in order.reshape(3, 10):
        assert len(set(epoch.tolist())) == 10
        for one, other in epoch.reshape(5, 2):
            assert abs(lengths[one] - lengths[other]) <= 2
    assert order.tolist() == training_order(lengths, batch=2, epochs=3, seed=0).tolist()
    assert order.tolist() != training_order(lengths, batch=2, epochs=3, seed=1).tolist()


# The result and its card


@pytest.mark.parametrize(
    "base", ["minilm-l6", "owner/name", 'runs/an: "odd"\n---\n# name', "modèle 🙂 {a: [b", "\x7f\x85\ud800"]
)
def test_the_card_s_metadata_is_valid_whatever_the_names(base: str) -> None:
    from huggingface_hub import ModelCard

    value = tuned(base=base)
    text = card(value, value.seeds[0])
    _, metadata, body = text.split("---\n", 2)
    found = yaml.safe_load(io.StringIO(metadata))
    assert found["metrics"] == ["accuracy"]
    assert found.get("base_model") == ("owner/name" if base == "owner/name" else None)
    (index,) = found["model-index"]
    assert index["results"][0]["metrics"] == [{"type": "accuracy", "name": "accuracy", "value": 0.75}]
    assert "accuracy 0.7500 (95 % interval of accuracy 0.6000 to 0.9000" in body
    assert "    outlierlens lab finetune m --task rte\n" in body
    parsed: Any = ModelCard(text).data
    assert parsed.eval_results[0].metric_value == 0.75


def test_the_docs_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "finetuned.md").read_text("utf-8")
    (code,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "read_splits" in one)
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "minilm-l6")
    rte = [{"sentence1": "w1 w2", "sentence2": "w3", "label": place % 2} for place in range(32)]
    lines(tmp_path / "rte" / "train.jsonl", *rte)
    lines(tmp_path / "rte" / "validation.jsonl", *rte[:6])
    known: dict[str, Any] = {}
    exec(compile(code, "finetuned.md", "exec"), known)
    assert known["tuned"].seeds[0].folder == "runs/rte/seed-42/model"
