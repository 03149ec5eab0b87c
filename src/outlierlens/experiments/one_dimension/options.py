"""What `one-dimension` is asked: which vectors, and how each dimension's classifier is fitted."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check

Pooling = Literal["auto", "first", "last", "mean"]
POOLINGS = ("auto", "first", "last", "mean")


@dataclass(frozen=True, kw_only=True)
class OneDimOptions:
    """How sentence vectors are read, and what is fitted to them."""

    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """308,381: name these beside what the weights and the variances name."""
    layers: Annotated[tuple[int, ...] | Literal["last", "all"], Flag(read="options:layers_or_word", words="last")] = (
        "last"
    )
    """last, all (and the embeddings), or 0-3,7."""
    pooling: Pooling = "auto"
    """first, last (token) or mean; auto: first where there is a [CLS], else last."""
    by_class: Annotated[bool | None, Flag("--by-class/--by-example")] = None
    """Give all classes the same weight. Default: unless the metric is accuracy."""
    stack: str | None = None
    """Which stream, where there are several."""
    limit: Annotated[int | None, Ge(2)] = 5000
    """Training examples to fit on, drawn at random."""
    labels: Annotated[tuple[str, ...] | None, Flag(read="options:parse_names")] = None
    """The model's labels in the order of its outputs, if its config has none."""
    max_length: Annotated[int, Ge(2)] = 256
    """Tokens of a text at most."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if self.pooling not in POOLINGS:
            raise BadInput(f"pooling is {self.pooling!r}; use one of {', '.join(POOLINGS)}")
