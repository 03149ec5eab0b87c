"""THE table of what trainers write: how their files are named, where the model lies inside, and which files make one model.

    form_of(Path("runs/a/iter_0001000/mp_rank_00/model_optim_rng.pt"))      # the row of Megatron
    parts_of(path)                                       # the same file of every rank, in order
    model_in(content)                                    # ({name: tensor}, whether something stood around it)

A step is told from the name of a file or folder by `training/run_files.py`, a tensor's name in the file by `naming.py`.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import MAX_TENSORS, load_config
from outlierlens.errors import BadFile


@dataclass(frozen=True)
class Form:
    """One form of checkpoints.

    Attributes:
        name: who writes it.
        example: a file or folder of a run, with its step.
        files: patterns of the model's files in a folder; `{rank}` numbers those that make one model. () where any name may do.
        inside: where in the file the model lies, from the outermost container.
        refused: why it is not read, and what to do; `{folder}` is that of the file.
    """

    name: str
    example: str
    files: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    refused: str = ""

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Those of `files`, against the last parts of a path."""
        parts = (
            re.escape(file).replace(r"\{rank\}", r"(?P<rank>\d[\d_]*)").replace(r"\*", "[^/]*") for file in self.files
        )
        return tuple(re.compile(rf"(?<![^/]){part}\Z") for part in parts)

    @property
    def globs(self) -> tuple[str, ...]:
        """`files` with a star for the rank."""
        return tuple(file.replace("{rank}", "*") for file in self.files)


_ZERO = (
    "holds no weights: ZeRO-3 cut them over the optimizer's files; where you trust these, run in {folder} `python "
    "zero_to_fp32.py . pytorch_model.bin --tag {tag}` (DeepSpeed put the script there) and name that pytorch_model.bin"
)
_ZERO_FILE = "zero_pp_rank_*_mp_rank_*_model_states.pt"
_PIPELINE = "has its layers cut over files (layer_*), which is not read; save the model as one"
_LAYER_FILE = "layer_*-model_*-model_states.pt"
_DEEPSPEED_FILE = "mp_rank_{rank}_model_states.pt"
TRAINERS = (
    Form("training loops", "step_100.pt", inside=("model_state_dict",)),
    Form("Lightning", "epoch=1-step=100.ckpt", inside=("state_dict",)),
    Form("Composer", "ep0-ba100-rank0.pt", ("ep*-ba*-rank{rank}.pt",), ("state", "model")),
    Form("DeepSpeed, pipeline", f"global_step100/{_LAYER_FILE}", (_LAYER_FILE, f"*/{_LAYER_FILE}"), refused=_PIPELINE),
    Form("DeepSpeed", "global_step100/mp_rank_00_model_states.pt", (_DEEPSPEED_FILE, f"*/{_DEEPSPEED_FILE}"), ("module",)),
    Form("DeepSpeed, ZeRO-3", f"global_step100/{_ZERO_FILE}", (_ZERO_FILE, f"*/{_ZERO_FILE}"), refused=_ZERO),
    Form(
        "Megatron", "iter_0000100/mp_rank_00/model_optim_rng.pt",
        ("mp_rank_{rank}/model_optim_rng.pt", "mp_rank_{rank}/model_rng.pt"), ("model",),
    ),
    Form("Llama's and Mistral's own", "step_100/consolidated.00.pth", ("consolidated.{rank}.pth", "consolidated.safetensors")),
    Form("accelerate, FSDP", "checkpoint-100/pytorch_model_fsdp_0", ("pytorch_model_fsdp_*/.metadata",), ("model",)),
    Form("nanoGPT", "ckpt_100.pt", inside=("model",)),
)  # fmt: skip
MAX_CONTAINERS = 4
PARAMS = "params.json"  # the config of Llama's and Mistral's own files
_PARAMS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta", "head_dim": "head_dim",
    "sliding_window": "sliding_window",
}  # fmt: skip
CONTAINERS = dict.fromkeys(name for form in TRAINERS for name in form.inside[::-1])  # likeliest first


def _told(path: Path) -> tuple[Form, re.Match[str]] | None:
    found = ((form, one.search(path.absolute().as_posix())) for form in TRAINERS for one in form.patterns)
    return next(((form, match) for form, match in found if match), None)


def form_of(path: Path) -> Form | None:
    """The form of a file by its name, where that tells it."""
    found = _told(path)
    return found and found[0]


def same_model(path: Path) -> str:
    """A word that is the same for all files that make one model."""
    _, match = _told(path) or (None, None)
    if match is None or "rank" not in match.re.groupindex:
        return str(path.absolute())
    return f"{match.string[: match.start('rank')]}*{match.string[match.end('rank') :]}"


def parts_of(path: Path) -> list[Path]:
    """The files that make one model with this one, by rank; the file alone where it is not a part.

    Raises:
        BadFile: the trainer cut the model in a way that is not read, or a rank between others is missing.
    """
    form, match = _told(path) or (None, None)
    if form is None or match is None:
        return [path]
    root = path.absolute().parent
    if form.refused:  # DeepSpeed's script lies beside the folder of a step
        raise BadFile(
            f"{path}: {form.refused.format(folder=shlex.quote(str(root.parent)), tag=shlex.quote(root.name))}"
        )
    if "rank" not in match.re.groupindex:
        return [path]
    root, kind, names = Path(match.string[: match.start()]), same_model(path), {}
    for one in root.glob(next(glob for glob in form.globs if fnmatch(match[0], glob))):
        if same_model(one) == kind and (other := match.re.search(one.as_posix())):
            names[tuple(int(digits) for digits in other["rank"].split("_") if digits)] = one
    ranks = sorted(names)
    if any(any(rank[1:]) for rank in ranks):
        raise BadFile(
            f"{path}: its layers or experts are cut over {len(ranks)} ranks ({names[ranks[-1]].parent.name}), which is not "
            "read; save the model with tensor parallel ranks alone, or as one"
        )
    if [rank[0] for rank in ranks] != list(range(len(ranks))):
        lacking = next(n for n in range(len(ranks) + 1) if (n,) not in {rank[:1] for rank in ranks})
        raise BadFile(f"{path}: is one of several ranks, and that of rank {lacking} is missing; put it beside this one")
    return [names[rank] for rank in ranks] if len(ranks) > 1 else [path]


def model_in(content: Any) -> tuple[Any, bool]:
    """The model in a trainer's container, nested names joined with dots, and whether there was one."""
    found, inside = content, False
    for _ in range(MAX_CONTAINERS):
        name = next(
            (one for one in CONTAINERS if isinstance(found, Mapping) and isinstance(found.get(one), Mapping)), None
        )
        if name is None:
            break
        found, inside = found[name], True
    return (flat(found) if inside else found), inside


def flat(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The leaves of nested mappings by their names, joined with dots.

    Raises:
        BadFile: there are more than any model has, as in a mapping that holds itself.
    """
    found: dict[Any, Any] = {}
    waiting: list[tuple[str, Mapping[Any, Any]]] = [("", tree)]
    for _ in range(MAX_TENSORS):
        if not waiting:
            return found
        before, one = waiting.pop()
        for name, value in one.items():
            if isinstance(value, Mapping):
                waiting.append((f"{before}{name}.", value))
            else:
                found[f"{before}{name}" if before or isinstance(name, str) else name] = value
        if len(found) + len(waiting) > MAX_TENSORS or len(before) > 1000:
            break
    raise BadFile("its containers hold one another without end; the file is corrupt, fetch it again")


def facts_of(content: Any) -> dict[str, Any]:
    """What a trainer says of the model beside its weights: Megatron's arguments, DeepSpeed's number of ranks; {} for others."""
    if not isinstance(content, Mapping):
        return {}
    told = getattr(content.get("args"), "state", None)
    facts = dict(told) if isinstance(told, Mapping) else {}
    if "checkpoint_version" in content:
        facts["checkpoint_version"] = content["checkpoint_version"]
    if "mp_world_size" in content:
        facts["tensor_model_parallel_size"] = content["mp_world_size"]
    return {name: value for name, value in facts.items() if isinstance(value, int | float | str)}


def config_of_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The config of transformers that a params.json of Llama or Mistral is; {} for {}."""
    told = {ours: params[name] for name, ours in _PARAMS.items() if params.get(name) is not None}
    return {"model_type": "mistral" if "sliding_window" in told else "llama", **told} if params else {}


def has_stretched_positions(folder: Path) -> bool:
    """Whether a folder's config is a params.json alone whose model stretches its positions, by a factor that is not there."""
    return not (folder / "config.json").is_file() and bool(load_config(folder / PARAMS).get("use_scaled_rope"))
