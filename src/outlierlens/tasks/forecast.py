"""How long a measurement takes on this machine, said before it begins.

loaded.notice(forecast(task, 27, rows=None))      # 16 texts, read 27 times: about 5 min; nothing is kept if …
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from outlierlens.tasks.base import Task, values_of
from outlierlens.view.words import duration

TIMED = 4  # texts of the pass that is timed


def forecast(
    task: Task,
    n_times: int,
    *,
    share: float = 1.0,
    inputs: str = "texts",
    rows: Path | None = None,
    inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    most: bool = False,
) -> str:
    """What is read how often, about how long that takes, and what an interrupted run keeps.

    Args:
        task: what is measured; its first texts are timed.
        n_times: measurements. share: readings of all texts per measurement.
        inputs: what is read: texts, images, recordings.
        rows: the file that keeps finished measurements, if any.
        inside: the condition in which most readings happen; entering it counts once per measurement.
        most: whether `n_times` is a bound, since the work ends as soon as nothing is left to find.
    """
    timed = min(TIMED, task.n_texts)
    whole = float(task.lengths.sum() / max(1, task.lengths[:timed].sum()))
    begun = time.perf_counter()
    with inside():
        entering = time.perf_counter() - begun
        _read(task, timed)  # the first pass also sets things up
        begun = time.perf_counter()
        _read(task, timed)
        seconds = (time.perf_counter() - begun) * whole * share
    bound = "at most " if most else ""
    takes = duration(n_times * (seconds + entering))
    keeps = f"{rows} keeps what is finished" if rows else "an interrupted run keeps nothing (no file for rows)"
    return f"{task.n_texts:,} {inputs}, read {bound}{n_times * share:,.0f} times: {bound or 'about '}{takes}; {keeps}"


def _read(task: Task, n_texts: int) -> None:
    values_of(task, task.feeds(range(n_texts)), task.weights[:n_texts])
