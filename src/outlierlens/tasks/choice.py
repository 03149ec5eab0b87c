"""Which task fits a model and what it is to read, and how long a measurement takes on this machine, said before it begins.

task = make_task(loaded, texts, TaskOptions())
loaded.notice(forecast(task, 27, rows=None))      # 16 texts, read 27 times: about 5 min; nothing is kept if …
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from outlierlens.data.labelled import Examples
from outlierlens.data.media import Items, LabelledItems
from outlierlens.data.texts import Data, Texts
from outlierlens.errors import BadInput, near
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task, TaskOptions, values_of
from outlierlens.view.section import duration

FITTING = {"causal": "causal loss", "masked": "masked loss", "other": "output change", "none": "output change"}
CHANGES = ("output change", "sentence change")  # of any model that reads text
LABELLED = "labelled"


def vector_task(loaded: LoadedModel, options: TaskOptions) -> TaskOptions:
    """For texts: "auto" of a model without a head is the change of each text's own vector, which is what is used of it."""
    auto = options.name == "auto" and loaded.head == "none"
    return replace(options, name="sentence change") if auto else options


def make_task(loaded: LoadedModel, texts: Data | Sequence[str], options: TaskOptions | None = None) -> Task:
    """The task `options.name`; "auto" is the one that fits the model's head, or the examples' own where they have labels.

    Raises:
        BadInput: the head cannot do the task, no text is long enough, or the examples' labels are not the model's.
    """
    options = options or TaskOptions()
    name = options.name
    if name == LABELLED or (name == "auto" and isinstance(texts, Examples | LabelledItems)):
        if not isinstance(texts, Examples | LabelledItems):
            raise BadInput("a labelled task needs examples with labels: read_examples(find_task(…), …)")
        from outlierlens.tasks.classify import LabelledScore

        return LabelledScore(loaded, texts, options)
    if isinstance(texts, Items):
        from outlierlens.tasks.output_change import OutputChange

        if name not in ("auto", "output change"):
            raise BadInput(
                f"{name!r} is a task of texts; of {texts.kind} data there are classification and 'output change'"
            )
        return OutputChange(loaded, texts, options)
    plain: Sequence[str] = texts.texts if isinstance(texts, Texts) else texts  # type: ignore[assignment]
    if name == "auto":
        name = FITTING[loaded.head]  # type: ignore[assignment]
    if name in CHANGES:
        from outlierlens.tasks.output_change import OutputChange, SentenceChange

        return (OutputChange if name == "output change" else SentenceChange)(loaded, plain, options)
    if name not in FITTING.values():
        known = dict.fromkeys((*FITTING.values(), *CHANGES))
        raise BadInput(f"unknown task {name!r}; tasks are auto, {', '.join(known)}{near(name, known)}")
    if name != FITTING[loaded.head]:
        lacks = ", or no mask token," * (name == FITTING["masked"])
        raise BadInput(
            f"{loaded.name} has no head{lacks} for {name!r}; the task that fits it is {FITTING[loaded.head]!r}"
        )
    from outlierlens.tasks.language_model import CausalLoss, MaskedLoss

    return CausalLoss(loaded, plain, options) if name == "causal loss" else MaskedLoss(loaded, plain, options)


# --- how long it takes -----------------------------------------------------------------------------------------------

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
    """Number of readings, their approximate time, and what an interrupted run keeps.

    Args:
        task: what is measured; its first texts are timed.
        n_times: measurements. share: readings of all texts per measurement.
        inputs: what is read: texts, images, recordings.
        rows: the file that keeps finished measurements, if any.
        inside: the condition in which most readings happen; entering it counts once per measurement.
        most: whether `n_times` is a bound, since the work ends as soon as nothing is left to find.
    """
    if task.loaded.blocks is not None:  # the intact model is read with them
        return task.loaded.blocks.forecast(n_times + 1, int(task.lengths.sum()))
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
    keeps = f"{rows} keeps finished measurements" if rows else "an interrupted run keeps nothing (no file for rows)"
    return f"{task.n_texts:,} {inputs}, read {bound}{n_times * share:,.0f} times: {bound or 'about '}{takes}; {keeps}"


def _read(task: Task, n_texts: int) -> None:
    values_of(task, task.feeds(range(n_texts)), task.weights[:n_texts])
