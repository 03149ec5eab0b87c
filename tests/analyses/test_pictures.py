"""`attention`, `mask` and `geometry` on pictures, against plain loops of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import media_models as made
from outlierlens import attention, geometry, mask
from outlierlens.analyses.attention import OF_WORDS
from outlierlens.data.media import Items, read_items
from outlierlens.data.media.read import ItemOptions
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.vectors.fixes import parse_fixes

UNLABELLED = ItemOptions(labelled=False)
PLAIN = LoadOptions(dtype="float32", device="cpu")
PATCH = f"patch {made.ROW},{made.COLUMN}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models planted, plain, registers, whole (whose pictures keep their size); pictures red, grey, mixed (of two sizes)."""
    root = tmp_path_factory.mktemp("pictures")
    made.save_dinov2(root / "planted")
    made.save_dinov2(root / "plain", planted=False)
    made.save_dinov2(root / "registers", registers=2)
    made.save_dinov2(root / "whole", whole=True)
    made.write_photos(root / "red")
    made.write_photos(root / "grey", red=(), seed=1)
    made.write_photos(root / "mixed", 4)
    made.write_photos(root / "mixed", 2, height=3, width=6)
    return root


def read(folder: Path, model: str, data: str) -> tuple[LoadedModel, Items]:
    return load_model(str(folder / model), PLAIN), read_items("image", folder / data, UNLABELLED)


def plain(folder: Path, model: str, items: Items, **asked: Any) -> list[Any]:
    """What transformers' own model says of each picture by itself."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    processor = AutoImageProcessor.from_pretrained(folder / model, backend="pil")
    loaded = AutoModel.from_pretrained(folder / model, attn_implementation="eager").eval()
    found = []
    for part in items.parts:
        pixels = processor(Image.open(part.path).convert("RGB"), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            found.append(loaded(pixels, **asked))
    return found


@pytest.mark.parametrize(("model", "data"), [("planted", "red"), ("registers", "grey"), ("whole", "mixed")])
def test_attention_on_patches_is_that_of_transformers(folder: Path, model: str, data: str) -> None:
    loaded, items = read(folder, model, data)
    found = attention(loaded, items, dims=(made.SOURCE,), n_random=1, n_bootstrap=20, batch_size=2)
    special = 3 if model == "registers" else 1
    maps = [
        one.attentions for one in plain(folder, model, items, output_attentions=True)
    ]  # [layer][1, head, query, key]
    assert len({one[0].shape for one in maps}) == (2 if data == "mixed" else 1)
    n_queries = sum(one[0].shape[2] for one in maps)
    for layer in range(4):
        first = sum(float(one[layer][0, :, :, 0].mean(0).sum()) for one in maps) / n_queries
        every = sum(float(one[layer][0, :, :, :special].sum(2).mean(0).sum()) for one in maps) / n_queries
        assert found.figure("first", str(layer)).value.value == pytest.approx(first, rel=1e-4)
        assert found.figure("special", str(layer)).value.value == pytest.approx(every, rel=1e-4)
    assert found.first == "[CLS]"
    assert any("goes to the first token, [CLS]," in sentence for sentence in found.sentences())
    assert (found.about.inputs, found.about.n_tokens, found.n_special) == ("images", n_queries, special * len(items))
    assert not {row.measure for row in found.figures} & {*OF_WORDS}
    assert found.delimiters == ()
    with pytest.raises(BadInput, match="pads texts as the released code does; images are not"):
        attention(loaded, items, dims=(made.SOURCE,), paper_compat=True)


def test_a_patch_that_is_long_in_all_pictures_is_masked_by_its_place(folder: Path) -> None:
    loaded, items = read(folder, "planted", "red")
    found = mask(loaded, items, layer=made.BLOCK, factor=5)
    assert found.positions == (1 + 4 * made.ROW + made.COLUMN,)
    assert found.places == (PATCH,)
    assert (found.token_ids, found.words) == ((), ())
    assert (found.judged.recall, found.judged.n_sinks, found.judged.false_share) == (1, 4, 0)
    assert {one.dim for one in found.dimensions} == {*made.WRITTEN}
    said = " ".join(found.sentences())
    assert f"The mask leaves out {PATCH}." in said
    assert "On 4 images that did not make it" in said
    assert mask(*read(folder, "plain", "red"), layer=made.BLOCK, factor=5).positions == ()


def test_vectors_of_patches_lie_as_by_hand(folder: Path) -> None:
    loaded, items = read(folder, "whole", "mixed")
    found = geometry(loaded, items, n_bootstrap=20)
    assert found.fixes == ("raw",)  # nothing is left to fit on
    assert next(iter(found.sentences())).startswith("Only raw vectors are measured, no fix: ")
    assert (found.about.inputs, found.n_sentences, found.about.n_tokens) == ("images", 6, 4 * 16 + 2 * 18)
    assert any("images have no words" in note for note in found.notes)
    states = [one.hidden_states for one in plain(folder, "whole", items, output_hidden_states=True)]
    for layer in ("embeddings", "1"):
        cosines = []
        for one in states:
            vectors = one[0 if layer == "embeddings" else int(layer) + 1][0, 1:].double().numpy()
            middle = vectors.mean(0)
            cosines.append((vectors @ middle / np.linalg.norm(vectors, axis=1) / np.linalg.norm(middle)).mean())
        assert found.row(layer).intra_sentence.value == pytest.approx(np.mean(cosines), rel=1e-4)


def test_fixes_are_fitted_on_other_pictures(folder: Path) -> None:
    loaded, items = read(folder, "planted", "red")
    other = read_items("image", folder / "grey", UNLABELLED)
    found = geometry(loaded, items, fit=other, n_bootstrap=20)
    assert (found.n_fit_texts, found.n_shared, found.fit_data) == (8, 0, other.source)
    assert set(found.fixes) > {"raw", "clip"}
    assert all(row.n_fitted == 8 * 16 for row in found.by_layer if row.fix == "standardize")
    both = Items(
        "both", "image", (*items.parts, *other.parts, *other.parts[:3])
    )  # three stand twice, all red are measured
    again = geometry(loaded, items, fit=both, n_bootstrap=20)
    assert (again.n_fit_texts, again.n_shared) == (8, 8)
    assert again.row("1", "standardize").anisotropy == found.row("1", "standardize").anisotropy
    with pytest.raises(BadInput, match="4 of its 4 images are evaluated ones"):
        geometry(loaded, items.first(4), fixes=parse_fixes("raw,clip"), n_bootstrap=20)
    with pytest.raises(BadInput, match="holds texts, and images are measured"):
        geometry(loaded, items, fit=Texts("words", ("a", "b")), n_bootstrap=20)


def test_commands_take_pictures_and_refuse_what_is_of_words(folder: Path, run: Any) -> None:
    planted, red = str(folder / "planted"), str(folder / "red")
    code, shown, _ = run("mask", planted, "--data", red)
    assert code == 0
    assert "4 images of" in shown
    for words, error in (
        (("mask", planted, "--for", "saelens", "--to", "sinks.py"), "--for saelens: that tool reads texts"),
        (("attention", planted, "--max-seconds", "3"), "--max-seconds belongs to recordings"),
        (("quantize", planted), "repair, attention, mask and geometry with a model that reads those"),
        (("attention", planted, "--stack", "text"), "which stream? --stack must be one of model"),
    ):
        code, _, said = run(*words, "--data", red)
        assert (code, error in said) == (1, True), said
