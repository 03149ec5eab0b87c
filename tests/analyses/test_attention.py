"""Vertical attention: weights as transformers gives them, means by hand, correlations by brute force, padding nowhere."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention_results
from architectures import FAMILIES, batch, build
from outlierlens.analyses.attention import AttentionOptions, attention, ranks
from outlierlens.analyses.attention_maps import (
    KEYS,
    METRICS,
    Keys,
    PairSums,
    ReplicateSums,
    correlation,
    is_delimiter,
    read_maps,
)
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.attention_maps import check_eager, tapped_attention
from outlierlens.models.load import from_objects
from outlierlens.results.rows import Estimate

TEXTS = Texts(
    "t", ("w1 w2 w3 w4 w5", "w6 w7", "w3", "w8 w9 w10 w11 w12 w13 w14 w2", "w5 w5 w6", "w20 w21 w22 w9", "w30")
)
WITH_MAPS = [name for name in FAMILIES if name not in ("clip", "gemma3")]  # those hand no maps of their parts on
QUICK = AttentionOptions(n_random=1, n_bootstrap=20, dims=(3, 5))


def hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", WITH_MAPS)
def test_the_tap_sees_the_weights_that_transformers_gives(name: str) -> None:
    model = build(FAMILIES[name])
    inputs = batch(FAMILIES[name])
    if "attention_mask" in inputs:
        inputs["attention_mask"][1, 5:] = 0
    loaded = from_objects(model)
    with torch.no_grad():
        model(**inputs, output_attentions=True)  # transformers' own hooks are there from here on
    before = hooks(model)
    for stack in loaded.stacks:
        seen: dict[int, tuple[Any, Any]] = {}

        def look(layer: int, weights: Any, visible: Any, seen: Any = seen) -> None:
            assert layer not in seen
            seen[layer] = (weights, visible)

        with torch.no_grad():
            plain = model(**inputs)
            with tapped_attention(loaded, stack, look):
                tapped = model(**inputs)
            theirs = model(**inputs, output_attentions=True)
        assert torch.equal(plain[0], tapped[0])
        maps = theirs[f"{stack.name}_attentions"] if f"{stack.name}_attentions" in theirs else theirs["attentions"]
        assert sorted(seen) == list(range(stack.n_layers)) == list(range(len(maps)))
        valid = inputs.get("attention_mask") if stack.name != "decoder" else None
        for layer, one in enumerate(maps):
            weights, visible = seen[layer]
            assert torch.equal(weights, one)
            if visible is not None:  # what is hidden from a query that counts gets nothing
                hidden = weights.masked_fill(visible.expand_as(weights[:, :1]), 0.0)
                assert not (hidden if valid is None else hidden * valid[:, None, :, None]).any()
    assert hooks(model) == before


def test_heads_that_stand_in_one_axis_with_the_texts_are_seen_apart() -> None:
    from transformers import XGLMConfig, XGLMForCausalLM

    sizes = {"vocab_size": 40, "d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2}
    model = XGLMForCausalLM._from_config(XGLMConfig(**sizes), attn_implementation="eager").eval()
    loaded, inputs, seen = from_objects(model), batch(FAMILIES["llama"]), dict[int, Any]()
    with torch.no_grad():
        with tapped_attention(loaded, loaded.stack(), lambda layer, weights, _: seen.update({layer: weights})):
            model(**inputs)
        theirs = model(**inputs, output_attentions=True).attentions
    assert seen[0].shape == (2, 2, 7, 7)
    assert all(torch.equal(seen[layer], one) for layer, one in enumerate(theirs))


def masks(loaded: Any, name: str) -> list[Any]:
    shown: list[Any] = []
    with torch.no_grad(), tapped_attention(loaded, loaded.stacks[0], lambda _, __, visible: shown.append(visible)):
        loaded.model(**batch(FAMILIES[name]))
    return shown


def test_causal_models_hide_what_follows_and_windows_what_is_far() -> None:
    found = {}
    for name in ("bert", "llama", "gpt_neo", "bloom", "falcon-sequential", "xlnet"):
        loaded = from_objects(build(FAMILIES[name]))
        last = masks(loaded, name)[-1]
        found[name] = last if last is None else last.expand(2, 1, 7, 7)[0, 0]
    lower = torch.ones(7, 7).tril().bool()
    assert found["xlnet"] is None
    assert found["bert"] is None  # no padding, no mask
    for name in ("llama", "bloom", "falcon-sequential", "gpt_neo"):
        assert torch.equal(found[name], lower), name
    config = FAMILIES["gpt_neo"].config | {"window_size": 2}
    loaded = from_objects(build(FAMILIES["gpt_neo"].__class__("g", "gpt_neo", config, {})))
    shown = masks(loaded, "gpt_neo")
    assert torch.equal(shown[0].expand(2, 1, 7, 7)[0, 0], lower)  # a global layer, then one that sees two tokens
    assert torch.equal(shown[1].expand(2, 1, 7, 7)[0, 0], lower & ~torch.ones(7, 7).tril(-2).bool())


def used(model: Any) -> list[Any]:
    return [one.config._attn_implementation for one in model.modules() if hasattr(one, "config")]


def test_other_attention_is_eager_meanwhile_and_comes_back(words: Any) -> None:
    model = build(FAMILIES["bert"])
    loaded = from_objects(model, words())
    eager = attention(loaded, TEXTS, QUICK)
    model.set_attn_implementation("sdpa")
    before = used(model)
    assert set(before) == {"sdpa"}
    found = attention(loaded, TEXTS, QUICK)
    assert used(model) == before
    assert found.heads.tolist() == eager.heads.tolist()
    with pytest.raises(BadInput, match="which stream"):
        attention(loaded, TEXTS, AttentionOptions(stack="none"))
    assert used(model) == before
    with pytest.raises(BadInput, match=r"runs attention 'sdpa'.*load_model\(name, attention='eager'\)"):
        check_eager(loaded, loaded.stacks[0])


def test_attention_that_was_chosen_when_a_model_was_built_is_refused(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(FAMILIES["bert"])
    model.set_attn_implementation("sdpa")
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda *_: False)
    with pytest.raises(BadInput, match=r"runs attention 'sdpa', which computes no attention weights"):
        attention(from_objects(model, words()), TEXTS)
    assert hooks(model) == 0


def test_a_block_without_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = from_objects(build(FAMILIES["gpt_neox"]))
    attends: Any = loaded.model.get_submodule("layers.1.attention")
    monkeypatch.setattr(attends, "forward", lambda states, *_, **__: (states, None))
    with pytest.raises(BadInput, match=r"layers\.1 makes no attention weights"):
        masks(loaded, "gpt_neox")


def test_hooks_go_when_a_pass_breaks() -> None:
    loaded = from_objects(build(FAMILIES["mpnet"]))

    def look(*_: Any) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), tapped_attention(loaded, loaded.stacks[0], look):
        loaded.model(**batch(FAMILIES["mpnet"]))
    assert hooks(loaded.model) == 0


def test_maps_by_hand() -> None:
    first = [[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.6, 0.4, 0.0]]  # two tokens and padding
    second = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]  # three tokens, causal
    weights = torch.tensor([[first], [second]])
    lower = torch.ones(3, 3).tril().bool()
    visible = torch.stack([torch.tensor([[True, True, False]] * 3), lower])[:, None]
    read = read_maps(weights, [2, 3], visible, with_padded=True)
    assert read.hides
    torch.testing.assert_close(read.columns["all"][0, :, 0], torch.tensor([0.375, 0.625, 0.0], dtype=torch.float64))
    torch.testing.assert_close(read.columns["seen"][0], read.columns["all"][0])
    # 1.35 / 3, 1.1 / 3, as released: the query at padding asks too.
    padded = torch.tensor([1.35 / 3, 1.65 / 3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(read.columns["padded"][0, :, 0], padded)
    torch.testing.assert_close(read.columns["all"][1, :, 0], torch.tensor([1.7, 0.7, 0.6], dtype=torch.float64) / 3)
    seen = torch.tensor([1.7 / 3, 0.7 / 2, 0.6], dtype=torch.float64)
    torch.testing.assert_close(read.columns["seen"][1, :, 0], seen)
    torch.testing.assert_close(
        read.uniform[1], torch.tensor([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3], dtype=torch.float64)
    )
    entropies = [np.log(2), -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))]
    assert read.entropy[0, 0].item() == pytest.approx(sum(entropies))
    assert read.relative[0, 0].item() == pytest.approx(sum(entropies) / np.log(2))
    last = -(0.4 * np.log(0.2) + 0.6 * np.log(0.6))
    assert read.entropy[1, 0].item() == pytest.approx(np.log(2) + last)
    # The first query sees one key: it has no relative entropy.
    assert read.relative[1, 0].item() == pytest.approx(1 + last / np.log(3))
    assert read.n_entropy[1, 0].item() == 3
    assert read.n_relative[1, 0].item() == 2
    assert read.mass[:, 0].tolist() == pytest.approx([2.0, 3.0])


def test_weights_that_do_not_sum_to_one_have_the_entropy_of_their_shares() -> None:
    weights = torch.tensor(
        [[[[0.1, 0.1], [0.0, 0.0]]]]
    )  # clipped attention: one query attends a little, one to nothing
    read = read_maps(weights, [2], None)
    assert read.entropy[0, 0].item() == pytest.approx(np.log(2))
    assert read.n_entropy[0, 0].item() == 1
    assert read.mass[0, 0].item() == pytest.approx(0.2)
    assert not read.hides
    with pytest.raises(BadInput, match="NaN or infinite; use --dtype float32"):
        read_maps(torch.full((1, 1, 2, 2), float("nan")), [2], None)
    with pytest.raises(BadInput, match="keeps padding in place"):
        read_maps(weights, [3], None)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 1e4))
def test_pearson_is_numpy_s_however_large_the_mean(seed: int, mean: float) -> None:
    random = np.random.default_rng(seed)
    columns, sizes = random.random((50, 2)), mean + random.random((50, 3))
    sums = PairSums(2, 3)
    for part in (slice(0, 20), slice(20, 50)):
        sums.add(torch.tensor(columns[part]), torch.tensor(sizes[part]))
    expected = np.corrcoef(columns.T, sizes.T)[:2, 2:]
    np.testing.assert_allclose(correlation(sums.sums()), expected, atol=1e-6)


def test_what_never_varies_correlates_with_nothing() -> None:
    sums = PairSums(1, 2)
    sums.add(torch.rand(9, 1).double(), torch.tensor([[0.0, 7.3]] * 9).double())
    assert np.isnan(correlation(sums.sums())).all()


def test_replicates_are_correlations_of_texts_drawn_again() -> None:
    random = np.random.default_rng(0)
    columns, sizes = torch.tensor(random.random((3, 4, 2))), torch.tensor(random.random((3, 4, 2)))
    counted = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    weights = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0]])
    drawn = ReplicateSums(2, 2, 2)
    drawn.add(torch.tensor(weights), columns, sizes, counted)
    found = correlation(drawn.sums())
    for row, times in enumerate(((0, 1, 2), (0, 0, 2))):
        a = np.concatenate([columns[i][counted[i]] for i in times])
        x = np.concatenate([sizes[i][counted[i]] for i in times])
        np.testing.assert_allclose(found[row], np.corrcoef(a.T, x.T)[:2, 2:], atol=1e-10)


def brute_force(model: Any, ids: list[list[int]], ordinary: Any, layer: int) -> dict[str, Any]:
    """Columns, |h| and entropies of a layer, a text at a time, from what transformers returns."""
    columns, seen, sizes, kept, entropies, relatives, first, start = [], [], [], [], [], [], [], []
    for row in ids:
        with torch.no_grad():
            out = model(torch.tensor([row]), output_attentions=True, output_hidden_states=True)
        maps = out.attentions[layer][0].double()
        n = len(row)
        shown = (maps[0] > 0).sum(0) if (maps.triu(1) == 0).all() else torch.full((n,), n)
        columns.append((maps.sum(1) / n).T)
        seen.append((maps.sum(1) / shown).T)
        sizes.append(out.hidden_states[layer + 1][0].abs())
        start.append(torch.arange(n) == 0)
        kept.append(torch.tensor([ordinary(token) for token in row]))
        entropy = -(maps * maps.clamp(min=1e-38).log()).sum(2)  # [head, query]
        entropies.append(entropy)
        keys = (maps[0] > 0).sum(1).double()
        relatives.append((entropy / keys.log())[:, keys > 1])
        first.append(maps[:, :, 0])
    return {
        "all": torch.cat(columns).numpy(), "seen": torch.cat(seen).numpy(), "size": torch.cat(sizes).numpy(),
        "kept": torch.cat(kept).numpy(), "start": torch.cat(start).numpy(), "entropy": torch.cat(entropies, 1).mean(1).numpy(),
        "relative": torch.cat(relatives, 1).mean(1).numpy(), "first": torch.cat(first, 1).mean(1).numpy(),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), [("bert", "masked"), ("mpnet", "masked"), ("llama", "causal")])
def test_everything_equals_brute_force_over_single_texts(words: Any, name: str, kind: str) -> None:
    tokenizer = words(kind=kind)
    model = build(FAMILIES[name])
    found = attention(from_objects(model, tokenizer), TEXTS, QUICK)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS.texts]
    assert found.hides is (kind == "causal")
    assert found.means == (("seen", "all") if found.hides else ("all",))
    # A last hidden state of a decoder is behind its final norm, so the last block is left to the others.
    for layer in (0, 1):
        truth = brute_force(model, ids, lambda token: token > 4, layer)
        for mean, keys in itertools.product(found.means, KEYS):
            rows = {
                "all": truth["kept"] | True,
                "without_special": truth["kept"],
                "without_first": truth["kept"] & ~truth["start"],
            }[keys]
            assert found.overall_r(3, keys, mean).n_keys == rows.sum()
            n_heads = truth[mean].shape[1]
            r = np.corrcoef(truth[mean][rows].T, truth["size"][rows].T)[:n_heads, n_heads:]
            np.testing.assert_allclose(found.r(keys, mean)[layer], r.mean(0), atol=1e-4)
            at = found.means.index(mean), list(KEYS).index(keys), layer
            np.testing.assert_allclose(found.heads_r[at], r[:, [3, 5]], atol=1e-4)
            np.testing.assert_allclose(found.control[at], np.delete(r, [3, 5], axis=1).mean(1), atol=1e-4)
            others, size = np.delete(r.mean(0), [3, 5]), np.abs(r.mean(0))
            for dim in (3, 5):
                one = found.correlation(str(layer), dim, keys, mean)
                assert one.r.value == pytest.approx(r.mean(0)[dim], abs=1e-4)
                assert one.others == pytest.approx(np.quantile(others, (0.05, 0.5, 0.95)), abs=1e-4)
                assert one.rank == 1 + (np.delete(size, [3, 5]) >= size[dim]).sum()
        for metric in ("first", "entropy", "relative"):
            said = found.heads[0, METRICS.index("relative_entropy" if metric == "relative" else metric), layer]
            np.testing.assert_allclose(said, truth[metric], rtol=1e-4)
    n = sum(map(len, ids))
    by_hand = {
        "masked": [len(ids) / n, 2 * len(ids) / n, len(ids) / n, 0.0],
        "causal": [sum(1 / (i + 1) for row in ids for i in range(len(row))) / n, 0.0, 0.0, 0.0],
    }
    uniform = [found.figure(measure, "0").uniform for measure in METRICS[:4]]
    np.testing.assert_allclose(np.array(uniform, float), by_hand[kind], atol=1e-12)
    np.testing.assert_allclose(found.heads[0, METRICS.index("mass")], 1.0, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("bert", "masked"), ("xlnet", "masked"), ("gpt2", "causal")])
def test_padding_changes_nothing(words: Any, name: str, kind: str) -> None:
    loaded = from_objects(build(FAMILIES[name]), words(kind=kind))
    one, eight = (attention(loaded, TEXTS, replace(QUICK, batch_size=size)) for size in (1, 8))
    assert one.random_sets == eight.random_sets
    for array in ("every_r", "heads_r", "control", "heads"):
        np.testing.assert_allclose(getattr(one, array), getattr(eight, array), atol=3e-4)


def test_as_released_padding_asks_too(words: Any) -> None:
    tokenizer = words()
    model = build(FAMILIES["bert"])
    loaded = from_objects(model, tokenizer)
    options = AttentionOptions(dims=(3,), n_random=0, n_bootstrap=20, max_length=12, paper_compat=True)
    found = attention(loaded, TEXTS, options)
    assert found.means == ("padded",)
    assert len(found.control_dims) == 10
    assert 3 not in found.control_dims
    columns, sizes, special = [], [], []
    encoded = tokenizer(list(TEXTS.texts), padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        out = model(**encoded, output_attentions=True, output_hidden_states=True)
    for row, mask in enumerate(encoded["attention_mask"].bool()):
        columns.append(out.attentions[1][row].mean(dim=1)[:, mask].T)  # [key, head], over all 12 queries
        sizes.append(out.hidden_states[2][row].abs()[mask])
        special.append(encoded["input_ids"][row][mask] <= 4)
    a, x, no = torch.cat(columns).numpy(), torch.cat(sizes).numpy(), ~torch.cat(special).numpy()
    for keys, rows in (("all", no | True), ("without_special", no)):
        r = np.corrcoef(a[rows].T, x[rows].T)[:2, 2:]
        np.testing.assert_allclose(found.r(keys)[1], r.mean(0), atol=1e-4)
        control = found.control[0, list(KEYS).index(keys), 1]
        np.testing.assert_allclose(control, r[:, list(found.control_dims)].mean(1), atol=1e-4)
    plain = attention(loaded, TEXTS, AttentionOptions(dims=(3,), n_random=0, n_bootstrap=20, max_length=12))
    assert np.abs(plain.r() - found.r()).max() > 0.01
    np.testing.assert_allclose(plain.heads[0], found.heads[0], atol=1e-5)  # sinks never count padding
    again = attention(loaded, TEXTS, AttentionOptions(**{**vars(options), "batch_size": 1}))
    np.testing.assert_allclose(again.r(), found.r(), atol=1e-4)


def test_a_dimension_that_follows_attention_is_found(words: Any) -> None:
    model = build(FAMILIES["bert"])
    received: list[Any] = []
    model.encoder.layer[1].attention.self.register_forward_hook(lambda _, __, out: received.append(out[1]))

    def plant(_: Any, __: Any, states: Any) -> Any:
        mask = (received[-1] > 0).any(2).any(1)  # padding is seen by nobody
        n = mask.sum(1)
        valid = torch.arange(mask.shape[1])[None] < n[:, None]
        column = (received[-1].mean(1) * valid[:, :, None]).sum(1) / n[:, None]
        states = states.clone()
        states[..., 7] = -50 * column
        return states

    model.encoder.layer[1].register_forward_hook(plant)
    texts = Texts("t", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(4 + i % 6)) for i in range(20)))
    options = AttentionOptions(dims=(7, 2), n_random=2, n_bootstrap=50)
    found = attention(from_objects(model, words()), texts, options)
    every: tuple[Keys, ...] = ("all", "without_special")
    for keys in every:
        one = found.correlation("1", 7, keys)
        assert one.rank == 1
        assert one.p == pytest.approx(1 / 15)
        assert found.r(keys)[1, 7] == one.r.value > 0.6
        assert one.r.low > one.others_95


def test_switching_off_is_undone_and_what_is_off_does_not_vary(words: Any) -> None:
    model = build(FAMILIES["bert"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = attention(from_objects(model, words()), TEXTS, AttentionOptions(dims=(3, 5), n_random=3, n_bootstrap=20))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert hooks(model) == 0
    assert found.n_set == 12
    assert len(found.random_sets) == 3
    for dims in found.random_sets:
        assert len(dims) == 2
        assert not set(dims) & {3, 5}
    rows = [one for one in found.correlations if one.keys == "all"]
    assert np.isnan([one.off for one in rows]).all()
    assert np.isfinite([one.random for one in rows]).all()
    assert any(found.figure("first", layer, "off").change.value for layer in ("1", "2"))
    means = found.heads.mean(-1)  # [condition, metric, layer]
    for i, measure in enumerate(METRICS):
        for layer in range(3):
            off = found.figure(measure, str(layer), "off")
            assert off.change.value == pytest.approx(means[1, i, layer] - means[0, i, layer], abs=1e-12)
            assert off.random == pytest.approx(means[2:, i, layer], abs=1e-12)
            assert not math.isfinite(found.figure(measure, str(layer)).change.value)
    off, moved = found.figure("entropy", state="off"), np.abs(means[1:] - means[0])[:, METRICS.index("entropy")]
    over = np.abs((means[1:] - means[0])[:, METRICS.index("entropy")].mean(-1))
    assert moved.any()
    assert off.p == (1 + (over[1:] >= over[0]).sum()) / 4
    sinks = (found.heads[:, 0] > 0.3).mean((1, 2))
    assert found.figure("sink_heads").value.value == pytest.approx(sinks[0])
    assert found.figure("sink_heads", state="off").random == pytest.approx(sinks[2:])


def test_clipped_attention_says_that_weights_do_not_sum_to_one(words: Any) -> None:
    found = attention(from_objects(build(FAMILIES["outlierlens-bert-rmsnorm"]), words()), TEXTS, QUICK)
    assert any("not to 1" in note for note in found.notes)
    assert found.heads[0, METRICS.index("mass")].mean(-1).max() < 1
    gated = attention(from_objects(build(FAMILIES["outlierlens-bert-pre-norm"]), words()), TEXTS, QUICK)
    assert any("before the gate" in note for note in gated.notes)


def test_a_mode_that_permutes_values_among_tokens_is_refused(words: Any) -> None:
    with pytest.raises(BadInput, match="attention would depend on the batch size"):
        attention(from_objects(build(FAMILIES["bert"]), words()), TEXTS, replace(QUICK, mode="resample"))


def test_delimiters() -> None:
    assert all(map(is_delimiter, (".", " ,", "##.", "##", "\n", "“")))
    assert not any(map(is_delimiter, ("##a", " ", "a.", "$")))


def test_ranks_by_hand() -> None:
    size = np.array([[0.5, 0.1, 0.5, np.nan, 0.9]])
    rank, p = ranks(size, [0, 3], np.array([1, 2, 4]))
    assert rank.tolist() == [[3, 4]]
    assert p.tolist() == [[0.75, 1.0]]


def test_the_strongest_dimension_is_drawn_first() -> None:
    found = attention_results.attention()
    weak = tuple(replace(one, dim=2) for one in found.correlations)
    both = tuple(replace(one, dim=2, size=Estimate(0.1)) for one in found.overall)
    about = replace(found.about, dims=("2", "1"))
    found = replace(found, about=about, correlations=(*weak, *found.correlations), overall=(*both, *found.overall))
    assert [one.dim for one in found.drawn_r] == [1] * 6 + [2] * 6
