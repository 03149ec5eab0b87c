"""What `fingerprint` and `verify` are asked."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from outlierlens.detection.scan.measure import ScanOptions
from outlierlens.options import FIND, DimsOrFind, Flat, check


@dataclass(frozen=True)
class FingerprintOptions:
    """How to take a fingerprint."""

    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """The rule that finds the outlier dimensions, limits on reading, and how the model is opened."""
    dims: DimsOrFind = FIND
    """The dangerous dimensions, in every stream: 308,381; find: what scan finds."""
    deep: bool = False
    """Also embedding columns and hashes of whole tensors; reads everything."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What a model is held against."""

    baseline: Path
    """The fingerprint to compare with."""
    deep: bool = False
    """Also embedding columns and hashes of whole tensors; reads everything."""
