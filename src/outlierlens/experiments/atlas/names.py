"""Which models an atlas holds: names in a file, or what a hub lists.

    for named in names_in(Path("models.txt")): named.model, named.revision
    for named in listed(Query(task="fill-mask", downloads=1000), token=None): named.license, named.created

A text file has one name per line, `name@revision` for one revision; a Parquet file has columns `model` and, where it likes,
`revision`, `license`, `created` and `downloads`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outlierlens.data.tables import parquet_of
from outlierlens.errors import BadFile, BadInput, RemoteError, near, one_line

LONGEST_NAME = 300  # characters
GIVEN = ("model", "revision", "license", "created", "downloads")


@dataclass(frozen=True)
class Named:
    """A model to look at, and what its list says of it.

    Attributes:
        revision: full commit hash, branch or tag; "" for what the main branch is now.
        listed: by a hub, so that the name is no path of this machine.
        known: revisions that the atlas holds already, of a model whose present one has to be asked for.
    """

    model: str
    revision: str = ""
    license: str | None = None
    created: str | None = None
    downloads: int | None = None
    listed: bool = False
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Query:
    """What a hub is asked for: every field that is given must fit.

    Attributes:
        task: as the hub calls it: fill-mask, text-generation. family: a model_type, such as bert.
        author: an organisation or user. search: part of the name.
        downloads: the fewest in the last 30 days; most come first.
    """

    task: str = ""
    family: str = ""
    author: str = ""
    search: str = ""
    downloads: int = 0


def query(text: str) -> Query:
    """ "task=fill-mask,downloads=1000" -> Query; raises BadInput for a word that is none of its fields."""
    known = [one.name for one in fields(Query)]
    values: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in known or not value:
            raise BadInput(
                f"cannot read the query {text!r}: {part!r} is no {', '.join(known[:-1])} or {known[-1]}{near(name, known)}; "
                "write task=fill-mask,downloads=1000"
            )
        values[name] = value
    if not values:
        raise BadInput("the query is empty; write task=fill-mask,downloads=1000")
    downloads = str(values.get("downloads", "0"))
    if not downloads.isdecimal() or len(downloads) > 12:
        raise BadInput(f"downloads is {downloads!r} in the query; write a number, such as downloads=1000")
    return Query(**values | {"downloads": int(downloads)})


def names_in(path: Path) -> Iterator[Named]:
    """The models of a file, each once, in its order.

    Raises:
        BadInput: no such file. BadFile: no names in it, or a Parquet file without a column `model`.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file of names; write one model per line")
    seen = set[tuple[str, str]]()
    for named in _in_parquet(path) if path.suffix == ".parquet" else _in_text(path):
        if (named.model, named.revision) not in seen:
            seen.add((named.model, named.revision))
            yield named
    if not seen:
        raise BadFile(f"{path}: holds no names; write one model per line")


def _in_text(path: Path) -> Iterator[Named]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            name = line.partition("#")[0].strip()
            if len(name) > LONGEST_NAME or not name.isprintable():
                raise BadFile(f"{path}, line {number}: not a model's name; write one model per line")
            if name:
                model, _, revision = name.partition("@")
                yield Named(model, revision)


def _in_parquet(path: Path) -> Iterator[Named]:
    with parquet_of(path, BadFile) as parquet, parquet.ParquetFile(path) as file:
        columns = [name for name in GIVEN if name in file.schema_arrow.names]
        if "model" not in columns:
            raise BadFile(f"{path}: has no column 'model'; it has {', '.join(file.schema_arrow.names[:8]) or 'none'}")
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                if isinstance(row["model"], str) and row["model"]:
                    downloads = row.get("downloads")
                    yield Named(
                        row["model"], str(row.get("revision") or ""), _text(row.get("license")),
                        _text(row.get("created")), downloads if isinstance(downloads, int) else None,
                    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def listed(asked: Query, token: str | None) -> Iterator[Named]:
    """The models that the hub at HF_ENDPOINT lists, most downloads first, page by page, at their present revision.

    Raises:
        RemoteError: it cannot be reached or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    from outlierlens.checkpoints.ranges import transport_errors
    from outlierlens.checkpoints.repository import hub_endpoint

    endpoint = hub_endpoint()
    refusals: tuple[type[Exception], ...] = (HfHubHTTPError, *transport_errors())
    try:
        for found in HfApi(endpoint=endpoint, token=token).list_models(
            pipeline_tag=asked.task or None, filter=asked.family or None, author=asked.author or None,
            search=asked.search or None, sort="downloads", expand=["sha", "createdAt", "downloads", "tags"],
        ):  # fmt: skip
            if (found.downloads or 0) < asked.downloads:
                return
            license_ = next((tag.partition(":")[2] for tag in found.tags or () if tag.startswith("license:")), None)
            created = None if found.created_at is None else found.created_at.date().isoformat()
            yield Named(found.id, found.sha or "", license_, created, found.downloads, listed=True)
    except refusals as error:
        raise RemoteError(
            f"{endpoint}: cannot list models ({one_line(str(error))[:300]}); check HF_ENDPOINT"
        ) from error
