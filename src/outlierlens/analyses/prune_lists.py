"""What pruners should leave alone, in the form that they read: `prune protect`.

    made = protect("smollm2-135m", "sparsegpt")
    made.text                                    # YAML for a recipe
    made.modules, made.dims                      # what it names

The forms are rows of `plan_exports.TOOLS`. Names are read from the checkpoint's header; outliers come from the scan of its
weights. Needs no torch.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from string import Template
from typing import Annotated, Literal

import outlierlens.architectures as arch
from outlierlens.analyses.plan_exports import TOOLS, tool_named
from outlierlens.analyses.prune_guard import Cells, Removal
from outlierlens.analyses.scan import scan_checkpoint
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.weights import ScanOptions, StackScan, opened
from outlierlens.errors import BadInput, comment, literal, printable
from outlierlens.options import FIND, DimsOrFind, Flag, Flat, Options
from outlierlens.results.safe_files import write_text
from outlierlens.session import Session
from outlierlens.view.section import number_of_layers

Tool = Literal["torch-pruning", "sparsegpt"]
WHOLE = "torch-pruning"  # channels of the stream go from every layer together


@dataclass(frozen=True, kw_only=True)
class ProtectOptions(Options):
    """What to protect."""

    dims: DimsOrFind = FIND
    """The outliers: 308,381; find: those that scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    layers: Literal["enough", "all"] = "enough"
    """enough (the fewest that keep the constraint whatever else is pruned), or all."""
    rule: Annotated[Removal, Flat("min_layer_fraction")] = Removal()
    """The constraint that "enough" is about."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How the model is opened and outliers found."""


@dataclass(frozen=True, kw_only=True)
class ProtectCall(ProtectOptions):
    """What the command protects, and from which tool."""

    tool: Annotated[Tool, Flag("--export")]
    """The tool that reads the list."""


@dataclass(frozen=True)
class Protection:
    """A protect-list to paste, `text`.

    `modules` and `dims` are what it names, `layers` where, `notes` what to know.
    """

    tool: Tool
    text: str
    modules: tuple[str, ...]
    dims: tuple[int, ...]
    layers: tuple[int, ...]
    notes: tuple[str, ...]


def protect(model: str, tool: Tool, options: ProtectOptions | None = None) -> Protection:
    """A protect-list for `tool`, ready to paste.

    Raises:
        BadInput: an unknown tool, several streams and none named, or no outlier to protect.
    """
    form = Template(f"$head\n{tool_named(tool, 'spares').spares}")
    options = options or ProtectOptions()
    scan = options.scan
    with opened(model, scan) as checkpoint:
        bound = arch.bound_stacks(checkpoint, scan.row)
        stream, *others = arch.streams_of(bound, options.stack, checkpoint.name)
        if others:
            raise BadInput(
                f"{checkpoint.name}: which stream? --stack must be one of {', '.join(b.name for b in bound)}"
            )
        cells = Cells.of(stream, {name: info.shape for name, info in checkpoint.tensors.items()}, options.rule)
        found = next(one for one in scan_checkpoint(checkpoint, scan).stacks if one.stack == stream.name)
        dims = found.dims if options.dims == FIND else cells.checked(options.dims)
        if not dims:
            raise BadInput(f"{checkpoint.name}: the scan finds no outlier to protect; name positions with --dims")
        which = "all" if tool == WHOLE else options.layers
        layers = _layers(which, cells, found, dims)
        modules = tuple(name for layer in layers for name in _writers(checkpoint, stream, layer))
    notes = (*checkpoint.notes, *_notes(tool, which, cells, (dims, layers)))
    what = f"what {TOOLS[tool].title} should leave alone in {checkpoint.name}"
    told = [name.removeprefix(stream.prefix) for name in ("lm_head", *modules)]
    keep = {name: sorted(dims) for name in modules}
    text = form.substitute(
        head="\n".join(map(comment, (f"outlierlens: {what}", *notes))),
        keep="{\n" + "".join(f"    {literal(name)}: {literal(kept)},\n" for name, kept in keep.items()) + "}",
        ignore="\n".join(f"        - {literal(f're:.*{re.escape(name)}$')}" for name in told),
    )  # fmt: skip
    return Protection(tool, text, modules, dims, layers, notes)


def run(session: Session, options: ProtectCall) -> None:
    """`prune protect`: what it finds is a text for another tool, so that text is what it prints or writes."""
    output = session.output
    scan = session.scanning(max_read=options.scan.max_read)
    made = protect(session.subject.model, options.tool, replace(options, scan=scan))
    said = made.text.removesuffix("\n")
    if output.output is not None:
        write_text(output.output, made.text)
        about = f"{output.output}: {len(made.modules)} modules of {number_of_layers(len(made.layers))}"
        said = "\n".join(printable(line) for line in (about, *(f"note: {note}" for note in made.notes)))
    if not output.quiet:
        print(said)


def _layers(which: str, cells: Cells, scan: StackScan, dims: tuple[int, ...]) -> tuple[int, ...]:
    """All layers, or as many as it takes, those first where the positions stand out most; shared blocks count once."""
    if which == "all":
        return tuple(range(cells.n_layers))
    columns = [scan.map_dims.index(dim) for dim in dims if dim in scan.map_dims]
    strength = abs(scan.z_scale[:, columns]).max(axis=1) if columns else [0.0] * cells.n_layers
    order = sorted(range(cells.n_layers), key=lambda layer: (-strength[layer], layer))
    return tuple(sorted(order[: cells.n_layers - cells.limit + 1]))


def _writers(checkpoint: Checkpoint, bound: BoundStack, layer: int) -> list[str]:
    """Modules that write last in a layer, as the checkpoint names them."""
    place = bound.weight_layers[layer]
    if not bound.ends_in_norm:
        return [param.name.removesuffix(".weight") for param in bound.scale[place]]
    names = [f"{bound.blocks[place]}.{one.removesuffix('()')}" for one in bound.stack.last_linear]
    return [one for one in names if f"{one}.weight" in checkpoint.tensors or one in checkpoint.tensors]


def _notes(tool: Tool, which: str, cells: Cells, named: tuple[tuple[int, ...], tuple[int, ...]]) -> Iterator[str]:
    """What to know of a list of these (positions, layers)."""
    dims, n_layers, limit = ", ".join(map(str, named[0])), cells.n_layers, cells.limit
    left = n_layers - len(named[1])
    about = f"positions {dims}; {len(named[1])} of {number_of_layers(n_layers)} ({which})"
    if tool == WHOLE:
        yield f"positions {dims} of the residual stream, which goes as a whole"
        if cells.bound.stack.weight_is_in_by_out:
            yield "linears here are Conv1D modules, which Torch-Pruning prunes only with a pruner of your own"
        return
    if left < limit:
        yield f"{about}: pruning the other {left} cannot break the constraint: a position goes in fewer than {limit}"
    else:
        yield f"{about}: pruning the other {left} could still remove a position in {limit} or more; check the result"
    if cells.bound.ends_in_norm:
        yield "blocks here end in a norm, which this tool leaves alone; the modules are the linears before those norms"
