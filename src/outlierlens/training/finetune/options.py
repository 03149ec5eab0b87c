"""What `finetune` is asked: how a model is trained, once a seed.

The defaults of `FinetuneSettings` are those of Puccetti et al. (2022).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check, plain_dims
from outlierlens.tasks.base import LABELLED_TOKENS

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning; together with the data and the model they decide the numbers."""

    epochs: Annotated[int, Ge(1)] = 4
    """Passes over the training examples; the model of the best one on the dev examples is kept."""
    learning_rate: Annotated[float, Flag("--lr"), Gt(0), Lt(1)] = 2e-5
    """Learning rate at its peak; from there it falls linearly to 0."""
    batch: Annotated[int, Flag("--batch-size"), Ge(1)] = 32
    """Examples of a step."""
    weight_decay: Annotated[float, Ge(0), Lt(1)] = 0.01
    """Weight decay of AdamW; norms and biases have none."""
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the steps in which the rate rises."""
    max_length: Annotated[int, Ge(2)] = LABELLED_TOKENS
    """Tokens of an example at most."""
    train_limit: Annotated[int | None, Ge(2)] = None
    """Train on N examples drawn at random."""
    precision: str = "float32"
    """Precision of training: float32 or bfloat16; weights stay float32."""
    seed: int = 42
    """Seed of the head's first weights, of the order of examples and of dropout."""
    save_steps: Annotated[int | None, Ge(1)] = None
    """Steps between checkpoints. Default: an epoch."""
    off: Annotated[tuple[int, ...], Flag(read="training.finetune.options:off_dims")] = ()
    """Dimensions set to zero in all layers before training: 308,381."""
    hold: bool = False
    """Keep those of --off at zero throughout."""
    stack: str | None = None
    """Stream that --off is of, where a model has several."""

    def __post_init__(self) -> None:
        check(self)
        if self.precision not in PRECISIONS:
            raise BadInput(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}")
        if (self.hold or self.stack) and not self.off:
            raise BadInput("hold and stack say what becomes of the dimensions off; name at least one dimension")

    def to_dict(self) -> dict[str, Any]:
        """The settings that decide the numbers, as JSON has them."""
        values = {name: value for name, value in asdict(self).items() if name != "save_steps"}
        return dict(json.loads(json.dumps(values)))


def off_dims(text: str) -> tuple[int, ...]:
    """ "308,381" -> (308, 381), of --off."""
    return plain_dims(text, "--off", "dimensions are switched off in all layers here: write 308,381")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two runs, in words; a setting that a run does not mention had its default."""
    defaults = FinetuneSettings().to_dict()
    return [
        f"{key} was {before.get(key, defaults.get(key))!r}, is {now.get(key, defaults.get(key))!r}"
        for key in dict.fromkeys((*now, *before))
        if before.get(key, defaults.get(key)) != now.get(key, defaults.get(key))
    ]


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """Settings, and the seeds that they are run with."""

    seeds: Annotated[tuple[int, ...], Flag(read="options:parse_seeds", words="42")] = (42,)
    """One run each: 42,43,44."""
    settings: Annotated[
        FinetuneSettings,
        Flat(
            *("epochs", "learning_rate", "batch", "weight_decay", "warmup", "max_length", "train_limit", "precision"),
            *("save_steps", "off", "hold", "stack"),
        ),
    ] = FinetuneSettings()
    """Of every run; its `seed` is one of `seeds`."""
    report_to: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Where the Trainer logs too: tensorboard, wandb, mlflow, trackio; comma-separated."""
    recover: bool = False
    """Ask whether a fine-tuned model recovers: --off (default: what scan finds) off, then fine-tuned again, free and held at
    zero, beside random dimensions and nothing off."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 1
    """With --recover: random sets of the same size, treated alike."""
