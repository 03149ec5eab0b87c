"""The table of samples, the cache's place, and what the real samples hold once they are fetched."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.checkpoints import open_checkpoint, samples
from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.data.texts import SHIPPED
from outlierlens.errors import UnknownModel
from outlierlens.models.folder import model_folder
from outlierlens.results.safe_files import cache_root

# --- the table ---------------------------------------------------------------------------------------------------


def test_the_table_is_complete_and_safe() -> None:
    assert list(SAMPLES) == [
        "mini-bert", "mini-planted", "smollm2-135m", "mpnet-base", "minilm-l6", "distilbert-cased",
    ]  # fmt: skip
    for name, sample in SAMPLES.items():
        assert sample.name == name
        assert sample.licence.startswith("Apache-2.0")
        assert sample.origin
        assert bool(sample.wheels) == bool(sample.files) == (not sample.packaged)
        assert sample.texts in SHIPPED
        assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in sample.wheels)
        assert all(size > 0 for size in (*(wheel.size for wheel in sample.wheels), *sample.files.values()))
        assert len(sample.wheels) <= 1 or sample.slices
        for file in map(Path, sample.files):
            assert not file.is_absolute()
            assert ".." not in file.parts
            assert file.name != "desktop.ini"
        assert sample.need_bytes >= sample.download_bytes + sample.kept_bytes
        assert len(sample.slices) in (0, len(sample.wheels))
    assert len({sample.digest for sample in SAMPLES.values() if not sample.packaged}) == 4


def test_an_unknown_sample_names_the_others() -> None:
    with pytest.raises(UnknownModel, match=r"no sample is called 'smollm2'; samples are .*; near: smollm2-135m"):
        samples.directory("smollm2")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "/home/me/.cache/outlierlens"),
        ("linux", {"XDG_CACHE_HOME": "/big"}, "/big/outlierlens"),
        ("linux", {"XDG_CACHE_HOME": "/big", "OUTLIERLENS_CACHE": "~/own"}, "/home/me/own"),
        ("darwin", {"XDG_CACHE_HOME": "/big"}, "/home/me/Library/Caches/outlierlens"),
        ("win32", {"LOCALAPPDATA": "/appdata"}, "/appdata/outlierlens"),
    ],
)
def test_the_cache_stands_where_the_platform_wants_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("OUTLIERLENS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(samples.sys, "platform", platform)
    for name, value in ({"HOME": "/home/me"} | variables).items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)


# --- the real ones -----------------------------------------------------------------------------------------------


@pytest.mark.real
def test_the_tagger_s_onnx_and_its_conversion_hold_the_same_values(sample: Any) -> None:
    pytest.importorskip("onnx")
    with (
        open_checkpoint(sample("distilbert-cased")) as stored,
        open_checkpoint(str(model_folder("distilbert-cased"))) as converted,
    ):
        assert (stored.kind, converted.kind) == ("onnx", "safetensors")
        assert stored.config["model_type"] == "distilbert"
        assert stored.notes == ()
        assert set(stored.tensors) == set(converted.tensors)
        assert len(stored.tensors) == 102
        assert converted.tensors["distilbert.transformer.layer.3.ffn.lin1.weight"].shape == (3072, 768)
        assert converted.tensors["classifier.weight"].shape == (213, 768)
        for (name, ours), (_, theirs) in zip(stored.read(stored.tensors), converted.read(stored.tensors), strict=True):
            assert np.array_equal(ours, theirs), name


@pytest.mark.real
def test_the_converted_tagger_computes_what_the_onnx_graph_computes(sample: Any) -> None:
    """With the static rounding of activations taken out of the graph, logits agree to float32's precision."""
    onnx = pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from onnx.reference import ReferenceEvaluator

    folder = samples.directory(sample("distilbert-cased"))
    made = model_folder("distilbert-cased")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    model, loading = transformers.AutoModelForTokenClassification.from_pretrained(made, output_loading_info=True)
    assert not any(loading.values())
    inputs = tokenizer("He have went to the store.", return_tensors="pt")
    with torch.no_grad():
        ours = model.eval()(**inputs).logits.numpy()
    assert [model.config.id2label[index] for index in ours[0].argmax(-1)] == (
        ["$KEEP"] * 2 + ["$REPLACE_has", "$REPLACE_gone"] + ["$KEEP"] * 5
    )

    graph_model = onnx.load(folder / "tagger.onnx")
    graph_model.opset_import[0].version = 19  # the evaluator has no older DequantizeLinear; per tensor they are alike
    graph = graph_model.graph
    rounded = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    exact = {
        node.output[0]: rounded[node.input[0]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in rounded
    }
    assert len(exact) == 100
    for node in graph.node:
        for place, value in enumerate(node.input):
            node.input[place] = exact.get(value, value)
    (theirs,) = ReferenceEvaluator(graph_model).run(
        ["logits"], {name: inputs[name].numpy() for name in ("input_ids", "attention_mask")}
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


@pytest.mark.real
def test_the_converted_tagger_shows_the_published_outlier(sample: Any) -> None:
    """Dimension 557 is the smallest of nearly every token vector in the first three blocks (Luo et al., 2021)."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    made = model_folder(sample("distilbert-cased"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    model = transformers.AutoModelForTokenClassification.from_pretrained(made).eval()
    texts = [
        "The film never quite decides what it wants to be, but it is a pleasure to watch it try.",
        "Heavy rain is expected along the coast on Tuesday, with winds of up to 60 miles an hour.",
        "She closed the book, put out the lamp, and listened to the house settle into the night.",
    ]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states  # embeddings, then each block's output
    real = inputs["attention_mask"].bool()
    for layer in range(3):
        assert (states[layer + 1][real].argmin(-1) == 557).float().mean() >= 0.98  # one token of 63 may differ
