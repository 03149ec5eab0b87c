"""How files name the parameters of a small model: it is saved, and each parameter is found again by its values.

files = FileNames(small)
files.block(path, n_blocks, names)      # where files have the blocks, and what they call parameters inside
files.whole("model.embed_tokens.weight")
"""

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.architectures.experiment.small import SmallModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StoredBlocks:
    """Blocks in files: their path with "{layer}", other names by the live one inside a block, and live names not found."""

    path: str
    names: Mapping[str, str]
    lacking: tuple[str, ...]


class FileNames:
    """The names of a saved copy."""

    def __init__(self, small: SmallModel):
        self.live: dict[str, Tensor] = dict(small.model.named_parameters(remove_duplicate=False))
        self.stored: dict[str, list[str]] = {}
        for name, values in saved(small).items():
            self.stored.setdefault(_digest(values), []).append(name)

    def whole(self, name: str) -> str:
        """The name in files of a live parameter, "{expert}" where experts stand one by one; "" where there is none."""
        values = self.live.get(name)
        if values is None:
            return ""
        found = [
            *self.stored.get(_digest(values), ()),
            *(self.stored.get(_digest(values.T), ()) if values.ndim == 2 else ()),
        ]
        if found:
            return min(found, key=lambda one: (not one.endswith(name), one != name, len(one), one))
        if values.ndim < 3:
            return ""
        for turned in (values, values.transpose(-1, -2)):
            each = [self.stored.get(_digest(part), [""])[0] for part in turned]
            if all(each) and (pattern := numbered(dict(enumerate(each)), "{expert}")):
                return pattern
        return ""

    def block(self, path: str, n_blocks: int, names: Collection[tuple[int, str]]) -> StoredBlocks:
        """`names` are (number of a block that has it, parameter inside)."""
        found: dict[str, dict[int, str]] = {}
        for layer, inside in names:
            found.setdefault(inside, {})[layer] = self.whole(f"{path}.{layer}.{inside}")
        patterns = {inside: numbered(each, "{layer}") for inside, each in found.items() if all(each.values())}
        parts = {inside: pattern.partition("{layer}.") for inside, pattern in patterns.items() if "{layer}." in pattern}
        paths = Counter(head for head, _, _ in parts.values())
        if not paths:
            return StoredBlocks("", {}, tuple(found))
        head = paths.most_common(1)[0][0]
        other = {inside: tail for inside, (before, _, tail) in parts.items() if before == head and tail != inside}
        lacking = [inside for inside in found if inside not in parts or parts[inside][0] != head]
        return StoredBlocks(f"{head}{{layer}}", other, tuple(lacking))


def saved(small: SmallModel) -> dict[str, "Tensor"]:
    """The tensors of a copy that transformers saved, by their names in the file."""
    from safetensors.torch import load_file

    model: Any = small.model
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {
            name: one for path in sorted(Path(folder).glob("*.safetensors")) for name, one in load_file(path).items()
        }


def numbered(names: Mapping[int, str], place: str) -> str:
    """The one pattern of `names` with `place` for its number: {0: "a.0.b", 1: "a.1.b"} -> "a.{layer}.b"; "" where none fits."""
    number, first = next(iter(names.items()))
    for match in re.finditer(rf"(?<=\.){number}(?=\.)", first):
        pattern = first[: match.start()] + place + first[match.end() :]
        if all(pattern.replace(place, str(one)) == name for one, name in names.items()):
            return pattern
    return ""


def _digest(values: "Tensor") -> str:
    data = values.detach().contiguous()
    return hashlib.sha256(f"{tuple(data.shape)}".encode() + data.numpy().tobytes()).hexdigest()
