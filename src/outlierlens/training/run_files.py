"""The files of a training run: checkpoints with their steps, the loss beside them, and what ends the blocks over the steps.

    found = find_saved(["runs/bert"])                        # runs/bert/checkpoint-500, …: SavedCheckpoint, by ascending step
    curves = find_log(found)                                 # {"loss": Curve, "eval_loss": Curve}

A step is read from the last part of a path, hub id or revision: one of the words step, checkpoint, ckpt, global_step, iter,
iteration or ba, then a number, perhaps with k or M: checkpoint-500, multiberts-seed_0-step_20k, step1000-tokens4B,
epoch=0-step=100.ckpt (Lightning), ep0-ba1000 (Composer), iter_0001000/mp_rank_00 (Megatron). Else trainer_state.json says it.
"""

import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.checkpoints.formats import holds_weights, suffixes
from outlierlens.checkpoints.trainers import same_model
from outlierlens.detection.rules import LastOperation
from outlierlens.detection.weights import Site, sites_of
from outlierlens.errors import BadFile, BadInput, UnknownModel
from outlierlens.results.safe_files import parse_json, read_json


@dataclass(frozen=True)
class Curve:
    """A logged scalar: `values` (float [point]) at `steps` (int [point]), ascending, each step once."""

    steps: Annotated[np.ndarray, "point"]
    values: Annotated[np.ndarray, "point"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", np.asarray(self.steps, dtype=np.int64))
        object.__setattr__(self, "values", np.asarray(self.values, dtype=np.float64))
        if self.steps.ndim != 1 or self.values.shape != self.steps.shape:
            raise BadInput(
                f"a curve has {self.steps.shape} steps and {self.values.shape} values; give one value per step"
            )
        if (np.diff(self.steps) <= 0).any():
            raise BadInput("the steps of a curve must ascend, each once")


@dataclass(frozen=True)
class Trajectory:
    """Scale and bias of one stream's last operation, or of one of its norms, at every recorded step.

    Attributes:
        model: name of the run, or of its checkpoints.
        stack: residual stream ("model", "encoder", "decoder", …).
        site: the norm or the linears that were read, relative to a block.
        norm_site: "stream", "write" or "read", as in `arch.Stack`.
        view: "last" (the block's last operation, as `scan` reads it) or "reading" (a norm before attention or MLP).
        steps: optimizer steps, int [step], ascending, each once.
        scale: float32 [step, layer, dim], the factor as it acts ((1 + w) norms: 1 + w), or the L2 norm of weights.
        bias: the same shape, or None where there is none.
        curves: what was logged: "loss" and "eval_loss" in nats per token, "eval_perplexity", and so on.
        states: float32 [step, dim]: hidden state after the middle layer, averaged over the tokens of one probe text; None
            where it was not recorded.
    """

    model: str
    stack: str
    site: str
    norm_site: str
    view: str
    steps: np.ndarray
    scale: np.ndarray
    bias: np.ndarray | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    states: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", np.asarray(self.steps, dtype=np.int64))
        for name in ("scale", "bias", "states"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float32))
        shape, bias, states = (
            np.shape(one) if one is not None else None for one in (self.scale, self.bias, self.states)
        )
        fit = (
            shape is not None and len(shape) == 3 and self.steps.shape == shape[:1] and (np.diff(self.steps) > 0).all()
        )
        if not fit or bias not in (shape, None) or states not in ((len(self.steps), self.width), None):
            raise BadInput(
                f"{self.model}, {self.stack}: steps {self.steps.shape}, scale {shape}, bias {bias} and states {states} do not "
                f"fit; give ascending steps, scale and bias [step, layer, dim], states [step, dim]"
            )

    @property
    def n_steps(self) -> int:
        """Number of recorded steps."""
        return int(self.scale.shape[0])

    @property
    def n_layers(self) -> int:
        """Number of layers of weights."""
        return int(self.scale.shape[1])

    @property
    def width(self) -> int:
        """Number of dimensions of the stream."""
        return int(self.scale.shape[2])

    def measured(self, place: int) -> LastOperation:
        """Scale and bias of the `place`-th recorded step, as the rules of `detect` take them."""
        bias = None if self.bias is None else self.bias[place].astype(np.float64)
        return LastOperation(
            self.scale[place].astype(np.float64), bias, where=f"{self.model}, step {self.steps[place]}"
        )


def is_norm(norm_site: str, view: str) -> bool:
    """Whether the scale of such a trajectory is a norm's; else it is the L2 norm of the weights that write."""
    return view == "reading" or norm_site != "read"


def tracked_site(stack: BoundStack, name: str | None = None) -> Site:
    """The followed vectors of a stream: what `scan` reads, the blocks' last operation; or the norm `name` that reads it.

    Raises:
        BadInput: the stream has no norm called `name` in every layer.
    """
    sites = [*sites_of(stack, "last"), *sites_of(stack, "reading")]
    if name is None:
        return sites[0]
    norms = {site.name: site for site in sites if site.is_norm}
    if name not in norms:
        raise BadInput(f"stream {stack.name!r}: no norm {name!r}; there are {', '.join(norms) or 'none'}")
    return norms[name]


# --- files of a run --------------------------------------------------------------------------------------------------

MAX_LOG_BYTES = 256 * 2**20
LINES = "a log has one object with step and loss a line"
MAX_STEP = 10**15
STATE = "trainer_state.json"
RANK = "mp_rank_"  # a folder of one process's part of a checkpoint
LOGS = ("log.jsonl", "log_history.jsonl", "metrics.jsonl")
# Words under which trainers log; perplexity is exp(loss).
NAMES = {
    "loss": ("loss", "train", "train_loss", "train/loss"),
    "eval_loss": ("eval_loss", "val", "val_loss", "validation_loss", "eval/loss"),
    "eval_perplexity": ("eval_perplexity", "val_perplexity", "perplexity", "eval/perplexity"),
}
_STEP = re.compile(
    r"(?:^|[-_.=])(?:(?:global[-_])?(?:step|checkpoint|ckpt|iteration|iter)s?[-_=]?|ba)(\d{1,12})(k|m)?(?![a-z\d])",
    re.I,
)


@dataclass(frozen=True)
class SavedCheckpoint:
    """One checkpoint: what `open_checkpoint` opens, and its optimizer step."""

    model: str
    step: int
    revision: str | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return self.model if self.revision is None else f"{self.model}@{self.revision}"


def step_in(name: str) -> int | None:
    """The step that a name speaks of, None where it speaks of none."""
    found = _STEP.findall(name)
    if not found:
        return None
    digits, unit = found[-1]
    return int(digits) * {"": 1, "k": 1000, "m": 1_000_000}[unit.lower()]


def find_saved(
    names: Sequence[str], *, revisions: Sequence[str] = (), steps: Sequence[int] = ()
) -> tuple[SavedCheckpoint, ...]:
    """Every checkpoint, by ascending step; `steps`, one a checkpoint in the order given, override what names say.

    A folder stands for the checkpoints in its subfolders (and files) whose names speak of a step, or for itself where it
    has none such. With `revisions` there is one name, and each revision is a checkpoint.

    Raises:
        BadInput: a checkpoint whose step cannot be told, or two of the same step.
    """
    if revisions and len(names) != 1:
        raise BadInput(f"--revisions belong to one model, and {len(names)} are named")
    if revisions:
        pairs: list[tuple[str, str | None]] = [(names[0], revision) for revision in revisions]
    else:
        pairs = [(one, None) for name in names for one in _inside(name)]
    if steps and len(steps) != len(pairs):
        raise BadInput(
            f"--steps names {len(steps)} steps for {len(pairs)} checkpoints; name one for each, in their order"
        )
    given = list(steps) if steps else [_step(model, revision) for model, revision in pairs]
    found = [SavedCheckpoint(model, step, revision) for (model, revision), step in zip(pairs, given, strict=True)]
    found.sort(key=lambda one: one.step)
    for before, after in itertools.pairwise(found):
        if before.step == after.step:
            raise BadInput(
                f"{before.name} and {after.name} are both of step {after.step}; leave one out, or use --steps"
            )
    return tuple(found)


def _inside(name: str) -> list[str]:
    """The checkpoints that a name stands for, in order of their names' steps."""
    folder = Path(name)
    if not folder.is_dir():
        return [name]
    inside = [(step_in(path.stem if path.is_file() else path.name), path) for path in sorted(folder.iterdir())]
    named = [(step, path) for step, path in inside if step is not None]
    kept = {same_model(path): (step, path) for step, path in reversed(named) if holds_weights(path)}
    if kept:
        return [str(path) for _, path in sorted(kept.values(), key=lambda one: (one[0], str(one[1])))]
    if holds_weights(folder):
        return [name]
    if named:
        path = named[0][1]
        files = ", ".join(sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())[:3])
        raise UnknownModel(
            f"{path}: is named as a checkpoint, and holds no weight file ({', '.join(suffixes())}); it holds "
            f"{files or 'nothing'}; convert it to a model of transformers first"
        )
    raise UnknownModel(
        f"{name}: holds no checkpoint: neither weights nor folders such as checkpoint-500 or step_1000 with weights"
    )


def without_weights(names: Sequence[str]) -> list[Path]:
    """The folders inside `names` that are named as checkpoints and hold files, but no weights."""
    inside = [one for name in names if Path(name).is_dir() for one in sorted(Path(name).glob("*/"))]
    return [one for one in inside if step_in(one.name) is not None and any(one.iterdir()) and not holds_weights(one)]


def _step(model: str, revision: str | None) -> int:
    parts = model.replace("\\", "/").rstrip("/").split("/")
    said = revision if revision is not None else next(one for one in reversed(parts) if not one.startswith(RANK))
    step = step_in(said)
    if step is None and revision is None and (Path(model) / STATE).is_file():
        value = _json(Path(model) / STATE).get("global_step")
        step = value if _is_step(value) else None
    if step is None:
        raise BadInput(f"{said}: no step in this name (such as checkpoint-500 or step20k); say the steps with --steps")
    return step


def find_log(saved: Sequence[SavedCheckpoint]) -> dict[str, Curve]:
    """A logged curve: the trainer's state in the last checkpoint, or in the folder around it, or a log there; {} without."""
    last = Path(saved[-1].model)
    for folder in (last, last.parent):
        if saved[-1].revision is None and last.exists() and folder.is_dir():
            for name in (STATE, *LOGS):
                if (folder / name).is_file() and (curves := read_log(folder / name)):
                    return curves
    return {}


def read_log(path: Path) -> dict[str, Curve]:
    """Loss curves by name from a trainer_state.json, or from JSON lines with "step" and a loss; a later row of a step counts.

    Raises:
        BadFile: not such a file; a last line without its end (still being written) is left out.
    """
    if path.suffix == ".json":
        rows = _json(path).get("log_history")
        if not isinstance(rows, list):
            raise BadFile(f"{path}: no log_history; give a trainer_state.json, or JSON lines with step and loss")
    else:
        rows = _lines(path)
    points: dict[str, dict[int, float]] = {}
    for row in rows:
        step = row.get("step") if isinstance(row, dict) else None
        # The trainer's last row holds the mean loss of the whole run, beside its running time.
        if not _is_step(step) or "train_runtime" in row:
            continue
        for name, words in NAMES.items():
            value = next((row[word] for word in words if isinstance(row.get(word), int | float)), math.nan)
            if abs(value) <= sys.float_info.max:  # finite, and no whole number that a float cannot hold
                points.setdefault(name, {})[step] = float(value)
    return {name: Curve(np.array(sorted(p)), np.array([p[step] for step in sorted(p)])) for name, p in points.items()}


def _is_step(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP


def loss_curves(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Those of `curves` that are losses, under our names, without points that are not finite."""
    made = {name: (one, np.isfinite(one.values)) for name, one in curves.items() if name in NAMES}
    return {name: Curve(one.steps[finite], one.values[finite]) for name, (one, finite) in made.items() if finite.any()}


def _lines(path: Path) -> list[Any]:
    text = _text(path)
    lines = enumerate(text[: text.rfind("\n") + 1].split("\n"), 1)
    return [parse_json(line, f"{path}, line {number}", LINES) for number, line in lines if line.strip()]


def _json(path: Path) -> dict[str, Any]:
    value = parse_json(_text(path), str(path))
    if not isinstance(value, dict):
        raise BadFile(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _text(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"{path}: no such log")
    if path.stat().st_size > MAX_LOG_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a log")
    return path.read_text("utf-8", errors="replace")


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, by step; one that was being written when the process died is not whole."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    return sorted(filter(_is_whole, found), key=lambda path: int(path.name.removeprefix("checkpoint-")))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint that holds what resuming needs, or None."""
    return next((path for path in reversed(checkpoints(folder)) if (path / "optimizer.pt").is_file()), None)


def _is_whole(path: Path) -> bool:
    # The Trainer writes its state last.
    try:
        read_json(path / STATE)
    except (OSError, BadFile):
        return False
    return True
