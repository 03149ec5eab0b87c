"""Write a damaged copy of a model, marked as one wherever a reader looks: weights' metadata, config and README.

    check_save(directory, yes=True)                      # before anything is measured
    save_attacked(loaded, found.strongest, directory)    # a folder that from_pretrained loads

The folder takes its name once everything in it is written.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.safetensors import header_length
from outlierlens.errors import BadFile, BadInput, markdown
from outlierlens.experiments.attack.edits import changes_of, edited_values
from outlierlens.experiments.attack.result import Attack, Attacked, Edit
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import save
from outlierlens.results.json_toml import parse_json, read_json
from outlierlens.results.safe_files import new_folder, replacing

MARK = "deliberately_damaged"
KEY = f"outlierlens_{MARK}"
COPIED = 1 << 24  # bytes that are copied at once


def check_save(directory: Path, *, yes: bool) -> None:
    """Raise BadInput where no damaged copy may be written: without a yes, or where something is already."""
    if not yes:
        raise BadInput(
            f"--save {directory} writes a deliberately damaged copy of the model; add --yes to say that this is meant"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} is not empty; name a new folder for the damaged copy")


def save_attacked(loaded: LoadedModel, found: Attack, one: Attacked, directory: Path) -> int:
    """Write the model with the edits of one row made, marked; the number of values that differ. The model is unchanged.

    Raises:
        BadInput: the folder holds something.
    """
    check_save(directory, yes=True)
    parameters = dict(loaded.model.named_parameters(remove_duplicate=False))
    changes = changes_of(one.edits, parameters)
    with new_folder(directory) as making:
        with edited_values(loaded.model, changes):
            loaded.model.save_pretrained(making)  # type: ignore[operator]
        for part in (loaded.tokenizer, loaded.processor):
            if part is not None:
                part.save_pretrained(making)
        said = f"{len(changes)} values changed on purpose ({one.kind}) by outlierlens attack; not for use"
        for path in sorted(making.glob("*.safetensors")):
            mark_safetensors(path, {KEY: said})
        _mark_config(making / "config.json", said, one.edits)
        (making / "README.md").write_text(_card(loaded, found, one), "utf-8")
        save(found, making / "attack.json")
    return len(changes)


def mark_safetensors(path: Path, more: Mapping[str, str]) -> None:
    """Add to a safetensors file's metadata, in a new file that then takes its name; the tensors' bytes stay as they are.

    Raises:
        BadFile: its header cannot be read.
    """
    with path.open("rb") as file:
        length = header_length(file.read(8), path.stat().st_size, str(path))
        try:
            header = parse_json(file.read(length), str(path), "save the model again")
            header["__metadata__"] = {**header.get("__metadata__", {}), **more}
        except (TypeError, AttributeError):
            raise BadFile(f"{path}: its header cannot be read, so it cannot be marked; save the model again") from None
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with replacing(path) as marked:
            marked.write(len(raw).to_bytes(8, "little") + raw)
            shutil.copyfileobj(file, marked, COPIED)


def _mark_config(path: Path, said: str, edits: tuple[Edit, ...]) -> None:
    config: dict[str, Any] = read_json(path, "save the model again", a=dict) if path.is_file() else {}
    config[KEY] = {"what": said, "tensors": sorted({edit.tensor for edit in edits})}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _card(loaded: LoadedModel, found: Attack, one: Attacked) -> str:
    rows = [
        f"| {markdown(edit.tensor)} | {list(edit.index)} | {edit.before!r} | {edit.after!r} |" for edit in one.edits
    ]  # fmt: skip
    return "\n".join([
        "---", "tags:", "- deliberately-damaged", "---",
        f"# A deliberately damaged copy of {markdown(loaded.name)}",
        "",
        "**Do not use this model.** It was made by `outlierlens attack` to test whether its keepers notice: "
        f"{len(one.edits)} values were changed ({one.kind}). {found.verdict[:1].upper()}{found.verdict[1:]}.",
        "",
        "`outlierlens verify` against the fingerprint of the intact model finds the change.",
        "", "| tensor | index | was | is |", "|---|---|---|---|", *rows, "",
    ])  # fmt: skip
