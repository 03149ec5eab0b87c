"""What holding a model against a fingerprint found: plain data, no torch.

found.matches, found.verdict          # False, "DOES NOT match its fingerprint: 3 of 180,000 values moved, ..."
found.moved[0].name, found.moved[0].before, found.moved[0].after
"""

from dataclasses import dataclass
from typing import Any, Literal

from outlierlens.experiments.integrity.result import Role, Stream
from outlierlens.results.document import Provenance, Result

Fate = Literal["same", "converted", "moved", "missing", "extra", "other shape", "not comparable"]
# What makes a model no match; "extra" does where the tensor would act on the stream.
FAILS = ("moved", "missing", "other shape")
MAX_LISTED = 1000  # moved values that are kept one by one


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
