"""What `scan` is asked: which models, and by which rule."""

from dataclasses import dataclass
from typing import Annotated

from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.options import Flag, Flat


@dataclass(frozen=True, kw_only=True)
class Scanning:
    """The models, and how each is scanned."""

    models: Annotated[tuple[str, ...], Flag(argument=True)]
    """Sample names, directories, weight files or hub ids."""
    scan: Annotated[ScanOptions, Flat("rule", "view", "stack", "max_read")] = ScanOptions()
    """The rule, and what it may read."""
    propose: bool = False
    """Print a draft row (TOML) for an unknown architecture."""
