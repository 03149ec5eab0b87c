"""The ablations by name, as commands take them: one object that switches a plan off the way a run asks for.

ablation = Switch(loaded, stack, mode="weights")
with ablation.off({3: (507,)}) as n_values: ...
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.mode_names import ON_WEIGHTS, Mode
from outlierlens.ablation.switches import (
    EditSettings,
    check_shared,
    edited_hidden,
    mean_states,
    removed_writes,
    zeroed_norms,
    zeroed_weights,
)
from outlierlens.data.texts import NO_LIMIT, Data
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of
from outlierlens.results.safe_files import new_folder
from outlierlens.tasks.base import TaskOptions

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack


def task_for(mode: Mode, options: TaskOptions) -> TaskOptions:
    """`options` for measuring with `mode`: resampling draws from the tokens of a batch, so all of them must be there."""
    return replace(options, every_token=True) if mode == "resample" else options


@dataclass(frozen=True)
class Switch:
    """How dimensions are switched off in one run.

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
        if self.mode == "weights":
            return zeroed_weights(self.loaded, plan, stack=self.stack.name)
        if self.mode == "norms":
            return zeroed_norms(self.loaded, plan, stack=self.stack.name)
        if self.mode == "writes":
            return removed_writes(self.loaded, plan, stack=self.stack.name, embeddings=self.embeddings)
        return edited_hidden(self.loaded, plan, self.mode, stack=self.stack.name, settings=self.settings)

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
        check_save(directory, self.mode)
        with new_folder(directory) as making:
            with self.off(plan) as touched:
                self.loaded.model.save_pretrained(making)  # type: ignore[operator]
            for part in (self.loaded.tokenizer, self.loaded.processor):
                if part is not None:
                    part.save_pretrained(making)
        return touched

    @property
    def name(self) -> str:
        """ "zeroed_weights", "edited_hidden scale × 0.5", … as results say it."""
        if self.mode == "weights":
            return "zeroed_weights"
        if self.mode == "norms":
            return "zeroed_norms"
        if self.mode == "writes":
            return "removed_writes" + (" with embeddings" if self.embeddings else "")
        factor = f" × {self.settings.factor:g}" if self.mode == "scale" else ""
        return f"edited_hidden {self.mode}{factor}"


def check_save(directory: Path, mode: str) -> None:
    """Raise BadInput where `Switch.save` could not write; ask before measuring."""
    if mode not in ON_WEIGHTS:
        raise BadInput(
            f"--save needs --modes weights, norms or writes: mode {mode!r} lives in the running network only"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} is not empty; name a new folder")


def mode_by_layer(stack: "BoundStack") -> Mode:
    """How one layer alone is switched off: by its weights, or by what it gives where several layers share their weights.

    Where blocks end in a norm of the stream, as all that share them do, the two are the same.
    """
    return "weights" if len(stack.block_layers) == stack.n_layers else "zero"


def means_over(loaded: LoadedModel, stack: "BoundStack", texts: Data, *, length: int, batch_size: int) -> np.ndarray:
    """What mode "mean" puts in place: means [layer, dim] over the first `length` tokens of each text."""
    read = reading_of(loaded, texts, length).batches(texts, batch_size=batch_size)
    return mean_states(loaded, read, stack=stack.name)


def tokens_read(length: int) -> str:
    """How a note says that `length` tokens at most are read of each input."""
    return "all tokens" if length >= NO_LIMIT else f"the first {length} tokens"
