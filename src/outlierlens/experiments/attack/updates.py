"""Federated learning: does a client's update fall on outlier entries beyond their share of the parameters?

    found = update_check("before/", ["client-1/", "client-2/"], UpdateOptions())      # no torch, no model in memory
    found.flagged

Outlier entries are those on the outlier dimensions of the model before. Without `deep` only vectors on the residual stream are
read: norms, and biases of the linears that write to it; with it every tensor, block by block.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.scan.measure import scan_checkpoint
from outlierlens.errors import BadInput
from outlierlens.experiments.attack.options import UpdateOptions, Updates
from outlierlens.experiments.attack.result_updates import ClientUpdate, UpdateCheck
from outlierlens.experiments.integrity.fingerprint import width_of
from outlierlens.experiments.integrity.sensitive import Found, bound_stacks, canonical, dims_of
from outlierlens.options import FIND
from outlierlens.results.document import Provenance
from outlierlens.session import Session
from outlierlens.statistics.means import NORMAL_MAD
from outlierlens.statistics.p_values import hypergeometric_tail

BLOCK = 2**22  # values of a tensor that are held at once
FEW = 3  # clients from which on they are held against each other
HALF, QUARTER = 0.5, 0.25  # of the squared norm; of the largest entries
LEAST_SPREAD = 0.1  # of log ratios: clients that agree to the last digit would flag the first that does not


def update_check(before: str, after: Sequence[str], options: UpdateOptions | None = None) -> UpdateCheck:
    """Hold the updates `after` − `before` of one or more clients against the share of outlier entries.

    Raises:
        BadInput: no client, another model (tensors that are missing or of another shape), or no outlier dimension.
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError, TooMuchToRead: see those.
    """
    options = options or UpdateOptions()
    if not after:
        raise BadInput("no update is named; give at least one model after training")
    with _opened(before, options) as base:
        bound = bound_stacks(base, options.scan.row)
        dims = _dims(base, bound, options)
        plan = _plan(base, bound, deep=options.deep)
        clients, total, read = [], base.total_bytes, 0
        notes: list[str] = []
        for name in after:
            with _opened(name, options) as client:
                sums = _Sums(plan, {stack.name: width_of(base, stack) for stack in bound}, dims, options.n_top)
                digest = hashlib.sha256(client.header_digest().encode())
                prefixes = [stack.prefix for stack in bound_stacks(client, options.scan.row)]
                for place, start, old, new in _pairs(base, client, plan, prefixes):
                    digest.update(np.ascontiguousarray(new).tobytes())
                    with np.errstate(invalid="ignore", over="ignore"):
                        sums.add(place, start, new.astype(np.float64) - old)
                clients.append(_client(name, digest.hexdigest(), sums, options))
                notes += _format_notes(base, client, plan)
                total += client.total_bytes
                read += client.bytes_read
        judged = _judged(clients, sums.n_outlier / sums.n_entries, options)
        return UpdateCheck(
            provenance=Provenance.now(base.name, base.header_digest(), seed=options.seed),
            deep=options.deep,
            dims={name: found.dims for name, found in dims.items()},
            how="; ".join(f"{name}: {found.how}" for name, found in dims.items()),
            n_entries=sums.n_entries,
            n_outlier_entries=sums.n_outlier,
            clients=tuple(sorted(judged, key=lambda one: (not one.flagged, -one.ratio, one.model))),
            alpha=options.alpha,
            least_ratio=options.least_ratio,
            least_peak=options.least_peak,
            least_z=options.least_z,
            n_draws=options.n_draws,
            bytes_read=base.bytes_read + read,
            total_bytes=total,
            notes=tuple(dict.fromkeys((*base.notes, *notes))),
        )


def run(session: Session, options: Updates) -> UpdateCheck:
    """The check, as the command runs it."""
    options = replace(options, scan=session.scanning(max_read=options.scan.max_read))
    return update_check(options.before, options.after, options)


def _opened(model: str, options: UpdateOptions) -> Checkpoint:
    scan = options.scan
    return open_checkpoint(
        model, revision=scan.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    )


def _dims(base: Checkpoint, bound: Sequence[BoundStack], options: UpdateOptions) -> dict[str, Found]:
    """{stream: outlier dimensions}: given, or what the scan finds, or its strongest."""
    if options.dims == FIND:
        return dims_of(scan_checkpoint(base, options.scan))
    dims = tuple(sorted(set(options.dims)))
    for stack in bound:
        width = width_of(base, stack)
        if not dims or dims[0] < 0 or dims[-1] >= width:
            raise BadInput(
                f"dimension {dims[-1] if dims else 'none'} is not among the {width:,} of stream {stack.name!r}; "
                "they count from 0"
            )
    return {stack.name: Found(dims, "as given") for stack in bound}


@dataclass(frozen=True)
class _Place:
    """A tensor that is compared: the stream's dimensions run over its last axis ("columns"), its rows, or not at all."""

    stored: str
    name: str
    stack: str
    runs: str
    shape: tuple[int, ...]


def _plan(base: Checkpoint, bound: Sequence[BoundStack], *, deep: bool) -> list[_Place]:
    prefixes = [stack.prefix for stack in bound]
    axes: dict[str, tuple[str, int]] = {}
    for stack in bound:
        layers = (*stack.norms.values(), *stack.linears.values())
        params = [param for family in layers for layer in family for param in layer]
        for param in (*params, *stack.embedding_norm, *stack.final_norm, *stack.embeddings):
            axes.setdefault(param.name, (stack.name, param.axis))
    found = []
    for stored, info in base.tensors.items():
        stack_name, axis = axes.get(stored, ("", 0))
        rank = len(info.shape)
        if not deep and not (stack_name and rank == 1):
            continue
        last = bool(stack_name) and axis % max(rank, 1) == rank - 1
        row = bool(stack_name) and rank > 1 and axis % rank == rank - 2
        runs = "columns" if last else "rows" if row else ""
        found.append(_Place(stored, canonical(stored, prefixes), stack_name if runs else "", runs, info.shape))
    if not any(place.runs for place in found):
        raise BadInput(f"{base.name}: no norm or bias lies on the residual stream; use --deep")
    return found


def _pairs(
    base: Checkpoint, client: Checkpoint, plan: Sequence[_Place], prefixes: Sequence[str]
) -> Iterator[tuple[_Place, int, np.ndarray, np.ndarray]]:
    """(place, number of the first row, before, after) of every tensor, a block of rows [row, column] at a time."""
    names = {canonical(stored, prefixes): stored for stored in client.tensors}
    for place in plan:
        stored = names.get(place.name)
        if stored is None or client.tensors[stored].shape != place.shape:
            what = (
                "is missing" if stored is None else f"is {list(client.tensors[stored].shape)}, not {list(place.shape)}"
            )
            raise BadInput(f"{client.name}: {place.name} {what}; give a model trained from {base.name}")
        if len(place.shape) < 2:
            (_, old), (_, new) = next(iter(base.read([place.stored]))), next(iter(client.read([stored])))
            yield place, 0, old.reshape(1, -1), new.reshape(1, -1)
            continue
        step = max(1, BLOCK // place.shape[-1])
        blocks = zip(base.read_rows(place.stored, step), client.read_rows(stored, step), strict=True)
        start = 0
        for old, new in blocks:
            yield place, start, old, new
            start += len(old)


class _Sums:
    """What is kept of an update: squares by dimension, and the largest entries."""

    def __init__(self, plan: Sequence[_Place], widths: dict[str, int], dims: dict[str, Found], n_top: int):
        self.widths, self.dims, self.n_top = widths, {name: found.dims for name, found in dims.items()}, n_top
        self.squares = {name: np.zeros(width) for name, width in widths.items()}
        self.total = 0.0
        self.n_changed = 0
        self.finite = True
        self.n_entries = sum(math.prod(place.shape) for place in plan)
        on_stream = [place for place in plan if place.runs]
        self.n_outlier = sum(
            math.prod(place.shape) // widths[place.stack] * len(self.dims.get(place.stack, ())) for place in on_stream
        )
        self.largest = {True: 0.0, False: 0.0}  # |change| on outlier entries, and elsewhere
        self.top = np.empty(0)
        self.top_outlier = np.empty(0, dtype=bool)

    def add(self, place: _Place, start: int, delta: np.ndarray) -> None:
        """Take in a block of differences [row, column], whose first row is row `start` of the tensor."""
        if not np.isfinite(delta).all():
            self.finite = False
            delta = np.nan_to_num(delta, nan=0.0, posinf=0.0, neginf=0.0)
        squares = delta**2
        self.total += float(squares.sum())
        self.n_changed += int(np.count_nonzero(delta))
        flags = np.zeros(delta.shape, dtype=bool)
        if place.runs == "columns":
            self.squares[place.stack] += squares.sum(axis=0)
            flags[:, list(self.dims.get(place.stack, ()))] = True
        elif place.runs == "rows":
            width = self.widths[place.stack]
            of = (start + np.arange(len(delta))) % width  # experts lie one after the other
            np.add.at(self.squares[place.stack], of, squares.sum(axis=1))
            flags[np.isin(of, self.dims.get(place.stack, ()))] = True
        for on in (True, False):
            self.largest[on] = max(self.largest[on], float(np.abs(delta[flags == on]).max(initial=0.0)))
        size = np.abs(delta).ravel()
        many = min(self.n_top, len(size))
        best = np.argpartition(-size, many - 1)[:many]
        size, flag = np.concatenate([self.top, size[best]]), np.concatenate([self.top_outlier, flags.ravel()[best]])
        order = np.argsort(-size, kind="stable")[: self.n_top]
        self.top, self.top_outlier = size[order], flag[order]

    def share(self, chosen: dict[str, Sequence[int]]) -> float:
        """Share of the squared norm on the entries of some dimensions, in [0, 1]."""
        on = sum(float(self.squares[name][list(dims)].sum()) for name, dims in chosen.items())
        return on / self.total if self.total else 0.0


def _client(name: str, digest: str, sums: _Sums, options: UpdateOptions) -> ClientUpdate:
    """One client by itself."""
    share = sums.share(dict(sums.dims))
    expected = sums.n_outlier / sums.n_entries
    moved = sums.top > 0
    n_top, on_top = int(moved.sum()), int(sums.top_outlier[moved].sum())
    return ClientUpdate(
        model=name,
        fingerprint=digest,
        norm=math.sqrt(sums.total),
        n_changed=sums.n_changed,
        share=share,
        ratio=share / expected,
        p=_rank(sums, share, options),
        peak=sums.largest[True] / sums.largest[False]
        if sums.largest[False]
        else math.inf
        if sums.largest[True]
        else 0.0,
        n_top=n_top,
        n_top_outlier=on_top,
        expected_top=n_top * expected,
        top_p=hypergeometric_tail(sums.n_entries, sums.n_outlier, n_top, on_top),
        why=() if sums.finite else ("has values that are no finite numbers",),
    )


def _rank(sums: _Sums, share: float, options: UpdateOptions) -> float:
    """(1 + #{set >= outliers}) / (1 + n): different random sets of as many dimensions of the same tensors, drawn from all."""
    random, sizes = np.random.default_rng(options.seed), {name: len(dims) for name, dims in sums.dims.items()}
    n = min(options.n_draws, math.prod(math.comb(sums.widths[name], size) for name, size in sizes.items()) - 1)
    seen, as_large = {tuple(tuple(sorted(dims)) for dims in sums.dims.values())}, 0
    while len(seen) <= n:
        sets = {
            name: random.choice(sums.widths[name], size=size, replace=False).tolist() for name, size in sizes.items()
        }
        if (key := tuple(tuple(sorted(dims)) for dims in sets.values())) not in seen:
            seen.add(key)
            as_large += sums.share(sets) >= share
    return (1 + as_large) / (1 + n)


def _judged(clients: Sequence[ClientUpdate], expected: float, options: UpdateOptions) -> list[ClientUpdate]:
    """Each client with its place among the others, and what is wrong with it."""
    several = len(clients) >= FEW
    ratios = robust_z(np.log([max(client.ratio, 1e-6) for client in clients])) if several else None
    tops = robust_z(np.log1p([client.n_top_outlier for client in clients])) if several else None
    judged = []
    for number, client in enumerate(clients):
        z, top_z = (None if all_z is None else float(all_z[number]) for all_z in (ratios, tops))
        why = list(client.why)
        half = HALF / max(expected, 1e-12)  # where outlier entries are many, they cannot be ten times their share
        beyond = client.ratio >= min(options.least_ratio, half) and client.p <= options.alpha
        # Fine-tuning moves some outlier entries among its largest, never most of them.
        top_beyond = client.n_top_outlier >= QUARTER * client.n_top and client.top_p <= options.alpha
        among = "" if z is None else f", {z:.1f} robust standard deviations above the clients' median"
        # Honest training may move outlier entries more than others: then it does so at every client.
        if beyond and (z is None or z >= options.least_z):
            why.append(
                f"{client.ratio:.3g} times its share of squared norm on outlier entries (p {client.p:.2g}){among}"
            )
        if top_beyond and (top_z is None or top_z >= options.least_z):
            why.append(
                f"{client.n_top_outlier} of its {client.n_top} largest entries are outlier entries, "
                f"{client.expected_top:.2g} expected (p {client.top_p:.2g})"
            )
        if client.peak >= options.least_peak:
            why.append(f"its largest change of an outlier entry is {client.peak:.3g} times its largest elsewhere")
        judged.append(replace(client, z=z, top_z=top_z, why=tuple(why)))
    return judged


def robust_z(values: np.ndarray) -> np.ndarray:
    """(value − median) / (1.4826 · median absolute deviation), the deviation at least `LEAST_SPREAD`."""
    values = np.asarray(values, dtype=np.float64)
    away = values - np.median(values)
    spread: np.ndarray = away / max(NORMAL_MAD * float(np.median(np.abs(away))), LEAST_SPREAD)
    return spread


def _format_notes(base: Checkpoint, client: Checkpoint, plan: Sequence[_Place]) -> list[str]:
    """A remark where rounding to another number format passes for an update."""
    old = {base.tensors[place.stored].dtype for place in plan}
    new = {info.dtype for info in client.tensors.values()}
    if base.kind == client.kind and not old <= new:
        return [
            f"{client.name} is stored as {', '.join(sorted(new))}, not {', '.join(sorted(old))}: rounding counts as update"
        ]
    return []
