"""Files of rows whose rows a test changes, with the checksums that belong to them then."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outlierlens.results.row_store import row_line


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Every row, the identity's first, without its checksum."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name != "crc32"} for row in rows]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace the file by one of these rows."""
    path.write_bytes(b"".join(map(row_line, rows)))


def change_rows(path: Path, before: str, after: str) -> None:
    """Replace a piece of the JSON, "key":1, wherever it is, as a writer with other ideas would have written it."""
    texts = [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows_in(path)]
    write_rows(path, [json.loads(text.replace(before, after)) for text in texts])


def append_line(path: Path, text: str) -> None:
    """Add a line that may be no row at all, with the checksum that a row of these characters has."""
    body = text.removesuffix("}").encode()
    path.write_bytes(path.read_bytes() + body + b',"crc32":"%08x"}\n' % zlib.crc32(body))
