"""Masks: planted sinks of a position and of a token type, numbers by hand, the call in a training loop, exports."""

import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mask_results
from architectures import FAMILIES, build
from outlierlens import mask
from outlierlens.analyses.mask import MaskCall, MaskOptions
from outlierlens.commands import activation_mask
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.document import save
from planted import Oracle, some_texts

TEXTS = some_texts(40, seed=5, longest=12, shortest=6, n_words=9)
W2 = 7  # the id of w2 in the tests' tokenizer


def planted(words: Any, *, position: bool = False, word: bool = False) -> LoadedModel:
    """A tiny GPT-2 whose first position and whose word w2 write 500 to dimension 3."""
    model = build(FAMILIES["gpt2"], head="CausalLM")
    with torch.no_grad():
        if position:
            model.transformer.wpe.weight[0, 3] = 500.0
        if word:
            model.transformer.wte.weight[W2, 3] = 500.0
    return from_objects(model, words(kind="causal"), name="planted")


@pytest.mark.parametrize(("position", "word"), [(True, False), (False, True), (True, True)])
def test_planted_sinks_are_masked_and_nothing_else(words: Any, position: bool, word: bool) -> None:
    found = mask(planted(words, position=position, word=word), TEXTS)
    assert found.positions == (0,) * position
    assert found.token_ids == (W2,) * word
    assert found.words == ("w2",) * word
    assert found.judged.n_sinks > 0
    assert found.judged.recall == 1
    # At most the planted word itself: nothing else may go.
    assert found.judged.false_share == 0
    assert [(one.dim, one.every_token) for one in found.dimensions] == [(3, False)]
    assert found.dimensions[0].sink_share > 0.99
    assert found.dims == ()
    assert found.here.gamma < found.here.gamma_kept
    # 50 times the squared norm of all others; random tokens hold about their part of the number.
    assert found.here.held > 0.9
    assert found.here.random < 0.5


def test_sinks_are_followed_from_block_to_block(words: Any) -> None:
    """By brute force: in which blocks each token is 10 times as long as the median one, and what it holds."""
    loaded = planted(words, position=True, word=True)
    with torch.no_grad():  # in the last block all tokens are long, and those of the word no sinks
        loaded.model.transformer.wte.weight[W2, 3] = 100.0
        loaded.model.transformer.h[2].mlp.c_proj.bias[9] = 60.0
    found = mask(loaded, TEXTS, MaskOptions(layer=1, factor=4))
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    numbers = sorted(order[:20])
    oracle = Oracle(loaded, Texts("made", tuple(TEXTS.texts[i] for i in numbers)), 128)
    (stream,) = oracle.by_text
    by_text = [np.linalg.norm(np.stack(layers[1:]), axis=-1).T for layers in oracle.by_text[stream]]  # [token, block]
    norms = np.concatenate(by_text)
    places = [(i, k) for i, one in zip(numbers, by_text, strict=True) for k in range(len(one))]
    long = norms > 4 * np.median(norms, axis=0)
    expected = {
        (*place, int(np.flatnonzero(row)[0]), int(np.flatnonzero(row)[-1]), int(row.sum()))
        for place, row in zip(places, long, strict=True)
        if row.any()
    }
    assert {(one.text, one.position, one.first, one.last, one.n_blocks) for one in found.tokens} == expected
    assert len({one.last for one in found.tokens} | {one.n_blocks for one in found.tokens}) > 2  # some end, some stay
    first, last, begun, stay = found.persisting
    assert (first, last) == (int(long.any(0).argmax()), 2 - int(long.any(0)[::-1].argmax()))
    assert (begun, stay) == (int(long[:, first].sum()), int((long[:, first] & long[:, last]).sum()))
    assert 0 < stay < begun
    squares = norms[:, 1].astype(np.float64) ** 2
    assert found.here.held == pytest.approx(squares[long[:, 1]].sum() / squares.sum(), rel=1e-5)
    assert f"of {begun:,} in block {first}, the first with any, {stay:,}" in " ".join(found.sentences())


def test_a_model_without_sinks_has_no_mask(words: Any) -> None:
    found = mask(planted(words), TEXTS, MaskOptions(layer=0))
    assert (found.positions, found.token_ids, found.dimensions) == ((), (), ())
    assert found.judged.n_sinks == 0
    assert math.isnan(found.judged.recall)
    assert found.here.n_sinks == 0
    assert (found.here.held, found.here.random, found.tokens) == (0, 0, ())
    assert found.here.gamma == found.here.gamma_kept
    assert "No token has to be left out." in list(found.sentences())


def test_every_number_by_hand(words: Any) -> None:
    loaded = planted(words, position=True)
    found = mask(loaded, TEXTS, MaskOptions(layer=1, seed=3))
    order = np.random.default_rng(3).permutation(len(TEXTS)).tolist()
    fit = [TEXTS.texts[i] for i in sorted(order[:20])]
    oracle = Oracle(loaded, Texts("made", tuple(fit)), 128)
    (stream,) = oracle.by_text
    states = np.concatenate([layers[2] for layers in oracle.by_text[stream]])  # embeddings first
    norms = np.linalg.norm(states.astype(np.float64), axis=1)
    threshold = 10 * np.median(norms)
    kept = states[norms <= threshold].astype(np.float64)
    assert found.threshold == pytest.approx(threshold, rel=1e-5)
    assert found.about.n_tokens == len(states)
    assert found.here.n_sinks == len(states) - len(kept) == 20
    assert found.here.largest_norm == pytest.approx(norms.max(), rel=1e-5)
    np.testing.assert_allclose(found.centre, kept.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.scale, kept.std(0), rtol=1e-4)
    every = states.astype(np.float64)
    assert found.here.gamma == pytest.approx(np.linalg.norm(every.mean(0)) / np.linalg.norm(every.std(0)), rel=1e-4)
    assert found.here.gamma_kept == pytest.approx(np.linalg.norm(kept.mean(0)) / np.linalg.norm(kept.std(0)), rel=1e-4)
    held = found.judged
    assert (held.n_texts, held.n_sinks, held.n_sink_texts, held.n_missed_texts) == (20, 20, 20, 0)
    assert held.missed_at_most == pytest.approx(1 - 0.05 ** (1 / 20), abs=0.05)  # Clopper and Pearson, nothing missed


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        (Texts("few", ("w1 w2", "w3 w4", "w5")), MaskOptions(), "few: 3 texts have tokens"),
        (TEXTS, MaskOptions(layer=9), "there is no block 9; its blocks are 0 to 2"),
    ],
)
def test_bad_input(words: Any, texts: Texts, options: MaskOptions, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        mask(planted(words), texts, options)


def test_a_tool_and_its_file_go_together() -> None:
    with pytest.raises(BadInput, match="name the file to write, such as --export saelens:FILE"):
        MaskCall(export=("saelens", ""))
    assert MaskCall(export=("saelens", "sinks.py")).to == Path("sinks.py")


STATES = torch.tensor([[[1.0, 0.5, 30.0, -1.0], [2.0, 0.5, 60.0, -1.0], [0.0, 0.0, 10.0, 0.0], [0.0, 0.0, 5.0, 0.0]]])


def test_a_training_loop_masks_by_position_type_and_norm() -> None:
    keep = activation_mask(mask_results.found())
    tokens = torch.tensor(
        [[5, 6, 7, 8]]
    )  # 0 and 3 are masked positions, 7 a masked type, and the second state is too long
    assert keep(STATES, tokens).kept.tolist() == [[False, False, False, False]]
    assert keep(STATES, tokens, positions=torch.tensor([[1, 2, 4, 5]])).kept.tolist() == [[True, False, False, True]]
    assert keep(STATES).kept.tolist() == [[True, False, True, True]]
    by_tokens = activation_mask(mask_results.found(), norms=False)
    assert by_tokens(STATES, tokens).kept.tolist() == [[False, True, False, False]]
    assert keep(STATES).states is STATES


@pytest.mark.parametrize(
    ("dims", "first"),
    [
        ("clip", [1.0, 0.5, 30.0, -1.0]),
        ("standardise", [1.0, 0.0, 0.0, 0.0]),
        ("mean", [1.0, 0.5, 30.0, -1.0]),
    ],
)
def test_dimensions_are_treated(dims: Any, first: list[float]) -> None:
    made = activation_mask(mask_results.found(), dims=dims)(STATES).states
    assert made[0, 0].tolist() == first
    second = {"clip": [2.0, 0.5, 46.0, -1.0], "standardise": [2.0, 0.0, 7.5, 0.0], "mean": [2.0, 0.5, 30.0, -1.0]}
    assert made[0, 1].tolist() == second[dims]
    assert STATES[0, 1].tolist() == [2.0, 0.5, 60.0, -1.0]


def test_a_mask_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mask.json"
    save(mask_results.found(), path)
    assert activation_mask(path)(STATES).kept.tolist() == [[True, False, True, True]]


def test_wrong_calls_are_refused() -> None:
    found = mask_results.found()
    with pytest.raises(BadInput, match="states have 3 dimensions, and the mask is of 4"):
        activation_mask(found)(STATES[..., :3])
    with pytest.raises(BadInput, match=r"tokens are \(4,\), and states \(1, 4, 4\)"):
        activation_mask(found)(STATES, torch.tensor([1, 2, 3, 4]))
    with pytest.raises(BadInput, match="norms=False leaves only tokens"):
        activation_mask(found, norms=False)(STATES)
    with pytest.raises(BadInput, match="unknown treatment 'drop'"):
        activation_mask(found, dims="drop")  # type: ignore[arg-type]


def test_the_example_trains_an_autoencoder_per_condition_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parents[2] / "examples" / "masks" / "autoencoder.py"
    small = {"limit": 16, "masking": 8, "judged": 2, "latents": 1, "steps": 2, "batch": 16, "seeds": 1}
    cheapest = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["autoencoder.py", "mini-planted:3", *cheapest, "-o", str(rows)])
    for _ in range(2):
        runpy.run_path(str(script), run_name="__main__")
        *_, table = capsys.readouterr().out.partition("| model, block |")
        found = [json.loads(line) for line in rows.read_text().splitlines()]
        assert [one["condition"] for one in found] == ["all tokens", "dimensions", "random dimensions"]
    every, levelled, random = found
    assert set(every["dims"]) <= {8, 24, 40, 56, 72, 88, 104, 120}  # those planted in it
    assert levelled["gamma"] < every["gamma"] < 1.1 * random["gamma"]
    assert all(0 <= one["dead"] <= 1 and one["explained"] < 1 and one["recovered"] < 1 for one in found)
    assert f"| mini-planted, 3 | dimensions | {levelled['gamma']:.2f} |" in table
