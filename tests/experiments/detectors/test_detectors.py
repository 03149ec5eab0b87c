"""Every definition on running models: planted outliers found, thresholds at their edges, nothing unplanted; super weights."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from architectures import FAMILIES, Family, build
from outlierlens.data.texts import Texts
from outlierlens.detection.observe.measure import ObserveOptions, observe
from outlierlens.detection.running_statistics import QUANTILE_ERROR
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.collection import Collected, collect
from outlierlens.experiments.detectors.from_weights import randomly_initialised, rotation, shuffled
from outlierlens.experiments.detectors.linears import entries, largest_places, last_linears, random_places, scaled
from outlierlens.experiments.detectors.measure import _activation_found, detectors
from outlierlens.experiments.detectors.options import DetectorOptions, PassOptions, Settings, TrialOptions
from outlierlens.experiments.detectors.result import MODEL, NULLS, RANDOM, ROTATED, SHUFFLED, Detectors
from outlierlens.experiments.detectors.super_weights import super_weights, with_trials
from outlierlens.experiments.detectors.table import NAMES, definitions
from outlierlens.experiments.detectors.view import verdict
from outlierlens.models.load import LoadedModel, from_objects, stream_width
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.cosines import contributions, unit
from planted import Oracle, some_texts, wrap

DIM, ROW, COLUMN, AT = 5, 3, 7, 1  # the planted dimension, and the planted weight [ROW, COLUMN] of layer AT
# Of 16 dimensions one alone is 1/16 of all entries, and of the cosine: some thresholds are for wider models.
SMALL = Settings.parse(["macocco_quantile=0.9", "timkey_share=0.5", "luo_rank=1", "luo_share=0.9"])
WIDE = replace(FAMILIES["bert"], config=FAMILIES["bert"].config | {"num_hidden_layers": 5})


def plain(family: Family, tokenizer: Any, head: str = "") -> LoadedModel:
    """A model whose norms all have scale 1 and bias 0: nothing stands out."""
    model = build(family, head)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or ".ln_" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return from_objects(model, tokenizer, name="plain")


def planted(tokenizer: Any) -> LoadedModel:
    """A BERT whose dimension 5 every block's norm makes large and varying; and one super weight in layer 1."""
    loaded = plain(WIDE, tokenizer, "MaskedLM")
    with torch.no_grad():
        for layer in loaded.model.bert.encoder.layer:
            layer.output.LayerNorm.weight[DIM] = 300.0
            layer.output.LayerNorm.bias[DIM] = 3000.0
        plant_weight_(loaded)
    return loaded


def plant_weight_(loaded: LoadedModel) -> None:
    """Have input 7 of layer 1's last linear be about 100 everywhere, and the weight to dimension 3 be 8: 800 comes out."""
    with torch.no_grad():
        if hasattr(loaded.model, "bert"):
            loaded.model.bert.encoder.layer[AT].intermediate.dense.bias[COLUMN] = 100.0
        elif hasattr(loaded.model, "transformer"):
            loaded.model.transformer.h[AT].mlp.c_fc.bias[COLUMN] = 100.0
        else:
            mlp = loaded.model.model.layers[AT].mlp  # gated, without biases: both halves large where they agree
            mlp.gate_proj.weight[COLUMN] = mlp.up_proj.weight[COLUMN] = mlp.up_proj.weight[COLUMN] * 200
        entries(loaded, loaded.stacks[0], AT)[ROW, COLUMN] = 8.0


def varying(tokenizer: Any) -> LoadedModel:
    """A BERT whose last norm makes dimension 5 vary a hundred times as much as the others."""
    loaded = plain(FAMILIES["bert"], tokenizer)
    with torch.no_grad():
        loaded.model.encoder.layer[2].output.LayerNorm.weight[DIM] = 10.0
    return loaded


@pytest.fixture(scope="module")
def found(words: Callable[..., Any]) -> Detectors:
    return detectors(
        planted(words()),
        some_texts(24),
        DetectorOptions(reading=PassOptions(settings=SMALL, max_length=16), trial_texts=4, seed=1),
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("systematic", "super-weight", "rudman", "bondarenko-ffn")]
)
def test_a_planted_dimension_is_found_by_its_definition(name: str, found: Detectors) -> None:
    one = found.of(name)
    assert DIM in one.dims, one
    blocks = {"kovaleva", "puccetti", "luo-rank", "luo-share", "llm.int8", "massive", "timkey", "macocco"}
    if name in blocks:
        assert one.dims == (DIM,)
        assert {layer for layer, dims in (one.layers or {}).items() if DIM in dims} == set("01234")
        assert all(dims[0] == DIM for dims in (one.layers or {}).values() if DIM in dims)


def test_sizes_and_gamma_are_those_of_observe(words: Callable[..., Any], found: Detectors) -> None:
    (stack,) = observe(planted(words()), some_texts(24), ObserveOptions(max_length=16)).stacks
    assert set(found.sizes) == {dim for one in found.found if one.condition == MODEL for dim in one.named}
    assert found.sizes == {dim: stack.size_of(dim) for dim in found.sizes}
    assert found.sizes[DIM].low > 0.5
    # Later blocks hold the same state at every token, so that their spread is rounding.
    np.testing.assert_allclose(found.values_of().gamma[:3], stack.gamma()[:3], rtol=1e-6)


def test_the_planted_weight_is_found_and_what_it_writes(found: Detectors) -> None:
    assert found.of("super-weight").layers == {str(AT): (ROW,)}
    assert ROW in found.of("bondarenko-ffn").at(str(AT))
    searched = found.super_weights
    assert searched is not None
    (weight,) = searched.weights
    assert (weight.layer, weight.row, weight.column, weight.weight, weight.rank) == (AT, ROW, COLUMN, 8.0, 1)
    assert weight.share == pytest.approx(1, abs=0.1)
    assert weight.remaining < 0.5 * abs(weight.written)
    assert searched.after.written[AT] == weight.remaining
    assert searched.before.written[AT] == pytest.approx(abs(weight.written))


def test_neurons_are_judged_in_their_blocks(words: Callable[..., Any]) -> None:
    options = DetectorOptions(stack="mlp", reading=PassOptions(settings=SMALL, max_length=16), nulls=("random",))
    made = detectors(planted(words()), some_texts(8), options)
    name = f"{AT}:{COLUMN}"
    for definition in ("super-weight", "timkey", "he-kurtosis"):  # it is large at every token
        assert name in made.of(definition).named
        assert name not in made.of(definition, RANDOM).named
    assert made.of("super-weight").named == (name,)
    assert made.layers == tuple("01234")
    assert next(iter(made.votes())) == name
    assert made.of("massive").named == ()  # 100 is not 1,000 times the median
    whole = [one for one in made.names if made.of(one).applies]
    assert whole == ["massive", "systematic", "super-weight", "timkey", "he-kurtosis", "bondarenko-out"]
    assert verdict(made).startswith(f"Neurons {name} and ")
    (row,) = (row for row in made.records() if row["definition"] == "super-weight" and row["condition"] == MODEL)
    assert (row["layer"], row["dim"], row["pooled"]) == (str(AT), COLUMN, True)


@pytest.mark.parametrize("condition", NULLS)
def test_nulls_find_no_planted_dimension(condition: str, found: Detectors) -> None:
    for name in NAMES:
        one = found.of(name, condition)
        if condition == ROTATED and name in ("kovaleva", "puccetti", "luo-rank", "super-weight"):
            assert not one.applies
            assert one.why_not == "rests on weights, whose basis is the model's own"
        elif condition == RANDOM and name != "rudman":
            assert one.dims == (), (name, one.dims)
        elif name in ("kovaleva", "puccetti", "luo-rank", "luo-share"):
            assert DIM not in one.dims, (name, one.dims)


def test_rotation_takes_outliers_away_and_leaves_anisotropy(found: Detectors) -> None:
    own, rotated = found.values_of(MODEL), found.values_of(ROTATED)
    np.testing.assert_allclose(rotated.mean_cosine, own.mean_cosine, atol=1e-5)
    assert own.mean_cosine[-1] > 0.9
    assert own.he_kurtosis[-1] > 2 * rotated.he_kurtosis[-1]
    assert own.bondarenko_out[-1] > 2 * rotated.bondarenko_out[-1]


def test_nothing_is_found_where_nothing_is_planted(words: Callable[..., Any]) -> None:
    loaded = plain(WIDE, words())
    given = replace(SMALL, macocco_quantile=0.99)
    none = detectors(
        loaded, some_texts(24), DetectorOptions(reading=PassOptions(settings=given, max_length=16), nulls=())
    )
    # The variance over few texts of a model that reads nothing is no test of rudman: see its own.
    assert {name: none.of(name).dims for name in NAMES if name != "rudman"} == dict.fromkeys(
        (name for name in NAMES if name != "rudman"), ()
    )
    assert none.conditions == (MODEL,)
    assert detectors(
        varying(words()), some_texts(24), DetectorOptions(reading=PassOptions(settings=given, max_length=16), nulls=())
    ).of("rudman").dims == (DIM,)
    assert none.super_weights is not None
    assert none.super_weights.stopped == "no layer reads and writes above 50"


def test_a_rare_large_activation_is_massive_and_systematic(words: Callable[..., Any]) -> None:
    loaded = from_objects(build(FAMILIES["gpt2"]), words(kind="causal"), name="rare")
    with torch.no_grad():
        loaded.model.wte.weight[loaded.tokenizer.convert_tokens_to_ids("w7"), DIM] = 22_500.0  # type: ignore[union-attr]
    texts = Texts("made", ("w1 w7", *(["w9 w10 w11 w12"] * 40)))
    rare = detectors(loaded, texts, DetectorOptions(nulls=()))
    for name in ("massive", "systematic"):
        assert rare.of(name).dims == (DIM,)
        assert tuple(rare.of(name).layers or ()) == ("embeddings", "0", "1", "2")
    assert rare.layers[-1] == "final norm"
    assert "final norm" not in (rare.of("massive").layers or {})
    assert any("rudman and macocco are judged there" in note for note in rare.notes)


@pytest.fixture(scope="module")
def gathered(words: Callable[..., Any]) -> dict[str, Collected]:
    made = {"rudman": varying(words()), "": planted(words())}
    options = PassOptions(settings=SMALL, max_length=16)
    return {name: collect(one, some_texts(24), one.stacks[0], options)[0] for name, one in made.items()}


@pytest.mark.parametrize(
    ("name", "threshold", "strict"),
    [
        ("massive", "massive_size", True),
        ("systematic", "systematic_ratio", True),
        ("rudman", "rudman_factor", False),
        ("timkey", "timkey_share", False),
        ("he-kurtosis", "he_kurtosis", False),
        ("bondarenko-out", "bondarenko_kurtosis", False),
    ],
)
def test_thresholds_hold_at_their_edge(name: str, threshold: str, strict: bool, gathered: dict[str, Collected]) -> None:
    seen = gathered["rudman" if name == "rudman" else ""]

    def dims(value: float) -> tuple[int, ...]:
        options = DetectorOptions(reading=PassOptions(settings=Settings.parse([f"{threshold}={value!r}"])))
        return next(one for one in _activation_found(seen, options, MODEL) if one.definition == name).dims

    edge = {
        "massive": seen.measured.abs_max[:, DIM].max(),
        "systematic": (seen.measured.abs_max[:, DIM] / seen.mean_abs).max(),
        "rudman": seen.variances[-1, DIM] / seen.variances[-1].mean(),
        "timkey": (seen.contributions[1:, DIM] / seen.contributions[1:].sum(1)).max(),
        "he-kurtosis": 1 + ((seen.energy / seen.energy.mean(1, keepdims=True) - 1) ** 2).mean(1)[1:].max(),
        "bondarenko-out": seen.fourth.sum(1)[1:].max(),
    }[name]
    assert DIM in dims(float(edge) * (1 - 1e-9))
    assert DIM not in dims(float(edge) * (1 + 1e-9))
    if name == "massive":
        assert strict
        assert DIM not in dims(float(edge))


@pytest.mark.parametrize(("name", "special"), [("bert", True), ("bert", False), ("gpt2", False), ("xlnet", True)])
def test_everything_gathered_against_numpy(name: str, special: bool, words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES[name], words())
    texts = some_texts(11, seed=3)
    (stack,) = loaded.stacks
    turn = rotation(stream_width(loaded.model, stack), seed=2)
    options = PassOptions(
        settings=Settings.parse(["macocco_quantile=0.8"]), max_length=8, batch_size=4, special=special
    )
    own, rotated = collect(loaded, texts, stack, options, turn=turn)
    assert rotated is not None
    oracle = Oracle(loaded, texts, 8)
    kept = [[special or token not in range(5) for token in ids] for ids in oracle.ids]
    for basis, seen in ((np.eye(len(turn)), own), (turn.double().numpy(), rotated)):
        for row in range(stack.n_layers + 1):
            whole = [text[row] @ basis for text in oracle.by_text[stack.name]]
            parts = [states[mask] for states, mask in zip(whole, kept, strict=True) if any(mask)]
            every = np.concatenate(parts)
            near = {"rtol": 2e-5, "atol": 2e-6}
            np.testing.assert_allclose(seen.contributions[row], contributions(unit(every)), **near)
            np.testing.assert_allclose(seen.energy[row], (every**2).sum(0), **near)
            np.testing.assert_allclose(seen.mean_abs[row], np.abs(every).mean(), **near)
            kurtoses = [stats.kurtosis(part, axis=None, fisher=False) for part in parts]
            assert seen.fourth[row].sum() == pytest.approx(np.mean(kurtoses), rel=1e-4)
            assert seen.values["bondarenko_out_max"][row] == pytest.approx(max(kurtoses), rel=1e-4)
            first = [states[0] for states, mask in zip(whole, kept, strict=True) if any(mask)]
            np.testing.assert_allclose(seen.variances[row], np.var(first, axis=0), rtol=1e-4, atol=1e-6)
            low = np.sort(np.abs(every), axis=0)[math.ceil(len(every) / 2) - 1]
            np.testing.assert_allclose(seen.medians[row], low, rtol=QUANTILE_ERROR * 1.01, atol=3e-4)
            np.testing.assert_allclose(seen.measured.abs_max[row], np.abs(every).max(0), **near)
    assert own.layers[-1] == ("final norm" if name == "gpt2" else str(stack.n_layers - 1))
    assert own.n_tokens == sum(len(ids) for ids in oracle.ids)


@pytest.mark.parametrize("name", ["t5", "albert", "mixtral"])
def test_other_families_say_what_does_not_apply(name: str, words: Callable[..., Any]) -> None:
    loaded = from_objects(build(FAMILIES[name]), words(), name=name)
    there = detectors(loaded, some_texts(6), DetectorOptions(reading=PassOptions(max_length=8), nulls=("rotated",)))
    assert there.stack == loaded.stacks[0].name
    if name == "t5":
        assert there.of("super-weight").applies
        assert there.of("puccetti").why_not.endswith("has no bias, and the rule wants both lists")
    else:
        assert there.super_weights is None
        assert "no single module of its own" in there.of("super-weight").why_not
        assert there.of("bondarenko-ffn").why_not == there.of("super-weight").why_not
        assert np.isnan(there.values_of(MODEL).bondarenko_ffn).all()


def test_memory_that_does_not_reach_is_told(words: Callable[..., Any]) -> None:
    loaded = plain(WIDE, words())
    reading = PassOptions(settings=SMALL, max_length=16, histogram_bytes=6 * 2 * 2048 * 4 * 9)
    some = detectors(loaded, some_texts(12), DetectorOptions(reading=reading, nulls=()))
    assert any(note.startswith("macocco judged ") and "of 16 dimensions" in note for note in some.notes)


# -- super weights


@pytest.mark.parametrize(("name", "head"), [("bert", "MaskedLM"), ("gpt2", "LMHeadModel"), ("llama", "CausalLM")])
def test_a_planted_super_weight_in_every_kind_of_mlp(name: str, head: str, words: Callable[..., Any]) -> None:
    import transformers

    if name == "gpt2":
        model: Any = transformers.GPT2LMHeadModel(build(FAMILIES[name]).config)
        model.transformer.load_state_dict(build(FAMILIES[name]).state_dict())
    else:
        model = build(FAMILIES[name], head)
    loaded = from_objects(model.eval(), words(kind="masked" if name == "bert" else "causal"), name=name)
    (stack,) = loaded.stacks
    plant_weight_(loaded)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    texts = tuple(some_texts(4, longest=7).texts)
    searched = super_weights(loaded, stack, texts[0], Settings.parse(["super_spike=30", "super_rounds=1"]))
    (weight,) = searched.weights
    assert (weight.layer, weight.row, weight.column) == (AT, ROW, COLUMN)
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())
    # What is put back at every token is the intact model; at the spikes alone, nearly.
    task = make_task(loaded, Texts("made", texts), TaskOptions(max_length=16))
    tested = with_trials(
        loaded, stack, replace(searched, spike=0.0), task, TrialOptions(factors=(1.0, 0.0), n_random=1)
    )
    assert tested.trial("restored").change == pytest.approx(0, abs=1e-5)
    assert tested.trial("× 1").change == pytest.approx(0, abs=1e-6)
    assert tested.trial("× 0").change == tested.trial("zeroed").change
    assert abs(tested.trial("zeroed").change) > 1e-3
    assert tested.restored_tokens > 0
    values, weights = task.per_text()
    assert tested.trial("intact").value == pytest.approx(float((values * weights).sum() / weights.sum()), abs=1e-6)
    assert [one.name for one in tested.trials] == [
        "intact", "zeroed", "restored", "× 1", "× 0", "random 0", "largest"
    ]  # fmt: skip
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())


def test_a_column_that_writes_everywhere_is_no_single_weight(words: Callable[..., Any]) -> None:
    loaded = plain(WIDE, words())
    with torch.no_grad():
        loaded.model.encoder.layer[AT].intermediate.dense.bias[COLUMN] = 100.0
        loaded.model.encoder.layer[AT].output.dense.weight[:, COLUMN] = 8.0
    searched = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", Settings())
    assert searched.weights == ()
    assert searched.stopped.startswith("what still spikes above 50 is no single weight's doing: layer 1 (")
    limited = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", Settings.parse(["super_left=1", "super_rounds=2"]))
    assert len(limited.weights) == 2
    assert limited.stopped == "2 weights are removed, the limit; layers 1 still spike above 50"


def test_the_same_weights_again_are_told(words: Callable[..., Any]) -> None:
    loaded = plain(WIDE, words())
    plant_weight_at(loaded, 0)
    weight = entries(loaded, loaded.stacks[0], 0)
    with torch.no_grad():
        loaded.model.encoder.layer[0].intermediate.dense.bias[COLUMN + 1] = 99.0
        weight[ROW, COLUMN + 1] = 3.0  # what is left after the first still spikes, and input 7 stays the largest
    searched = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", Settings())
    assert [(one.row, one.column) for one in searched.weights] == [(ROW, COLUMN)]
    assert searched.stopped.endswith(f"layer 0 ([{ROW}, {COLUMN}] is removed already)")


def plant_weight_at(loaded: LoadedModel, layer: int) -> None:
    with torch.no_grad():
        loaded.model.encoder.layer[layer].intermediate.dense.bias[COLUMN] = 100.0
        entries(loaded, loaded.stacks[0], layer)[ROW, COLUMN] = 8.0


def test_weights_are_scaled_inside_and_restored_after_an_error(words: Callable[..., Any]) -> None:
    loaded = plain(FAMILIES["gpt2"], words())
    (stack,) = loaded.stacks
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    places = [(0, 1, 2), (2, 3, 4), (0, 1, 2)]

    def stopped() -> None:
        with scaled(loaded, stack, places[:2], 3.0):
            c_proj = loaded.model.h[0].mlp.c_proj.weight
            assert c_proj[2, 1] == before["h.0.mlp.c_proj.weight"][2, 1] * 3  # Conv1D is [in, out]
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    with scaled(loaded, stack, places, 0.0):
        assert loaded.model.h[2].mlp.c_proj.weight[4, 3] == 0
    with pytest.raises(BadInput, match=r"layer 1 has no weight \[16, 0\]"), scaled(loaded, stack, [(1, 16, 0)], 0.0):
        pass
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())


def test_weights_to_compare_with(words: Callable[..., Any]) -> None:
    loaded = plain(FAMILIES["bert"], words())
    (stack,) = loaded.stacks
    sizes = entries(loaded, stack, 1).abs().reshape(-1)
    order = sizes.argsort(descending=True).tolist()
    width = entries(loaded, stack, 1).shape[1]
    top = [(1, index // width, index % width) for index in order[:4]]
    assert largest_places(loaded, stack, top[:2]) == top[2:]
    assert largest_places(loaded, stack, [(1, 0, 0), (2, 0, 0)])[0] == (top[0] if top[0] != (1, 0, 0) else top[1])
    drawn = random_places(loaded, stack, top, seed=3)
    assert [layer for layer, _, _ in drawn] == [1] * 4
    assert not set(drawn) & set(top)
    assert len(set(drawn)) == 4
    assert drawn == random_places(loaded, stack, top, seed=3)
    assert drawn != random_places(loaded, stack, top, seed=4)


def test_what_the_last_linear_shows_may_be_replaced(words: Callable[..., Any]) -> None:
    loaded = plain(FAMILIES["xlnet"], words())
    (stack,) = loaded.stacks
    ids = torch.tensor([[5, 6, 7]])
    shapes = []

    def use(layer: int, read: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
        shapes.append((layer, tuple(read.shape), tuple(written.shape)))
        return torch.zeros_like(written) if layer == 2 else None

    with torch.no_grad():
        with last_linears(loaded, stack, use):
            loaded.model(input_ids=ids)
        assert shapes == [(layer, (1, 3, 24), (1, 3, 16)) for layer in range(3)]  # [batch, token, …], not XLNet's order
        again = loaded.model(input_ids=ids).last_hidden_state
        assert len(shapes) == 3
        assert torch.isfinite(again).all()


# -- nulls


def test_nulls_change_a_copy_and_come_from_the_seed(words: Callable[..., Any]) -> None:
    loaded = from_objects(build(FAMILIES["llama"], "CausalLM"), words(kind="causal"), name="llama")
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    state = torch.get_rng_state()
    for make in (randomly_initialised, shuffled):
        one, same, other = (dict(make(loaded, seed=seed).model.named_parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(one[key], same[key]) for key in one)
        assert any(not torch.equal(one[key], other[key]) for key in one)
        assert any(not torch.equal(one[key], before[key]) for key in one)
    mixed = dict(shuffled(loaded, seed=1).model.named_parameters())
    assert all(
        torch.equal(mixed[key].reshape(-1).sort().values, before[key].reshape(-1).sort().values) for key in mixed
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())
    with pytest.raises(BadInput, match="made from a transformers config, which this model lacks"):
        randomly_initialised(replace(loaded, model=torch.nn.Linear(2, 2)), seed=0)


def test_a_rotation_is_orthogonal() -> None:
    turn = rotation(20, seed=5).double()
    torch.testing.assert_close(turn @ turn.T, torch.eye(20, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(rotation(4, seed=5), rotation(4, seed=5))
    assert not torch.equal(rotation(4, seed=5), rotation(4, seed=6))


def test_a_null_that_breaks_is_told_and_the_rest_goes_on(
    words: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(loaded: LoadedModel, *, seed: int) -> LoadedModel:
        other = shuffled(loaded, seed=seed)
        with torch.no_grad():
            other.model.embeddings.word_embeddings.weight.fill_(float("nan"))
        return other

    monkeypatch.setattr("outlierlens.experiments.detectors.measure.shuffled", broken)
    there = detectors(plain(WIDE, words()), some_texts(4), DetectorOptions(nulls=("shuffled", "rotated")))
    assert "NaN or infinity" in there.of("massive", SHUFFLED).why_not
    assert any(note.startswith("shuffled weights: not measured: stream model") for note in there.notes)
    assert there.of("massive", ROTATED).applies


# -- what cannot be


def test_refusals(words: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="unknown null 'chance'; nulls are random, shuffled, rotated"):
        DetectorOptions(nulls=("chance",))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="trial_texts is -1"):
        DetectorOptions(trial_texts=-1)
    with pytest.raises(BadInput, match="factors must be numbers"):
        TrialOptions(factors=(float("inf"),))
    loaded = plain(FAMILIES["gpt2"], words(kind="causal"))
    with pytest.raises(BadInput, match="the tokenizer makes no token of the prompt ''; give another"):
        super_weights(loaded, loaded.stacks[0], "", Settings())
    with pytest.raises(BadInput, match="fewer than two tokens count"):
        detectors(
            plain(WIDE, words()), Texts("made", ("w1",)), DetectorOptions(reading=PassOptions(special=False), nulls=())
        )


def test_the_command(words: Callable[..., Any], tmp_path: Path, run: Callable[..., Any]) -> None:
    loaded = planted(words())
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")  # type: ignore[union-attr]
    (tmp_path / "texts.txt").write_text("\n".join(some_texts(6).texts), "utf-8")
    given = ("detectors", str(tmp_path / "model"), "--data", str(tmp_path / "texts.txt"), "--nulls", "rotated")
    given += ("--threshold", "macocco_quantile=0.9", "--threshold", "timkey_share=0.5", "--dtype", "float32")
    code, out, err = run(
        *given, "--json", "--chart", str(tmp_path / "a.json"), "--super-chart", str(tmp_path / "b.json")
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["kind"] == "Detectors"
    by = {one["definition"]: one["dims"] for one in document["found"] if one["condition"] == MODEL}
    assert by["kovaleva"] == by["luo-share"] == by["macocco"] == [DIM]
    assert (tmp_path / "a.json").exists()
    assert (tmp_path / "b.json").exists()
    code, out, err = run(*given, "--sentence", "middle")
    assert (code, out) == (2, "")
    assert 'Choose from: "auto", "first", "last", "mean"' in err


def test_the_page_names_every_definition_and_its_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs" / "detectors.md").read_text("utf-8")
    table = definitions(Settings(), plain(FAMILIES["bert"], None).stacks[0])
    assert tuple(one.name for one in table) == NAMES
    for one in table:
        assert f"| `{one.name}` |" in page, one.name
        for name, value in one.thresholds.items():
            assert re.search(rf"`{name}` {value:g}\b", page), name
    assert {name for one in table for name in one.thresholds} == set(Settings().values)
