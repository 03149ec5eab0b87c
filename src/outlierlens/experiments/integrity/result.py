"""A model's fingerprint: its sensitive values as they were, bit for bit, and where they stand; plain data, no torch.

found = load("f.json")                           # Fingerprint
found.entries[0].name, found.entries[0].role     # what was recorded
"""

from dataclasses import dataclass
from typing import Literal

from outlierlens.results.document import Provenance, Result

Role = Literal["norm scale", "norm bias", "write bias", "write row", "position row", "write column", "embedding column"]
DEEP_ROLES = ("write column", "embedding column")
Encoding = Literal["bfloat16", "float16", "float32", "float64"]


@dataclass(frozen=True)
class Stream:
    """One residual stream: its size and the dimensions whose entries are called dangerous."""

    name: str
    n_layers: int
    hidden_size: int
    dims: tuple[int, ...]
    how: str


@dataclass(frozen=True)
class Recorded:
    """Sensitive values of one tensor as they were.

    Attributes:
        name, role, stack, layer, shape, dims, rows, columns, on_stream: as in `integrity.sensitive.Sensitive`.
        dtype: how the values were stored, in the file format's own word.
        offset: what the file had added to them (GGUF stores 1 + w for the norms of Gemma).
        encoding: the narrowest type that holds every value exactly.
        values: base64 of the values [row, column], little-endian in `encoding`.
    """

    name: str
    role: Role
    stack: str
    layer: int | None
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    rows: tuple[int, ...] | None
    columns: tuple[int, ...] | None
    on_stream: bool
    dtype: str
    offset: float
    encoding: Encoding
    values: str


@dataclass(frozen=True)
class TensorHash:
    """SHA-256 of a whole tensor's values as float32 (float64 where stored so), exact and rounded to narrower types.

    A copy in bfloat16 has the `exact` hash that the original has as `bfloat16`, so it is told from an edited one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: str
    bfloat16: str
    float16: str
    float32: str


@dataclass(frozen=True)
class Fingerprint(Result):
    """The sensitive values of a model, for `verify` to hold a copy against.

    Attributes:
        layout: version of what is recorded and how.
        streams: the residual streams.
        n_values: how many values `entries` hold. n_dangerous: how many of them are outlier entries.
        hashes: of every tensor; empty without `deep`.
        digest: SHA-256 of all that is above, so that a damaged file is noticed; it does not authenticate the file.
    """

    provenance: Provenance
    layout: int
    model_type: str
    source: str
    deep: bool
    streams: tuple[Stream, ...]
    entries: tuple[Recorded, ...]
    hashes: tuple[TensorHash, ...]
    n_values: int
    n_dangerous: int
    bytes_read: int
    total_bytes: int
    digest: str
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, object]]:
        shown = ("name", "role", "stack", "layer", "dtype")
        return [{key: getattr(entry, key) for key in shown} for entry in self.entries]
