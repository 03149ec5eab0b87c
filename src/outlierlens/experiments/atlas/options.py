"""What `atlas build` and `atlas page` are asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from outlierlens.detection.scan.measure import MAX_READ
from outlierlens.errors import BadInput
from outlierlens.experiments.atlas.names import Query
from outlierlens.experiments.sweep.options import Machines
from outlierlens.options import Flag, Flat, check


@dataclass(frozen=True, kw_only=True)
class BuildCall:
    """Which models are looked at, where, and how politely."""

    names: Annotated[Path | None, Flag(argument=True)] = None
    """File of names: one per line, or Parquet with a column model."""
    query: Annotated[Query | None, Flag(read="experiments.atlas.names:query")] = None
    """Ask the hub instead: task=fill-mask,family=bert,downloads=1000; also author, search."""
    limit: Annotated[int | None, Ge(1)] = None
    """Only the first N of them."""
    update: bool = False
    """Ask the present revision of names that have rows, and look at new ones."""
    parallel: Annotated[int, Ge(1)] = 16
    """Models at once, in each process."""
    rate: Annotated[float | None, Flag(read="options:number_or_none", words="10"), Gt(0)] = 10.0
    """Requests a second to the hub, of all processes together; none: no limit."""
    max_read: Annotated[int, Flag(read="options:parse_bytes", words="500MB"), Ge(1)] = MAX_READ
    """Most bytes of one model."""
    max_total: Annotated[int | None, Flag(read="options:parse_bytes"), Ge(1)] = None
    """Start no further model once this many bytes were read."""
    machines: Annotated[Machines, Flat("engine", "address", "workers", "cpus_per_worker")] = Machines()

    def __post_init__(self) -> None:
        check(self)
        if (self.names is None) == (self.query is None):
            raise BadInput(
                "which models? name a file with one name per line, or --query task=fill-mask; one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class PageCall:
    """The atlas that is shown."""

    folder: Annotated[Path, Flag(argument=True)]
    """Folder that `atlas build` wrote, or one Parquet file of rows."""
