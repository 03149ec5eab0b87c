"""The sweep: switch every dimension off in turn, with as many texts as each needs, and keep every finished piece.

    swept = sweep(load_model("smollm2-135m"), read_texts("excerpt"))
    swept.top(5)                                     # strongest effects, with 95 % intervals
    sweep(loaded, texts, rows=Path("rows.jsonl"))    # interrupted? the same call continues

The loop is `work_through`. `schedule` decides what a round holds, an engine does it (`units.LocalEngine`, `ray_engine`),
`effects` turns what was measured into rows: a function of the rows kept, so an interrupted, resumed or distributed sweep says
the same.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.ablation.study import Progress
from outlierlens.analyses.sweep import gradients
from outlierlens.analyses.sweep.effects import compared_with_float32, cost_of, effects_of, intact_of, nulls_of
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.sweep.gradients import look_sizes
from outlierlens.analyses.sweep.options import SweepCall, SweepOptions
from outlierlens.analyses.sweep.rows import Precision
from outlierlens.analyses.sweep.runner import Runner, make_runner
from outlierlens.analyses.sweep.schedule import Round, SweepState, adaptive, exact, until
from outlierlens.analyses.sweep.units import (
    INTACT,
    Differences,
    Engine,
    LocalEngine,
    Unit,
    Work,
    control_families,
    different,
    planned,
)
from outlierlens.architectures import neurons_of
from outlierlens.data.texts import Data
from outlierlens.detection.weights import scan_stream
from outlierlens.models.devices import memory_kept
from outlierlens.models.inputs import reaching, row_limit
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.options import FIND
from outlierlens.results.finding import About
from outlierlens.results.row_store import Keep, UnitCache, kept_rows, nine_digits
from outlierlens.session import Session
from outlierlens.tasks.base import begins, check_intact

ROWS_VERSION = 1  # of what the keys and values of rows mean


def work_through(rounds: Iterable[Round], run: "_SweepRun") -> None:
    """THE loop: measure what the rows do not hold of every round, append it, and let the next round be decided."""
    for phase, works in rounds:  # resume and adaptive sampling: what is still worth doing
        intact = run.intact_on({work.span for work in works})  # {span: values [text]}
        missing = [work for work in works if work.key not in run.kept.done]
        for done, (work, values) in enumerate(run.engine.measure(missing) if missing else ()):
            run.progress(phase, done, len(missing))
            run.keep_difference(work, values, intact[work.span])
        run.state.take(works, run.kept.done)


def difference(work: Work, values: np.ndarray, intact: np.ndarray) -> np.ndarray:
    """Change by an ablation [text]; 0 on texts that were not run, whose prediction stays."""
    return values - intact if work.only is None else np.where(np.isnan(values), 0.0, values - intact)


def sweep(
    loaded: LoadedModel,
    texts: Data,
    options: SweepOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | Keep | None = None,
    engine: Callable[[Runner], Engine] | None = None,
) -> Sweep:
    """Measure the effect of ablating each dimension (and set, in each layer window) of `loaded` on `texts`.

    With `rows`, every finished piece of work is appended to that file, and pieces found there are not measured again: the
    result is a function of the rows alone. `engine` makes the workers; by default this process works.

    Raises:
        BadInput: no usable text, an unknown dimension, layer or mode, or `rows` of other work.
    """
    options = reaching(loaded, texts, options or SweepOptions())
    with memory_kept(), ExitStack() as held:
        runner = make_runner(loaded, texts, options)
        stack, task = runner.stack, runner.task
        found = () if stack.reads else scan_stream(loaded, stack.name).dims
        units = planned(options, stack.n_layers, runner.width, found, by_neuron=bool(stack.reads))
        for unit in units:
            runner.ablation.check(unit.plan)
        model = fingerprint(loaded.model)
        kept = held.enter_context(kept_rows(rows, _identity(runner, texts, model), loaded.notice))
        most = runner.n_texts if options.max_texts is None else min(options.max_texts, runner.n_texts)
        looks = (most,) if runner.exact else look_sizes(most)
        measured = Differences(runner.weights)
        state = SweepState(units, options, looks, measured, smallest=task.smallest, functional=runner.functional)
        state.find_bulk(found)
        run = _SweepRun(runner, kept, engine or LocalEngine, state, progress or (lambda *_: None))
        held.callback(run.close)
        if options.gradients and not runner.exact and gradients.can_differentiate(runner):
            state.gradients = run.slopes(min(options.gradients, looks[-1]))
        families = control_families(runner, units, found)
        everyone = different([unit for family in families for unit in (family.of, *family.controls)])
        screened = different([*units, *everyone])
        if not options.exact and gradients.can_screen(runner, len(screened)):
            state.screen = run.screen(screened, {unit.key for unit in units if set(unit.dims) <= set(found)})
        least = looks[-1] if runner.functional else min(options.random_texts, looks[-1])
        n_compared = next(stop for _, stop in state.spans if stop >= least)
        if loaded.blocks is not None and engine is None:
            run.read_together([
                *(state.work(unit, span) for unit in units for span in state.spans),
                *(state.work(unit, span) for unit in everyone for span in state.spans if span[1] <= n_compared),
            ])  # fmt: skip
        work_through(exact(state) if runner.exact else adaptive(state), run)
        work_through(until(state, everyone, n_compared), run)
        precision = run.precision()
        nulls = nulls_of(state, families, n_compared)
        dims = tuple(str(one) for unit in units for one in (neurons_of(unit.plan) if stack.reads else unit.dims))
        return Sweep(
            provenance=loaded.provenance(seed=options.seed, digest=model),
            about=About(
                data=texts.source, data_digest=texts.digest, inputs=texts.plural, task=task.name, unit=task.unit,
                metric=task.metric, stack=stack.name, layers=tuple(sorted({at for unit in units for at in unit.layers})),
                dims=() if options.dims == "all" else tuple(dict.fromkeys(dims)),
                kind="neuron" if stack.reads else "dimension", n_texts=runner.n_texts, n_tokens=task.n_tokens,
                max_length=row_limit(loaded, texts, options.task.max_length),
            ),
            effects=effects_of(runner, state, found, nulls), nulls=nulls, text=task.text, mode=runner.ablation.name,
            n_layers=stack.n_layers, width=runner.width,
            windows=options.windows if options.layers is None else f"{options.windows}, of given layers",
            method="screened" if state.screen else "exact" if runner.exact else "adaptive",
            screening=state.screen.summary() if state.screen else None, together=state.together,
            tolerance=options.tolerance, relative=options.relative, top_k=options.top, level=options.level,
            widening=(state.widening.normal, state.widening.skewed),
            look_level=state.strict, looks=looks, intact=intact_of(run.intact(), runner), found=tuple(found),
            separated=state.separated, cost=cost_of(runner, state, families, len(run.intact())), precision=precision,
            notes=(*loaded.notes, *runner.notes),
        )  # fmt: skip


def run(session: Session, call: SweepCall) -> Sweep:
    """The analysis, as the command runs it."""
    options = call.options(session.task_reading)
    texts = session.task_reading.read(offline=session.loading.offline)
    loaded, machines, engine = session.loaded, call.machines, None
    options = reaching(loaded, texts, options)
    stack = loaded.axis(options.stack)
    named = scan_stream(loaded, stack.name).dims if call.dims == FIND and not stack.reads else ()
    if machines.ray is not None:
        from outlierlens.analyses.sweep.ray_engine import on_ray

        engine = on_ray(texts, session.load, machines)
    options = replace(options, dims=call.chosen(named))
    return sweep(loaded, texts, options, progress=session.progress, rows=session.kept, engine=engine)


class _SweepRun:
    """One run of a sweep: measures rounds of work into the rows and the state."""

    def __init__(
        self, runner: Runner, kept: UnitCache, engine: Callable[[Runner], Engine], state: SweepState, progress: Progress
    ) -> None:
        self.runner, self.kept, self.state, self.progress = runner, kept, state, progress
        self._make_engine = engine
        self._intact: dict[tuple[int, int], np.ndarray] = {}

    @cached_property
    def engine(self) -> Engine:
        """What measures; made when there is something to do: a finished sweep needs no cluster."""
        return self._make_engine(self.runner)

    def close(self) -> None:
        """Let go of the engine."""
        if "engine" in self.__dict__:
            self.engine.close()

    def keep(self, key: str, value: Any) -> Any:
        """A finished unit of work, kept."""
        return self.kept(key, lambda: value)

    def keep_difference(self, work: Work, values: np.ndarray, intact: np.ndarray) -> None:
        """A finished piece of work."""
        self.keep(work.key, {"differences": nine_digits(difference(work, values, intact))})

    def read_together(self, works: Sequence[Work]) -> None:
        """Measure what the rows do not hold in one reading of all weights, the intact model with it."""
        spans = sorted({work.span for work in works})
        asked = {work.key: work for work in (*(Work(INTACT, *span) for span in spans), *works)}
        left = [work for key, work in asked.items() if key not in self.kept.done]
        early: list[tuple[Work, np.ndarray]] = []  # done before the intact model was

        def measure(work: Work) -> None:
            self.progress(work.unit.label, len(asked) - len(left), len(asked))
            values = self.runner.alone(work.unit.plan, work.span)
            if work.unit is INTACT:
                self.keep(work.key, {"values": nine_digits(values)})
            elif Work(INTACT, *work.span).key in self.kept.done:
                self.keep_difference(work, values, self.intact_on([work.span])[work.span])
            else:
                early.append((work, values))

        tokens = (self.runner.task.lengths[self.runner.order[slice(*span)]].sum() for span in spans)
        self.runner.loaded.run([partial(measure, work) for work in left], int(max(tokens)))
        for work, values in early:
            self.keep_difference(work, values, self.intact_on([work.span])[work.span])

    def intact_on(self, spans: Iterable[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """{span: the intact model's values [text]} of these spans at least, measured in this process."""
        for span in sorted({*spans} - {*self._intact}):
            key = Work(INTACT, *span).key
            if key not in self.kept.done:
                self.keep(key, {"values": nine_digits(self.runner.values([{}], span)[0])})
            self._intact[span] = np.array(self.kept.done[key]["values"], dtype=np.float64)
            check_intact(self.runner.loaded, self.runner.task, self._intact[span])
        if self.runner.functional is not None:
            self.runner.functional.intact = self.intact()
        return self._intact

    def intact(self) -> np.ndarray:
        """Values of the intact model on all texts used, in the sweep's order [text]."""
        return np.concatenate([self._intact[span] for span in sorted(self._intact)])

    def slopes(self, n_texts: int) -> np.ndarray:
        """First-order estimates of all units on the first texts, about `n_texts`: float32 [text, unit]."""
        units, parts = self.state.units, []

        def estimates(span: tuple[int, int]) -> dict[str, str]:
            found = gradients.first_order(self.runner, units, span).astype("<f4")
            return {"float32": base64.b64encode(found.tobytes()).decode()}

        for span in (span for span in self.state.spans if span[0] < n_texts):
            kept = self._by_gradients(f"gradients {_digest(units)}", span, estimates)
            parts.append(np.frombuffer(base64.b64decode(kept["float32"]), "<f4").reshape(-1, len(units)))
        return np.concatenate(parts)

    def screen(self, units: Sequence[Unit], whole: set[str]) -> gradients.Screen:
        """Which texts are run for each of different units, from gradients of margins; those of `whole` on all texts."""
        screen = gradients.Screen({unit.key: place for place, unit in enumerate(units)}, whole=whole)

        def wanted(span: tuple[int, int]) -> list[str]:
            return [gradients.packed(mask) for mask in gradients.masks(self.runner, units, span)]

        for span in self.state.spans:
            kept = self._by_gradients(f"screen {_digest(units)}", span, wanted)
            shape = (span[1] - span[0], len(units))
            screen.wanted[span], screen.audited[span] = (gradients.unpacked(text, shape) for text in kept)
        return screen

    def _by_gradients(self, name: str, span: tuple[int, int], make: Callable[[tuple[int, int]], Any]) -> Any:
        """The row of this name and span, made where there is none."""
        self.progress("gradients", span[0], self.state.looks[-1])
        return self.kept(f"{name}|{span[0]}-{span[1]}", lambda: self.runner.backing_off(lambda: make(span)))

    def precision(self) -> Precision | None:
        """What a reduced precision does to the effects; kept in the rows like all that is measured."""
        key = f"precision {_digest(self.state.units)}"
        if key not in self.kept.done:
            found = compared_with_float32(self.runner, self.state)
            if found is None:
                return None
            self.keep(key, asdict(found))
        return Precision(**self.kept.done[key])


def _digest(units: Sequence[Unit]) -> str:
    """What is switched off, as part of the names of rows."""
    return hashlib.sha256("\n".join(unit.key for unit in units).encode()).hexdigest()[:16]


def _identity(runner: Runner, texts: Data, model: str) -> dict[str, Any]:
    """What must be equal for rows to be reusable: all that a per-text difference depends on, and the order of texts."""
    options = runner.options
    task = asdict(options.task)
    del task["batch_size"]
    order = tuple(getattr(runner.task, "order", ()))
    return {
        "rows": ROWS_VERSION,
        "model": model,
        "data": texts.digest,
        "task": {**task, "name": runner.task.name},
        "mode": runner.ablation.name,
        "stack": runner.stack.name,
        "seed": options.seed,
        "texts": runner.n_texts,
        "exact": runner.exact,
        "max_texts": options.max_texts,
        # It permutes values among the tokens of a batch: what is in a batch is part of what is measured.
        **({"tokens per batch": runner.tokens} if options.mode == "resample" else {}),
        **({"screen": [gradients.SAFETY, gradients.AUDITED]} if runner.functional else {}),
        **begins(runner.task),
        # What the outputs mean, where that is not the task's own order: a config can change under the same weights.
        **({} if order == tuple(range(len(order))) else {"labels of outputs": list(order)}),
    }
