"""The experiment: budgets are met to the weight, values come back bit for bit, and a needle that matters is found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput
from outlierlens.experiments.pruning.experiment import Pruner, prune_experiment
from outlierlens.experiments.pruning.options import ExperimentOptions
from outlierlens.experiments.pruning.removal import Cells
from outlierlens.experiments.pruning.result import Removal
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import load
from planted import tiny, turning_texts
from row_files import rows_in, write_rows

TEXTS = turning_texts(8 + i % 6 for i in range(18))
FEW = {"n_random": 2, "n_scattered": 2, "n_matched": 2}


def needle(family: str, head: str, kind: str) -> LoadedModel:
    """A tiny model whose position 6 is as large in every layer as nothing else, and is what the head reads."""
    loaded = tiny(family, head, kind)
    with torch.no_grad():
        for params in (*loaded.stacks[0].scale, *loaded.stacks[0].bias):
            for param in params:
                live_parameters(loaded.model)[param.name].moveaxis(param.axis, 0)[6] += 12.0
    return loaded


@pytest.fixture(
    scope="module", params=[("bert", "MaskedLM", "masked"), ("llama", "CausalLM", "causal")], ids=lambda p: p[0]
)
def planted(request: pytest.FixtureRequest) -> LoadedModel:
    return needle(*request.param)


def test_every_condition_prunes_the_same_number_and_puts_it_back(planted: LoadedModel) -> None:
    before = {name: value.clone() for name, value in planted.model.state_dict().items()}
    found = prune_experiment(planted, TEXTS, ExperimentOptions(dims=(6,), **FEW))
    per_layer = 2 if planted.name == "bert" else 24
    assert found.forced == found.budget == 3 * per_layer
    assert found.n_candidates == 16 * found.budget
    conditions = found.conditions()
    assert [family for family, _ in conditions] == ["intact", "magnitude", "chosen"] + [
        kind for kind in ("random position", "scattered", "matched") for _ in range(2)
    ]
    assert [one.n_parameters for _, one in conditions] == [0] + [found.budget] * 8
    assert found.intact.change == 0
    assert found.swaps["magnitude"] == 0
    assert found.chosen.change == pytest.approx(
        np.average(np.subtract(found.chosen.score.per_text, found.intact.score.per_text), weights=weights_of(planted))
    )
    after = planted.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    for kind, one in conditions:
        positions = [set(one.by_layer.get(layer, one.dims)) for layer in range(3)]
        if kind == "scattered":
            assert len(set.union(*positions)) == 3  # another position in each layer
        if kind not in ("chosen", "intact", "magnitude"):
            assert 6 not in set.union(*positions)


def weights_of(loaded: LoadedModel) -> np.ndarray:
    from outlierlens.tasks.choice import make_task

    return make_task(loaded, TEXTS).weights


def test_a_budget_beyond_one_position_is_filled_with_the_smallest(planted: LoadedModel) -> None:
    shapes = {name: tuple(value.shape) for name, value in live_parameters(planted.model).items()}
    pruner = Pruner(planted.model, Cells.of(planted.stacks[0], shapes, Removal()))
    forced = pruner.forced({0: (6,), 2: (6, 1)})
    assert int(forced.sum()) == 3 * int(pruner.cells.total[0])
    taken = pruner.pruned({0: (6,), 2: (6, 1)}, int(forced.sum()) + 10)
    assert int(taken.sum()) == int(forced.sum()) + 10
    assert taken[forced].all()
    others = np.sort(pruner.scores[~forced])
    np.testing.assert_array_equal(np.sort(pruner.scores[taken & ~forced]), others[:10])
    with pruner.off(taken) as n_off:
        values = np.concatenate([pruner.live[p.name].detach().reshape(-1).numpy() for p in pruner.params])
        assert (values[taken] == 0).all()
        assert n_off == int(taken.sum())
        assert np.count_nonzero(values[~taken] == 0) == 0
    with pytest.raises(RuntimeError, match="inside"), pruner.off(taken):
        raise RuntimeError("inside")
    values = np.concatenate([pruner.live[p.name].detach().reshape(-1).numpy() for p in pruner.params])
    assert (np.abs(values) == pruner.scores).all()


def test_sparsity_is_a_share_of_the_candidates() -> None:
    loaded = needle("llama", "CausalLM", "causal")
    options = ExperimentOptions(dims=(6,), sparsity=0.25, n_random=0, n_scattered=0, n_matched=0)
    found = prune_experiment(loaded, TEXTS, options)
    assert (found.budget, found.forced, found.sparsity) == (288, 72, 0.25)
    assert (found.magnitude.n_parameters, found.chosen.n_parameters) == (288, 288)
    # All 72 forced weights are the largest there are, so magnitude took 72 others.
    assert found.swaps == {"magnitude": 0, "chosen": 72}
    assert found.controls == ()


def test_finished_conditions_are_not_measured_again(tmp_path: Path) -> None:
    loaded, rows = needle("bert", "MaskedLM", "masked"), tmp_path / "rows.jsonl"
    options = ExperimentOptions(dims=(6,), n_random=2, n_scattered=1, n_matched=0)
    first = prune_experiment(loaded, TEXTS, options, rows=rows)
    changed = rows_in(rows)
    assert len(changed) == 1 + 5  # identity; magnitude, chosen, three controls
    changed[2]["value"]["per_text"] = [9.0] * 18
    write_rows(rows, changed)
    again = prune_experiment(loaded, TEXTS, options, rows=rows)
    assert again.chosen.score.per_text == (9.0,) * 18
    assert again.magnitude == first.magnitude
    assert again.controls[0].conditions == first.controls[0].conditions
    with pytest.raises(BadInput, match="budget was 6, is 12"):
        prune_experiment(loaded, TEXTS, ExperimentOptions(dims=(6, 7), n_random=0), rows=rows)


def test_what_an_experiment_refuses() -> None:
    plain = tiny("bert", "MaskedLM")
    with pytest.raises(BadInput, match="the scan finds no outlier; name positions"):
        prune_experiment(plain, TEXTS)
    with pytest.raises(BadInput, match="dimension 16 does not exist"):
        prune_experiment(plain, TEXTS, ExperimentOptions(dims=(16,)))


def test_the_scan_names_what_the_budget_is_forced_onto() -> None:
    found = prune_experiment(
        needle("bert", "MaskedLM", "masked"), TEXTS, ExperimentOptions(n_random=0, n_scattered=0, n_matched=0)
    )
    assert found.dims == (6,)
    assert found.dims_source == "the scan of the weights, at 3 sigma"


def test_the_command(run: Any, tmp_path: Path) -> None:
    path, text, out, chart = (tmp_path / name for name in ("model", "text.txt", "effect.json", "effect.html"))
    loaded = needle("llama", "CausalLM", "causal")
    loaded.model.save_pretrained(path)  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(path)  # type: ignore[union-attr]
    text.write_text("\n".join(TEXTS.texts))
    few = ("--random", "2", "--scattered", "1", "--matched", "1")
    code, stdout, err = run(
        "prune-experiment", str(path), "--data", str(text), "--dims", "6", *few, "-o", str(out), "--chart", str(chart)
    )
    assert code == 0, err
    found = load(out)
    assert stdout.startswith(f"{found.verdict[0].upper()}{found.verdict[1:]}.")
    assert "72 of 1,152 weights of mlp.down_proj pruned (6.25%), 72 of them forced" in stdout
    assert "onto 6, all layers" in chart.read_text()
