"""What a model predicts at the positions of its input: the texts as rows of tokens, and their logits part by part.

    task = INPUT_TASKS["unmasked"](loaded, texts, TaskOptions(max_length=128))
    for feed in task.feeds(range(task.n_texts)):
        for number, rows, logits in task.logits(feed, [(), (308, 381)]):   # as it is; two dimensions out of the product
            ...                                                           # logits [some of the selected, vocabulary]

masked     15 % of the ordinary tokens are predicted, masked as for the masked loss
unmasked   every ordinary token is predicted from the text as it stands, itself included (Puccetti et al. 2022)
next       every token but the first is predicted from those before it

The interventions: dimensions off in all layers, in the last hidden state alone, or in the vocabulary product alone.

    switches = Switches(loaded, stack, mode="weights")
    with switches.off("layers", {0: (308,), 1: (308,)}) as n_values: ...
    with switches.off("last_hidden", plan): ...
    said.logits(feed, [dims])                      # "logits" needs no context: the dimensions are left out of a product

layers       as in `modes.Switch`; Puccetti et al. (2022) zero scale and bias of each block's last norm
last_hidden  what the body hands to the head, after the final norm where there is one: the rest of the network is intact
logits       what is multiplied with the vocabulary matrix (Macocco et al. 2025). Without a transform in the head that is the
             last hidden state; BERT's head transforms it first, and dimensions of the two have only their number in common
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.mode_names import Mode, check_mode
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.switches import EditSettings
from outlierlens.data.texts import Texts
from outlierlens.data.token_texts import special_ids
from outlierlens.errors import BadInput
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.forward import text_reader
from outlierlens.models.hooks import edited_inputs, edited_output, head_inputs, head_only_at
from outlierlens.models.inputs import token_ids, token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.language_model import CausalLoss, LanguageModelLoss, MaskedLoss, PredictionRows, Window

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.architectures import BoundStack

LOGIT_BYTES = 64_000_000  # of logits at once
OF_HEAD = {"masked": ("masked", "unmasked"), "causal": ("next",)}


@dataclass(frozen=True)
class Feed(PredictionRows):
    """`PredictionRows`, with the text that each predicted token is of, int [selected]."""

    text: np.ndarray


class Said(LanguageModelLoss):
    """A language-model task whose logits are looked at, and not only its loss."""

    @property
    def n_rows(self) -> int:
        """Rows of the vocabulary matrix."""
        return int(self._head.weight.shape[0])

    @property
    def width(self) -> int:
        """Dimensions of what is multiplied with the vocabulary matrix."""
        return int(self._head.weight.shape[1])

    def all_feeds(self) -> list[Any]:
        """Forward passes that together read every text once, longest first."""
        # Where logits are not the product alone, all of a pass are held at once.
        tokens = None if self._by_parts else max(int(self.lengths.max()), LOGIT_BYTES // (4 * self.n_rows))
        return list(self.feeds(range(self.n_texts), tokens))

    def logits(self, feed: Feed, off: Sequence[Sequence[int]]) -> Iterator[tuple[int, slice, "Tensor"]]:
        """(number in `off`, which of the selected, their logits [some, vocabulary]): float32, a part at a time.

        Of every entry of `off`, those dimensions are out of the product with the vocabulary matrix; one pass serves all.
        """
        from torch.nn import functional

        size = max(1, LOGIT_BYTES // (4 * self.n_rows))
        if self._by_parts:
            states = head_inputs(self._model, feed.positions, lambda: self._run(feed))
            for number, dims in enumerate(off):
                for part in _parts(len(states), size):
                    some = functional.linear(without(states[part], dims), self._head.weight, self._head.bias)
                    yield number, part, some.float()
            return
        for number, dims in enumerate(off):
            dropped = edited_inputs(self._model, [self._head], _dropping(dims)) if dims else nullcontext()
            with dropped, head_only_at(self._model, feed.positions):
                whole = self._run(feed).logits
            for part in _parts(len(whole), size):
                yield number, part, whole[part].float()

    def reads_last_hidden(self) -> bool:
        """Whether what is multiplied with the vocabulary matrix is the last hidden state itself, tried on one text."""
        import torch

        feed = next(self.feeds([int(self.lengths.argmin())]))
        kept: list[Tensor] = []

        def keep(states: "Tensor") -> "Tensor":
            kept.append(states)
            return states

        reader = text_reader(self.loaded, self.loaded.stacks)
        with torch.inference_mode(), edited_output(self._model, reader, keep):
            read = head_inputs(self._model, feed.positions, lambda: self._run(feed))
        last = kept[-1][feed.positions]
        return last.shape == read.shape and torch.equal(last, read)

    @property
    def _model(self) -> Any:
        return self.loaded.model

    @property
    def _head(self) -> Any:
        return self._model.get_output_embeddings()

    def _collate(self, rows: list[tuple[int, Window]]) -> Feed:
        made = super()._collate(rows)
        text = np.repeat(np.array(made.slots), [len(window.positions) for _, window in rows])
        return Feed(**{one.name: getattr(made, one.name) for one in fields(PredictionRows)}, text=text)


class MaskedInput(Said, MaskedLoss):
    """Masked tokens."""


class UnmaskedInput(Said, MaskedLoss):
    """Every ordinary token, nothing masked."""

    def _windows(self, number: int, text: str) -> list[Window]:
        ids = token_ids(self.loaded, text, truncation=True, max_length=self.max_length)
        special = special_ids(self.loaded.tokenizer)
        ordinary = [i for i, token in enumerate(ids) if token not in special]
        return [Window(number, ids, ordinary, [ids[i] for i in ordinary])] if ordinary else []


class NextToken(Said, CausalLoss):
    """Every token but a text's first, from those before it."""


INPUT_TASKS: dict[str, type[Said]] = {"masked": MaskedInput, "unmasked": UnmaskedInput, "next": NextToken}


def without(states: "Tensor", dims: Sequence[int]) -> "Tensor":
    """A copy of states [..., dim] with `dims` zero; the states themselves where there are none."""
    if not len(dims):
        return states
    changed = states.clone()
    changed[..., list(dims)] = 0
    return changed


def _dropping(dims: Sequence[int]) -> Callable[["Tensor"], "Tensor"]:
    return lambda states: without(states, dims)


def _parts(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(n, start + size)) for start in range(0, n, size))


@dataclass(frozen=True)
class Switches:
    """How dimensions are switched off in one run.

    Attributes:
        ablation: how they are in all layers.
        head_norm: in all layers also scale and bias of the norm in the head, as the released code does to BERT.
    """

    loaded: LoadedModel
    ablation: Switch
    head_norm: bool = False

    @classmethod
    def make(
        cls, loaded: LoadedModel, stack: "BoundStack", mode: Mode, texts: Texts, task: TaskOptions, *, head_norm: bool
    ) -> "Switches":
        """For `mode`; "mean" takes its means over `texts`.

        Raises:
            BadInput: no such mode.
        """
        check_mode(mode, 1.0, False)
        ablation = Switch(loaded, stack, mode, settings=EditSettings(seed=task.seed))
        length = token_limit(loaded, task.max_length)
        return cls(loaded, ablation.with_means(texts, length=length, batch_size=task.batch_size), head_norm)

    @temporary
    def off(self, intervention: str, plan: Plan) -> Iterator[int]:
        """Switch `plan` off inside the block; yields the number of parameters set to zero."""
        with ExitStack() as hooks:
            n_values = 0
            if intervention == "layers":
                n_values = hooks.enter_context(self.ablation.off(plan))
                if self.head_norm:
                    n_values += hooks.enter_context(_zeroed_head_norm(self.loaded, every(plan)))
            elif intervention == "last_hidden":
                reader = text_reader(self.loaded, self.loaded.stacks)
                if reader is self.loaded.model:
                    raise BadInput(
                        f"{self.loaded.name}: no module of it ends at the last hidden state; leave last_hidden out"
                    )
                dims = every(plan)
                hooks.enter_context(edited_output(self.loaded.model, reader, lambda states: without(states, dims)))
            yield n_values

    @property
    def width(self) -> int:
        """Dimensions of the stream."""
        return stream_width(self.loaded.model, self.ablation.stack)


def every(plan: Plan) -> tuple[int, ...]:
    """Dimensions that are off in any layer, ascending."""
    return tuple(sorted({dim for dims in plan.values() for dim in dims}))


@temporary
def _zeroed_head_norm(loaded: LoadedModel, dims: tuple[int, ...]) -> Iterator[int]:
    """Zero scale and bias of a norm called LayerNorm outside the blocks and the embeddings; yields how many values."""
    import torch

    blocks = tuple(path.rpartition(".")[0] + "." for stack in loaded.stacks for path in stack.blocks)
    found = [
        name
        for name, _ in loaded.model.named_parameters()
        if ".LayerNorm." in f".{name}" and not name.startswith(blocks) and "embeddings" not in name
    ]
    with ExitStack() as undo:
        settable = Settable(undo, loaded.model)
        for name in found:
            settable.set_values(name, (torch.tensor(dims),), 0.0)
        yield len(found) * len(dims)
