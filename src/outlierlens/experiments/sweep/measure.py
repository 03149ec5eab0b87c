"""The sweep: switch every dimension off in turn, with as many texts as each needs, and keep every finished piece.

    swept = sweep(load_model("smollm2-135m"), read_texts("excerpt"))
    swept.top(5)                                     # strongest effects, with 95 % intervals
    sweep(loaded, texts, rows=Path("rows.jsonl"))    # interrupted? the same call continues

The loop is `_Run.measure`: take a round of work, skip what the rows hold, measure the rest, append. `schedule` decides what a
round holds, an engine (`engines`, `ray_engine`) does it, `summary` and `nulls` turn what was measured into the result.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.data.texts import Data
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.experiments.sweep.engines import Engine, Local
from outlierlens.experiments.sweep.first_order import can_differentiate, first_order
from outlierlens.experiments.sweep.levels import look_level, look_sizes, stop_level
from outlierlens.experiments.sweep.nulls import Family, control_families, nulls_of
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.precision import compared_with_float32
from outlierlens.experiments.sweep.result import Precision, Sweep
from outlierlens.experiments.sweep.runner import Runner, make_runner
from outlierlens.experiments.sweep.schedule import Measured, Round, State, adaptive, exact, pieces, until
from outlierlens.experiments.sweep.screen import (
    AUDITED,
    SAFETY,
    Screen,
    can_screen,
    evaluations,
    masks,
    packed,
    unpacked,
)
from outlierlens.experiments.sweep.summary import cost_of, effects_of, intact_of
from outlierlens.experiments.sweep.units import INTACT, Unit, Work, planned
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.results.row_store import RowStore, nine_digits
from outlierlens.tasks.base import begins, check_intact

REPORT_SECONDS = 0.25
ROWS_VERSION = 1  # of what the keys and values of rows mean


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Attributes:
        phase: "intact", "gradients", "effects", "telling the top apart", "controls" or "done".
        done, total: effects that are precise (or on all texts) and planned.
        texts: text evaluations in this run; texts_per_second: of them, since the first.
        seconds_left: about; None while unknown.
        leaders: the strongest so far: (label, change, half-width of the interval).
    """

    phase: str
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
    with ExitStack() as held:
        runner = make_runner(loaded, texts, options)
        found = scan_stream(loaded, runner.stack.name).dims
        units = planned(options, runner.stack.n_layers, runner.width, found)
        for unit in units:
            runner.ablation.check(unit.plan)
        model = fingerprint(loaded.model)
        store = held.enter_context(RowStore.open(rows, _identity(runner, texts, model))) if rows else _Memory()
        is_exact = runner.exact
        looks = _looks(runner)
        strict = look_level(looks, options.level)
        level = strict if options.anytime else stop_level(looks, options.level, options.relative)
        state = State(
            units, options, looks, level, strict, Measured(runner.weights), smallest=runner.task.smallest,
            functional=runner.functional,
        )  # fmt: skip
        run = _Run(runner, store, engine or Local, state, progress)
        held.callback(run.close)
        if options.gradients and not is_exact and can_differentiate(runner):
            state.gradients = run.gradients(min(options.gradients, looks[-1]))
        families = control_families(runner, units, found)
        everyone = [unit for family in families for unit in (family.of, *family.controls)]
        screened = list({unit.key: unit for unit in [*units, *everyone]}.values())
        if not options.exact and can_screen(runner, len(screened)):
            whole = {unit.key for unit in units if set(unit.dims) <= set(found)}
            state.screen = run.screen(screened, whole)
        run.measure(exact(state) if is_exact else adaptive(state))
        least = looks[-1] if runner.functional else min(options.random_texts, looks[-1])
        n_compared = next(stop for _, stop in pieces(looks) if stop >= least)
        compared = list({unit.key: unit for unit in everyone}.values())
        run.plan_controls(until(state, compared, n_compared))
        run.measure(until(state, compared, n_compared))
        precision = run.precision()
        run.report("done")
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
            metric=runner.task.metric,
            tolerance=options.tolerance,
            relative=options.relative,
            top_k=options.top,
            level=options.level,
            stop_level=state.level,
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
            cost=cost_of(runner, state, _controls(families, units), len(run.intact()), run.seconds()),
            precision=precision,
            notes=(*loaded.notes, *runner.notes),
        )


class _Memory:
    """A row store without a file."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}

    def get(self, key: str) -> Any | None:
        """The value of a finished unit, or None."""
        return self.done.get(key)

    def append(self, key: str, value: Any) -> Any:
        """Keep one finished unit."""
        self.done[key] = value
        return value


class _Run:
    """One run of a sweep: measures rounds of work into the rows and the state."""

    def __init__(
        self,
        runner: Runner,
        rows: RowStore | _Memory,
        engine: Callable[[Runner], Engine],
        state: State,
        progress: Callable[[SweepProgress], None] | None,
    ):
        self.runner, self.rows, self.state, self.progress = runner, rows, state, progress
        self._make_engine = engine
        self._engine: Engine | None = None
        self.spans = pieces(state.looks)
        self._digest = hashlib.sha256("\n".join(unit.key for unit in state.units).encode()).hexdigest()[:16]
        self.n_controls = self._before_controls = 0
        self._intact: dict[tuple[int, int], np.ndarray] = {}
        self._texts = 0
        self._started: float | None = None  # of the first evaluation: reading rows back is no measure of speed
        self._phase, self._told = "", 0.0

    def measure(self, rounds: Iterable[Round]) -> None:
        """THE loop: measure every round's work that the rows do not hold, append it, and let the next round be decided."""
        for phase, works in rounds:
            self._need_intact({work.span for work in works})
            missing = [work for work in works if self.rows.get(work.key) is None]
            self.report(phase)
            begun = time.monotonic()
            self._started = self._started or (begun if missing else None)
            for work, values in self._measured(missing):
                difference = values - self._intact[work.span]
                if work.only is not None:
                    difference = np.where(np.isnan(values), 0.0, difference)
                self.rows.append(work.key, {"differences": nine_digits(difference)})
                self._texts += work.n_texts
                self.report(phase)
            self._clock(begun, bool(missing))
            for work in works:
                difference = np.array(self.rows.get(work.key)["differences"])  # type: ignore[index]
                self.state.measured.add(work.unit.key, work.start, difference, len(difference) - work.n_texts)
                if self.state.screen is not None and work.only is not None:
                    self.state.screen.count(work.unit, work.span, difference)

    def _measured(self, works: list[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """The engine's answers; it is made when there is something to do: a finished sweep needs no cluster."""
        if not works:
            return
        if self._engine is None:
            self._engine = self._make_engine(self.runner)
        yield from self._engine.measure(works)

    def close(self) -> None:
        """Let go of the engine."""
        if self._engine is not None:
            self._engine.close()

    def _need_intact(self, spans: Iterable[tuple[int, int]]) -> None:
        """Have the intact model's values on these spans, measured in this process."""
        for span in sorted(spans):
            if span in self._intact:
                continue
            work = Work(INTACT, *span)
            kept = self.rows.get(work.key)
            if kept is None:
                self.report("intact")
                self._started = self._started or time.monotonic()
                values = self.runner.values([{}], span)[0]
                kept = self.rows.append(work.key, {"values": nine_digits(values)})
                self._texts += work.n_texts
            self._intact[span] = np.array(kept["values"], dtype=np.float64)
            check_intact(self.runner.loaded, self.runner.task, self._intact[span])
        if self.runner.functional is not None:
            self.runner.functional.intact = self.intact()

    def intact(self) -> np.ndarray:
        """Values of the intact model on all texts used, in the sweep's order [text]."""
        return np.concatenate([self._intact[span] for span in sorted(self._intact)])

    def gradients(self, n_texts: int) -> np.ndarray:
        """First-order estimates of all units on the first texts, about `n_texts`: float32 [text, unit]."""
        units = self.state.units
        family = f"gradients {self._digest}"
        parts = []
        for span in self.spans:
            if span[0] >= n_texts:
                break
            key = f"{family}|{span[0]}-{span[1]}"
            kept = self.rows.get(key)
            if kept is None:
                self.report("gradients")
                begun = time.monotonic()
                self._started = self._started or begun
                estimates = self.runner.backing_off(lambda span=span: first_order(self.runner, units, span))  # type: ignore[misc]
                kept = self.rows.append(key, {"float32": base64.b64encode(estimates.astype("<f4").tobytes()).decode()})
                self._texts += 3 * len(estimates)
                self._clock(begun, True)
            parts.append(np.frombuffer(base64.b64decode(kept["float32"]), "<f4").reshape(-1, len(units)))
        return np.concatenate(parts)

    def screen(self, units: Sequence[Unit], whole: set[str]) -> Screen:
        """Which texts are run for each of different units, from gradients of margins; those of `whole` on all texts."""
        digest = hashlib.sha256("\n".join(unit.key for unit in units).encode()).hexdigest()[:16]
        screen = Screen({unit.key: place for place, unit in enumerate(units)}, whole=whole)
        for span in self.spans:
            key, shape = f"screen {digest}|{span[0]}-{span[1]}", (span[1] - span[0], len(units))
            kept = self.rows.get(key)
            if kept is None:
                self.report("gradients")
                begun = time.monotonic()
                self._started = self._started or begun
                found = self.runner.backing_off(lambda span=span: masks(self.runner, units, span))  # type: ignore[misc]
                kept = self.rows.append(key, [packed(mask) for mask in found])
                self._texts += evaluations(self.runner) * shape[0]
                self._clock(begun, True)
            screen.wanted[span], screen.audited[span] = (unpacked(text, shape) for text in kept)
        return screen

    def plan_controls(self, rounds: Iterable[Round]) -> None:
        """Tell the progress how many evaluations the controls still take."""
        missing = (work for _, works in rounds for work in works if self.rows.get(work.key) is None)
        self.n_controls, self._before_controls = sum(work.n_texts for work in missing), self._texts

    def precision(self) -> Precision | None:
        """What a reduced precision does to the effects; kept in the rows like all that is measured."""
        key = f"precision {self._digest}"
        kept = self.rows.get(key)
        if kept is None:
            found = compared_with_float32(self.runner, self.state)
            kept = self.rows.append(key, asdict(found)) if found else None
        return Precision(**kept) if kept else None

    def _clock(self, begun: float, worked: bool) -> None:
        """Keep in the rows how long a round took: what a sweep took is the sum over its runs."""
        if worked:
            self.rows.append(f"seconds {begun:.6f}", round(time.monotonic() - begun, 3))

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
                done=done,
                total=len(state.units),
                texts=self._texts,
                texts_per_second=rate,
                seconds_left=0.0 if phase == "done" else left,
                leaders=tuple((state.units[n].label, found.change, found.half_width) for n, found in leaders),
            )
        )


def _identity(runner: Runner, texts: Data, model: str) -> dict[str, Any]:
    """What must be equal for rows to be reusable: all that a per-text difference depends on, and the order of texts."""
    options = runner.options
    task = asdict(options.task)
    del task["batch_size"]
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
        **({"tokens in a batch": runner.tokens} if options.mode == "resample" else {}),
        **({"screen": [SAFETY, AUDITED]} if runner.functional else {}),
        **begins(runner.task),
        **_labels(runner),
    }


def _labels(runner: Runner) -> dict[str, Any]:
    """What the outputs mean, where that is not the task's own order: a config can change under the same weights."""
    order = getattr(runner.task, "order", ())
    return {} if tuple(order) == tuple(range(len(order))) else {"labels of outputs": list(order)}


def _looks(runner: Runner) -> tuple[int, ...]:
    """Numbers of texts at which effects are estimated."""
    options = runner.options
    most = runner.n_texts if options.max_texts is None else min(options.max_texts, runner.n_texts)
    return (most,) if runner.exact else look_sizes(most)


def _controls(families: Sequence[Family], units: Sequence[Unit]) -> list[Unit]:
    """Every control once, without those that are swept themselves."""
    swept = {unit.key for unit in units}
    controls = {unit.key: unit for family in families for unit in family.controls}
    return [unit for key, unit in controls.items() if key not in swept]
