"""THE table: `model_type` -> what no experiment shows of that family; its streams; and which row describes a model.

    stacks_of(config)                                             # its residual streams
    family_of(config).head_reads_last                             # a fact beside them
    kind_of("roberta.embeddings.position_embeddings.weight")      # "position": what a row of the table stands for
    first_row({"model_type": "roberta", "pad_token_id": 1})       # 2: row 2 is position 0
    stacks_for(checkpoint, None)                                  # the config's; without a model_type, by the tensors
    stacks_for(checkpoint, "bert")                                # as --model-args family=bert says
    stacks_for(checkpoint, Path("row.toml"))                      # as --model-args arch=row.toml says

A row lies with those it resembles, in a file `rows_….py`. To add a family: one entry there, one tiny config in
`tests/architectures.py`; see CONTRIBUTING.md.
"""

import difflib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from outlierlens.architectures import derived, rows_decoders, rows_encoders
from outlierlens.architectures.bind import BoundStack, bind
from outlierlens.architectures.rows_decoders import LIKE_LLAMA
from outlierlens.architectures.rows_encoders import ENCODER_DECODERS
from outlierlens.architectures.stack import BY_HAND, Config, Family, Stack, load_toml
from outlierlens.errors import OutlierlensError, UnknownArchitecture

ARCHITECTURES: dict[str, Family] = {
    model_type: row.named(model_type)
    for rows in (LIKE_LLAMA, rows_decoders.ROWS, ENCODER_DECODERS, rows_encoders.ROWS)
    for model_type, row in rows.items()
}

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
        found = derived.stacks_of(config)
    except UnknownArchitecture as error:
        near = difflib.get_close_matches(model_type, derived.packaged(), n=3, cutoff=0.4)
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
    rows = (row.stacks(config),) if row.stacks else derived.packaged_stacks(config)
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
