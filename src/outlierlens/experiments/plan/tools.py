"""The tools that quantize: what each calls a scheme, and how the file that it reads is written.

    TOOLS["gguf"].say(parse("int4-group32/none"), scheme)      # "q4_0": None where it has no such thing
    TOOLS["gguf"].write(wish)                                  # lines

Each takes the form that its documentation gives, linked above its two functions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlierlens.analyses.quantize_schemes import Recipe, Scheme, parse
from outlierlens.architectures import family_of
from outlierlens.errors import BadInput, literal

EIGHT = parse("int8-channel/int8-token")  # what is kept in 8 bits
MLX_GROUPS = (32, 64, 128)
BITSANDBYTES_BLOCK = 64  # values that share a scale in its 4-bit format


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


@dataclass(frozen=True)
class Wish:
    """What a file says: `base` for every linear of the blocks but for `kept`, where None leaves the whole linear alone."""

    target: Target
    base: Any
    kept: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def untouched(self) -> list[str]:
        """Paths that keep weights and inputs."""
        return [path for path, said in self.kept.items() if said is None]

    @property
    def changed(self) -> dict[str, Any]:
        """What is said of those that keep a part, or fewer bits."""
        return {path: said for path, said in self.kept.items() if said is not None}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program that quantizes.

    Attributes:
        title: its name as its makers write it. suffix: how the file's name ends.
        schemes: schemes that it knows, for messages. own: what it does by itself, larger groups first.
        say: (recipe of one linear, scheme of the plan) -> what it calls that; None where it has no such thing.
        write: the file's lines. commented: whether the format has comments, which begin with "# ".
        use: how the file is handed over.
    """

    title: str
    suffix: str
    schemes: str
    own: tuple[str, ...]
    say: Callable[[Recipe, Recipe], Any]
    write: Callable[[Wish], list[str]]
    use: str
    commented: bool = True


def _patterns(paths: Sequence[str], number: str = r"\d+") -> list[str]:
    """Regular expressions that fit these paths with any number of a block in them, each once."""
    escape = re.escape if number == r"\d+" else str
    shapes = dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".{}", path) for path in paths)
    return ["".join((escape(part) if part != "{}" else number) for part in re.split(r"(\{\})", one)) for one in shapes]


def _json(value: Any) -> list[str]:
    return literal(value, indent=2).split("\n")


def _python(name: str, value: Any) -> list[str]:
    """`name = value` with an entry of a list or dictionary a line."""
    if isinstance(value, dict):
        return [f"{name} = {{", *(f"    {key!r}: {one!r}," for key, one in value.items()), "}"]
    return [f"{name} = [", *(f"    {one!r}," for one in value), "]"]


# llm-compressor: https://docs.vllm.ai/projects/llm-compressor (QuantizationModifier; schemes of compressed-tensors)


def _llm_compressor(recipe: Recipe, _: Recipe) -> dict[str, Any] | None:
    found = {}
    for name, part in (("weights", recipe.weights), ("input_activations", recipe.inputs)):
        if part is None:
            continue
        if part.number == "e5m2":
            return None
        said: dict[str, Any] = {"num_bits": 4 if part.number == "int4" else 8, "symmetric": part.symmetric}
        said |= {"type": "float" if part.number == "e4m3" else "int", "strategy": part.grain}
        if part.group:
            said["group_size"] = part.group
        found[name] = said | ({"dynamic": part.grain == "token"} if part is recipe.inputs else {})
    return found


def _llm_compressor_file(wish: Wish) -> list[str]:
    whole = [f"re:^{pattern}$" for pattern in _patterns(wish.target.linears)]
    groups = {"all": {"targets": whole, **wish.base}}
    for path, said in wish.changed.items():
        name = next((name for name, one in groups.items() if {**one, "targets": 0} == {"targets": 0, **said}), None)
        groups.setdefault(name or f"kept_{len(groups)}", {"targets": [], **said})["targets"].append(path)
    modifier = {"ignore": [*wish.untouched, *wish.target.outside], "config_groups": groups}
    # JSON is YAML; an object a stage, as a recipe has it.
    return _json({"quantization_stage": {"quantization_modifiers": {"QuantizationModifier": modifier}}})


# AutoRound: https://github.com/intel/auto-round, docs/step_by_step.md, "Mixed bits Usage"


def _auto_round(recipe: Recipe, _: Recipe) -> dict[str, Any] | None:
    weights, inputs = recipe.weights, recipe.inputs
    said: dict[str, Any] = {"bits": 16, "act_bits": 16}
    for part, start in ((weights, ""), (inputs, "act_")):
        if part is None:
            continue
        if part.number not in ("int8", "int4"):
            return None
        size = {"tensor": 0, "channel": -1, "token": -1}.get(part.grain, part.group)
        said |= {f"{start}bits": int(part.number[3:]), f"{start}group_size": size, f"{start}sym": part.symmetric}
        said[f"{start}data_type"] = "int"
    if inputs is not None:
        said["act_dynamic"] = inputs.grain == "token"
    return said


def _auto_round_file(wish: Wish) -> list[str]:
    config = {path: said or {"bits": 16, "act_bits": 16} for path, said in wish.kept.items()}
    return [*_python("scheme", wish.base), *_python("layer_config", config)]


# torchao: https://docs.pytorch.org/ao/stable (FqnToConfig: a full name comes before "re:" patterns, None leaves it)

_ROW = "PerRow()"


def _torchao(recipe: Recipe, _: Recipe) -> str | None:
    weights, inputs = recipe.weights, recipe.inputs
    if weights is None or weights.number == "e5m2":
        return None
    grain = {"tensor": "PerTensor()", "channel": _ROW}.get(weights.grain, f"PerGroup({weights.group})")
    if weights.number == "e4m3":
        return _torchao_float(weights, inputs, grain)
    if inputs is None and weights.number == "int8" and weights.symmetric and not weights.group:
        return f"Int8WeightOnlyConfig(granularity={grain})"
    if inputs is None and weights.grain != "tensor":
        grain = "PerAxis(0)" if weights.grain == "channel" else grain
        kind = "SYMMETRIC" if weights.symmetric else "ASYMMETRIC"
        return (
            f"IntxWeightOnlyConfig(weight_dtype=torch.{weights.number}, granularity={grain}, "
            f"mapping_type=MappingType.{kind})"
        )
    plain = inputs is not None and inputs.number == "int8" == weights.number and not weights.group
    if plain and inputs is not None and inputs.symmetric and weights.symmetric:
        read = "PerTensor()" if inputs.grain == "tensor" else _ROW
        return f"Int8DynamicActivationInt8WeightConfig(granularity=[{read}, {grain}])"
    return None


def _torchao_float(weights: Scheme, inputs: Scheme | None, grain: str) -> str | None:
    if inputs is None:
        return f"Float8WeightOnlyConfig(granularity={grain})"
    alike = inputs.number == "e4m3" and (inputs.grain, weights.grain) in (("tensor", "tensor"), ("token", "channel"))
    return f"Float8DynamicActivationFloat8WeightConfig(granularity={grain})" if alike else None


def _torchao_file(wish: Wish) -> list[str]:
    said = [wish.base, *wish.changed.values()]
    names = sorted({name for one in said for name in re.findall(r"\w+Config|Per\w+|MappingType", one)})
    lines = [(path, one or "None") for path, one in wish.kept.items()]
    lines += [(f"re:{pattern}", wish.base) for pattern in _patterns(wish.target.linears)]
    return [
        *(["import torch"] if any("torch." in one for one in said) else []),
        f"from torchao.quantization import FqnToConfig, {', '.join(names)}",
        "",
        "config = FqnToConfig({",
        *(f"    {name!r}: {one}," for name, one in lines),
        "})",
    ]


# bitsandbytes: https://huggingface.co/docs/transformers/quantization/bitsandbytes (BitsAndBytesConfig)


def _bitsandbytes(recipe: Recipe, _: Recipe) -> dict[str, Any] | None:
    if recipe == EIGHT:
        return {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    if recipe.inputs is None and recipe.weights == Scheme("int4", "group", BITSANDBYTES_BLOCK):
        return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return None


def _bitsandbytes_file(wish: Wish) -> list[str]:
    return _json({**wish.base, "llm_int8_skip_modules": [*wish.kept, *wish.target.outside]})


# llama.cpp: `llama-quantize --help`, --tensor-type-file: TENSOR=TYPE a line, no comments; TENSOR is a regular expression that
# is searched for in the tensor's name.


def _gguf(recipe: Recipe, scheme: Recipe) -> str | None:
    weights = recipe.weights
    if recipe.inputs is not None:
        return None
    if weights is None:
        return "f16"
    # Eight bits by channel are what a plan keeps; here they come in blocks of 32.
    group = weights.group or (32 if recipe != scheme and weights.number == "int8" else None)
    known = {("int8", True): "q8_0", ("int4", True): "q4_0", ("int4", False): "q4_1"}
    return known.get((weights.number, weights.symmetric)) if group == 32 else None


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
        f"export for another tool: {', '.join(TOOLS)}"
    )


def _gguf_file(wish: Wish) -> list[str]:
    return [f"{re.escape(_gguf_name(path, wish.target))}={said or 'f16'}" for path, said in wish.kept.items()]


# NVIDIA ModelOpt: https://nvidia.github.io/Model-Optimizer/guides/_quant_cfg.html (later entries come over earlier ones)


def _modelopt(recipe: Recipe, _: Recipe) -> dict[str, Any] | None:
    bits: dict[str, Any] = {"int8": 8, "int4": 4, "e4m3": (4, 3), "e5m2": (5, 2)}
    found: dict[str, Any] = {}
    for name, part in (("weight_quantizer", recipe.weights), ("input_quantizer", recipe.inputs)):
        if part is None:
            found[name] = None
            continue
        if not part.symmetric:
            return None
        said = {"num_bits": bits[part.number]}
        if part.grain == "group":
            said["block_sizes"] = {-1: part.group}
        elif part.grain == "token":
            said |= {"type": "dynamic", "block_sizes": {-1: None}}
        else:
            said["axis"] = 0 if part.grain == "channel" else None
        found[name] = said
    return found


def _modelopt_file(wish: Wish) -> list[str]:
    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    everything = [(pattern, wish.base) for pattern in _patterns(wish.target.linears, "*")]
    nothing = {"weight_quantizer": None, "input_quantizer": None}
    for path, said in (*everything, *((path, said or nothing) for path, said in wish.kept.items())):
        for name, one in said.items():
            how = {"enable": False} if one is None else {"cfg": one}
            entries.append({"quantizer_name": f"{path}.{name}", **how})
    return [*_python("quant_cfg", entries), 'config = {"quant_cfg": quant_cfg, "algorithm": "max"}']


# MLX: https://ml-explore.github.io/mlx, mlx.nn.quantize (class_predicate) and mlx_lm.convert (quant_predicate)


def _mlx(recipe: Recipe, scheme: Recipe) -> dict[str, int] | None:
    weights = recipe.weights
    if recipe.inputs is not None or weights is None or weights.number not in ("int8", "int4"):
        return None
    group = weights.group or (scheme.weights.group if scheme.weights else None)
    return {"group_size": group, "bits": int(weights.number[3:])} if group in MLX_GROUPS else None


def _mlx_file(wish: Wish) -> list[str]:
    return [
        "import re",
        "",
        *_python("LINEARS", _patterns(wish.target.linears)),
        *_python("KEPT", {path: said or False for path, said in wish.kept.items()}),
        "",
        "",
        "def quant_predicate(path, module, *_):",
        "    if not any(re.fullmatch(pattern, path) for pattern in LINEARS):",
        "        return False",
        f"    return KEPT.get(path, {wish.base!r})",
    ]


# ONNX Runtime: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html (nodes_to_exclude)


def _onnx(recipe: Recipe, _: Recipe) -> bool | None:
    weights, inputs = recipe.weights, recipe.inputs
    fits = weights and inputs and weights.number == "int8" == inputs.number and not weights.group
    return True if fits and inputs and inputs.grain == "tensor" else None


def _onnx_file(wish: Wish) -> list[str]:
    """Names that torch's exporter gives the product of a linear: parts by slashes, numbers of a list behind a dot."""
    paths = ["/" + re.sub(r"\.(?!\d+(?:\.|$))", "/", path) for path in (*wish.kept, *wish.target.outside)]
    return _json([f"{path}/{node}" for path in paths for node in ("MatMul", "Gemm")])


TOOLS: dict[str, Tool] = {
    "llm-compressor": Tool(
        title="llm-compressor", suffix=".yaml", say=_llm_compressor, write=_llm_compressor_file,
        schemes="integers and e4m3, such as int8-channel/int8-token",
        own=("int8-channel/int8-token",),
        use="oneshot(model=…, recipe=this file)",
    ),
    "auto-round": Tool(
        title="AutoRound", suffix=".py", say=_auto_round, write=_auto_round_file,
        schemes="integers, such as int4-group64/none",
        own=("int4-group128/none", "int4-group64/none", "int4-group32/none"),
        use="AutoRound(model, scheme=scheme, layer_config=layer_config)",
    ),
    "torchao": Tool(
        title="torchao", suffix=".py", say=_torchao, write=_torchao_file,
        schemes="int8-channel/int8-token, int8-tensor/int8-tensor, int4-group32/none, e4m3-channel/e4m3-token and such",
        own=("int8-channel/int8-token",),
        use="quantize_(model, config, filter_fn=None)",
    ),
    "bitsandbytes": Tool(
        title="bitsandbytes", suffix=".json", say=_bitsandbytes, write=_bitsandbytes_file, commented=False,
        schemes=f"{EIGHT.name} and int4-group{BITSANDBYTES_BLOCK}/none (its NF4)",
        own=("int8-channel/int8-token",),
        use="BitsAndBytesConfig(**json.load(…))",
    ),
    "gguf": Tool(
        title="llama-quantize", suffix=".txt", say=_gguf, write=_gguf_file, commented=False,
        schemes="int8-group32/none (Q8_0), int4-group32/none (Q4_0) and int4-group32-asym/none (Q4_1)",
        own=("int4-group32/none",),
        use="llama-quantize --tensor-type-file",
    ),
    "modelopt": Tool(
        title="ModelOpt", suffix=".py", say=_modelopt, write=_modelopt_file,
        schemes="symmetric ones, such as int8-channel/int8-tensor",
        own=("int8-channel/int8-tensor",),
        use="mtq.quantize(model, config, forward_loop)",
    ),
    "mlx": Tool(
        title="MLX", suffix=".py", say=_mlx, write=_mlx_file,
        schemes="int4 and int8 in groups of 32, 64 or 128, such as int4-group64-asym/none",
        own=("int4-group64-asym/none", "int4-group32-asym/none"),
        use="mlx_lm.convert(…, quantize=True, quant_predicate=quant_predicate)",
    ),
    "onnxruntime": Tool(
        title="ONNX Runtime", suffix=".json", say=_onnx, write=_onnx_file, commented=False,
        schemes="int8 by tensor, such as int8-tensor/int8-tensor",
        own=("int8-tensor/int8-tensor",),
        use="quantize_static(…, nodes_to_exclude=json.load(…))",
    ),
}  # fmt: skip
