"""What other tools should leave alone, in the form that they read: `prune protect`.

    made = protect("smollm2-135m", "llm-compressor")
    made.text                                    # YAML for a recipe
    made.modules, made.dims                      # what it names
    protect("smollm2-135m", "awq", ProtectOptions(stack="mlp", dims={11: (1229,)}))      # a neuron

tool             form      what the tool reads
torch-pruning    Python    channels that its importance never gives up, and `ignored_layers` to keep the whole stream
sparsegpt        YAML      `ignore` of llm-compressor's SparseGPTModifier, WandaPruningModifier …
llm-compressor   YAML      `ignore` of its QuantizationModifier …
bitsandbytes     Python    `llm_int8_skip_modules` of transformers' BitsAndBytesConfig
awq              Python    `modules_to_not_convert` of AwqConfig, and scales of the channels for `apply_awq` of llm-awq

Names are read from the checkpoint's header; outliers come from the scan of its weights. Needs no torch.

Of an MLP's neurons, tools that name modules are told the last linears that read them; Torch-Pruning the channels of the linears
that make them; and awq a scale between both, which `repair` calls a pair.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Annotated, Literal, get_args

from annotated_types import Gt, Lt

import outlierlens.architectures as arch
from outlierlens.ablation.switches import Dims
from outlierlens.analyses.prune_cells import Cells, Removal
from outlierlens.architectures import BoundStack, Neuron, is_mlp, mlp_axis, neurons_of, streams_of
from outlierlens.architectures.stack import PART
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.scan.measure import ScanOptions, scan_checkpoint
from outlierlens.detection.scan.neurons import first_linears, scan_neurons
from outlierlens.detection.scan.result import StackScan
from outlierlens.errors import BadInput, command, comment, literal, operand, printable
from outlierlens.experiments import BY_RESULT
from outlierlens.options import FIND, Find, Flag, Flat, check, parse_layers
from outlierlens.results.document import Provenance, load, refuse_other_model
from outlierlens.results.safe_files import write_text
from outlierlens.session import Session
from outlierlens.view.section import number_of_layers, runs

Tool = Literal["torch-pruning", "sparsegpt", "llm-compressor", "bitsandbytes", "awq"]
Which = Literal["enough", "flagged", "all"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
PRUNES = ("torch-pruning", "sparsegpt")
MEASURES = ("PrecisionPlan", "Quantized")  # kinds of results that say what helps
AWQ_FACTOR = 2.0  # Lin et al. (2023), table 2: the best factor for the salient 1 % of channels

# --- what each tool reads ------------------------------------------------------------------------------------------

# {tool: (what the list is of, its text)}. https://docs.vllm.ai/projects/llm-compressor: recipes of one modifier.
RECIPE = """\
# oneshot(model=…, recipe=this file); the settings above `ignore` are yours.
%s_stage:
  %s_modifiers:
    %s:
      %s
      targets: ["Linear"]
      ignore:
$ignore
"""
FORMS: dict[Tool, tuple[str, str]] = {
    "torch-pruning": ("channels that Torch-Pruning should keep", '''\
import torch_pruning as tp

KEEP = $keep


def module_of(model, name):
    """The module of that name, also where a head's prefix stands before it here or there."""
    for path, module in model.named_modules():
        if path and (path == name or path.endswith("." + name) or name.endswith("." + path)):
            return module
    raise KeyError(name)


class KeepPositions(tp.importance.Importance):
    """Another importance, in which the protected positions of the stream come last."""

    def __init__(self, importance, model):
        self.importance = importance
        self.keep = {module_of(model, name): set(dims) for name, dims in KEEP.items()}

    def __call__(self, group):
        scores = self.importance(group)
        if scores is None:
            return None
        for place, (dependency, channels) in enumerate(group):
            kept = self.keep.get(dependency.target.module, ())
            if kept and dependency.handler is not tp.prune_linear_in_channels:
                for channel, root in zip(channels, group[place].root_idxs):
                    if channel in kept:
                        scores[root] = float("inf")
        return scores


# importance = KeepPositions(tp.importance.MagnitudeImportance(), model)
# pruner = tp.pruner.BasePruner(model, example_inputs, importance=importance, ...)
# $whole:
# ignored_layers = [module_of(model, name) for name in KEEP]
'''),
    "sparsegpt": (
        "modules that llm-compressor should ignore",
        RECIPE % ("sparsity", "sparsity", "SparseGPTModifier", 'sparsity: 0.5\n      mask_structure: "0:0"'),
    ),
    "llm-compressor": (
        "modules that llm-compressor should ignore",
        RECIPE % ("quantization", "quantization", "QuantizationModifier", "scheme: W8A8"),
    ),
    "bitsandbytes": ("modules that bitsandbytes should leave in high precision", """\
from transformers import BitsAndBytesConfig

llm_int8_skip_modules = $skip

config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=llm_int8_skip_modules)
# AutoModelForCausalLM.from_pretrained(..., quantization_config=config)
"""),
    "awq": ("modules that AWQ should leave in high precision", """\
from transformers import AwqConfig

modules_to_not_convert = $skip

config = AwqConfig(bits=4, modules_to_not_convert=modules_to_not_convert)
"""),
}  # fmt: skip
SCALES = """
# Scales for llm-awq: apply_awq(model, awq_results), or torch.save(awq_results, file) for --load_awq.
import torch

SCALED = $scaled
awq_results = {"scale": [], "clip": []}
for feeds, readers, channels in SCALED:
    scales = torch.ones($width)
    scales[channels] = $factor
    awq_results["scale"].append((feeds, tuple(readers), scales))
"""
# Which linears read a norm's output, by the norm's and the linears' names in a block; only what is known is written.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_layernorm", QKV),
    ("input_layernorm", ("attention.query_key_value",)),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
    ("self_attn_layer_norm", QKV),
    ("final_layer_norm", ("fc1",)),
)
# The same where one norm feeds attention and MLP (Phi, Cohere, Falcon): to scale a part of its readers would change the model.
PARALLEL_READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_layernorm", (*QKV, "mlp.fc1")),
    ("input_layernorm", (*QKV, "mlp.gate_proj", "mlp.up_proj")),
    ("input_layernorm", ("self_attention.query_key_value", "mlp.dense_h_to_4h")),
)

# --- options and result --------------------------------------------------------------------------------------------


def parse_which(text: str) -> Which | tuple[int, ...]:
    """ "enough", "flagged", "all", or "0-3,7" -> (0, 1, 2, 3, 7)."""
    return next((word for word in get_args(Which) if word == text), None) or parse_layers(text)


@dataclass(frozen=True, kw_only=True)
class ProtectOptions:
    """What to protect."""

    dims: Annotated[Dims | Find, Flag(read="options:planned_dims", words=FIND)] = FIND
    """The outliers: 308,381; of --stack mlp neurons: 11:1229,2:90; find: what scan finds in the weights."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs."""
    layers: Annotated[Which | tuple[int, ...] | None, Flag(read="analyses.prune_lists:parse_which")] = None
    """enough (the fewest that keep the constraint whatever else is pruned), flagged (where the scan finds outliers), all, or
    0-3,7. Default: enough for pruners, flagged for quantizers."""
    rule: Annotated[Removal, Flat("min_layer_fraction")] = Removal()
    """The constraint that "enough" is about."""
    measured: Path | None = None
    """A saved result of plan or quantize of this model: the list begins with what it says helps most, or that nothing does."""
    factor: Annotated[float, Gt(0), Lt(float("inf"))] = AWQ_FACTOR
    """awq: by which weights of a protected channel grow."""
    scan: Annotated[ScanOptions, Flat("max_read")] = field(default_factory=ScanOptions)
    """How the model is opened and outliers found."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class ProtectCall(ProtectOptions):
    """What the command protects, and from which tool."""

    tool: Annotated[Tool, Flag("--for")]
    """The tool that reads the list."""


@dataclass(frozen=True)
class Protection:
    """A protect-list to paste, `text`.

    `modules` and `dims`, or `neurons`, are what it names, `layers` where, `notes` what to know.
    """

    tool: Tool
    text: str
    modules: tuple[str, ...]
    dims: tuple[int, ...]
    layers: tuple[int, ...]
    notes: tuple[str, ...]
    neurons: tuple[str, ...] = ()


def protect(model: str, tool: Tool, options: ProtectOptions | None = None) -> Protection:
    """A protect-list for `tool`, ready to paste.

    Raises:
        BadInput: an unknown tool, layer or neuron, several streams and none named, no outlier to protect, or what was measured
            is of another model.
    """
    if tool not in TOOLS:
        raise BadInput(f"unknown tool {tool!r}; lists are written for {', '.join(TOOLS)}")
    options = options or ProtectOptions()
    scan = options.scan
    with open_checkpoint(
        model, revision=scan.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    ) as checkpoint:
        measured = _measured(options.measured, checkpoint, model) if options.measured else (
            "what this gives back was not measured: outlierlens plan measures what helps most per byte"
        )  # fmt: skip
        bound = arch.bind(arch.stacks_for(checkpoint, scan.row), checkpoint.tensors, checkpoint.config)
        if is_mlp(options.stack):
            (stream,) = streams_of(bound, options.stack, checkpoint.name)
            return _written(_Neurons(checkpoint, options, stream), tool, measured)
        return _written(_Positions(checkpoint, options, bound), tool, measured)


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


def _measured(path: Path, checkpoint: Checkpoint, model: str) -> str:
    """What a saved plan or quantize says of what helps, in a line."""
    found = load(path)
    kind = type(found).__name__
    if kind not in MEASURES:
        raise BadInput(f"{path}: holds no result of plan or quantize; write one with outlierlens plan MODEL -o FILE")
    stored = Provenance(checkpoint.name, checkpoint.header_digest())
    refuse_other_model(
        str(path), found, [stored], f"measure this model: {command('plan', operand(model), '-o', 'FILE')}"
    )
    first, *others = next(iter(BY_RESULT[kind].sections()(found))).sentences
    return " ".join(("measured:", first, *(one for one in others if "most per byte" in one)))


def _written(wanted: "_Positions | _Neurons", tool: Tool, measured: str) -> Protection:
    """The list for one tool."""
    modules, layers, notes = wanted.named(tool)
    notes.append(measured)
    what, form = FORMS[tool]
    bound, scaled = wanted.bound, list(wanted.scaled(layers)) if tool == "awq" else []
    told = [name.removeprefix(bound.prefix) for name in ("lm_head", *modules)]
    if tool == "torch-pruning":
        if wanted.dims:
            notes[0] = f"positions {', '.join(map(str, wanted.dims))} of the residual stream, which goes as a whole"
        if bound.stack.weight_is_in_by_out:
            notes.append("linears here are Conv1D modules, which Torch-Pruning prunes only with a pruner of your own")
    if tool == "bitsandbytes":
        notes.append("a name given here replaces the default, which leaves the head out; it is named again")
    if tool == "awq" and not scaled:
        notes.append(f"no scales: {wanted.unscaled}")
    if scaled:
        what, form = "modules and channels that AWQ should spare", form + SCALES
        notes.append(
            f"scales: a channel's weights grow by {wanted.options.factor:g} and what feeds it shrinks by as much, which "
            "changes nothing before quantization"
        )
    head = "\n".join(map(comment, (f"outlierlens: {what} of {wanted.checkpoint.name}", *notes)))
    kept = wanted.keep(modules) if tool == "torch-pruning" else {}
    keep = "".join(f"    {literal(name)}: {literal(dims)},\n" for name, dims in kept.items())
    text = Template(f"$head\n{form}").substitute(
        head=head, whole=wanted.whole, keep=f"{{\n{keep}}}", skip=literal(told, indent=4), scaled=literal(scaled, indent=4),
        ignore="\n".join(f"        - {literal(f're:.*{re.escape(name)}$')}" for name in told), width=wanted.width,
        factor=repr(wanted.options.factor),
    )  # fmt: skip
    return Protection(tool, text, modules, wanted.dims, layers, tuple(notes), tuple(map(str, wanted.neurons)))


# --- what is protected ---------------------------------------------------------------------------------------------

Scaled = tuple[str, list[str], list[int]]  # what feeds, linears that read it, channels


class _Positions:
    """Positions of one stream."""

    whole = "To keep every position of the stream, so that MLPs and heads alone are pruned"
    unscaled = (
        "which linears read which norm is known here for pre-norm blocks named as in Llama, OPT and GPT-NeoX, whose norms "
        "multiply by their weight"
    )
    neurons: tuple[Neuron, ...] = ()

    def __init__(self, checkpoint: Checkpoint, options: ProtectOptions, bound: Sequence[BoundStack]):
        self.checkpoint, self.options = checkpoint, options
        chosen = [one for one in bound if options.stack in (None, one.name)]
        if len(chosen) != 1:
            known = ", ".join(one.name for one in bound)
            raise BadInput(f"{checkpoint.name}: which stream? --stack must be one of {known}")
        self.bound: BoundStack = chosen[0]
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        self.cells = Cells.of(self.bound, shapes, options.rule)
        self.width = self.cells.width
        scan = scan_checkpoint(checkpoint, options.scan)
        self.scan: StackScan = next(stack for stack in scan.stacks if stack.stack == self.bound.name)
        if isinstance(options.dims, Mapping):
            raise BadInput(
                "--dims names layers; write dimensions alone, such as 308,381, or add --stack mlp for neurons"
            )
        self.dims = self.scan.dims if options.dims == FIND else self.cells.checked(tuple(map(int, options.dims)))
        if not self.dims:
            raise BadInput(f"{checkpoint.name}: the scan finds no outlier to protect; name positions with --dims")

    def named(self, tool: Tool) -> tuple[tuple[str, ...], tuple[int, ...], list[str]]:
        """(modules, layers, what to know) of the list."""
        chosen = self.options.layers or ("enough" if tool in PRUNES else "flagged")
        if tool == "torch-pruning":
            chosen = "all"  # channels of the stream go from every layer together
        layers = self._layers(chosen)
        notes = [self._about(tool, chosen, layers)]
        if self.bound.ends_in_norm and tool != "torch-pruning":
            safe = ": the constraint cannot break by it" if tool in PRUNES else ""
            notes.append(
                f"blocks here end in a norm, and this tool leaves norms alone{safe}; the modules are the linears before "
                "those norms"
            )
        return tuple(name for layer in layers for name in self._writers(layer)), layers, notes

    def keep(self, modules: tuple[str, ...]) -> dict[str, list[int]]:
        """Of each module the channels that pruning must not give up."""
        return {name: sorted(self.dims) for name in modules}

    def _layers(self, chosen: Which | tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of `cells`, ascending: of layers, but that layers which run one block count once."""
        n_layers = self.cells.n_layers
        if not isinstance(chosen, str):
            bad = [layer for layer in chosen if not 0 <= layer < self.bound.n_layers]
            if bad:
                raise BadInput(f"layer {bad[0]} does not exist; there are 0 to {self.bound.n_layers - 1}")
            given = [set(layers) & set(chosen) for layers in self.bound.block_layers]
            for layers, some in zip(self.bound.block_layers, given, strict=True):
                if some and some != set(layers):
                    raise BadInput(f"layers {runs(layers)} run one block, which is spared as a whole; name all of them")
            return tuple(number for number, some in enumerate(given) if some)
        if chosen == "all":
            return tuple(range(n_layers))
        known = {outlier.dim: outlier for outlier in self.scan.outliers}
        flagged = {layer for dim in self.dims if dim in known for layer in known[dim].layers_scale}
        if chosen == "flagged" and flagged:
            return tuple(sorted(flagged))
        columns = [self.scan.map_dims.index(dim) for dim in self.dims if dim in self.scan.map_dims]
        strength = abs(self.scan.z_scale[:, columns]).max(axis=1) if columns else [0.0] * n_layers
        order = sorted(range(n_layers), key=lambda layer: (-strength[layer], layer))
        return tuple(sorted(order[: n_layers - self.cells.limit + 1]))

    def _writers(self, layer: int) -> list[str]:
        """Modules that write last in a layer, as the checkpoint names them."""
        place = self.bound.weight_layers[layer]
        if not self.bound.ends_in_norm:
            return [param.name.removesuffix(".weight") for param in self.bound.scale[place]]
        names = [f"{self.bound.blocks[place]}.{one.removesuffix('()')}" for one in self.bound.stack.last_linear]
        return [one for one in names if f"{one}.weight" in self.checkpoint.tensors or one in self.checkpoint.tensors]

    def _about(self, tool: Tool, chosen: Which | tuple[int, ...], layers: tuple[int, ...]) -> str:
        n_layers, limit = self.cells.n_layers, self.cells.limit
        left = n_layers - len(layers)
        which = chosen if isinstance(chosen, str) else "given"
        about = f"positions {', '.join(map(str, self.dims))}; {len(layers)} of {number_of_layers(n_layers)} ({which})"
        if tool not in PRUNES:
            return f"{about} are protected"
        holds = f"could still remove a position in {limit} or more; check what comes out"
        if left < limit:
            holds = f"cannot remove a position in {limit} or more, so the constraint holds whatever is pruned"
        return f"{about}: pruning the other {left} {holds}"

    def scaled(self, layers: Sequence[int]) -> Iterator[Scaled]:
        """Norms with what reads them, where that is known."""
        if self.bound.ends_in_norm or self.bound.stack.norm_offset:
            return
        norms = self.bound.stack.reading_norms
        for layer in layers:
            block = self.bound.blocks[self.bound.weight_layers[layer]]
            for norm, linears in PARALLEL_READERS if len(norms) == 1 else READERS:
                first, *readers = (f"{block}.{name}" for name in (norm, *linears))
                stored = [self.checkpoint.tensors.get(f"{name}.weight") for name in (first, *readers)]
                if norm in norms and all(one is not None and one.shape[-1] == self.width for one in stored):
                    yield first, readers, sorted(self.dims)


class _Neurons:
    """Neurons of a stream's MLPs."""

    whole = "To keep every neuron of these blocks"
    unscaled = "which linear's outputs multiply what the last one reads is known here for gated MLPs"
    dims: tuple[int, ...] = ()

    def __init__(self, checkpoint: Checkpoint, options: ProtectOptions, bound: BoundStack):
        self.checkpoint, self.options, self.bound = checkpoint, options, bound
        self.axis = mlp_axis(bound, options.stack or "")
        (param,) = self.axis.scale[0]
        self.width = checkpoint.tensors[param.name].shape[param.axis]  # neurons of a block
        if options.layers is not None:
            raise BadInput("--layers is of dimensions; neurons are named with their block: leave it out")
        if options.dims == FIND:
            found = scan_neurons(checkpoint, bound, hashlib.sha256(), self.axis.name).found
            self.neurons = tuple(sorted(Neuron.parse(one.neuron) for one in found))
        elif isinstance(options.dims, Mapping):
            self.neurons = neurons_of(options.dims)
        else:
            raise BadInput("neurons are named with their block: --dims 11:1229")
        if not self.neurons:
            raise BadInput(f"{checkpoint.name}: the scan finds no neuron to protect; name some with --dims 11:1229")
        for one in self.neurons:
            if one.layer >= bound.n_layers or one.neuron >= self.width:
                raise BadInput(
                    f"neuron {one} does not exist; there are {bound.n_layers} blocks of {self.width:,} neurons, from 0"
                )

    def named(self, tool: Tool) -> tuple[tuple[str, ...], tuple[int, ...], list[str]]:
        """The last linears that read the neurons; of Torch-Pruning the linears that make them."""
        layers = tuple(dict.fromkeys(one.layer for one in self.neurons))
        said = f"neurons {', '.join(map(str, self.neurons))} of {number_of_layers(len(layers))}"
        if tool == "torch-pruning":
            return tuple(name for layer in layers for name in self._first(layer)), layers, [said]
        last = tuple(self.axis.reads[layer] for layer in layers)
        return last, layers, [f"{said}; this tool is told whole linears, so each keeps all that its last linear reads"]

    def keep(self, modules: tuple[str, ...]) -> dict[str, list[int]]:
        """The neurons as outputs of what makes them: gate and up, one after the other where one linear is both."""
        found: dict[str, list[int]] = {}
        for name, neuron in ((name, one.neuron) for one in self.neurons for name in self._first(one.layer)):
            n_outputs = self.checkpoint.tensors[f"{name}.weight"].shape[self.bound.stack.weight_is_in_by_out]
            found.setdefault(name, []).extend(range(neuron, n_outputs, self.width))
        return found

    def scaled(self, layers: Sequence[int]) -> Iterator[Scaled]:
        """(up projection, last linear, neurons), where the family's row says that the one multiplies what the other reads."""
        for layer in layers:
            block, last = self.bound.blocks[layer], self.axis.reads[layer]
            first = self.bound.stack.neurons.get(last.removeprefix(f"{block}."), "")
            match = PART.fullmatch(first)
            name = f"{block}.{first.partition('[')[0]}"
            # llm-awq divides the last rows: a half that is no last one has no scale there.
            if match and match["part"] in (None, "1") and f"{name}.weight" in self.checkpoint.tensors:
                yield name, [last], [one.neuron for one in self.neurons if one.layer == layer]

    def _first(self, layer: int) -> list[str]:
        weight = f"{self.axis.reads[layer]}.weight"
        return [name.removesuffix(".weight") for name in first_linears(self.checkpoint, self.bound, layer, weight)]
