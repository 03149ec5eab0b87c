"""What weights say of dimensions and neurons: the parameters to read, what they write to each dimension, the rule on them.

    for stack in scan_sites(checkpoint, sites, rule, digest): ...   # StackScan of each: dims, outliers, z [layer, dim]
    scan_stream(loaded, "model").dims                                # of a model in memory
    scan_mlps(checkpoint, bound, options, digest)[1][0].neuron       # "28:678"

Neurons are told by the largest value that they can take. What an MLP reads is γ ⊙ n with ‖n‖ ≤ √d behind a norm of scale γ. So
a neuron of an ungated MLP is at most √d ‖γ ⊙ u‖, with u its row of the up projection, and one of a gated MLP, up × act(gate)
with an act that grows as its argument does, at most

    max over n of |(γ ⊙ u)·n| · |(γ ⊙ g)·n|  =  d/2 · ‖γ ⊙ u‖ ‖γ ⊙ g‖ (1 + |cos|)

(the largest |eigenvalue| of the symmetric part of u gᵀ, times d). Super activations (Yu et al. 2024) need just that: rows that
are long and point the same way. A neuron that reaches `TIMES` the median of its block is named.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import MLP, NO_EXPERT, BoundStack, LastLinear, Neuron, Param
from outlierlens.architectures.live import in_memory
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.rules import LastOperation, Outlier, Rule, find
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.options import Flag, Flat
from outlierlens.results.rows import Quiet, Row
from outlierlens.view.section import Count, number_of_layers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from outlierlens.models.load import LoadedModel

MAX_READ = 500_000_000
MAP_CELLS = 400_000  # scale and bias together; beyond it a result keeps the most extreme dimensions only
QUIET_READ = 1_000_000
GGUF_BLOCK = "blk."
TIMES = 10.0  # the median of its block, from which a neuron is named
BY_NORMS = ", or use --rule view=reading, which reads the norms alone"
View = Literal["last", "reading"]


@dataclass(frozen=True)
class ScanOptions:
    """How to scan: the rule, the view, and limits on what may be read."""

    rule: Annotated[Rule, Flat()] = field(default_factory=Rule)
    """Which dimensions count as outliers."""
    view: Annotated[View, Flag(into="--rule")] = "last"
    """last: the block's last operation; reading: norms that read."""
    stack: str | None = None
    """One stream alone; mlp (encoder.mlp): the neurons of its blocks' MLPs."""
    row: arch.RowChoice = None
    """A TOML file that declares the architecture, or a model_type, instead of the table's row."""
    max_read: Annotated[int, Flag(into="--model-args", read="options:parse_bytes")] = MAX_READ
    """Refuse a rule that has to read more than this."""
    revision: str | None = None
    """Hub revision: branch, tag or commit."""
    subfolder: str = ""
    """Folder inside the model's directory or repository."""
    token: str | None = field(default=None, repr=False)
    """Hub token."""
    offline: bool = False
    """Never use the network."""
    adapter: str | None = None
    """Folder of a LoRA adapter (PEFT): look at the model with it on."""
    notice: Callable[[str], None] | None = None
    """Called with a line that says what will be read, before a rule reads more than norm vectors."""


# What a command that scans has of it; the rest is said by where its model comes from.
ASKED = Flat("rule", "view", "max_read")


def opened(model: str, options: ScanOptions) -> Checkpoint:
    """The stored weights of a model, from where the options say."""
    return open_checkpoint(
        model, revision=options.revision, subfolder=options.subfolder, token=options.token, offline=options.offline,
        adapter=options.adapter,
    )  # fmt: skip


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StackScan(Row):
    """What the rule found in one residual stream, seen at one site of its blocks."""

    axes_apart = True

    model: str = ""
    """model: where several were scanned"""
    stack: str
    """stream: "model", "encoder", "decoder", …; dimensions are named per stream"""
    site: str
    """site: the parameter that was measured, relative to the block"""
    measure: str
    """measured: scale of the norm, or L2 norm of the weights that write to the dimension"""
    norm_site: Annotated[str, Quiet]
    n_layers: Annotated[int, "layer"]
    """layers: vectors of the measure, one for each block"""
    n_run: Annotated[int, Quiet]
    """layers that run, more where layers share their blocks"""
    hidden_size: int
    """dimensions"""
    outliers: Annotated[tuple[Outlier, ...], Quiet]
    """what the rule found, strongest first"""
    n_sigma: float
    """threshold"""
    values_read: Annotated[int, Count]
    """values read: scalars that the measure rests on"""
    notes: Annotated[tuple[str, ...], Quiet]
    map_dims: Annotated[tuple[int, ...], "column", Quiet]
    """dimensions of the columns of `z_scale` and `z_bias`, all of them unless that is too many"""
    z_scale: Annotated[np.ndarray, "layer column", Quiet]
    z_bias: Annotated[np.ndarray, "layer column, or empty", Quiet]
    """empty where there is no bias"""

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions found, ascending."""
        return tuple(sorted(outlier.dim for outlier in self.outliers))

    @property
    def counted(self) -> str:
        """What a rule counts: "12 layers", or "2 distinct blocks" where layers share theirs."""
        if self.n_run == self.n_layers:
            return number_of_layers(self.n_layers)
        return f"{self.n_layers} distinct block{'' if self.n_layers == 1 else 's'}"

    @property
    def shape(self) -> str:
        """ "12 layers × 768 dimensions", or "8 layers of 2 distinct blocks × 768 dimensions"."""
        blocks = "" if self.n_run == self.n_layers else f" of {self.counted}"
        return f"{number_of_layers(self.n_run)}{blocks} × {self.hidden_size:,} dimensions"

    @property
    def threshold(self) -> Rule:
        """The threshold that was used; ask it what passes in this stream, and how that is said."""
        return Rule(n_sigma=self.n_sigma)

    @property
    def named_by(self) -> str:
        """Who named the dimensions, in words."""
        return f"the scan of the weights, at {self.threshold.sigmas}"

    def one_sided(self, rule: Rule) -> tuple[int, ...]:
        """Dimensions past `n_sigma` in the layers that `rule` needs in scale or in bias, not in both, ascending.

        What Kovaleva et al.'s rule passes over; () where the norm has no bias.
        """
        _, scale, bias = self.past(rule)
        return tuple(sorted((*scale, *bias))) if self.z_bias.size else ()

    def strongest_dims(self, n: int) -> tuple[int, ...]:
        """The `n` dimensions whose |z|, averaged over layers and over scale and bias, is largest, strongest first.

        Whatever the rule says; fewer only where fewer differ from the rest at all, as in weights that are all equal.
        """
        size = np.abs(self.z_scale).mean(axis=0)  # [column]
        if self.z_bias.size:
            size = (size + np.abs(self.z_bias).mean(axis=0)) / 2
        return tuple(self.map_dims[column] for column in np.argsort(-size, kind="stable")[:n] if size[column] > 0)

    def past(self, rule: Rule) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Dimensions past `n_sigma` in the layers that `rule` needs: in scale and bias both, in scale alone, in bias alone."""
        scale = rule.enough(self.threshold.layers_past(self.z_scale), self.n_layers)  # [column]
        bias = (
            rule.enough(self.threshold.layers_past(self.z_bias), self.n_layers) if self.z_bias.size else scale & False
        )
        dims = np.array(self.map_dims)
        both, scale_alone, bias_alone = (dims[flag].tolist() for flag in (scale & bias, scale & ~bias, bias & ~scale))
        return tuple(both), tuple(scale_alone), tuple(bias_alone)


@dataclass(frozen=True, kw_only=True)
class LargeNeuron(Row):
    """A neuron that its weights single out."""

    note = "Largest value: the largest that any input of the norm before the MLP can give the neuron."
    model: str = ""
    """model: where several were scanned"""
    stack: Annotated[str, Quiet]
    neuron: str
    """neuron: as block:number, or block:expert:number"""
    times_median: float
    """× median: its largest value over the median of its block"""
    reach: float
    """largest value: that a normed input can give it"""
    dim: int
    """writes most to: the dimension of the stream with its largest weight"""
    weight: float
    """with weight"""


@dataclass(frozen=True, kw_only=True)
class MlpScan(Row):
    """How large the neurons of one kind of MLP of a stream can become."""

    model: str = ""
    """model: where several were scanned"""
    stack: str
    """MLPs: "mlp", or "encoder.mlp"; of several kinds with the path of the last linear"""
    n_layers: int
    """blocks"""
    n_neurons: Annotated[int, Count]
    """neurons: of each MLP"""
    n_experts: Annotated[int, Count] = 0
    """experts: of each block; 0 where all tokens pass the MLP"""
    times: float
    """named from × median"""
    largest: float
    """largest: that any neuron reaches, over its block's median"""
    normed: bool
    """normed: whether the scale of a norm before the MLP took part; else all that is read counts alike"""
    n_blocks: Annotated[int, Quiet] = 0
    """of the stream, those without such an MLP too"""
    experts: Annotated[dict[str, tuple[float, int]], Quiet] = field(default_factory=dict)
    """of each expert, by "layer:expert", the largest value that one of its neurons can write, and in which dimension"""

    @property
    def bounds(self) -> dict[tuple[int, int], float]:
        """Those values by (layer, expert)."""
        places = {name: tuple(map(int, name.split(":"))) for name in self.experts}
        return {(layer, expert): self.experts[name][0] for name, (layer, expert) in places.items()}


# --- how it is found -------------------------------------------------------------------------------------------------


def scan_stream(loaded: "LoadedModel", stream: str, rule: Rule | None = None) -> StackScan:
    """What a rule finds in one stream of a loaded model: in its blocks' last operation, which every stream has."""
    sites = sites_of(next(one for one in loaded.stacks if one.name == stream), "last")
    (found,) = scan_sites(loaded.weights, sites, rule or Rule(), hashlib.sha256())
    return found


def scan_sites(checkpoint: Checkpoint, sites: "Sequence[Site]", rule: Rule, digest: Any) -> tuple[StackScan, ...]:
    """What a rule finds at each site; `digest` takes names and values.

    Raises:
        BadFile: layers disagree on the width of the stream, or a value is not finite.
    """
    return tuple(_scan_site(checkpoint, site, rule, digest) for site in sites)


@dataclass(frozen=True)
class Site:
    """One parameter family to measure over the layers of a stack."""

    stack: BoundStack
    name: str
    scale: tuple[tuple[Param, ...], ...]
    bias: tuple[tuple[Param, ...], ...]
    is_norm: bool
    view: Annotated[View, Flag(into="--rule")] = "last"


def sites_of(stack: BoundStack, view: View) -> list[Site]:
    """What `view` measures of a stack: its last operation, or each reading norm that every layer has."""
    layers = stack.weight_layers
    declared = stack.stack
    if view == "last":
        scales = declared.write_scales
        linears = [f"{name} × {scales[name]}" if name in scales else name for name in declared.last_linear]
        raw = [name for name in declared.last_linear if name in declared.raw_writes]
        names = [declared.last_norm, *raw] if stack.ends_in_norm else linears
        scale, bias = (tuple(values[layer] for layer in layers) for values in (stack.scale, stack.bias))
        return [Site(stack, " + ".join(name.removesuffix("()") for name in names), scale, bias, stack.ends_in_norm)]
    sites = []
    for module in declared.reading_norms:
        present = tuple(
            tuple(param for param in stack.reading[layer] if f".{module}." in param.name) for layer in layers
        )
        if not all(present):
            continue
        whole = stack.norms.get(module, ())  # scale and bias [layer]
        bias = tuple(
            tuple(param for param in whole[layer] if param not in scale) if whole else ()
            for layer, scale in zip(layers, present, strict=True)
        )
        sites.append(Site(stack, module, present, bias, True, "reading"))
    return sites


def check_size(
    checkpoint: Checkpoint, sites: list[Site], options: ScanOptions, *, instead: str = BY_NORMS, each: str = ""
) -> None:
    """Raise TooMuchToRead where `sites` need linears of more than `max_read` bytes; say what will be read otherwise.

    `instead` is the other remedy of the command, if it has one; `each` says of how many checkpoints it is read.
    """
    params = {p.name for site in sites for layer in (*site.scale, *site.bias) for p in layer}
    linear = [site.name for site in sites if not site.is_norm]
    if not linear:
        return  # norm vectors only: a few kilobytes a layer
    needed = sum(checkpoint.tensors[name].nbytes for name in params)
    what = f"{', '.join(sorted(set(linear)))} of every layer, {needed / 1e6:,.0f} MB{each}"
    if needed <= options.max_read:
        if options.notice and needed > QUIET_READ:
            options.notice(f"{checkpoint.name}: its blocks do not end in a norm, so this reads {what}")
        return
    raise TooMuchToRead(
        f"{checkpoint.name}: its blocks do not end in a norm, so this rule reads {what}; allow it with "
        f"--model-args max-read={needed // 1_000_000 + 1}MB{instead}"
    )


def measure(checkpoint: Checkpoint, site: Site, digest: Any) -> tuple[LastOperation, int]:
    """Scale and bias of a site over its layers, and how many scalars were read; `digest` takes names and values.

    Raises:
        BadFile: layers disagree on the width of the stream, or a value is not finite.
    """
    params = [param for layer in (*site.scale, *site.bias) for param in layer]
    wanted = {param.times: Param(param.times) for param in params if param.times} | {p.name: p for p in params}
    vectors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    n_values = 0
    for name, values in checkpoint.read(wanted):
        vectors[name] = per_dim(values, wanted[name])
        ranks[name] = values.ndim
        n_values += values.size
    for name in sorted(vectors):
        digest.update(name.encode() + vectors[name].tobytes())
    _check_widths(vectors, list(wanted), checkpoint.name)

    def stacked(layers: tuple[tuple[Param, ...], ...]) -> np.ndarray:
        written = [[scaled(vectors[p.name], vectors.get(p.times), ranks[p.name]) for p in layer] for layer in layers]
        return np.stack([combine(some, layer, ranks) for some, layer in zip(written, layers, strict=True)])

    scale, bias = stacked(site.scale), stacked(site.bias) if all(site.bias) else None
    return LastOperation(scale, bias, where=f"{checkpoint.name}, {site.name}"), n_values


def per_dim(values: np.ndarray, param: Param) -> np.ndarray:
    """One float64 value per dimension [dim]: a vector as it acts, or the L2 norm of the weights that write to each."""
    if values.ndim == 1:
        # (1 + w) norms are switched off at w = −1, so w − off is the factor that multiplies.
        return values.astype(np.float64) - param.off
    moved = np.moveaxis(values, param.axis, 0).reshape(values.shape[param.axis], -1)
    return np.sqrt(np.einsum("di,di->d", moved, moved, dtype=np.float64))


def scaled(vector: np.ndarray, times: np.ndarray | None, rank: int) -> np.ndarray:
    """What a parameter writes to each dimension [dim] behind the factors `times` [dim]; norms of weights have no sign."""
    if times is None:
        return vector
    return vector * (times if rank == 1 else np.abs(times))


def combine(vectors: Sequence[np.ndarray], params: Sequence[Param], sizes: Mapping[str, int]) -> np.ndarray:
    """What several parameters of one layer write together: vectors add, L2 norms add in squares.

    `sizes` gives each parameter's rank: biases of experts are [expert, dim] and count by their norm too.
    """
    if all(sizes[param.name] == 1 for param in params):
        return np.sum(vectors, axis=0)
    return np.sqrt(np.sum(np.square(vectors), axis=0))


def live_values(model: "nn.Module", layers: tuple[tuple[Param, ...], ...]) -> np.ndarray:
    """What the parameters of a model in memory write to each dimension as they are now, [layer, dim]."""
    live, rows = arch.live_parameters(model), []
    for params in layers:
        names = {name for p in params for name in (p.name, p.times) if name}
        ranks = {name: live[name].ndim for name in names}
        values = {p.name: _live_per_dim(in_memory(live[p.name]), p) for p in params}
        factors = {p.times: in_memory(live[p.times]).detach().float().cpu().numpy() for p in params if p.times}
        written = [scaled(values[p.name], factors.get(p.times), ranks[p.name]) for p in params]
        rows.append(combine(written, params, ranks))
    return np.stack(rows)


def _live_per_dim(values: "Tensor", param: Param) -> np.ndarray:
    """`per_dim` of a tensor where it lies: of a linear only the norms leave its device."""
    if values.ndim == 1:
        return per_dim(values.detach().float().cpu().numpy(), param)
    return live_norms(values, param).double().cpu().numpy()


def live_norms(values: "Tensor", param: Param) -> "Tensor":
    """L2 norm of the entries at each dimension of a tensor in the parameter's shape, float32 [dim] on its device."""
    moved = values.detach().float().movedim(param.axis, 0)
    return moved.reshape(len(moved), -1).norm(dim=1)


def _check_widths(vectors: dict[str, np.ndarray], names: list[str], where: str) -> None:
    widths = {len(vectors[name]) for name in names}
    if len(widths) != 1:
        odd = {len(vectors[name]): name for name in names}
        raise BadFile(
            f"{where}: layers disagree on the width of the stream: "
            + ", ".join(f"{name} has {width}" for width, name in list(odd.items())[:3])
        )


def _one_sided(measured: LastOperation, rule: Rule) -> list[str]:
    """A note on dimensions that pass in scale or in bias but not in both."""
    assert measured.z_bias is not None
    scale, bias = rule.layers_past(measured.z_scale), rule.layers_past(measured.z_bias)  # [dim] each
    n_layers = len(measured.z_scale)
    passes = rule.parts(scale, bias, n_layers)
    only = np.flatnonzero(passes["scale"] != passes["bias"]).tolist()
    if not only:
        return []
    shown = "; ".join(f"{dim} (scale {scale[dim]}/{n_layers}, bias {bias[dim]}/{n_layers})" for dim in only[:4])
    return [f"in enough layers for scale or bias, but not for both: {shown}" + (" and more" if len(only) > 4 else "")]


def _scan_site(checkpoint: Checkpoint, site: Site, rule: Rule, digest: Any) -> StackScan:
    measured, n_values = measure(checkpoint, site, digest)
    outliers = find(measured, rule)
    declared = site.stack.stack
    notes = list(declared.notes)
    if measured.bias is None:
        alone = "so this rule can find nothing" if rule.name == "puccetti" else "the rule rests on the scale alone"
        notes.append(f"{site.name} has no bias here: {alone}")
    elif rule.name == "kovaleva":
        notes += _one_sided(measured, rule)
    n_layers, width = measured.scale.shape
    if declared.shared_blocks and n_layers == 1:
        notes.append("all layers run one block, so one vector was tested")
    dims = np.arange(width)
    if 2 * n_layers * width > MAP_CELLS:
        extreme = np.abs(measured.z_scale).max(axis=0)
        if measured.z_bias is not None:
            extreme = np.maximum(extreme, np.abs(measured.z_bias).max(axis=0))
        kept = max(32, MAP_CELLS // (2 * n_layers))
        found = [outlier.dim for outlier in outliers]
        dims = np.unique(np.concatenate([np.argsort(-extreme)[:kept], np.array(found, dtype=int)]))
    return StackScan(
        stack=site.stack.name, site=site.name, norm_site=declared.norm_site,
        measure="scale of the norm" if site.is_norm else "L2 norm of the weights that write to the dimension",
        n_layers=n_layers, n_run=site.stack.n_layers if declared.shared_blocks else n_layers, hidden_size=width,
        outliers=outliers, n_sigma=rule.n_sigma, values_read=n_values, notes=tuple(notes), map_dims=tuple(dims.tolist()),
        z_scale=measured.z_scale[:, dims].astype(np.float32),
        z_bias=np.empty((0, 0)) if measured.z_bias is None else measured.z_bias[:, dims].astype(np.float32),
    )  # fmt: skip


# --- neurons ---------------------------------------------------------------------------------------------------------


def scan_mlps(
    checkpoint: Checkpoint, stack: BoundStack, options: ScanOptions, digest: Any
) -> tuple[tuple[MlpScan, ...], tuple[LargeNeuron, ...]]:
    """The neurons of a stream's MLPs that can become `TIMES` as large as their block's median one, the largest first.

    The experts of a block have one median; a shared expert, and a block's own MLP, have their own.

    Raises:
        BadInput: the MLPs' linears cannot be told.
        TooMuchToRead: they have more than `max_read` bytes.
    """
    needed = sum(
        one.nbytes for name, one in checkpoint.tensors.items() if name.startswith(tuple(f"{b}." for b in stack.blocks))
    )
    if needed > options.max_read:
        raise TooMuchToRead(
            f"{checkpoint.name}: neurons are told from the MLPs' linears, in blocks of {needed / 1e6:,.0f} MB; allow it with "
            f"--model-args max-read={needed // 1_000_000 + 1}MB"
        )
    alternating = any(one.alternating for one in arch.family_of(checkpoint.config).gguf)
    seen, found = list[MlpScan](), list[LargeNeuron]()
    for axis in arch.mlp_axes(stack, checkpoint.tensors, options.stack or MLP):
        largest, experts = 0.0, dict[str, tuple[float, int]]()
        for layer, mlps in groupby(axis.mlps, key=lambda one: one.layer):
            inside = _BlockMlps(checkpoint, stack, layer, alternating)
            reaches = [(one, *inside.reach(one, digest)) for one in mlps]
            for one, values, down in reaches:
                if one.expert != NO_EXPERT:
                    written = np.abs(down) * values
                    experts[one.row] = (float(written.max()), int(written.max(1).argmax()))
            median = float(np.median(np.concatenate([values for _, values, _ in reaches])))
            if not median > 0:
                continue
            for one, values, down in reaches:
                largest = max(largest, float(values.max()) / median)
                for number in np.flatnonzero(values >= TIMES * median).tolist():
                    column = down[:, number]
                    row = int(np.abs(column).argmax())
                    found.append(LargeNeuron(
                        stack=axis.name, neuron=str(Neuron(layer, number, one.expert)), reach=float(values[number]),
                        times_median=values[number] / median, dim=row, weight=float(column[row]),
                    ))  # fmt: skip
        seen.append(MlpScan(
            stack=axis.name, n_layers=len({one.layer for one in axis.mlps}), n_neurons=len(reaches[0][1]), times=TIMES,
            n_experts=len({one.expert for one in axis.mlps} - {NO_EXPERT}), largest=largest,
            normed=bool(stack.stack.reading_norms), n_blocks=stack.n_layers, experts=experts,
        ))  # fmt: skip
    return tuple(seen), tuple(sorted(found, key=lambda one: -one.times_median))


class _BlockMlps:
    """The MLPs of one block while they are read; of packed experts each parameter is read once."""

    def __init__(self, checkpoint: Checkpoint, bound: BoundStack, layer: int, alternating: bool):
        self.checkpoint, self.bound, self.layer, self.alternating = checkpoint, bound, layer, alternating
        reading = bound.stack.reading_norms[-1] if bound.stack.reading_norms else ""
        self.norm = next((one for one in bound.reading[layer] if reading and f".{reading}." in one.name), None)
        self.held: dict[str, np.ndarray] = {}

    def reach(self, one: LastLinear, digest: Any) -> tuple[np.ndarray, np.ndarray]:
        """(the largest value of each neuron [neuron], what they write with [dimension, neuron]) of one MLP."""
        ups = first_linears(self.checkpoint, self.bound, one)
        wanted = [*ups, one.param.name, *([self.norm.name] if self.norm else [])]
        if missing := [name for name in wanted if name not in self.held]:
            self.held = {name: self.held[name] for name in wanted if name in self.held}
            read = dict(self.checkpoint.read(dict.fromkeys(missing)))
            for name in sorted(read):
                digest.update(name.encode() + read[name].astype(np.float64).tobytes())
            self.held |= read
        down = one.matrix(self.held[one.param.name]).astype(np.float64)
        rows = [_rows(one, name, self.held[name]).astype(np.float64) for name in ups]
        if len(rows) == 1 and len(rows[0]) == 2 * down.shape[1]:
            rows = [rows[0][::2], rows[0][1::2]] if self.alternating and one.packed else np.split(rows[0], 2)
        scale = self.held[self.norm.name].astype(np.float64) - self.norm.off if self.norm else np.ones(rows[0].shape[1])
        return _reach([each * scale for each in rows]), down


def _rows(one: LastLinear, name: str, values: np.ndarray) -> np.ndarray:
    """What a first linear of an MLP holds for each output [neuron, in]: it is stored as the last one is, but for GGUF's own."""
    own = values[one.expert] if one.packed else values
    return own.T if one.param.axis == -2 and not name.startswith(GGUF_BLOCK) else own


def _reach(rows: list[np.ndarray]) -> np.ndarray:
    """The largest value of each neuron [neuron], of its scaled rows: up alone [neuron, in], or up and gate."""
    sizes = [np.linalg.norm(one, axis=1) for one in rows]
    width = rows[0].shape[1]
    if len(rows) == 1:
        return np.sqrt(width) * sizes[0]
    product = np.einsum("ni,ni->n", *rows)
    found: np.ndarray = width / 2 * (sizes[0] * sizes[1] + np.abs(product))
    return found


def first_linears(checkpoint: Checkpoint, bound: BoundStack, last: LastLinear) -> list[str]:
    """Names of the weights of an MLP that make its neurons: one, or up and gate, or both in one."""
    block, tensors = bound.blocks[last.layer], checkpoint.tensors
    turn, n_experts = -1 if last.param.axis == -2 else 1, tensors[last.param.name].shape[: int(last.packed)]
    width, n_neurons = tensors[last.param.name].shape[int(last.packed) :][::turn]
    shapes = {(*n_experts, *(n, width)[::turn]) for n in (n_neurons, 2 * n_neurons)}
    apart = (*n_experts, n_neurons, width)  # GGUF holds gate and up of experts apart, by names of its own
    names = [
        name for name, stored in tensors.items()
        if (name.startswith(f"{block}.") and (last.packed or name.endswith(".weight")) and name != last.param.name
        and tuple(stored.shape) in shapes)
        or (last.packed and name.startswith(f"{GGUF_BLOCK}{last.layer}.") and tuple(stored.shape) == apart)
    ]  # fmt: skip
    parent = last.param.name.removesuffix(".weight").rpartition(".")[0]
    beside = [name for name in names if name.startswith(f"{parent}.")] or names
    if not 1 <= len(beside) <= 2:
        raise BadInput(
            f"{checkpoint.name}: which linears make the neurons of {parent} cannot be told from their shapes "
            f"({len(beside)} fit); measure them with observe --stack {bound.name}.mlp"
        )
    return beside


def strongest(z: tuple[float, ...]) -> float:
    """The value of largest magnitude, with its sign."""
    return max(z, key=abs)
