"""Exported embedders: read back by sentence-transformers and by a reader of the test's own, against vectors made here."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES
from outlierlens.analyses import embed_export
from outlierlens.analyses.embed_export import EmbedderExport, ExportOptions, export_embedder
from outlierlens.analyses.embed_pairs import read_pairs
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.results.document import load
from outlierlens.results.safe_files import new_folder
from outlierlens.vectors.fixes import KINDS, FixSpec
from planted import some_texts, wrap

FIT = some_texts(200, seed=5)
READ = some_texts(30, seed=77, longest=14).texts
DISTINCT = tuple(dict.fromkeys(FIT.texts))
CAUSAL = ("gpt2", "llama")
ONE = ExportOptions(fix=FixSpec("whiten"), layer="1", max_length=12)


@pytest.fixture(autouse=True)
def shipped_texts_have_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny models know no English word, so the self-check would read one token again and again."""
    monkeypatch.setattr(
        "outlierlens.analyses.embed_export.read_texts",
        lambda name, limit=200: some_texts(limit, seed=len(name), longest=12),
    )


@pytest.fixture
def small(words: Any) -> Callable[[str], LoadedModel]:
    """A tiny float32 model of a family, with the tokenizer that suits it."""

    def make(family: str) -> LoadedModel:
        return wrap(FAMILIES[family], words(kind="causal" if family in CAUSAL else "masked"), double=False)

    return make


def means(loaded: LoadedModel, texts: tuple[str, ...], layer: int, max_length: int = 12) -> np.ndarray:
    """Mean states [text, dim], float64, text by text and without padding; behind the final norm, as Llama's and GPT-2's is."""
    found = []
    for text in texts:
        ids = loaded.tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
        with torch.no_grad():
            out = loaded.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
            last = layer == len(out.hidden_states) - 2
            states = out.hidden_states[layer + 1]
            norm = getattr(loaded.model, "ln_f", getattr(loaded.model, "norm", None))
            if norm is not None and not last:  # the library gives the last one behind the norm already
                states = norm(states)
        found.append(states[0].double().mean(0).numpy())
    return np.array(found)


def repaired(kind: str, fit: np.ndarray, vectors: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """What each fix is, in a line of NumPy."""
    centred, mean = fit - fit.mean(0), fit.mean(0)
    if kind == "raw":
        return vectors
    if kind == "clip":
        return np.where(np.isin(np.arange(vectors.shape[1]), dims), 0, vectors)
    if kind == "centre":
        return vectors - mean
    if kind == "standardize":
        return (vectors - mean) / fit.std(0, ddof=1)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    if kind == "abtt":
        return (vectors - mean) @ (np.eye(vectors.shape[1]) - directions[:3].T @ directions[:3])
    projected = (vectors - mean) @ directions[:8].T
    return projected / (centred @ directions[:8].T).std(0, ddof=1)


def by_hand(folder: Path, texts: tuple[str, ...]) -> np.ndarray:
    """The written files, read without sentence-transformers and without this package."""
    from safetensors.numpy import load_file
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    length = tokenizer.model_max_length
    found = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            found.append(model(**inputs).last_hidden_state[0].double().mean(0).numpy())
    vectors = np.array(found)
    for module in json.loads((folder / "modules.json").read_text()):
        if module["type"].endswith(".Dense"):
            config = json.loads((folder / module["path"] / "config.json").read_text())
            assert config["activation_function"] == "torch.nn.modules.linear.Identity"
            weights = load_file(folder / module["path"] / "model.safetensors")
            assert weights["linear.weight"].shape == (config["out_features"], config["in_features"])
            vectors = vectors @ weights["linear.weight"].T.astype(np.float64) + weights["linear.bias"]
        if module["type"].endswith(".Normalize"):
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def by_library(folder: Path, texts: tuple[str, ...]) -> np.ndarray:
    """The folder as sentence-transformers reads it."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    return library.SentenceTransformer(str(folder), device="cpu").encode(list(texts), show_progress_bar=False)


def exported(loaded: LoadedModel, folder: Path, kind: str, normalize: bool, layer: str = "1") -> EmbedderExport:
    spec = FixSpec(kind, 8 if kind == "whiten" else None)
    options = ExportOptions(fix=spec, clip="3,5", layer=layer, normalize=normalize, max_length=12)
    return export_embedder(loaded, folder, options, fit=FIT if spec.fitted else None)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exports that two readers share: (family, fix, normalize) -> (folder, result, our own vectors of READ)."""
    root = tmp_path_factory.mktemp("made")

    class Made(dict):
        def export(self, loaded: LoadedModel, family: str, kind: str, normalize: bool) -> Any:
            key = (family, kind, normalize)
            if key not in self:
                folder = root / "-".join(map(str, key))
                found = exported(loaded, folder, kind, normalize)
                wanted = repaired(kind, self.means(loaded, family, DISTINCT), self.means(loaded, family, READ), (3, 5))
                if normalize:
                    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
                self[key] = (folder, found, wanted)
            return self[key]

        def means(self, loaded: LoadedModel, family: str, texts: tuple[str, ...]) -> np.ndarray:
            if (family, texts) not in self:
                self[family, texts] = means(loaded, texts, 1)
            return self[family, texts]

    return Made()


@pytest.mark.parametrize("read", [by_hand, by_library])
@pytest.mark.parametrize(
    ("family", "kind", "normalize"),
    [
        *itertools.product(("bert", "llama"), KINDS, (False, True)),
        # What families differ in is the model, not the layer behind it.
        *itertools.product(("mpnet", *(name for name in CAUSAL if name != "llama")), ("clip", "whiten"), (True,)),
    ],
)
def test_the_folder_gives_our_vectors(
    family: str, kind: str, normalize: bool, read: Callable[..., np.ndarray], small: Any, made: Any
) -> None:
    folder, found, wanted = made.export(small(family), family, kind, normalize)
    got = read(folder, READ)
    if kind == "whiten":  # the signs of its directions are free
        got, wanted = got @ got.T, wanted @ wanted.T
    close(got, wanted)
    assert found.final_norm is (family in CAUSAL)
    assert found.n_fitted == (0 if kind in ("raw", "clip") else len(DISTINCT))
    assert found.width == (16, 8 if kind == "whiten" else 16)


@pytest.mark.parametrize("layer", ["embeddings", "0"])
@pytest.mark.parametrize(
    "family", ["bert", "mpnet", "modernbert", "distilbert", "albert", "gpt_neox", "llama", "gemma2"]
)
def test_a_layer_is_a_shorter_model(family: str, layer: str, small: Any, tmp_path: Path) -> None:
    loaded, folder = small(family), tmp_path / "made"
    if (family, layer) == ("modernbert", "embeddings"):
        with pytest.raises(BadInput, match=r"a model without blocks cannot be run .* choose --layer 0 or later"):
            exported(loaded, folder, "raw", False, layer)
        return
    found = exported(loaded, folder, "raw", False, layer)
    n_blocks = {"embeddings": 0, "0": 1}[layer]
    config = json.loads((folder / "config.json").read_text())
    assert config["n_layers" if family == "distilbert" else "num_hidden_layers"] == n_blocks
    assert (found.n_blocks, found.of_blocks) == (n_blocks, 3)
    if "layer_types" in config:
        assert len(config["layer_types"]) == n_blocks
    if family in ("bert", "mpnet", "llama"):
        close(by_hand(folder, READ), means(loaded, READ, n_blocks - 1))


def test_gpt_neo_keeps_the_kinds_of_its_first_layers(small: Any, tmp_path: Path) -> None:
    exported(small("gpt_neo"), tmp_path / "made", "raw", False, "0")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (config["num_layers"], config["attention_types"]) == (1, [[["global"], 1]])


@pytest.mark.parametrize(
    ("family", "layer", "message"),
    [
        ("bart", "last", "an encoder-decoder has no single output to pool; export an encoder or a decoder alone"),
        ("gemma3", "last", r"has several streams \(text, vision\); export a model that reads text alone"),
        ("outlierlens-bert", "last", "VariantModel is not a class of transformers"),
        ("albert-groups", "0", "its blocks come 2 at a time, so it cannot end with layer 0; choose a layer such as 1"),
        ("deberta-v2", "embeddings", "a model without blocks cannot be run .* choose --layer 0 or later"),
        ("opt-post-norm", "last", "its output is not the pooled layer .* cannot be exported"),
        ("bert", "3", "--layer 3: use last, embeddings or a block from 0 to 2"),
        ("bert", "-1", "--layer -1: use last, embeddings or a block from 0 to 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(family: str, layer: str, message: str, small: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        exported(small(family), tmp_path / "made", "raw", False, layer)
    assert not list(tmp_path.iterdir())


def test_the_base_of_rotary_positions_is_written(words: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    llama = FAMILIES["llama"]
    other = replace(llama, config=llama.config | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}})
    loaded = wrap(other, words(kind="causal"), double=False)
    exported(loaded, tmp_path / "made", "raw", False)
    close(by_hand(tmp_path / "made", READ), means(loaded, READ, 1))
    plain = wrap(llama, words(kind="causal"), double=False)
    assert np.abs(means(plain, READ, 1) - means(loaded, READ, 1)).max() > 1e-3


@pytest.mark.parametrize(("family", "layer"), [("deberta-v2-convolution", "0"), ("albert-groups", "3")])
def test_blocks_that_compute_something_else_without_the_others_are_found_out(
    family: str, layer: str, small: Any, tmp_path: Path
) -> None:
    with pytest.raises(BadFile, match=r"reads back vectors that differ .* use --layer last"):
        exported(small(family), tmp_path / "made", "raw", False, layer)
    assert not list(tmp_path.iterdir())


def test_wrong_weights_and_wrong_tokens_leave_nothing(small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    loaded = small("bert")
    with pytest.raises(BadFile, match=r"its tokenizer, written and read back as a .* gives other tokens"):
        exported(small("qwen2"), tmp_path / "made", "raw", False)
    honest = embed_export._read_back

    def crooked(*given: Any) -> Any:
        model = honest(*given)
        encode = model.encode
        model.encode = lambda *texts, **how: encode(*texts, **how) * np.float32(1.001)
        return model

    monkeypatch.setattr(embed_export, "_read_back", crooked)
    with pytest.raises(
        BadFile, match=r"sentence-transformers .* reads back vectors that differ by .* \(0\.001 of the largest entry"
    ):
        exported(loaded, tmp_path / "made", "centre", False)
    assert not list(tmp_path.iterdir())


def test_a_model_that_rounds_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    loaded = load_model("mini-planted", LoadOptions(dtype="bfloat16", device="cpu"))
    with pytest.raises(BadInput, match=r"mini-planted is loaded in bfloat16, .* LoadOptions\(dtype='float32'\)"):
        export_embedder(loaded, tmp_path / "better", ExportOptions(fix=FixSpec("raw")))
    assert not list(tmp_path.iterdir())


def test_a_task_head_is_dropped(words: Any, tmp_path: Path) -> None:
    from architectures import build
    from outlierlens.models.load import from_objects

    loaded = from_objects(build(FAMILIES["llama"], "CausalLM"), words(kind="causal", side="left"), name="llama")
    exported(loaded, tmp_path / "made", "centre", False)
    assert json.loads((tmp_path / "made" / "config.json").read_text())["architectures"] == ["LlamaModel"]
    assert json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["padding_side"] == "right"
    assert loaded.tokenizer.padding_side == "left"


def pairs_file(folder: Path) -> Path:
    """Sixty scored pairs of sentences, some of which the text to fit on holds too."""
    random = np.random.default_rng(3)
    sides = [*FIT.texts[:30], *some_texts(90, seed=9).texts]
    order = random.permutation(120)
    rows = ["sentence1\tsentence2\tscore"]
    rows += [f"{sides[order[i]]}\t{sides[order[i + 60]]}\t{random.uniform(0, 5):.2f}" for i in range(60)]
    path = folder / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(("kind", "normalize"), [*((kind, False) for kind in KINDS), ("clip", True), ("whiten", True)])
def test_scores_are_those_of_the_folder(kind: str, normalize: bool, small: Any, tmp_path: Path) -> None:
    from scipy.stats import spearmanr

    loaded, pairs = small("bert"), read_pairs(pairs_file(tmp_path))
    spec = FixSpec(kind)
    options = ExportOptions(fix=spec, clip="3,5", normalize=normalize, max_length=12)
    found = export_embedder(loaded, tmp_path / "made", options, fit=FIT if spec.fitted else None, check=pairs)

    def scored(read: Callable[[tuple[str, ...]], np.ndarray]) -> float:
        sides = [read(side) for side in (pairs.first, pairs.second)]
        unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
        return float(spearmanr((unit[0] * unit[1]).sum(1), pairs.truth).statistic)

    (sts,) = found.scores
    assert sts.raw == pytest.approx(scored(lambda texts: means(loaded, texts, 2)), abs=1e-4)
    wanted = scored(lambda texts: by_hand(tmp_path / "made", texts))
    assert sts.fixed == pytest.approx(wanted, abs=1e-4)
    assert sts.exported == pytest.approx(wanted, abs=1e-4)
    assert scored(lambda texts: by_library(tmp_path / "made", texts)) == pytest.approx(wanted, abs=1e-4)
    assert sts.n_pairs == 60
    if spec.fitted:
        left = set(FIT.texts) - set(pairs.sentences)
        assert (found.n_dropped, found.n_fitted) == (len(set(FIT.texts)) - len(left), len(left))
        assert found.n_dropped > 0
    else:
        assert (found.n_dropped, found.n_fitted) == (0, 0)


def test_pairs_of_unknown_tokens_give_no_score(small: Any, tmp_path: Path) -> None:
    loaded, header = small("bert"), "sentence1\tsentence2\tscore\n"
    path = tmp_path / "pairs.tsv"
    path.write_text(header + "".join(f"Wort{i}\tSatz{i}\t{i % 5}\n" for i in range(9)))
    with pytest.raises(BadInput, match="knows none of the 18 tokens"):
        export_embedder(loaded, tmp_path / "made", ExportOptions(fix=FixSpec("raw")), check=read_pairs(path))
    assert not (tmp_path / "made").exists()
    path.write_text(header + "".join(f"w{i} w1 w2\tSatz{i}\t{i % 5}\n" for i in range(9)))
    found = export_embedder(loaded, tmp_path / "made", ExportOptions(fix=FixSpec("raw")), check=read_pairs(path))
    assert found.notes[0].startswith(f"{path}: 25% of the tokens read are unknown")


def test_pairs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file; give one with columns sentence1"):
        read_pairs(tmp_path / "none.tsv")
    short = tmp_path / "short.tsv"
    short.write_text("sentence1\tsentence2\tscore\na\tb\t1.0\n")
    with pytest.raises(BadInput, match="1 pair has no rank correlation; give at least 2"):
        read_pairs(short)


def test_options_that_would_do_nothing_are_refused(small: Any, tmp_path: Path) -> None:
    loaded = small("bert")
    with pytest.raises(BadInput, match=r"fix raw is not fitted on a text; leave made out \(--fit-data\)"):
        export_embedder(loaded, tmp_path / "made", ExportOptions(fix=FixSpec("raw")), fit=FIT)
    with pytest.raises(BadInput, match="fix whiten needs a text to fit on"):
        export_embedder(loaded, tmp_path / "made", ONE)
    with pytest.raises(
        BadInput, match=r"layer 2: nothing to clip \(.*\); name dimensions with --clip, or use --fix raw"
    ):
        export_embedder(loaded, tmp_path / "made", ExportOptions(fix=FixSpec("clip"), clip="none"))


def test_clipped_dimensions_are_those_of_the_layer(small: Any, tmp_path: Path) -> None:
    options = ExportOptions(fix=FixSpec("clip"), clip="0:3;1-2:7,9", layer="1", max_length=12)
    found = export_embedder(small("bert"), tmp_path / "made", options)
    assert found.dims == (7, 9)
    assert not by_hand(tmp_path / "made", READ)[:, [7, 9]].any()
    assert "dimensions 7, 9 of the mean are zero" in (tmp_path / "made" / "README.md").read_text().replace("\\", "")


def test_a_folder_is_replaced_only_if_it_is_one_of_ours(small: Any, tmp_path: Path) -> None:
    loaded, folder = small("bert"), tmp_path / "made"
    exported(loaded, folder, "raw", False)
    with pytest.raises(BadInput, match="exists; name another folder, or use --overwrite"):
        exported(loaded, folder, "centre", False)
    export_embedder(loaded, folder, ExportOptions(fix=FixSpec("centre"), overwrite=True, max_length=12), fit=FIT)
    assert load(folder / "outlierlens.json").fix == "centre"
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("years of work")
    with pytest.raises(BadInput, match="holds no exported embedder, so it is not replaced"):
        export_embedder(loaded, other, ExportOptions(fix=FixSpec("raw"), overwrite=True))
    assert (other / "chapter.txt").read_text() == "years of work"

    def stopped() -> None:
        with new_folder(folder) as part:
            (part / "config.json").write_text("{}")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        stopped()
    assert load(folder / "outlierlens.json").fix == "centre"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "thesis"]
