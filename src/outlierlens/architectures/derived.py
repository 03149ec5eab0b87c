"""Rows that nobody wrote: of every type that transformers can build, made by a script and kept with the package; and of others.

    stacks_of(config)              # the package's row, or the user's cache's, or that of an experiment made now
    fits(row["structure"], config) # whether a row serves a config of its type

A row of the package was derived from the config that transformers has as its type's default. It serves configs that differ
in sizes alone; where one differs in what is switched on, or in kinds of layers, the experiment is made anew and its row kept
in the user's cache by type and structure.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from outlierlens.architectures.stack import Config, Stack, stack_of, structure
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.results.safe_files import cache_root, read_json, write_text

FILE = "derived.json"
FORM = 1  # of the file and of the cache


def stacks_of(config: Config) -> tuple[Stack, ...]:
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
