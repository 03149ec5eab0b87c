"""What the report says of a model held against its fingerprint: `integrity_sections(found)`."""

from collections.abc import Sequence

from outlierlens.verified import Verification
from outlierlens.view.section import Rows, Section

SHOWN = 50


def integrity_sections(verifications: Sequence[Verification]) -> tuple[Section, ...]:
    """One section a verification; none without any."""
    return tuple(_section(found, number) for number, found in enumerate(verifications))


def _section(found: Verification, number: int) -> Section:
    said = [f"{found.provenance.model} {found.verdict}."]
    said += [
        f"Dangerous in stream {stream.name} are entries of {', '.join(map(str, stream.dims)) or 'no dimension'} "
        f"({stream.how})."
        for stream in found.streams
    ]
    said.append(f"{found.bytes_read:,} of {found.total_bytes:,} bytes were read ({_share(found):.2%}).")
    said.append("A match says that these values are those recorded, not who made the model.")
    tables = []
    if found.tensors:
        rows = tuple(
            (one.name, one.role, one.fate, one.n_moved or None, one.n_dangerous if one.n_moved else None,
             one.largest or None, one.dtype_before or None, one.dtype_after or None, one.note or None)
            for one in found.tensors[:SHOWN]
        )  # fmt: skip
        heads = ("tensor", "role", "fate", "moved", "dangerous", "largest change", "recorded as", "here", "why")
        tables.append(Rows("Tensors that are not the same", heads, rows, _left(len(found.tensors) - len(rows))))
    if found.moved:
        listed = found.records()[:SHOWN]
        keys = tuple(listed[0])[1:]
        cells = tuple((*(row[key] for key in keys), row["dangerous"]) for row in listed)
        note = "Allowed is the change that the two number formats explain. " + _left(found.n_moved - len(listed))
        tables.append(Rows("Moved values", (*keys, "dangerous"), cells, note.strip()))
    return Section(f"integrity-{number}", "Sensitive values", tuple(said), (), tuple(tables))


def _share(found: Verification) -> float:
    return found.bytes_read / max(found.total_bytes, 1)


def _left(n: int) -> str:
    return f"And {n:,} more." if n > 0 else ""
