"""Which models an atlas holds: names in a file, or what a hub lists.

    for named in names_in(Path("models.txt")): named.model, named.revision
    for named in listed(Query(task="fill-mask", downloads=1000), None): named.license, named.created

A file has one name per line, `name@revision` for one revision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from outlierlens.checkpoints.base import MAX_CONFIG_BYTES
from outlierlens.errors import BadFile, BadInput, Offline, RemoteError, near, one_line
from outlierlens.results.safe_files import parse_json

if TYPE_CHECKING:
    from outlierlens.checkpoints.ranges import Rate

LONGEST_NAME = 300  # characters
MOST_ENTRIES = 10_000  # of one page; hubs list up to 1,000
FEW_PAGES, LEAST_ENTRIES = 10, 10  # after the first few, pages that bring fewer new models on average end the list


@dataclass(frozen=True)
class ListEntry:
    """A model to look at, and what its list says of it.

    Attributes:
        revision: full commit hash, branch or tag; "" for what the main branch is now.
        listed: by a hub, so that the name is no path of this machine.
        known: revisions that the atlas holds already, of a model whose present one has to be asked for.
        fault: what is wrong with its entry in the list, so that it is not looked at; "" where nothing is.
    """

    model: str
    revision: str = ""
    license: str | None = None
    created: str | None = None
    downloads: int | None = None
    listed: bool = False
    known: tuple[str, ...] = ()
    fault: str = ""


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


def names_in(path: Path) -> Iterator[ListEntry]:
    """The models of a file, each once, in its order.

    Raises:
        BadInput: no such file. BadFile: no names in it, or something else than names.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file of names; write one model per line")
    seen = set[str]()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            name = line.partition("#")[0].strip()
            if len(name) > LONGEST_NAME or not name.isprintable():
                raise BadFile(f"{path}, line {number}: not a model's name; write one model per line")
            if name and name not in seen:
                seen.add(name)
                model, _, revision = name.partition("@")
                yield ListEntry(model, revision)
    if not seen:
        raise BadFile(f"{path}: holds no names; write one model per line")


def _checked(values: Mapping[str, Any], where: str) -> ListEntry:
    """What a hub's list says of a model; its name is `where` where it has none, and `fault` says what no atlas holds."""
    for name, value in values.items():
        fits = isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME
        if name == "downloads":
            fits = type(value) is int and 0 <= value < 2**63
        if not (fits or (value is None and name != "model")):
            said = repr(value)[:80] if isinstance(value, str | int | float) else f"a {type(value).__name__}"
            model = one_line(where)[:LONGEST_NAME] if name == "model" else values["model"]
            return ListEntry(model, fault=f"{where}: {name} is {said}, which no atlas holds", listed=True)
    return ListEntry(**{name: value for name, value in values.items() if value is not None}, listed=True)


def listed(asked: Query, token: str | None, rate: "Rate | None" = None) -> Iterator[ListEntry]:
    """The models that the hub at HF_ENDPOINT lists, most downloads first, page by page, at their present revision.

    A malformed entry is a model with a `fault`.

    Raises:
        RemoteError: it cannot be reached, refuses, or sends no list. Offline: the network is switched off.
    """
    from outlierlens.checkpoints.ranges import Wire
    from outlierlens.checkpoints.samples import network_is_off

    wire, seen = Wire(token, rate=rate), set[str]()
    endpoint = wire.endpoint
    if network_is_off():
        raise Offline(f"{endpoint}: HF_HUB_OFFLINE is set, and models are listed there; unset it, or name a file")
    words = {
        "pipeline_tag": asked.task, "filter": asked.family, "author": asked.author, "search": asked.search,
        "sort": "downloads", "expand": ["sha", "createdAt", "downloads", "tags"],
    }  # fmt: skip
    url = f"{endpoint}/api/models?{urlencode({name: word for name, word in words.items() if word}, doseq=True)}"
    try:
        for number, page in enumerate(wire.pages(url, limit=MAX_CONFIG_BYTES), 1):
            if page.status != 200:
                raise RemoteError(f"status {page.status} {page.headers.get('x-error-message', '')[:200]}; check it")
            for named in _entries(bytes(page.body), f"{endpoint}, page {number} of the list"):
                if named.model in seen:
                    continue
                if not named.fault and (named.downloads or 0) < asked.downloads:
                    return
                seen.add(named.model)
                yield named
            if number > FEW_PAGES + len(seen) // LEAST_ENTRIES:
                raise RemoteError(f"{number} pages for {len(seen)} models; check HF_ENDPOINT")
    except RemoteError as error:
        said = one_line(str(error).rpartition("; ")[0])  # its remedy is one for a single model
        raise RemoteError(f"{endpoint}: cannot list models ({said}); check HF_ENDPOINT and the network") from error


def _entries(body: bytes, where: str) -> Iterator[ListEntry]:
    """The models of a page of a hub's list."""
    entries = parse_json(body, where, error=RemoteError)
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise RemoteError(f"{where}: no list of at most {MOST_ENTRIES:,} models; is it a hub?")
    for number, entry in enumerate(entries, 1):
        told = entry if isinstance(entry, dict) else {}
        tags, created = told.get("tags"), told.get("createdAt")
        if isinstance(tags, list):
            tags = next((tag[8:] for tag in tags if isinstance(tag, str) and tag.startswith("license:")), None)
        elif isinstance(tags, str):
            tags = [tags]  # no list, and so no licence
        values = {
            "model": told.get("id"), "revision": told.get("sha"), "license": tags,
            "created": created[:10] if isinstance(created, str) else created, "downloads": told.get("downloads"),
        }  # fmt: skip
        yield _checked(values, f"{where}, entry {number}")
