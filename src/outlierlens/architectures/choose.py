"""Which row describes a model: the one asked for, that of its config's model_type, or the only one that its tensors fit.

stacks = stacks_for(checkpoint, None)                 # the config's; without a model_type, by the tensors
stacks = stacks_for(checkpoint, "bert")               # as --family says
stacks = stacks_for(checkpoint, Path("row.toml"))     # as --arch says
families(names)                                       # ("bert",)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from outlierlens.architectures.bind import BoundStack, bind
from outlierlens.architectures.rows import ARCHITECTURES, stacks_of
from outlierlens.architectures.stack import Config, Stack, load_toml
from outlierlens.errors import OutlierlensError, UnknownArchitecture

# A file (--arch), a model_type (--family), or neither.
RowChoice = Path | str | None


class Source(Protocol):
    """As much of a checkpoint as choosing takes."""

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
        return stacks_of(source.config, "--family")
    if isinstance(source.config.get("model_type"), str):
        return stacks_of(source.config, source.name)
    found = families(source.tensors, source.config, source.name)
    if len(found) == 1:
        source.config = {**source.config, "model_type": found[0]}
    source.notes = (*source.notes, no_model_type(found))
    return stacks_of({**source.config, "model_type": found[0]}, source.name)


def no_model_type(found: tuple[str, ...]) -> str:
    """The remark that a family was chosen by the tensors."""
    others = f" (and {', '.join(found[1:])})" if len(found) > 1 else ""
    return (
        f"no model_type in the config: taken for {found[0]}{others}, whose row alone fits the names of the tensors; "
        f"--family says otherwise"
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
    fits = [fit for family in among if (fit := _fit(family, names, config or {})) is not None]
    most = max((fit.n_parameters for fit in fits), default=0)
    best = [fit for fit in fits if fit.n_parameters == most]
    best = [fit for fit in best if fit.has_heads] or best
    if not best:
        raise UnknownArchitecture(
            f"{where}: no model_type in its config, and no row of the table fits its tensors; name the family that it is "
            f"built like (--family bert), or write a row by hand (docs/architectures.md) and pass --arch row.toml"
        )
    if any(fit.stacks != best[0].stacks for fit in best):
        raise UnknownArchitecture(
            f"{where}: no model_type in its config, and its tensors fit the rows of {', '.join(fit.family for fit in best)}; "
            f"say which, such as --family {best[0].family}"
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
    return replace(stack, heads=(), readers={}, rectified={}, neurons={}, activation="")


def _fit(family: str, names: Collection[str], config: Config) -> _Fit | None:
    try:
        stacks = stacks_of({**config, "model_type": family})
        bound = bind(stacks, names, config)
    except OutlierlensError:
        return None
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
    have = [name for name, layers in (*bound.norms.items(), *bound.linears.items()) if layers[-1]]
    before = [param.name.removeprefix(bound.prefix) for param in (*bound.embeddings, *bound.embedding_norm)]
    outside = [name for name in (*declared.embedding_linears, declared.embedding_norm) if name]
    return all(
        any(one == name.removesuffix("()") or one.startswith(f"{name}.") for one in found)
        for names, found in ((wanted, have), (outside, before))
        for name in names
    )
