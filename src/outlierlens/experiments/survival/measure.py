"""Do a model's outlier dimensions survive fine-tuning? Answered from the weights alone, without torch.

    survived = survival("mpnet-base", ["runs/mpnet-rte/seed-42/model"])
    survived.tuned[0].jaccard, survived.tuned[0].dims, survived.tuned[0].movement

Base and tuned model may have different heads and prefixes ("encoder.layer.0" against "bert.encoder.layer.0"): streams are
bound in each by its own architecture row. Fates and Jaccard are those of `compare`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.measure import ScanOptions, measure, scan_checkpoint, sites_of
from outlierlens.detection.scan.result import Scan, StackScan
from outlierlens.errors import BadInput
from outlierlens.experiments.compare.measure import compare
from outlierlens.experiments.survival.options import Followed, SurvivalOptions
from outlierlens.experiments.survival.result import (
    Agreement,
    DimSurvival,
    Fate,
    Movement,
    Shift,
    Survival,
    TunedSurvival,
)
from outlierlens.statistics.ranks import pearson

if TYPE_CHECKING:
    from outlierlens.session import Session

NOT_FROM_BASE = 0.5  # fine-tuning leaves z correlated above 0.9; two models trained apart are near 0
PIECE = 4_000_000  # values widened at once
OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of norms in old checkpoints
GROUPS = ("scale, outliers", "scale, other dimensions", "bias, outliers", "bias, other dimensions", "embeddings",
          "matrices", "other vectors")  # fmt: skip
# Whole numbers that are no weights, in each format's own words; ONNX's INT8 and UINT8 are weights, read dequantized.
Part = Literal["scale", "bias"]


def survival(base: str, tuned: Sequence[str], options: SurvivalOptions | None = None, *, command: str = "") -> Survival:
    """Follow the outlier dimensions of `base` into each of the models `tuned` from it.

    Raises:
        BadInput: no tuned model, or one of another type, depth or width.
        UnknownModel, BadFile, TooMuchToRead, Offline, RemoteError: see `scan`.
    """
    options = options or SurvivalOptions()
    if not tuned:
        raise BadInput("name at least one fine-tuned model beside the base")
    with _open(base, options.scan, options.scan.revision) as before:
        was = scan_checkpoint(before, options.scan, command=command)
        found = []
        for name in tuned:
            with _open(name, options.scan, options.tuned_revision or options.scan.revision) as after:
                now = scan_checkpoint(after, options.scan, command=command)
                found.append(_Pair(before, after, was, now, options).judge())
    return Survival(was, tuple(found))


def run(session: "Session", options: Followed) -> Survival:
    """What `outlierlens survival` asks for."""
    if session.output.chart and len(options.tuned) > 1:
        raise BadInput("--chart draws one tuned model; name one, or draw the others from the result in Python")
    how = replace(options.how, scan=session.scanning(options.how.scan))
    return survival(options.base, options.tuned, how, command=session.command)


def _open(name: str, options: ScanOptions, revision: str | None) -> Checkpoint:
    return open_checkpoint(
        name, revision=revision, subfolder=options.subfolder, token=options.token, offline=options.offline
    )


class _Pair:
    """A base and one tuned model, both open and scanned."""

    def __init__(self, before: Checkpoint, after: Checkpoint, was: Scan, now: Scan, options: SurvivalOptions):
        self.before, self.after, self.was, self.now, self.options = before, after, was, now, options
        _check_alike(was, now)

    def judge(self) -> TunedSurvival:
        """Fates, agreement and movement."""
        compared = compare(self.was, self.now)
        fates: dict[tuple[str, str], dict[int, Fate]] = {}
        for change in compared.changes:
            fates.setdefault((change.stack, change.site), {})[change.dim] = change.fate
        dims: list[DimSurvival] = []
        agreement: list[Agreement] = []
        notes: list[str] = []
        for stack, other in zip(self.was.stacks, self.now.stacks, strict=True):
            mine: dict[int, Fate] = dict.fromkeys(_asked(self.options.dims, stack), "neither")
            mine |= fates.get((stack.stack, stack.site), {})
            maps = [_maps(checkpoint, one, self.options.scan) for checkpoint, one in self._sides(stack, other)]
            dims += _dims(stack, other, maps, mine)
            agreement += _agreement(stack, maps, sorted(mine))
        strangers = [f"{row.part} r = {row.r:.2f}" for row in agreement if row.r < NOT_FROM_BASE]
        if strangers:
            notes.append(
                f"z hardly agrees with the base ({', '.join(strangers)}): {self.now.provenance.model} was probably not "
                f"fine-tuned from {self.was.provenance.model}"
            )
        movement, counts = self._movement(_grouped(dims), notes)
        return TunedSurvival(
            self.now, tuple(dims), compared.jaccard, tuple(agreement), movement, *counts, notes=tuple(notes)
        )

    def _sides(self, stack: StackScan, other: StackScan) -> tuple[tuple[Checkpoint, StackScan], ...]:
        return (self.before, stack), (self.after, other)

    def _movement(
        self, named: dict[tuple[str, str], list[int]], notes: list[str]
    ) -> tuple[tuple[Movement, ...], tuple[int, int, int]]:
        """How far each group of weights moved, and how many tensors (both, base only, tuned only) there are."""
        sides = [_bound(checkpoint, self.options.scan) for checkpoint in (self.before, self.after)]
        ours, theirs = (
            _relative_names(checkpoint, bound)
            for checkpoint, bound in zip((self.before, self.after), sides, strict=True)
        )
        both = [
            key
            for key in ours.keys() & theirs.keys()
            if self.before.tensors[ours[key]].shape == self.after.tensors[theirs[key]].shape
        ]
        counts = (len(both), len(ours) - len(both), len(theirs) - len(both))
        if self.options.norms_only:
            return (), counts
        remote = [
            one for one in (self.before, self.after) if getattr(one, "requests", 0)
        ]  # the hub's, and not cached here
        too_much = [one for one in remote if one.total_bytes > self.options.scan.max_read]
        if too_much:
            notes.append(
                f"how far the weights moved is left out: it would fetch {too_much[0].total_bytes / 1e6:,.0f} MB of "
                f"{too_much[0].name}; allow it with --max-read {too_much[0].total_bytes // 1_000_000 + 1}MB"
            )
            return (), counts
        roles = _roles(sides[0], self.options.scan, named)
        sums = {group: np.zeros(3) for group in GROUPS}  # values, squared change, squared before
        for key in sorted(both):
            ((_, one),) = self.before.read([ours[key]])
            ((_, other),) = self.after.read([theirs[key]])
            for group, old, new in _parts(ours[key], one, other, roles):
                sums[group] += _sums(old.ravel(), new.ravel())
        movement = tuple(
            Movement(group, int(n), float(np.sqrt(change / n)), float(np.sqrt(change / size)) if size else None)
            for group, (n, change, size) in sums.items()
            if n
        )
        return movement, counts


def _check_alike(was: Scan, now: Scan) -> None:
    names = was.provenance.model, now.provenance.model
    if was.model_type and now.model_type and was.model_type != now.model_type:
        raise BadInput(
            f"{names[0]} is of type {was.model_type!r}, {names[1]} of type {now.model_type!r}; give models that were "
            f"fine-tuned from the base itself"
        )
    sizes = [[(s.stack, s.site, s.n_layers, s.hidden_size) for s in scan.stacks] for scan in (was, now)]
    if sizes[0] != sizes[1]:
        said = [", ".join(f"{stack} {layers} × {width}" for stack, _, layers, width in one) for one in sizes]
        raise BadInput(
            f"{names[0]} has other streams ({said[0]}) than {names[1]} ({said[1]}; layers × dimensions); give models that "
            f"were fine-tuned from the base itself"
        )


def _asked(dims: Sequence[int], stack: StackScan) -> list[int]:
    bad = [dim for dim in dims if not 0 <= dim < stack.hidden_size]
    if bad:
        raise BadInput(
            f"dimension {bad[0]} does not exist; stream {stack.stack!r} has dimensions 0 to {stack.hidden_size - 1}"
        )
    return list(dims)


def _bound(checkpoint: Checkpoint, options: ScanOptions) -> list[BoundStack]:
    stacks = arch.stacks_for(checkpoint, options.row)
    return arch.bind(stacks, checkpoint.tensors, checkpoint.config)


def _maps(checkpoint: Checkpoint, stack: StackScan, options: ScanOptions) -> dict[Part, np.ndarray]:
    """z of scale, and of the bias where there is one, for all dimensions: float [layer, dim]."""
    scale, bias = stack.z_scale, stack.z_bias if stack.z_bias.size else None
    if len(stack.map_dims) < stack.hidden_size:
        # A scan of a very wide and deep model keeps the most extreme dimensions only.
        sites = [site for bound in _bound(checkpoint, options) for site in sites_of(bound, options.view)]
        (site,) = [site for site in sites if (site.stack.name, site.name) == (stack.stack, stack.site)]
        measured, _ = measure(checkpoint, site, hashlib.sha256())
        scale, bias = measured.z_scale, measured.z_bias
    maps: dict[Part, np.ndarray] = {"scale": scale}
    if bias is not None:
        maps["bias"] = bias
    return maps


def _dims(
    stack: StackScan, other: StackScan, maps: Sequence[dict[Part, np.ndarray]], fates: dict[int, Fate]
) -> Iterator[DimSurvival]:
    for dim in sorted(fates):
        shifts = {
            part: _shift(maps[0][part][:, dim], maps[1][part][:, dim], stack.threshold, other.threshold)
            for part in maps[0].keys() & maps[1].keys()
        }
        yield DimSurvival(stack.stack, stack.site, dim, fates[dim], stack.n_layers, shifts["scale"], shifts.get("bias"))


def _shift(before: np.ndarray, after: np.ndarray, rule_before: Rule, rule_after: Rule) -> Shift:
    """Of z [layer] before and after."""
    moved = np.abs(after - before)
    return Shift(
        z_before=float(before.mean()),
        z_after=float(after.mean()),
        largest_before=float(before[np.abs(before).argmax()]),
        largest_after=float(after[np.abs(after).argmax()]),
        layers_before=int(rule_before.layers_past(before)),
        layers_after=int(rule_after.layers_past(after)),
        moved=float(moved.mean()),
        moved_most=float(moved.max()),
    )


def _agreement(stack: StackScan, maps: Sequence[dict[Part, np.ndarray]], named: list[int]) -> Iterator[Agreement]:
    for part in maps[0]:
        if part not in maps[1]:
            continue
        before, after = (np.asarray(one[part], dtype=np.float64) for one in maps)  # [layer, dim]
        moved = np.abs(after - before)
        others = np.setdiff1d(np.arange(moved.shape[1]), np.array(named, dtype=int))
        yield Agreement(
            stack=stack.stack,
            site=stack.site,
            part=part,
            r=_correlation(before, after),
            r_named=_correlation(before[:, named], after[:, named]) if before[:, named].size >= 3 else None,
            moved_named=float(moved[:, named].mean()) if named else None,
            moved_others=float(moved[:, others].mean()) if len(others) else 0.0,
        )


def _correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Pearson correlation of two arrays' values; 1 where they are equal, else 0 where one is constant."""
    return 1.0 if np.array_equal(before, after) else float(np.nan_to_num(pearson(before, after)))


def _grouped(dims: Sequence[DimSurvival]) -> dict[tuple[str, str], list[int]]:
    """Outliers of either model by stream and site; those only asked for count among the others."""
    found: dict[tuple[str, str], list[int]] = {}
    for dim in dims:
        if dim.fate != "neither":
            found.setdefault((dim.stack, dim.site), []).append(dim.dim)
    return found


def _relative_names(checkpoint: Checkpoint, stacks: Sequence[BoundStack]) -> dict[str, str]:
    """{name without the prefix of a head's model: stored name} of all tensors of floats."""
    prefixes = sorted({stack.prefix for stack in stacks}, key=len, reverse=True)
    found = {}
    for name, info in checkpoint.tensors.items():
        if not checkpoint.holds_floats(name) or not info.size:
            continue  # positions and masks
        prefix = next((prefix for prefix in prefixes if prefix and name.startswith(prefix)), "")
        path, dot, leaf = name.removeprefix(prefix).rpartition(".")
        found[path + dot + OLD_NAMES.get(leaf, leaf)] = name
    return found


def _roles(
    stacks: Sequence[BoundStack], options: ScanOptions, named: dict[tuple[str, str], list[int]]
) -> dict[str, tuple[str, Param | None, list[int]]]:
    """{stored name of the base: (group, parameter, named dimensions)} of what is neither matrix nor plain vector."""
    roles: dict[str, tuple[str, Param | None, list[int]]] = {}
    for stack in stacks:
        roles |= {param.name: ("embeddings", None, []) for param in stack.embeddings}
        for site in sites_of(stack, options.view):
            dims = named.get((stack.name, site.name), [])
            for part, layers in (("scale", site.scale), ("bias", site.bias)):
                roles |= {param.name: (part, param, dims) for layer in layers for param in layer}
    return roles


def _parts(
    name: str, before: np.ndarray, after: np.ndarray, roles: dict[str, tuple[str, Param | None, list[int]]]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(group, before, after) of a tensor: its outliers apart from its other dimensions where it is what a rule looks at."""
    role: tuple[Any, ...] = roles.get(name, ("matrices" if before.ndim > 1 else "other vectors", None, []))
    group, param, dims = role
    if param is None:
        yield group, before, after
        return
    others = np.setdiff1d(np.arange(before.shape[param.axis]), np.array(dims, dtype=int))
    for kind, some in (("outliers", dims), ("other dimensions", others)):
        if len(some):
            yield f"{group}, {kind}", np.take(before, some, param.axis), np.take(after, some, param.axis)


def _sums(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(number of values, squared change, squared before) of two flat arrays, in pieces: doubles of a table may not fit."""
    total = np.array([before.size, 0.0, 0.0])
    for start in range(0, before.size, PIECE):
        old, new = (side[start : start + PIECE].astype(np.float64) for side in (before, after))
        total[1:] += np.square(new - old).sum(), np.square(old).sum()
    return total
