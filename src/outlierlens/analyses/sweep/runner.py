"""Measure many ablations of one model on the same texts, several in one batch: the inner loop of a sweep.

    runner = make_runner(loaded, texts, SweepOptions())
    runner.values([{}, {0: (507,)}], (0, 16))        # [plan, text]: the task's values on the first 16 texts of the order

Three things make it fast, all checked against the plain way when a runner is made. Each row of a batch has its own dimensions
off (`written` / `edited` hooks); what lies before the first touched layer is computed once (`prefix`); and the last MLP of an
encoder sees the tokens that the task reads alone (`Task.narrowed`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.modes import Switch, means_over, task_for, tokens_read
from outlierlens.ablation.prefix import MAX_KEPT_BYTES, BlockOutput, can_resume, captured, resumed
from outlierlens.ablation.switches import EditSettings
from outlierlens.analyses.sweep.estimate import MetricChange
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.devices import out_of_memory, tokens_at_once
from outlierlens.models.hooks import edited, last_operations, written
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.tasks.base import Task, values_of
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Only = tuple[int, ...] | None
MEANS_TEXTS = 512  # lines that mode "mean" takes its means over
CHECK_TEXTS = 3


def make_runner(loaded: LoadedModel, texts: Data, options: SweepOptions) -> "Runner":
    """The runner of a sweep: the same one for the same model, texts and options, on whatever machine.

    Raises:
        BadInput: no text that the task can use, or a mode that the model does not allow.
    """
    runner = Runner(loaded, texts, options)
    runner.check()
    return runner


class Runner:
    """A model, its task on ordered texts, and an ablation.

    Attributes:
        tokens: of a forward pass, padding counted; fewer once memory ran out.
        order: the sweep's seeded random order of the task's texts, int [text]; spans (start, stop) count in it.
        weights: tokens that count, in that order [text].
        functional: what turns differences on all texts into an effect, where the task's score is no mean; else None.
        exact: whether every effect is measured on every text.
        site: where hidden states are edited: `written` for mode weights, else `edited`.
        mixes, reuses: whether batches mix ablations, and passes start behind the first touched layer.
        notes: what a reader of the results should know about how they were measured.
    """

    def __init__(self, loaded: LoadedModel, texts: Data, options: SweepOptions):
        if not options.exact:
            loaded.need_whole("a sweep without --precision exact, which chooses its next texts from its results,")
        self.loaded, self.options = loaded, options
        self.stack = loaded.axis(options.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.task: Task = make_task(loaded, texts, task_for(options.mode, options.task))
        self.n_texts = self.task.n_texts
        self.order = np.random.default_rng([options.seed, 1]).permutation(self.n_texts)
        self.weights = self.task.weights[self.order]
        statistic = self.task.statistic
        self.functional = None if statistic is None else MetricChange(statistic, self.order, options.seed)
        if self.functional and options.max_texts is not None:
            raise BadInput(
                f"{self.task.metric} is a metric of all texts together: max_texts is for losses and accuracy (measure='loss'); "
                f"to use fewer examples, limit the data"
            )
        self.exact = options.exact or self.functional is not None
        self.notes: list[str] = list(self.task.notes)
        settings = EditSettings(factor=options.factor, seed=options.seed)
        if options.mode == "mean":
            length = row_limit(loaded, texts, options.task.max_length)
            size = options.task.batch_size
            some = texts.first(MEANS_TEXTS)
            settings = EditSettings(means=means_over(loaded, self.stack, some, length=length, batch_size=size))
            self.notes.append(
                f"the mean that replaces a value is taken over {tokens_read(length)} of the first {len(some)} "
                f"{'lines' if texts.plural == 'texts' else texts.plural}"
            )
        self.ablation = Switch(loaded, self.stack, options.mode, options.embeddings, settings)
        self.tokens = tokens_at_once(loaded.device)
        self._longest = row_limit(loaded, texts, options.task.max_length)
        if options.batch_size is not None:
            self.tokens = options.batch_size * min(self._longest, int(self.task.lengths.max()))
        at_last = options.mode == "weights"
        editable = options.mode in ("zero", "scale", "mean") or (at_last and last_operations(self.stack) is not None)
        self.mixes = (
            editable and not self.stack.reads and loaded.blocks is None
        )  # batches and gradients edit what blocks give, not what linears read
        self.reuses = self.mixes and can_resume(self.stack)
        self.site = written if at_last else edited
        self._kept: tuple[tuple[int, int], dict[int, BlockOutput]] = ((0, 0), {})

    def values(self, plans: Sequence[Plan], span: tuple[int, int], only: "Sequence[Only] | None" = None) -> np.ndarray:
        """The task's values with each plan off (an empty one is the intact model), float64 [plan, text].

        `only` names for each plan the texts to run, counted from the start of the span; the others are NaN.
        """
        only = only or [None] * len(plans)
        if not self.mixes:
            return np.stack([self.alone(plan, span) for plan in plans])
        first = [min(plan, default=self.stack.n_layers) for plan in plans]
        if self._kept[0] != span or not set(first) & set(self._kept[1]):
            self.prepare(plans, span)
        groups: dict[int | None, list[int]] = {}
        for number, layer in enumerate(first):
            groups.setdefault(layer if layer in self._kept[1] else None, []).append(number)
        found = np.empty((len(plans), span[1] - span[0]))
        for start, numbers in groups.items():
            kept = None if start is None else self._kept[1][start]
            some = [only[number] for number in numbers]
            found[numbers] = self._mixed([plans[number] for number in numbers], span, kept, some)
        return found

    def prepare(self, plans: Sequence[Plan], span: tuple[int, int]) -> None:
        """Keep the states of the texts of `span` that all of `plans` can start behind, where that saves more than it costs.

        `values` does it for the plans it is given; whoever will ask for many plans of one span in parts says so first.
        """
        if not self.reuses:
            return
        self._kept = (span, {})  # let go of the old states before new ones are made
        count: dict[int, int] = {}
        for plan in plans:
            if plan:
                count[min(plan)] = count.get(min(plan), 0) + 1
        texts = self._texts(span)
        bare = self.site is written
        n_bytes = int(self.task.lengths[texts].sum()) * self.width * 4 * (1 + bare)
        dearest = sorted(count, key=lambda layer: -count[layer] * (layer + 1))
        layers = sorted(dearest[: MAX_KEPT_BYTES // n_bytes])
        saved = sum(count[layer] * (layer + 1) for layer in layers)
        if layers and saved > layers[-1] + 1 + bare * len(layers):
            self._kept = (span, self.backing_off(lambda: self._captured(layers, texts, bare=bare)))

    def _captured(self, layers: list[int], texts: np.ndarray, *, bare: bool) -> dict[int, BlockOutput]:
        import torch

        model, rows = self.loaded.model, texts.tolist()
        with torch.inference_mode(), self.task.narrowed():
            found = captured(model, self.stack, self.task, layers, rows, bare=bare, tokens=self.tokens)
        self.reuses = bool(found)
        return found

    def _mixed(
        self, plans: list[Plan], span: tuple[int, int], kept: BlockOutput | None, only: "Sequence[Only] | None" = None
    ) -> np.ndarray:
        """Values with each plan off, several plans in one batch; the batch shrinks where memory runs out."""
        texts = self._texts(span)
        # Rows of one text stand together, so that those of one batch are about equally long.
        wanted = [None if some is None else set(some) for some in only or [None] * len(plans)]
        pairs = [
            (plan, text)
            for text in range(len(texts))
            for plan, some in enumerate(wanted)
            if some is None or text in some
        ]
        if not pairs:
            return np.full((len(plans), len(texts)), np.nan)
        return self.backing_off(lambda: self._pass(plans, pairs, texts, kept))

    def backing_off(self, work: "Callable[[], T]") -> "T":
        """`work()`, with ever smaller batches where memory runs out."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.tokens < 2 * min(self._longest, int(self.task.lengths.min())):
                    raise
            self.tokens //= 2
            self.forget()

    def _pass(
        self, plans: list[Plan], pairs: list[tuple[int, int]], texts: np.ndarray, kept: BlockOutput | None
    ) -> np.ndarray:
        import torch

        def off(_: int, feed: Any) -> AbstractContextManager[None]:
            mine = [pairs[slot] for slot in feed.slots]
            return self._rows_off([plans[plan] for plan, _ in mine], kept, [text for _, text in mine])

        of_plan, of_text = np.array(pairs).T
        with torch.inference_mode(), self.task.narrowed():
            feeds = self.task.feeds(texts[of_text].tolist(), self.tokens)
            found = values_of(self.task, feeds, self.task.weights[texts[of_text]], off)
        values = np.full((len(plans), len(texts)), np.nan)
        values[of_plan, of_text] = found
        return values

    @temporary
    def _rows_off(self, plans: list[Plan], kept: BlockOutput | None, texts: list[int]) -> Iterator[None]:
        """Row by row, the dimensions of its plan off; passes start behind `kept`, if any."""
        layers = _positions(plans, self.loaded.device)
        model, settings, mode = self.loaded.model, self.ablation.settings, self.ablation.mode

        def edit(layer: int, states: "Tensor") -> None:
            rows, dims = layers[layer]
            shaped = states.view(len(plans), -1, states.shape[-1])  # some MLPs run on [batch * token, dim]
            if mode == "scale":
                shaped[rows, :, dims] *= settings.factor
            elif mode == "mean":
                assert settings.means is not None
                means = torch.from_numpy(settings.means[layer]).to(shaped)
                shaped[rows, :, dims] = means[dims][:, None]
            else:
                shaped[rows, :, dims] = 0

        import torch

        with ExitStack() as inside:
            if kept is not None:
                at = layers.get(kept.layer)
                inside.enter_context(resumed(model, self.stack, kept, texts, at))
            # What `resumed` stands in for never runs its last operation; a block's output it does give.
            wanted = [layer for layer in layers if kept is None or self.site is edited or layer > kept.layer]
            if wanted:
                inside.enter_context(self.site(model, self.stack, edit, wanted))  # type: ignore[arg-type]
            yield

    def forget(self) -> None:
        """Let go of states kept from earlier passes: the model's values have changed."""
        self._kept = ((0, 0), {})

    def alone(self, plan: Plan, span: tuple[int, int]) -> np.ndarray:
        """Values with one plan off by its context manager, the plain way."""
        texts = self._texts(span)

        def measure() -> np.ndarray:
            with self.ablation.off(plan):
                feeds = self.task.feeds(texts.tolist(), self.tokens)
                return values_of(self.task, feeds, self.task.weights[texts])

        return self.backing_off(measure)

    def _texts(self, span: tuple[int, int]) -> np.ndarray:
        return self.order[span[0] : span[1]]

    def rows(self, texts: np.ndarray) -> int:
        """Rows of a forward pass over the longest of these texts."""
        return max(1, self.tokens // min(self._longest, int(self.task.lengths[texts].max())))

    def check(self) -> None:
        """Hold the fast ways against the plain one on a few texts, and give up those that differ."""
        if not self.mixes:
            return
        span = (0, min(CHECK_TEXTS, self.n_texts))
        # Sets large enough that what they do stands far above rounding, and different on every row.
        random = np.random.default_rng(0)
        some = [tuple(sorted(random.permutation(self.width)[: max(1, self.width // 4)].tolist())) for _ in range(3)]
        layers = range(self.stack.n_layers)
        plans: list[Plan] = [{}, dict.fromkeys(layers, some[0]), {layers[-1]: some[1]}, dict.fromkeys(layers, some[2])]
        plain = np.stack([self.alone(one, span) for one in plans])
        ways: list[tuple[str, Callable[[], np.ndarray]]] = [
            ("mixing several ablations in a batch", lambda: self._mixed(plans, span, None))
        ]
        if self.reuses:
            ways.append(("reusing the part before the first touched layer", lambda: self._resumed(plans, span)))
        exact = self.loaded.model.dtype is _float32()
        for name, way in ways:
            why = ""
            try:
                if not _close(way(), plain, exact=exact):
                    why = "gives other numbers"
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
                why = f"fails ({type(error).__name__})"
            if why:
                self.notes.append(f"{name} {why} with this model, so it is not done; the sweep is slower")
                self.mixes, self.reuses = self.mixes and way is not ways[0][1], False
                return

    def _resumed(self, plans: list[Plan], span: tuple[int, int]) -> np.ndarray:
        """Values with each plan resumed from behind its own first layer, however little that saves."""
        found = [self._mixed([{}], span, None)[0]]
        for plan in plans[1:]:
            states = self._captured([min(plan)], self._texts(span), bare=self.site is written)
            found.append(self._mixed([plan], span, states.get(min(plan)))[0])
        return np.stack(found)


def _positions(plans: list[Plan], device: Any) -> "dict[int, tuple[Tensor, Tensor]]":
    """{layer: (rows, dimensions)} of all that is off in a batch; layers with the same share their tensors."""
    import torch

    pairs: dict[int, list[tuple[int, int]]] = {}
    for row, plan in enumerate(plans):
        for layer, dims in plan.items():
            pairs.setdefault(layer, []).extend((row, dim) for dim in dims)
    made: dict[tuple[tuple[int, int], ...], tuple[Tensor, Tensor]] = {}
    found = {}
    for layer, some in pairs.items():
        key = tuple(some)
        if key not in made:
            both = torch.tensor(some, device=device).T
            made[key] = (both[0].contiguous(), both[1].contiguous())
        found[layer] = made[key]
    return found


def _close(found: np.ndarray, plain: np.ndarray, *, exact: bool) -> bool:
    """Whether values [plan, text] agree, the first plan's as they are and the others' in what they change."""
    relative = 1e-3 if exact else 5e-2
    intact = np.allclose(found[0], plain[0], rtol=relative, atol=relative / 10, equal_nan=True)
    changes = np.allclose(found[1:] - found[0], plain[1:] - plain[0], rtol=relative, atol=relative / 10, equal_nan=True)
    return bool(intact and changes)


def _float32() -> Any:
    import torch

    return torch.float32
