"""JSON and TOML that somebody else may have written: read, or refused in one line that names the file.

    value = read_json(path, "start again with --overwrite")
    value = parse_json(line, f"{path}, line 3", "correct it")
    table = read_toml(path)

Refused is also what Python's readers end on: text nested too deeply, whole numbers of thousands of digits.
"""

import json
from pathlib import Path
from typing import Any

from outlierlens.errors import BadFile, BadInput, OutlierlensError

MAX_DOTS = 10_000  # of a TOML file: Python's reader takes the square of the dots of a key, 6 GB for 40,000


def _refuse_pipe(path: Path, error: type[OutlierlensError]) -> None:
    """Raise `error` where something is there that is no file: a pipe may never end, or never begin."""
    if path.exists() and not path.is_file():
        raise error(f"{path}: a pipe, a device or a folder; name a file")


def read_json(
    path: Path, remedy: str = "was it written completely?", error: type[OutlierlensError] = BadFile, *, a: type = object
) -> Any:
    """The value in a file; `error`, with `remedy`, where it is not JSON or the value is not `a` (dict, list).

    Raises:
        OSError: the file cannot be read.
    """
    _refuse_pipe(path, error)
    value = parse_json(path.read_bytes(), str(path), remedy, error)
    if not isinstance(value, a):
        wanted = "an object" if a is dict else "a list"
        raise error(f"{path}: holds a {type(value).__name__}, not {wanted}; {remedy}")
    return value


def parse_json(
    text: str | bytes, where: str, remedy: str = "was it written completely?", error: type[OutlierlensError] = BadFile
) -> Any:
    """The value that `text` spells; `error`, with `where` and `remedy`, where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not valid JSON ({type(problem).__name__}); {remedy}") from None


def read_toml(path: Path, error: type[OutlierlensError] = BadInput) -> dict[str, Any]:
    """The table in a file; `error` where it cannot be read as TOML."""
    import tomllib

    _refuse_pipe(path, error)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if text.count(".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS:,} dots")
        found = tomllib.loads(text)
        repr(found)  # whole numbers of thousands of hexadecimal digits are read, and cannot be said later
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"{path}: cannot be read as TOML: {' '.join(str(problem).split())[:200]}") from None
    return found
