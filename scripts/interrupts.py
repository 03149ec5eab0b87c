"""Interrupt every context that changes a model, at random moments, and count what is left of the changes.

    python scripts/interrupts.py                         # 10,000 interrupts, a few minutes
    python scripts/interrupts.py --trials 500 --seed 1
    python scripts/interrupts.py --only "read block by block"

Half of the interrupts come from a timer: SIGALRM, whose handler raises KeyboardInterrupt, at a random moment while the context
is entered, a forward pass runs inside, and the context is left. The other half are SIGINT before a step of the interpreter that
is drawn from all steps of entering and leaving, in any file; Python runs its handler when it looks for signals next.
After each, while the exception is still held, every value, number format, gradient flag, training mode, hook, replaced
`forward` and handler is compared with what was there before. Prints a row a context. Exit code 1: something was left, or a
trial took longer than a minute, whose stack is then printed.
"""

import _thread
import argparse
import faulthandler
import gc
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from outlierlens.ablation.modes import Switch
from outlierlens.ablation.prefix import BlockOutput, resumed
from outlierlens.ablation.switches import (
    EditSettings,
    collected,
    edited_hidden,
    removed_writes,
    zero_weights_,
    zeroed_norms,
    zeroed_weights,
)
from outlierlens.analyses.attack_edits import ValueChange, edited_values
from outlierlens.analyses.prune_guard import Cells, Pruner, Removal
from outlierlens.analyses.quantize_rounding import Keeping, rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.super_weights import SuperActivations, scaled, tapped_mlps
from outlierlens.analyses.sweep.effects import _as_float32
from outlierlens.architectures import live_parameters
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.changes import EVERYWHERE, frozen
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import (
    edited_calls,
    edited_output,
    head_only_at,
    norm_before_last_mlp,
    only_at,
    tapped,
    tapped_reads,
    written,
)
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.training.watch_probe import untouched

Context = Callable[[], AbstractContextManager[Any]]
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"max_position_embeddings": 32, "pad_token_id": 0}
SECONDS = 60  # of one trial
DIMS = (3, 5)


def models() -> tuple[LoadedModel, LoadedModel]:
    """A tiny encoder, whose blocks end in a norm, and a tiny decoder."""
    torch.manual_seed(0)
    made = (
        BertForMaskedLM(BertConfig(**SIZES, attn_implementation="eager")),
        LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, attn_implementation="eager")),
    )
    return from_objects(made[0].eval(), name="encoder"), from_objects(made[1].eval(), name="decoder")


def contexts(encoder: LoadedModel, decoder: LoadedModel) -> dict[str, tuple[LoadedModel, Context]]:
    """{name: (the model that it changes, what makes the context)}."""

    def nothing(*_: Any) -> None:
        return None

    def same(states: torch.Tensor) -> torch.Tensor:
        return states

    stack, body = encoder.stack(), decoder.stack()
    model = encoder.model
    means = EditSettings(means=np.zeros((2, 16)))
    switch = Switch(encoder, stack)
    plan = dict.fromkeys(range(2), DIMS)
    shapes = {name: tuple(value.shape) for name, value in live_parameters(model).items()}
    pruner = Pruner(model, Cells.of(stack, shapes, Removal()))
    taken = pruner.pruned(plan, 8)
    edits = [ValueChange(name, 1, 2.0) for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")]
    modules = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    norm = norm_before_last_mlp(model, stack)
    reader = reader_of(encoder, [stack], "input_ids")
    kept = BlockOutput(0, (torch.zeros(7, 16), torch.zeros(7, 16)), None, False)
    places = (torch.tensor([0, 1]), torch.tensor([2, 3]))
    assert norm is not None
    assert reader is not None
    activations = SuperActivations(decoder, body, 0.0)
    activations.kept[0, 3] = [torch.zeros(2, 7)]
    return {
        "zeroed_weights": (encoder, lambda: zeroed_weights(encoder, DIMS)),
        "zeroed_weights, decoder": (decoder, lambda: zeroed_weights(decoder, DIMS)),
        "zeroed_norms": (encoder, lambda: zeroed_norms(encoder, DIMS)),
        "removed_writes": (decoder, lambda: removed_writes(decoder, DIMS, embeddings=True)),
        "edited_hidden": (encoder, lambda: edited_hidden(encoder, DIMS)),
        "edited_hidden, mean": (decoder, lambda: edited_hidden(decoder, DIMS, "mean", settings=means)),
        "switch": (encoder, lambda: switch.off(plan)),
        "rounded": (encoder, lambda: rounded(encoder, parse("int8-tensor/int8-tensor"), Keeping(dims=DIMS))),
        "rounded, decoder": (decoder, lambda: rounded(decoder, parse("int8-channel/none"))),
        "scaled": (decoder, lambda: scaled(decoder, body, [(0, 3, 4), (1, 5, 6)], 0.0)),
        "edited_values": (encoder, lambda: edited_values(model, edits)),
        "pruned": (encoder, lambda: pruner.off(taken)),
        "tapped": (encoder, lambda: tapped(model, [stack], nothing)),
        "tapped_reads": (decoder, lambda: tapped_reads(decoder.model, [body], nothing)),
        "tapped_attention": (encoder, lambda: tapped_attention(encoder, stack, nothing)),
        "written": (encoder, lambda: written(model, stack, nothing, [0, 1])),
        "only_at": (encoder, lambda: only_at(norm)),
        "edited_output": (encoder, lambda: edited_output(model, reader, same)),
        "edited_calls": (
            encoder,
            lambda: edited_calls(model, dict.fromkeys(modules, same), dict.fromkeys(modules, same)),
        ),
        "head_only_at": (encoder, lambda: head_only_at(model, places)),
        "tapped_mlps": (decoder, lambda: tapped_mlps(decoder, body, nothing)),
        "super activations": (decoder, lambda: activations.restored([(0, 3, 4)])),
        "position means": (encoder, lambda: collected(encoder, stack, DIMS)),
        "resumed": (encoder, lambda: resumed(model, stack, kept, [0, 1])),
        "as float32": (decoder, lambda: _as_float32(decoder.model)),
        "gradients of some": (encoder, lambda: frozen(model, ["cls.predictions.bias"])),
        "untouched": (encoder, lambda: untouched(model)),
    }


# --- what is compared --------------------------------------------------------------------------------------------


def state(model: torch.nn.Module) -> list[Any]:
    """Everything that a context may change, in one list; tensors are copies."""
    values = [(v.detach().clone(), v.dtype, v.requires_grad) for v in (*model.parameters(), *model.buffers())]
    parts = [
        (m.training, "forward" in vars(m), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)]
    return [values, parts, handlers, torch.is_grad_enabled()]


def left_over(before: list[Any], after: list[Any]) -> list[str]:
    """What differs: "values", "hooks and modules", "handlers", "gradients"."""
    found = []
    if any(
        one[1:] != other[1:] or not torch.equal(one[0], other[0])
        for one, other in zip(before[0], after[0], strict=True)
    ):
        found.append("values")
    names = ("hooks and modules", "handlers", "gradients")
    return found + [name for name, one, other in zip(names, before[1:], after[1:], strict=True) if one != other]


# --- interrupts --------------------------------------------------------------------------------------------------


def run(make: Context, body: Callable[[], Any]) -> None:
    """What is interrupted."""
    with make():
        body()


class Steps:
    """Counts the interpreter's steps of `run`, without those of `body`, and sends SIGINT before the one numbered `at`."""

    def __init__(self, at: int | None = None):
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is _inside.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                # Sent by an instruction after which Python looks for no signal: the next to look is the program that is traced.
                (_,) = map(_thread.interrupt_main, (signal.SIGINT,))
                return None
        return self


def _inside() -> None:
    """The body of a traced context."""


def trace(steps: Steps) -> None:
    """Begin to count; Python 3.12 tells of a frame's opcodes only where another asked for its own before."""
    sys._getframe().f_trace_opcodes = True
    sys.settrace(steps)


def by_step(make: Context, random: np.random.Generator, n_steps: int) -> None:
    """Run with an interrupt at one of the steps."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs that ignore it
    trace(Steps(int(random.integers(1, n_steps + 1))))
    try:
        run(make, _inside)
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, before)


def steps_of(make: Context) -> int:
    """How many steps entering and leaving take."""
    steps = Steps()
    trace(steps)
    try:
        run(make, _inside)
    finally:
        sys.settrace(None)
    return steps.count


def _raise(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def by_timer(make: Context, body: Callable[[], Any], random: np.random.Generator, seconds: float) -> None:
    """Run with an interrupt at a random moment of `seconds`, not in callbacks of the collector, where Python drops it."""
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, seconds))
        run(make, body)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.callbacks[:] = callbacks


def seconds_of(make: Context, body: Callable[[], Any]) -> float:
    """How long a run takes: the median of some."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        run(make, body)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def trials(name: str, n: int, random: np.random.Generator) -> Iterator[list[str]]:
    """What was left by each of `n` interrupts of a context; runs that ended before their interrupt do not count."""
    loaded, make = contexts(*models())[name]
    ids = torch.arange(14).reshape(2, 7)

    def body() -> None:
        loaded.model(input_ids=ids)

    run(make, _inside)  # imports and caches
    n_steps, seconds = steps_of(make), seconds_of(make, body)
    before = state(loaded.model)
    done = 0
    while done < n:
        try:
            if done % 2:
                by_step(make, random, n_steps)
            else:
                by_timer(make, body, random, seconds)
        except KeyboardInterrupt:
            if not done % 2:
                torch.set_grad_enabled(
                    True
                )  # models call torch.no_grad, which an interrupt leaves on: 2 in 1,000 bare passes
            left = left_over(before, state(loaded.model))
            done += 1
            yield left
            if left:
                loaded, make = contexts(*models())[name]
                before = state(loaded.model)


def whole_or_nothing(n: int, random: np.random.Generator) -> Iterator[list[str]]:
    """As `trials`, of `zero_weights_`, which changes values for good: all of them or none."""
    loaded, _ = models()
    intact = {name: value.clone() for name, value in loaded.model.state_dict().items()}

    def make() -> AbstractContextManager[Any]:
        zero_weights_(loaded, DIMS)
        return zeroed_weights(loaded, DIMS)

    n_steps = steps_of(make)
    zeroed = state(loaded.model)
    loaded.model.load_state_dict(intact)
    before = state(loaded.model)
    done = 0
    while done < n:
        try:
            by_step(make, random, n_steps)
        except KeyboardInterrupt:
            after = state(loaded.model)
            done += 1
            yield left_over(before, after) and left_over(zeroed, after)
        torch.set_grad_enabled(True)
        loaded.model.load_state_dict(intact)


def read_by_block(n: int, random: np.random.Generator, folder: str) -> Iterator[list[str]]:
    """As `trials`, of a run of several conditions of a model that is read block by block, at random moments of all of it."""
    models()[1].model.save_pretrained(folder)
    loaded = load_model(folder, LoadOptions(by_block=True, attention="eager", notice=lambda _: None))
    blocks, ids = loaded.blocks, torch.arange(14).reshape(2, 7)
    assert blocks is not None

    def logits() -> torch.Tensor:
        with torch.inference_mode():
            made: torch.Tensor = loaded.model(input_ids=ids).logits
            return made

    def under(make: Context) -> list[torch.Tensor]:
        with make():
            return loaded.run([logits, logits])

    off = [lambda: zeroed_norms(loaded, DIMS), lambda: removed_writes(loaded, DIMS, embeddings=True)]
    calls = [partial(under, make) for make in (nullcontext, *off, lambda: edited_hidden(loaded, DIMS))]

    def now() -> list[Any]:
        at_rest = [
            blocks.hub,
            blocks.passes,
            blocks.weights.open,
            EVERYWHERE.edits,
            threading.active_count(),
            gc.get_freeze_count(),
        ]
        resident = [one for one in loaded.model.parameters() if not one.is_meta]
        values = [(one.detach().clone(), one.dtype, one.requires_grad) for one in resident]
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in loaded.model.modules()]
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)]
        return [values, hooks, handlers, (at_rest, torch.is_grad_enabled(), torch.is_inference_mode_enabled())]

    def all_equal() -> bool:
        return all(map(torch.equal, chain.from_iterable(loaded.run(calls)), wanted))

    wanted = list(chain.from_iterable(loaded.run(calls)))
    seconds, before = seconds_of(nullcontext, all_equal), now()
    done, in_file = 0, blocks.bytes_for(0, 0)
    while done < n:
        blocks.memory = in_file if done % 20 == 0 else None  # states that wait go to a file, or stay
        try:
            by_timer(nullcontext, all_equal, random, seconds)
        except KeyboardInterrupt:
            done += 1
            left = left_over(before, now())
            yield left + ["values"] * (not left and not all_equal())


def timed(found: Iterator[list[str]]) -> Iterator[list[str]]:
    """What trials found; one that takes longer than `SECONDS` ends the program with its stack."""
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
    for one in found:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
        yield one
    faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000, help="interrupts in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--only", help="this row alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _raise)
    random = np.random.default_rng(asked.seed)
    names = list(contexts(*models()))
    each = asked.trials if asked.only else -(-asked.trials // (len(names) + 2))
    total = lost = 0
    print(f"{'context':<28}{'interrupts':>11}{'left over':>11}  what")
    folder = tempfile.TemporaryDirectory()
    rows = {name: trials(name, each, random) for name in names}
    rows |= {"zero_weights_, for good": whole_or_nothing(each, random)}
    rows |= {"read block by block": read_by_block(each, random, folder.name)}
    for name in [asked.only] if asked.only else rows:
        left = list(timed(rows[name]))
        bad = [what for what in left if what]
        total, lost = total + len(left), lost + len(bad)
        print(f"{name:<28}{len(left):>11,}{len(bad):>11,}  {', '.join(sorted({one for what in bad for one in what}))}")
    folder.cleanup()
    print(f"{'all':<28}{total:>11,}{lost:>11,}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
