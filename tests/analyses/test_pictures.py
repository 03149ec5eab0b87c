"""`attention`, `mask` and `geometry` on pictures, and the patches of high norm that `observe` names, against plain loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import media_models as made
from outlierlens import attention, geometry, mask, observe
from outlierlens.analyses import observe_patches
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
    made.write_photos(root / "half", 4, red=((0, 0), (0, 3)))
    made.write_photos(root / "half", 4, red=(), height=5, seed=2)  # whose middle alone is read
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
    assert "On 4 held-out images" in said
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
        (("mask", planted, "--export", "saelens:sinks.py"), "--export saelens: that tool reads texts"),
        (("attention", planted, "--data", "seconds=3"), "--data seconds belongs to recordings"),
        (("quantize", planted), "repair, attention, mask and geometry with a model that reads those"),
        (("attention", planted, "--stack", "text"), "which stream? --stack must be one of model"),
    ):
        code, _, said = run(*words, "--data", red)
        assert (code, error in said) == (1, True), said


# --- patches of high norm --------------------------------------------------------------------------------------------


def by_hand(folder: Path, model: str, items: Items, n_special: int) -> np.ndarray:
    """States of patches [block, patch, dim]."""
    states = [one.hidden_states[1:] for one in plain(folder, model, items, output_hidden_states=True)]
    return np.concatenate(
        [np.stack([one[0, n_special:].double().numpy() for one in layers]) for layers in states], axis=1
    )


@pytest.mark.parametrize(("model", "n_special"), [("planted", 1), ("registers", 3)])
def test_patches_of_high_norm_are_told_with_places_blocks_dimensions_and_neurons(
    folder: Path, model: str, n_special: int
) -> None:
    loaded, items = read(folder, model, "red")
    found = observe(loaded, items, batch_size=3)
    states = by_hand(folder, model, items, n_special)
    norms = np.linalg.norm(states, axis=2)
    for layer, row in enumerate(found.patches):
        median = np.median(norms[layer])
        spread = 1.4826 * np.median(np.abs(norms[layer] - median))
        assert row.median == pytest.approx(median, rel=1e-5)
        assert row.cutoff == pytest.approx(max(3 * median, median + 10 * spread), rel=1e-5)
        assert row.largest == pytest.approx(norms[layer].max(), rel=1e-5)
        assert (row.n, row.images) == ((8, 8) if layer >= made.BLOCK else (0, 0))
    high = found.high_norm
    assert high is not None
    assert (high.n, high.n_patches, high.n_images, high.n_read, high.most) == (8, 8 * 16, 8, 8, 1)
    assert (high.first, high.last, high.border, high.flat) == (str(made.BLOCK), "3", 0, 1)
    assert high.border_all == 12 / 16
    assert [(one.patch, one.images, one.border) for one in found.patch_places] == [(PATCH, 8, False)]
    peak = states[int(high.block)]
    red = np.tile(np.arange(16) == 4 * made.ROW + made.COLUMN, 8)
    for one in found.patch_dims:
        for share, rows in ((one.high, peak[red]), (one.others, peak[~red])):
            assert share == pytest.approx((rows[:, one.dim] ** 2).sum() / (rows**2).sum(), rel=1e-4)
    assert tuple(one.dim for one in found.patch_dims) == made.WRITTEN
    (neuron,) = found.patch_neurons
    assert neuron.neuron == f"{made.BLOCK}:{made.NEURON}"
    apart = peak[red].mean(0) - peak[~red].mean(0)
    column = np.zeros(made.WIDTH)
    column[list(made.WRITTEN)] = 300, -150
    rest = (
        loaded.model.get_submodule(loaded.stack().blocks[made.BLOCK] + ".mlp.fc2")
        .weight[:, made.NEURON]
        .detach()
        .numpy()
    )
    column = np.where(column == 0, rest, column)
    wanted = (neuron.high - neuron.others) * (apart @ column) / (apart @ apart)
    assert neuron.share == pytest.approx(wanted, rel=1e-4)
    assert wanted > 0.95
    said = " ".join(found.sentences())
    assert f"most often at {PATCH} (8 images); 0 % lie at the border" in said
    assert f"MLP neurons that write what sets them apart: {made.BLOCK}:{made.NEURON}" in said


def test_models_without_them_say_none(folder: Path, tmp_path: Path) -> None:
    for model, data in (("plain", "red"), ("planted", "grey")):
        found = observe(*read(folder, model, data), rows=tmp_path / f"{model}.jsonl")
        assert found.high_norm == observe_patches.HighNorm(0, 8 * 16, 0, 8)
        assert any(
            sentence.startswith("No patch is of high norm: of 128 in 8 images") for sentence in found.sentences()
        )
        assert (found.patch_places, found.patch_dims, found.patch_neurons) == ((), (), ())
        again = observe(*read(folder, model, data), rows=tmp_path / f"{model}.jsonl")
        assert (again.patches, again.by_layer) == (found.patches, found.by_layer)  # tokens are named without a pass
    assert observe("mini-planted", ["A film worth seeing."]).high_norm is None


def test_registers_are_no_patches_and_pictures_are_counted_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, items = read(folder, "registers", "grey")
    with torch.no_grad():
        loaded.model.get_parameter("embeddings.register_tokens").mul_(1000)
    found = observe(loaded, items)
    assert found.passages[0].tokens[:4] == ("[CLS]", "[register 1]", "[register 2]", "patch 0,0")
    assert found.stacks[0].peak.value > 1000
    assert found.stacks[0].peak.token.startswith("[register")
    assert found.high_norm is not None
    assert found.high_norm.n == 0
    loaded, items = read(folder, "planted", "half")
    high = observe(loaded, items).high_norm
    assert high is not None
    assert (high.n, high.n_images, high.most, high.border) == (8, 4, 2, 1)
    monkeypatch.setattr(observe_patches, "PICTURES", 5)

    def unknown(*_: object) -> None:
        raise BadInput("its layers share blocks")

    monkeypatch.setattr(observe_patches, "last_linears", unknown)
    few = observe(loaded, items)
    assert few.high_norm is not None
    assert (few.high_norm.n_read, few.high_norm.unlooked, few.patch_neurons) == (5, 3, ())
    said = list(few.sentences())
    assert "Patches of high norm are looked for in the first 5 images; 3 are left out." in said
    assert any("No MLP neuron is named that writes them: its layers share blocks" in one for one in said)


def test_a_layer_scale_stands_between_a_neuron_and_the_stream(folder: Path) -> None:
    loaded, items = read(folder, "planted", "red")
    scale = loaded.model.get_parameter(loaded.stack().blocks[made.BLOCK] + ".layer_scale2.lambda1")
    with torch.no_grad():
        scale[made.WRITTEN[0]] = 0.5
    found = observe(loaded, items)
    assert [one.high for one in found.patch_dims] == pytest.approx([0.5, 0.5], abs=0.02)
    assert found.patch_neurons[0].share == pytest.approx(1, abs=0.02)
