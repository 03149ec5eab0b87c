"""THE table: `model_type` -> what no experiment shows of that family; its streams; and which row describes a model.

    stacks_of(config)                                             # its residual streams
    family_of(config).head_reads_last                             # a fact beside them
    kind_of("roberta.embeddings.position_embeddings.weight")      # "position": what a row of the table stands for
    first_row({"model_type": "roberta", "pad_token_id": 1})       # 2: row 2 is position 0
    stacks_for(checkpoint, None)                                  # the config's; without a model_type, by the tensors
    stacks_for(checkpoint, "bert")                                # as --model-args family=bert says
    stacks_for(checkpoint, Path("row.toml"))                      # as --model-args arch=row.toml says

Facts are in `data_files/families.toml`; what takes code is here. To add a family: one table there, one tiny config in
`tests/architectures.py`; see CONTRIBUTING.md.

Rows that nobody wrote are those of every type that transformers can build, made by a script and kept with the package, and
others:

    derived_stacks(config)         # the package's row, or the user's cache's, or that of an experiment made now
    fits(row["structure"], config) # whether a row serves a config of its type

A row of the package was derived from the config that transformers has as its type's default. It serves configs that differ
in sizes alone; where one differs in what is switched on, or in kinds of layers, the experiment is made anew and its row kept
in the user's cache by type and structure.
"""

import difflib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from outlierlens.architectures.bind import BoundStack, bind
from outlierlens.architectures.stack import (
    BY_HAND,
    Config,
    Family,
    Gguf,
    Heads,
    Specification,
    Stack,
    heads,
    load_toml,
    stack_of,
    structure,
)
from outlierlens.errors import BadInput, OutlierlensError, UnknownArchitecture
from outlierlens.results.safe_files import cache_root, packaged_table, read_json, write_text

FILE = "derived.json"
FORM = 1  # of the file and of the cache


def derived_stacks(config: Config) -> tuple[Stack, ...]:
    """The streams of a model; notes say what is not established, and what a row rests on that is not the package's.

    Raises:
        UnknownArchitecture: transformers has no such type, or none of its streams could be established.
        MissingExtra: no row is at hand, and torch or transformers is not installed.
    """
    model_type = str(config.get("model_type"))
    if row := nearest(packaged().get(model_type, ()), config):
        return read_stacks(row, model_type, told=False)
    if row := nearest(_cached(model_type), config):
        return read_stacks(row, model_type)
    from outlierlens.architectures.experiment.derive import derive

    row = derive(config).row
    _keep(model_type, row)
    return read_stacks(row, model_type)


# --- where rows are kept ---------------------------------------------------------------------------------------------


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(resources.files("outlierlens").joinpath("data_files", FILE).read_text("utf-8"))
    return content


def packaged() -> dict[str, list[dict[str, Any]]]:
    """The rows that come with the package, by type."""
    rows: dict[str, list[dict[str, Any]]] = _file()["rows"]
    return rows


def packaged_stacks(config: Config) -> list[tuple[Stack, ...]]:
    """The streams by the row of the package that serves a config; by all rows of its type where none does."""
    model_type = str(config.get("model_type"))
    rows = packaged().get(model_type, [])
    row = nearest(rows, config)
    return [read_stacks(one, model_type, told=False) for one in ([row] if row else rows)]


@cache
def gates() -> frozenset[tuple[str, str]]:
    """(last linear of an MLP, another one whose neurons multiply what it reads), by the ends of their names, of all types."""
    return frozenset(
        (last, first.partition("[")[0].removesuffix("()"))
        for rows in packaged().values()
        for row in rows
        for stack in row["stacks"]
        for last, first in stack.get("neurons", {}).items()
    )


def version() -> str:
    """The transformers that the package's rows were derived with."""
    return str(_file()["transformers"])


def _folder() -> Path:
    return cache_root() / "rows"


def _cached(model_type: str) -> Iterator[dict[str, Any]]:
    """The rows of the user's cache; what cannot be read there is derived again."""
    for path in sorted(_folder().glob(f"{_safe(model_type)}-*.json")):
        try:
            row = read_json(path, "delete it")
            if row["form"] == FORM and row["model_type"] == model_type:
                read_stacks(row, model_type)
                yield row
        except (OutlierlensError, OSError, KeyError, TypeError):
            continue


def _keep(model_type: str, row: Mapping[str, Any]) -> None:
    digest = hashlib.sha256(json.dumps(row["structure"], sort_keys=True).encode()).hexdigest()[:16]
    path = _folder() / f"{_safe(model_type)}-{digest}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"form": FORM, "model_type": model_type, **row}) + "\n")
    except (OSError, BadInput):
        return  # a cache that cannot be written costs seconds, and no answer


def _safe(model_type: str) -> str:
    return "".join(one if one.isalnum() or one in "_" else "_" for one in model_type)[:80]


def read_stacks(row: Mapping[str, Any], model_type: str, *, told: bool = True) -> tuple[Stack, ...]:
    """The stacks of a row, with gaps as their notes, and their evidence if that is to be `told`."""
    remarks = [f"the row of {model_type} was derived by experiment on {row['basis']}"] if told else []
    remarks += [f"not established of {model_type}: {remark}" for remark in row["unsettled"]]
    return tuple(stack_of({**table, "notes": remarks}, f"the row of {model_type}") for table in row["stacks"])


def nearest(rows: Iterable[Mapping[str, Any]], config: Config) -> Mapping[str, Any] | None:
    """The row that covers most keys of a config, among those that serve it; None where none does."""
    known = structure(config).keys()
    served = [row for row in rows if fits(row["structure"], config)]
    return max(served, key=lambda row: len(known & row["structure"].keys()), default=None)


def fits(row: Mapping[str, Any], config: Config) -> bool:
    """Whether a config is built like the one of which `row` is the structure.

    A key that it has not is at its default, as in the row; one that the row has not is none of this type.
    """
    for key, kind in structure(config).items():
        own = row.get(key, "as wide" if kind == "another width" else kind)
        if isinstance(own, Mapping) and isinstance(kind, Mapping):
            alike = fits(own, config[key])
        elif isinstance(own, list) and isinstance(kind, list):
            alike = set(kind) <= set(own)
        else:
            alike = own == kind
        if not alike:
            return False
    return True


# --- what only code says ---------------------------------------------------------------------------------------------

# Positions have keys and queries of their own; DeBERTa's biases are no linear's.
_DEBERTA = Heads(
    "attention.output.dense",
    ("attention.self.in_proj[head v]", "attention.self.v_bias()"),
    ("attention.self.in_proj[head k]", "attention.self.pos_proj"),
    ("attention.self.in_proj[head q]", "attention.self.q_bias()", "attention.self.pos_q_proj"),
)
_DEBERTA_V2 = Heads(
    "attention.output.dense",
    ("attention.self.value_proj",),
    ("attention.self.key_proj", "attention.self.pos_key_proj"),
    ("attention.self.query_proj", "attention.self.pos_query_proj"),
)


def _variant(config: Config) -> tuple[Stack, ...]:
    """BERT, or its pre-norm sibling; the names of norms are the same for LayerNorm and RMSNorm."""
    ((bert,),) = packaged_stacks({"model_type": "bert"})
    stack = replace(bert, heads=tuple(replace(one, rotary="halves") for one in bert.heads))
    if config.get("norm_order", "post") == "post":
        return (stack,)
    return (
        replace(
            stack,
            norm_site="read",
            last_norm="",
            other_norms=(),
            reading_norms=("attention.LayerNorm", "intermediate.LayerNorm"),
            final_norm="encoder.LayerNorm",
            readers={
                "attention.LayerNorm": tuple(f"attention.self.{name}" for name in ("query", "key", "value", "gate")),
                "intermediate.LayerNorm": ("intermediate.dense",),
            },
        ),
    )


def _variant_decoder(config: Config) -> tuple[Stack, ...]:
    """Llama, whose heads may have a gate."""
    ((stack,),) = packaged_stacks({"model_type": "llama"})
    if config.get("attention_kind") != "gated":
        return (stack,)
    first = "input_layernorm"
    return (replace(stack, readers={**stack.readers, first: (*stack.readers[first], "self_attn.gate")}),)


def _albert(config: Config) -> tuple[Stack, ...]:
    """Groups of blocks run several times over; embeddings are always projected into the stream."""
    n_layers = int(config.get("num_hidden_layers", 12))
    n_groups = int(config.get("num_hidden_groups", 1))
    n_inner = int(config.get("inner_group_num", 1))
    # The group of a layer, as the model computes it.
    groups = [int(layer / (n_layers / n_groups)) for layer in range(n_layers)]
    return (
        Stack(
            blocks="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
            layer_blocks=tuple(
                f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
                for group in groups
                for inner in range(n_inner)
            ),
            norm_site="stream",
            last_norm="full_layer_layer_norm",
            last_linear=("ffn_output",),
            other_writes=("attention.dense",),
            other_norms=("attention.LayerNorm",),
            embedding_linears=("encoder.embedding_hidden_mapping_in",),
            rectified={"ffn_output": "ffn"},
            heads=(heads("attention", "query key value dense"),),
            shared_blocks=True,
            notes=("layers share their blocks: a rule that counts layers of weights counts distinct blocks only",),
        ),
    )


def _wav2vec2(config: Config, stack: Stack) -> Stack:
    """What writes before block 0 does so through a convolution of positions too; a language adapter has a ReLU of its own."""
    stack = replace(
        stack,
        embeddings=("masked_spec_embed",),
        embedding_linears=("feature_projection.projection",),
        notes=(
            "the positional convolution also writes before block 0; its weights are normed over all dimensions, so it "
            "is not among the embeddings",
        ),
    )
    if stack.norm_site == "read":
        stack = replace(
            stack, fixed_scale="its positional convolution reads the stream without a norm, and a GELU follows"
        )
    if config.get("adapter_attn_dim") is None:
        return stack
    first = "adapter_layer.linear_1"
    return replace(
        stack,
        mlp="feed_forward.output_dense",
        neurons={"adapter_layer.linear_2": first},
        rectified={last: one for last, one in stack.rectified.items() if one != first},
    )


def _shorten_gpt_neo(values: dict[str, Any], n_blocks: int) -> None:
    kinds = [kind for kinds, times in values["attention_types"] for _ in range(times) for kind in kinds]
    values["attention_types"] = [[kinds[:n_blocks], 1]]
    values["attention_layers"] = kinds[:n_blocks]


_BY_CODE: dict[str, dict[str, Any]] = {
    "outlierlens-bert": {"stacks": _variant},
    "outlierlens-llama": {"stacks": _variant_decoder},
    "albert": {"stacks": _albert},
    "deberta": {"amended": lambda _, stack: replace(stack, heads=(_DEBERTA,))},
    "deberta-v2": {"amended": lambda _, stack: replace(stack, heads=(_DEBERTA_V2,))},
    "wav2vec2": {"amended": _wav2vec2},
    "gpt_neo": {"shorten": _shorten_gpt_neo},
}

# --- the table -------------------------------------------------------------------------------------------------------


def _joined(table: dict[str, Any], bases: Mapping[str, Any]) -> dict[str, Any]:
    """A table behind the bases that it names in `like`, their tables joined with its own."""
    made: dict[str, Any] = {}
    for part in (*(bases[one] for one in table.pop("like", ())), table):
        for key, value in part.items():
            made[key] = {**made.get(key, {}), **value} if isinstance(value, dict) else value
    return made


def _families() -> Iterator[tuple[str, Family]]:
    tables = packaged_table("families.toml")
    bases = tables.pop("base")
    for model_type, table in tables.items():
        own = _joined(table, bases)
        gguf = tuple(Gguf(model_type=model_type, **_joined(one, bases)) for one in own.pop("gguf", ()))
        clipped = {name: Specification(model_type=model_type, **one) for name, one in own.pop("clipped", {}).items()}
        yield model_type, Family(gguf=gguf, clipped=clipped, **own, **_BY_CODE.get(model_type, {}))


ARCHITECTURES = dict(_families())

# Families that may be decoders, and of which there is nothing else to say.
_BARE = {
    model_type: Family(causal="is_decoder")
    for model_type in (
        "bert-generation", "big_bird", "data2vec-text", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm",
        "roc_bert", "roformer", "xlm-roberta-xl", "xmod",
    )
}  # fmt: skip
_UNKNOWN = Family()

# The last part of an embedding table's name -> what a row of it stands for: what many families call them, then each one's own.
TABLES = {
    "word_embeddings": "token",
    "embed_tokens": "token",
    "position_embeddings": "position",
    "embed_positions": "position",
    "token_type_embeddings": "segment",
} | {name: kind for row in ARCHITECTURES.values() for name, kind in row.tables.items()}


def family_of(config: Config) -> Family:
    """The row for `config["model_type"]`; where there is none, one that says nothing and has no streams."""
    model_type = str(config.get("model_type"))
    return ARCHITECTURES.get(model_type) or _BARE.get(model_type, _UNKNOWN)


def stacks_of(config: Config, where: str = "config.json") -> tuple[Stack, ...]:
    """The streams of `config["model_type"]`; `where` names the config in the error.

    Raises:
        UnknownArchitecture: none can be derived; the message says why, and what helps.
        MissingExtra: they must be derived, and torch or transformers is not installed.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture(
            f"no model_type in {where}; name the family that it is built like (--model-args family=bert), or {BY_HAND}"
        )
    row = family_of(config)
    if row.stacks is not None:
        return row.stacks(config)
    try:
        found = derived_stacks(config)
    except UnknownArchitecture as error:
        near = difflib.get_close_matches(model_type, packaged(), n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near and model_type not in near else ""
        raise UnknownArchitecture(f"{where}: {error}{hint}") from error
    return _amended(row, config, found)


def _amended(row: Family, config: Config, found: tuple[Stack, ...]) -> tuple[Stack, ...]:
    return tuple(row.amended(config, stack) for stack in found) if row.amended else found


def kind_of(parameter: str) -> str:
    """ "token", "position", "segment", "class", "mask", or "other" for a table that no row of the package declares."""
    return TABLES.get(parameter.removesuffix(".weight").rpartition(".")[2], "other")


def first_row(config: Config) -> int:
    """The row of the position table that position 0 reads."""
    row = family_of(config).first_position
    if isinstance(row, int):
        return row
    padding = config.get("pad_token_id")
    return (padding if isinstance(padding, int) else 1) + 1


# --- which row describes a model -------------------------------------------------------------------------------------

# A file (arch), a model_type (family), or neither.
RowChoice = Path | str | None


class Source(Protocol):
    """The parts of a checkpoint that choosing a row needs."""

    name: str
    config: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def tensors(self) -> Mapping[str, Any]:
        """By name."""
        ...


def stacks_for(source: Source, row: RowChoice) -> tuple[Stack, ...]:
    """The streams of `source`; where its tensors had to say which, `source.notes` says so.

    Raises:
        UnknownArchitecture: no row, or several, fit; the message lists what to pass.
        BadInput: the file `row` declares no stream.
    """
    if isinstance(row, Path):
        return load_toml(row)
    if row is not None:
        own = source.config.get("model_type")
        if isinstance(own, str) and own != row:
            source.notes = (*source.notes, f"its config says {own}; the streams are those of the row of {row}")
        source.config = {**source.config, "model_type": row}
        return stacks_of(source.config, "--model-args family")
    if isinstance(source.config.get("model_type"), str):
        return stacks_of(source.config, source.name)
    found = families(source.tensors, source.config, source.name)
    if len(found) == 1:
        source.config = {**source.config, "model_type": found[0]}
    source.notes = (*source.notes, no_model_type(found))
    return stacks_of({**source.config, "model_type": found[0]}, source.name)


def bound_stacks(source: Source, row: RowChoice = None) -> list[BoundStack]:
    """The streams of `source` by the table, or by `row`, with the names of its tensors; raises what the two steps raise."""
    return bind(stacks_for(source, row), source.tensors, source.config)


def no_model_type(found: tuple[str, ...]) -> str:
    """The remark that a family was chosen by the tensors."""
    others = f" (and {', '.join(found[1:])})" if len(found) > 1 else ""
    return (
        f"no model_type in the config: taken for {found[0]}{others}, whose row alone fits the names of the tensors; "
        f"--model-args family says otherwise"
    )


def families(names: Collection[str], config: Config | None = None, where: str = "the model") -> tuple[str, ...]:
    """The families of the only row that these tensors fit, of those that their names begin with where they do.

    One alone where only one declares how they begin.

    Raises:
        UnknownArchitecture: no row does, or several.
    """
    begun = {name.split(".", 1)[0] for name in names if "." in name} & {row.prefix for row in ARCHITECTURES.values()}
    among = sorted(family for family, row in ARCHITECTURES.items() if len(begun) != 1 or row.prefix in begun)
    if len(among) == 1:
        return (among[0],)
    fits = [fit for family in among if (fit := _fit_of(family, names, config or {})) is not None]
    most = max((fit.n_parameters for fit in fits), default=0)
    best = [fit for fit in fits if fit.n_parameters == most]
    best = [fit for fit in best if fit.has_heads] or best
    if not best:
        raise UnknownArchitecture(
            f"{where}: no model_type in its config, and no row of the table fits its tensors; name the family that it is "
            f"built like (--model-args family=bert), or {BY_HAND}"
        )
    if any(fit.stacks != best[0].stacks for fit in best):
        raise UnknownArchitecture(
            f"{where}: no model_type in its config, and its tensors fit the rows of {', '.join(fit.family for fit in best)}; "
            f"say which, such as --model-args family={best[0].family}"
        )
    return tuple(sorted((fit.family for fit in best), key=lambda family: (len(family), family)))


@dataclass(frozen=True)
class _Fit:
    """A row whose every norm and linear the tensors have.

    Attributes:
        n_parameters: for how many of their parameters it accounts. has_heads: what gives its values is there, too.
    """

    family: str
    stacks: tuple[Stack, ...]
    n_parameters: int
    has_heads: bool


def of_weights(stack: Stack) -> Stack:
    """What a scan rests on, without how heads, neurons and readers are paired in a model that runs."""
    return replace(
        stack,
        embeddings=tuple(sorted(stack.embeddings)),
        heads=(),
        readers={},
        raw_readers={},
        rectified={},
        neurons={},
        activation="",
    )


def _fit_of(family: str, names: Collection[str], config: Config) -> _Fit | None:
    """The row of the family that serves the config, or else the best of its rows, where the tensors fit it."""
    config, row = {**config, "model_type": family}, ARCHITECTURES[family]
    rows = (row.stacks(config),) if row.stacks else packaged_stacks(config)
    fits = list[_Fit]()
    for stacks in rows:
        amended = _amended(row, config, stacks)
        with suppress(OutlierlensError):
            if fit := _fit(family, amended, bind(amended, names, config), names):
                fits.append(fit)
    return max(fits, key=lambda fit: fit.n_parameters, default=None)


def _fit(family: str, stacks: tuple[Stack, ...], bound: list[BoundStack], names: Collection[str]) -> _Fit | None:
    if not all(map(_whole, bound)):
        return None
    parameters = {
        param.name
        for one in bound
        for layers in (*one.norms.values(), *one.linears.values())
        for layer in layers
        for param in layer
    }
    return _Fit(family, tuple(map(of_weights, stacks)), len(parameters), all(_has_heads(one, names) for one in bound))


def _has_heads(bound: BoundStack, names: Collection[str]) -> bool:
    """Whether the first block has what the row says gives the values of an attention, by the same name."""
    values = [linear.partition("[")[0] for heads in bound.stack.heads for linear in heads.value]
    return any(f"{bound.blocks[0]}.{linear}.weight" in names for linear in values)


def _whole(bound: BoundStack) -> bool:
    """Whether the tensors have all norms and linears that the row declares, in the last block, but for cross-attention's."""
    declared = bound.stack
    blocks = (*declared.last_linear, *declared.other_writes, declared.last_norm, *declared.other_norms)
    wanted = [name for name in (*blocks, *declared.reading_norms) if name and "cross" not in name]
    if declared.layouts:  # the last block is one of several kinds, which was checked: what every kind has
        wanted = [name for name in wanted if all(name in layout for layout in declared.layouts)]
    have = [name for name, layers in (*bound.norms.items(), *bound.linears.items()) if layers[-1]]
    before = [param.name.removeprefix(bound.prefix) for param in (*bound.embeddings, *bound.embedding_norm)]
    outside = [name for name in (*declared.embedding_linears, declared.embedding_norm) if name]
    return all(
        any(one == name.removesuffix("()") or one.startswith(f"{name}.") for one in found)
        for names, found in ((wanted, have), (outside, before))
        for name in names
    )
