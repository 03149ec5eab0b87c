"""Outlier dimensions from weights alone: read the norms (or last linears) of a checkpoint and apply a rule.

result = scan("mpnet-base")                     # needs neither torch nor the model in memory
[outlier.dim for outlier in result.stacks[0].outliers]
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param
from outlierlens.architectures.bind import MLP
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.rules import Measured, Outlier, Rule, find
from outlierlens.detection.scan.result import NeuronScan, Scan, StackScan
from outlierlens.errors import BadFile, BadInput, TooMuchToRead
from outlierlens.options import Flag, Flat
from outlierlens.results.document import Provenance

if TYPE_CHECKING:
    from torch import Tensor, nn

    from outlierlens.models.load import LoadedModel

MAX_READ = 500_000_000
MAP_CELLS = 400_000  # scale and bias together; beyond it a result keeps the most extreme dimensions only
QUIET_READ = 1_000_000
BY_NORMS = ", or use --view reading, which reads the norms alone"
View = Literal["last", "reading"]


@dataclass(frozen=True)
class ScanOptions:
    """How to scan: the rule, the view, and limits on what may be read."""

    rule: Annotated[Rule, Flat()] = field(default_factory=Rule)
    """Which dimensions count as outliers."""
    view: View = "last"
    """last: the block's last operation; reading: norms that read."""
    stack: str | None = None
    """One stream alone; mlp (encoder.mlp): the neurons of its blocks' MLPs."""
    row: arch.RowChoice = None
    """A TOML file that declares the architecture, or a model_type, instead of the table's row."""
    max_read: Annotated[int, Flag(read="options:parse_bytes", words="500MB")] = MAX_READ
    """Refuse a rule that has to read more than this."""
    revision: str | None = None
    """Hub revision: branch, tag or commit."""
    subfolder: str = ""
    """Folder inside the model's directory or repository."""
    token: str | None = field(default=None, repr=False)
    """Hub token."""
    offline: bool = False
    """Never use the network."""
    notice: Callable[[str], None] | None = None
    """Called with a line that says what will be read, before a rule reads more than norm vectors."""


# What a command that scans has of it; the rest is said by where its model comes from.
ASKED = Flat("rule", "view", "max_read")


def scan(model: "str | LoadedModel", options: ScanOptions | None = None, *, command: str = "") -> Scan:
    """Find outlier dimensions in the weights of `model`: a sample, directory, file or hub id, or a loaded model.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        TooMuchToRead: the rule needs tensors of more than `max_read` bytes.
    """
    if not isinstance(model, str):
        return scan_live(model, options, command=command)
    options = options or ScanOptions()
    with open_checkpoint(
        model, revision=options.revision, subfolder=options.subfolder, token=options.token, offline=options.offline
    ) as checkpoint:
        return scan_checkpoint(checkpoint, options, command=command)


def scan_live(loaded: "LoadedModel", options: ScanOptions | None = None, *, command: str = "") -> Scan:
    """`scan` on the weights of a loaded model as they are now."""
    from outlierlens.checkpoints.stored import LiveCheckpoint

    checkpoint = LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)
    options = replace(options or ScanOptions(), max_read=checkpoint.total_bytes)  # nothing is read from anywhere
    return _scan_bound(checkpoint, loaded.stacks, options, command)


def scan_stream(loaded: "LoadedModel", stream: str, options: ScanOptions | None = None) -> StackScan:
    """What `scan_live` finds in one stream of the model: in its blocks' last operation, which every stream has."""
    return next(one for one in scan_live(loaded, options).stacks if one.stack == stream)


def scan_checkpoint(checkpoint: Checkpoint, options: ScanOptions, *, command: str = "") -> Scan:
    """`scan` on an open checkpoint."""
    stacks = arch.stacks_for(checkpoint, options.row)
    return _scan_bound(checkpoint, arch.bind(stacks, checkpoint.tensors, checkpoint.config), options, command)


def _scan_bound(checkpoint: Checkpoint, bound: list[BoundStack], options: ScanOptions, command: str) -> Scan:
    neurons = arch.is_mlp(options.stack)
    bound = arch.streams_of(bound, options.stack, checkpoint.name)
    sites = [site for stack in bound for site in sites_of(stack, options.view)] if not neurons else []
    if not sites and not neurons:
        raise BadInput(f"{checkpoint.name}: its blocks declare no reading norms; use --view last")
    check_size(checkpoint, sites, options)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    found = tuple(_scan_site(checkpoint, site, options.rule, digest) for site in sites)
    read = tuple(scan_mlps(checkpoint, stack, options, digest) for stack in bound) if neurons else ()
    return Scan(
        provenance=Provenance.now(checkpoint.name, digest.hexdigest(), command=command),
        model_type=str(checkpoint.config.get("model_type", "")),
        source=checkpoint.kind,
        rule=options.rule,
        view=options.view,
        stacks=found,
        bytes_read=checkpoint.bytes_read,
        total_bytes=checkpoint.total_bytes,
        notes=checkpoint.notes,
        requests=getattr(checkpoint, "requests", 0),
        neurons=read,
    )


def scan_mlps(checkpoint: Checkpoint, stack: BoundStack, options: ScanOptions, digest: Any) -> NeuronScan:
    """The neurons of a stream's MLPs that weights single out.

    Raises:
        BadInput: the MLPs' linears cannot be told, or are no single modules (experts).
        TooMuchToRead: they have more than `max_read` bytes.
    """
    from outlierlens.detection.scan.neurons import scan_neurons

    needed = sum(
        one.nbytes for name, one in checkpoint.tensors.items() if name.startswith(tuple(f"{b}." for b in stack.blocks))
    )
    if needed > options.max_read:
        raise TooMuchToRead(
            f"{checkpoint.name}: neurons are told from the MLPs' linears, in blocks of {needed / 1e6:,.0f} MB; allow it with "
            f"--max-read {needed // 1_000_000 + 1}MB"
        )
    return scan_neurons(checkpoint, stack, digest, options.stack or MLP)


@dataclass(frozen=True)
class Site:
    """One parameter family to measure over the layers of a stack."""

    stack: BoundStack
    name: str
    scale: tuple[tuple[Param, ...], ...]
    bias: tuple[tuple[Param, ...], ...]
    is_norm: bool
    view: View = "last"


def measure_name(*, is_norm: bool) -> str:
    """What the scale of a site is: a norm's factor, or the size of what is written."""
    return "scale of the norm" if is_norm else "L2 norm of the weights that write to the dimension"


def sites_of(stack: BoundStack, view: View) -> list[Site]:
    """What `view` measures of a stack: its last operation, or each reading norm that every layer has."""
    layers = stack.weight_layers
    declared = stack.stack
    if view == "last":
        scales = declared.write_scales
        linears = [f"{name} × {scales[name]}" if name in scales else name for name in declared.last_linear]
        names = [declared.last_norm] if stack.ends_in_norm else linears
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
        f"--max-read {needed // 1_000_000 + 1}MB{instead}"
    )


def _scan_site(checkpoint: Checkpoint, site: Site, rule: Rule, digest: Any) -> StackScan:
    measured, n_values = measure(checkpoint, site, digest)
    outliers, n_sigma = find(measured, rule)
    return _stack_scan(site, measured, outliers, n_sigma, rule, n_values)


def measure(checkpoint: Checkpoint, site: Site, digest: Any) -> tuple[Measured, int]:
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
    return Measured(scale, bias, where=f"{checkpoint.name}, {site.name}"), n_values


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
        values = {p.name: _live_per_dim(live[p.name], p) for p in params}
        factors = {p.times: live[p.times].detach().float().cpu().numpy() for p in params if p.times}
        written = [scaled(values[p.name], factors.get(p.times), ranks[p.name]) for p in params]
        rows.append(combine(written, params, ranks))
    return np.stack(rows)


def _live_per_dim(values: "Tensor", param: Param) -> np.ndarray:
    """`per_dim` of a tensor where it lies: of a linear only the norms leave its device."""
    if values.ndim == 1:
        return per_dim(values.detach().float().cpu().numpy(), param)
    return live_norms(values, param).double().cpu().numpy()


def live_norms(values: "Tensor", param: Param) -> "Tensor":
    """L2 norm of what lies at each dimension of a tensor in the parameter's shape, float32 [dim] on its device."""
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


def _one_sided(measured: Measured, rule: Rule) -> list[str]:
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


def _stack_scan(
    site: Site, measured: Measured, outliers: tuple[Outlier, ...], n_sigma: float, rule: Rule, n_values: int
) -> StackScan:
    used = rule.at(n_sigma)
    declared = site.stack.stack
    notes = list(declared.notes)
    if measured.bias is None:
        alone = "so this rule can find nothing" if rule.name == "puccetti" else "the rule rests on the scale alone"
        notes.append(f"{site.name} has no bias here: {alone}")
    elif rule.name == "kovaleva":
        notes += _one_sided(measured, used)
    if n_sigma < rule.n_sigma:
        notes.append(f"relaxed: nothing passes {rule.sigmas}, these pass {used.sigmas}")
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
        stack=site.stack.name,
        site=site.name,
        measure=measure_name(is_norm=site.is_norm),
        norm_site=declared.norm_site,
        n_layers=n_layers,
        n_run=site.stack.n_layers if declared.shared_blocks else n_layers,
        hidden_size=width,
        outliers=outliers,
        n_sigma=n_sigma,
        values_read=n_values,
        notes=tuple(notes),
        map_dims=tuple(dims.tolist()),
        z_scale=measured.z_scale[:, dims].astype(np.float32),
        z_bias=np.empty((0, 0)) if measured.z_bias is None else measured.z_bias[:, dims].astype(np.float32),
    )
