"""What `finetune` is asked: how a model is trained, once a seed."""

from dataclasses import dataclass
from typing import Annotated

from outlierlens.options import Flag, Flat
from outlierlens.training.finetune.settings import FinetuneSettings


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
    """Where the Trainer logs too: tensorboard, wandb, trackio; comma-separated."""
