"""Changes of a model are undone whatever happens: interrupts, any order of leaving, threads, other kinds of tensors."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import interrupts
import pytest
import torch

from architectures import FAMILIES, batch, build
from outlierlens.ablation.switches import edited_hidden, removed_writes, zero_weights_, zeroed_norms, zeroed_weights
from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.errors import BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.load import fingerprint, from_objects


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """A handler of SIGALRM that takes note and raises nothing."""
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    yield came
    signal.signal(signal.SIGALRM, before)


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def equal(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in values(model).items())


# Python drops what is raised in a callback of a weak reference of PyTorch's.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_interrupt_leaves_a_trace(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    monkeypatch.setattr(sys, "argv", ["interrupts.py", "--trials", "280"])
    try:
        assert interrupts.main() == 0, capsys.readouterr().out
    finally:
        signal.signal(signal.SIGALRM, before[1])
    assert "\nall                                 290          0\n" in capsys.readouterr().out
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == before


def test_at_every_single_step_of_entering_and_leaving() -> None:
    changed: list[str] = []

    @temporary
    def inner() -> Iterator[None]:
        with ExitStack() as undo:
            for name in ("a", "b"):
                undo.callback(changed.remove, name)
                changed.append(name)
            yield

    @temporary
    def nested() -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(changed.clear)
            undo.enter_context(inner())
            changed.append("d")
            yield

    before = signal.getsignal(signal.SIGINT)
    n_steps = interrupts.steps_of(nested)
    for step in range(1, n_steps + 1):
        came = True
        with suppress(KeyboardInterrupt):
            sys.settrace(interrupts.Steps(step))
            interrupts.run(nested, interrupts._inside)
            sys.settrace(None)
            came = False
        assert came, step
        assert changed == [], step
        assert signal.getsignal(signal.SIGINT) is before, step
    assert n_steps > 200


def test_a_handler_that_raises_nothing_runs_once_and_the_block_too(handled: list[int]) -> None:
    inside = []

    @temporary
    def quiet() -> Iterator[None]:
        signal.raise_signal(signal.SIGALRM)  # while entering
        inside.append(len(handled))
        yield
        signal.raise_signal(signal.SIGALRM)  # and while leaving
        inside.append(len(handled))

    with quiet():
        inside.append(len(handled))
        with quiet():
            signal.raise_signal(signal.SIGALRM)  # in the block: at once
            inside.append(len(handled))
    assert inside == [0, 1, 1, 3, 3, 4]
    assert len(handled) == 5


def test_an_interrupt_while_entering_inside_another_entering_waits_for_the_outer_one() -> None:
    order = []

    @temporary
    def inner() -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        yield
        order.append("inner left")

    @temporary
    def outer() -> Iterator[None]:
        with inner():
            order.append("entered")
            yield
        order.append("outer left")

    with pytest.raises(KeyboardInterrupt), outer():
        order.append("block")
    assert order == ["entered", "inner left", "outer left"]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_left_in_any_order(family: str, order: tuple[int, ...]) -> None:
    model = build(FAMILIES[family])
    before = values(model)
    loaded = from_objects(model)
    contexts = [
        rounded(loaded, parse("int8-channel/none")),
        removed_writes(model, [5, 6]),
        zeroed_weights(model, [5, 7]),
    ]
    for one in contexts:
        one.__enter__()
    for place in order:
        contexts[place].__exit__(None, None, None)
    assert equal(model, before)


def test_what_a_later_context_set_stays_until_it_is_left() -> None:
    model = build(FAMILIES["bert"])
    scale: Any = model.encoder.layer[0].output.LayerNorm.weight
    intact = scale.detach().clone()
    first, second = zeroed_weights(model, [5, 6]), zeroed_weights(model, [5, 7])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.equal(scale[5:8], intact[5:8] * torch.tensor([0.0, 1.0, 0.0]))
    second.__exit__(None, None, None)
    assert torch.equal(scale, intact)


def test_what_is_dropped_without_being_left_is_undone() -> None:
    model = build(FAMILIES["bert"])
    before = values(model)
    context = zeroed_weights(model, [5])
    context.__enter__()
    assert not equal(model, before)
    del context
    assert equal(model, before)
    with zeroed_weights(model, [3]):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_threads_are_refused_on_the_same_tensors_and_change_nothing() -> None:
    model = build(FAMILIES["bert"])
    before = values(model)
    said: list[str] = []

    def other(layers: list[int]) -> None:
        try:
            with zeroed_weights(model, [7], layers=layers):
                said.append("entered")
        except BadInput as error:
            said.append(str(error))

    def run(*layers: int) -> None:
        thread = threading.Thread(target=other, args=(list(layers),))
        thread.start()
        thread.join()

    with zeroed_weights(model, [5], layers=[0]):
        during = values(model)
        run(0)
        run(1, 0)
        run(2)
        assert equal(model, during)
    run(0)
    assert [line.partition(" has values of ")[0] for line in said] == ["another thread"] * 2 + ["entered"] * 2
    assert "encoder.layer.0.output.LayerNorm.weight" in said[0]
    assert "a model of its own" in said[0]
    assert equal(model, before)


def test_values_set_for_good_stay_and_are_forgotten() -> None:
    model = build(FAMILIES["bert"])
    zero_weights_(model, [5])
    before = values(model)
    with zeroed_weights(model, [5, 6]):
        pass
    assert equal(model, before)
    assert (model.encoder.layer[0].output.LayerNorm.weight[5] == 0).all()


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("ablation", [zeroed_weights, zeroed_norms, removed_writes, edited_hidden])
def test_models_made_in_inference_mode(family: str, ablation: Any) -> None:
    with torch.inference_mode():
        model = build(FAMILIES[family])
    before = values(model)
    with torch.no_grad():
        intact = model(**batch(FAMILIES[family])).last_hidden_state
        with ablation(model, [5]):
            assert not torch.equal(model(**batch(FAMILIES[family])).last_hidden_state, intact)
        with rounded(from_objects(model), parse("int8-channel/int8-token")):
            assert not torch.equal(model(**batch(FAMILIES[family])).last_hidden_state, intact)
    assert equal(model, before)


def test_entered_in_inference_mode_and_left_outside() -> None:
    model = build(FAMILIES["bert"])
    before = values(model)
    context = zeroed_weights(model, [5])
    with torch.inference_mode():
        context.__enter__()
    context.__exit__(None, None, None)
    assert equal(model, before)
    model(**batch(FAMILIES["bert"])).last_hidden_state.sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_packed_linears_are_refused_where_they_would_be_set() -> None:
    encoder, decoder = (
        torch.ao.quantization.quantize_dynamic(build(FAMILIES[name]), {torch.nn.Linear}, dtype=torch.qint8)
        for name in ("bert", "llama")
    )
    with zeroed_weights(encoder, [5]) as n_values:  # norms: plain parameters
        assert n_values == 6
    packed = "holds its weights packed as integers .* as it was before it was quantized"
    with pytest.raises(BadInput, match=packed), removed_writes(encoder, [5]):
        pass
    with pytest.raises(BadInput, match=packed), rounded(from_objects(encoder), parse("int8-channel/none")):
        pass
    with pytest.raises(BadInput, match=packed):
        from_objects(decoder)


def test_weights_that_are_computed_from_others_are_refused_where_they_would_be_set() -> None:
    from torch.nn.utils import parametrizations, prune

    pruned, normed = (build(FAMILIES["bert"]) for _ in range(2))
    for block in pruned.encoder.layer:
        prune.l1_unstructured(block.output.dense, "weight", 0.3)
    for block in normed.encoder.layer:
        parametrizations.weight_norm(block.output.dense)
    for model in (pruned, normed):
        with zeroed_weights(model, [5]) as n_values:  # norms: plain parameters
            assert n_values == 6
        with pytest.raises(BadInput, match="computed from others at every pass"), removed_writes(model, [5]):
            pass
    llama = build(FAMILIES["llama"])
    for block in llama.layers:
        prune.l1_unstructured(block.mlp.down_proj, "weight", 0.3)
    with pytest.raises(BadInput, match="computed from others at every pass"):
        from_objects(llama)
    for block in llama.layers:
        prune.remove(block.mlp.down_proj, "weight")
    with removed_writes(from_objects(llama), [5]) as n_values:
        assert n_values > 0


def test_sharded_models_take_edits_and_refuse_the_setting_of_weights(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1)
    try:
        model = build(FAMILIES["llama"])
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        with edited_hidden(model, [5]):
            assert (model(**batch(FAMILIES["llama"])).last_hidden_state[..., 5] == 0).all()
        sharded = "is sharded over processes .*; load it in one process"
        for ablation in (zeroed_weights, zeroed_norms, removed_writes):
            with pytest.raises(BadInput, match=sharded), ablation(model, [5]):
                pass
        with pytest.raises(BadInput, match=sharded), rounded(from_objects(model), parse("int8-channel/none")):
            pass
        with pytest.raises(BadInput, match=sharded):
            fingerprint(model)
    finally:
        dist.destroy_process_group()
