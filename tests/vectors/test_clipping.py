"""Which dimensions are clipped where: written by hand, named after a paper, read from a file, or observed."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens.data.texts import Texts
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.hooks import tapped
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.vectors.clip import SPECIFICATIONS, Clipping, _by_layer, resolve_clipping

TEXTS = Texts("made", tuple(" ".join(f"w{(7 * i + j) % 33}" for j in range(1 + i % 8)) for i in range(40)))


@pytest.fixture(scope="module")
def bert(words: Callable[..., Any]) -> LoadedModel:
    """Three blocks of 16 dimensions."""
    return from_objects(build(FAMILIES["bert"]), words(), name="tiny")


def shaped(model_type: str, n_layers: int, hidden_size: int) -> LoadedModel:
    """A thin model of that family and shape."""
    import transformers

    sizes = {"vocab_size": 8, "num_hidden_layers": n_layers, "num_attention_heads": 1, "max_position_embeddings": 8}
    config = transformers.AutoConfig.for_model(model_type, hidden_size=hidden_size, intermediate_size=1, **sizes)
    if model_type == "distilbert":
        config = transformers.AutoConfig.for_model(
            model_type, vocab_size=8, n_layers=n_layers, n_heads=1, dim=hidden_size, hidden_dim=1
        )
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    return from_objects(model, name=model_type)


def test_dimensions_alone_hold_in_every_block_and_not_in_the_embeddings(bert: LoadedModel) -> None:
    found = resolve_clipping("7, 3,7", bert)
    assert found == Clipping("7, 3,7", {"0": (3, 7), "1": (3, 7), "2": (3, 7)}, "named by hand")
    assert found.at("1") == (3, 7)
    assert found.at("embeddings") == ()
    assert found.every == (3, 7)


def test_ranges_of_layers_from_0_meet_and_embeddings_can_be_named(bert: LoadedModel) -> None:
    found = resolve_clipping("0-1:5 ; 1-2: 9,2; embeddings:15", bert)
    assert found.dims == {"embeddings": (15,), "0": (5,), "1": (2, 5, 9), "2": (2, 9)}
    assert list(found.dims) == ["embeddings", "0", "1", "2"]


def test_none_clips_nothing(bert: LoadedModel) -> None:
    assert resolve_clipping("none", bert).dims == {}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("", "cannot read the clipping ''"),
        ("luo-bert-larg", "specifications are luo-bert-base"),
        ("0-9:", "cannot read the clipping '0-9:'"),
        ("1:2:3", "cannot read the layers '1:2'"),
        ("2-1:3", "run backwards; write 1-2"),
        ("0-3:3", "layer 3 cannot be clipped; the model has blocks 0 to 2"),
        ("-1:3", "cannot read the layers '-1'"),
        ("16", "dimension 16 does not exist; clipping '16', layer 0: dimensions 0 to 15"),
        ("auto", "name one with --fit-data"),
        ("١", "cannot read the clipping"),
    ],
)
def test_what_cannot_be_read_says_what_can(bert: LoadedModel, asked: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        resolve_clipping(asked, bert)


def test_the_papers_layers_count_from_1_and_ours_from_0() -> None:
    large = SPECIFICATIONS["luo-bert-large"]
    assert large.ranges == ((1, 10, 896), (10, 17, 678), (16, 19, 122), (19, 23, 928))  # as printed, layers from 1
    expected = {}
    for block in range(24):
        dims = (
            [896] * (block <= 9)
            + [678] * (9 <= block <= 16)
            + [122] * (15 <= block <= 18)
            + [928] * (18 <= block <= 22)
        )
        if dims:
            expected[str(block)] = tuple(sorted(dims))
    assert large.dims == expected
    assert large.dims["9"] == (678, 896)
    assert large.dims["18"] == (122, 928)
    assert "23" not in large.dims


def test_roberta_large_carries_both_versions_of_the_paper() -> None:
    clipped, found = SPECIFICATIONS["luo-roberta-large"], SPECIFICATIONS["luo-roberta-large-found"]

    def blocks(spec: Any, dim: int) -> list[int]:
        return [int(layer) for layer, dims in spec.dims.items() if dim in dims]

    assert blocks(clipped, 673) == list(range(24))  # all but the input
    assert blocks(found, 673) == list(range(23))  # layers 1 to 23
    assert blocks(clipped, 981) == list(range(9))  # the first 9 layers
    assert blocks(found, 981) == list(range(6))  # layers 1 to 6
    assert blocks(clipped, 631) == blocks(found, 631) == list(range(14, 24))  # the last 10 are layers 15 to 24
    assert clipped.source.endswith("appendix D.1")
    assert found.source.endswith("appendix A")
    assert "appendix A" in clipped.note
    assert "appendix D.1" in found.note


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_a_specification_is_for_its_own_shape(name: str, bert: LoadedModel) -> None:
    spec = SPECIFICATIONS[name]
    found = resolve_clipping(name, shaped(spec.model_type, spec.n_layers, spec.hidden_size))
    assert found.dims == spec.dims
    assert spec.source in found.source
    with pytest.raises(
        BadInput, match=rf"{name} is for a {spec.model_type} of {spec.n_layers} blocks.*tiny is a bert of 3"
    ):
        resolve_clipping(name, bert)


def test_a_specification_is_not_for_another_family_of_the_same_shape() -> None:
    with pytest.raises(BadInput, match="is for a roberta of 12 blocks and 768 dimensions; bert is a bert of 12 blocks"):
        resolve_clipping("luo-roberta-base", shaped("bert", 12, 768))


def test_files_in_both_forms_and_what_this_module_makes(bert: LoadedModel, tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('"0-1" = [5]\n2 = [3, 1]\n')
    expected = {"0": (5,), "1": (5,), "2": (1, 3)}
    assert resolve_clipping(str(toml), bert).dims == expected
    toml.write_text('[dims]\n"0-1" = [5]\n2 = [3, 1]\n')
    found = resolve_clipping(str(toml), bert)
    assert found.dims == expected
    assert found.source == "file mine.toml"
    again = tmp_path / "again.JSON"
    again.write_text(json.dumps(asdict(found)))
    assert resolve_clipping(str(again), bert).dims == expected
    again.write_text(json.dumps(asdict(resolve_clipping("none", bert))))
    assert resolve_clipping(str(again), bert).dims == {}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", BadFile, "not valid JSON"),
        ("[1]", BadFile, "no layer with dimensions"),
        ("{}", BadFile, "no layer with dimensions"),
        ('{"0": 5}', BadFile, "0 = 5; it must be a list"),
        ('{"0": [true]}', BadFile, "must be a list of dimensions"),
        ('{"0": [5.0]}', BadFile, "must be a list of dimensions"),
        ('{"9": [5]}', BadInput, "layer 9 cannot be clipped"),
        ('{"0": [-1]}', BadInput, "dimension -1 does not exist"),
        ("[" * 100_000, BadFile, "not valid JSON"),
    ],
)
def test_a_bad_file_is_refused(
    bert: LoadedModel, tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(error, match=message):
        resolve_clipping(str(path), bert)


def test_a_missing_and_a_huge_file(bert: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file of a clipping"):
        resolve_clipping(str(tmp_path / "no.toml"), bert)
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(BadFile, match="too large"):
        resolve_clipping(str(huge), bert)


def plant(model: torch.nn.Module, layer: int, dim: int, value: float) -> None:
    """Have `dim` be `value` in every output of block `layer`."""
    norm: Any = model.encoder.layer[layer].output.LayerNorm  # type: ignore[union-attr, index]
    with torch.no_grad():
        norm.weight[dim], norm.bias[dim] = 0.0, value


def test_auto_finds_what_is_planted_in_the_layers_where_it_is(words: Callable[..., Any]) -> None:
    model = build(FAMILIES["bert"])
    plant(model, 1, 6, -90.0)
    plant(model, 2, 6, -90.0)
    plant(model, 2, 11, 70.0)
    tokenizer = words()
    loaded = from_objects(model, tokenizer, name="planted")
    found = resolve_clipping("auto", loaded, fit_texts=TEXTS)
    assert found.name == "auto"
    assert "observed on 40 texts" in found.source
    assert "of made" in found.source
    states: dict[str, np.ndarray] = {}

    def look(_: Any, layer: int, seen: torch.Tensor) -> None:
        states[str(layer)] = seen.flatten(0, 1).numpy()

    with torch.inference_mode(), tapped(model, loaded.stacks, look):
        for text in TEXTS.texts:  # no padding, one text at a time
            model(**tokenizer(text, return_tensors="pt"))
    assert set(states["2"].argmin(1)) == {6}
    assert set(states["2"].argmax(1)) == {11}
    assert 6 in found.at("1")
    assert 11 not in found.at("1")
    assert found.at("2") == (6, 11)
    assert found.at("embeddings") == ()


def test_auto_says_that_there_is_none(words: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    import transformers

    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        initializer_range=1.0,
    )
    loaded = from_objects(transformers.BertModel(config), words(), name="plain")
    found = resolve_clipping("auto", loaded, fit_texts=TEXTS)
    assert found.dims == {}
    assert found.source.startswith("no dimension is the smallest or largest")
    assert "nothing is clipped" in found.source


@settings(max_examples=60)
@given(
    st.lists(
        max_size=4,
        elements=st.tuples(
            st.lists(st.integers(-1, 5), max_size=4), st.lists(st.integers(0, 9), max_size=4).map(tuple)
        ),
    )
)
def test_by_layer_is_the_union_in_order(entries: list[tuple[list[int], tuple[int, ...]]]) -> None:
    found = _by_layer(entries)
    for layer in range(-1, 6):
        wanted = {dim for layers, dims in entries if layer in layers for dim in dims}
        name = "embeddings" if layer == -1 else str(layer)
        assert found.get(name, ()) == tuple(sorted(wanted))
    assert all(found.values())
