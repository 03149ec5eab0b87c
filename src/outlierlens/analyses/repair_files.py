"""The files of a repaired model: those of its source, with other weights and another config.

    shards = find_shards(source, model, plan)            # None where files hold the weights under other names
    with new_folder(Path("better")) as part:
        write_shards(shards, part, plan)                 # or save_model(part, stored, source, plan)
        write_rest(part, source, {"rms_norm_eps": 4e-9})

A weight file is written anew in one pass that holds some rows at a time. Its header is the source's, byte for byte, unless the
head is untied: it is put behind the tensors of the last file then.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from outlierlens.analyses.repair_rewriting import RewritingPlan, head_of, repaired
from outlierlens.architectures import live_parameters
from outlierlens.checkpoints.base import INDEX, TensorSpan
from outlierlens.checkpoints.formats import header_length, parse_header, shard_names
from outlierlens.errors import BadFile
from outlierlens.models.load import LoadedModel
from outlierlens.results.safe_files import read_json

MANIFEST = "repair.json"
# What is written anew, or belongs to weights that are.
LEFT = (".safetensors", ".bin", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".pt", ".pth", ".index.json")
NEVER = ("config.json", MANIFEST, "made-of.json")
ONE_FILE = "100000GB"
ONE = "model.safetensors"
SHARDED = f"{ONE}{INDEX}"
CHUNK = 2**19  # bytes that are read and changed at once: as much as a processor's cache holds


@dataclass(frozen=True)
class Shards:
    """The weight files of a source.

    Attributes:
        folder: where they lie. files: each with its raw header and its tensors in order of bytes.
        changed: stored name -> name of the parameter in the plan. same: stored names of what does not change.
        head: stored name of a head that must get the values of `table`, a stored name; "" for none.
    """

    folder: Path
    files: Mapping[str, tuple[bytes, dict[str, TensorSpan]]]
    changed: Mapping[str, str]
    same: Collection[str] = ()
    head: str = ""
    table: str = ""


def find_shards(folder: Path | None, model: Any, plan: RewritingPlan) -> Shards | None:
    """The files of a source whose tensors a plan for the live model can change; None where one is not found there by name.

    Raises:
        BadFile: an index or a header that is damaged.
    """
    if folder is None:
        return None
    names = [ONE] if (folder / ONE).is_file() else []
    if (folder / SHARDED).is_file():
        names = sorted(set(shard_names(read_json(folder / SHARDED, "fetch it again", a=dict), SHARDED).values()))
    if not names:
        return None
    files = {name: read_header(folder / name) for name in names}
    stored = {name: placed for _, tensors in files.values() for name, placed in tensors.items()}
    live, prefix = live_parameters(model), f"{model.base_model_prefix}."
    owners = [name for name, module in model.named_modules() if plan.untie and module is head_of(model)]
    head, table = f"{owners[0]}.weight" if owners else "", ""
    changed: dict[str, str] = {}
    for name in plan.exponents:
        # A tied parameter may be stored under each of its names, and with or without what a task head puts before it.
        aliases = [other for other, values in live.items() if values is live[name] and other != head]
        spelt = {one for other in aliases for one in (other, other.removeprefix(prefix), prefix + other)}
        found = {one for one in spelt & stored.keys() if stored[one].info.shape == tuple(live[name].shape)}
        if not found:
            return None
        changed |= dict.fromkeys(found, name)
        if head and live[name] is live[head]:
            table = min(found)
    head = head if table and head not in stored else ""
    return Shards(folder, files, changed, stored.keys() - changed.keys(), head, table)


def read_header(path: Path) -> tuple[bytes, dict[str, TensorSpan]]:
    """The raw header of a file, and its tensors in order of bytes; raises BadFile where it is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = file.read(header_length(file.read(8), size, str(path)))
    placed = parse_header(raw, size, str(path))
    return raw, dict(sorted(placed.items(), key=lambda item: (item[1].start, item[1].end)))


def write_shards(shards: Shards, part: Path, plan: RewritingPlan) -> None:
    """Write every file into the folder `part`; raises BadInput where a type cannot hold its new values."""
    last = max(shards.files)
    tables = [
        (file, some[shards.table]) for file, (_, some) in shards.files.items() if shards.head and shards.table in some
    ]
    for name, (header, tensors) in shards.files.items():
        added = tables if name == last else []
        raw = _with_head(shards, header, tensors, added[0][1]) if added else header
        with (shards.folder / name).open("rb") as source, (part / name).open("xb") as target:
            target.write(len(raw).to_bytes(8, "little") + raw)
            for stored, placed in tensors.items():
                if stored in shards.changed and placed.info.nbytes:
                    _change(source, target, placed, plan, shards.changed[stored])
                else:
                    _copy(source, target, placed)
            for file, table in added:
                with (shards.folder / file).open("rb") as other:
                    _copy(other, target, table)
    if (shards.folder / SHARDED).is_file():
        index = read_json(shards.folder / SHARDED, "fetch it again", a=dict)
        if shards.head:
            index["weight_map"][shards.head] = last
            index.setdefault("metadata", {}).pop("total_size", None)
        (part / SHARDED).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _with_head(shards: Shards, raw: bytes, tensors: Mapping[str, TensorSpan], table: TensorSpan) -> bytes:
    """A header with an untied head, a copy of `table`, behind the last tensor."""
    header, info = json.loads(raw), table.info
    start = max(entry["data_offsets"][1] for name, entry in header.items() if name in tensors)
    header[shards.head] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [start, start + info.nbytes]}
    made = json.dumps(header, separators=(",", ":")).encode()
    return made + b" " * (-len(made) % 8)


def _copy(source: BinaryIO, target: BinaryIO, placed: TensorSpan) -> None:
    source.seek(placed.start)
    for start in range(placed.start, placed.end, CHUNK):
        target.write(source.read(min(CHUNK, placed.end - start)))


def _change(source: BinaryIO, target: BinaryIO, placed: TensorSpan, plan: RewritingPlan, name: str) -> None:
    import torch

    kind = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[placed.info.dtype]
    shape, exponent = placed.info.shape, plan.exponent(name)
    row = max(1, placed.info.nbytes // max(1, shape[0]))
    n_rows = max(1, CHUNK // row)
    source.seek(placed.start)
    for first in range(0, shape[0], n_rows):
        buffer = bytearray(source.read(row * min(n_rows, shape[0] - first)))
        values = torch.frombuffer(buffer, dtype=kind).reshape(-1, *shape[1:])
        some = exponent[first : first + n_rows] if exponent.ndim > 0 and len(exponent) > 1 else exponent
        made = plan.changed(name, values, some).contiguous()
        target.write(made.view(torch.uint8).numpy().data.cast("B"))


def save_model(part: Path, stored: LoadedModel, source: Path | None, plan: RewritingPlan) -> None:
    """Write a live model as planned, with a config and what else the library adds; files as large as the source's."""
    model: Any = stored.model
    sizes = [path.stat().st_size for path in (source.glob("model-*.safetensors") if source else ())]
    with repaired(stored, plan):
        model.save_pretrained(part, max_shard_size=max(sizes) if len(sizes) > 1 else ONE_FILE)
    if source is None and stored.tokenizer is not None:
        stored.tokenizer.save_pretrained(part)
    for path in part.glob("*.json"):  # the library adds a generation_config.json
        if source and not path.name.endswith("index.json") and not (source / path.name).is_file():
            path.unlink()


def check_unchanged(part: Path, source: Path | None, same: Collection[str]) -> None:
    """Raise BadFile where a tensor of the source that no factor concerns was written otherwise; `same` are their names."""
    import torch
    from safetensors import safe_open

    if source is None:
        return
    old, new = ({name: path for path in sorted(folder.glob("*.safetensors")) for name in read_header(path)[1]}
                for folder in (source, part))  # fmt: skip
    for name in sorted(old.keys() & new.keys() & set(same)):
        with safe_open(old[name], "pt") as before, safe_open(new[name], "pt") as after:
            one, other = before.get_tensor(name), after.get_tensor(name)
        if one.dtype != other.dtype or not torch.equal(one, other):
            raise BadFile(f"{name} was written otherwise though no factor concerns it, so nothing is kept")


def write_rest(part: Path, source: Path | None, settings: Mapping[str, Any]) -> None:
    """Write the source's config with these dotted keys changed, and its other files; of types, those that it names."""
    if source is not None:
        values = read_json(source / "config.json", "name a folder with a config", a=dict)
        for key, value in settings.items():
            *within, name = key.split(".")
            at = values
            for one in within:
                at = at.setdefault(one, {})
            if name in at or not name.endswith("dtype"):
                at[name] = value
        (part / "config.json").write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
        for path in sorted(source.iterdir()):
            if path.is_file() and path.name not in NEVER and not path.name.endswith(LEFT):
                shutil.copyfile(path, part / path.name)


def write_about(part: Path, plan: RewritingPlan, about: Mapping[str, Any], says: str) -> None:
    """Write a manifest and the model's card, below that of the source.

    The manifest has every factor: exponents of two by parameter, each a number or nested lists that broadcast to its shape.
    """
    factors = {
        name: [one if isinstance(one, int) else one.tolist() for one in terms]
        for name, terms in sorted(plan.exponents.items())
    }
    document = {**about, "untied": plan.untie, "exponents of two": factors}
    (part / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    card = part / "README.md"
    before = card.read_text("utf-8").rstrip() + "\n\n" if card.is_file() else ""
    card.write_text(f"{before}## Repaired\n\n{says}\n", "utf-8")
