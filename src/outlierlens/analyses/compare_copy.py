"""A model against its quantized copy: the error of each linear and block, where it lies, and what it costs on texts.

    with open_checkpoint("model") as model, open_checkpoint("model-q4_0.gguf") as copy:
        found = copy_error(model, copy)                                  # of the weights alone, without torch
        found = copy_error(model, copy, loaded=load_model("model"), texts=read_texts("excerpt", limit=16))
    found.first, found.layers[11].error, found.losses[0].change

On texts the original runs twice, with its own weights and with those of the copy in their place: code, tokenizer and number
format are the same, so that the change is that of the weights.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.study import Condition, Measurement, Study
from outlierlens.analyses.compare_updates import PIECE, SharedTensors
from outlierlens.analyses.quantize_settings import ERROR_TEXTS, StateErrors
from outlierlens.analyses.scan import Scan, scan_checkpoint
from outlierlens.architectures import BoundStack, bound_stacks, live_parameters
from outlierlens.architectures.neurons import last_linears
from outlierlens.checkpoints import Checkpoint
from outlierlens.data.texts import Data
from outlierlens.detection.weights import ScanOptions, opened, scan_mlps
from outlierlens.errors import BadInput, TooMuchToRead
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.options import FIND, Find, belong, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Draws, More, Row
from outlierlens.statistics.means import no_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task, vector_task
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Count, FineShare, P, Rows, few, listed, percent

if TYPE_CHECKING:
    from outlierlens.models.load import LoadedModel
    from outlierlens.session import Session

TIMES = 2.0  # the median error of the linears, from which an error is large
LARGE = 0.1  # of the norm of a block's output, from which its error is large
N_RANDOM, SEED = 199, 0
BITS = 16  # per weight; a copy that stores fewer stores codes
SHOWN = 12  # linears of the table, without --verbose


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """The texts that a quantized copy is compared on."""

    data: str | None = None
    """A quantized copy: texts to run the original on, with its own weights and with the copy's."""
    limit: Annotated[int | None, Ge(1)] = None
    """--data: use the first N texts."""
    max_length: Annotated[int, Ge(2)] = 128
    """--data: maximum number of tokens per text."""

    def __post_init__(self) -> None:
        check(self)
        if self.data is None:
            belong("to --data; give that too", self, "limit", "max_length")


@dataclass(frozen=True)
class CopyOpening:
    """Whether the other model is called a copy, the dimensions, and how both are opened."""

    is_copy: bool | None
    dims: "tuple[int, ...] | Find"
    earlier: ScanOptions
    later: ScanOptions


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LinearError(Row):
    """The error of one matrix of weights."""

    name: str
    """weights: in the original"""
    layer: int | None
    """layer: none outside the blocks"""
    stored: str
    """stored: how the copy stores it"""
    error: float
    """‖w − w′‖ / ‖w‖: w the original's, w′ the copy's; L2 norms; infinite where the copy holds a value that is no number"""
    n_values: Annotated[int, Count, More]
    """values"""


@dataclass(frozen=True, kw_only=True)
class LayerError(Row):
    """The error of one block's weights, and of its output on texts."""

    stack: Annotated[str, More]
    """stream"""
    layer: int
    error: float
    """‖w − w′‖ / ‖w‖: of all matrices of the block together"""
    largest: str
    """largest in: path inside the block"""
    largest_error: float
    """its ‖w − w′‖ / ‖w‖"""
    output: float = math.nan
    """output: ‖h′ − h‖ / ‖h‖ of the block's output, over tokens and dimensions"""
    others: float = math.nan
    """output, other dimensions: the same without the outlier dimensions"""


@dataclass(frozen=True, kw_only=True)
class ErrorShare(Row):
    """How much of the squared error of the weights belongs to outlier dimensions, or to outlier neurons."""

    note = (
        "Of dimensions: columns that read them and rows that write them. Of neurons: columns of the MLPs' last linears. "
        "Random: sets of the same size, of neurons in the same MLPs."
    )
    stack: Annotated[str, More]
    """stream"""
    place: str
    """outlier"""
    which: tuple[str, ...]
    """number"""
    share: Annotated[float, FineShare]
    """share of the squared error"""
    random: Annotated[tuple[float, ...], Draws, FineShare]
    """share with random sets"""
    p: Annotated[float, P]
    """rank p: (1 + number of random sets with as large a share) / (1 + sets)"""
    of_weights: Annotated[float, FineShare]
    """share of the squared weights"""


@dataclass(frozen=True, kw_only=True)
class QuantizedCopy(Finding):
    """A quantized copy against its original.

    Attributes:
        copy: its name. stored: {how the copy stores them: number of matrices}. median: error of the blocks' matrices.
        apart: matrices of the original's blocks that the copy does not have in that name and shape.
        n_error_texts: texts whose hidden states are compared.
    """

    title = "Against its quantized copy"
    pictures = (
        Lines(rows="layers", x="layer", y="error", by="stack", title="Error of the weights"),
        Lines(rows="layers", x="layer", y="others", by="stack", title="Error of the output, other dimensions",
              where=lambda row: bool(np.isfinite(row.others))),
    )  # fmt: skip

    layers: tuple[LayerError, ...]
    """Error by block"""
    linears: tuple[LinearError, ...]
    """Largest errors"""
    shares: tuple[ErrorShare, ...] = ()
    """Where the error lies"""
    losses: tuple[Measurement, ...] = ()
    """With the copy's weights"""
    copy: str
    stored: dict[str, int]
    median: float
    apart: tuple[str, ...] = ()
    n_error_texts: int = 0

    @property
    def first(self) -> LayerError | None:
        """The first block with a matrix whose error is more than twice the median; None where there is none."""
        return next((one for one in self.layers if one.largest_error > TIMES * self.median), None)

    @property
    def first_output(self) -> LayerError | None:
        """The first block whose output errs by more than a tenth in the other dimensions; None where there is none."""
        return next((one for one in self.layers if one.others > LARGE), None)

    def laid_out(self, name: str, rows: tuple[Any, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short the linears with the largest errors."""
        rows = rows[:SHOWN] if name == "linears" and not verbose else rows
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        most = max(self.layers, key=lambda one: one.largest_error)
        if not most.largest_error:
            yield "No weight of the blocks differs."
        elif (first := self.first) is not None:
            yield (
                f"The error becomes large in block {first.layer}: {first.largest} differs by {_share(first.largest_error)} of "
                f"its norm (median of the linears: {_share(self.median)}; large: more than {TIMES:g} times that)."
            )
        else:
            yield (
                f"No block has a large error: the largest error of a linear is {_share(most.largest_error)} of its norm "
                f"({most.largest} of block {most.layer}), the median {_share(self.median)} (large: {TIMES:g} times that)."
            )
        if self.apart:
            yield (
                f"Not compared: {len(self.apart):,} matrices that the copy does not have by this name and shape: "
                f"{listed(self.apart)}."
            )
        yield f"The copy stores {', '.join(f'{n:,} matrices as {kind}' for kind, n in self.stored.items())}."
        if self.losses:
            yield from self._on_texts()
        else:
            yield "Nothing was run: --data TEXTS measures the loss and the error of the blocks' outputs."
        for one in self.shares if most.largest_error else ():
            yield (
                f"Outlier {one.place} {few(one.which)} hold {FineShare(one.share).written()} of the squared error; "
                f"random ones {FineShare(float(np.median(one.random))).written()} in the median (rank p = {one.p:.3g})."
            )
        if not any(one.place == "dimensions" for one in self.shares):
            yield "The scan finds no outlier dimension in the original."

    def _on_texts(self) -> Iterator[str]:
        (loss,), first, steps = self.losses, self.first_output, np.diff([0.0, *(one.others for one in self.layers)])
        where = "behind no block" if first is None else f"first behind block {first.layer} ({_share(first.others)})"
        yield (
            f"With the copy's weights the {self.about.task} changes by "
            f"{loss.change.written(why=no_interval(self.about.n_texts))} {self.about.unit}. The original "
            "runs, with its own number format: what a runtime rounds besides, such as inputs, is not in it."
        )
        grows = self.layers[int(np.nanargmax(steps))].layer
        yield (
            f"The error of the output (outlier dimensions left out) is above {percent(LARGE)} of the norm {where}; it grows "
            f"most in block {grows}, and is {_share(self.layers[-1].others)} behind the last."
        )


def _share(error: float) -> str:
    return f"{100 * error:.3g} %" if math.isfinite(error) else "∞"


# --- how it is measured ------------------------------------------------------------------------------------------


def copied(session: "Session", base: str, other: str, asked: CopyOptions, how: CopyOpening) -> QuantizedCopy | None:
    """What the command finds of a copy; None where the other model is none: it stores no codes and nobody says that it is."""
    with opened(base, how.earlier) as model, opened(other, how.later) as copy:
        if not (how.is_copy or asked.data or (stores_codes(copy) and not stores_codes(model))):
            return None
        if asked.data is None:
            return copy_error(model, copy, how.dims, how.earlier)
        from outlierlens.data.texts import read_texts
        from outlierlens.models.load import LoadOptions, load_model

        one = session.loading
        load = LoadOptions(
            revision=one.revision, subfolder=one.subfolder, token=one.token, offline=one.offline, row=one.row,
            notice=session.notice,
        )  # fmt: skip
        texts, loaded = read_texts(asked.data, limit=asked.limit, offline=one.offline), load_model(base, load)
        return copy_error(model, copy, how.dims, how.earlier, loaded=loaded, texts=texts, max_length=asked.max_length)


def stores_codes(checkpoint: Checkpoint) -> bool:
    """Whether it stores any matrix in fewer than 16 bits per weight, or packed."""
    for name in checkpoint.tensors:
        if checkpoint.packed_by(name):
            return True
        info = checkpoint.tensors[name]
        if len(info.shape) > 1 and checkpoint.holds_floats(name) and 8 * info.nbytes < BITS * info.size:
            return True
    return False


def copy_error(
    model: Checkpoint,
    copy: Checkpoint,
    dims: "tuple[int, ...] | Find" = FIND,
    scan: ScanOptions | None = None,
    *,
    loaded: "LoadedModel | None" = None,
    texts: Data | None = None,
    max_length: int = TaskOptions.max_length,
) -> QuantizedCopy:
    """The error of each matrix of `copy` against `model`; with `loaded`, the model itself, also what it does on `texts`.

    Raises:
        BadInput: weights are packed in a way that is not read, or models that are not alike.
    """
    for one in (model, copy):
        if packed := {name: by for name in one.tensors if (by := one.packed_by(name))}:
            name, by = next(iter(packed.items()))
            raise BadInput(
                f"{one.name}: {len(packed):,} weights are packed by {by}, such as {name}, and are not read; name a copy in "
                "GGUF, compressed-tensors or bitsandbytes, or one that was saved in full precision"
            )
    options = replace(scan or ScanOptions(), stack=None)
    return _CopyStudy(model, copy, dims, options).finding(loaded, texts, max_length)


class _CopyStudy:
    """The matrices of two checkpoints, each read once in both."""

    def __init__(self, model: Checkpoint, copy: Checkpoint, dims: "tuple[int, ...] | Find", options: ScanOptions):
        self.model, self.copy, self.options = model, copy, options
        self.scan: Scan = scan_checkpoint(model, options)
        self.bound, self.others = bound_stacks(model, options.row), bound_stacks(copy, options.row)
        large = [one for one in (model, copy) if getattr(one, "requests", 0) and one.total_bytes > options.max_read]
        if large:
            raise TooMuchToRead(
                f"{large[0].name}: every weight is read, {large[0].total_bytes / 1e6:,.0f} MB; allow it with --model-args "
                f"max-read={large[0].total_bytes // 1_000_000 + 1}MB"
            )
        found: dict[str, set[int]] = {}
        for one in self.scan.stacks:
            named: set[int] = {outlier.dim for outlier in one.outliers} if dims == FIND else set(map(int, dims))
            if bad := [dim for dim in named if not 0 <= dim < one.hidden_size]:
                raise BadInput(f"dimension {bad[0]} does not exist; stream {one.stack!r} has {one.hidden_size}")
            found.setdefault(one.stack, set()).update(named)
        self.dims = {name: sorted(some) for name, some in found.items()}
        # (stream, "" or the row of an MLP): sums of squares of the entries of its dimensions or neurons [2, entry]
        self.along: dict[tuple[str, str], np.ndarray] = {}
        self.linears: list[LinearError] = []
        self.sums: dict[tuple[str, int], np.ndarray] = {}  # (stream, layer): [2]
        self.notes: list[str] = []

    def finding(self, loaded: "LoadedModel | None", texts: Data | None, max_length: int) -> QuantizedCopy:
        shared = SharedTensors(self.model, self.copy, self.bound, self.others)
        roles = [(stack, layer, f"{stack.blocks[layer]}.") for stack in self.bound for layer in stack.weight_layers]
        inside = {name for name, one in shared.first.tensors.items() if len(one.shape) > 1 and self._role(roles, name)}
        self._read(shared, roles)
        if not self.sums:
            raise BadInput(
                f"{self.copy.name}: has no matrix of a block by the name and shape of {self.model.name}'s; name a copy of it"
            )
        apart = tuple(sorted(inside - {ours for ours, _ in shared.names}))
        layers, mine = [], [one for one in self.linears if one.layer is not None]
        for stack, layer, start in roles:
            if (stack.name, layer) not in self.sums:
                continue
            error, before = self.sums[stack.name, layer]
            largest = max((one for one in mine if one.name.startswith(start)), key=lambda one: one.error)
            layers.append(LayerError(
                stack=stack.name, layer=layer, error=math.sqrt(error / before) if before else math.inf * bool(error),
                largest=largest.name.removeprefix(start).removesuffix(".weight"), largest_error=largest.error,
            ))  # fmt: skip
        kinds = dict.fromkeys(one.stored for one in mine)
        named = tuple(str(dim) for dim in sorted({dim for some in self.dims.values() for dim in some}))
        by = self.scan.stacks[0].named_by
        made: dict[str, Any] = {
            "provenance": self.scan.provenance, "losses": (),
            "about": About(stack=", ".join(self.dims), dims=named, named_by=by if named else ""),
        }  # fmt: skip
        shares = tuple(self._shares())
        if loaded is not None and texts is not None:
            made, layers = self._run(loaded, texts, max_length, layers, named)
        return QuantizedCopy(
            layers=tuple(layers), linears=tuple(sorted(self.linears, key=lambda one: -one.error)), shares=shares,
            copy=self.copy.name, stored={kind: sum(one.stored == kind for one in mine) for kind in kinds},
            median=float(np.median([one.error for one in mine])), apart=apart,
            notes=tuple(dict.fromkeys((*self.model.notes, *self.copy.notes, *self.notes, *made.pop("notes", ())))), **made,
        )  # fmt: skip

    def _role(self, roles: list[tuple[BoundStack, int, str]], name: str) -> tuple[BoundStack, int] | None:
        return next(((stack, layer) for stack, layer, start in roles if name.startswith(start)), None)

    def _read(self, shared: SharedTensors, roles: list[tuple[BoundStack, int, str]]) -> None:
        """Sums of squares by matrix, block, dimension and neuron."""
        writes = {param.name: param.axis for stack in self.bound for layers in stack.linears.values()
                  for params in layers for param in params}  # fmt: skip
        neurons: dict[str, list[Any]] = {}
        for stack in self.bound:
            try:
                for one in last_linears(stack, self.model.tensors):
                    neurons.setdefault(one.param.name, []).append((stack.name, one))
            except BadInput as problem:
                self.notes.append(f"outlier neurons were not looked at: {problem}")
        alone = len(self.bound) == 1
        if not alone:
            self.notes.append("several streams: of each the rows that write it count, and no columns that read it")
        for ours, theirs in shared.names:
            shape = shared.first.tensors[ours].shape
            if len(shape) < 2:
                continue
            both = _squares(shared, ours, theirs)  # [2, expert, row], [2, expert, column]
            role, total = self._role(roles, ours), both[0].sum((1, 2))
            error = math.sqrt(total[0] / total[1]) if total[1] else math.inf * bool(total[0])
            self.linears.append(LinearError(
                name=ours, layer=None if role is None else role[1], stored=shared.second.tensors[theirs].dtype, error=error,
                n_values=math.prod(shape),
            ))  # fmt: skip
            if role is None:
                continue
            stack, layer = role
            self.sums[stack.name, layer] = self.sums.get((stack.name, layer), np.zeros(2)) + total
            axis = writes.get(ours, -1 if not stack.stack.weight_is_in_by_out else -2)
            width = next(one.hidden_size for one in self.scan.stacks if one.stack == stack.name)
            if shape[axis] == width and (ours in writes or alone):
                self._add((stack.name, ""), both[axis + 2].sum(1))
            for name, one in neurons.get(ours, ()):
                self._add((name, one.row), both[one.param.axis + 2][:, one.expert if one.packed else 0])

    def _add(self, key: tuple[str, str], squares: np.ndarray) -> None:
        self.along[key] = self.along.get(key, 0.0) + squares

    def _shares(self) -> Iterator[ErrorShare]:
        for stack in self.bound:
            dims, squares = self.dims.get(stack.name, []), self.along.get((stack.name, ""))
            if any(not np.isfinite(one).all() for (name, _), one in self.along.items() if name == stack.name):
                self.notes.append(
                    f"{stack.name}: the copy holds a value that is no number; shares of the error mean nothing"
                )
                continue
            if dims and squares is not None:
                drawn = random_sets(squares.shape[1], len(dims), n=N_RANDOM, seed=SEED, other_than=dims)
                yield self._row(stack, "dimensions", dims, squares, drawn)
            yield from self._neurons(stack)

    def _neurons(self, stack: BoundStack) -> Iterator[ErrorShare]:
        """Of all MLPs of a stream, laid one behind another."""
        mlps = {row: one for (name, row), one in self.along.items() if name == stack.name and row}
        if not mlps:
            return
        try:
            whole = replace(self.options, max_read=self.model.total_bytes + 1)
            _, found = scan_mlps(self.model, stack, whole, hashlib.sha256())
        except BadInput as problem:
            self.notes.append(f"outlier neurons were not looked at: {problem}")
            return
        if not found:
            return
        starts = dict(zip(mlps, np.cumsum([0, *(one.shape[1] for one in mlps.values())]).tolist(), strict=False))
        places = [one.neuron.rpartition(":")[::2] for one in found]
        numbers = [starts[row] + int(number) for row, number in places]
        random = np.random.default_rng(SEED)
        counts = {row: sum(one == row for one, _ in places) for row in dict(places)}
        drawn = tuple(
            tuple(
                starts[row] + i
                for row, n in counts.items()
                for i in random.choice(mlps[row].shape[1], n, replace=False)
            )
            for _ in range(N_RANDOM)
        )
        squares = np.concatenate(list(mlps.values()), 1)
        yield self._row(stack, "neurons", numbers, squares, drawn, tuple(one.neuron for one in found))

    def _row(
        self,
        stack: BoundStack,
        place: str,
        chosen: list[int],
        squares: np.ndarray,
        drawn: Any,
        names: tuple[str, ...] = (),
    ) -> ErrorShare:
        total = np.maximum(squares.sum(1), np.finfo(float).tiny)
        share, of_weights = (squares[:, chosen].sum(1) / total).tolist()
        random = squares[0][np.array(drawn)].sum(1) / total[0]
        return ErrorShare(
            stack=stack.name, place=place, which=names or tuple(map(str, chosen)), share=share, random=tuple(random.tolist()),
            p=rank_p(share, random) or math.nan, of_weights=of_weights,
        )  # fmt: skip

    def _run(
        self, loaded: "LoadedModel", texts: Data, max_length: int, layers: list[LayerError], named: tuple[str, ...]
    ) -> tuple[dict[str, Any], list[LayerError]]:
        """What the copy's weights do on texts, and the layers with the errors of their outputs."""
        shared = SharedTensors(loaded.weights, self.copy, loaded.stacks, self.others)
        names, live = dict(shared.names), live_parameters(loaded.model)
        held = {id(live[name]) for name in names}
        if missing := [name for name, value in live.items() if id(value) not in held]:
            raise BadInput(
                f"{self.copy.name}: stores {len(missing):,} parameters of the running model otherwise or not at all, such as "
                f"{missing[0]}, so it cannot take its weights; leave --data out"
            )
        task = make_task(loaded, texts, vector_task(loaded, TaskOptions(max_length=max_length)))
        few_texts = texts.first(ERROR_TEXTS)
        states = {one.name: StateErrors(loaded, few_texts, stack=one.name, max_length=max_length, batch_size=16)
                  for one in loaded.text_stacks}  # fmt: skip

        def inside(_: Any) -> dict[str, Any]:
            return {name: one.at_blocks().tolist() for name, one in states.items()}

        condition = Condition(
            "copy", self.copy.name, {}, partial(_replaced, loaded, shared.second, names), key="copy", beside=inside
        )
        stack = loaded.text_stacks[-1].name
        with Study(loaded, task, texts, {"stack": stack, "copy": self.copy.header_digest()}) as study:
            (done,) = study.measure([condition])
        outputs = {name: (np.array(done.more[name]), one.power) for name, one in states.items()}
        found = []
        for one in layers:
            if one.stack in outputs:
                error, power = (values[one.layer] for values in outputs[one.stack])  # [dim]
                rest = np.setdiff1d(np.arange(len(power)), self.dims.get(one.stack, []))
                whole, part = (math.sqrt(error[some].sum() / power[some].sum()) for some in (..., rest))
                found.append(replace(one, output=whole, others=part))
            else:
                found.append(one)
        about = replace(study.about({}, max_length=max_length), dims=named, named_by=self.scan.stacks[0].named_by)
        return {
            "provenance": loaded.provenance(digest=study.fingerprint), "about": about, "losses": (study.row(done),),
            "n_error_texts": len(few_texts), "notes": (*loaded.notes, *task.notes),
        }, found  # fmt: skip


@temporary
def _replaced(loaded: "LoadedModel", copy: Checkpoint, names: Mapping[str, str]) -> Iterator[int]:
    """The copy's values in place of the parameters called so; yields how many."""
    import torch

    def values(stored: str, parameter: Any) -> Any:
        ((_, read),) = copy.read([stored])
        return torch.from_numpy(np.ascontiguousarray(read)).to(parameter)

    with ExitStack() as undo:
        settable = SettableParameters(undo, loaded.model)
        for name, stored in names.items():
            settable.set_values(name, ..., partial(values, stored))
        yield sum(math.prod(copy.tensors[stored].shape) for stored in names.values())


def _squares(shared: SharedTensors, ours: str, theirs: str) -> tuple[np.ndarray, np.ndarray]:
    """(Σ (w′ − w)², Σ w²) of one tensor, [2, expert, row] and [2, expert, column]; a third axis is of experts."""
    *many, n_rows, width = shared.first.tensors[ours].shape
    step, columns, rows = n_rows if many else max(1, PIECE // width), np.zeros((2, math.prod(many), width)), []
    pieces = (shared.first.read_rows(ours, step), shared.second.read_rows(theirs, step))
    for number, (old, new) in enumerate(zip(*pieces, strict=True)):
        both = np.square([new.astype(np.float64) - old, old.astype(np.float64)])  # [2, row, column]
        both = np.nan_to_num(both, nan=np.inf)
        rows.append(both.sum(2))
        columns[:, number if many else 0] += both.sum(1)
    return np.concatenate(rows, 1).reshape(2, -1, n_rows), columns
