"""The weight files of a source, written anew with some tensors changed: one pass that holds some rows at a time.

    shards = find_shards(source, model, plan)            # None where files hold the weights under other names
    write_shards(shards, part, plan)

Headers are those of the source, byte for byte, unless the head is untied: it is put behind the tensors of the last file then.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from outlierlens.architectures import live_parameters
from outlierlens.checkpoints.base import INDEX
from outlierlens.checkpoints.formats import Placed, header_length, parse_header, shard_names
from outlierlens.experiments.repair.plan import Plan
from outlierlens.results.safe_files import read_json

ONE = "model.safetensors"
SHARDED = f"{ONE}{INDEX}"
CHUNK = 2**19  # bytes that are read and changed at once: as much as a processor's cache holds


@dataclass(frozen=True)
class Shards:
    """The files of a source.

    Attributes:
        folder: where they lie. files: each with its raw header and its tensors in order of bytes.
        changed: stored name -> name of the parameter in the plan.
        head: stored name of a head that must get the values of `table`, a stored name; "" for none.
    """

    folder: Path
    files: Mapping[str, tuple[bytes, dict[str, Placed]]]
    changed: Mapping[str, str]
    head: str = ""
    table: str = ""

    @property
    def same(self) -> set[str]:
        """Stored names of what does not change."""
        return {name for _, tensors in self.files.values() for name in tensors} - self.changed.keys()


def find_shards(folder: Path | None, model: Any, plan: Plan) -> Shards | None:
    """The files of a source whose tensors a plan for the live model can change; None where one is not found there by name."""
    if folder is None:
        return None
    if (folder / SHARDED).is_file():
        names = sorted(set(shard_names(read_json(folder / SHARDED, "fetch it again", a=dict), SHARDED).values()))
    elif (folder / ONE).is_file():
        names = [ONE]
    else:
        return None
    files = {name: _header(folder / name) for name in names}
    stored = {name: placed for _, tensors in files.values() for name, placed in tensors.items()}
    live = live_parameters(model)
    prefix = f"{model.base_model_prefix}."
    owner = next(
        (name for name, module in model.named_modules() if plan.untie and module is model.get_output_embeddings()), ""
    )
    head = f"{owner}.weight" if owner else ""
    changed: dict[str, str] = {}
    table = ""
    for name in plan.exponents:
        # A tied parameter may be stored under each of its names, and with or without what a task head puts before it.
        aliases = [other for other, values in live.items() if values is live[name] and other != head]
        found = {
            one
            for alias in aliases
            for one in (alias, alias.removeprefix(prefix), prefix + alias)
            if one in stored and stored[one].info.shape == tuple(live[name].shape)
        }
        if not found:
            return None
        changed |= dict.fromkeys(found, name)
        if head and live[name] is live[head]:
            table = min(found)
    return Shards(folder, files, changed, head if table and head not in stored else "", table)


def _header(path: Path) -> tuple[bytes, dict[str, Placed]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = file.read(header_length(file.read(8), size, str(path)))
    placed = parse_header(raw, size, str(path))
    return raw, dict(sorted(placed.items(), key=lambda item: (item[1].start, item[1].end)))


def write_shards(shards: Shards, part: Path, plan: Plan) -> None:
    """Write every file into the folder `part`."""
    last = max(shards.files)
    for name, (header, tensors) in shards.files.items():
        added = _head(shards) if shards.head and name == last else b""
        raw = _with(header, shards, tensors) if added else header
        with (shards.folder / name).open("rb") as source, (part / name).open("xb") as target:
            target.write(len(raw).to_bytes(8, "little") + raw)
            for stored, placed in tensors.items():
                if stored in shards.changed:
                    _change(source, target, placed, plan, shards.changed[stored])
                else:
                    _copy(source, target, placed)
            target.write(added)
    if (shards.folder / SHARDED).is_file():
        index = read_json(shards.folder / SHARDED, "fetch it again", a=dict)
        if shards.head:
            index["weight_map"][shards.head] = last
            index.setdefault("metadata", {}).pop("total_size", None)
        (part / SHARDED).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _with(raw: bytes, shards: Shards, tensors: Mapping[str, Placed]) -> bytes:
    """A header with the head behind the last tensor."""
    header = json.loads(raw)
    info = _placed(shards, shards.table).info
    start = max(entry["data_offsets"][1] for name, entry in header.items() if name in tensors)
    header[shards.head] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [start, start + info.nbytes]}
    made = json.dumps(header, separators=(",", ":")).encode()
    return made + b" " * (-len(made) % 8)


def _placed(shards: Shards, name: str) -> Placed:
    return next(tensors[name] for _, tensors in shards.files.values() if name in tensors)


def _head(shards: Shards) -> bytes:
    """The values that an untied head gets."""
    file = next(file for file, (_, tensors) in shards.files.items() if shards.table in tensors)
    placed = _placed(shards, shards.table)
    with (shards.folder / file).open("rb") as source:
        source.seek(placed.start)
        return source.read(placed.end - placed.start)


def _copy(source: BinaryIO, target: BinaryIO, placed: Placed) -> None:
    """Append a tensor's bytes as they are."""
    source.seek(placed.start)
    for size in _sizes(placed.end - placed.start, CHUNK):
        target.write(source.read(size))


def _change(source: BinaryIO, target: BinaryIO, placed: Placed, plan: Plan, name: str) -> None:
    """Append a tensor's new bytes, some rows at a time."""
    import torch

    kind = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[placed.info.dtype]
    shape, exponent = placed.info.shape, plan.exponent(name)
    by_row = exponent.ndim > 0 and len(exponent) > 1
    row = (placed.end - placed.start) // max(1, shape[0])
    source.seek(placed.start)
    done = 0
    buffer = bytearray(max(row, CHUNK // row * row))
    for size in _sizes(placed.end - placed.start, len(buffer)):
        source.readinto(memoryview(buffer)[:size])  # type: ignore[attr-defined]
        values = torch.frombuffer(buffer, dtype=kind, count=size // kind.itemsize).reshape(-1, *shape[1:])
        some = exponent[done : done + len(values)] if by_row else exponent
        done += len(values)
        made = plan.changed(name, values, some).contiguous()
        target.write(made.view(torch.uint8).numpy().data.cast("B"))


def _sizes(total: int, most: int) -> Iterator[int]:
    """Parts of `total`, none above `most`."""
    for start in range(0, total, most):
        yield min(most, total - start)
