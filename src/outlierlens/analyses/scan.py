"""Outlier dimensions from weights alone: read the norms (or last linears) of a checkpoint and apply a rule.

result = scan("mpnet-base")                     # needs neither torch nor the model in memory
result.dims                                     # the dimensions found; of one stream result.stacks[0].dims
result.outliers[0].z_scale, result.to_pandas()  # a row for each

Of MLPs the neurons that weights single out: scan("smollm2-135m", ScanOptions(stack="mlp")).neurons
"""

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import RULES, Outlier, Rule, RuleName, super_experts
from outlierlens.detection.weights import (
    LargeNeuron,
    MlpScan,
    ScanOptions,
    StackScan,
    check_size,
    opened,
    scan_mlps,
    scan_sites,
    sites_of,
    strongest,
)
from outlierlens.errors import BadInput, OutlierlensError, one_line
from outlierlens.options import Flag, Flat, belong
from outlierlens.results.document import Advice, Provenance, about
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import More, Row
from outlierlens.results.safe_files import write_text
from outlierlens.statistics import SIGNIFICANT
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    FAINT,
    Chart,
    Spec,
    chart,
    drawable,
    field,
    label,
    looks,
    round_to,
    strongest_first,
)
from outlierlens.view.section import Count, P, Rows, Section, listed, percent, these

if TYPE_CHECKING:
    from outlierlens.analyses.definitions import Definitions
    from outlierlens.models.load import LoadedModel
    from outlierlens.session import Session

MAX_DOTS = 2500
EXPERTS = 8  # that a sentence names
LOWEST_Z = 2.0


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScanCall:
    """The models, and how each is scanned."""

    models: Annotated[tuple[str, ...], Flag(argument=True)]
    """Sample names, directories, weight files or hub ids."""
    rule: Literal[RuleName, "all"] = "kovaleva"
    """kovaleva, puccetti or luo; all: every published definition that rests on weights alone, of one model."""
    settings: Annotated[Rule, Flat("n_sigma", "min_layer_fraction", "same_layer", "top_k")] = Rule()
    """The rule and its thresholds."""
    scan: Annotated[ScanOptions, Flat("view", "stack", "max_read")] = ScanOptions()
    """What it may read."""
    propose: bool = False
    """Print a draft row (TOML) for an unknown architecture."""

    def __post_init__(self) -> None:
        if self.rule == "all":
            belong("to the other rules; leave --rule all out, or them", self, "same_layer", "view", "propose")


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WeightOutlier(Row):
    """One dimension that the rule found in one stream, at one site."""

    model: str = ""
    """model: where several were scanned"""
    stack: str
    """stream"""
    site: str
    """site: the parameter that was measured, relative to the block"""
    dim: int
    """dimension"""
    layers: int
    layers_scale: Annotated[int, Count]
    """past in scale: layers whose |z| passes; by rule luo, whose rank counts"""
    layers_bias: Annotated[int | None, Count]
    """past in bias: likewise; none without a bias"""
    z_scale: float
    """z scale: of largest magnitude over layers, with its sign, in standard deviations of the layer's vector"""
    z_bias: float | None
    rank_scale: Annotated[float, More]
    """rank scale: by |z|, median over layers; 1 is the most extreme"""
    rank_bias: Annotated[float | None, More]
    p: Annotated[float, P, More]
    """p: of at least that many layers, where positions in each layer are independent; the larger of scale's and bias's"""
    p_holm: Annotated[float, P]
    """p holm: corrected over all dimensions of the stream"""


@dataclass(frozen=True, kw_only=True)
class Scan(Finding):
    """Outlier dimensions of a model, or of several, from weights alone.

    Attributes:
        outliers: strongest first, stream by stream. neurons: those that weights single out, where MLPs were scanned.
        stacks: what was measured, with z of every layer and dimension.
        model_type: of its config. source: the kind of file. bytes_read, total_bytes: of the files.
    """

    title = "Outliers in the weights"

    outliers: tuple[WeightOutlier, ...] = ()
    """Outlier dimensions"""
    neurons: tuple[LargeNeuron, ...] = ()
    """Neurons"""
    stacks: tuple[StackScan, ...] = ()
    """(Streams)"""
    mlps: tuple[MlpScan, ...] = ()
    """(MLPs)"""
    rule: Rule
    view: str = "last"
    model_type: str = ""
    source: str = ""
    bytes_read: int = 0
    total_bytes: int = 0

    def sentences(self) -> Iterator[str]:
        for stack in self.stacks:
            size = f"{stack.measure}, {stack.n_layers} × {stack.hidden_size}"
            where = f"{stack.model or self.provenance.subject}, {stack.stack}, {stack.site}"
            yield f"{where} ({size}): {', '.join(map(str, stack.dims)) or 'none'}"
        for one in self.mlps:
            named = [each.neuron for each in self.neurons if (each.model, each.stack) == (one.model, one.stack)]
            experts = f"{one.n_experts:,} experts × " if one.n_experts else ""
            bare = "" if one.normed else "; no norm stands before the MLP, so all that it reads counts alike"
            yield (
                f"{one.model or self.provenance.subject}, {one.stack} (largest value that a normed input can give, from "
                f"{one.times:g} × the block's median, {one.n_layers} × {experts}{one.n_neurons:,}): "
                f"{', '.join(named) or f'none (the largest is {one.largest:.3g} × its median)'}{bare}"
            )
            if bounds := one.bounds:
                median = float(np.median([*bounds.values()]))
                found = [f"{layer}:{expert}" for layer, expert in super_experts(bounds, one.n_blocks)]
                said = [
                    f"{each} (dimension {one.experts[each][1]}, {one.experts[each][0] / median:.3g} ×)"
                    for each in found
                ]
                yield (
                    f"Super experts by weights alone, with the dimension of the largest value that one neuron can write and × "
                    f"the median of all {len(bounds):,} experts: {', '.join(said[:EXPERTS]) or 'none'}"
                    f"{f' and {len(said) - EXPERTS:,} more' if len(said) > EXPERTS else ''}."
                )

    def counted(self, stack: StackScan) -> tuple[Outlier, ...]:
        """The outliers of a stream that count as found: of a rank rule those that chance does not explain."""
        return tuple(one for one in stack.outliers if self.rule.name != "luo" or one.p_holm < SIGNIFICANT)

    def found(self) -> dict[str, list[int]]:
        """{stream: its dimensions that count as found, ascending}; without the streams that have none."""
        pairs = [(stack.stack, one.dim) for stack in self.stacks for one in self.counted(stack)]
        return {stream: sorted({dim for name, dim in pairs if name == stream}) for stream in sorted({*dict(pairs)})}

    def headline(self, model: str) -> Iterator[str]:
        """What a report of `model` begins with: how many dimensions stand out, and what speaks against them."""
        lists, rule = [sorted(one.dim for one in self.counted(stack)) for stack in self.stacks], self.rule
        sites = len({stack.stack for stack in self.stacks}) < len(self.stacks)
        if not any(lists):
            first = self.stacks[0]
            asked = rule.asks(first.n_layers, first.counted, has_bias=bool(first.z_bias.size))
            yield f"{model} has no outlier dimension in its weights: none {asked}."
        elif len(lists) == 1:
            yield f"{model} has {_counted(lists[0])}."
        else:
            names = (f"{stack.stack} ({stack.site})" if sites else stack.stack for stack in self.stacks)
            parts = (f"the {name} has {_counted(dims)}" for name, dims in zip(names, lists, strict=True))
            yield f"{model}: {'; '.join(parts)}."
        for stack in self.stacks:
            if weak := [one for one in self.counted(stack) if one.p_holm >= SIGNIFICANT]:
                dims, most = listed(sorted(one.dim for one in weak)), max(one.p_holm for one in weak)
                yield f"Chance is not excluded for {dims}: corrected p up to {most:.2g}."

    def advice(self) -> Iterator[Advice]:
        """Leave alone what stands out, until somebody has measured what it does."""
        found = self.found()
        if not found or any(stack.model for stack in self.stacks):
            return
        named = [these(dims) + (f" of the {stream}" if len(found) > 1 else "") for stream, dims in found.items()]
        yield Advice(
            "prune",
            f"Until it is measured what they do, leave {' and '.join(named)} alone when you prune or edit.",
            "they are outliers in many layers",
            tuple(
                about(self.provenance, "prune protect", "--export", "torch-pruning", dims=dims, stack=stream)
                for stream, dims in found.items()
            ),
            until=("Ablation", "Sweep"),
        )

    def sections(self, *, verbose: bool = False, named: Mapping[str, Sequence[int]] | None = None) -> Iterator[Section]:
        """For every surface, with a map of each stream; `named` are dimensions with a name there, by stream."""
        for one in super().sections(verbose=verbose):
            yield replace(one, drawn=partial(self._maps, named or {}))

    def _maps(self, named: Mapping[str, Sequence[int]]) -> tuple[Chart, ...]:
        streams, drawn = list(dict.fromkeys(stack.stack for stack in self.stacks)), list[Chart]()
        for stream in streams:
            sites = [stack for stack in self.stacks if stack.stack == stream]
            before = f"{streams.index(stream)}-" if stream != streams[0] else ""
            for number, stack in enumerate(sites):
                drawn += weight_maps(stack, named.get(stream), before + (f"{number}-" if number else ""))
        return tuple(drawn)

    def records(self, which: str = "") -> Iterator[dict[str, Any]]:
        """Flat rows of a table: those of outlier dimensions, of MLPs of neurons, unless `which` names another."""
        usual = "neurons" if self.mlps else "outliers"
        if which or getattr(self, usual):
            yield from super().records(which or usual)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Its tables; in short without what is the same in every row, and ranks are what rule luo is about."""
        if name in ("stacks", "mlps"):
            asked = f"{self.rule.name}, {self.rule.sigmas}, ≥ {percent(self.rule.min_layer_fraction)} of layers; "
            note = f"{asked}read {self.bytes_read:,} of {self.total_bytes:,} bytes ({self.source})."
        elif name == "outliers" and not verbose and len({(one.stack, one.site) for one in self.outliers}) == 1:
            rows = tuple(replace(one, stack="", site="") for one in self.outliers)
        return super().laid_out(name, rows, head, note, verbose=verbose or self.rule.name == "luo")


def _counted(dims: Sequence[int]) -> str:
    return f"{len(dims)} outlier dimension{'s' if len(dims) > 1 else ''}: {listed(dims)}" if dims else "none"


def scan_found(provenance: Provenance, stacks: Sequence[StackScan], **more: Any) -> Scan:
    """The finding of scanned streams; `more` are its other fields."""
    outliers = [
        WeightOutlier(
            model=stack.model, stack=stack.stack, site=stack.site, dim=one.dim, layers=stack.n_layers,
            layers_scale=len(one.layers_scale), layers_bias=len(one.layers_bias) if one.z_bias else None,
            z_scale=strongest(one.z_scale), z_bias=strongest(one.z_bias) if one.z_bias else None,
            rank_scale=float(np.median(one.rank_scale)),
            rank_bias=float(np.median(one.rank_bias)) if one.rank_bias else None, p=one.p, p_holm=one.p_holm,
        )
        for stack in stacks for one in stack.outliers
    ]  # fmt: skip
    named = [one.neuron for one in more.get("neurons", ())] or sorted({one.dim for one in outliers})
    alone = not any(
        one.model for one in (*stacks, *more.get("mlps", ()))
    )  # dimensions of several models are not one set
    about = About(
        stack=", ".join(dict.fromkeys(one.stack for one in (*stacks, *more.get("mlps", ())))),
        dims=tuple(map(str, named)) if alone else (), kind="neuron" if more.get("neurons") else "dimension",
    )  # fmt: skip
    return Scan(provenance=provenance, about=about, outliers=tuple(outliers), stacks=tuple(stacks), **more)


# --- how it is found -------------------------------------------------------------------------------------------------


def scan(model: "str | LoadedModel", options: ScanOptions | None = None, *, command: str = "") -> Scan:
    """Find outlier dimensions in the weights of `model`: a sample, directory, file or hub id, or a loaded model.

    Raises:
        UnknownModel, UnknownArchitecture, BadFile, Offline, RemoteError: see those.
        TooMuchToRead: the rule needs tensors of more than `max_read` bytes.
    """
    if not isinstance(model, str):
        return scan_live(model, options, command=command)
    options = options or ScanOptions()
    with opened(model, options) as checkpoint:
        return scan_checkpoint(checkpoint, options, command=command)


def scan_live(loaded: "LoadedModel", options: ScanOptions | None = None, *, command: str = "") -> Scan:
    """`scan` on the weights of a loaded model as they are now."""
    checkpoint = loaded.weights
    options = replace(options or ScanOptions(), max_read=checkpoint.total_bytes)  # nothing is read from anywhere
    return _scan_bound(checkpoint, loaded.stacks, options, command)


def scan_checkpoint(checkpoint: Checkpoint, options: ScanOptions, *, command: str = "") -> Scan:
    """`scan` on an open checkpoint."""
    return _scan_bound(checkpoint, arch.bound_stacks(checkpoint, options.row), options, command)


def _scan_bound(checkpoint: Checkpoint, bound: list[BoundStack], options: ScanOptions, command: str) -> Scan:
    neurons = arch.is_mlp(options.stack)
    bound = arch.streams_of(bound, options.stack, checkpoint.name)
    sites = [site for stack in bound for site in sites_of(stack, options.view)] if not neurons else []
    if not sites and not neurons:
        raise BadInput(f"{checkpoint.name}: its blocks declare no reading norms; use --rule view=last")
    check_size(checkpoint, sites, options)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    found = scan_sites(checkpoint, sites, options.rule, digest)
    mlps = [scan_mlps(checkpoint, stack, options, digest) for stack in bound] if neurons else []
    return scan_found(
        Provenance.now(checkpoint.name, digest.hexdigest(), command=command, adapter=checkpoint.adapter), found,
        rule=options.rule, view=options.view,
        neurons=tuple(sorted((one for _, large in mlps for one in large), key=lambda one: -one.times_median)),
        mlps=tuple(one for some, _ in mlps for one in some),
        model_type=str(checkpoint.config.get("model_type", "")), source=checkpoint.kind, bytes_read=checkpoint.bytes_read,
        total_bytes=checkpoint.total_bytes, notes=checkpoint.notes,
    )  # fmt: skip


def together(scans: Sequence[Scan]) -> Scan:
    """Scans of several models under one rule as one finding, whose rows name the model."""
    first, *others = scans
    if not others:
        return first
    parts = [(one, one.provenance.subject) for one in scans]
    digest = hashlib.sha256("".join(one.provenance.fingerprint for one in scans).encode())
    return scan_found(
        Provenance.now(", ".join(name for _, name in parts), digest.hexdigest()),
        [replace(each, model=name, notes=_of(each.notes, name)) for one, name in parts for each in one.stacks],
        neurons=tuple(replace(each, model=name) for one, name in parts for each in one.neurons),
        mlps=tuple(replace(each, model=name) for one, name in parts for each in one.mlps), rule=first.rule,
        view=first.view, source=", ".join(dict.fromkeys(one.source for one in scans)),
        bytes_read=sum(one.bytes_read for one in scans), total_bytes=sum(one.total_bytes for one in scans),
        notes=tuple(note for one, name in parts for note in _of(one.notes, name)),
    )  # fmt: skip


def _of(notes: tuple[str, ...], model: str) -> tuple[str, ...]:
    return tuple(f"{model}: {note}" for note in notes)


def run(session: "Session", call: ScanCall) -> "Scan | Definitions | None":
    """`scan`: models that cannot be scanned are told after what the others show; with --propose draft rows alone."""
    rule = replace(call.settings, name=RULES[0] if call.rule == "all" else call.rule)
    options = session.scanning(replace(call.scan, rule=rule))
    if call.propose:
        _propose(session, call.models, options)
        return None
    if call.rule == "all":
        from outlierlens.analyses.definitions import weights_definitions

        if len(call.models) > 1:
            raise BadInput("--rule all compares the definitions on one model; name one")
        with opened(call.models[0], options) as checkpoint:
            return weights_definitions(checkpoint, options)
    found, failed = list[Scan](), list[OutlierlensError]()
    for model in call.models:
        try:
            found.append(scan(model, options, command=session.command))
        except OutlierlensError as error:
            failed.append(error)
    session.then = partial(_raise, failed)
    if not found:
        _raise(failed)
    return together(found)


def _raise(failed: list[OutlierlensError]) -> None:
    for other in failed[:-1]:
        print(f"error: {one_line(str(other))}", file=sys.stderr)
    if failed:
        raise failed[-1]


def _propose(session: "Session", models: tuple[str, ...], options: ScanOptions) -> None:
    """Print draft rows, or write the one of one model to the file of --output."""
    from outlierlens.architectures.experiment.derive import derive  # which a scan does not need, and waits for

    family, output = session.loading.family, session.output.output
    if output and len(models) > 1:
        raise BadInput("--propose -o FILE writes the row of one model; name one, or leave out -o to print all")
    for model in models:
        with opened(model, options) as checkpoint:
            config = checkpoint.config
            if family is not None or not isinstance(config.get("model_type"), str):
                named = family or arch.families(checkpoint.tensors, config, checkpoint.name)[0]
                config = config | {"model_type": named}
            row = derive(config).toml
        if output:
            write_text(output, row)
        else:
            print(row, end="")


# --- the picture of a report -----------------------------------------------------------------------------------------


def weight_maps(stack: StackScan, named: Sequence[int] | None = None, prefix: str = "") -> tuple[Chart, ...]:
    """Layers × dimensions: one map of z for the scale and one for the bias where the stack has one.

    `named` are the dimensions with a name, the strongest first (the outliers found, unless given); `prefix` goes before the
    file names.
    """
    named = found_first(stack) if named is None else tuple(named)
    parts = {name: np.asarray(z, float) for name, z in (("scale", stack.z_scale), ("bias", stack.z_bias)) if z.size}
    return tuple(_weight_map(stack, part, parts, named, prefix) for part in parts)


def _weight_map(
    stack: StackScan, part: str, parts: dict[str, np.ndarray], named: tuple[int, ...], prefix: str
) -> Chart:
    z, dims = parts[part], np.array(stack.map_dims)  # [layer, column]
    other = next(((name, values) for name, values in parts.items() if name != part), None)
    shown = np.isin(dims, named)
    floor = dot_threshold(np.abs(z[:, ~shown]))

    def row(layer: int, column: int) -> Spec:
        value = round_to(z[layer, column], 3)
        values: Spec = {"layer": layer, "dim": int(dims[column]), "z": value, "size": abs(value or 0.0)}
        return values if other is None else values | {"other": round_to(other[1][layer, column], 3)}

    dots = [row(*cell) for cell in np.argwhere((np.abs(z) >= floor) & ~shown[None, :]).tolist()]
    marks = [
        row(layer, column)
        | {"name": label(int(dims[column])), "passes": bool(stack.threshold.passes(z[layer, column]))}
        for column in np.flatnonzero(shown).tolist()
        for layer in range(len(z))
    ]
    what = part if part == "bias" or stack.measure.startswith("scale") else "row norm"
    titles = {"layer": "layer", "dim": "dimension", "z": f"z of the {what}"}
    titles |= {} if other is None else {"other": f"z of the {other[0]}"}
    tooltip = draw.columns(**titles)
    counts = {dim: int(stack.threshold.passes(z[:, dims == dim]).sum()) for dim in sorted(named) if dim in dims}
    listed = ", ".join(f"{dim} in {n} of {stack.n_layers}" for dim, n in counts.items())
    reading = (
        f"Every dot is a dimension (across) whose {what} in a layer (down, layer 0 on top) is {floor:.2g} or more standard "
        "deviations from the layer's mean; larger dots are further away. "
    )
    reading += (
        f"Columns of marks are the named dimensions; layers at {stack.threshold.sigmas} or more (filled): {listed}."
        if counts
        else "No dimension is an outlier in enough layers."
    )
    return chart(
        name=f"{prefix}weights-{part}",
        title=f"{part.capitalize()} of every layer and dimension: {stack.site}"
        if what == part
        else f"Writes of every layer to every dimension: {stack.site}",
        reading=reading,
        layers=_map_layers(stack, dots, marks, named, tooltip),
        height=min(560, max(200, 14 * len(z))),
        **tooltip.table(sorted(dots + marks, key=lambda one: -float(one["size"] or 0.0))),
    )


def dot_threshold(size: np.ndarray) -> float:
    """The least |z| that is drawn: 2, or what keeps the number of dots within `MAX_DOTS` rounded up to a tenth."""
    flat = size.ravel()
    if (flat >= LOWEST_Z).sum() <= MAX_DOTS:
        return LOWEST_Z
    return math.ceil(float(np.partition(flat, -MAX_DOTS)[-MAX_DOTS]) * 10 + 1e-9) / 10


def found_first(stack: StackScan) -> tuple[int, ...]:
    """The dimensions found, for `looks`: of more than there are colours those of largest mean |z| first."""
    size = np.abs(drawable(stack.z_scale)).mean(axis=0)
    size = (size + np.abs(drawable(stack.z_bias)).mean(axis=0)) / 2 if stack.z_bias.size else size
    by_dim = dict(zip(stack.map_dims, size.tolist(), strict=True))
    return strongest_first(stack.dims, lambda dim: by_dim[dim])


def _map_layers(
    stack: StackScan, dots: list[Spec], marks: list[Spec], named: tuple[int, ...], tooltip: list[Spec]
) -> list[Spec]:
    scale = {"domain": [-0.7, stack.n_layers - 0.3], "reverse": True, "nice": False}
    y = field("layer", "layer", scale=scale, axis={"tickMinStep": 1, "format": "d", "grid": False})
    x = draw.dim_axis(stack.hidden_size)
    areas = {"type": "sqrt", "domain": [2, 20], "range": [10, 150], "clamp": True}
    size = {"field": "size", "type": "quantitative", "scale": areas, "legend": None}
    drawn = [dim for dim in named if any(mark["dim"] == dim for mark in marks)]
    shown = looks(named, drawn)
    colour, shape = draw.dim_colour(shown, legend=False), draw.dim_shape(shown, legend=False)
    at: Spec = {"x": x, "y": y, "size": size, "tooltip": tooltip}
    layers = [draw.circle(dots, **at, color=FAINT, opacity=0.75)]
    if not drawn:
        return layers
    fill = {"condition": colour | {"test": "datum.passes"}, "value": "transparent"}
    layers.append(draw.mark("point", marks, **at, shape=shape, stroke=colour, fill=fill, opacity=1))
    return layers + draw.names_above(drawn, stack.hidden_size, x)
