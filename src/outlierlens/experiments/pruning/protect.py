"""What other tools should leave alone, in the form that they read: `protect`.

made = protect("smollm2-135m", "llm-compressor")
made.text                                    # YAML for a recipe
made.modules, made.dims                      # what it names
protect("smollm2-135m", "awq", ProtectOptions(stack="mlp", dims={11: (1229,)}))      # a neuron

tool             form      what the tool reads
torch-pruning    Python    channels that its importance never gives up, and `ignored_layers` to keep the whole stream
llm-compressor   YAML      `ignore` of SparseGPTModifier, WandaPruningModifier, QuantizationModifier …
bitsandbytes     Python    `llm_int8_skip_modules` of transformers' BitsAndBytesConfig
awq              Python    `modules_to_not_convert` of AwqConfig, and scales of the channels for `apply_awq` of llm-awq

Names are read from the checkpoint's header; outliers come from the scan of its weights. Needs no torch.

Of an MLP's neurons, tools that name modules are told the last linears that read them; Torch-Pruning the channels of the linears
that make them; and awq a scale between both, which `repair` calls a pair.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from outlierlens import architectures as arch
from outlierlens.analyses.quantize import Quantized
from outlierlens.architectures import BoundStack, Neuron, is_mlp, mlp_axis, neurons_of, streams_of
from outlierlens.architectures.heads import PART
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.detection.scan.measure import scan_checkpoint
from outlierlens.detection.scan.neurons import first_linears, scan_neurons
from outlierlens.detection.scan.result import StackScan
from outlierlens.errors import BadInput, command, operand
from outlierlens.experiments.plan.result import PrecisionPlan
from outlierlens.experiments.plan.view import most_per_byte, verdict
from outlierlens.experiments.pruning.lists import Protection, ToolLists
from outlierlens.experiments.pruning.options import ProtectOptions, Tool, Which
from outlierlens.experiments.pruning.removal import Cells
from outlierlens.options import FIND
from outlierlens.results.document import Provenance, Result, load
from outlierlens.results.same_model import refuse_other_model
from outlierlens.view.words import number_of_layers, runs

TOOLS: tuple[Tool, ...] = get_args(Tool)
# Which linears read a norm's output, by the norm's and the linears' names in a block; only what is known is written.
READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("input_layernorm", ("attention.query_key_value",)),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
    ("self_attn_layer_norm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("final_layer_norm", ("fc1",)),
)
# The same where one norm feeds attention and MLP (Phi, Cohere, Falcon): to scale a part of its readers would change the model.
PARALLEL_READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.fc1")),
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")),
    ("input_layernorm", ("self_attention.query_key_value", "mlp.dense_h_to_4h")),
)
PRUNES = ("torch-pruning", "sparsegpt")


def protect(model: str, tool: Tool, options: ProtectOptions | None = None) -> Protection:
    """A protect-list for `tool`, ready to paste.

    Raises:
        BadInput: an unknown tool, layer or neuron, several streams and none named, no outlier to protect, or what was measured
            is of another model.
    """
    if tool not in TOOLS:
        raise BadInput(f"unknown tool {tool!r}; lists are written for {', '.join(TOOLS)}")
    options = options or ProtectOptions()
    found = None if options.measured is None else load(options.measured)
    said = None if found is None or options.measured is None else measured(found, options.measured)
    scan = options.scan
    with open_checkpoint(
        model, revision=scan.revision, subfolder=scan.subfolder, token=scan.token, offline=scan.offline
    ) as checkpoint:
        stored = Provenance(checkpoint.name, checkpoint.header_digest())
        again = command("plan", operand(model), "-o", "FILE")
        refuse_other_model(str(options.measured), found, [stored], f"measure this model: {again}")
        stacks = arch.stacks_for(checkpoint, options.scan.row)
        bound = arch.bind(stacks, checkpoint.tensors, checkpoint.config)
        if is_mlp(options.stack):
            (stream,) = streams_of(bound, options.stack, checkpoint.name)
            return _NeuronLists(checkpoint, options, stream).made(tool, said)
        return _Lists(checkpoint, options, bound).made(tool, said)


def measured(found: Result, path: Path) -> str:
    """What a saved plan or quantize says of what helps, in a line.

    Raises:
        BadInput: a result of another kind.
    """
    if isinstance(found, PrecisionPlan):
        best = most_per_byte(found)
        return f"measured: {verdict(found)}" + (f"; {best}" if best else "")
    if isinstance(found, Quantized):
        return f"measured: {found.verdict}"
    raise BadInput(f"{path}: holds no result of plan or quantize; write one with outlierlens plan MODEL -o FILE")


class _Lists(ToolLists):
    """The modules and channels of one stream."""

    whole = "To keep every position of the stream, so that MLPs and heads alone are pruned"

    def __init__(self, checkpoint: Checkpoint, options: ProtectOptions, bound: Sequence[BoundStack]):
        self.checkpoint, self.options = checkpoint, options
        chosen = [one for one in bound if options.stack in (None, one.name)]
        if len(chosen) != 1:
            known = ", ".join(one.name for one in bound)
            raise BadInput(f"{checkpoint.name}: which stream? --stack must be one of {known}")
        self.bound: BoundStack = chosen[0]
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        self.cells = Cells.of(self.bound, shapes, options.rule)
        scan = scan_checkpoint(checkpoint, options.scan)
        self.scan: StackScan = next(stack for stack in scan.stacks if stack.stack == self.bound.name)
        if isinstance(options.dims, Mapping):
            raise BadInput(
                "--dims names layers; write dimensions alone, such as 308,381, or add --stack mlp for neurons"
            )
        self.dims = self.scan.dims if options.dims == FIND else tuple(dict.fromkeys(map(int, options.dims)))
        if not self.dims:
            raise BadInput(f"{checkpoint.name}: the scan finds no outlier to protect; name positions with --dims")
        bad = [dim for dim in self.dims if not 0 <= dim < self.cells.width]
        if bad:
            raise BadInput(f"dimension {bad[0]} does not exist; there are 0 to {self.cells.width - 1}")

    def named(self, tool: Tool) -> tuple[tuple[str, ...], tuple[int, ...], list[str]]:
        """(modules, layers, what to know) of the list."""
        chosen = self.options.layers or ("enough" if tool in PRUNES else "flagged")
        if tool == "torch-pruning":
            chosen = "all"  # channels of the stream go from every layer together
        layers = self.layers(chosen)
        modules = tuple(name for layer in layers for name in self.writers(layer))
        notes = [self._about(tool, chosen, layers)]
        if self.bound.ends_in_norm and tool != "torch-pruning":
            safe = ": the constraint cannot break by it" if tool in PRUNES else ""
            notes.append(
                f"blocks here end in a norm, and this tool leaves norms alone{safe}; the modules are the linears before "
                "those norms"
            )
        return modules, layers, notes

    def keep(self, modules: tuple[str, ...]) -> dict[str, list[int]]:
        """Of each module the channels that pruning must not give up."""
        return {name: sorted(self.dims) for name in modules}

    def layers(self, chosen: Which | tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of `cells`, ascending: of layers, but that layers which run one block count once.

        Raises:
            BadInput: a layer that does not exist, or some alone of the layers that run one block.
        """
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

    def writers(self, layer: int) -> tuple[str, ...]:
        """Modules that write last in a layer, as the checkpoint names them."""
        if not self.bound.ends_in_norm:
            found = [param.name.removesuffix(".weight") for param in self.bound.scale[self.bound.weight_layers[layer]]]
        else:
            block = self.bound.blocks[self.bound.weight_layers[layer]]
            names = [f"{block}.{module.removesuffix('()')}" for module in self.bound.stack.last_linear]
            found = [
                name for name in names if f"{name}.weight" in self.checkpoint.tensors or name in self.checkpoint.tensors
            ]
        return tuple(found)

    def _about(self, tool: Tool, chosen: Which | tuple[int, ...], layers: tuple[int, ...]) -> str:
        n_layers, limit = self.cells.n_layers, self.cells.limit
        left = n_layers - len(layers)
        which = chosen if isinstance(chosen, str) else "given"
        about = f"positions {', '.join(map(str, self.dims))}; {len(layers)} of {number_of_layers(n_layers)} ({which})"
        if tool not in PRUNES:
            return f"{about} are protected"
        if left < limit:
            holds = f"cannot remove a position in {limit} or more, so the constraint holds whatever is pruned"
        else:
            holds = f"could still remove a position in {limit} or more; check what comes out"
        return f"{about}: pruning the other {left} {holds}"

    unscaled = (
        "which linears read which norm is known here for pre-norm blocks named as in Llama, OPT and GPT-NeoX, whose norms "
        "multiply by their weight"
    )

    @property
    def width(self) -> int:
        """Channels of what is scaled."""
        return self.cells.width

    def scaled(self, layers: Sequence[int]) -> list[tuple[str, list[str], list[int]]]:
        """(what feeds, linears that read it, channels) of the layers: norms, where that is known; [] elsewhere."""
        if self.bound.ends_in_norm or self.bound.stack.norm_offset:
            return []
        names, found = self.checkpoint.tensors, []
        norms = self.bound.stack.reading_norms
        known = PARALLEL_READERS if len(norms) == 1 else READERS
        for layer in layers:
            block = self.bound.blocks[self.bound.weight_layers[layer]]
            for norm, linears in known:
                parts = [f"{block}.{norm}", *(f"{block}.{linear}" for linear in linears)]
                stored = [names.get(f"{part}.weight") for part in parts]
                fits = all(one is not None for one in stored) and norm in norms
                if fits and all(one.shape[-1] == self.cells.width for one in stored if one is not None):
                    found.append((parts[0], parts[1:], sorted(self.dims)))
        return found


class _NeuronLists(ToolLists):
    """The same of neurons of a stream's MLPs."""

    whole = "To keep every neuron of these blocks"
    unscaled = "which linear's outputs multiply what the last one reads is known here for gated MLPs"

    def __init__(self, checkpoint: Checkpoint, options: ProtectOptions, bound: BoundStack):
        self.checkpoint, self.options, self.bound, self.dims = checkpoint, options, bound, ()
        self.axis = mlp_axis(bound, options.stack or "")
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

    @property
    def width(self) -> int:
        """Neurons of a block."""
        (param,) = self.axis.scale[0]
        return self.checkpoint.tensors[param.name].shape[param.axis]

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
        for one in self.neurons:
            for name in self._first(one.layer):
                n_outputs = self.checkpoint.tensors[f"{name}.weight"].shape[self.bound.stack.weight_is_in_by_out]
                found.setdefault(name, []).extend(range(one.neuron, n_outputs, self.width))
        return found

    def scaled(self, layers: Sequence[int]) -> list[tuple[str, list[str], list[int]]]:
        """(up projection, last linear, neurons), where the family's row says that the one multiplies what the other reads."""
        found = []
        for layer in layers:
            block, last = self.bound.blocks[layer], self.axis.reads[layer]
            first = self.bound.stack.neurons.get(last.removeprefix(f"{block}."), "")
            match = PART.fullmatch(first)
            name = f"{block}.{first.partition('[')[0]}"
            # llm-awq divides the last rows: a half that is no last one has no scale there.
            if match and match["part"] in (None, "1") and f"{name}.weight" in self.checkpoint.tensors:
                found.append((name, [last], [one.neuron for one in self.neurons if one.layer == layer]))
        return found

    def _first(self, layer: int) -> list[str]:
        weight = f"{self.axis.reads[layer]}.weight"
        return [name.removesuffix(".weight") for name in first_linears(self.checkpoint, self.bound, layer, weight)]
