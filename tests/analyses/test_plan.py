"""Plans: the search on values made by hand, its error rate, a planted neuron, and the model left as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from outlierlens.ablation.prefix import Prefixes
from outlierlens.analyses.plan import PlanCall, PlanOptions, PrecisionPlan, Reader, parse_share, plan
from outlierlens.analyses.plan_exports import TOOLS, own_scheme
from outlierlens.analyses.plan_search import Entry, Group, PlanSearch, dimension, merged, n_kept
from outlierlens.analyses.quantize_places import find_places
from outlierlens.analyses.quantize_rounding import Keeping, KeptLinear, rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import load
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny, turning_texts

TEXTS = turning_texts(6 + i % 5 for i in range(64))
NEURON = 7
A, B, C = ("a", "inputs"), ("b", "inputs"), ("c", "weights")


def searched(
    gains: dict[Entry, float],
    seed: int = 0,
    noise: float = 0.1,
    *,
    exact: bool = False,
    room: int = 30,
    prices: dict[str, int] | None = None,
    floor: float = 0.0,
) -> PlanSearch:
    """A search over linears of ten weights, each of which gives back `gains` with noise of its own in each text."""

    def score(kept: frozenset[Entry], more: Entry | None, group: Group, begin: int, end: int) -> np.ndarray:
        total = np.full(16, 5.0)
        for name, what in sorted(kept if more is None else kept | {more}):
            number = sorted(gains).index((name, what))
            random = np.random.default_rng([seed, number, group == "confirming"])
            total -= gains[name, what] + noise * random.standard_normal(16)
        return total[begin:end]

    ones = np.ones(16)
    prices = prices or {}

    def price(kept: frozenset[Entry]) -> int:
        return sum(prices.get(name, 10) for name in {name for name, _ in kept})

    found = PlanSearch(score, {"nominating": ones, "confirming": ones}, price, room, floor, exact=exact)
    found.run(list(gains))
    return found


@pytest.mark.parametrize("exact", [False, True])
def test_the_search_takes_the_best_first_and_ends_where_nothing_is_given_back(exact: bool) -> None:
    found = searched({C: 0.0, A: 1.0, B: 2.0}, exact=exact)
    assert [step.entry for step in found.steps] == [B, A]
    assert [step.n_weights for step in found.steps] == [10, 20]
    assert found.steps[0].confirmed.low < 2.0 < found.steps[0].confirmed.high
    assert found.refused is None or found.refused.entry == C


def test_the_budget_ends_the_search() -> None:
    found = searched({C: 1.0, A: 2.0, B: 3.0}, room=20)
    assert [step.entry for step in found.steps] == [B, A]


def test_what_gives_back_less_than_the_floor_is_not_named() -> None:
    assert [step.entry for step in searched({C: 0.3, A: 2.0, B: 3.0}, noise=0.01, floor=0.5).steps] == [B, A]
    assert [step.entry for step in searched({C: 0.3, A: 2.0, B: 3.0}, noise=0.01).steps] == [B, A, C]


def test_nearly_the_same_gain_at_a_fraction_of_the_price_comes_first_and_half_of_it_does_not() -> None:
    assert [step.entry for step in searched({A: 2.0, B: 1.8}, prices={"b": 1}).steps] == [B, A]
    assert [step.entry for step in searched({A: 2.0, B: 1.2}, prices={"b": 1}).steps] == [A, B]


def test_a_cause_with_a_name_comes_before_a_cheaper_group_of_columns() -> None:
    group, dim = ("every linear", "1 column"), ("3", "dimension")
    found = searched({group: 2.0, dim: 1.9}, prices={"every linear": 9})  # type: ignore[arg-type]
    assert found.steps[0].entry == dim


def test_weights_and_inputs_of_one_linear_are_paid_once() -> None:
    both = {("a", "inputs"): 2.0, ("a", "weights"): 1.0, B: 0.5}
    found = searched(both, room=10)  # type: ignore[arg-type]
    assert [step.entry for step in found.steps] == [("a", "inputs"), ("a", "weights")]
    assert found.steps[-1].n_weights == 10


def test_where_nothing_stands_out_few_searches_name_anything() -> None:
    nothing: dict[Entry, float] = {(f"l{i}", "inputs"): 0.0 for i in range(20)}
    named = sum(bool(searched(nothing, seed).steps) for seed in range(200))
    assert named <= 12  # of 200 at 2.5 % one-sided 5 are expected; 13 and more would have p < 0.003


@pytest.fixture(scope="module")
def planted() -> LoadedModel:
    """A bare BERT in whose block 1 one neuron of the MLP is 3,000 for every token, and read by nobody."""
    loaded = tiny("bert")
    with torch.no_grad():
        loaded.model.encoder.layer[1].intermediate.dense.bias[NEURON] = 3000.0
        loaded.model.encoder.layer[1].output.dense.weight[:, NEURON] = 0.0
        for layer in loaded.model.encoder.layer:
            layer.output.dense.weight.mul_(20.0)
    return loaded


def options(keep: float) -> PlanOptions:
    task = TaskOptions(max_length=16, batch_size=8)
    return PlanOptions(scheme="none/int8-tensor", keep=keep, n_candidates=6, n_random=5, task=task)


@pytest.fixture(scope="module")
def found(planted: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> PrecisionPlan:
    before = {key: value.clone() for key, value in planted.model.state_dict().items()}
    rows = tmp_path_factory.mktemp("plan") / "rows.jsonl"
    found = plan(planted, TEXTS, options(0.09), rows=rows)
    assert all(torch.equal(value, before[key]) for key, value in planted.model.state_dict().items())
    written = rows.read_bytes()
    again = plan(planted, TEXTS, options(0.09), rows=rows)
    assert rows.read_bytes() == written  # nothing was measured again
    assert (again.steps, again.evaluations, again.plan) == (found.steps, found.evaluations, found.plan)
    return found


def test_a_planted_neuron_is_named_with_its_reason(found: PrecisionPlan) -> None:
    assert found.kept == (KeptLinear(path="encoder.layer.1.output.dense", columns=(NEURON,)),)
    assert [(step.path, step.what) for step in found.steps] == [(f"1:{NEURON}", "neuron")]
    assert found.steps[0].reason.startswith(f"neuron {NEURON} of output.dense in block 1: ")
    assert found.share_regained.low > 0.5
    assert (found.n_nominating, found.n_confirming, found.n_judging) == (16, 16, 32)
    assert found.plan.n_weights == 16
    assert found.says == "keep"


def test_a_pass_starts_behind_the_first_block_that_an_entry_touches(
    planted: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, passes = [], []
    linear = planted.model.encoder.layer[0].intermediate.dense
    for _ in range(2):
        calls: list[object] = []
        hook = linear.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        found.append(plan(planted, TEXTS, replace(options(0.09), n_candidates=16)))
        hook.remove()
        passes.append(len(calls))
        monkeypatch.setattr(Prefixes, "behind", lambda *_: None)
    assert passes[0] < passes[1]
    gains = [np.array([one.gain.value for one in each.sensitivities if one.n_texts]) for each in found]
    assert np.allclose(*gains, atol=1e-5)
    assert found[0].kept == found[1].kept


def test_rounding_is_that_of_quant(planted: LoadedModel) -> None:
    places, recipe = find_places(planted), parse("int8-tensor/int8-tensor")
    task = make_task(planted, TEXTS.first(4), TaskOptions(max_length=16, name="sentence change"))
    with rounded(planted, recipe):
        wanted, _ = task.per_text()
    with rounded(planted, recipe, Keeping(dims=(3,))):
        without, _ = task.per_text()
    with rounded(planted, recipe, places=places) as model:
        assert np.array_equal(task.per_text()[0], wanted)
        model.keep({place.name: KeptLinear(path=place.name, weights=True, inputs=True) for place in places})
        assert np.allclose(task.per_text()[0], 0.0, atol=1e-6)
        model.keep(merged(dimension(places, 3)))
        assert np.array_equal(task.per_text()[0], without)
        model.keep({})
        assert np.array_equal(task.per_text()[0], wanted)


def test_what_stays_is_counted_once() -> None:
    kept = merged(
        [
            KeptLinear(path="a", columns=(0, 1)),
            KeptLinear(path="a", columns=(1,), rows=(2,)),
            KeptLinear(path="b", inputs=True),
        ]
    )
    assert kept["a"] == KeptLinear(path="a", columns=(0, 1), rows=(2,))
    assert n_kept(kept, {"a": (4, 5), "b": (2, 3)}) == 2 * 4 + 5 - 2 + 6


def test_what_cannot_be_planned_is_refused(planted: LoadedModel) -> None:
    assert (parse_share("4%"), parse_share("0.04")) == (0.04, 0.04)
    with pytest.raises(BadInput, match=r"write a share, such as 4% or 0\.04"):
        parse_share("few")
    with pytest.raises(BadInput, match=r"hold no entry; give --keep 0\.3% or more"):
        plan(planted, TEXTS, options(0.0001))


def test_tools_of_the_command_are_those_that_have_a_writer() -> None:
    assert get_args(Reader) == tuple(name for name, row in TOOLS.items() if row.own)


def test_a_tool_and_its_file_go_together() -> None:
    with pytest.raises(BadInput, match="name the file to write, such as --export torchao:FILE"):
        PlanCall(export=("torchao", ""))
    with pytest.raises(BadInput, match="tools keep whole linears, not single columns; leave --grain out"):
        PlanCall(export=("torchao", "plan.py"), grain="column")
    with pytest.raises(BadInput, match="columns stay in 16 bits"):
        PlanOptions(bits=8, grain="column")
    assert (PlanOptions().unit, PlanOptions(bits=8).unit) == ("column", "linear")


@pytest.mark.parametrize("tool", get_args(Reader))
def test_a_tool_s_own_scheme_is_one_that_it_knows(tool: Any, planted: LoadedModel) -> None:
    assert all(TOOLS[tool].called(parse(name), parse(name)) is not None for name in TOOLS[tool].own)
    scheme = own_scheme(tool, planted)  # of 16 and 32 inputs
    assert scheme == TOOLS[tool].own[-1]


def test_the_largest_group_that_divides_every_linear_is_taken() -> None:
    class Place:
        def __init__(self, width: int):
            self.width = width

        def weight(self) -> torch.Tensor:
            return torch.zeros(4, self.width)

    def own(*widths: int) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("outlierlens.analyses.plan_exports.find_places", lambda *_: [Place(w) for w in widths])
            return own_scheme("auto-round", None)  # type: ignore[arg-type]

    assert own(576, 1536) == "int4-group64/none"
    assert own(256, 1024) == "int4-group128/none"
    assert own(96, 32) == "int4-group32/none"


SHORT = ("--max-length", "16", "--random", "0", "--candidates", "1", "--keep", "20%")


@pytest.fixture
def folder(planted: LoadedModel, tmp_path: Path, words: Any) -> str:
    place = tmp_path / "model"
    planted.model.save_pretrained(place)  # type: ignore[operator]
    words(kind="masked").save_pretrained(place)
    (tmp_path / "texts.txt").write_text("\n".join(f"one text of many {n}" for n in range(8)))
    return str(place)


def test_what_a_tool_cannot_be_told_is_refused_before_the_work(
    folder: str, run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("outlierlens.analyses.plan.plan", measured)
    data, to = tmp_path / "texts.txt", tmp_path / "types.txt"
    words = ("plan", folder, "--data", str(data), "--export", f"llama.cpp:{to}")
    code, _, err = run(*words, "--scheme", "int8-tensor/int8-tensor")
    assert code == 1
    assert "llama-quantize has no scheme int8-tensor/int8-tensor" in err


def test_an_export_that_fails_leaves_what_was_measured(folder: str, run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outlierlens.analyses.plan.write_text", full)
    out = tmp_path / "plan.json"
    words = ["plan", folder, "--data", str(tmp_path / "texts.txt"), *SHORT]
    code, stdout, err = run(*words, "--export", f"bitsandbytes:{tmp_path / 'skip.json'}", "-o", str(out))
    assert (code, "No space left" in err) == (1, True)
    assert "Loss on texts that judge" in stdout
    assert load(out).n_linears > 0


LOUD = 3


@pytest.fixture(scope="module")
def loud() -> LoadedModel:
    """A Qwen2 in which dimension 3 of the stream is large wherever it is read, and read by nobody."""
    loaded = tiny("qwen2", kind="causal")
    model = loaded.model
    with torch.no_grad():
        model.embed_tokens.weight[:, LOUD] = 1.0
        model.norm.weight[LOUD] = 0.0
        for layer in model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight[LOUD] = 1000.0
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.mlp.gate_proj):
                linear.weight[:, LOUD] = 0.0
            layer.mlp.up_proj.weight[:, LOUD] = 0.0
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight[LOUD] = 0.0
                linear.weight *= 20.0
    return loaded


def test_a_planted_dimension_is_named_and_nothing_else(loud: LoadedModel) -> None:
    found = plan(loud, TEXTS, replace(options(0.2), n_candidates=16))
    assert [(step.path, step.what) for step in found.steps] == [(str(LOUD), "dimension")]
