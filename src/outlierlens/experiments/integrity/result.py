"""A model's fingerprint, bit for bit, and what holding a model against one found; plain data, no torch.

found = load("f.json")                           # Fingerprint
found.entries[0].name, found.entries[0].role     # what was recorded
held.matches, held.verdict                       # False, "DOES NOT match its fingerprint: 3 of 180,000 values moved, ..."
held.moved[0].name, held.moved[0].before, held.moved[0].after
"""

from dataclasses import dataclass
from typing import Any, Literal

from outlierlens.results.document import Provenance, Result

Role = Literal["norm scale", "norm bias", "write bias", "write row", "position row", "write column", "embedding column"]
DEEP_ROLES = ("write column", "embedding column")
Encoding = Literal["bfloat16", "float16", "float32", "float64"]
Fate = Literal["same", "converted", "moved", "missing", "extra", "other shape", "not comparable"]
# What makes a model no match; "extra" does where the tensor would act on the stream.
FAILS = ("moved", "missing", "other shape")
MAX_LISTED = 1000  # moved values that are kept one by one


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


@dataclass(frozen=True)
class MovedValue:
    """One sensitive value that differs by more than the copies' number formats explain.

    Attributes:
        name, role, stack, layer: of the tensor.
        index: where it stands in the tensor.
        dim: dimension of the stream that it acts on; None for norms of something else.
        before, after: the recorded value and the one found.
        dangerous: whether it acts on a found dimension, an outlier entry.
        allowed: largest change that the number formats explain at this value.
    """

    name: str
    role: Role
    stack: str
    layer: int | None
    index: tuple[int, ...]
    dim: int | None
    before: float
    after: float
    dangerous: bool
    allowed: float

    @property
    def change(self) -> float:
        """By how much it moved."""
        return self.after - self.before


@dataclass(frozen=True)
class TensorFate:
    """What became of one tensor's sensitive values (or of the whole tensor: role "whole tensor").

    Attributes:
        fate: "same" bit for bit; "converted": all that differs is rounding to another number format; "moved";
            "missing" from the model; "extra": only there; "other shape"; "not comparable": of a coarse quantization.
        fails: whether this makes the model no match.
        n_values, n_moved, n_dangerous: values compared, moved, and moved outlier entries.
        largest: largest change of a moved value. dtype_before, dtype_after: number formats.
        note: what to know about it.
    """

    name: str
    role: str
    stack: str
    layer: int | None
    fate: Fate
    fails: bool
    n_values: int = 0
    n_moved: int = 0
    n_dangerous: int = 0
    largest: float = 0.0
    dtype_before: str = ""
    dtype_after: str = ""
    note: str = ""


@dataclass(frozen=True)
class Verification(Result):
    """A model held against a fingerprint (or against another model).

    Attributes:
        provenance: of the model that was held against it. baseline: of the fingerprint, or of the first model.
        matches: whether every recorded value is there and none moved.
        verdict: the same in one line.
        streams: the recorded streams and their found dimensions.
        tensors: a row for every tensor that is not "same".
        n_tensors: tensors compared or looked for. n_values: values compared; of whole tensors only their hash is.
        moved: moved values, dangerous ones first, then the largest; at most `MAX_LISTED`.
    """

    provenance: Provenance
    baseline: Provenance
    matches: bool
    verdict: str
    deep: bool
    streams: tuple[Stream, ...]
    tensors: tuple[TensorFate, ...]
    moved: tuple[MovedValue, ...]
    n_tensors: int
    n_values: int
    n_moved: int
    n_dangerous: int
    n_not_compared: int
    bytes_read: int
    total_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it is no match."""
        return not self.matches

    def records(self) -> list[dict[str, Any]]:
        """One row per moved value."""
        return [
            {
                "dangerous": "yes" if one.dangerous else "no",
                "tensor": one.name,
                "role": one.role,
                "index": ", ".join(map(str, one.index)),
                "dim": one.dim,
                "before": one.before,
                "after": one.after,
                "change": one.change,
                "allowed": one.allowed,
            }
            for one in self.moved
        ]
