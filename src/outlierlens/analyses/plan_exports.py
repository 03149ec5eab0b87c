"""The table of tools that quantize and prune, and a plan in the words of one of them.

    target = target_of(loaded)
    text, remarks = export("llm-compressor", found.kept, scheme=parse("int8-tensor/int8-tensor"), target=target)
    tool_named("sparsegpt", "spares").spares      # the form of a list of what a pruner should leave alone: `prune protect`

Each row says what its tool calls a scheme, and writes the file in the form that the documentation linked above it gives. Where
a tool cannot keep the inputs of a linear apart from its weights, the whole linear stays as it is, and a remark says so; files
that have comments carry it.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from outlierlens.analyses.quantize_places import find_places
from outlierlens.analyses.quantize_rounding import KeptLinear
from outlierlens.analyses.quantize_schemes import FINE, GGUF, LEVELS, Scheme, SchemePair, parse
from outlierlens.architectures import family_of
from outlierlens.errors import BadInput, comment, literal, need

if TYPE_CHECKING:
    from outlierlens.models.load import LoadedModel

MLX_GROUPS = (32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The model that will be quantized.

    Attributes:
        model: as it is loaded: a path or hub id.
        config: its config.json; says the family, and so the names in GGUF.
        linears: module path of every linear of the blocks, which the scheme rounds.
        outside: of every other one, which it leaves alone.
    """

    model: str
    config: Mapping[str, Any]
    linears: tuple[str, ...]
    outside: tuple[str, ...] = ()


Wide = Literal["autocast", "onnxruntime", "tensorrt", "gguf"]  # tools that can be told which modules stay in float32


@dataclass(frozen=True)
class WideModules:
    """What fp16 does not hold.

    Attributes:
        modules: paths that must run in float32. norms: those whose sum of squares alone overflows.
        linears: those that read or give such a number. file: the ONNX file of the model, if it is one.
    """

    modules: tuple[str, ...]
    norms: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    file: Path | None = None


Protections = Mapping[str, Any]  # what is said of a linear by its path, None of one that stays as it is


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """A tool that quantizes or prunes.

    Attributes:
        title: its name as its makers write it. own: schemes that it uses by itself, larger groups first; () for no plan.
        called: (recipe of one linear, scheme of the plan) -> what it calls that; None where it has no such thing.
        lines: (what is said of every linear of the blocks, of those kept, target) -> the file of a plan.
        use: how the file is handed over, in its first comment; "" where the format has no comments.
        wide_norms: whether norms stand in that file too, for the tool sums their squares in fp16.
        wide: (what fp16 does not hold, target) -> the file that keeps it in float32; None where it has none.
        spares: template of a list of what it should leave alone, with $ignore or $keep: modules as patterns of YAML, with
            their channels; "" for none.
    """

    title: str
    own: tuple[str, ...] = ()
    called: Callable[[SchemePair, SchemePair], Any] = lambda *_: None
    lines: Callable[[Any, Protections, Target], list[str]] = lambda *_: []
    use: str = ""
    wide: Callable[[WideModules, Target], list[str]] | None = None
    wide_norms: bool = False
    spares: str = ""


def target_of(loaded: "LoadedModel", stack: str | None = None) -> Target:
    """The facts of a loaded model; raises BadInput where the blocks of the stream hold no linear."""
    from torch import nn

    inside = tuple(place.name for place in find_places(loaded, stack))
    names = (name for name, module in loaded.model.named_modules() if isinstance(module, nn.Linear))
    outside = tuple(name for name in names if name not in set(inside))
    said = " ".join(filter(None, (loaded.name, loaded.note)))
    return Target(model=said, config=loaded.config, linears=inside, outside=outside)


def export(tool: str, kept: Sequence[KeptLinear], *, scheme: SchemePair, target: Target) -> tuple[str, tuple[str, ...]]:
    """(the text of the file that `tool` reads, what it does otherwise than the plan says: a sentence each).

    Raises:
        BadInput: an unknown tool, a scheme that it does not know, or a path that is no linear of the blocks.
    """
    row = tool_named(tool, "own")
    if unknown := [one.path for one in kept if one.path not in set(target.linears)]:
        raise BadInput(f"{target.model}: {unknown[0]} is not a linear of its blocks; make the plan of this model")
    if parts := [one.path for one in kept if one.columns or one.rows]:
        raise BadInput(
            f"{row.title} keeps whole linears, and the plan keeps columns of {parts[0]}; make it with --grain linear"
        )
    base = row.called(scheme, scheme)
    if base is None:
        raise BadInput(f"{row.title} has no scheme {scheme.name}; its own is {row.own[-1]}")
    recipes = {one.path: one.recipe(scheme) for one in kept}
    called = {path: None if recipe is None else row.called(recipe, scheme) for path, recipe in recipes.items()}
    whole = ", ".join(path for path, said in called.items() if said is None and recipes[path] is not None)
    remark = f"{row.title} cannot keep a part of a linear as the plan does, so all of it stays as it is: {whole}"
    remarks = (remark,) * bool(whole)
    n = f"{len(kept):,} linear{'s' if len(kept) != 1 else ''}"
    head = [f"{target.model}: {scheme.name}, {n} kept in higher precision. {row.use}", *remarks] if row.use else []
    return "\n".join([*map(comment, head), *row.lines(base, called, target)]) + "\n", remarks


def wide_export(tool: str, wide: WideModules, target: Target) -> tuple[str, tuple[str, ...]]:
    """(the text of the file by which `tool` keeps modules in float32 where all else is fp16, remarks); BadInput as `export`."""
    row = tool_named(tool, "wide")
    assert row.wide is not None
    remarks = []
    if wide.norms and not row.wide_norms:
        remarks.append(
            f"{len(wide.norms):,} norms overflow in their sum of squares alone, which {row.title} holds in float32"
        )
    if wide.file and row.wide_norms and not nodes_of(wide.file, (*wide.modules, *wide.norms)):
        remarks.append(
            f"{wide.file}: no node is called after these modules; export it again without graph optimization"
        )
    head = [] if tool == "gguf" else [comment(f"{target.model}: modules that fp16 does not hold, in float32.")]
    return "\n".join([*head, *row.wide(wide, target)]) + "\n", tuple(remarks)


def own_scheme(tool: str, loaded: "LoadedModel", stack: str | None = None) -> str:
    """What `tool` does by itself: of its schemes the first whose groups divide the inputs of every linear of the blocks."""
    own, widths = tool_named(tool, "own").own, {int(place.weight().shape[1]) for place in find_places(loaded, stack)}
    groups = {name: getattr(parse(name).weights, "group", None) or 1 for name in own}
    return next((name for name, group in groups.items() if all(width % group == 0 for width in widths)), own[-1])


def tool_named(name: str, has: str) -> Exporter:
    """The row of a tool; raises BadInput, with those there are, where it has nothing in that field."""
    known = [one for one, row in TOOLS.items() if getattr(row, has)]
    if name not in known:
        raise BadInput(f"unknown tool {name!r}; tools are {', '.join(known)}")
    return TOOLS[name]


def _patterns(paths: Sequence[str], number: str = r"\d+") -> list[str]:
    """Regular expressions that fit these paths with any number of a block in them, each once; globs where `number` is "*"."""
    escape = re.escape if number == r"\d+" else str
    shapes = dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".{}", path) for path in paths)
    return [number.join(map(escape, one.split("{}"))) for one in shapes]


def _json(value: Any) -> list[str]:
    return literal(value, indent=2).split("\n")


def _python(name: str, value: Any) -> list[str]:
    """`name = value` with an entry of a list or dictionary a line."""
    if isinstance(value, dict):
        return [f"{name} = {{", *(f"    {key!r}: {one!r}," for key, one in value.items()), "}"]
    return [f"{name} = [", *(f"    {one!r}," for one in value), "]"]


# llm-compressor: https://docs.vllm.ai/projects/llm-compressor (QuantizationModifier; schemes of compressed-tensors)


def _llm_compressor(recipe: SchemePair, _: SchemePair) -> dict[str, Any] | None:
    found = {}
    for name, part in (("weights", recipe.weights), ("input_activations", recipe.inputs)):
        if part is None:
            continue
        kind = "float" if part.number in ("e4m3", "e2m1") else "int" if part.number in LEVELS else ""
        if not kind or (part.number == "e2m1" and not part.steps):
            return None
        said: dict[str, Any] = {"num_bits": part.bits, "symmetric": part.symmetric}
        said |= {"type": kind, "strategy": "tensor_group" if part.steps == "e4m3" else part.grain}
        if part.group:
            said["group_size"] = part.group
        if part.steps:
            said["scale_dtype"] = {"e4m3": "torch.float8_e4m3fn", "e8m0": "torch.uint8"}[part.steps]
        dynamic: Any = "local" if part.steps == "e4m3" else part.grain != "tensor"
        found[name] = said | ({"dynamic": dynamic} if part is recipe.inputs else {})
    return found


def _llm_compressor_file(base: Any, kept: Protections, target: Target) -> list[str]:
    groups = {"all": {"targets": [f"re:^{pattern}$" for pattern in _patterns(target.linears)], **base}}
    for path, said in kept.items():
        if said is not None:
            alike = (name for name, one in groups.items() if {**one, "targets": 0} == {"targets": 0, **said})
            group = groups.setdefault(next(alike, f"kept_{len(groups)}"), {"targets": [], **said})
            group["targets"].append(path)
    ignore = [*(path for path, said in kept.items() if said is None), *target.outside]
    modifier = {"ignore": ignore, "config_groups": groups}
    # JSON is YAML; an object a stage, as a recipe has it.
    return _json({"quantization_stage": {"quantization_modifiers": {"QuantizationModifier": modifier}}})


# AutoRound: https://github.com/intel/auto-round, docs/step_by_step.md, "Mixed bits Usage"


def _auto_round(recipe: SchemePair, _: SchemePair) -> dict[str, Any] | None:
    said: dict[str, Any] = {"bits": 16, "act_bits": 16}
    for part, start in ((recipe.weights, ""), (recipe.inputs, "act_")):
        if part is None:
            continue
        if part.number not in LEVELS:
            return None
        size = {"tensor": 0, "channel": -1, "token": -1}.get(part.grain, part.group)
        said |= {f"{start}bits": part.bits, f"{start}group_size": size, f"{start}sym": part.symmetric}
        said[f"{start}data_type"] = "int"
    return said | ({"act_dynamic": recipe.inputs.grain == "token"} if recipe.inputs else {})


def _auto_round_file(base: Any, kept: Protections, _: Target) -> list[str]:
    config = {path: said or {"bits": 16, "act_bits": 16} for path, said in kept.items()}
    return [*_python("scheme", base), *_python("layer_config", config)]


# torchao: https://docs.pytorch.org/ao/stable (FqnToConfig: a full name comes before "re:" patterns, None leaves it)

_ROW = "PerRow()"


def _torchao(recipe: SchemePair, _: SchemePair) -> str | None:
    weights, inputs = recipe.weights, recipe.inputs
    if weights is None or weights.number not in (*LEVELS, "e4m3") or weights.steps:
        return None
    grain = {"tensor": "PerTensor()", "channel": _ROW}.get(weights.grain, f"PerGroup({weights.group})")
    if inputs is None:
        return _torchao_weights(weights, grain)
    plain = inputs.number == weights.number and inputs.symmetric and weights.symmetric and not weights.group
    if plain and weights.number == "int8":
        read = "PerTensor()" if inputs.grain == "tensor" else _ROW
        return f"Int8DynamicActivationInt8WeightConfig(granularity=[{read}, {grain}])"
    if plain and weights.number == "e4m3" and (inputs.grain == "tensor") == (weights.grain == "tensor"):
        return f"Float8DynamicActivationFloat8WeightConfig(granularity={grain})"
    return None


def _torchao_weights(weights: Scheme, grain: str) -> str | None:
    if weights.number == "e4m3":
        return f"Float8WeightOnlyConfig(granularity={grain})"
    if weights.number == "int8" and weights.symmetric and not weights.group:
        return f"Int8WeightOnlyConfig(granularity={grain})"
    grain = "PerAxis(0)" if weights.grain == "channel" else grain
    number, kind = f"weight_dtype=torch.{weights.number}", "SYMMETRIC" if weights.symmetric else "ASYMMETRIC"
    found = f"IntxWeightOnlyConfig({number}, granularity={grain}, mapping_type=MappingType.{kind})"
    return None if weights.grain == "tensor" else found


def _torchao_file(base: Any, kept: Protections, target: Target) -> list[str]:
    said = [base, *(one for one in kept.values() if one is not None)]
    names = sorted({name for one in said for name in re.findall(r"\w+Config|Per\w+|MappingType", one)})
    lines = [(path, one or "None") for path, one in kept.items()]
    lines += [(f"re:{pattern}", base) for pattern in _patterns(target.linears)]
    return [
        *(["import torch"] if any("torch." in one for one in said) else []),
        f"from torchao.quantization import FqnToConfig, {', '.join(names)}",
        "",
        "config = FqnToConfig({",
        *(f"    {name!r}: {one}," for name, one in lines),
        "})",
    ]


# bitsandbytes: https://huggingface.co/docs/transformers/quantization/bitsandbytes (BitsAndBytesConfig)


def _bitsandbytes(recipe: SchemePair, _: SchemePair) -> dict[str, Any] | None:
    if recipe == FINE:
        return {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"} if recipe == parse("nf4") else None


# llama.cpp: `llama-quantize --help`, --tensor-type-file: TENSOR=TYPE a line, no comments; TENSOR is a regular expression that
# is searched for in the tensor's name.


def _gguf(recipe: SchemePair, scheme: SchemePair) -> str | None:
    weights = recipe.weights
    if recipe.inputs is not None:
        return None
    if weights is None:
        return "f16"
    # Eight bits by channel are what a plan keeps; here they come in blocks of 32.
    if weights.number in GGUF:
        return weights.number
    group = weights.group or (32 if recipe != scheme and weights.number == "int8" else None)
    known = {("int8", True): "q8_0", ("int4", True): "q4_0", ("int4", False): "q4_1"}
    return known.get((weights.number, weights.symmetric)) if group == 32 else None


def _gguf_file(_: Any, kept: Protections, target: Target) -> list[str]:
    return [f"{re.escape(_gguf_name(path, target))}={said or 'f16'}" for path, said in kept.items()]


def _gguf_name(path: str, target: Target) -> str:
    """GGUF's name of a linear's weight, by the family's row; raises BadInput where the row has none."""
    for row in family_of(target.config).gguf:
        start = re.escape(row.blocks).replace(re.escape("{layer}"), r"(\d+)")
        # A bare encoder's paths lack the first part that the row's have.
        for blocks in (start, start.partition(r"\.")[2]):
            match = re.fullmatch(blocks + r"\.(.+)", path)
            module = next((name for name, inner in row.inner.items() if match and inner == match[2]), None)
            if match and module:
                return f"blk.{match[1]}.{module}.weight"
    raise BadInput(
        f"{target.model}: {path} has no name in GGUF that is known here (family {target.config.get('model_type')}); "
        f"export for another tool"
    )


# NVIDIA ModelOpt: https://nvidia.github.io/Model-Optimizer/guides/_quant_cfg.html (later entries come over earlier ones)


def _modelopt(recipe: SchemePair, _: SchemePair) -> dict[str, Any] | None:
    bits: dict[str, Any] = {"e4m3": (4, 3), "e5m2": (5, 2), "e2m1": (2, 1)} | {name: int(name[3:]) for name in LEVELS}
    found: dict[str, Any] = {"weight_quantizer": None, "input_quantizer": None}
    for name, part in zip(found, (recipe.weights, recipe.inputs), strict=True):
        if part is None:
            continue
        if not part.symmetric or part.number not in bits:
            return None
        size: dict[str, Any] = {"axis": 0 if part.grain == "channel" else None}
        if part.grain == "group":
            steps = {"": {}, "e8m0": {"scale_bits": (8, 0)}, "e4m3": {"scale_bits": (4, 3)}}[part.steps]
            size = {"block_sizes": {-1: part.group} | ({"type": "dynamic", **steps} if steps else {})}
        elif part.grain == "token":
            size = {"type": "dynamic", "block_sizes": {-1: None}}
        found[name] = {"num_bits": bits[part.number], **size}
    return found


def _modelopt_file(base: Any, kept: Protections, target: Target) -> list[str]:
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    everything = [(pattern, base) for pattern in _patterns(target.linears, "*")]
    nothing = dict.fromkeys(base)
    for path, said in (*everything, *((path, said or nothing) for path, said in kept.items())):
        for name, one in said.items():
            how = {"enable": False} if one is None else {"cfg": one}
            entries.append({"quantizer_name": f"{path}.{name}", **how})
    return [*_python("quant_cfg", entries), 'config = {"quant_cfg": quant_cfg, "algorithm": "max"}']


# MLX: https://ml-explore.github.io/mlx, mlx.nn.quantize (class_predicate) and mlx_lm.convert (quant_predicate)


def _mlx(recipe: SchemePair, scheme: SchemePair) -> dict[str, int] | None:
    weights = recipe.weights
    if recipe.inputs is not None or weights is None or weights.number not in LEVELS:
        return None
    group = weights.group or (scheme.weights.group if scheme.weights else None)
    return {"group_size": group, "bits": weights.bits} if group in MLX_GROUPS else None


def _mlx_file(base: Any, kept: Protections, target: Target) -> list[str]:
    return [
        "import re",
        "",
        *_python("LINEARS", _patterns(target.linears)),
        *_python("KEPT", {path: said or False for path, said in kept.items()}),
        "",
        "",
        "def quant_predicate(path, module, *_):",
        "    if not any(re.fullmatch(pattern, path) for pattern in LINEARS):",
        "        return False",
        f"    return KEPT.get(path, {base!r})",
    ]


# What stays in float32

# https://docs.pytorch.org/docs/stable/amp.html: a region with enabled=False inside another runs in the types of its inputs.
AUTOCAST = '''\
import torch


def wide(value):
    """Floats of a value in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    return type(value)(map(wide, value)) if type(value) in (tuple, list) else value


def in_float32(forward):
    def run(*args, **named):
        given = next(one for one in (*args, *named.values()) if isinstance(one, torch.Tensor))
        with torch.autocast(given.device.type, enabled=False):
            return forward(*map(wide, args), **{name: wide(value) for name, value in named.items()})

    return run


def keep_float32(model):
    """Have MODULES of a model with float32 weights run in float32 inside torch.autocast."""
    for name in MODULES:
        module = model.get_submodule(name)
        module.forward = in_float32(module.forward)


# keep_float32(model)
# with torch.autocast("cuda", torch.float16):
#     model(**inputs)
'''


def belongs(name: str, scopes: str, modules: Sequence[str]) -> bool:
    """Whether an ONNX node is of one of these modules, by its name ("/model/layers.1/mlp/Mul") or its exporter's scopes."""
    places = [name.rpartition("/")[0].strip("/").replace("/", "."), *re.findall(r"'([^']*)'", scopes)]
    return any(f".{module}." in f".{place}." for place in places for module in modules)


def node_names(model: Any, modules: Sequence[str]) -> list[str]:
    """Names of the nodes of an ONNX model that belong to these modules."""
    found = []
    for node in model.graph.node:
        scopes = [one.value for one in node.metadata_props if one.key == "pkg.torch.onnx.name_scopes"]
        if belongs(node.name, "".join(scopes), modules):
            found.append(node.name)
    return found


def nodes_of(file: Path, modules: Sequence[str]) -> list[str]:
    """`node_names` of a file, also where it was exported without the head whose prefix the modules have."""
    onnx = need("onnx", "onnx", "reading ONNX files")
    model = onnx.load(str(file), load_external_data=False)
    return node_names(model, modules) or node_names(model, [one.partition(".")[2] for one in modules if "." in one])


# https://onnxruntime.ai/docs/performance/model-optimizations: float16 (keep_io_types, node_block_list), quantization
# (nodes_to_exclude).
def _onnxruntime(wide: WideModules, _: Target) -> list[str]:
    modules = [*wide.modules, *wide.norms]
    known = _python("NODES", nodes_of(wide.file, modules)) if wide.file else []
    return [
        "import re", "from typing import Any, Sequence", "", *_python("MODULES", modules), *known, "", "",
        *inspect.getsource(belongs).splitlines(), "", "", *inspect.getsource(node_names).splitlines(), "", "",
        *map(comment, (
            "from onnxconverter_common import float16",
            "float16.convert_float_to_float16(model, keep_io_types=True, node_block_list=node_names(model, MODULES))",
            "quantize_static(…, nodes_to_exclude=node_names(model, MODULES))",
        )),
    ]  # fmt: skip


# https://docs.nvidia.com/deeplearning/tensorrt: ILayer.precision, set_output_type; layers are called as the nodes of the file.
TENSORRT = '''\
def keep_float32(network, float32):
    """Set the layers of these modules to float32, which is tensorrt.float32; `network` is what trt.OnnxParser filled."""
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        if belongs(layer.name, "", MODULES):
            layer.precision = float32
            for output in range(layer.num_outputs):
                layer.set_output_type(output, float32)


# config.set_flag(trt.BuilderFlag.FP16)
# config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
# keep_float32(network, trt.float32)
'''


def _tensorrt(wide: WideModules, _: Target) -> list[str]:
    modules, known = [*wide.modules, *wide.norms], []
    if wide.file and (names := nodes_of(wide.file, modules)):
        types = ",".join(f"{name}:fp32" for name in names)
        known = [
            comment(f"trtexec --fp16 --precisionConstraints=obey --layerPrecisions={types} --layerOutputTypes={types}")
        ]
    return [
        *known, "import re", "from typing import Sequence", "", *_python("MODULES", modules), "", "",
        *inspect.getsource(belongs).splitlines(), "", "", *TENSORRT.splitlines(),
    ]  # fmt: skip


# Lists of what to leave alone

# https://docs.vllm.ai/projects/llm-compressor: recipes of one modifier.
RECIPE = """\
# oneshot(model=…, recipe=this file); the settings above `ignore` are yours.
sparsity_stage:
  sparsity_modifiers:
    SparseGPTModifier:
      sparsity: 0.5
      mask_structure: "0:0"
      targets: ["Linear"]
      ignore:
$ignore
"""
IMPORTANCE = '''\
import torch_pruning as tp

KEEP = $keep


def module_of(model, name):
    """The module of that name, also where a head's prefix stands before it here or there."""
    for path, module in model.named_modules():
        if path and (path == name or path.endswith("." + name) or name.endswith("." + path)):
            return module
    raise KeyError(name)


class KeepChannels(tp.importance.Importance):
    """Another importance, in which the protected channels come last."""

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


# importance = KeepChannels(tp.importance.MagnitudeImportance(), model)
# pruner = tp.pruner.BasePruner(model, example_inputs, importance=importance, ...)
# To keep every channel of these modules:
# ignored_layers = [module_of(model, name) for name in KEEP]
'''

TOOLS: dict[str, Exporter] = {
    "llm-compressor": Exporter(
        title="llm-compressor", own=(FINE.name,), called=_llm_compressor, lines=_llm_compressor_file,
        use="oneshot(model=…, recipe=this file)",
    ),
    "auto-round": Exporter(
        title="AutoRound", own=("int4-group128/none", "int4-group64/none", "int4-group32/none"), called=_auto_round,
        lines=_auto_round_file, use="AutoRound(model, scheme=scheme, layer_config=layer_config)",
    ),
    "torchao": Exporter(
        title="torchao", own=(FINE.name,), called=_torchao, lines=_torchao_file,
        use="quantize_(model, config, filter_fn=None)",
    ),
    "bitsandbytes": Exporter(
        title="bitsandbytes", own=(FINE.name,), called=_bitsandbytes,
        lines=lambda base, kept, target: _json({**base, "llm_int8_skip_modules": [*kept, *target.outside]}),
    ),
    "gguf": Exporter(
        title="llama-quantize", own=("q4_0/none",), called=_gguf, lines=_gguf_file,
        wide=lambda wide, target: _gguf_file(None, dict.fromkeys(wide.linears, "f32"), target),
    ),
    "modelopt": Exporter(
        title="ModelOpt", own=("int8-channel/int8-tensor",), called=_modelopt, lines=_modelopt_file,
        use="mtq.quantize(model, config, forward_loop)",
    ),
    "mlx": Exporter(
        title="MLX", own=("int4-group64-asym/none", "int4-group32-asym/none"), called=_mlx, lines=_mlx_file,
        use="mlx_lm.convert(…, quantize=True, quant_predicate=quant_predicate)",
    ),
    "autocast": Exporter(
        title="torch.autocast", wide=lambda wide, _: [*_python("MODULES", list(wide.modules)), *AUTOCAST.splitlines()],
    ),
    "onnxruntime": Exporter(title="ONNX Runtime", wide=_onnxruntime, wide_norms=True),
    "tensorrt": Exporter(title="TensorRT", wide=_tensorrt, wide_norms=True),
    "sparsegpt": Exporter(title="llm-compressor", spares=RECIPE),
    "torch-pruning": Exporter(title="Torch-Pruning", spares=IMPORTANCE),
}  # fmt: skip
