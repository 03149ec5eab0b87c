"""The ablations by name: one object that switches a plan off the way a run asks for, and what is done to dimensions in parts.

    switch = Switch(loaded, stack)
    for one in treatments(("zero", "position-mean", "scale:2")): one.name, one.mode, one.factor, one.tokens
    parts = Folds(switch, tasks, columns)         # a task: its values are those of all parts
    with parts.treated(plan, one): parts.per_text()

In parts, the texts of each get the means of the others.

Their names, as options take them, stand first; `Switch` is what they do.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

import outlierlens.architectures as arch
from outlierlens.ablation.controls import Plan
from outlierlens.ablation.switches import (
    EditMode,
    EditSettings,
    EditTokens,
    PositionSums,
    check_shared,
    collected,
    edited_hidden,
    mean_states,
    removed_writes,
    zeroed_norms,
    zeroed_weights,
)
from outlierlens.data.texts import NO_LIMIT, Data, Texts
from outlierlens.errors import BadInput, near
from outlierlens.models.inputs import reading_of
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.results.rows import UNKNOWN, Estimate
from outlierlens.results.safe_files import new_folder
from outlierlens.statistics.means import ratio_interval
from outlierlens.tasks.base import Task, TaskOptions
from outlierlens.tasks.choice import make_task, vector_task

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.architectures import BoundStack

# --- names -----------------------------------------------------------------------------------------------------------


Mode = Literal["weights", "norms", "zero", "mean", "scale", "resample", "writes"]
MODES: tuple[Mode, ...] = get_args(Mode)
ON_WEIGHTS: tuple[Mode, ...] = ("weights", "norms", "writes")
SCALES = ("scale", "scale-once")  # which take a factor
NAMES = (*ON_WEIGHTS, "zero", "mean", "position-mean", "resample", *SCALES)  # of `ablate --modes`


def named_mode(name: str) -> Mode:
    """The mode called `name`; raises BadInput with the choices."""
    if name not in MODES:
        raise BadInput(f"unknown mode {name!r}; modes are {', '.join(MODES)}{near(name, MODES)}")
    return name


def check_mode(mode: str, factor: float, embeddings: bool) -> None:
    """Raise BadInput for a mode that does not exist, or settings that do not belong to it."""
    named_mode(mode)
    if not math.isfinite(factor):
        raise BadInput(f"factor is {factor}; it must be a number")
    if embeddings and mode != "writes":
        raise BadInput(f"embeddings belongs to mode writes, not to mode {mode!r}")


def check_no_resampling(mode: Mode, what: str) -> None:
    """Raise BadInput for the mode in which `what` of one text depends on the others of its batch."""
    if mode == "resample":
        raise BadInput(
            f"mode resample permutes values among the tokens of a batch, so {what} would depend on the batch size; use "
            f"{', '.join(other for other in MODES if other != 'resample')}"
        )


ON = {"weights": zeroed_weights, "norms": zeroed_norms, "writes": removed_writes}


def task_for(mode: Mode, options: TaskOptions) -> TaskOptions:
    """`options` for measuring with `mode`: resampling draws from the tokens of a batch, so all of them must be there."""
    return replace(options, every_token=True) if mode == "resample" else options


@dataclass(frozen=True)
class Switch:
    """How dimensions are ablated in one run.

    Attributes:
        mode: "weights" (zeroed_weights), "norms" (zeroed_norms), "zero" / "mean" / "scale" / "resample" (edited_hidden),
            "writes" (removed_writes).
        embeddings: of mode "writes": the embeddings' writes too.
        settings: of the modes that edit hidden states; mode "mean" needs its means, see `with_means`.
    """

    loaded: LoadedModel
    stack: "BoundStack"
    mode: Mode = "weights"
    embeddings: bool = False
    settings: EditSettings = field(default_factory=EditSettings)

    def check(self, plan: Plan) -> None:
        """Raise BadInput where the mode cannot switch `plan` off: ask before measuring."""
        if self.mode in ON_WEIGHTS:
            check_shared(self.stack, plan)

    def off(self, plan: Plan | None) -> AbstractContextManager[int]:
        """Switch `plan` off inside the block; yields the number of values set. Nothing is off for None or {}."""
        if not plan:
            return nullcontext(0)
        if self.mode == "writes":
            return removed_writes(self.loaded, plan, stack=self.stack.name, embeddings=self.embeddings)
        if self.mode in ON:
            return ON[self.mode](self.loaded, plan, stack=self.stack.name)
        return edited_hidden(
            self.loaded, plan, cast(EditMode, self.mode), stack=self.stack.name, settings=self.settings
        )

    def with_means(self, texts: Data, *, length: int, batch_size: int) -> "Switch":
        """The same, in mode "mean" with the means over the first `length` tokens of each text in place."""
        if self.mode != "mean":
            return self
        means = means_over(self.loaded, self.stack, texts, length=length, batch_size=batch_size)
        return replace(self, settings=replace(self.settings, means=means))

    def save(self, plan: Plan, directory: Path) -> int:
        """Write a loadable copy of the model with `plan` off in its weights to a new folder; returns the number of values set.

        Raises:
            BadInput: the mode edits hidden states, which no weights file can hold; or the folder is not empty.
        """
        self.loaded.need_whole("--save")
        check_save(directory, self.mode)
        with new_folder(directory) as making:
            with self.off(plan) as touched:
                model: Any = self.loaded.model
                model.save_pretrained(making, state_dict=model.state_dict() | arch.offloaded_values(model))
            for part in (self.loaded.tokenizer, self.loaded.processor):
                if part is not None:
                    part.save_pretrained(making)
        return touched

    @property
    def name(self) -> str:
        """ "zeroed_weights", "edited_hidden scale × 0.5", … as results say it."""
        if self.mode in ON:
            return ON[self.mode].__name__ + " with embeddings" * self.embeddings
        factor = f" × {self.settings.factor:g}" if self.mode == "scale" else ""
        return f"edited_hidden {self.mode}{factor}"


def check_save(directory: Path, *modes: str) -> None:
    """Raise BadInput where `Switch.save` could not write; ask before measuring."""
    if len(modes) != 1 or modes[0] not in ON_WEIGHTS:
        raise BadInput(
            f"--save writes the weights of one mode: --modes {' or '.join(ON_WEIGHTS)}; {', '.join(modes)} is not one of them"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} is not empty; name a new folder")


def mode_by_layer(stack: "BoundStack") -> Mode:
    """How one layer alone is ablated: by its weights, or by what it gives where several layers share their weights.

    Where blocks end in a norm of the stream, as all that share them do, the two are the same.
    """
    return "weights" if len(stack.block_layers) == stack.n_layers else "zero"


def means_over(loaded: LoadedModel, stack: "BoundStack", texts: Data, *, length: int, batch_size: int) -> np.ndarray:
    """What mode "mean" puts in place: means [layer, dim] over the first `length` tokens of each text."""
    reading = reading_of(loaded, texts, length, stack.name)
    return mean_states(loaded, reading.batches(texts, batch_size=batch_size), stack=stack.name, run=reading)


def tokens_read(length: int) -> str:
    """How a note says that `length` tokens at most are read of each input."""
    return "all tokens" if length >= NO_LIMIT else f"the first {length} tokens"


# --- treatments ------------------------------------------------------------------------------------------------------

ZERO, MEAN, POSITION_MEAN = "zero", "mean", "position-mean"
KEPT, FIRST = "zero, first token kept", "zero, first token only"
ALL = (
    ZERO,
    MEAN,
    POSITION_MEAN,
    "resample",
    KEPT,
    FIRST,
    "scale-once:0.5",
    "scale-once:1.5",
    "scale-once:2",
    "scale-once:3",
)
IN_PARTS = (POSITION_MEAN, "scale-once")  # measured in parts of the texts even when alone
HALF = 0.5  # of zero's damage: recovering more is most of it
FEW_MEANS = 0.05  # share of tokens without a mean of their position, above which it is said
TOKENS = {"all": "", "rest": ", first token kept", "first": ", first token only"}


@dataclass(frozen=True)
class ModeTreatment:
    """Something that is done to dimensions.

    Attributes:
        mode: of `NAMES`. factor: of a scale, 0 of zero at all tokens, else NaN. tokens: which ones are edited.
    """

    mode: str
    factor: float = math.nan
    tokens: EditTokens = "all"

    @property
    def name(self) -> str:
        """In results: "zero", "scale-once 2", "zero, first token kept"."""
        factor = f" {self.factor:g}" if self.mode in SCALES else ""
        return f"{self.mode}{factor}{TOKENS[self.tokens]}"

    def of(self, switch: Switch) -> Switch:
        """`switch`, whose settings have the means and the seed, for this."""
        settings = replace(switch.settings, tokens=self.tokens, factor=self.factor)
        return replace(switch, mode=cast(Mode, self.mode.replace("-", " ")), settings=settings)


def treatments(modes: Sequence[str], tokens: EditTokens = "all") -> tuple[ModeTreatment, ...]:
    """What the words of `modes` name, each once; "all" is `ALL`, and zero with the first token kept, and at it alone.

    Raises:
        BadInput: no mode, an unknown one, or a factor that is missing, no number, or 0 or 1, which are zero and nothing done.
    """
    found: dict[ModeTreatment, None] = {}
    for word in modes:
        for one in ALL if word == "all" else (word,):
            if one in (KEPT, FIRST):
                found[ModeTreatment(ZERO, tokens="rest" if one == KEPT else "first")] = None
                continue
            name, _, factor = one.partition(":")
            if name not in NAMES:
                raise BadInput(f"unknown mode {name!r}; modes are {', '.join(NAMES)}, all{near(name, NAMES)}")
            scales = name in SCALES
            if scales != bool(factor):
                raise BadInput(f"mode {one!r}: " + (f"write {name}:2" if scales else f"{name} takes no factor"))
            value = _factor(one, factor) if scales else 0.0 if name == ZERO and tokens == "all" else math.nan
            found[ModeTreatment(name, value, tokens)] = None
    if not found:
        raise BadInput(f"no mode is named; modes are {', '.join(NAMES)}, all")
    return tuple(found)


def _factor(word: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value in (0, 1):
        raise BadInput(f"mode {word!r}: the factor must be a number other than 0 (zero) and 1 (nothing done)")
    return value


_now: "ContextVar[tuple[Plan, ModeTreatment] | None]" = ContextVar("_now", default=None)
_Part = tuple[np.ndarray, np.ndarray, dict[str, float]]  # values, weights, further numbers


class Folds(Task):
    """Texts in parts as one task, whose values are those of all parts; each part is treated with the means of the others.

    Outside of `treated` its values are those of the intact model, read once.

    Attributes:
        tasks: one for each part that has a usable text. numbers: the texts' numbers in the order of the values [text].
        no_mean: share of tokens at positions that no text of the other parts reaches, in [0, 1].
    """

    def __init__(self, switch: Switch, tasks: Sequence[Task], columns: Sequence[int]):
        self.switch, self.tasks, self.loaded = switch, tasks, switch.loaded
        first = tasks[0]
        self.name, self.unit, self.text, self.metric = first.name, first.unit, first.text, first.metric
        self.is_loss, self.statistic, self.smallest = first.is_loss, first.statistic, first.smallest
        self.n_texts, self.n_tokens = (sum(getattr(one, name) for one in tasks) for name in ("n_texts", "n_tokens"))
        self.lengths = np.concatenate([one.lengths for one in tasks])

        def collect(task: Task) -> tuple[PositionSums, _Part]:
            with collected(switch.loaded, switch.stack, columns) as collecting:
                return collecting, (*task.per_text(), task.also())

        sums, found = zip(*switch.loaded.run(partial(collect, task) for task in tasks), strict=True)
        self._intact = list(found)
        self.weights = np.concatenate([weights for _, weights, _ in found])
        self.settings = self._means(sums)
        few = (
            f"{self.no_mean:.0%} of the tokens stand where no text of the other parts has a token, and get the mean over "
            f"all positions: give more texts, or cut them shorter"
        )
        self.notes = tuple(dict.fromkeys(note for one in tasks for note in one.notes)) + (few,) * (
            self.no_mean > FEW_MEANS
        )

    def _means(self, sums: Sequence[PositionSums]) -> list[EditSettings]:
        """Of each part the means of the others."""
        width = stream_width(self.switch.loaded.model, self.switch.stack)
        whole, unmatched = sums[0], 0
        for part in sums[1:]:
            whole = whole.plus(part)
        found = []
        for own in sums:
            others = whole.plus(own, -1)
            unmatched += int(own.counts[others.counts[: len(own.counts)] == 0].sum())
            means, by_position = others.means(width), others.position_means()
            found.append(replace(self.switch.settings, means=means, position_means=by_position))
        self.no_mean = unmatched / whole.n_tokens
        return found

    @contextmanager
    def treated(self, plan: Plan, treatment: ModeTreatment) -> Iterator[int]:
        """Inside, all parts are read under a treatment of `plan`."""
        before = _now.set((plan, treatment))  # of this condition: others may be measured at the same time
        try:
            yield 0
        finally:
            _now.reset(before)

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [text], weights [text]) of all parts."""

        def treat(plan: Plan, treatment: ModeTreatment, task: Task, settings: EditSettings) -> _Part:
            with treatment.of(replace(self.switch, settings=settings)).off(plan):
                return *task.per_text(), task.also()

        parts = zip(self.tasks, self.settings, strict=True)
        now = _now.get()
        self._last = self.loaded.run(partial(treat, *now, *part) for part in parts) if now else self._intact
        return np.concatenate([values for values, *_ in self._last]), self.weights

    def also(self) -> dict[str, float]:
        """Further numbers of the last call of `per_text`, weighted."""
        weights = [float(weights.sum()) for _, weights, _ in self._last]
        return {
            name: sum(w * also[name] for w, (*_, also) in zip(weights, self._last, strict=True)) / sum(weights)
            for name in self._last[0][2]
        }

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[Any]:
        """Of the first part alone: for the time that a reading takes."""
        return self.tasks[0].feeds([one for one in texts if one < self.tasks[0].n_texts], tokens)

    def sums(self, feed: Any) -> "Tensor":
        """Of a feed of the first part."""
        return self.tasks[0].sums(feed)


def tasks_of_parts(
    loaded: LoadedModel, texts: Data, options: TaskOptions, n_folds: int
) -> tuple[list[Task], tuple[int, ...]]:
    """(the task of each part that has a usable text, the texts' numbers in the order of the tasks' values).

    Raises:
        BadInput: fewer than two parts are usable, or the task's value is no mean over texts.
    """
    options = vector_task(loaded, options) if isinstance(texts, Texts) else options
    # Shuffling draws from all tokens, and the mean of a position needs it to be where the model has it.
    options = replace(options, every_token=True)
    n_folds = min(n_folds, len(texts))
    tasks: list[Task] = []
    numbers: list[int] = []
    refused: BadInput | None = None
    for fold in range(n_folds):
        mine = range(fold, len(texts), n_folds)
        try:
            task = make_task(loaded, texts.some(mine), options)
        except BadInput as error:  # no text of this part has a token that counts
            refused = error
            continue
        if task.statistic is not None:
            raise BadInput(
                f"{task.metric} is not a mean over texts, so the share that a mode recovers is undefined; measure the loss "
                f"(--task measure=loss, TaskOptions(measure='loss')), or one mode"
            )
        tasks.append(task)
        numbers += [mine[place] for place in getattr(task, "texts", range(task.n_texts))]
    if len(tasks) < 2:
        raise refused or BadInput(f"{len(texts)} {texts.plural}: the mean of others needs at least two; give more")
    return tasks, tuple(numbers)


def recovered(intact: np.ndarray, zero: np.ndarray, other: np.ndarray, weights: np.ndarray) -> Estimate:
    """The share of zero's damage that `other` does not do, values [text] each, with its 95 % interval.

    1 − Σ w (other − intact) / Σ w (zero − intact), whose three values of a text go together. NaN where a value is not finite.
    """
    with np.errstate(invalid="ignore"):
        above, below = weights * (zero - other), weights * (zero - intact)
    if not np.isfinite([above, below]).all():
        return UNKNOWN
    return Estimate(float(above.sum() / below.sum()), *ratio_interval(above, below))
