"""The files of a repaired model: those of its source, with other weights and another config.

check_place(Path("better"), overwrite=False)
with new_folder(Path("better")) as part:
    write_shards(shards, part, plan)                     # or save_model(part, stored, source)
    write_rest(part, source, settings_of(plan, epsilons, ""), "Made from …")
"""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.repair.plan import Plan
from outlierlens.models.load import LoadedModel
from outlierlens.results.safe_files import check_folder, read_json

MANIFEST, CARD = "repair.json", "README.md"
# What is written anew, or belongs to weights that are.
LEFT = (".safetensors", ".bin", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".pt", ".pth", ".index.json")
NEVER = ("config.json", MANIFEST, "made-of.json")
ONE_FILE = "100000GB"


def check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise BadInput where nothing may be written to `folder`: before long work, and again when it is done."""
    check_folder(folder, "repaired model", MANIFEST, replace=overwrite)


def check_room(folder: Path, model: Any) -> None:
    """Raise BadInput where the disk of `folder` has no room for the model's weights."""
    needed = sum(one.numel() * one.element_size() for one in model.parameters())
    place = next(one for one in folder.absolute().parents if one.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise BadInput(
            f"{folder}: its weights take {needed / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free there; make room or name "
            f"a folder on another disk with -o"
        )


def save_model(part: Path, stored: LoadedModel, source: Path | None) -> None:
    """Write the weights of a live model, with a config and what else the library adds."""
    model: Any = stored.model
    model.save_pretrained(part, max_shard_size=_shard_size(source))
    if source is None:
        if stored.tokenizer is not None:
            stored.tokenizer.save_pretrained(part)
        return
    for path in part.glob("*.json"):  # the library adds a generation_config.json
        if not path.name.endswith("index.json") and not (source / path.name).is_file():
            path.unlink()


def write_rest(part: Path, source: Path | None, settings: dict[str, Any], says: str) -> None:
    """Write the config of the source with these dotted keys changed, its other files, and the card."""
    if source is not None:
        _config(part, source, settings)
        for path in sorted(source.iterdir()):
            if path.is_file() and path.name not in NEVER and not path.name.endswith(LEFT):
                shutil.copyfile(path, part / path.name)
    card = part / CARD
    before = card.read_text("utf-8").rstrip() + "\n\n" if card.is_file() else ""
    card.write_text(f"{before}## Repaired\n\n{says}\n", "utf-8")


def write_manifest(part: Path, plan: Plan, about: dict[str, Any]) -> None:
    """Every factor: exponents of two by parameter, each a number or nested lists that broadcast to the parameter's shape."""
    factors = {
        name: [one if isinstance(one, int) else one.tolist() for one in terms]
        for name, terms in sorted(plan.exponents.items())
    }
    document = {**about, "untied": plan.untie, "exponents of two": factors}
    (part / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def check_unchanged(part: Path, source: Path | None, same: Collection[str]) -> None:
    """Raise BadFile where a tensor of the source that no factor concerns was written otherwise; `same` are their names."""
    import torch
    from safetensors import safe_open

    if source is None:
        return
    old, new = _places(source), _places(part)
    for name in sorted(old.keys() & new.keys() & set(same)):
        with safe_open(old[name], "pt") as before, safe_open(new[name], "pt") as after:
            one, other = before.get_tensor(name), after.get_tensor(name)
        if one.dtype != other.dtype or not torch.equal(one, other):
            raise BadFile(f"{name} was written otherwise though no factor concerns it, so nothing is kept")


def _places(folder: Path) -> dict[str, Path]:
    """{tensor: its file}."""
    from safetensors import safe_open

    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def _shard_size(source: Path | None) -> str | int:
    """Bytes of a file: as the source's largest where it has several, else all in one."""
    sizes = [path.stat().st_size for path in (source.glob("model-*.safetensors") if source else ())]
    return max(sizes) if len(sizes) > 1 else ONE_FILE


def settings_of(plan: Plan, epsilons: dict[str, tuple[float, float]], kind: str) -> dict[str, Any]:
    """What changes in the config, by dotted key; `kind` is the type of all weights, "" where each keeps its own."""
    changed: dict[str, Any] = {key: after for key, (_, after) in epsilons.items()}
    changed |= {"tie_word_embeddings": False} if plan.untie else {}
    return changed | ({"dtype": kind, "torch_dtype": kind} if kind else {})


def _config(part: Path, source: Path, settings: dict[str, Any]) -> None:
    """The source's config, with nothing but these settings changed; of types, only those that it names."""
    values = read_json(source / "config.json", "name a folder with a config", a=dict)
    for key, value in settings.items():
        *within, name = key.split(".")
        at = values
        for one in within:
            at = at.setdefault(one, {})
        if name in at or not name.endswith("dtype"):
            at[name] = value
    (part / "config.json").write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
