"""The sample that comes with the package is a real masked language model, and every command takes it by name, offline."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlierlens.checkpoints import open_checkpoint, samples
from outlierlens.data.texts import Texts, batches, read_texts
from outlierlens.models.folder import model_folder
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.tasks.base import TaskOptions, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.training.pretrain.recipe import read_recipe
from outlierlens.training.watch_rows import read_activity, read_watch

NAME = "mini-bert"

# What the model that is shipped must reach; scripts/package_sample.py prints what it does reach.
MOST_LOSS = 3.6  # nats per masked token of `reviews`, 15 % masked
LEAST_ACCURACY = 5.0  # share of those tokens guessed right, over the share that the best constant guess gets
LEAST_WITHOUT_CONTEXT = 4.0  # nats that the words around a blank are worth
LEAST_EXPECTED = 5  # of EXPECTED, found among the ten likeliest tokens
MOST_BYTES = 12_000_000

EXPECTED = (
    ("This was the [MASK] movie I have ever seen.", {"worst", "best", "first"}),
    ("I have never [MASK] such a bad film in my life.", {"seen", "watched"}),
    (
        "The acting was [MASK] and so was the script.",
        {"good", "bad", "terrible", "great", "awful", "excellent", "horrible"},
    ),
    ("I would not recommend [MASK] to anyone.", {"it", "this", "that"}),
    ("Do not waste your [MASK] on this.", {"time", "money"}),
)


def top(loaded: LoadedModel, prompt: str, n: int) -> list[str]:
    """The n likeliest tokens of the one blank."""
    tokenizer: Any = loaded.tokenizer
    encoded = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        there = loaded.model(**encoded).logits[0][encoded["input_ids"][0] == tokenizer.mask_token_id]
    assert len(there) == 1
    return tokenizer.convert_ids_to_tokens(there[0].topk(n).indices.tolist())


# --- a language model --------------------------------------------------------------------------------------------


def test_it_is_a_masked_language_model_with_its_tokenizer(loaded: LoadedModel) -> None:
    assert (loaded.head, loaded.config["model_type"]) == ("masked", "bert")
    recipe = read_recipe(NAME)
    shape = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
    assert [loaded.config[key] for key in shape] == [4, 128, 8192, 64]
    assert recipe.tokenizer.vocabulary == len(loaded.tokenizer)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    tokenizer: Any = loaded.tokenizer
    read = tokenizer.convert_ids_to_tokens(tokenizer("The ACTING, unbelievably, wasn't bad.")["input_ids"])
    assert [read[0], read[-1]] == ["[CLS]", "[SEP]"]
    assert "".join(read[1:-1]).replace("##", "") == "theacting,unbelievably,wasn'tbad."


def test_transformers_loads_it_like_any_model(loaded: LoadedModel) -> None:
    from transformers import AutoModelForMaskedLM

    model, info = AutoModelForMaskedLM.from_pretrained(samples.directory(NAME), output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.float32
    ids = torch.tensor([[2, 100, 4, 200, 3]])
    with torch.inference_mode():
        assert torch.equal(model.eval()(input_ids=ids).logits, loaded.model(input_ids=ids).logits)


def test_it_reads_reviews_better_than_words_alone_would(loaded: LoadedModel, reviews: Texts) -> None:
    task = make_task(loaded, reviews.texts, TaskOptions(max_length=64, seed=0))
    values, weights = task.per_text()
    assert weighted_mean(values, weights) < MOST_LOSS
    assert weights.sum() > 100


def test_it_guesses_masked_tokens_better_than_any_constant_guess(loaded: LoadedModel, reviews: Texts) -> None:
    """Every token masked alone, in every seventh place; the constant is the commonest of these very tokens."""
    tokenizer: Any = loaded.tokenizer
    right, truth = 0, []
    generator = np.random.default_rng(0)
    for batch in batches(tokenizer, reviews.texts, max_length=64, batch_size=9):
        for start in generator.permutation(7)[:3]:
            ids = batch.inputs["input_ids"]
            places = (torch.arange(ids.shape[1]) % 7 == int(start)) & batch.valid & ~batch.special
            masked = ids.masked_fill(places, tokenizer.mask_token_id)
            with torch.inference_mode():
                guesses = loaded.model(**{**batch.inputs, "input_ids": masked}).logits[places].argmax(-1)
            right += int((guesses == ids[places]).sum())
            truth += ids[places].tolist()
    constant = Counter(truth).most_common(1)[0][1]
    assert len(truth) > 250
    assert right / constant > LEAST_ACCURACY


def test_the_words_around_a_blank_matter(loaded: LoadedModel, reviews: Texts) -> None:
    """With the other tokens in random order the same blanks cost more."""
    tokenizer: Any = loaded.tokenizer
    losses = {}
    for kind in ("in order", "shuffled"):
        generator = np.random.default_rng(1)
        total, n = 0.0, 0
        for text in reviews.texts:
            ids = torch.tensor(tokenizer(text, truncation=True, max_length=64)["input_ids"])
            blanks = torch.arange(3, len(ids) - 1, 7)
            answers, others = ids[blanks], ids.clone()
            others[blanks] = tokenizer.mask_token_id
            if kind == "shuffled":
                movable = torch.tensor([i for i in range(1, len(ids) - 1) if i not in set(blanks.tolist())])
                others[movable] = others[movable[torch.from_numpy(generator.permutation(len(movable)))]]
            with torch.inference_mode():
                scores = loaded.model(input_ids=others[None]).logits[0, blanks].log_softmax(-1)
            total -= float(scores.gather(1, answers[:, None]).sum())
            n += len(blanks)
        losses[kind] = total / n
    assert losses["shuffled"] - losses["in order"] > LEAST_WITHOUT_CONTEXT


def test_it_fills_in_what_a_reviewer_would_say(loaded: LoadedModel) -> None:
    found = [bool(words & set(top(loaded, prompt, 10))) for prompt, words in EXPECTED]
    assert sum(found) >= LEAST_EXPECTED, [top(loaded, prompt, 10) for prompt, _ in EXPECTED]


def test_half_precision_of_its_matrices_costs_nothing(loaded: LoadedModel, reviews: Texts) -> None:
    """bfloat16 arithmetic, coarser than what is stored, still gives the same loss."""
    coarse = load_model(NAME, LoadOptions(dtype="bfloat16", device="cpu"))
    options = TaskOptions(max_length=64, seed=0)
    one, other = (weighted_mean(*make_task(model, reviews.texts, options).per_text()) for model in (loaded, coarse))
    assert one == pytest.approx(other, abs=0.05)


# --- its files ---------------------------------------------------------------------------------------------------


def test_it_is_small_and_says_where_it_comes_from() -> None:
    folder = samples.directory(NAME)
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(files) == {
        "README.md", "config.json", "log.json", "model.safetensors", "recipe.toml", "tokenizer.json",
        "tokenizer_config.json", "watch.jsonl",
    }  # fmt: skip
    assert sum(files.values()) < MOST_BYTES
    assert files["watch.jsonl"] < 1_000_000
    text = (folder / "README.md").read_text("utf-8")
    for said in ("Maas et al., 2011", "stanfordnlp/imdb", "state no licence", "license: apache-2.0", "## Use"):
        assert said in text
    sample = samples.sample_named(NAME)
    assert sample.packaged
    assert "IMDB" in sample.licence
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe.changed([f"training.seed={read_recipe(NAME).training.seed}"]).digest == read_recipe(NAME).digest


def test_its_recorded_norms_end_where_its_weights_are() -> None:
    path = read_watch(samples.directory(NAME) / "watch.jsonl")
    assert path.steps[0] == 0
    assert set(np.diff(path.steps).tolist()) == {100}
    assert path.scale.shape == (len(path.steps), 4, 128)
    with open_checkpoint(NAME) as checkpoint:
        for kind, recorded in (("weight", path.scale), ("bias", path.bias)):
            names = [f"bert.encoder.layer.{layer}.output.LayerNorm.{kind}" for layer in range(4)]
            stored = dict(checkpoint.read(names))
            assert np.array_equal(np.stack([stored[name] for name in names]), recorded[-1])
    assert path.states.shape == (len(path.steps), 128)
    loss = path.curves["loss"].values
    assert loss[:3].mean() - loss[-3:].mean() > 2
    seen = read_activity(samples.directory(NAME) / "watch.jsonl")
    assert np.isfinite(seen.inf_norm).all()
    logged = json.loads((samples.directory(NAME) / "log.json").read_text("utf-8"))["log_history"]
    assert {key for row in logged for key in row} == {"step", "loss", "eval_loss"}
    assert [row["loss"] for row in logged if "loss" in row] == loss.tolist()


# --- every command -----------------------------------------------------------------------------------------------


def test_there_is_nothing_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "none"))
    said: list[str] = []
    folder = samples.fetch(NAME, said.append)
    assert said == ["mini-bert: comes with the package; there is nothing to fetch"]
    assert folder == samples.directory(NAME) == model_folder(NAME)
    assert (folder / "model.safetensors").is_file()
    assert not (tmp_path / "none").exists()


def test_an_installation_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "PACKAGED", tmp_path)
    assert not samples.is_complete(samples.sample_named(NAME))
    assert samples.recorded_norms(NAME) is None
    with pytest.raises(Exception, match=r"sample 'mini-bert' is missing from .*; install outlierlens again"):
        samples.directory(NAME)


@pytest.mark.real
def test_held_out_reviews_cost_what_the_log_says(loaded: LoadedModel, evaluation_data: Path) -> None:
    """Every hundredth review of IMDB was never trained on; 65 of them, 15 % masked, are some 0.1 nats from the log's rows."""
    every = read_texts(evaluation_data / "imdb" / "train.parquet", limit=6401).texts
    held_out = tuple(text.replace("<br />", " ") for text in every[::100])
    task = make_task(loaded, held_out, TaskOptions(max_length=64, seed=0))
    logged = json.loads((samples.directory(NAME) / "log.json").read_text("utf-8"))["log_history"]
    last = [row["eval_loss"] for row in logged if "eval_loss" in row][-1]
    assert weighted_mean(*task.per_text()) == pytest.approx(last, abs=0.3)
