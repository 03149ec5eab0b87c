"""Federated learning: does a client's update fall on outlier entries beyond their share of the parameters?

    found = update_check("before/", ["client-1/", "client-2/"], UpdateOptions())      # no torch, no model in memory
    found.flagged                              # names of the clients to look at, the strongest first
    found.clients[0].ratio, found.clients[0].why

Outlier entries are those on the outlier dimensions of the model before. Without `deep` only vectors on the residual stream are
read: norms, and biases of the linears that write to it; with it every tensor, block by block.

How far each kind of weights moved between two open models: `SharedTensors(first, second, …).moved(outliers, "last")`.

Tensors are matched by their names without the prefix of a head's model. Each is read once, in both models.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.analyses.fingerprint import OutlierStream, about_streams, outlier_streams
from outlierlens.analyses.fingerprint_values import canonical
from outlierlens.architectures import BoundStack, Param, bound_stacks
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.gguf import GGUFCheckpoint
from outlierlens.checkpoints.gguf_model import GgufWeights
from outlierlens.detection.weights import ScanOptions, StackScan, View, opened, sites_of
from outlierlens.errors import BadInput
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, Options
from outlierlens.results.document import Provenance
from outlierlens.results.finding import Finding
from outlierlens.results.rows import Quiet, Row
from outlierlens.statistics.means import NORMAL_MAD
from outlierlens.statistics.ranks import hypergeometric_tail, pearson
from outlierlens.view.section import Change, Count, FineShare, P

# --- weights ---------------------------------------------------------------------------------------------------------


PIECE = 4_000_000  # values widened at once
GROUPS = ("scale, outliers", "scale, other dimensions", "bias, outliers", "bias, other dimensions", "embeddings",
          "matrices", "other vectors")  # fmt: skip
Key = tuple[str, str]  # a stream, and what is looked at in it
Followed = tuple[Key, str, int]  # where, the part, and a dimension
Role = tuple[str, Param | None, Key]  # a group, the parameter that a rule looks at, and where


@dataclass
class ChangeSums:
    """A group of weights: how many values, and the sums of squares of their change and of themselves before."""

    n: int = 0
    change: float = 0.0
    before: float = 0.0

    @property
    def relative(self) -> float | None:
        """‖change‖ / ‖before‖; none where all were 0, or nothing was read."""
        return math.sqrt(self.change / self.before) if self.before else None

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        """Take in two flat arrays, in pieces: doubles of a table may not fit."""
        self.n += before.size
        for start in range(0, before.size, PIECE):
            old, new = (side[start : start + PIECE].astype(np.float64) for side in (before, after))
            self.change += float(np.square(new - old).sum())
            self.before += float(np.square(old).sum())


class SharedTensors:
    """The tensors of floats that two models have in common, by name and shape."""

    def __init__(
        self, first: Checkpoint, second: Checkpoint, stacks: Sequence[BoundStack], others: Sequence[BoundStack]
    ):
        self.first, self.second = (
            GgufWeights(one) if isinstance(one, GGUFCheckpoint) else one for one in (first, second)
        )
        self.stacks = stacks
        ours, theirs = _relative_names(self.first, stacks), _relative_names(self.second, others)
        both = [key for key in sorted(ours.keys() & theirs.keys())
                if self.first.tensors[ours[key]].shape == self.second.tensors[theirs[key]].shape]  # fmt: skip
        self.names = [(ours[key], theirs[key]) for key in both]
        alone = f"{len(ours) - len(both)} in the base alone, {len(theirs) - len(both)} in this one alone"
        self.said = f"{len(both)} tensors in both, {alone}"

    def moved(
        self, outliers: Mapping[Key, set[int]], followed: Mapping[Followed, ChangeSums], view: View
    ) -> dict[str, ChangeSums]:
        """By group; outliers, by stream and site, stand apart from other dimensions of what the rule looks at.

        `followed` takes in what writes to single dimensions, by stream and site, part and dimension.
        """
        roles = _roles(self.stacks, view)
        sums = {group: ChangeSums() for group in GROUPS}
        for ours, theirs in self.names:
            ((_, old),), ((_, new),) = self.first.read([ours]), self.second.read([theirs])
            group, param, key = roles.get(ours, ("matrices" if old.ndim > 1 else "other vectors", None, ("", "")))
            if param is None:
                sums[group].add(old.ravel(), new.ravel())
                continue
            for (place, part, dim), one in followed.items():
                if (place, part) == (key, group):
                    one.add(*(np.take(side, dim, param.axis).ravel() for side in (old, new)))
            dims = sorted(outliers.get(key, ()))
            others = np.setdiff1d(np.arange(old.shape[param.axis]), np.array(dims, dtype=int))
            for kind, some in (("outliers", dims), ("other dimensions", others)):
                if len(some):
                    sums[f"{group}, {kind}"].add(*(np.take(side, some, param.axis).ravel() for side in (old, new)))
        return {group: one for group, one in sums.items() if one.n}


def _relative_names(checkpoint: Checkpoint, stacks: Sequence[BoundStack]) -> dict[str, str]:
    """{name without the prefix of a head's model: stored name} of all tensors of floats."""
    prefixes = [stack.prefix for stack in stacks]
    floats = (name for name, info in checkpoint.tensors.items() if checkpoint.holds_floats(name) and info.size)
    return {canonical(name, prefixes): name for name in floats}


def _roles(stacks: Sequence[BoundStack], view: View) -> dict[str, Role]:
    """By stored name of the base, what is neither matrix nor plain vector."""
    roles: dict[str, Role] = {}
    for stack in stacks:
        roles |= {param.name: ("embeddings", None, ("", "")) for param in stack.embeddings}
        for site in sites_of(stack, view):
            for part, layers in (("scale", site.scale), ("bias", site.bias)):
                roles |= {param.name: (part, param, (stack.name, site.name)) for layer in layers for param in layer}
    return roles


def shift(before: np.ndarray, after: np.ndarray, stack: StackScan, other: StackScan) -> dict[str, Any]:
    """What became of z [layer] of one dimension before and after."""
    moved = np.abs(after - before)
    return {
        "layers_before": int(stack.threshold.layers_past(before)), "layers_after": int(other.threshold.layers_past(after)),
        "z_before": float(before.mean()), "z_after": float(after.mean()),
        "largest_before": float(before[np.abs(before).argmax()]), "largest_after": float(after[np.abs(after).argmax()]),
        "moved": float(moved.mean()), "moved_most": float(moved.max()),
    }  # fmt: skip


def correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Pearson correlation of two arrays' values; 1 where they are equal, else 0 where one is constant."""
    one, other = (np.asarray(side, dtype=np.float64) for side in (before, after))
    return 1.0 if np.array_equal(one, other) else float(np.nan_to_num(pearson(one, other)))


BLOCK = 2**22  # values of a tensor that are held at once
FEW = 3  # clients from which on they are held against each other
N_TOP = 48  # largest entries of an update that are looked at
LEAST_RATIO, LEAST_PEAK, LEAST_Z = 10.0, 3.0, 3.5  # of the share over the expected; of the largest change; robust z
HALF, QUARTER = 0.5, 0.25  # of the squared norm; of the largest entries
LEAST_SPREAD = 0.1  # of log ratios: clients that agree to the last digit would flag the first that does not


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(Options):
    """What counts as an outlier entry, and what as too much."""

    dims: DimsOrFind = FIND
    """The outlier dimensions: 100,247; find: those that the weights name."""
    deep: bool = False
    """Read every tensor, not only norms and biases of the stream."""
    alpha: Annotated[float, Flag(hidden=True), Gt(0), Lt(1)] = 0.01
    """Flag a client when its p-value is at most this, and its share at least ten times that of the parameters."""
    n_draws: Annotated[int, Flag(hidden=True), Ge(1)] = 1999
    """Random sets of dimensions."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    scan: Annotated[ScanOptions, Flat("max_read")] = ScanOptions()
    """The rule that finds outlier dimensions in the model before, and how models are opened."""


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(Row):
    """One client's update, after − before."""

    model: str
    """client"""
    flagged: bool = False
    norm: float
    """norm: L2, over all entries that were read"""
    n_changed: Annotated[int, Quiet]
    """entries that differ"""
    share: Annotated[float, FineShare]
    """share: of the squared norm, on outlier entries"""
    ratio: float
    """times its share: the share over the outlier entries' share of all entries"""
    p: Annotated[float, P]
    """rank p: of the share, among different random sets of the same number of dimensions in the same tensors"""
    peak: float
    """peak: largest |change| of an outlier entry over the largest elsewhere"""
    n_top_outlier: Annotated[int, Count]
    """outliers: outlier entries among the largest"""
    n_top: Annotated[int, Count]
    """of the largest: entries that were looked at"""
    expected_top: float
    """expected: outlier entries among the largest by chance"""
    top_p: Annotated[float, P]
    """p: probability of this number or more if the largest entries lay anywhere (hypergeometric)"""
    z: Annotated[float | None, Change] = None
    """robust z: how far log(times its share) is above the clients' median; none with fewer than three"""
    top_z: Annotated[float | None, Quiet] = None
    """robust z: the same of log(1 + outlier entries among the largest)"""
    why: Annotated[tuple[str, ...], Quiet] = ()
    """what is wrong with it"""
    fingerprint: Annotated[str, Quiet]


@dataclass(frozen=True, kw_only=True)
class UpdateCheck(Finding):
    """Updates of one or more clients, the most conspicuous first.

    Attributes:
        deep: whether every tensor was read, and not the vectors (norms and biases on the stream) alone.
        n_entries: that were compared; n_outlier_entries: of them on outlier dimensions.
        bytes_read: of the model before.
    """

    title = "Updates of a federated round"

    clients: tuple[ClientUpdate, ...]
    """Clients"""
    deep: bool
    n_entries: int
    n_outlier_entries: int
    bytes_read: int

    @property
    def expected(self) -> float:
        """Share of the entries that are outlier entries, in [0, 1]."""
        return self.n_outlier_entries / self.n_entries

    @property
    def flagged(self) -> tuple[str, ...]:
        """Clients with whom something is wrong."""
        return tuple(client.model for client in self.clients if client.flagged)

    def sentences(self) -> Iterator[str]:
        n, first = len(self.clients), self.clients[0]
        base = f"{self.expected:.2%} of the entries are outlier entries"
        if self.flagged:
            yield (
                f"{len(self.flagged)} of {n} update{'s' * (n > 1)} flagged: {first.model} puts {first.share:.1%} of its "
                f"squared norm on them ({first.ratio:.3g} times their share), {first.n_top_outlier} of its {first.n_top} "
                f"largest entries; {base}."
            )
        elif not any(client.n_changed for client in self.clients):
            yield f"None of the {self.n_entries:,} entries that were read changed."
        else:
            largest = max(client.ratio for client in self.clients)
            yield f"No update touches outlier entries beyond its share (at most {largest:.3g} times); {base}."
        yield from (f"{client.model}: {why}." for client in self.clients for why in client.why)
        read = "Every tensor was" if self.deep else "Norms and biases on the stream were"
        yield f"{read} read: {self.n_entries:,} entries, {self.n_outlier_entries:,} of them outlier entries."


def update_check(before: str, after: Sequence[str], options: UpdateOptions | None = None) -> UpdateCheck:
    """Hold the updates `after` − `before` of one or more clients against the share of outlier entries.

    Raises:
        BadInput: no client, another model (tensors that are missing or of another shape), or no outlier dimension.
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError, TooMuchToRead: see those.
    """
    options = options or UpdateOptions()
    if not after:
        raise BadInput("no update is named; give at least one model after training")
    with opened(before, replace(options.scan, adapter=None)) as base:
        bound = bound_stacks(base, options.scan.row)
        streams = outlier_streams(base, bound, options.dims, options.scan)
        if not any(one.dims for one in streams):
            raise BadInput(f"{base.name}: no outlier dimension is found or given; name some with --dims")
        plan = _plan(base, bound, deep=options.deep)
        provenance = Provenance.now(
            base.name, base.header_digest(), seed=options.seed, adapter=options.scan.adapter or ""
        )
        was, updates, notes = {base.tensors[place.stored].dtype for place in plan}, list[_Update](), list[str]()
        for name in after:
            with opened(name, options.scan) as client:
                update = _Update(name, plan, streams, options)
                update.read(base, client, [stack.prefix for stack in bound_stacks(client, options.scan.row)])
                updates.append(update)
                notes += client.notes[: bool(client.adapter)]
                kinds = {one.dtype for one in client.tensors.values()}
                if base.kind == client.kind and not was <= kinds:
                    said = f"{name} is stored as {', '.join(sorted(kinds))}, not {', '.join(sorted(was))}"
                    notes.append(f"{said}: rounding counts as update")
        read = base.bytes_read
    named_by = "; ".join(dict.fromkeys(one.named_by for one in streams))
    return UpdateCheck(
        provenance=provenance,
        about=replace(about_streams(streams), named_by=named_by),
        clients=tuple(sorted(_judged(updates, options), key=lambda one: (not one.flagged, -one.ratio, one.model))),
        deep=options.deep, n_entries=update.n_entries, n_outlier_entries=update.n_outlier, bytes_read=read,
        notes=tuple(dict.fromkeys((*base.notes, *notes))),
    )  # fmt: skip


class _Place(NamedTuple):
    """A tensor that is compared: the stream's dimensions run over its last axis ("columns"), its rows, or not at all."""

    stored: str
    name: str
    stack: str
    runs: str
    shape: tuple[int, ...]


def _plan(base: Checkpoint, bound: Sequence[BoundStack], *, deep: bool) -> list[_Place]:
    prefixes, found = [stack.prefix for stack in bound], []
    axes: dict[str, tuple[str, int]] = {}
    for stack in bound:
        layers = (*stack.norms.values(), *stack.linears.values())
        params = [param for family in layers for layer in family for param in layer]
        for param in (*params, *stack.embedding_norm, *stack.final_norm, *stack.embeddings):
            axes.setdefault(param.name, (stack.name, param.axis))
    for stored, info in base.tensors.items():
        (name, axis), rank = axes.get(stored, ("", 0)), len(info.shape)
        if deep or (name and rank == 1):
            runs = {rank - 1: "columns", rank - 2: "rows"}.get(axis % max(rank, 1), "") if name else ""
            found.append(_Place(stored, canonical(stored, prefixes), name if runs else "", runs, info.shape))
    if not any(place.runs for place in found):
        raise BadInput(f"{base.name}: no norm or bias lies on the residual stream; use --deep")
    return found


def _blocks(checkpoint: Checkpoint, stored: str) -> Iterable[np.ndarray]:
    """The rows of a tensor, a block [row, column] at a time; of a vector one row."""
    shape = checkpoint.tensors[stored].shape
    if len(shape) < 2:
        return (values.reshape(1, -1) for _, values in checkpoint.read([stored]))
    return checkpoint.read_rows(stored, max(1, BLOCK // shape[-1]))


class _Update:
    """What is kept of a client's update: squares by dimension, and the largest entries."""

    def __init__(self, name: str, plan: Sequence[_Place], streams: Sequence[OutlierStream], options: UpdateOptions):
        self.name, self.plan, self.options = name, plan, options
        self.dims = {one.name: one.dims for one in streams}
        self.widths = widths = {one.name: one.hidden_size for one in streams}
        self.squares = {stream: np.zeros(width) for stream, width in widths.items()}
        self.total, self.n_changed, self.finite, self.digest = 0.0, 0, True, ""
        self.n_entries = sum(math.prod(place.shape) for place in plan)
        of_stream = [place for place in plan if place.stack in self.dims]
        self.n_outlier = sum(math.prod(one.shape) // widths[one.stack] * len(self.dims[one.stack]) for one in of_stream)
        self.largest = {True: 0.0, False: 0.0}  # |change| on outlier entries, and elsewhere
        self.top, self.top_outlier = np.empty(0), np.empty(0, dtype=bool)

    def read(self, base: Checkpoint, client: Checkpoint, prefixes: Sequence[str]) -> None:
        """Take in every tensor, a block of rows at a time."""
        names = {canonical(stored, prefixes): stored for stored in client.tensors}
        digest = hashlib.sha256(client.header_digest().encode())
        for place in self.plan:
            stored = names.get(place.name)
            if stored is None or (shape := client.tensors[stored].shape) != place.shape:
                wrong = "is missing" if stored is None else f"is {list(shape)}, not {list(place.shape)}"
                raise BadInput(f"{client.name}: {place.name} {wrong}; give a model trained from {base.name}")
            start, sides = 0, (_blocks(base, place.stored), _blocks(client, stored))
            for old, new in zip(*sides, strict=True):
                digest.update(np.ascontiguousarray(new).tobytes())
                with np.errstate(invalid="ignore", over="ignore"):
                    self.add(place, start, new.astype(np.float64) - old)
                start += len(old)
        self.digest = digest.hexdigest()

    def add(self, place: _Place, start: int, delta: np.ndarray) -> None:
        """Take in a block of differences [row, column], whose first row is row `start` of the tensor."""
        if not np.isfinite(delta).all():
            self.finite = False
            delta = np.nan_to_num(delta, nan=0.0, posinf=0.0, neginf=0.0)
        squares, size, flags = delta**2, np.abs(delta), np.zeros(delta.shape, dtype=bool)
        self.total += float(squares.sum())
        self.n_changed += int(np.count_nonzero(delta))
        if place.stack:
            rows = place.runs == "rows"  # experts lie one after the other
            at = (start + np.arange(delta.shape[0 if rows else 1])) % self.widths[place.stack]
            np.add.at(self.squares[place.stack], at, squares.sum(axis=1 if rows else 0))
            on_dims = np.isin(at, self.dims.get(place.stack, ()))
            flags |= on_dims[:, None] if rows else on_dims
        for on in (True, False):
            self.largest[on] = max(self.largest[on], float(size[flags == on].max(initial=0.0)))
        best = np.argpartition(-size.ravel(), min(N_TOP, size.size) - 1)[:N_TOP]
        top, flag = np.r_[self.top, size.ravel()[best]], np.r_[self.top_outlier, flags.ravel()[best]]
        order = np.argsort(-top, kind="stable")[:N_TOP]
        self.top, self.top_outlier = top[order], flag[order]

    def share(self, chosen: Mapping[str, Sequence[int]]) -> float:
        """Share of the squared norm on the entries of some dimensions, in [0, 1]."""
        on = sum(float(self.squares[name][list(dims)].sum()) for name, dims in chosen.items())
        return on / self.total if self.total else 0.0

    def p(self) -> float:
        """(1 + #{set >= outliers}) / (1 + n): different random sets of as many dimensions of the same tensors, of all."""
        random, sizes = np.random.default_rng(self.options.seed), {name: len(dims) for name, dims in self.dims.items()}
        n_sets = math.prod(math.comb(self.widths[name], size) for name, size in sizes.items())
        n, share = min(self.options.n_draws, n_sets - 1), self.share(self.dims)
        seen, as_large = {tuple(tuple(sorted(dims)) for dims in self.dims.values())}, 0
        while len(seen) <= n:
            sets = {
                name: random.choice(self.widths[name], size, replace=False).tolist() for name, size in sizes.items()
            }
            if (key := tuple(tuple(sorted(dims)) for dims in sets.values())) not in seen:
                seen.add(key)
                as_large += self.share(sets) >= share
        return (1 + as_large) / (1 + n)


def _judged(updates: Sequence[_Update], options: UpdateOptions) -> Iterator[ClientUpdate]:
    """Each client by itself, with its place among the others, and what is wrong with it."""
    expected = updates[0].n_outlier / updates[0].n_entries
    half = HALF / max(expected, 1e-12)  # where outlier entries are many, they cannot be ten times their share
    ratios = [one.share(one.dims) / expected for one in updates]
    tops = [int(one.top_outlier[one.top > 0].sum()) for one in updates]
    several = len(updates) >= FEW
    all_z = robust_z(np.log(np.maximum(ratios, 1e-6))).tolist() if several else [None] * len(updates)
    all_top_z = robust_z(np.log1p(tops)).tolist() if several else all_z
    for one, ratio, on_top, z, top_z in zip(updates, ratios, tops, all_z, all_top_z, strict=True):
        why = [] if one.finite else ["has values that are not finite numbers"]
        n_top, p, on, elsewhere = int((one.top > 0).sum()), one.p(), one.largest[True], one.largest[False]
        top_p = hypergeometric_tail(one.n_entries, one.n_outlier, n_top, on_top)
        peak = on / elsewhere if elsewhere else math.inf if on else 0.0
        # Honest training may move outlier entries more than others: then it does so at every client.
        if ratio >= min(LEAST_RATIO, half) and p <= options.alpha and (z is None or z >= LEAST_Z):
            among = "" if z is None else f", {z:.1f} robust standard deviations above the clients' median"
            why.append(f"{ratio:.3g} times its share of squared norm on outlier entries (p {p:.2g}){among}")
        # Fine-tuning moves some outlier entries among its largest, never most of them.
        if on_top >= QUARTER * n_top and top_p <= options.alpha and (top_z is None or top_z >= LEAST_Z):
            said = f"{on_top} of its {n_top} largest entries are outlier entries"
            why.append(f"{said}, {n_top * expected:.2g} expected (p {top_p:.2g})")
        if peak >= LEAST_PEAK:
            why.append(f"its largest change of an outlier entry is {peak:.3g} times its largest elsewhere")
        yield ClientUpdate(
            model=one.name, fingerprint=one.digest, norm=math.sqrt(one.total), n_changed=one.n_changed,
            share=one.share(one.dims), ratio=ratio, p=p, peak=peak, n_top=n_top, n_top_outlier=on_top,
            expected_top=n_top * expected, top_p=top_p, z=z, top_z=top_z, why=tuple(why), flagged=bool(why),
        )  # fmt: skip


def robust_z(values: np.ndarray) -> np.ndarray:
    """(value − median) / (1.4826 · median absolute deviation), the deviation at least `LEAST_SPREAD`."""
    away = values - np.median(values)
    return np.asarray(away / max(NORMAL_MAD * float(np.median(np.abs(away))), LEAST_SPREAD))
