"""How sentences become vectors: each way against plain loops, and what is read of a model's own way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from architectures import FAMILIES
from outlierlens.analyses.embed_pass import Pooling, own_pooling, sentence_vectors
from outlierlens.data.texts import Texts
from outlierlens.errors import BadFile, BadInput
from outlierlens.vectors.read import ReadOptions
from planted import Oracle, some_texts, wrap

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


@pytest.mark.parametrize(
    ("pooling", "of"),
    [
        (Pooling(), lambda states: states[1:-1].mean(0)),
        (Pooling(special=True), lambda states: states.mean(0)),
        (Pooling("first"), lambda states: states[0]),
        (Pooling("last"), lambda states: states[-1]),
    ],
)
def test_each_way_is_what_it_says(pooling: Pooling, of: Callable[[Any], Any], words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    texts = some_texts(7, seed=3)
    got = sentence_vectors(loaded, texts.texts, pooling, ReadOptions(batch_size=3)).values
    oracle = Oracle(loaded, Texts("t", texts.texts), 128)
    (stack,) = oracle.by_text
    wanted = np.array([[of(layer) for layer in states] for states in oracle.by_text[stack]]).swapaxes(0, 1)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def model(folder: Path, modules: Any, config: Any = None, **files: Any) -> str:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    if config is not None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"embedding_dimension": 384, "pooling_mode": "cls", "include_prompt": True}, "first"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_a_models_own_way_is_read_in_both_formats(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    name = model(tmp_path, [TRANSFORMER, POOLING], config, sentence_bert_config={"max_seq_length": 77})
    found = own_pooling(name)
    assert (found.mode, found.special, found.max_length, found.notes) == (mode, True, 77, ())


def test_what_else_the_model_does_is_said(tmp_path: Path) -> None:
    dense = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    normalize = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
    settings = {"default_prompt_name": "query"}
    name = model(
        tmp_path, [TRANSFORMER, POOLING, dense, normalize], {"pooling_mode_mean_tokens": True},
        config_sentence_transformers=settings,
    )  # fmt: skip
    found = own_pooling(name)
    assert found.max_length == 128
    assert found.notes == (
        "the model's own Dense behind the pooling is left out", "the model's own prompt 'query' is left out",
    )  # fmt: skip


def test_without_a_description_it_is_the_librarys_default(tmp_path: Path) -> None:
    found = own_pooling(str(tmp_path))
    assert (found.mode, found.special) == ("mean", True)


@pytest.mark.parametrize(
    ("modules", "config", "error", "says"),
    [
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_max_tokens": True},
            BadInput,
            "its own pooling is max, which is not supported",
        ),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_mean_sqrt_len_tokens": True},
            BadInput,
            "is mean_sqrt_len_tokens, which",
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode": ["cls", "mean"]}, BadInput, "its own pooling is cls and mean"),
        ([TRANSFORMER], {}, BadInput, r"modules.json names no Pooling \(Transformer\)"),
        ([TRANSFORMER, POOLING], None, BadFile, "1_Pooling/config.json, which modules.json names, is missing"),
        ({"no": "list"}, {}, BadFile, "modules.json is not a list of modules"),
        ([TRANSFORMER, POOLING | {"path": "../../etc"}], {}, BadFile, "which is no folder beside it"),
        ([TRANSFORMER, POOLING | {"path": "/etc"}], {}, BadFile, "which is no folder beside it"),
    ],
)
def test_what_cannot_be_followed(tmp_path: Path, modules: Any, config: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        own_pooling(model(tmp_path, modules, config))


def test_damaged_files_and_unknown_ways(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(BadFile, match=r"modules\.json: not valid JSON"):
        own_pooling(str(tmp_path))
    (tmp_path / "modules.json").write_text(" " * (2**20 + 1))
    with pytest.raises(BadFile, match="is too large for a configuration"):
        own_pooling(str(tmp_path))
    with pytest.raises(BadInput, match="pooling is 'max'; use one of mean, first, last"):
        Pooling("max")


@pytest.mark.real
def test_the_samples_own_way(sample: Callable[[str], str]) -> None:
    found = own_pooling(sample("mpnet-base"))
    assert (found.mode, found.special, found.max_length) == ("mean", True, 384)
