"""`watch`: numbers by hand and against brute force, a training that does not notice it, and rows that survive."""

import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import FAMILIES, Family, build
from outlierlens.data.texts import Texts
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import from_objects
from outlierlens.results.row_store import RowStore, read_rows
from outlierlens.training.watch import WatchOptions, watch
from outlierlens.training.watch_alarm import Crossings
from outlierlens.training.watch_probe import _describe, untouched
from outlierlens.training.watch_rows import StreamRow, read_activity, read_watch
from row_files import append_line, change_rows, rows_in, write_rows

IDS = torch.arange(5, 29).reshape(3, 8)
TEXT_FAMILIES = [family for family in FAMILIES.values() if family.inputs in ("text", "cross")]


def quiet(**settings: Any) -> WatchOptions:
    return WatchOptions(**{"every": 1, "notice": lambda line: None, **settings})


def stored(path: Path) -> dict[str, Any]:
    """Every row, vectors still packed: equal only when every bit is."""
    return read_rows(path)[1]


class Loop:
    """A plain training of a tiny BERT with dropout; deterministic."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        self.model = build(FAMILIES["bert"], "MaskedLM", seed).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def run(self, steps: range, watcher: Any = None, *, autocast: bool = False) -> None:
        for step in steps:
            ids = torch.randint(5, 40, (4, 8))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = self.model(input_ids=ids, labels=ids).loss
                loss.backward()
                self.optimizer.step()
                if watcher is not None:
                    watcher.step(step, loss=loss)
                self.optimizer.zero_grad()


def test_activations_by_hand() -> None:
    # Second moments of the dims over the valid tokens: 1, 1, 4; mean 2, mean of squares 6. All |h| are 1, 1, 2.
    states = torch.tensor([[[1.0, -1, 2], [-1, 1, -2]], [[1, 1, 2], [99, 99, 99]]])
    valid = torch.tensor([[True, True], [True, False]])
    over_dims, entries, inf_norm, largest = _describe(states, valid).tolist()
    assert over_dims == pytest.approx(6 / 4)
    # Text 0: mean 0, m2 = 2, m4 = (1+1+16)/3 = 6 -> 1.5. Text 1: mean 4/3, m2 = 2/9, m4 = 2/27 -> 1.5.
    assert entries == pytest.approx((6 / 4 + (18 / 243) / (4 / 81)) / 2)
    assert (inf_norm, largest) == (2.0, 2.0)
    # The second text three times as large: 2 and 6, on average 4.
    assert _describe(states * torch.tensor([1.0, 3.0])[:, None, None], valid)[2:].tolist() == [4.0, 6.0]


def test_the_kurtoses_of_a_normal_and_of_one_dimension() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn((4, 500, 64), generator=generator)
    over_dims, entries, *_ = _describe(normal, torch.ones((4, 500), dtype=torch.bool)).tolist()
    assert over_dims == pytest.approx(1, abs=0.01)
    assert entries == pytest.approx(3, abs=0.05)
    single = torch.zeros((1, 500, 64))
    single[..., 7] = 5.0
    assert _describe(single, torch.ones((1, 500), dtype=torch.bool))[0].item() == pytest.approx(64)


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES.values() if f.inputs != "image"], ids=lambda family: family.name
)
def test_every_family_against_the_scan_and_hooks_of_our_own(family: Family, tmp_path: Path) -> None:
    model = build(family).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reads = family in TEXT_FAMILIES
    watch(model, tmp_path / "rows.jsonl", quiet(probe=IDS if reads else None)).close()

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    loaded = from_objects(copy.deepcopy(model).eval())
    for bound in loaded.stacks:
        path = read_watch(tmp_path / "rows.jsonl", bound.name)
        oracle = scan_stream(loaded, bound.name)  # what `scan` says of the same weights
        assert path.site == oracle.site
        measured = path.measured(0)
        np.testing.assert_allclose(measured.z_scale, oracle.z_scale, atol=2e-5)
        if oracle.z_bias.size:
            assert measured.z_bias is not None
            np.testing.assert_allclose(measured.z_bias, oracle.z_bias, atol=2e-5)
    if not reads or len(loaded.stacks) > 1:
        return
    largest: list[torch.Tensor] = []  # [text] of each layer
    for block in dict.fromkeys(loaded.stacks[0].blocks):

        def keep(module: Any, args: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            states = states.transpose(0, 1) if loaded.stacks[0].stack.token_first else states
            assert states.shape[0] == len(IDS)
            largest.append(states.detach().abs().amax((1, 2)))

        loaded.model.get_submodule(block).register_forward_hook(keep)
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    loaded.model(**({"decoder_input_ids": IDS} if loaded.config.get("is_encoder_decoder") else {}), **inputs)
    seen = read_activity(tmp_path / "rows.jsonl")
    np.testing.assert_allclose(seen.inf_norm[0], torch.stack(largest).mean(1), rtol=1e-4)
    np.testing.assert_allclose(seen.largest_state[0], torch.stack(largest).amax(1), rtol=1e-4)
    assert (seen.largest_logit[0] > 0).all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_logits_by_hand_and_of_padding_none(
    attention: str, tmp_path: Path, words: Callable[..., Any]
) -> None:
    model = build(FAMILIES["bert"], "MaskedLM")
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for layer, block in enumerate(model.bert.encoder.layer):
            own = block.attention.self
            for linear, value in ((own.query, layer + 1.0), (own.key, -0.5)):
                linear.weight.zero_()
                linear.bias.fill_(value)
            own.query.weight[:, 0] = 1.0 if layer == 0 else 0.0

    def mark_padding(module: Any, args: Any, states: torch.Tensor) -> torch.Tensor:
        states[..., 0] = 0.0
        states[1, 3:, 0] = 100.0  # [CLS] w4 [SEP]: what follows is padding, and no query of the text
        return states

    model.bert.embeddings.register_forward_hook(mark_padding)
    options = quiet(probe=Texts("made", ("w1 w2 w3 w4", "w4")))
    watch(model, tmp_path / "w.jsonl", options, tokenizer=words()).close()
    size = 8  # of a head: its sum over dimensions of (layer + 1) * -0.5, over the root of its size
    by_hand = [(layer + 1) * 0.5 * size / math.sqrt(size) for layer in range(3)]
    np.testing.assert_allclose(read_activity(tmp_path / "w.jsonl").largest_logit[0], by_hand, rtol=1e-5)


def test_gradients_by_brute_force_and_updates_of_sgd(tmp_path: Path) -> None:
    loop = Loop()
    rate = 0.25
    norms = [layer.output.LayerNorm for layer in loop.model.bert.encoder.layer]
    expected = []
    with watch(loop.model, tmp_path / "w.jsonl", quiet(every=3, probe=IDS)) as watcher:
        for step in range(1, 8):
            loop.model(input_ids=IDS, labels=IDS).loss.backward()
            if step % 3 == 0:
                squares = [(n.weight.grad.square(), n.bias.grad.square()) for n in norms]
                expected.append([torch.stack(kind).sum(0).sqrt().numpy() for kind in zip(*squares, strict=True)])
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter.sub_(parameter.grad, alpha=rate)
            metrics = watcher.step(loss=torch.tensor(step / 2), learning_rate=0.5)
            assert bool(metrics) == (step % 3 == 0)
            loop.optimizer.zero_grad()
    seen = read_activity(tmp_path / "w.jsonl")
    assert seen.steps.tolist() == [0, 3, 6]
    assert np.isnan(seen.gradient_scale[0]).all()  # nothing was learnt from yet
    np.testing.assert_allclose(seen.gradient_scale[1:], [scale for scale, _ in expected], rtol=1e-6)
    np.testing.assert_allclose(seen.gradient_bias[1:], [bias for _, bias in expected], rtol=1e-6)
    # Of the recorded step alone, not of the three since the last record.
    assert np.isnan(seen.update_scale[0]).all()
    for kind, updates in enumerate((seen.update_scale, seen.update_bias)):
        np.testing.assert_allclose(updates[1:], [rate * one[kind] for one in expected], rtol=1e-3)
    np.testing.assert_allclose(seen.gradient_rms()[2], np.sqrt(np.mean(np.square(expected[1][0]))), rtol=1e-6)
    np.testing.assert_array_equal(seen.loss, [math.nan, 1.5, 3.0])
    np.testing.assert_array_equal(seen.learning_rate, [math.nan, 0.5, 0.5])
    assert metrics == {}


def test_an_update_that_turns_a_row_at_the_same_norm_is_one(tmp_path: Path) -> None:
    model = build(FAMILIES["llama"])  # no norm ends its blocks: the weights that write last are followed
    with watch(model, tmp_path / "w.jsonl", quiet(probe=IDS)) as watcher:
        square = 0.0
        with torch.no_grad():
            for block in model.layers:
                square += block.mlp.down_proj.weight[0].square().sum().item()
                block.mlp.down_proj.weight[0] *= -1
        watcher.step()
    path, update = read_watch(tmp_path / "w.jsonl"), read_activity(tmp_path / "w.jsonl").update_scale[-1]
    np.testing.assert_allclose(path.scale[1], path.scale[0], rtol=1e-6)
    np.testing.assert_allclose(update, [2 * math.sqrt(square), *[0] * 15], rtol=1e-5)


def test_a_model_without_attention_is_said_to_have_no_logits_once(tmp_path: Path) -> None:
    import transformers

    config = transformers.MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2)
    lines: list[str] = []
    with watch(transformers.MambaModel(config), tmp_path / "w.jsonl", quiet(probe=IDS, notice=lines.append)) as watcher:
        metrics = watcher.step()
    assert [line for line in lines if "logits" in line] == [
        "attention logits are not recorded: no softmax of torch's own attends in this model"
    ]
    assert read_activity(tmp_path / "w.jsonl").largest_logit.shape == (2, 0)
    assert "outliers/layer_1/largest_state" in metrics
    assert not [name for name in metrics if "logit" in name]


def test_rows_without_what_this_version_records_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    watch(build(FAMILIES["bert"]), path, quiet(probe=IDS)).close()
    written = rows_in(path)
    stream = written[1]["value"]["streams"]["model"]
    for name in ("update_scale", "update_bias", "largest_state", "largest_logit"):
        del stream[name]
    write_rows(path, written)
    seen = read_activity(path)
    assert (seen.inf_norm.shape, seen.largest_state.shape, seen.update_scale.shape) == ((1, 3), (1, 0), (1, 0))
    del stream["scale"]
    write_rows(path, written)
    with pytest.raises(BadFile, match="malformed"):
        read_activity(path)


def test_what_a_logger_gets(tmp_path: Path) -> None:
    loop = Loop()
    with torch.no_grad():
        for layer in loop.model.bert.encoder.layer[:2]:
            layer.output.LayerNorm.weight[11] = 4.0
    lines: list[str] = []
    options = quiet(probe=IDS, notice=lines.append, dims=(2, 11))
    with watch(loop.model, tmp_path / "w.jsonl", options) as watcher:
        loop.model(input_ids=IDS, labels=IDS).loss.backward()
        metrics = watcher.step()
    path, seen = read_watch(tmp_path / "w.jsonl"), read_activity(tmp_path / "w.jsonl")
    z = path.measured(-1).z_scale
    assert metrics["outliers/max_layers_scale"] == 2
    assert metrics["outliers/dim_11/layers_scale"] == 2
    assert metrics["outliers/dim_11/z_scale"] == pytest.approx(z[:, 11].mean())
    assert metrics["outliers/dim_2/z_scale"] == pytest.approx(z[:, 2].mean())
    assert metrics["outliers/dim_11/gradient_bias"] == pytest.approx(seen.gradient_bias[-1, 11])
    assert metrics["outliers/kurtosis_dims"] == pytest.approx(seen.kurtosis_dims[-1].max())
    assert metrics["outliers/inf_norm"] == pytest.approx(seen.inf_norm[-1].max())
    assert metrics["outliers/largest_state"] == pytest.approx(seen.largest_state[-1].max())
    for layer in range(3):
        for name, values in (("largest_state", seen.largest_state), ("largest_logit", seen.largest_logit)):
            assert metrics[f"outliers/layer_{layer}/{name}"] == pytest.approx(values[-1, layer])
    # No optimizer step was made.
    assert (metrics["outliers/dim_11/update_scale"], metrics["outliers/update_rms_scale"]) == (0.0, 0.0)
    assert len(lines) == 1
    assert lines[0].startswith("step 0: dimension 11 is past 3 sigma in the scale of 2 of 3 layers (mean z +2.")


def test_crossings_say_who_left_and_who_came_back() -> None:
    crossings = Crossings(Rule(n_sigma=3.0, min_layer_fraction=0.5))
    flat, three = np.zeros((4, 6)), np.zeros((4, 6))
    three[:2, 4] = 3.0  # exactly at the threshold, in exactly half of the layers
    one = np.zeros((4, 6))
    one[0, 4] = 9.0
    assert crossings.see(0, flat, flat) == []
    assert crossings.see(10, one, flat) == []
    assert crossings.see(1200, three, flat) == [
        "step 1,200: dimension 4 is past 3 sigma in the scale of 2 of 4 layers (mean z +1.5)"
    ]
    assert crossings.see(1300, three, flat) == []
    assert crossings.see(1400, three, -three) == [
        "step 1,400: dimension 4 is past 3 sigma in the bias of 2 of 4 layers (mean z -1.5); its scale was past already"
    ]
    assert crossings.see(1500, one, -three) == [
        "step 1,500: dimension 4 is back within 3 sigma in the scale of 1 of 4 layers (mean z +2.2); its bias stays past"
    ]
    assert crossings.dims == [4]
    late = np.zeros((4, 6))
    late[:, 5] = 3.5
    crossings.see(1600, late, flat)
    assert (crossings.dims, crossings.foremost(2), crossings.foremost(1)) == ([4, 5], [5, 4], [5])
    both = Crossings(Rule(n_sigma=3.0, min_layer_fraction=0.5), "encoder: ")
    assert both.see(5, three, three) == [
        "step 5: encoder: dimension 4 is past 3 sigma in the scale of 2 of 4 layers (mean z +1.5) and the bias of 2 of 4 "
        "layers (mean z +1.5)"
    ]
    many = Crossings(Rule(n_sigma=3.0, min_layer_fraction=0.5))
    assert many.see(7, np.full((2, 9), 4.0), None)[-1] == "step 7: and 4 more dimensions"
    assert many.dims == list(range(9))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_watched_training_is_the_same_training(tmp_path: Path, autocast: bool) -> None:
    def trained(*, watched: bool) -> nn.Module:
        loop = Loop()
        loop.model.bert.encoder.layer[1].eval()  # a part that its owner keeps in evaluation mode
        if not watched:
            loop.run(range(1, 7), autocast=autocast)
            return loop.model
        with watch(loop.model, tmp_path / "w.jsonl", quiet(every=2, probe=IDS)) as watcher:
            loop.run(range(1, 7), watcher, autocast=autocast)
        return loop.model

    plain, watched = trained(watched=False), trained(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert [m.training for m in plain.modules()] == [m.training for m in watched.modules()]
    torch.manual_seed(5)
    assert not torch.equal(plain(IDS).logits, plain(IDS).logits)  # dropout draws: a random state out of step would show


def test_a_step_within_autocast_leaves_no_cast_weights_behind(tmp_path: Path) -> None:
    gradients = []
    for watched in (False, True):
        loop = Loop()
        options = quiet(probe=IDS)
        with (
            watch(loop.model, tmp_path / f"{watched}.jsonl", options) as watcher,
            torch.autocast("cpu", torch.bfloat16),
        ):
            if watched:
                watcher.step()
            torch.manual_seed(3)
            loop.model(input_ids=IDS, labels=IDS).loss.backward()
        gradients.append([p.grad for p in loop.model.parameters()])
    assert all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(*gradients, strict=True))


class Noisy(nn.Module):
    """Draws from every random source, and notes the mode it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.5)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.inner(x) + random.random() + np.random.rand() + torch.rand(())


@pytest.mark.parametrize("fails", [False, True])
def test_untouched_gives_back_modes_and_random_states(fails: bool) -> None:
    model = Noisy()
    model.inner.eval()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = [random.random(), np.random.rand(), torch.rand(()).item()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError) if fails else untouched(Noisy()), untouched(model):
        model(torch.ones(3))
        if fails:
            1 / 0  # noqa: B018
    assert model.modes == [(False, False)]
    assert [random.random(), np.random.rand(), torch.rand(()).item()] == expected
    assert model.training
    assert not model.inner.training
    assert torch.is_grad_enabled()


def test_compiled_and_wrapped_models_are_watched(tmp_path: Path) -> None:
    loop = Loop()
    watch(loop.model, tmp_path / "plain.jsonl", quiet(probe=IDS)).close()
    watch(nn.DataParallel(loop.model), tmp_path / "parallel.jsonl", quiet(probe=IDS)).close()
    watch(torch.compile(loop.model, backend="eager"), tmp_path / "wrapped.jsonl", quiet(probe=IDS)).close()
    loop.model.compile(backend="eager")
    call = loop.model._compiled_call_impl
    watch(loop.model, tmp_path / "inside.jsonl", quiet(probe=IDS)).close()
    assert loop.model._compiled_call_impl is call
    rows = [stored(tmp_path / f"{name}.jsonl") for name in ("plain", "parallel", "wrapped", "inside")]
    assert rows[0] == rows[1] == rows[2] == rows[3]


class FullyShardedDataParallel(nn.Module):
    """Named like the wrapper that shards parameters."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner


def test_sharded_parameters_are_refused(tmp_path: Path) -> None:
    model = build(FAMILIES["bert"])
    with pytest.raises(BadInput, match=r"sharded over processes .*train with DDP or ZeRO-2"):
        watch(FullyShardedDataParallel(model), tmp_path / "w.jsonl", quiet())
    model.encoder.layer[0].output.LayerNorm.weight.ds_id = 3  # what ZeRO-3 hangs on a parameter
    with pytest.raises(BadInput, match=r"encoder\.layer\.0\.output\.LayerNorm\.weight"):
        watch(model, tmp_path / "w.jsonl", quiet())
    assert not (tmp_path / "w.jsonl").exists()


@pytest.mark.parametrize("killed_at", [4, 5, 7])
def test_a_resumed_training_has_the_rows_of_one_that_was_not_stopped(tmp_path: Path, killed_at: int) -> None:
    whole = Loop()
    with watch(whole.model, tmp_path / "whole.jsonl", quiet(every=2, probe=IDS)) as watcher:
        whole.run(range(1, 11), watcher)

    loop, path = Loop(), tmp_path / "stopped.jsonl"
    watcher = watch(loop.model, path, quiet(every=2, probe=IDS))
    loop.run(range(1, 5), watcher)
    saved = copy.deepcopy((loop.model.state_dict(), loop.optimizer.state_dict(), torch.get_rng_state()))
    loop.run(range(5, killed_at + 1), watcher)
    watcher.close()
    with path.open("a") as file:
        file.write('{"key":"step 8","value":{"loss":')  # killed while it wrote
    resumed = Loop(seed=9)
    resumed.model.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    torch.set_rng_state(saved[2])
    lines: list[str] = []
    with watch(resumed.model, path, quiet(every=2, probe=IDS, notice=lines.append), start=4) as watcher:
        resumed.run(range(5, 11), watcher)
    assert stored(path) == stored(tmp_path / "whole.jsonl")
    keys = [json.loads(line).get("key") for line in path.read_text().splitlines()]
    assert keys == [None, *(f"step {step}" for step in range(0, 11, 2))]
    aside = tmp_path / "stopped.replayed-1.jsonl"
    assert aside.exists() == (killed_at == 7)
    if killed_at == 7:
        assert list(stored(aside)) == ["step 6"]
        assert lines[0].endswith(
            "rows of steps after 4, which this training replays; moved to stopped.replayed-1.jsonl"
        )


def test_what_left_before_a_stop_is_not_announced_again(tmp_path: Path) -> None:
    loop = Loop()
    lines: list[str] = []
    with watch(loop.model, tmp_path / "w.jsonl", quiet(notice=lines.append, probe=IDS)) as watcher:
        with torch.no_grad():
            for layer in loop.model.bert.encoder.layer:
                layer.output.LayerNorm.weight[3] = 5.0
        watcher.step()
    assert [line.split(" is ")[0] for line in lines] == ["step 1: dimension 3"]
    with watch(loop.model, tmp_path / "w.jsonl", quiet(notice=lines.append, probe=IDS), start=1) as watcher:
        metrics = watcher.step()
    assert len(lines) == 1
    assert "outliers/dim_3/z_scale" in metrics


def test_rows_of_another_training_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    first, second = Loop(), Loop(seed=1)
    with watch(first.model, path, quiet(probe=IDS)) as watcher:
        first.run(range(1, 4), watcher)
    before = stored(path)
    with pytest.raises(BadInput, match=r"weights at step 2 are not those of this model.*name another file"):
        watch(second.model, path, quiet(probe=IDS), start=2)
    with pytest.raises(BadInput, match=r"probe was .* is "):
        watch(first.model, path, quiet(probe=IDS + 1))
    assert stored(path) == before
    assert [file for file in tmp_path.iterdir() if file.suffix != ".lock"] == [path]
    # From step 0 a training begins anew: nothing of the earlier one stays.
    watch(second.model, path, quiet(probe=IDS)).close()
    assert list(stored(path)) == ["step 0"]
    assert stored(path)["step 0"] != before["step 0"]
    assert stored(tmp_path / "w.replayed-1.jsonl") == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_rounded_checkpoint_and_a_clamp_after_the_row_are_the_same_training(tmp_path: Path, dtype: Any) -> None:
    loop = Loop()
    with watch(loop.model, tmp_path / "w.jsonl", quiet(probe=IDS)) as watcher:
        loop.run(range(1, 3), watcher)
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.copy_(parameter.to(dtype))
        for layer in loop.model.bert.encoder.layer:
            layer.output.LayerNorm.weight[:3] = 0.5
    with watch(loop.model, tmp_path / "w.jsonl", quiet(probe=IDS), start=2) as watcher:
        watcher.step()
    assert list(stored(tmp_path / "w.jsonl")) == ["step 0", "step 1", "step 2", "step 3"]


def test_other_processes_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    loop = Loop()
    with watch(loop.model, tmp_path / "w.jsonl", quiet(probe=IDS)) as watcher:
        loop.run(range(1, 3), watcher)
        watcher.log(2, "loss", 1.0)
        assert watcher.last == 2
        assert not watcher.recording
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_training_is_said_and_recorded(tmp_path: Path) -> None:
    loop = Loop()
    lines: list[str] = []
    with watch(loop.model, tmp_path / "w.jsonl", quiet(probe=IDS, notice=lines.append)) as watcher:
        with torch.no_grad():
            loop.model.bert.encoder.layer[1].output.LayerNorm.weight[0] = math.nan
        watcher.step()
        watcher.step()
    assert lines == ["step 1: weights hold NaN or infinity, so the training has diverged"]
    assert np.isnan(read_watch(tmp_path / "w.jsonl").scale[2, 1, 0])


def test_texts_as_a_probe_and_none_at_all(tmp_path: Path, words: Callable[..., Any]) -> None:
    loop, tokenizer = Loop(), words()
    before = tokenizer.backend_tokenizer.to_str()
    texts = Texts("made", ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w0"))
    options = quiet(probe=texts, probe_texts=3, probe_tokens=5)
    watch(loop.model, tmp_path / "w.jsonl", options, tokenizer=tokenizer).close()
    assert tokenizer.backend_tokenizer.to_str() == before
    # The same by hand: [CLS] w… [SEP] cut at five tokens, the first text alone, after the middle layer.
    ids = torch.tensor([tokenizer("w1 w2 w3")["input_ids"][:5]])
    loop.model.eval()
    with torch.no_grad():
        states = loop.model.bert(ids, output_hidden_states=True).hidden_states[2][0]  # after layer 1 of 0, 1, 2
    found = read_watch(tmp_path / "w.jsonl")
    np.testing.assert_allclose(found.states[0], states.mean(0), atol=1e-6)

    lines: list[str] = []
    watch(loop.model, tmp_path / "none.jsonl", quiet(notice=lines.append)).close()
    assert lines == [
        "the weights are watched, hidden states are not: without a tokenizer the probe's texts cannot be read; pass "
        "tokenizer=, or token ids as the probe"
    ]
    nothing = read_watch(tmp_path / "none.jsonl")
    assert nothing.states is None
    assert read_activity(tmp_path / "none.jsonl").inf_norm.shape == (1, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probe": torch.zeros((2, 3))}, r"whole numbers \[text, token\], not torch.float32 \[2, 3\]"),
        ({"probe": torch.tensor([1, 2])}, r"not torch.int64 \[2\]"),
        ({"probe": torch.tensor([[1, 40]])}, "token ids go from 1 to 40; the model has 40 tokens"),
        ({"probe": torch.ones((1, 40), dtype=torch.long)}, "40 tokens per text; the model has positions for 32"),
        ({"probe": Texts("made", ("w1",))}, "without a tokenizer"),
        ({"probe": IDS, "dims": [16]}, "dimension 16 does not exist; stream 'model': dimensions 0 to 15"),
    ],
)
def test_what_cannot_be_watched_is_said_at_once(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        watch(build(FAMILIES["bert"]), tmp_path / "w.jsonl", quiet(**settings))
    assert not (tmp_path / "w.jsonl").exists()


def test_steps_go_forward(tmp_path: Path) -> None:
    model = build(FAMILIES["bert"])
    with watch(model, tmp_path / "w.jsonl", quiet(every=10), start=7) as watcher:
        watcher.step()
        with pytest.raises(BadInput, match="step 8 comes after step 8; start again with watch"):
            watcher.step(8)
    with pytest.raises(BadInput, match="start is -1"):
        watch(model, tmp_path / "w.jsonl", quiet(), start=-1)
    with pytest.raises(BadInput, match="no step is recorded yet"):
        read_watch(tmp_path / "w.jsonl")


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    with pytest.raises(BadInput, match="no such file"):
        read_watch(path)
    with RowStore.open(path, {"kind": "sweep"}):
        pass
    with pytest.raises(BadFile, match="rows of other work"):
        read_watch(path)
    path.unlink()
    watch(build(FAMILIES["bert"]), path, quiet(probe=IDS)).close()
    with pytest.raises(BadInput, match="one of model, not 'encoder'"):
        read_watch(path, "encoder")
    text = path.read_text()
    change_rows(path, '"shape":[3,16]', '"shape":[3,17]')
    with pytest.raises(BadFile, match="the row of a step is malformed"):
        read_watch(path)
    path.write_text(text.replace('"key"', "key"))
    with pytest.raises(BadFile, match="line 2: not a row as outlierlens wrote it"):
        read_watch(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key":"log 1 loss","value":"low"}', "malformed"),
        ('{"key":"log 1 loss","value":[1]}', "malformed"),
        ('{"key":"log 1 loss","value":1' + "0" * 400 + "}", "malformed"),
        ('{"key":"log 1","value":1}', "malformed"),
        ('{"key":"log one loss","value":1}', "malformed"),
        ('{"key":"step 1","value":{"streams":{"model":0}}}', "malformed"),
        ('{"key":7,"value":1}', "line 3: not a row"),
        ('{"key":"step 1","value":' + "[" * 100_000 + "]" * 100_000 + "}", "line 3: not a row"),
    ],
)
def test_rows_that_no_watch_wrote_are_malformed(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    watch(build(FAMILIES["bert"]), path, quiet(probe=IDS)).close()
    read_watch(path)
    append_line(path, line)
    with pytest.raises(BadFile, match=message):
        read_watch(path)


def test_values_that_no_watch_wrote_are_malformed(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    watch(build(FAMILIES["bert"]), path, quiet(probe=IDS)).close()
    written, row = rows_in(path), rows_in(path)[1]
    for before, after in (('"loss":null', '"lost":null'), ('"loss":null', '"loss":"low"'), ('"view"', '"seen"')):
        write_rows(path, written)
        change_rows(path, before, after)
        with pytest.raises(BadFile, match="malformed"):
            read_watch(path)
    write_rows(path, [*written, {**row, "key": f"step {10**30}"}])
    with pytest.raises(BadFile, match="malformed"):
        read_activity(path)
    row["value"]["streams"]["model"]["kurtosis_dims"].append(1.0)
    write_rows(path, [*written, {**row, "key": "step 1"}])
    with pytest.raises(BadFile, match="malformed"):
        read_activity(path)


def test_curves_are_what_was_logged(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "w.jsonl"
    with watch(loop.model, path, quiet(probe=IDS)) as watcher:
        watcher.step(loss=2.0)
    assert read_watch(path).curves["loss"].values.tolist() == [2.0]  # what was handed to step, for want of a log
    with watch(loop.model, path, quiet(probe=IDS), start=1) as watcher:
        watcher.log(3, "loss", 1.0)
        watcher.log(2, "loss", 1.5)
        watcher.log(2, "loss", 7.0)
        watcher.log(2, "eval_loss", 1.25)
    curves = read_watch(path).curves
    assert curves["loss"].steps.tolist() == [2, 3]
    assert curves["loss"].values.tolist() == [1.5, 1.0]
    assert curves["eval_loss"].values.tolist() == [1.25]


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 30), st.text(max_size=5), max_size=8), st.integers(0, 30), st.booleans())
def test_rewound_rows_are_those_that_stay(tmp_path_factory: Any, rows: dict[int, str], last: int, torn: bool) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with RowStore.open(path, {"a": "ü\u2028"}) as store:
        for step, value in rows.items():
            store.append(f"step {step}", value)
    if torn:
        with path.open("a") as file:
            file.write('{"key":"step 9')
    keep = {f"step {step}": value for step, value in rows.items() if step <= last}
    leave = {f"step {step}": value for step, value in rows.items() if step > last}
    with RowStore.open(path, {"a": "ü\u2028"}) as store:
        aside = store.rewind(lambda key: int(key.split()[1]) <= last)
        assert store.done == keep
        assert (aside is None) == (not leave)
        store.append("step 99", "more")
    assert read_rows(path) == ({"a": "ü\u2028"}, keep | {"step 99": "more"})
    if aside is not None:
        assert read_rows(aside) == ({"a": "ü\u2028"}, leave)
        with RowStore.open(path, {"a": "ü\u2028"}) as store:
            assert store.rewind(lambda key: False) != aside
    assert not list(path.parent.glob("*.part"))


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_a_row_comes_back_bit_for_bit(layers: int, dims: int, seed: int) -> None:
    random_numbers = np.random.default_rng(seed)
    row = StreamRow(
        random_numbers.normal(size=(layers, dims)).astype(np.float32),
        kurtosis_dims=random_numbers.normal(size=layers),
        state=np.array([math.inf, math.nan, -0.0], dtype=np.float32),
    )
    back = StreamRow.from_json(json.loads(json.dumps(row.to_json())))
    for name in ("scale", "bias", "kurtosis_dims", "state"):
        np.testing.assert_array_equal(getattr(back, name), getattr(row, name))
