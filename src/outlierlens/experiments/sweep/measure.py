"""The sweep: switch every dimension off in turn, with as many texts as each needs, and keep every finished piece.

    swept = sweep(load_model("smollm2-135m"), read_texts("excerpt"))
    swept.top(5)                                     # strongest effects, with 95 % intervals
    sweep(loaded, texts, rows=Path("rows.jsonl"))    # interrupted? the same call continues

The loop is `work_through`. `schedule` decides what a round holds, an engine (`engines`, `ray_engine`) does it, `summary` turns
what was measured into the result: a function of the rows, so an interrupted, resumed or distributed sweep gives the same one.
"""

import base64
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.data.texts import Data
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.experiments.sweep.engines import Engine, Local
from outlierlens.experiments.sweep.gradients import (
    Screen,
    can_differentiate,
    can_screen,
    evaluations,
    first_order,
    masks,
    packed,
    unpacked,
)
from outlierlens.experiments.sweep.levels import look_sizes
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.result import Precision, Sweep
from outlierlens.experiments.sweep.rows import Memory, digest, identity
from outlierlens.experiments.sweep.runner import Runner, make_runner
from outlierlens.experiments.sweep.schedule import Round, State, adaptive, exact, until
from outlierlens.experiments.sweep.summary import compared_with_float32, cost_of, effects_of, intact_of, nulls_of
from outlierlens.experiments.sweep.units import INTACT, Differences, Unit, Work, control_families, planned
from outlierlens.models.devices import memory_kept
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.results.row_store import RowStore, nine_digits
from outlierlens.tasks.base import check_intact

REPORT_SECONDS = 0.25


def work_through(rounds: Iterable[Round], run: "_SweepRun") -> None:
    """THE loop: measure what the rows do not hold of every round, append it, and let the next round be decided."""
    for phase, works in rounds:  # resume and adaptive sampling: what is still worth doing
        intact = run.intact_on({work.span for work in works})  # {span: values [text]}
        missing = [work for work in works if run.rows.get(work.key) is None]
        run.begin(phase, len(missing))
        for work, values in run.engine.measure(missing) if missing else ():  # this process, prefix reuse, batches; Ray
            run.rows.append(work.key, {"differences": nine_digits(difference(work, values, intact[work.span]))})
            run.count(work.n_texts, pieces=1)
        run.end(bool(missing))
        run.state.take(works, run.rows.done)


def difference(work: Work, values: np.ndarray, intact: np.ndarray) -> np.ndarray:
    """What switching off changes [text]; 0 on texts that were not run, whose prediction stays."""
    return values - intact if work.only is None else np.where(np.isnan(values), 0.0, values - intact)


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Attributes:
        phase: "intact", "gradients", "controls", "done", or as `schedule` names its rounds.
        measured, asked: pieces of work (an effect on some texts) of the round that runs.
        done, total: effects that are precise (or on all texts) and planned.
        texts: text evaluations in this run; texts_per_second: of them, since the first.
        seconds_left: about; None while unknown.
        leaders: the strongest so far: (label, change, half-width of the interval).
    """

    phase: str
    measured: int
    asked: int
    done: int
    total: int
    texts: int
    texts_per_second: float
    seconds_left: float | None
    leaders: tuple[tuple[str, float, float], ...]


def sweep(
    loaded: LoadedModel,
    texts: Data,
    options: SweepOptions | None = None,
    *,
    command: str = "",
    progress: Callable[[SweepProgress], None] | None = None,
    rows: Path | None = None,
    engine: Callable[[Runner], Engine] | None = None,
) -> Sweep:
    """Measure what switching off each dimension (and set, in each layer window) does to `loaded` on `texts`.

    With `rows`, every finished piece of work is appended to that file, and pieces found there are not measured again: the
    result is a function of the rows alone. `engine` makes what does the work; by default this process.

    Raises:
        BadInput: no usable text, an unknown dimension, layer or mode, or `rows` of other work.
    """
    options = options or SweepOptions()
    with memory_kept(), ExitStack() as held:
        runner = make_runner(loaded, texts, options)
        found = () if runner.stack.reads else scan_stream(loaded, runner.stack.name).dims
        units = planned(options, runner.stack.n_layers, runner.width, found, by_neuron=bool(runner.stack.reads))
        for unit in units:
            runner.ablation.check(unit.plan)
        model = fingerprint(loaded.model)
        store = held.enter_context(RowStore.open(rows, identity(runner, texts, model))) if rows else Memory()
        is_exact = runner.exact
        looks = _looks(runner)
        measured = Differences(runner.weights)
        state = State(units, options, looks, measured, smallest=runner.task.smallest, functional=runner.functional)
        state.find_bulk(found)
        run = _SweepRun(runner, store, engine or Local, state, progress)
        held.callback(run.close)
        if options.gradients and not is_exact and can_differentiate(runner):
            state.gradients = run.gradients(min(options.gradients, looks[-1]))
        families = control_families(runner, units, found)
        everyone = [unit for family in families for unit in (family.of, *family.controls)]
        screened = list({unit.key: unit for unit in [*units, *everyone]}.values())
        if not options.exact and can_screen(runner, len(screened)):
            whole = {unit.key for unit in units if set(unit.dims) <= set(found)}
            state.screen = run.screen(screened, whole)
        work_through(exact(state) if is_exact else adaptive(state), run)
        least = looks[-1] if runner.functional else min(options.random_texts, looks[-1])
        n_compared = next(stop for _, stop in state.spans if stop >= least)
        compared = list({unit.key: unit for unit in everyone}.values())
        run.plan_controls(until(state, compared, n_compared))
        work_through(until(state, compared, n_compared), run)
        precision = run.precision()
        run.begin("done", 0)
        nulls = nulls_of(state, families, n_compared)
        value, low, high = intact_of(run.intact(), runner, options.seed)
        return Sweep(
            provenance=loaded.provenance(command=command, seed=options.seed, digest=model),
            data=texts.source,
            data_digest=texts.digest,
            task=runner.task.name,
            unit=runner.task.unit,
            text=runner.task.text,
            mode=runner.ablation.name,
            stack=runner.stack.name,
            n_layers=runner.stack.n_layers,
            width=runner.width,
            windows=options.windows if options.layers is None else f"{options.windows}, of given layers",
            method="screened" if state.screen else "exact" if is_exact else "adaptive",
            screening=state.screen.summary() if state.screen else None,
            together=state.together,
            metric=runner.task.metric,
            tolerance=options.tolerance,
            relative=options.relative,
            top_k=options.top,
            level=options.level,
            widening=(0.0, 0.0) if options.anytime else (state.widening.normal, state.widening.skewed),
            look_level=state.strict,
            looks=looks,
            n_texts=runner.n_texts,
            n_tokens=runner.task.n_tokens,
            intact=value,
            intact_low=low,
            intact_high=high,
            found=tuple(found),
            separated=state.separated,
            effects=effects_of(runner, state, found, nulls),
            nulls=nulls,
            cost=cost_of(runner, state, families, len(run.intact()), run.seconds()),
            precision=precision,
            notes=(*loaded.notes, *runner.notes),
        )


class _SweepRun:
    """One run of a sweep: measures rounds of work into the rows and the state."""

    def __init__(
        self,
        runner: Runner,
        rows: RowStore | Memory,
        engine: Callable[[Runner], Engine],
        state: State,
        progress: Callable[[SweepProgress], None] | None,
    ):
        self.runner, self.rows, self.state, self.progress = runner, rows, state, progress
        self._make_engine = engine
        self.spans = state.spans
        self.n_controls = self._before_controls = 0
        self._intact: dict[tuple[int, int], np.ndarray] = {}
        self._texts = 0
        self._begun = 0.0
        self._started: float | None = None  # of the first evaluation: reading rows back is no measure of speed
        self._phase, self._told = "", 0.0
        self._measured = self._asked = 0

    @cached_property
    def engine(self) -> Engine:
        """What measures; made when there is something to do: a finished sweep needs no cluster."""
        return self._make_engine(self.runner)

    def close(self) -> None:
        """Let go of the engine."""
        if "engine" in self.__dict__:
            self.engine.close()

    def begin(self, phase: str, pieces: int = 1) -> None:
        """Report the phase, and start the clock if there are pieces to measure."""
        self._measured, self._asked = 0, pieces
        self.report(phase)
        self._begun = time.monotonic()
        self._started = self._started or (self._begun if pieces else None)

    def count(self, n_texts: int, pieces: int = 0) -> None:
        """Note that so many texts were evaluated, and that pieces of the round are done with them."""
        self._texts += n_texts
        self._measured += pieces
        if pieces:
            self.report(self._phase)

    def end(self, measured: bool = True) -> None:
        """Keep in the rows how long that took: what a sweep took is the sum over its runs."""
        if measured:
            self.rows.append(f"seconds {self._begun:.6f}", round(time.monotonic() - self._begun, 3))

    def intact_on(self, spans: Iterable[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """{span: the intact model's values [text]} of these spans at least, measured in this process."""
        for span in sorted(spans):
            if span in self._intact:
                continue
            work = Work(INTACT, *span)
            kept = self.rows.get(work.key)
            if kept is None:
                self.begin("intact")
                kept = self.rows.append(work.key, {"values": nine_digits(self.runner.values([{}], span)[0])})
                self.count(work.n_texts)
            self._intact[span] = np.array(kept["values"], dtype=np.float64)
            check_intact(self.runner.loaded, self.runner.task, self._intact[span])
        if self.runner.functional is not None:
            self.runner.functional.intact = self.intact()
        return self._intact

    def intact(self) -> np.ndarray:
        """Values of the intact model on all texts used, in the sweep's order [text]."""
        return np.concatenate([self._intact[span] for span in sorted(self._intact)])

    def gradients(self, n_texts: int) -> np.ndarray:
        """First-order estimates of all units on the first texts, about `n_texts`: float32 [text, unit]."""
        units, parts = self.state.units, []

        def estimates(span: tuple[int, int]) -> dict[str, str]:
            found = first_order(self.runner, units, span).astype("<f4")
            return {"float32": base64.b64encode(found.tobytes()).decode()}

        for span in (span for span in self.spans if span[0] < n_texts):
            kept = self._by_gradients(f"gradients {digest(units)}", span, estimates, 3)
            parts.append(np.frombuffer(base64.b64decode(kept["float32"]), "<f4").reshape(-1, len(units)))
        return np.concatenate(parts)

    def screen(self, units: Sequence[Unit], whole: set[str]) -> Screen:
        """Which texts are run for each of different units, from gradients of margins; those of `whole` on all texts."""
        screen = Screen({unit.key: place for place, unit in enumerate(units)}, whole=whole)

        def wanted(span: tuple[int, int]) -> list[str]:
            return [packed(mask) for mask in masks(self.runner, units, span)]

        for span in self.spans:
            kept = self._by_gradients(f"screen {digest(units)}", span, wanted, evaluations(self.runner))
            shape = (span[1] - span[0], len(units))
            screen.wanted[span], screen.audited[span] = (unpacked(text, shape) for text in kept)
        return screen

    def _by_gradients(self, name: str, span: tuple[int, int], make: Callable[[tuple[int, int]], Any], cost: int) -> Any:
        """The row of this name and span, made where there is none; a text of it costs that many evaluations."""
        key = f"{name}|{span[0]}-{span[1]}"
        kept = self.rows.get(key)
        if kept is None:
            self.begin("gradients")
            kept = self.rows.append(key, self.runner.backing_off(lambda: make(span)))
            self.count(cost * (span[1] - span[0]))
            self.end()
        return kept

    def plan_controls(self, rounds: Iterable[Round]) -> None:
        """Tell the progress how many evaluations the controls still take."""
        missing = (work for _, works in rounds for work in works if self.rows.get(work.key) is None)
        self.n_controls, self._before_controls = sum(work.n_texts for work in missing), self._texts

    def precision(self) -> Precision | None:
        """What a reduced precision does to the effects; kept in the rows like all that is measured."""
        key = f"precision {digest(self.state.units)}"
        kept = self.rows.get(key)
        if kept is None:
            found = compared_with_float32(self.runner, self.state)
            kept = self.rows.append(key, asdict(found)) if found else None
        return Precision(**kept) if kept else None

    def seconds(self) -> float:
        """Time spent measuring, in all runs that filled these rows."""
        return float(sum(value for key, value in self.rows.done.items() if key.startswith("seconds ")))

    def report(self, phase: str) -> None:
        """Tell how far the sweep is, a few times a second at most."""
        now = time.monotonic()
        if self.progress is None or (phase == self._phase and now - self._told < REPORT_SECONDS):
            return
        self._phase, self._told = phase, now
        state = self.state
        known = [(number, found) for number, found in enumerate(state.estimates) if found is not None]
        leaders = sorted(known, key=lambda item: -item[1].change)[:5]
        rate = self._texts / (now - self._started) if self._texts and self._started is not None else 0.0
        controls = self.n_controls - (self._texts - self._before_controls) if phase == "controls" else self.n_controls
        # Before the screen is there, nobody knows how many texts it will leave out.
        known_work = phase != "gradients" or state.functional is None
        left = (state.texts_left() + max(0, controls)) / rate if rate and known_work else None
        if state.functional is None:
            done = sum(
                found.n_texts == state.looks[-1] or (not state.options.exact and state.precise(number))
                for number, found in known
            )
        else:  # nothing is known of any before all texts are done
            done = sum(state.measured.n(unit.key) for unit in state.units) // state.looks[-1]
        self.progress(
            SweepProgress(
                phase=phase,
                measured=self._measured,
                asked=self._asked,
                done=done,
                total=len(state.units),
                texts=self._texts,
                texts_per_second=rate,
                seconds_left=0.0 if phase == "done" else left,
                leaders=tuple((state.units[n].label, found.change, found.half_width) for n, found in leaders),
            )
        )


def _looks(runner: Runner) -> tuple[int, ...]:
    """Numbers of texts at which effects are estimated."""
    options = runner.options
    most = runner.n_texts if options.max_texts is None else min(options.max_texts, runner.n_texts)
    return (most,) if runner.exact else look_sizes(most)
