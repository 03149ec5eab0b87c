"""What `range` is asked: how much of a text is read, how values are sampled, and what is compared."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import check


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """What is measured, and how."""

    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a text at most."""
    batch_size: Annotated[int, Ge(1)] = 16
    """Texts in one forward pass."""
    every: Annotated[int, Ge(1)] = 16
    """Medians and shares rest on every n-th token vector; 1 takes all. Maxima always rest on all."""
    chat_template: bool = False
    """Read each text twice: plain, and as one user turn of the tokenizer's chat template."""
    cache: bool = False
    """Round keys and values to int8 and int4 too, and measure what that loses."""
    weights: bool = False
    """Run nothing: compare the weights alone with each format, without torch."""

    def __post_init__(self) -> None:
        check(self)
        if self.weights and self.cache:
            raise BadInput("--cache runs the model and --weights does not; give one of them")
        if self.weights and self.chat_template:
            raise BadInput("--chat-template runs the model and --weights does not; give one of them")
