"""Parts of a long run, each kept in the run directory as soon as it is measured.

parts = KeptParts(directory, overwrite=False)
found = parts("origin", key, lambda: origin_live(...))      # measured, or read back
parts.seconds["origin"]                                     # what measuring took, when it was

parts/NAME.json     the part's result
parts/NAME.key      a hash of all that its numbers depend on, and the seconds that it took
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.results.document import load, save
from outlierlens.results.safe_files import read_json, write_text


def key_of(*settings: object) -> str:
    """SHA-256 over what a part's numbers depend on."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()


def check_parts(parts: Sequence[str], known: Collection[str]) -> None:
    """Raise BadInput where no part is asked for, or one that is not `known`."""
    unknown = [name for name in parts if name not in known]
    if unknown or not parts:
        raise BadInput(f"unknown part {unknown[0] if unknown else ''!r}; parts are {', '.join(known)}")


class KeptParts:
    """Results of parts by name, in `directory`/parts; seconds holds what each took."""

    def __init__(self, directory: Path, *, overwrite: bool):
        self.folder = directory / "parts"
        self.overwrite = overwrite
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, settings: str, measure: Callable[[], Any]) -> Any:
        """The part's result as it lies in the run directory, measured first where it is missing.

        Raises:
            BadInput: it was measured with other settings.
        """
        path, key = self.folder / f"{name}.json", self.folder / f"{name}.key"
        if path.is_file() and not self.overwrite:
            made = read_json(key, "start again with --overwrite", a=dict) if key.is_file() else {}
            if made.get("settings") != settings:
                raise BadInput(
                    f"{path} was made with other settings, data or weights; name another directory with -o, or start again "
                    f"with --overwrite"
                )
            self.seconds[name] = float(made.get("seconds", 0.0))
            return load(path)
        began = time.perf_counter()
        found = measure()
        self.seconds[name] = round(time.perf_counter() - began, 1)
        save(found, path)
        write_text(key, json.dumps({"settings": settings, "seconds": self.seconds[name]}) + "\n")
        return found
