"""What `lookup` is asked: which model, in which atlas."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.detection.scan.measure import MAX_READ
from outlierlens.options import Flag


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """Where to look, and when a likeness counts."""

    atlas: Path | None = None
    """Rows of `atlas build`: its folder or a Parquet file. Default: the atlas that comes with the package."""
    level: Annotated[float, Gt(0), Lt(1)] = 1e-6
    """Name a parent where the p-value, corrected over all models compared, is at most this."""
    nearest: Annotated[int, Ge(1)] = 5
    """Show this many relatives."""
    max_read: Annotated[int, Flag(read="options:parse_bytes", words="500MB")] = MAX_READ
    """Refuse a rule that has to read more than this."""
