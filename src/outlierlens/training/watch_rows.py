"""What a watch writes for every recorded step of a training, and how it is read back; needs no torch.

    path = read_watch(Path("watch.jsonl"))           # Trajectory: scale and bias [step, layer, dim], logged curves
    seen = read_activity(Path("watch.jsonl"))        # Activity: kurtosis and inf-norm on the probe, gradient norms

The file may still be growing. Keys are "step 100" (a recorded step) and "log 100 loss" (a scalar that was logged).
"""

import base64
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.errors import BadFile, BadInput
from outlierlens.results.row_store import read_rows
from outlierlens.training.run_files import Curve, Trajectory

KIND = "watched training"
# Full precision: a reader can compute any z, rank or share from them afterwards.
PACKED = ("scale", "bias", "gradient_scale", "gradient_bias", "update_scale", "update_bias", "state")


def nothing() -> np.ndarray:
    """An array of no value: what was not recorded."""
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class StreamRow:
    """One residual stream at one recorded step; an array without values was not recorded.

    Attributes:
        scale, bias: of the norms or linears that are followed, as they act, float32 [layer, dim].
        gradient_scale, gradient_bias: L2 norm over the layers of their gradients, float32 [dim].
        update_scale, update_bias: L2 norm over the layers of this optimizer step's change of them, float32 [dim].
        kurtosis_dims: of the hidden states after each layer on the probe, over dimensions of their second moments [layer].
        kurtosis_entries: of the same, over all entries of a text, averaged over texts [layer].
        inf_norm: of the same, the largest |h| of a text, averaged over texts [layer].
        largest_state: of the same, the largest |h| of all texts [layer].
        largest_logit: the largest |q·k| of the layer's attention as softmax reads it: scaled, with any bias by position, over
            keys that may be seen [layer]; NaN in a layer without attention.
        state: hidden state after the middle layer, averaged over the tokens of the first probe text, float32 [dim].
    """

    scale: np.ndarray
    bias: np.ndarray = field(default_factory=nothing)
    gradient_scale: np.ndarray = field(default_factory=nothing)
    gradient_bias: np.ndarray = field(default_factory=nothing)
    update_scale: np.ndarray = field(default_factory=nothing)
    update_bias: np.ndarray = field(default_factory=nothing)
    kurtosis_dims: np.ndarray = field(default_factory=nothing)
    kurtosis_entries: np.ndarray = field(default_factory=nothing)
    inf_norm: np.ndarray = field(default_factory=nothing)
    largest_state: np.ndarray = field(default_factory=nothing)
    largest_logit: np.ndarray = field(default_factory=nothing)
    state: np.ndarray = field(default_factory=nothing)

    def to_json(self) -> dict[str, Any]:
        """Plain values: long vectors in base64, one number per layer as it is."""
        return {
            f.name: _pack(getattr(self, f.name)) if f.name in PACKED else np.asarray(getattr(self, f.name)).tolist()
            for f in fields(self)
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamRow":
        """The row that `to_json` made; raises ValueError, KeyError or TypeError for anything else."""
        return cls(
            **{
                f.name: _unpack(value[f.name]) if f.name in PACKED else np.array(value[f.name], dtype=np.float64)
                for f in fields(cls)
                if f.name in value or f.default_factory is MISSING
            }
        )


MEASURES = tuple(f.name for f in fields(StreamRow) if f.name not in PACKED)  # one number per layer, of the probe


@dataclass(frozen=True)
class Activity:
    """The recorded numbers of one stream besides its weights; NaN where a step has none.

    Attributes:
        stack: residual stream.
        steps: recorded steps, int [step].
        loss: what was handed to `step`, nats per token as a rule, float [step].
        learning_rate: float [step].
        kurtosis_dims: mean over dims of s² over the square of the mean of s, for s_d the mean square of dimension d over the
            probe's tokens (He et al. 2024); 1 where all dimensions are alike, at most the width, float [step, layer].
        kurtosis_entries: fourth central moment over the squared variance of all entries of a text, averaged over texts
            (Bondarenko et al. 2023); 3 for a normal, float [step, layer].
        inf_norm: largest |h| of a text, averaged over texts (same paper), float [step, layer].
        largest_state: largest |h| of all texts, float [step, layer].
        largest_logit: largest |q·k| of attention as softmax reads it: scaled, with any bias by position, over keys that may be
            seen, float [step, layer]; NaN in a layer without attention.
        gradient_scale, gradient_bias: L2 norm over layers of the gradients at a dimension, after clipping, float
            [step, dim]; (0, 0) where there are none.
        update_scale, update_bias: likewise of the recorded optimizer step's change of the weights.
    """

    stack: str
    steps: np.ndarray
    loss: np.ndarray
    learning_rate: np.ndarray
    kurtosis_dims: np.ndarray
    kurtosis_entries: np.ndarray
    inf_norm: np.ndarray
    largest_state: np.ndarray
    largest_logit: np.ndarray
    gradient_scale: np.ndarray
    gradient_bias: np.ndarray
    update_scale: np.ndarray
    update_bias: np.ndarray

    def gradient_rms(self) -> np.ndarray:
        """Root mean square over all dims of `gradient_scale` [step]: what a tracked entry's norm compares with."""
        return np.sqrt(np.square(self.gradient_scale).mean(axis=1))


def step_key(step: int) -> str:
    """Key of a recorded step's row."""
    return f"step {step}"


def log_key(step: int, name: str) -> str:
    """Key of a logged scalar's row."""
    return f"log {step} {name}"


def step_of(key: str) -> int:
    """The step that a row belongs to."""
    return int(key.split(" ", 2)[1])


def recorded(rows: Mapping[str, Any]) -> dict[int, Any]:
    """{step: value} of the recorded steps, ascending."""
    return dict(sorted((step_of(key), value) for key, value in rows.items() if key.startswith("step ")))


def read_watch(path: Path | str, stack: str | None = None) -> Trajectory:
    """Scale and bias over the recorded steps of one stream, and the curves that were logged.

    Raises:
        BadInput: no such file or stream, or several streams and none named.
        BadFile: not the file of a watch, or a row in it is malformed.
    """
    path = Path(path)
    about, rows, done = _open(path, stack)
    with _malformed(path):
        found = {name: [getattr(row, name) for row in rows.values()] for name in ("scale", "bias", "state")}
        stacked = {name: np.stack(some) for name, some in found.items() if all(one.size for one in some)}
        return Trajectory(
            model=path.stem, stack=about["stack"], site=str(about["site"]), norm_site=str(about["norm_site"]),
            view=str(about["view"]), steps=np.array(list(rows)), scale=stacked["scale"],
            bias=stacked.get("bias"), curves=_curves(done), states=stacked.get("state"),
        )  # fmt: skip


def read_activity(path: Path | str, stack: str | None = None) -> Activity:
    """Activations, gradients, loss and learning rate over the recorded steps of one stream; raises like `read_watch`."""
    path = Path(path)
    about, rows, done = _open(path, stack)
    values = recorded(done)

    def table(name: str) -> np.ndarray:
        found = [np.asarray(getattr(row, name), dtype=np.float64) for row in rows.values()]
        size = max(len(row) for row in found)
        return np.stack([row if len(row) else np.full(size, math.nan) for row in found])

    def scalars(name: str) -> np.ndarray:
        return np.array([math.nan if value[name] is None else float(value[name]) for value in values.values()])

    with _malformed(path):
        logged = {name: scalars(name) for name in ("loss", "learning_rate")}
        arrays = [f.name for f in fields(Activity) if f.name not in ("stack", "steps", *logged)]
        return Activity(
            stack=about["stack"],
            steps=np.array([*rows], dtype=np.int64),
            **logged,
            **{name: table(name) for name in arrays},
        )


@contextmanager
def _malformed(path: Path) -> Iterator[None]:
    """Says of rows that a watch did not write, whatever is wrong with them, that they are malformed."""
    try:
        yield
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise BadFile(f"{path}: the row of a step is malformed ({error!r}); delete the file to start again") from None


def _open(path: Path, stack: str | None) -> tuple[dict[str, Any], dict[int, StreamRow], dict[str, Any]]:
    """(what the file says about the stream, its rows by step, every row)."""
    identity, done = read_rows(path)
    streams = identity.get("streams")
    if identity.get("kind") != KIND or not isinstance(streams, dict) or not streams:
        raise BadFile(f"{path}: rows of other work, not of a watched training")
    if stack is None and len(streams) == 1:
        (stack,) = streams
    if stack not in streams:
        raise BadInput(f"{path}: which stream? it must be one of {', '.join(streams)}, not {stack!r}")
    rows = {}
    with _malformed(path):
        about = {**streams[stack], "stack": stack}
        for step, value in recorded(done).items():
            row = rows[step] = StreamRow.from_json(value["streams"][stack])
            if row.scale.shape != (about["layers"], about["width"]) or row.bias.shape not in (row.scale.shape, (0,)):
                raise ValueError(f"scale is {row.scale.shape}")
    if not rows:
        raise BadInput(f"{path}: no step is recorded yet")
    return about, rows, done


def _curves(done: Mapping[str, Any]) -> dict[str, Curve]:
    """Logged scalars by name; the loss handed to `step` where none was logged."""
    points: dict[str, dict[int, float]] = {}
    for key, value in done.items():
        if key.startswith("log "):
            points.setdefault(key.split(" ", 2)[2], {})[step_of(key)] = float(value)
    for name in ("loss", "learning_rate"):
        if name not in points:
            given = {step: float(row[name]) for step, row in recorded(done).items() if row[name] is not None}
            points |= {name: given} if given else {}
    return {
        name: Curve(np.array(sorted(values)), np.array([values[step] for step in sorted(values)]))
        for name, values in sorted(points.items())
    }


def _pack(values: np.ndarray) -> dict[str, Any]:
    plain = np.ascontiguousarray(values, dtype="<f4")
    return {"shape": list(plain.shape), "float32": base64.b64encode(plain.tobytes()).decode("ascii")}


def _unpack(value: Mapping[str, Any]) -> np.ndarray:
    raw = base64.b64decode(value["float32"], validate=True)
    return np.frombuffer(raw, dtype="<f4").reshape(value["shape"])
