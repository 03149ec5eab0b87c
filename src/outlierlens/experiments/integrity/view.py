"""What is said of a fingerprint and of a model held against one: `sections(found)`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from outlierlens.experiments.integrity.result import Fingerprint, Stream, TensorFate, Verification
from outlierlens.view.section import Cell, Change, Exact, Rows, Section

LISTED = 50  # rows of each table without `verbose`
TENSORS = ("tensor", "role", "fate", "moved", "dangerous", "largest change", "recorded as", "here", "why")
VALUES = ("tensor", "role", "index", "dimension", "before", "after", "change", "rounding allows", "dangerous")


def sections(
    found: Fingerprint | Verification, *, verbose: bool = False, written: Path | None = None
) -> Iterator[Section]:
    """What was recorded, and how large the file is that was `written`; or what moved. With `verbose` tensor by tensor."""
    yield _taken(found, verbose, written) if isinstance(found, Fingerprint) else _held(found, verbose)


def _taken(found: Fingerprint, verbose: bool, written: Path | None) -> Section:
    size = f"; the file has {written.stat().st_size:,} bytes" if written else ""
    hashes = f" Hashes of {len(found.hashes):,} whole tensors." if found.hashes else ""
    said = (
        f"{found.provenance.model}: {found.n_values:,} sensitive values of {len(found.entries):,} tensors, "
        f"{found.n_dangerous:,} of them outlier entries{size}.{hashes}",
        *(
            f"Stream {one.name}, {one.n_layers} × {one.hidden_size}: dimensions {_dims(one)} ({one.how})."
            for one in found.streams
        ),
        _read(found.bytes_read, found.total_bytes),
    )
    rows = tuple((one.name, one.role, one.stack, one.layer, one.dtype, one.encoding) for one in found.entries)
    table = Rows("Recorded tensors", ("tensor", "role", "stream", "layer", "stored as", "kept as"), rows)
    return Section("fingerprint", "Sensitive values, recorded", said, (), (table,) if verbose else ())


def _held(found: Verification, verbose: bool) -> Section:
    said = [f"{found.provenance.model} {found.verdict}."]
    said += [f"Dangerous in stream {one.name} are entries of {_dims(one)} ({one.how})." for one in found.streams]
    matching = Counter(one.fate for one in found.tensors if not _shown(one))
    if matching:
        said.append(f"Of the others, {', '.join(f'{n:,} tensors are {fate}' for fate, n in matching.items())}.")
    said.append(_read(found.bytes_read, found.total_bytes))
    said.append("A match says that these values are those recorded, not who made the model.")
    tensors = [_tensor(one) for one in found.tensors if verbose or _shown(one)]
    values = [
        (one.name, one.role, one.index, one.dim, Exact(one.before), Exact(one.after), Change(one.change), one.allowed,
         one.dangerous)
        for one in found.moved
    ]  # fmt: skip
    shown = None if verbose else LISTED
    tables = [
        _table("Tensors that are not the same", TENSORS, tensors[:shown], len(tensors)),
        _table("Moved values", VALUES, values[:shown], found.n_moved, "Rounding allows: what the two formats explain."),
    ]
    return Section("verify", "Sensitive values", tuple(said), (), tuple(table for table in tables if table.rows))


def _shown(one: TensorFate) -> bool:
    return one.fails or one.fate == "extra"


def _tensor(one: TensorFate) -> tuple[Cell, ...]:
    moved = (one.n_moved, one.n_dangerous) if one.n_moved else (None, None)
    formats = (one.dtype_before or None, one.dtype_after or None)
    return (one.name, one.role, one.fate, *moved, one.largest or None, *formats, one.note or None)


def _table(title: str, heads: tuple[str, ...], rows: Iterable[tuple[Cell, ...]], n: int, note: str = "") -> Rows:
    listed = tuple(rows)
    left = f"And {n - len(listed):,} more; --verbose and the result's file show more." if n > len(listed) else ""
    return Rows(title, heads, listed, " ".join(filter(None, (note, left))))


def _dims(stream: Stream) -> str:
    return ", ".join(map(str, stream.dims)) or "no dimension"


def _read(read: int, total: int) -> str:
    return f"{read:,} of {total:,} bytes were read ({read / max(total, 1):.2%})."
