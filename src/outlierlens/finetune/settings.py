"""How a model is fine-tuned: `FinetuneSettings`, the defaults of Puccetti et al. (2022)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outlierlens.errors import BadInput

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning; together with the data and the model they decide the numbers.

    Attributes:
        epochs: passes over the training examples; the model of the best epoch on the dev set is kept.
        learning_rate: at the peak; it rises over `warmup` (a share of all steps) and falls linearly to 0.
        batch: examples of a step. weight_decay: of AdamW, not on norms and biases.
        max_length: tokens at which examples are cut.
        train_limit: so many examples drawn at random (by `seed`) from the training split; None takes all.
        precision: what a training computes in, "float32" or "bfloat16"; weights stay float32.
        seed: of the head's first weights, the order of examples and dropout.
        save_steps: steps between checkpoints to continue from; None is one an epoch.
        off: dimensions whose weights are set to zero in all layers before training, as `zeroed_weights` does; the model
            may recover. hold: set them to zero again after every step, so that the rest must do without them.
        stack: the stream that `off` is of, where a model has several.
    """

    epochs: int = 4
    learning_rate: float = 2e-5
    batch: int = 32
    weight_decay: float = 0.01
    warmup: float = 0.0
    max_length: int = 256
    train_limit: int | None = None
    precision: str = "float32"
    seed: int = 42
    save_steps: int | None = None
    off: tuple[int, ...] = ()
    hold: bool = False
    stack: str | None = None

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch": 1, "max_length": 2, "train_limit": 2, "save_steps": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadInput(f"{name} is {value}; it must be at least {low}")
        if not 0 < self.learning_rate < 1:
            raise BadInput(f"learning_rate is {self.learning_rate}; it must be between 0 and 1")
        if not (0 <= self.weight_decay < 1 and 0 <= self.warmup < 1):
            raise BadInput(f"weight_decay is {self.weight_decay} and warmup {self.warmup}; need 0 to 1, 1 excluded")
        if self.precision not in PRECISIONS:
            raise BadInput(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}")
        if (self.hold or self.stack) and not self.off:
            raise BadInput("hold and stack say what becomes of the dimensions off; name at least one dimension")

    def to_dict(self) -> dict[str, Any]:
        """The settings that decide the numbers, as JSON has them."""
        values = {name: value for name, value in asdict(self).items() if name != "save_steps"}
        return dict(json.loads(json.dumps(values)))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two runs, in words; a setting that a run does not mention had its default."""
    defaults = FinetuneSettings().to_dict()
    return [
        f"{key} was {before.get(key, defaults.get(key))!r}, is {now.get(key, defaults.get(key))!r}"
        for key in dict.fromkeys((*now, *before))
        if before.get(key, defaults.get(key)) != now.get(key, defaults.get(key))
    ]
