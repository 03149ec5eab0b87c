"""What `compare` is asked: which two models, and by which rule."""

from dataclasses import dataclass
from typing import Annotated

from outlierlens.detection.scan.measure import ASKED, ScanOptions
from outlierlens.errors import BadInput
from outlierlens.options import FIND, DimsOrFind, Flag


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Two models, and how each is scanned."""

    base: Annotated[str, Flag(argument=True)]
    """Model before: sample, directory, file, hub id, or a scan's JSON."""
    other: Annotated[str, Flag(argument=True)]
    """Model after, named likewise."""
    scan: Annotated[ScanOptions, ASKED] = ScanOptions()
    """The rule, and what it may read."""
    values: bool = False
    """Also compare sensitive values; exit code 3 if any moved."""
    dims: DimsOrFind = FIND
    """The dangerous dimensions: 308,381; find: what scan finds."""
    deep: bool = False
    """Also embedding columns and hashes of whole tensors; reads everything."""
    other_revision: str | None = None
    """Hub revision of the second model; default: --revision."""

    def __post_init__(self) -> None:
        if not self.values and (self.deep or self.dims != FIND):
            raise BadInput("--deep and --dims are about sensitive values; add --values")
