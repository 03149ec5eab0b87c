"""`observe` against NumPy over states that were computed text by text, on every family that reads text."""

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from architectures import FAMILIES, Family, build
from outlierlens.analyses.observe import observe
from outlierlens.data.texts import Batch, Texts, read_texts
from outlierlens.detection.activations import ObserveOptions, Observer
from outlierlens.detection.observed import VIEWS, Statistics
from outlierlens.detection.rules import ActivationMeasures, ActivationRules, activation_outliers
from outlierlens.errors import BadInput
from outlierlens.models.inputs import TextReading
from outlierlens.models.load import LoadedModel, from_objects, load_model
from outlierlens.results.document import from_json, to_json
from planted import TEXT_FAMILIES, Oracle, some_texts, wrap


def compare(statistics: Statistics, row: int, expected: dict[str, Any], tokenizer: Any, error: float) -> None:
    """One layer of a view against the oracle's numbers."""
    for name in ("tokens", "mean", "std", "skewness", "kurtosis", "min", "max", "abs_max"):
        np.testing.assert_allclose(getattr(statistics, name)[row], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)
    for name in ("argmin_share", "argmax_share", "sigma_token_share", "sigma_input_share"):
        np.testing.assert_allclose(getattr(statistics, name)[row], expected[name], rtol=1e-12, err_msg=name)
    token, text, position = expected["place"]
    # Of equal vectors (the same token at the same place) rounding picks one.
    same = statistics.abs_max_text[row] == text
    assert same.mean() > 0.5
    assert np.array_equal(statistics.abs_max_position[row][same], position[same])
    assert list(np.array(statistics.abs_max_token[row])[same]) == tokenizer.convert_ids_to_tokens(token[same].tolist())
    assert list(statistics.abs_max_token[row]) == tokenizer.convert_ids_to_tokens(token.tolist())
    exact = expected["quantiles"]
    assert np.all(np.abs(statistics.quantiles[row] - exact) <= np.maximum(1.001 * error * np.abs(exact), 2.6e-4))
    assert statistics.median_abs[row] == pytest.approx(expected["median_abs"], rel=1.001 * error, abs=2.6e-4)


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=lambda family: family.name)
def test_every_statistic_of_every_family(family: Family, words: Any) -> None:
    tokenizer = words()
    loaded = wrap(family, tokenizer)
    texts = some_texts(11)
    found = observe(loaded, texts, ObserveOptions(max_length=10, batch_size=4))
    oracle = Oracle(loaded, texts, found.about.max_length)
    assert found.about.n_tokens == sum(map(len, oracle.ids))
    assert found.n_special == 2 * len(texts)
    assert [stack.stack for stack in found.stacks] == list(oracle.by_text)
    for stack in found.stacks:
        layers = len(oracle.by_text[stack.stack][0])
        assert stack.layers == ("embeddings", *map(str, range(layers - 1)))
        for view in VIEWS:
            for row in range(layers):
                expected = oracle.expected(stack.stack, row, view)
                compare(stack.view(view), row, expected, tokenizer, stack.quantile_error)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_the_pass_watches_no_function_of_the_statistics(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(func)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr("outlierlens.models.forward.fast_products", Watching)
    observe(wrap(FAMILIES["bert"], words()), some_texts(3), ObserveOptions(max_length=10))
    assert torch.nn.functional.linear in seen
    assert torch.bincount not in seen


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama", "xlnet", "bart", "t5"])
def test_padding_on_either_side_gives_the_same_numbers(name: str, words: Any) -> None:
    texts = some_texts(9)
    both = []
    for side in ("left", "right"):
        tokenizer = words(side=side)
        found = observe(
            wrap(FAMILIES[name], tokenizer, double=False), texts, ObserveOptions(max_length=10, batch_size=5)
        )
        assert tokenizer.padding_side == side
        both.append([stack.views for stack in found.stacks])
    np.testing.assert_equal(*[[{view: vars(s) for view, s in views.items()} for views in side] for side in both])


def test_many_windows_of_texts_are_one_pass(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    texts = some_texts(25)
    whole = observe(loaded, texts, ObserveOptions(batch_size=4)).stacks[0].view()
    monkeypatch.setattr("outlierlens.models.inputs.TextReading.window", 1)
    steps: list[tuple[str, int, int]] = []
    options = ObserveOptions(batch_size=4, progress=lambda *step: steps.append(step))
    pieces = observe(loaded, texts, options).stacks[0].view()
    assert np.array_equal(whole.abs_max_text[1:], pieces.abs_max_text[1:])
    assert np.array_equal(whole.sigma_input_share, pieces.sigma_input_share)
    assert steps == [("observing", min(done, 25), 25) for done in range(4, 29, 4)]


def planted(words: Any, *, kind: str = "causal") -> tuple[LoadedModel, int]:
    """A GPT-2 whose token w7 writes 22,500 into dimension 5 of the embeddings, so into every layer."""
    model = build(FAMILIES["gpt2"])
    tokenizer = words(kind=kind)
    token = tokenizer.convert_tokens_to_ids("w7")
    with torch.no_grad():
        model.wte.weight[token, 5] = 22_500.0
    return from_objects(model, tokenizer, name="planted"), token


def test_a_planted_massive_activation_is_found_with_token_and_position(words: Any) -> None:
    loaded, _ = planted(words)
    texts = Texts("made", ("w1 w2 w3", "w4 w5 w6 w7 w8", *(["w9 w10 w11 w12"] * 30)))
    (stack,) = observe(loaded, texts).stacks
    (outlier,) = [o for o in stack.outliers if o.rule == "massive"]
    assert outlier.dim == 5
    assert outlier.layers == ("embeddings", "0", "1", "2")
    assert min(outlier.strength) > 22_000
    view = stack.view("without_special")
    for row in range(4):
        assert (view.abs_max_token[row][5], view.abs_max_position[row, 5], view.abs_max_text[row, 5]) == ("w7", 3, 1)
        assert view.max[row, 5] == pytest.approx(22_500, rel=0.01)


@pytest.mark.parametrize("limit", [200_000, 150_000])
def test_a_memory_limit_keeps_the_extreme_dimensions_and_says_so(limit: int, words: Any) -> None:
    loaded, _ = planted(words)
    texts = Texts("made", ("w7 w1 w2", *some_texts(8).texts))
    full = observe(loaded, texts).stacks[0]
    assert not full.notes
    (stack,) = observe(loaded, texts, ObserveOptions(histogram_bytes=limit)).stacks
    kept = limit // (4 * 2048 * 4)  # layers × bins × bytes; no special token occurs
    assert any(
        f"quantiles are kept for {kept} of 16 dimensions" in note and f"{limit:,}" in note for note in stack.notes
    )
    a, b = stack.view(), full.view()
    there = ~np.isnan(a.quantiles).any(2)
    assert there.sum(1).tolist() == [kept] * 4
    assert there[:, 5].all()
    np.testing.assert_array_equal(a.quantiles[there], b.quantiles[there])
    np.testing.assert_array_equal(a.median_abs, b.median_abs)
    np.testing.assert_array_equal(a.kurtosis, b.kurtosis)


def test_special_tokens_that_come_late_narrow_the_histograms(words: Any) -> None:
    loaded, _ = planted(words)
    texts = Texts("made", ("w1 w2 w3 w4", "w7 w5 w6", "[MASK] w2"))
    limit = 4 * 2048 * 4 * 16  # all 16 dimensions of 4 layers for ordinary tokens alone
    (stack,) = observe(loaded, texts, ObserveOptions(histogram_bytes=limit, batch_size=1)).stacks
    for view in VIEWS:
        assert (~np.isnan(stack.view(view).quantiles).any(2)).sum(1).tolist() == [8] * 4
    assert "quantiles are kept for 8 of 16 dimensions" in stack.notes[0]
    full = observe(loaded, texts, ObserveOptions(batch_size=1)).stacks[0]
    there = ~np.isnan(stack.view().quantiles)
    np.testing.assert_array_equal(stack.view().quantiles[there], full.view().quantiles[there])
    np.testing.assert_array_equal(stack.view().median_abs, full.view().median_abs)


def test_a_limit_below_one_dimension_is_refused(words: Any) -> None:
    loaded, _ = planted(words)
    with pytest.raises(BadInput, match=r"histogram_bytes is 1,000; one dimension of each of 4 layers needs 32,768"):
        observe(loaded, some_texts(2), ObserveOptions(histogram_bytes=1000))


def test_a_small_table_lists_the_outliers_first(words: Any) -> None:
    loaded, _ = planted(words)
    texts = Texts("made", ("w7 w1 w2", *(["w9 w10 w11 w12"] * 30)))
    (stack,) = observe(loaded, texts, ObserveOptions(table_cells=4 * 3)).stacks
    full = observe(loaded, texts).stacks[0]
    named = {outlier.dim for outlier in full.outliers}
    assert len(stack.dims) == max(3, len(named)) < 16
    assert named <= set(stack.dims)
    assert stack.outliers == full.outliers
    assert any(f"{len(stack.dims)} of 16 dimensions are listed" in note for note in stack.notes)
    np.testing.assert_array_equal(stack.view().mean, full.view().mean[:, stack.dims])
    assert stack.view().abs_max_token[0] == tuple(full.view().abs_max_token[0][dim] for dim in stack.dims)


def test_texts_of_special_tokens_only_have_no_ordinary_numbers(words: Any) -> None:
    found = observe(wrap(FAMILIES["bert"], words()), Texts("made", ("[MASK]", "[SEP]")))
    assert (found.about.n_tokens, found.n_special) == (6, 6)
    view = found.stacks[0].view("without_special")
    assert view.tokens.tolist() == [0] * 4
    assert np.isnan(view.mean).all()
    assert np.isnan(view.argmin_share).all()
    assert set(view.abs_max_position.flatten().tolist()) == {-1}
    assert not np.isnan(found.stacks[0].view("all").mean).any()


def test_passage_shows_the_states_of_one_text(words: Any) -> None:
    loaded = wrap(FAMILIES["bart"], words())
    texts = some_texts(3)
    found = observe(loaded, texts, ObserveOptions(passage="w1 w2 w3 w4 w5 w6", passage_tokens=5))
    oracle = Oracle(loaded, Texts("made", ("w1 w2 w3 w4 w5 w6",)), 5)
    encoder, decoder = found.passages
    assert encoder.tokens == ("[CLS]", "w1", "w2", "w3", "[SEP]")
    assert decoder.tokens == ("[SEP]", "[CLS]", "w1", "w2", "w3")  # BART's decoder starts with id 2
    for passage in (encoder, decoder):
        every = np.stack(oracle.by_text[passage.stack][0])
        middle = len(every) // 2
        assert passage.layers == ("embeddings", str(middle - 1), str(len(every) - 2))
        np.testing.assert_allclose(passage.states, every[[0, middle, -1]], rtol=1e-5, atol=1e-6)
        assert passage.dims == tuple(range(16))
    assert observe(loaded, texts, ObserveOptions(passage_tokens=0)).passages == ()


def test_without_special_tokens_there_is_one_view_and_a_file_keeps_the_digits_that_say_something(
    words: Any,
) -> None:
    loaded = wrap(FAMILIES["gpt2"], words(kind="causal"))
    found = observe(loaded, some_texts(6))
    (stack,) = found.stacks
    assert set(stack.views) == {"all"}
    assert stack.view("without_special") is stack.view("all")
    with pytest.raises(BadInput, match="views are all, without_special"):
        stack.view("special")
    again = from_json(to_json(found)).stacks[0].view("all")
    np.testing.assert_allclose(again.mean, stack.view("all").mean, rtol=1e-6)
    np.testing.assert_allclose(again.quantiles, stack.view("all").quantiles, rtol=1e-3)
    written = json.loads(to_json(found))["stacks"][0]["views"]["all"]["quantiles"]
    assert max(len(f"{abs(x):.9e}".split("e")[0].rstrip("0")) for row in written for cell in row for x in cell) <= 5


def test_long_texts_are_cut_where_the_model_ends(words: Any) -> None:
    found = observe(wrap(FAMILIES["roberta"], words()), some_texts(2, longest=60), ObserveOptions(max_length=500))
    # 32 rows of positions, of which RoBERTa uses those after padding_idx 0.
    assert found.about.max_length == 31
    assert "texts are cut at 31 tokens: the model has no more positions" in found.notes


def test_mpnet_numbers_positions_from_its_own_padding_index(words: Any) -> None:
    """Its code fixes the padding index at 1, whatever the config says; one position more would be out of range."""
    found = observe(wrap(FAMILIES["mpnet"], words()), some_texts(2, longest=60), ObserveOptions(max_length=500))
    assert found.about.max_length == 30


@pytest.mark.parametrize("name", ["vit", "wav2vec2", "whisper", "clip_vision_model"])
def test_models_that_read_no_text_are_refused(name: str, words: Any) -> None:
    with pytest.raises(BadInput, match=r"does not read text.*give it (images|recordings|pictures)"):
        Observer(wrap(FAMILIES[name], words()), ObserveOptions())


def test_of_clip_the_text_tower_is_observed(words: Any) -> None:
    found = observe(wrap(FAMILIES["clip"], words()), some_texts(3))
    assert [stack.stack for stack in found.stacks] == ["text"]
    assert found.about.max_length == 8
    assert "not observed: stream vision, which texts do not reach" in found.notes


def test_a_stream_that_texts_do_not_reach_is_left_out_and_said_first(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = wrap(FAMILIES["t5"], words())

    def encoder_alone(_: TextReading, batch: Batch) -> None:
        model: Any = loaded.model
        model.get_encoder()(input_ids=batch.inputs["input_ids"], attention_mask=batch.valid.long())

    wanted = observe(loaded, some_texts(3))
    monkeypatch.setattr(TextReading, "__call__", encoder_alone)
    for _ in range(2):  # counted, then of rows that were kept
        found = observe(loaded, some_texts(3), rows=tmp_path / "rows.jsonl")
        assert found.idle == ("decoder",)
        assert next(iter(found.sentences())).startswith("Stream decoder was not looked at: none of its blocks ran")
        (stack,) = found.stacks
        np.testing.assert_allclose(stack.view("all").mean, wanted.stacks[0].view("all").mean, rtol=1e-6, atol=1e-9)
    monkeypatch.setattr(TextReading, "__call__", lambda *_: None)
    with pytest.raises(BadInput, match="stream encoder: only 0 of"):
        observe(loaded, some_texts(3))


def test_a_missing_tokenizer_and_bad_options_are_named() -> None:
    with pytest.raises(BadInput, match="bert: this model has no tokenizer beside it"):
        observe(wrap(FAMILIES["bert"], None), some_texts(2))
    with pytest.raises(BadInput, match="passage_tokens is 1; it must be 0, or at least 2"):
        ObserveOptions(passage_tokens=1)


def test_states_that_are_no_numbers_name_their_layer(words: Any) -> None:
    loaded = wrap(FAMILIES["llama"], words())
    with torch.no_grad():
        loaded.model.layers[1].mlp.down_proj.weight[3, 0] = math.inf
    with pytest.raises(BadInput, match=r"stream model, layer 1: \d+ of \d+ token vectors hold NaN or infinity"):
        observe(loaded, some_texts(2))
    assert not any(module._forward_hooks for module in loaded.model.modules())


def measured(**changes: Any) -> ActivationMeasures:
    """Eight blocks and 6 dimensions in which nothing stands out."""
    layers = ("embeddings", *map(str, range(8)))
    plain = {"argmin_share": 1 / 6, "argmax_share": 1 / 6, "abs_max": 3.0, "large_share": 0.0}
    values: dict[str, Any] = {name: np.full((9, 6), value) for name, value in plain.items()}
    values["median_abs"] = np.full(9, 0.5)
    for name, places in changes.items():
        for (row, dim), value in places.items():
            values[name][row, dim] = value
    return ActivationMeasures(layers, **values)


def test_rules_by_hand() -> None:
    rules = ActivationRules()
    assert activation_outliers(measured(), rules) == ()
    # Half of the vectors of two of eight blocks is enough; the embeddings do not count, nor does one block.
    (found,) = activation_outliers(
        measured(
            argmin_share={(1, 2): 0.5, (0, 3): 1.0, (4, 3): 0.9, (5, 4): 0.49, (6, 4): 0.9},
            argmax_share={(7, 2): 0.8},
        ),
        rules,
    )
    assert (found.rule, found.dim, found.layers, found.strength) == ("luo", 2, ("0", "6"), (0.5, 0.8))
    # Both bounds are strict, and one layer is enough.
    found = activation_outliers(measured(abs_max={(3, 1): 500.1, (3, 2): 500.0, (4, 0): 501.0}), rules)
    assert [(o.rule, o.dim, o.layers, o.strength) for o in found] == [
        ("massive", 0, ("3",), (501.0,)),
        ("massive", 1, ("2",), (500.1,)),
    ]
    small = measured(abs_max={(3, 1): 99.0})
    small.median_abs[:] = 0.01
    assert activation_outliers(small, rules) == ()
    (found,) = activation_outliers(
        measured(large_share={(1, 5): 0.06, (2, 5): 0.5, (3, 1): 1.0, (4, 0): 0.059, (5, 0): 1.0}), rules
    )
    assert (found.rule, found.dim, found.layers, found.strength) == ("llm.int8", 5, ("0", "1"), (0.06, 0.5))


def test_pre_norm_models_are_judged_by_what_their_blocks_read(words: Any) -> None:
    """Every dimension of the stream is far beyond 6, but the norms bring all but one back."""
    model = build(FAMILIES["llama"])
    with torch.no_grad():
        model.embed_tokens.weight.mul_(1000)
        for block in model.layers:
            block.input_layernorm.weight.fill_(0.1)
            block.post_attention_layernorm.weight.fill_(0.1)
            block.post_attention_layernorm.weight[4] = 1000
    (stack,) = observe(from_objects(model, words(), name="llama"), some_texts(8)).stacks
    assert stack.view().abs_max.min() > 6
    (found,) = [o for o in stack.outliers if o.rule == "llm.int8"]
    assert (found.dim, found.layers) == (4, ("0", "1", "2"))


@pytest.mark.real
def test_distilbert_cased_shows_557(sample: Callable[[str], str], evaluation_data: Any) -> None:
    loaded = load_model(sample("distilbert-cased"))
    texts = read_texts(evaluation_data / "glue" / "sst2" / "train.parquet", limit=200)
    (stack,) = observe(loaded, texts).stacks
    share = stack.view("all").argmin_share[1:, stack.dims.index(557)]
    assert np.all(share[:3] >= 0.99)
    assert np.all(share[3:5] >= 0.90)
    assert np.all(stack.view("without_special").argmin_share[1:6, stack.dims.index(557)] >= 0.999)
    assert "557" in {str(o.dim) for o in stack.outliers if o.rule == "luo"}


def test_the_public_name_stays_a_function() -> None:
    """A module called like the function would replace it in the package once it is imported."""
    import outlierlens

    assert inspect.unwrap(outlierlens.observe) is observe


def test_a_pass_that_was_stopped_goes_on_where_it_was(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, texts = wrap(FAMILIES["bert"], words()), some_texts(20)
    options, rows = ObserveOptions(batch_size=4, max_length=10), tmp_path / "rows.jsonl"
    whole = observe(loaded, texts, options)
    consumed: list[int] = []
    consume = Observer.consume

    def counting(self: Observer, batch: Any) -> None:
        if len(consumed) == 3:
            raise KeyboardInterrupt
        consumed.append(len(batch.texts))
        consume(self, batch)

    monkeypatch.setattr(Observer, "consume", counting)
    monkeypatch.setattr("outlierlens.detection.activations.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("outlierlens.detection.activations.time", SimpleNamespace(monotonic=lambda: 0.0))
    with pytest.raises(KeyboardInterrupt):
        observe(loaded, texts, options, rows=rows)
    monkeypatch.setattr(Observer, "consume", lambda self, batch: consumed.append(-1) or consume(self, batch))
    found = observe(loaded, texts, options, rows=rows)
    assert consumed == [4, 4, 4, -1, -1]
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".pt"] == []
    again = observe(loaded, texts, options, rows=rows)
    assert len(consumed) == 5
    for other in (found, again):
        assert to_json(replace(other, provenance=whole.provenance)) == to_json(whole)


def test_what_was_counted_of_other_texts_is_not_taken(words: Any, tmp_path: Path) -> None:
    loaded, options = wrap(FAMILIES["bert"], words()), ObserveOptions(batch_size=4)
    place = tmp_path / "x.part.pt"
    first = Observer(loaded, options)
    for batch in first.batches(some_texts(8)):
        first.consume(batch)
    first.save(place, some_texts(8))
    for texts, n in ((some_texts(8), first.n_tokens), (some_texts(9), 0)):
        other = Observer(loaded, options)
        other._restore(place, texts)
        assert other.n_tokens == n
    place.write_bytes(place.read_bytes()[:500])
    other._restore(place, some_texts(8))
    assert other.n_tokens == 0
