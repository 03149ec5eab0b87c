"""Intervals of position probes that hold for another training set, too: redraws, and how they enter the interval."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from architectures import FAMILIES
from outlierlens.analyses.probe import ProbeOptions, probe
from outlierlens.analyses.probe_training import JudgedProbes, Plan, Probes, Split, scales_of
from outlierlens.statistics.bootstrap import poisson_times
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.read import ReadOptions
from planted import some_texts, wrap
from script_modules import script

MADE = Clipping("made", {"0": (3,), "1": (2, 3)}, "made up")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return script("benchmarks/probe.py")


def test_a_redraw_is_a_probe_trained_on_repeated_texts() -> None:
    torch.manual_seed(0)
    states, positions = torch.randn(2, 64, 6), torch.randint(0, 4, (64,))
    times = torch.tensor(poisson_times(64, 2, seed=5))
    probes = Probes(Plan((0, 1, 1), ((), (), (2,)), 6, 4, n_redraws=2), scales_of(states), learning_rate=0.05)
    plain = Probes(Plan((0, 1, 1), ((), (), (2,)), 6, 4), scales_of(states), learning_rate=0.05)
    for start in range(0, 64, 16):
        some = slice(start, start + 16)
        probes.step(states[:, some], positions[some], times[some])
        plain.step(states[:, some], positions[some])
    assert torch.equal(probes.weight, plain.weight)  # what is printed does not know of redraws
    for number, layer, without in ((0, 0, []), (1, 1, []), (2, 1, [2])):
        for redraw in range(2):
            read = states[layer] / probes.scale[layer]
            read[:, without] = 0
            probe = torch.nn.Linear(6, 4, bias=False)
            torch.nn.init.zeros_(probe.weight)
            adam = torch.optim.Adam(probe.parameters(), lr=0.05)
            for start in range(0, 64, 16):
                rows = torch.arange(start, start + 16).repeat_interleave(times[start : start + 16, redraw].long())
                adam.zero_grad()
                functional.cross_entropy(probe(read[rows]), positions[rows]).backward()
                adam.step()
            assert torch.allclose(probes.redrawn[number, :, redraw], probe.weight.detach().T, atol=1e-5)
    assert not probes.redrawn[2, 2].any()
    assert (probes.redrawn[0, :, 0] - probes.redrawn[0, :, 1]).abs().max() > 0.01


def test_a_step_that_no_text_was_drawn_for_adds_nothing() -> None:
    states, positions = torch.randn(1, 4, 3), torch.tensor([0, 1, 0, 1])
    probes = Probes(Plan((0,), ((),), 3, 2, n_redraws=2), scales_of(states), learning_rate=0.05)
    probes.step(states, positions, torch.tensor([[0.0, 1.0]] * 4))
    assert not probes.redrawn[0, :, 0].any()
    assert torch.allclose(probes.redrawn[0, :, 1], probes.weight[0])


def test_a_change_is_that_within_each_redraw() -> None:
    n, right = np.full(50, 4), np.tile([[2], [3]], 50)
    nothing = (np.zeros((2, 50)), np.zeros(0), np.zeros((2, 0)), np.zeros(2), np.zeros(0), np.zeros(0))
    apart = np.array([[0.3, 0.55], [0.5, 0.75], [0.7, 0.95]])  # accuracies that differ, and a change that does not
    judged = JudgedProbes(n, right, *nothing, redrawn=apart)
    change, score = judged.change(1, 0, seed=0), judged.accuracy(1, seed=0)
    assert (change.value, change.sd_training) == (0.25, pytest.approx(0, abs=1e-12))
    assert score.sd_training == pytest.approx(0.2)
    assert score.high == 1  # and not above
    alone = JudgedProbes(n, right, *nothing).change(1, 0, seed=0)
    assert (alone.low, alone.high) == pytest.approx((change.low, change.high))
    assert alone.sd_training is None
    assert alone.se_texts == change.se_texts == pytest.approx((alone.high - alone.low) / 2 / 1.959964)


def test_redraws_change_intervals_and_nothing_else(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = Split(some_texts(120, 1), some_texts(60, 2))

    def run(redraws: int, batch_size: int = 32) -> Any:
        options = ProbeOptions(read=ReadOptions(batch_size=batch_size), lr=0.03, train_batch=32, redraws=redraws)
        return probe(loaded, split, MADE, options)

    none, some, again, other = run(0), run(4), run(4), run(4, 7)
    for a, b, c, d in zip(none.accuracies, some.accuracies, again.accuracies, other.accuracies, strict=True):
        without, redrawn = a.accuracy, b.accuracy
        assert without.value == redrawn.value
        assert (without.sd_training, without.se_texts) == (None, redrawn.se_texts)
        assert redrawn == c.accuracy
        assert redrawn.low <= without.low <= without.value <= without.high <= redrawn.high
        assert redrawn.sd_training > 0
        assert d.accuracy.sd_training == pytest.approx(redrawn.sd_training, abs=1e-6)
        if a.vectors != "as they are":
            assert a.layer in ("0", "1")
            assert a.change.value == b.change.value
            assert b.change.low <= a.change.low <= a.change.high <= b.change.high
    assert len(none.accuracies) == 4 + 2 * 2
    assert [one.contribution for one in none.layers] == [one.contribution for one in some.layers]
    assert "alone: training was not drawn again" in " ".join(none.sentences())
    assert "(drawn again 4 times)" in " ".join(some.sentences())


def test_few_training_texts_settle_nothing(words: Any) -> None:
    loaded = wrap(FAMILIES["bert"], words(), double=False)
    split = Split(some_texts(9, 1), some_texts(30, 2))
    found = probe(loaded, split, MADE, ProbeOptions())
    assert not any(one.accuracy.settled or one.change.settled for one in found.accuracies)
    assert "fewer than 10 do not say how another training set would differ" in found.notes[-1]
    alone = probe(loaded, split, MADE, ProbeOptions(redraws=0))
    assert all(one.accuracy.settled for one in alone.accuracies)
    assert not any("another training set" in note for note in alone.notes)


def test_intervals_hold_for_training_sets_that_are_really_drawn_anew(benchmark: Any) -> None:
    """More trials and cases: benchmarks/probe.py."""
    case = benchmark.Case(60, 150, longest=6, width=8, batch=32)
    trials = 120
    found = benchmark.coverage(case, trials, (0, ProbeOptions().redraws))
    slack = 2 * np.sqrt(0.93 * 0.07 / trials)
    for what in (benchmark.CLIPPED, benchmark.RETRAINED):
        assert found[what, 7][0] >= 0.93 - slack
        assert found[what, 0][0] < 0.93 - slack  # over evaluated texts alone
    assert found[benchmark.ACCURACY, 7][0] >= 0.93 - slack
