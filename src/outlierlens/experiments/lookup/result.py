"""What an atlas says of a model: its streams, its relatives, and what its outlier dimensions cost.

found = lookup("mpnet-base")
found.streams[0].dims, found.streams[0].parent
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class Standing:
    """An outlier dimension: the z of largest magnitude over layers, and in how many layers |z| passes."""

    dim: int
    z_scale: float
    z_bias: float | None
    layers: tuple[int, ...]
    p_holm: float


@dataclass(frozen=True)
class Relative:
    """A stream of the atlas as wide as this one.

    Attributes:
        closeness: mean correlation of the norms' vectors, in [−1, 1].
        p: under the null that the two were trained apart; p_holm corrected over all that were compared.
        equal: whether the vectors are the same but for rounding.
    """

    model: str
    stack: str
    family: str
    origin: str
    layers: int
    closeness: float
    p: float
    p_holm: float
    equal: bool


@dataclass(frozen=True)
class Stream:
    """A residual stream of the model.

    Attributes:
        relatives: nearest first, as many as were asked for; n_compared is of how many.
        parent: the likely parent, or a model of the same parent; None where none is known.
    """

    stack: str
    site: str
    norm: str
    norm_site: str
    layers: int
    width: int
    outliers: tuple[Standing, ...]
    relatives: tuple[Relative, ...]
    n_compared: int
    parent: str | None

    @property
    def dims(self) -> tuple[int, ...]:
        """The outlier dimensions, ascending."""
        return tuple(sorted(one.dim for one in self.outliers))


@dataclass(frozen=True)
class Cost:
    """What switching dimensions off cost when it was measured: `change` of `task`, beside random sets as large.

    Attributes:
        random: median change of the random sets; p: the rank of `change` among them.
    """

    model: str
    dims: tuple[int, ...]
    task: str
    intact: float
    change: float
    random: float
    p: float
    n_texts: int
    texts: str


@dataclass(frozen=True)
class Lookup(Result):
    """What is known of a model, and who its relatives are.

    Attributes:
        known: whether the atlas has it by name; otherwise its norms were read.
        costs: of the model itself, or of its likely parent.
        atlas: "the package's" or the path; n_models: in it.
    """

    provenance: Provenance
    family: str
    origin: str
    licence: str
    known: bool
    level: float
    streams: tuple[Stream, ...]
    costs: tuple[Cost, ...]
    atlas: str
    n_models: int
    bytes_read: int
    bytes_total: int
    notes: tuple[str, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """One row for each relative of each stream."""
        for stream in self.streams:
            for one in stream.relatives:
                other = {"other stack" if name == "stack" else name: value for name, value in vars(one).items()}
                yield {"stack": stream.stack} | other
