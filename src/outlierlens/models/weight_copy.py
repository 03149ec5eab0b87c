"""A GGUF or ONNX file, or a trainer's checkpoint, as float32 safetensors with its config; memory holds one tensor at a time.

    copy_gguf(Path("model.gguf"), folder, True, print)
    copy_file(Path("encoder.onnx"), folder, print)          # config.json is in the folder already

Before anything is written, a model of the config's sizes is made without values and held against the tensors that the file has:
what a header claims is never allocated.
"""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures.bind import claimed_experts
from outlierlens.checkpoints import as_weights
from outlierlens.checkpoints.adapter import CONFIG
from outlierlens.checkpoints.base import Checkpoint, load_config
from outlierlens.checkpoints.formats import config_folder, files_of, open_file, write_header
from outlierlens.checkpoints.samples import check_space, megabytes
from outlierlens.checkpoints.stored import Weights, of_adapter
from outlierlens.errors import BadFile, UnknownArchitecture, need
from outlierlens.models import variants
from outlierlens.models.model_class import is_unused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from outlierlens.checkpoints.gguf_model import GgufModel

VOCABULARIES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"
)  # fmt: skip
TOKENIZER = (*VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
Progress = Callable[[str], None]
Shapes = Mapping[str, tuple[int, ...]]
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_NOT_TAKEN = ("quantization_config", "auto_map", "torch_dtype", "dtype", "architectures", "transformers_version")
_ANONYMOUS = re.compile(r"[/:]|^\d+$|^val_")


def copy_gguf(path: Path, folder: Path, weights: bool, notice: Progress) -> list[Path]:
    """Fill `folder`; returns which files were read besides.

    A config.json beside the file is taken where it fits, and then the tokenizer there: they are what the file was made from.

    Raises:
        UnknownArchitecture, BadFile: the file cannot be run; the message says why.
    """
    from outlierlens.checkpoints.gguf import GGUFCheckpoint
    from outlierlens.checkpoints.gguf_model import whole

    beside = config_folder(path)
    with GGUFCheckpoint(path, name=str(path)) as checkpoint:
        try:
            model = whole(checkpoint)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise BadFile(f"{path}: its metadata makes no model ({error}); the file is corrupt") from None
        config = None if beside is None else _config_beside(beside / "config.json", model, notice)
        if config and beside is not None and _has_tokenizer(beside):
            copy_beside(beside, folder, TOKENIZER)
        else:
            if config is None:
                named = _class_that_fits(model.config, model.shapes, str(path))
                config = model.config | {"architectures": [named]}
            _save_tokenizer(path, folder, model.config["vocab_size"])
        (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2), "utf-8")
        if weights:
            if model.left_out:
                notice(
                    f"{path}: left out, since the model as known here has no such thing: {', '.join(model.left_out[:4])}"
                )
            try:
                _write(path, folder, model.shapes, model.values(), notice)
            except ValueError as error:
                raise BadFile(f"{path}: its tensors do not fit its settings ({error}); the file is corrupt") from None
    return []


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in VOCABULARIES)


def _save_tokenizer(path: Path, folder: Path, n_rows: int) -> None:
    """The tokenizer in the file, or where that cannot be read, the one beside it."""
    from outlierlens.checkpoints.gguf_model import read_tokenizer

    try:
        made = read_tokenizer(path)
    except BadFile:
        if not _has_tokenizer(path.parent):
            raise
        copy_beside(path.parent, folder, TOKENIZER)
        return
    if len(made) > n_rows:
        raise BadFile(
            f"{path}: its tokenizer has {len(made):,} tokens and its embeddings {n_rows:,} rows; it is corrupt"
        )
    made.save_pretrained(folder)


def _config_beside(path: Path, model: "GgufModel", notice: Progress) -> dict[str, Any] | None:
    """The config.json beside a GGUF file, or the text model's part of it; None where it is of another model."""
    given = load_config(path)
    given = given["text_config"] if isinstance(given.get("text_config"), dict) else given
    given = {key: value for key, value in given.items() if key not in _NOT_TAKEN}
    depth = arch.stacks_of(model.config)[0].layers
    kin = (model.family.model_type, *model.family.kin)
    if given.get("model_type") in kin and given.get(depth) == model.config[depth]:
        try:
            return given | {"architectures": [_class_that_fits(given, model.shapes, str(path))]}
        except BadFile:
            pass
    notice(f"{path}: is of another model than the file beside it, and is left aside")
    return None


def copy_file(path: Path, folder: Path, notice: Progress) -> list[Path]:
    """Fill `folder`, which holds config.json, with weights that transformers does not load as they are.

    Returns the other files that were read: external data, the files of an index.

    Raises:
        BadFile: the file lacks parameters of the config's model, or has them in other shapes.
    """
    with as_weights(open_file(path, str(path))) as checkpoint:
        if isinstance(checkpoint, Weights) and of_adapter(checkpoint.source.tensors):
            raise BadFile(
                f"{path}: holds an adapter, and {CONFIG}, which says how it is added, is not beside it; put it there, or merge "
                "the adapter with peft: merge_and_unload(), then save_pretrained()"
            )
        _copy(checkpoint, path, folder, notice)
        return [*checkpoint.outside, *getattr(checkpoint, "files", files_of(path)[0]), path.parent / CONFIG]


def _copy(checkpoint: Checkpoint, path: Path, folder: Path, notice: Progress) -> None:
    """Write the tensors of the config's model, without what stands before their names."""
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    if not isinstance(config.get("model_type"), str):
        config["model_type"] = _family(checkpoint, notice)
    if config != checkpoint.config or not (folder / "config.json").is_file():
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
    floats = {
        name: info.shape
        for name, info in checkpoint.tensors.items()
        if checkpoint.holds_floats(name) and not _ANONYMOUS.search(name)
    }
    model = _without_values(config, str(path), deepest=len(floats))
    prefix, missing = min((_lacking(wanted, floats) for wanted in _spellings(model)), key=lambda found: len(found[1]))
    if missing:
        raise BadFile(
            f"{path}: lacks {len(missing)} parameters of {type(model).__name__} as config.json has it "
            f"({', '.join(missing[:3])}, …); {checkpoint.remedy}, and its own config.json, or the "
            "model's safetensors"
        )
    # What wraps the model is dropped: "auto_model." before "encoder.layer.0.…", nothing before "bert.encoder.layer.0.…".
    wrapper = prefix.removesuffix(f"{getattr(model, 'base_model_prefix', '')}.")
    shapes = {name: floats[name] for name in floats if name.startswith(wrapper)}
    values = ((name.removeprefix(wrapper), values) for name, values in checkpoint.read(shapes))
    _write(path, folder, {name.removeprefix(wrapper): shape for name, shape in shapes.items()}, values, notice)
    for note in checkpoint.notes:
        if "multiplied out" in note:
            notice(f"{path}: {note}; the model runs in whole floats, and does not round what its layers read")


def _spellings(model: "PreTrainedModel") -> Iterator[Shapes]:
    """Shapes by name of a model's parameters: as the library names them, and as files from before it renamed some do."""
    from transformers.core_model_loading import revert_weight_conversion

    for named in (dict(model.named_parameters()), revert_weight_conversion(model, dict(model.named_parameters()))):
        yield {name: tuple(value.shape) for name, value in named.items()}


def _lacking(wanted: Shapes, floats: Shapes) -> tuple[str, list[str]]:
    """What stands before the names in `floats` of what is wanted, and which of it is not there in its shape."""
    before: Counter[str] = Counter()
    for name, shape in floats.items():
        words = name.split(".")
        ends = (".".join(words[start:]) for start in range(len(words)))
        before.update(name.removesuffix(end) for end in ends if shape == wanted.get(end))
    prefix = before.most_common(1)[0][0] if before else ""
    have = {name: floats.get(f"{prefix}{name}") for name in wanted}
    return prefix, [
        name for name, shape in wanted.items() if have[name] != shape and (have[name] or not is_unused(name))
    ]


def _family(checkpoint: Checkpoint, notice: Progress) -> str:
    """The family of a file whose config.json names none, by its tensors."""
    found = arch.families(checkpoint.tensors, checkpoint.config, checkpoint.name)
    if len(found) > 1:
        raise UnknownArchitecture(
            f"{checkpoint.name}: no model_type in its config.json, and its tensors could be of {', '.join(found)}; write the "
            f'right one into it, such as "model_type": "{found[0]}"'
        )
    notice(f"{checkpoint.name}: {arch.no_model_type(found)}")
    return found[0]


# --- sizes -------------------------------------------------------------------------------------------------------


def _class_that_fits(config: Mapping[str, Any], shapes: Shapes, where: str) -> str:
    """The name of the class that has exactly these parameters.

    Raises:
        BadFile: there is none, or its parameters are others.
    """
    experts = {shape[0] for name, shape in shapes.items() if ".experts." in name}
    row = arch.family_of(config)
    claimed = next(
        (n for stack in arch.stacks_of(config, where) if (n := claimed_experts(stack, config)[1]) is not None), None
    )
    if experts and experts != {claimed}:
        raise BadFile(f"{where}: claims {claimed} experts, and there are {sorted(experts)}; the file is corrupt")
    model = _without_values(config, where, deepest=len(shapes), causal=row.causal == "always")
    wanted = {name: tuple(value.shape) for name, value in model.named_parameters()}
    newer = {old: new for old, new in row.renamed.items() if new in wanted}
    have = {newer.get(name, name): shape for name, shape in shapes.items()}
    wrong = [f"{name} {have[name]} for {shape}" for name, shape in wanted.items() if have.get(name, shape) != shape]
    wrong += [f"no {name}" for name in wanted if name not in have and not is_unused(name)]
    wrong += [f"{name} besides" for name in have if name not in wanted]
    if wrong:
        raise BadFile(
            f"{where}: what it says of the model and its tensors do not fit each other ({'; '.join(wrong[:3])}"
            f"{'; …' if len(wrong) > 3 else ''}); fetch it again, or take the model's folder (config, tokenizer, safetensors)"
        )
    return type(model).__name__


def _without_values(config: Mapping[str, Any], where: str, *, deepest: int, causal: bool = False) -> "PreTrainedModel":
    """A model of these settings on the meta device, where parameters have shapes and no values."""
    torch, transformers = need("torch", "models", "running a model"), need("transformers", "models", "running a model")
    if any(isinstance(config.get(key), int) and config[key] > deepest for key in _DEPTHS):
        raise BadFile(f"{where}: its config claims more layers than there are tensors; it belongs to another model")
    if config.get("model_type") in variants.MODEL_TYPES:
        variants.register()
    automatic = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    try:
        made = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):
            return automatic.from_config(made, trust_remote_code=False)
    except Exception as error:  # settings that make no sense raise nearly every class
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadFile(f"{where}: its settings make no model ({text}); the file is corrupt") from None


def _write(
    path: Path, folder: Path, shapes: Shapes, values: Iterable[tuple[str, np.ndarray]], notice: Progress
) -> None:
    header = write_header({name: ("F32", shape, 4 * math.prod(shape)) for name, shape in shapes.items()})
    total = len(header) + 4 * sum(map(math.prod, shapes.values()))
    notice(f"{path}: converting once to {megabytes(total)} of float32 safetensors in the cache {folder.parent}")
    check_space(total, folder, f"converting {path}")
    with (folder / "model.safetensors").open("wb") as out:
        out.write(header)
        for name, value in values:
            if value.shape != shapes[name]:
                raise BadFile(f"{path}: {name} has the shape {value.shape}, not {shapes[name]}; the file is corrupt")
            out.write(np.ascontiguousarray(value, dtype="<f4").tobytes())


def copy_beside(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Copy the files of these names that are there."""
    for name in names:
        if (source / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
