"""What `recover` is asked: which dimensions are switched off, and how the model is fine-tuned again."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, check
from outlierlens.training.finetune.options import FinetuneSettings


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """What is switched off and fine-tuned again."""

    dims: DimsOrFind = FIND
    """Switch these off: 308,381; find: what the rule finds."""
    stack: str | None = None
    """Which stream, where there are several."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 1
    """Random sets of the same size, treated alike."""
    seeds: Annotated[tuple[int, ...], Flag(read="options.read:parse_seeds", words="42")] = (42,)
    """Seeds of fine-tuning, one run of each kind: 42,43."""
    settings: Annotated[
        FinetuneSettings, Flat("epochs", "learning_rate", "batch", "max_length", "train_limit", "precision")
    ] = FinetuneSettings(epochs=3)
    """Of every fine-tuning; `off`, `hold`, `stack` and `seed` are set by the others."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random sets and of intervals."""

    def __post_init__(self) -> None:
        check(self)
        if not self.seeds:
            raise BadInput("no seed to fine-tune with; name one or more")
        if self.settings.off:
            raise BadInput("recover chooses itself what each fine-tuning switches off; give the dimensions as dims")
