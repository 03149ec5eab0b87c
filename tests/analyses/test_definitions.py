"""Every definition on running models: planted outliers found, thresholds at their edges, nothing unplanted; super weights."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import mixtures
from architectures import FAMILIES, Family, build
from outlierlens.analyses import super_weights as module
from outlierlens.analyses.definitions import (
    DEFINITIONS,
    LIMITS,
    MODEL,
    NAMES,
    NULLS,
    DefinitionOptions,
    Definitions,
    definitions,
    weights_definitions,
)
from outlierlens.analyses.definitions_sums import (
    gathered,
    randomly_initialised,
    rotation,
    shuffled,
)
from outlierlens.analyses.observe import observe
from outlierlens.analyses.super_weights import (
    SuperActivations,
    entries,
    largest_places,
    random_places,
    scaled,
    super_weights,
    tapped_mlps,
    trials,
)
from outlierlens.architectures import LastLinear
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.running_statistics import QUANTILE_ERROR
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall
from outlierlens.models.load import LoadedModel, from_objects, stream_width
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.cosines import contributions, unit
from planted import Oracle, some_texts, wrap

DIM, ROW, COLUMN, AT = 5, 3, 7, 1  # the planted dimension, and the planted weight [ROW, COLUMN] of layer AT
# Of 16 dimensions one alone is 1/16 of all entries, and of the cosine: some thresholds are for wider models.
SMALL = {"macocco_quantile": 0.9, "timkey_share": 0.5, "luo_rank": 1, "luo_share": 0.9}
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
def found(words: Any) -> Definitions:
    return definitions(
        planted(words()),
        some_texts(24),
        DefinitionOptions(thresholds=SMALL, max_length=16, trial_texts=4, seed=1),
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("systematic", "super-weight", "rudman", "bondarenko-ffn")]
)
def test_a_planted_dimension_is_found_by_its_definition(name: str, found: Definitions) -> None:
    one = found.of(name)
    assert DIM in one.dims, one
    blocks = {"kovaleva", "puccetti", "luo-rank", "luo-share", "llm.int8", "massive", "timkey", "macocco"}
    if name in blocks:
        assert one.dims == (DIM,)
        assert {layer for layer, dims in one.layers.items() if DIM in dims} == set("01234")
        assert all(dims[0] == DIM for dims in one.layers.values() if DIM in dims)


def numbers(found: Definitions, name: str, condition: str = MODEL) -> np.ndarray:
    """A number of each layer [layer]."""
    return np.array([getattr(one, name) for one in found.numbers if one.condition == condition])


def test_gamma_is_that_of_observe(words: Any, found: Definitions) -> None:
    (stack,) = observe(planted(words()), some_texts(24), ObserveOptions(max_length=16)).stacks
    # Later blocks hold the same state at every token, so that their spread is rounding.
    np.testing.assert_allclose(numbers(found, "gamma")[:3], stack.gamma()[:3], rtol=1e-6)


def test_the_planted_weight_is_found_and_what_it_writes(found: Definitions) -> None:
    assert found.of("super-weight").layers == {str(AT): (ROW,)}
    assert ROW in found.of("bondarenko-ffn").layers[str(AT)]
    (weight,) = found.weights
    assert (weight.layer, weight.row, weight.column, weight.weight, weight.rank) == (AT, ROW, COLUMN, 8.0, 1)
    assert weight.share == pytest.approx(1, abs=0.1)
    assert weight.remaining < 0.5 * abs(weight.written)
    assert [one.label for one in found.trials[:3]] == ["intact", "zeroed", "restored"]
    assert found.about.task == "masked loss"


def test_neurons_are_judged_in_their_blocks(words: Any) -> None:
    options = DefinitionOptions(stack="mlp", thresholds=SMALL, max_length=16, nulls=("random",))
    made = definitions(planted(words()), some_texts(8), options)
    name = f"{AT}:{COLUMN}"
    for definition in ("super-weight", "timkey", "he-kurtosis"):  # it is large at every token
        assert name in made.of(definition).names
        assert name not in made.of(definition, "random").names
    assert made.of("super-weight").names == (name,)
    assert {one.layer for one in made.numbers} == set("01234")
    assert made.several[0].name == name
    assert made.of("massive").names == ()  # 100 is not 1,000 times the median
    whole = [one for one in NAMES if made.of(one).n is not None]
    assert whole == ["massive", "systematic", "super-weight", "timkey", "he-kurtosis", "bondarenko-out"]
    assert next(made.sentences()).startswith(f"Neurons {name} and ")
    assert made.of("super-weight").layers == {str(AT): (COLUMN,)}
    assert made.about.kind == "neuron"


@pytest.mark.parametrize("condition", NULLS)
def test_nulls_find_no_planted_dimension(condition: str, found: Definitions) -> None:
    for name in NAMES:
        one = found.of(name, condition)
        if condition == "rotated" and name in ("kovaleva", "puccetti", "luo-rank", "super-weight"):
            assert one.n is None
            assert one.why_not == "rests on weights, whose basis is the model's own"
        elif condition == "random" and name != "rudman":
            assert one.dims == (), (name, one.dims)
        elif name in ("kovaleva", "puccetti", "luo-rank", "luo-share"):
            assert DIM not in one.dims, (name, one.dims)


def test_rotation_takes_outliers_away_and_leaves_anisotropy(found: Definitions) -> None:
    cosine = numbers(found, "mean_cosine")
    np.testing.assert_allclose(numbers(found, "mean_cosine", "rotated"), cosine, atol=1e-5)
    assert cosine[-1] > 0.9
    for name in ("he_kurtosis", "bondarenko_out"):
        assert numbers(found, name)[-1] > 2 * numbers(found, name, "rotated")[-1]


def test_nothing_is_found_where_nothing_is_planted(words: Any) -> None:
    loaded = plain(WIDE, words())
    given = SMALL | {"macocco_quantile": 0.99}
    none = definitions(loaded, some_texts(24), DefinitionOptions(thresholds=given, max_length=16, nulls=()))
    # The variance over few texts of a model that reads nothing is no test of rudman: see its own.
    assert {name: none.of(name).dims for name in NAMES if name != "rudman"} == dict.fromkeys(
        (name for name in NAMES if name != "rudman"), ()
    )
    assert none.conditions == (MODEL,)
    assert definitions(
        varying(words()), some_texts(24), DefinitionOptions(thresholds=given, max_length=16, nulls=())
    ).of("rudman").dims == (DIM,)
    assert none.stopped == "no layer reads and writes above 50"


def test_a_rare_large_activation_is_massive_and_systematic(words: Any) -> None:
    loaded = from_objects(build(FAMILIES["gpt2"]), words(kind="causal"), name="rare")
    with torch.no_grad():
        loaded.model.wte.weight[loaded.tokenizer.convert_tokens_to_ids("w7"), DIM] = 22_500.0  # type: ignore[union-attr]
    texts = Texts("made", ("w1 w7", *(["w9 w10 w11 w12"] * 40)))
    rare = definitions(loaded, texts, DefinitionOptions(nulls=()))
    for name in ("massive", "systematic"):
        assert rare.of(name).dims == (DIM,)
        assert tuple(rare.of(name).layers) == ("embeddings", "0", "1", "2")
    assert rare.numbers[-1].layer == "final norm"
    assert "final norm" not in rare.of("massive").layers


@pytest.mark.parametrize(("name", "special"), [("bert", True), ("bert", False), ("gpt2", False), ("xlnet", True)])
def test_everything_gathered_against_numpy(name: str, special: bool, words: Any) -> None:
    loaded = wrap(FAMILIES[name], words())
    texts = some_texts(11, seed=3)
    (stack,) = loaded.stacks
    turn = rotation(stream_width(loaded.model, stack), seed=2)
    options = DefinitionOptions(thresholds={"macocco_quantile": 0.8}, max_length=8, batch_size=4, special=special)
    own, rotated = gathered(loaded, texts, stack, options, turn=turn)
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
            largest = [np.abs(part).max() for part in parts if part.std() > 0]
            assert seen.numbers["inf_norm"][row] == pytest.approx(np.mean(largest), rel=1e-5)
            first = [states[0] for states, mask in zip(whole, kept, strict=True) if any(mask)]
            np.testing.assert_allclose(seen.variances[row], np.var(first, axis=0), rtol=1e-4, atol=1e-6)
            low = np.sort(np.abs(every), axis=0)[math.ceil(len(every) / 2) - 1]
            np.testing.assert_allclose(seen.medians[row], low, rtol=QUANTILE_ERROR * 1.01, atol=3e-4)
            np.testing.assert_allclose(seen.measured.abs_max[row], np.abs(every).max(0), **near)
    assert own.layers[-1] == ("final norm" if name == "gpt2" else str(stack.n_layers - 1))
    assert own.n_tokens == sum(len(ids) for ids in oracle.ids)


@pytest.mark.parametrize("name", ["t5", "albert", "mixtral"])
def test_other_families_say_what_does_not_apply(name: str, words: Any) -> None:
    loaded = from_objects(build(FAMILIES[name]), words(), name=name)
    there = definitions(loaded, some_texts(6), DefinitionOptions(max_length=8, nulls=("rotated",)))
    albert = "stream 'model' has no MLP axis: layers share one block, so its MLP has no layer of its own"
    assert there.about.stack == loaded.stacks[0].name
    if name == "t5":
        assert there.of("super-weight").n is not None
        assert there.of("puccetti").why_not.endswith("has no bias, and the rule needs both lists")
    else:
        assert there.weights == ()
        assert there.of("super-weight").why_not == ("" if name == "mixtral" else albert)
        assert there.of("bondarenko-ffn").why_not.startswith(
            "stream 'model' has experts" if name == "mixtral" else albert
        )
        assert np.isnan(numbers(there, "bondarenko_ffn")).all()


def test_memory_that_does_not_reach_is_told(words: Any) -> None:
    loaded = plain(WIDE, words())
    options = DefinitionOptions(thresholds=SMALL, max_length=16, histogram_bytes=6 * 2 * 2048 * 4 * 9, nulls=())
    some = definitions(loaded, some_texts(12), options)
    assert any(note.startswith("macocco judged ") and "of 16 dimensions" in note for note in some.notes)


# -- super weights


@pytest.mark.parametrize(("name", "head"), [("bert", "MaskedLM"), ("gpt2", "LMHeadModel"), ("llama", "CausalLM")])
def test_a_planted_super_weight_in_every_kind_of_mlp(
    name: str, head: str, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    (weight,), _ = super_weights(loaded, stack, texts[0], LIMITS | {"super_spike": 30, "super_rounds": 1})
    assert (weight.layer, weight.row, weight.column) == (AT, ROW, COLUMN)
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())
    # What is put back at every token is the intact model; at the spikes alone, nearly.
    task = make_task(loaded, Texts("made", texts), TaskOptions(max_length=16))
    monkeypatch.setattr(module, "FACTORS", (1.0, 0.0))
    monkeypatch.setattr(module, "DRAWS", 1)
    made = Texts("made", texts)
    tested = {one.label: one for one in trials(SuperActivations(loaded, stack, 0.0), [weight], task, made)}
    assert tested["restored"].change.value == pytest.approx(0, abs=1e-5)
    assert tested["× 1"].change.value == pytest.approx(0, abs=1e-6)
    assert tested["× 0"].change == tested["zeroed"].change
    assert abs(tested["zeroed"].change.value) > 1e-3
    assert tested["restored"].n_restored > 0
    values, weights = task.per_text()
    assert tested["intact"].value.value == pytest.approx(float((values * weights).sum() / weights.sum()), abs=1e-6)
    assert list(tested) == [
        "intact", "zeroed", "restored", "× 1", "× 0", "random 0", "largest"
    ]  # fmt: skip
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "deepseek_v3", "llama4_text"])
def test_a_planted_super_weight_of_an_expert(name: str, words: Any) -> None:
    loaded = from_objects(mixtures.mixture(name), words(kind="causal"), name=name)
    (stack,) = loaded.stacks
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    text = " ".join(f"w{number}" for number in range(30))
    (weight,), _ = super_weights(loaded, stack, text, LIMITS | {"super_spike": 10, "super_rounds": 1})
    assert weight.place == f"layer {mixtures.LAYER}, expert {mixtures.EXPERT}, [{mixtures.DIM}, {mixtures.NEURON}]"
    assert weight.weight == 30.0
    task = make_task(loaded, Texts("made", (text,)), TaskOptions(max_length=32))
    tested = {
        one.label: one for one in trials(SuperActivations(loaded, stack, 0.0), [weight], task, Texts("made", (text,)))
    }
    assert abs(tested["zeroed"].change.value) > 1e-3
    assert tested["restored"].change.value == pytest.approx(0, abs=1e-5)
    assert tested["restored"].n_restored > 0
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())


def test_a_column_that_writes_everywhere_is_no_single_weight(words: Any) -> None:
    loaded = plain(WIDE, words())
    with torch.no_grad():
        loaded.model.encoder.layer[AT].intermediate.dense.bias[COLUMN] = 100.0
        loaded.model.encoder.layer[AT].output.dense.weight[:, COLUMN] = 8.0
    weights, stopped = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", LIMITS)
    assert weights == ()
    assert stopped.startswith("no single weight makes the remaining spikes above 50: layer 1 (")
    limits = LIMITS | {"super_left": 1, "super_rounds": 2}
    weights, stopped = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", limits)
    assert len(weights) == 2
    assert stopped == "2 weights are removed, the limit; layers 1 still spike above 50"


def test_the_same_weights_again_are_told(words: Any) -> None:
    loaded = plain(WIDE, words())
    plant_weight_at(loaded, 0)
    weight = entries(loaded, loaded.stacks[0], 0)
    with torch.no_grad():
        loaded.model.encoder.layer[0].intermediate.dense.bias[COLUMN + 1] = 99.0
        weight[ROW, COLUMN + 1] = 3.0  # what is left after the first still spikes, and input 7 stays the largest
    weights, stopped = super_weights(loaded, loaded.stacks[0], "w1 w2 w3", LIMITS)
    assert [(one.row, one.column) for one in weights] == [(ROW, COLUMN)]
    assert stopped.endswith(f"layer 0 ([{ROW}, {COLUMN}] is removed already)")


def plant_weight_at(loaded: LoadedModel, layer: int) -> None:
    with torch.no_grad():
        loaded.model.encoder.layer[layer].intermediate.dense.bias[COLUMN] = 100.0
        entries(loaded, loaded.stacks[0], layer)[ROW, COLUMN] = 8.0


def test_weights_are_scaled_inside_and_restored_after_an_error(words: Any) -> None:
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
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())


def test_weights_to_compare_with(words: Any) -> None:
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


def test_what_the_last_linear_shows_may_be_replaced(words: Any) -> None:
    loaded = plain(FAMILIES["xlnet"], words())
    (stack,) = loaded.stacks
    ids = torch.tensor([[5, 6, 7]])
    shapes = []

    def use(one: LastLinear, call: ExpertCall) -> torch.Tensor | None:
        shapes.append((one.layer, tuple(call.read.shape), tuple(call.given.shape)))
        return torch.zeros_like(call.given) if one.layer == 2 else None

    with torch.no_grad():
        with tapped_mlps(loaded, stack, use):
            loaded.model(input_ids=ids)
        assert shapes == [(layer, (1, 3, 24), (1, 3, 16)) for layer in range(3)]  # [batch, token, …], not XLNet's order
        again = loaded.model(input_ids=ids).last_hidden_state
        assert len(shapes) == 3
        assert torch.isfinite(again).all()


# -- nulls


def test_nulls_change_a_copy_and_come_from_the_seed(words: Any) -> None:
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


def test_a_null_that_breaks_is_told_and_the_rest_goes_on(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(loaded: LoadedModel, *, seed: int) -> LoadedModel:
        other = shuffled(loaded, seed=seed)
        with torch.no_grad():
            other.model.embeddings.word_embeddings.weight.fill_(float("nan"))
        return other

    monkeypatch.setattr("outlierlens.analyses.definitions.shuffled", broken)
    there = definitions(plain(WIDE, words()), some_texts(4), DefinitionOptions(nulls=("shuffled", "rotated")))
    assert "NaN or infinity" in there.of("massive", "shuffled").why_not
    assert any(note.startswith("shuffled: not measured: stream model") for note in there.notes)
    assert there.of("massive", "rotated").n is not None


# -- what cannot be


def test_refusals(words: Any) -> None:
    loaded = plain(FAMILIES["gpt2"], words(kind="causal"))
    with pytest.raises(BadInput, match="the tokenizer makes no token of the prompt ''; give another"):
        super_weights(loaded, loaded.stacks[0], "", LIMITS)
    with pytest.raises(BadInput, match="fewer than two tokens count"):
        definitions(plain(WIDE, words()), Texts("made", ("w1",)), DefinitionOptions(special=False, nulls=()))


def test_definitions_on_weights_are_those_of_the_running_model(words: Any, tmp_path: Path) -> None:
    loaded = planted(words())
    loaded.model.save_pretrained(tmp_path)
    live = definitions(loaded, some_texts(4), DefinitionOptions(nulls=(), max_length=8))
    stored = weights_definitions(open_checkpoint(str(tmp_path)), ScanOptions())
    assert [one.definition for one in stored.found] == ["kovaleva", "puccetti", "luo-rank"]
    for one in stored.found:
        assert (one.dims, one.strength) == (live.of(one.definition).dims, live.of(one.definition).strength)
    assert stored.of("kovaleva").dims == (DIM,)


def test_definitions_on_weights_need_no_torch() -> None:
    code = (
        "import sys; from outlierlens.analyses.definitions import weights_definitions; "
        "from outlierlens.checkpoints import open_checkpoint; from outlierlens.detection.weights import ScanOptions; "
        "found = weights_definitions(open_checkpoint('mini-planted'), ScanOptions()); "
        "assert found.of('kovaleva').n == 8, found; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_names_every_definition_and_its_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text("utf-8")
    for one in DEFINITIONS:
        assert f"| `{one.name}` |" in page, one.name
    for name, value in LIMITS.items():
        assert re.search(rf"`{name}` {value:g}\b", page), name
