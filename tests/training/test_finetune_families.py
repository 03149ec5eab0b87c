"""Every family that can be fine-tuned is: its head is new, training moves it, and padding changes no prediction."""

import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from architectures import FAMILIES, Family, build, config_of
from conftest import Words
from finetune_runs import examples, train, write_data
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.models.model_class import NewHead
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore

HEADS = {
    "Sequence": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "Token": transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}
EOS = {"t5": 2, "mt5": 2}  # the tokenizer's [SEP]: their heads read the last one


def with_head(kind: str) -> list[Any]:
    """One variant of each row that has such a head; images and sounds are no texts."""
    found: dict[str, str] = {}
    for family in FAMILIES.values():
        if family.inputs != "image and text" and type(config_of(family)) in HEADS[kind]:
            found.setdefault(family.model_type, family.name)
    return sorted(found.values())


def saved(family: Family, folder: Path) -> str:
    more = {"eos_token_id": EOS[family.model_type]} if family.model_type in EOS else {}
    build(dataclasses.replace(family, config={**family.config, **more})).save_pretrained(folder)
    Words.build().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def old_objects_rest() -> Iterator[None]:
    """The Trainer collects garbage after each training, and looking through all libraries each time is most of the work."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), n_train=16, n_dev=12)


def test_the_families_are_those_meant() -> None:
    assert len(with_head("Sequence")) > 25
    assert {"gpt2", "llama", "xlnet", "bart", "t5", "bert", "deberta"} <= set(with_head("Sequence"))
    assert {"gpt2", "llama", "xlnet", "t5", "bert"} <= set(with_head("Token"))


@pytest.mark.parametrize("name", with_head("Sequence"))
def test_texts(name: str, data: Path, tmp_path: Path) -> None:
    base = saved(FAMILIES[name], tmp_path / "base")
    both = examples(data)
    tuned = train(base, both, tmp_path / "run", epochs=1, learning_rate=1e-3)
    assert tuned.seeds[0].epochs[0].step == 2
    one = load_model(base, LoadOptions(dtype="float32", device="cpu"), NewHead(("no", "yes"), seed=42))
    two = load_model(tuned.seeds[0].folder, LoadOptions(dtype="float32", device="cpu"))
    assert two.model.config.id2label == {0: "no", 1: "yes"}  # type: ignore[union-attr]
    before, after = dict(one.model.named_parameters()), dict(two.model.named_parameters())
    assert before.keys() == after.keys()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    assert len(moved) > len(before) // 2
    assert_padding_is_nothing(two, both[1])


@pytest.mark.parametrize("name", ["bert", "gpt2", "xlnet", "t5", "modernbert"])
def test_words(name: str, data: Path, tmp_path: Path) -> None:
    base = saved(FAMILIES[name], tmp_path / "base")
    both = examples(data, "tokens", text="words", label="tags")
    tuned = train(base, both, tmp_path / "run", epochs=1, learning_rate=1e-3)
    loaded = load_model(tuned.seeds[0].folder, LoadOptions(dtype="float32", device="cpu"))
    assert_padding_is_nothing(loaded, both[1])
    value = tuned.seeds[0].value
    assert 0 <= value.low <= value.value == tuned.seeds[0].best.scores["token accuracy"] <= value.high <= 1


def assert_padding_is_nothing(loaded: Any, dev: Any) -> None:
    """Losses of texts of several lengths in one batch are those of each alone, computed without any of our batches."""
    found = LabelledScore(loaded, dev, TaskOptions(max_length=16, batch_size=12)).outputs()
    tokens = dev.task.level == "token"
    for number in (0, 5, 11):
        text, label = dev.texts[number], dev.labels[number]
        ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        if tokens:  # a word is a token here, between [CLS] and [SEP]
            wanted = functional.cross_entropy(logits[1:-1], torch.tensor(label))
        else:
            wanted = functional.cross_entropy(logits, torch.tensor(label))
        np.testing.assert_allclose(found.losses[number], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["outlierlens-bert", "vit", "wav2vec2", "clip", "whisper"])
def test_a_family_without_such_a_head_is_one_clear_line(name: str, data: Path, tmp_path: Path) -> None:
    family = FAMILIES[name]
    build(family).save_pretrained(tmp_path / "base")
    Words.build().save_pretrained(tmp_path / "base")
    with pytest.raises(
        BadInput, match=f"model_type '{family.model_type}' has no sequence classification head"
    ) as caught:
        train(str(tmp_path / "base"), data, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_words_of_a_model_without_such_a_head(data: Path, tmp_path: Path) -> None:
    base = saved(FAMILIES["opt"], tmp_path / "base")
    both = examples(data, "tokens", text="words", label="tags")
    with pytest.raises(OutlierlensError, match="model_type 'opt' has no token classification head"):
        train(base, both, tmp_path / "run")
