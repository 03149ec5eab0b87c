"""The interventions: dimensions off in all layers, in the last hidden state alone, or in the vocabulary product alone.

    switches = Switches(loaded, stack, mode="weights")
    with switches.off("layers", {0: (308,), 1: (308,)}) as n_values: ...
    with switches.off("last_hidden", plan): ...
    said.logits(feed, [dims])                      # "logits" needs no context: the dimensions are left out of a product

layers       as in `modes.Ablation`; Puccetti et al. (2022) zero scale and bias of each block's last norm
last_hidden  what the body hands to the head, after the final norm where there is one: the rest of the network is intact
logits       what is multiplied with the vocabulary matrix (Macocco et al. 2025). Without a transform in the head that is the
             last hidden state; BERT's head transforms it first, and dimensions of the two have only their number in common
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.mode_names import Mode, check_mode
from outlierlens.ablation.modes import Ablation, means_over
from outlierlens.ablation.switches import EditSettings
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.words import without
from outlierlens.models.changes import set_values, temporary
from outlierlens.models.forward import text_reader
from outlierlens.models.hooks import edited_output
from outlierlens.models.inputs import token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack


@dataclass(frozen=True)
class Switches:
    """How dimensions are switched off in one run.

    Attributes:
        ablation: how they are in all layers.
        head_norm: in all layers also scale and bias of the norm in the head, as the released code does to BERT.
    """

    loaded: LoadedModel
    ablation: Ablation
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
        settings = EditSettings(seed=task.seed)
        if mode == "mean":
            length = token_limit(loaded, task.max_length)
            means = means_over(loaded, stack, texts, length=length, batch_size=task.batch_size)
            settings = EditSettings(means=means)
        return cls(loaded, Ablation(loaded, stack, mode, settings=settings), head_norm)

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
        (name, parameter)
        for name, parameter in loaded.model.named_parameters()
        if ".LayerNorm." in f".{name}" and not name.startswith(blocks) and "embeddings" not in name
    ]
    with ExitStack() as undo:
        for name, parameter in found:
            set_values(undo, parameter, (torch.tensor(dims),), 0.0, name)
        yield len(found) * len(dims)
