"""What a running sweep says on stderr: how far it is, how fast, how long still, and the leader board so far.

with SweepView(show=True) as view:
    sweep(loaded, texts, options, progress=view)
view.texts                                # texts evaluated by this run: 0 where the rows held everything

On a terminal the lines are drawn over each other; elsewhere (a batch system's log) there is a line for
every new phase and one each half minute.
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlierlens.experiments.sweep.measure import SweepProgress

SECONDS_BETWEEN_LINES = 30.0


class SweepView:
    """Receives each `SweepProgress` and shows it; with `show` off it only remembers the texts evaluated."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self.texts = 0
        self._live: Any = None
        self._phases: set[str] = set()
        self._said = -float("inf")

    def __call__(self, state: "SweepProgress") -> None:
        """Show `state`, or remember it until there is something new to say."""
        self.texts = state.texts
        if not self.show:
            return
        if sys.stderr.isatty():
            self._draw(state)
        elif state.phase not in self._phases or time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._phases.add(state.phase)
            self._said = time.monotonic()
            so_far = "; so far " + ", ".join(board(state)) if state.leaders else ""
            print(headline(state) + so_far, file=sys.stderr, flush=True)

    def _draw(self, state: "SweepProgress") -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        drawn = Table.grid()
        drawn.add_row(Text(headline(state), no_wrap=True))
        drawn.add_row(ProgressBar(total=max(1, state.total), completed=state.done, width=60))
        for line in board(state):
            drawn.add_row(Text(f"  {line}", no_wrap=True))
        self._live.update(drawn, refresh=True)

    def close(self) -> None:
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "SweepView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def headline(state: "SweepProgress") -> str:
    """How far, how fast and how long still, in words."""
    parts = [f"{state.phase}: {state.done:,} of {state.total:,} settled"]
    if state.texts:
        speed = state.texts_per_second
        parts.append(f"{speed:,.0f} texts/s" if speed >= 100 else f"{speed:.3g} texts/s")
    if state.seconds_left is not None:
        parts.append(f"{duration(state.seconds_left)} left")
    return ", ".join(parts)


def board(state: "SweepProgress") -> list[str]:
    """The leader board so far, strongest first: "507: +8.4 ± 0.4"."""
    return [f"{label}: {change:+.4g} ± {half:.2g}" for label, change, half in state.leaders]


def duration(seconds: float) -> str:
    """Seconds for reading: "4.5 s", "45 s", "12 min", "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60:02} min"
