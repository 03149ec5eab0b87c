"""From norms over training steps to what is worth knowing: which dimensions became outliers, when, and the loss beside.

    found = summarize(trajectory, EmergenceOptions())        # Emergence, plateau, fall, and the trimmed arrays: a Track

Kovaleva et al. (2021), section 5, watch one layer by eye; here a dimension has emerged at the first recorded step from
which |z| >= n_sigma in enough layers for good.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.detection.rules import Passes, Rule, find
from outlierlens.detection.scan.result import Scan, StackScan
from outlierlens.errors import BadInput
from outlierlens.experiments.track.change_point import MIN_POINTS, binned, change_point, last_fall, plateau
from outlierlens.experiments.track.options import EmergenceOptions
from outlierlens.experiments.track.result import LOSSES, ChangePoint, Emergence, Lead, Plateau, Track
from outlierlens.results.document import Provenance
from outlierlens.training.run_files import Curve, Trajectory, no_states

MAX_FOLLOWED = 12
MAX_CELLS = 60_000  # values of one array [step, column] in a result; beyond it a choice of dimensions is kept
MAX_CURVE = 1000
SHARE = 0.05  # of its total fall within which a loss is on its plateau


def summarize(path: Trajectory, options: EmergenceOptions, provenance: Provenance, source: str) -> Track:
    """Everything that is read off a trajectory.

    Raises:
        BadInput: a layer or dimension that the stream does not have.
        BadFile: a value that is not finite.
    """
    layer = path.n_layers // 2 if options.layer is None else options.layer
    if not 0 <= layer < path.n_layers:
        raise BadInput(f"layer {layer}: {path.model} has layers 0 to {path.n_layers - 1}")
    outside = [dim for dim in options.dims if not 0 <= dim < path.width]
    if outside:
        raise BadInput(f"dimension {outside[0]}: the stream has dimensions 0 to {path.width - 1}")
    z = _Z.of(path, options.rule)
    loss_name = _loss_name(path.curves)
    settled, fall = _loss(path.curves.get(loss_name), loss_name, options.seed)
    followed, left_out = _followed(z, options.dims)
    emergences = tuple(_emergence(dim, path, z, (settled, fall), options.seed) for dim in followed)
    columns = _columns(path, followed, layer)
    return Track(
        provenance=provenance,
        source=source,
        stack=path.stack,
        site=path.site,
        norm_site=path.norm_site,
        view=path.view,
        n_layers=path.n_layers,
        width=path.width,
        rule=options.rule,
        steps=path.steps,
        emergences=emergences,
        layer=layer,
        dims=tuple(columns.tolist()),
        scale=path.scale[:, layer][:, columns],
        bias=path.bias[:, layer][:, columns] if path.has_bias else no_states(),
        scale_range=_range(path.scale[:, layer]),
        bias_range=_range(path.bias[:, layer]) if path.has_bias else no_states(),
        z_scale=z.mean_scale[:, followed].astype(np.float32),
        z_bias=z.mean_bias[:, followed].astype(np.float32) if path.has_bias else no_states(),
        layers_scale=z.layers_scale[:, followed],
        layers_bias=z.layers_bias[:, followed] if path.has_bias else np.zeros((0, 0), dtype=int),
        curves={name: _thinned(curve) for name, curve in path.curves.items()},
        plateau=settled,
        fall=fall,
        states=path.states[:, columns] if path.states.size else no_states(),
        tokens=path.tokens[:, columns] if path.tokens.size else no_states(),
        notes=_notes(path, loss_name, left_out),
    )


@dataclass(frozen=True)
class _Z:
    """Mean |z| over layers and number of layers past the threshold, [step, dim], and which parts are past in enough of them.

    Attributes:
        held: whether each part passes, bool [step, dim]; only scale where there is no bias.
    """

    mean_scale: np.ndarray
    mean_bias: np.ndarray
    layers_scale: np.ndarray
    layers_bias: np.ndarray
    held: dict[Passes, np.ndarray]

    @classmethod
    def of(cls, path: Trajectory, rule: Rule) -> "_Z":
        measured = [path.measured(place) for place in range(path.n_steps)]
        scale = np.stack([np.abs(one.z_scale) for one in measured])  # [step, layer, dim]
        bias = (
            np.stack([np.abs(one.z_bias) for one in measured if one.z_bias is not None]) if path.has_bias else scale[:0]
        )
        layers = [rule.passes(values).sum(axis=1) for values in (scale, bias)]
        held = rule.parts(layers[0], layers[1] if path.has_bias else None, path.n_layers)
        return cls(scale.mean(axis=1), bias.mean(axis=1), layers[0], layers[1], held)

    @property
    def has_bias(self) -> bool:
        return len(self.layers_bias) > 0


def _followed(z: _Z, asked: tuple[int, ...]) -> tuple[list[int], int]:
    """Dimensions to follow, those that pass now first, then those that once did; and how many more there were."""
    strength = z.mean_scale[-1] + (z.mean_bias[-1] if z.has_bias else 0)
    ordered = list(asked)
    for part in z.held.values():
        now = np.flatnonzero(part[-1])
        ordered += now[np.argsort(-strength[now], kind="stable")].tolist()
    whole = next(iter(z.held.values()))  # what the rule asks for; one part alone flickers too easily to be worth a line
    once = np.flatnonzero(whole.any(axis=0))
    ordered += once[np.argsort(-whole[:, once].sum(axis=0), kind="stable")].tolist()
    unique = list(dict.fromkeys(ordered))
    most = max(MAX_FOLLOWED, len(asked))
    return unique[:most], len(unique[most:])


def _emergence(
    dim: int, path: Trajectory, z: _Z, loss: tuple[Plateau | None, ChangePoint | None], seed: int
) -> Emergence:
    held = {part: flags[:, dim] for part, flags in z.held.items()}
    passes: Passes = next((part for part, flags in held.items() if flags[-1]), "neither")
    whole = next(iter(held.values()))
    seen = np.flatnonzero(whole if passes == "neither" else held[passes])
    step, after = (None, None) if passes == "neither" else _for_good(path.steps, held[passes])
    settled, fall = loss
    made = Emergence(
        dim=dim,
        passes=passes,
        step=step,
        after=after,
        scale_step=_for_good(path.steps, held["scale"])[0],
        bias_step=_for_good(path.steps, held["bias"])[0] if z.has_bias else None,
        seen=(int(path.steps[seen[0]]), int(path.steps[seen[-1]])) if len(seen) else (),
        layers_scale=int(z.layers_scale[-1, dim]),
        layers_bias=int(z.layers_bias[-1, dim]) if z.has_bias else None,
        z_scale=float(z.mean_scale[-1, dim]),
        z_bias=float(z.mean_bias[-1, dim]) if z.has_bias else None,
        onset=_onset(path.steps, z.mean_scale, dim, seed),
        onset_bias=_onset(path.steps, z.mean_bias, dim, seed) if z.has_bias else None,
        lead=_lead((step, after, step), settled) if step is not None and settled and settled.settled else None,
    )
    leaves = made.leaves
    if fall is None or leaves is None or not leaves.sure:
        return made
    return replace(made, onset_lead=_lead((leaves.step, leaves.low, leaves.high), fall))


def _onset(steps: np.ndarray, mean_z: np.ndarray, dim: int, seed: int) -> ChangePoint | None:
    # Freshly initialised norms are all alike and have no z; the step from there to any z at all is no emergence.
    spread = mean_z.any(axis=1)
    return change_point(steps[spread], mean_z[spread, dim], direction=1, seed=seed)


def _for_good(steps: np.ndarray, flags: np.ndarray) -> tuple[int | None, int | None]:
    """First step from which the flag holds to the end, and the last step before it held at all; None where there is none."""
    if not flags[-1]:
        return None, None
    failing, first = np.flatnonzero(~flags), int(np.argmax(flags))
    step = steps[failing[-1] + 1] if len(failing) else steps[0]
    return int(step), int(steps[first - 1]) if first else None


def _lead(event: tuple[int, int | None, int], loss: Plateau | ChangePoint) -> Lead:
    """Weights minus loss; both intervals at their worst, so it holds whether or not the two go together."""
    step, low, high = event
    return Lead(step - loss.step, (0 if low is None else low) - loss.high, high - loss.low)


def _loss_name(curves: Mapping[str, Curve]) -> str:
    """The curve to judge by: evaluation loss, unless it has few points or began when much of the fall was over."""
    enough = [name for name in LOSSES if name in curves and len(curves[name].steps) >= MIN_POINTS]
    if len(enough) < 2:
        return enough[0] if enough else ""
    judged, loss = (curves[name] for name in enough)
    missed = loss.values[0] - np.interp(judged.steps[0], loss.steps, loss.values)
    return enough[0] if missed <= SHARE * (loss.values[0] - loss.values[-1]) else enough[1]


def _loss(curve: Curve | None, name: str, seed: int) -> tuple[Plateau | None, ChangePoint | None]:
    if curve is None:
        return None, None
    return (
        plateau(curve.steps, curve.values, curve=name, share=SHARE, seed=seed),
        last_fall(curve.steps, curve.values, seed=seed),
    )


def _columns(path: Trajectory, followed: list[int], layer: int) -> np.ndarray:
    """All dimensions, or where that is too many the followed ones and an even choice by rank of the last scale."""
    most = max(MAX_CELLS // path.n_steps, 2 * len(followed), 16)
    if path.width <= most:
        return np.arange(path.width)
    ranked = np.argsort(path.scale[-1, layer], kind="stable")
    even = ranked[np.linspace(0, path.width - 1, most - len(followed)).round().astype(int)]
    return np.unique(np.concatenate([even, np.array(followed, dtype=int)]))


def _range(values: np.ndarray) -> np.ndarray:
    """Smallest and largest of [step, dim] at each step, [step, 2]."""
    return np.stack([values.min(axis=1), values.max(axis=1)], axis=1)


def _thinned(curve: Curve) -> Curve:
    steps, values = binned(curve.steps, curve.values, MAX_CURVE)
    return Curve(steps.round().astype(np.int64), values)


def _notes(path: Trajectory, loss_name: str, left_out: int) -> tuple[str, ...]:
    notes = []
    if not path.has_bias:
        notes.append(f"{path.site} has no bias here: the rule rests on the scale alone")
    if path.n_steps < MIN_POINTS:
        notes.append(f"{path.n_steps} checkpoints are too few for a change point; it takes {MIN_POINTS}")
    if not path.curves:
        notes.append("no loss was logged beside the checkpoints; name a log with --log to compare")
    elif not loss_name:
        notes.append(f"the loss has fewer than {MIN_POINTS} points: no plateau can be told")
    if left_out:
        notes.append(f"{left_out} more dimensions passed at some step; follow them by name with --dims")
    return tuple(notes)


def last_scan(path: Trajectory, track: Track) -> Scan:
    """The rule on the last recorded step, as `scan` reports it."""
    measured = path.measured(-1)
    outliers, n_sigma = find(measured, track.rule)
    n_values = path.n_layers * path.width * (2 if path.has_bias else 1)
    stack = StackScan(
        stack=path.stack,
        site=path.site,
        measure=track.measure,
        norm_site=path.norm_site,
        n_layers=path.n_layers,
        n_run=path.n_layers,
        hidden_size=path.width,
        outliers=outliers,
        n_sigma=n_sigma,
        values_read=n_values,
        notes=(f"weights of step {path.steps[-1]:,}, the last that was tracked",),
        map_dims=tuple(range(path.width)),
        z_scale=measured.z_scale.astype(np.float32),
        z_bias=np.empty((0, 0)) if measured.z_bias is None else measured.z_bias.astype(np.float32),
    )
    return Scan(
        provenance=replace(track.provenance),
        model_type="",
        source=track.source,
        rule=track.rule,
        view=path.view,
        stacks=(stack,),
        bytes_read=track.bytes_read,
        total_bytes=track.total_bytes,
    )
