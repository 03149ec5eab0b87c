"""The atlas's rows: what is kept of a model, without torch, and a folder of Parquet files that only grows.

    with open_checkpoint("mpnet-base") as checkpoint, Store.open(Path("atlas")) as store:
        store.append(rows_of(checkpoint))            # all rows of one model at once
    for row in read_rows(Path("atlas")): row.model, [one.dim for one in row.outliers]

Outliers are those of the blocks' last operation, as `scan` finds them: of models that end in a norm (BERT) from a few
kilobytes, of others (Llama) from the last linears. The vectors, by which models are compared, are those of that norm, or of
the first that reads the stream.

A model has a row for each of its residual streams (encoder and decoder are two), and one row without a stream where it could
not be read. Rows that wait become a Parquet file every `PART_SECONDS`, or sooner where they are large: a killed process loses
those that wait, and the next one looks at these models again.

Which models an atlas holds: names in a file, or what a hub lists.

    for named in names_in(Path("models.txt")): named.model, named.revision
    for named in listed(Query(task="fill-mask", downloads=1000), None): named.license, named.created

A file has one name per line, `name@revision` for one revision.
"""

import functools
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

import outlierlens.architectures as arch
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.base import MAX_CONFIG_BYTES
from outlierlens.data.tables import parquet_of
from outlierlens.detection.rules import LastOperation, Outlier, find
from outlierlens.detection.weights import ScanOptions, Site, check_size, measure, sites_of, strongest
from outlierlens.errors import BadFile, BadInput, Offline, RemoteError, near, need, one_line
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import parse_json, replacing

if TYPE_CHECKING:
    from outlierlens.checkpoints.ranges import Rate

VERSION = 1  # of the columns
PART_SECONDS = 30.0
PART_BYTES = 16_000_000  # of the vectors that wait
READ_ROWS = 256  # that are held at once
PARTS = "part-*.parquet"


@dataclass(frozen=True)
class AtlasOutlier:
    """One dimension that the rule found in a stream.

    Attributes:
        z_scale: of largest magnitude over the layers, with its sign; z_bias likewise, None where the norm has no bias.
        sign: of z_scale: −1 or 1.
        layers: 0-based layers in which |z| of the scale passes the rule's threshold.
        p_holm: under independent positions per layer, corrected over the dimensions of the stream.
    """

    dim: int
    z_scale: float
    z_bias: float | None
    sign: int
    layers: tuple[int, ...]
    p_holm: float


@dataclass(frozen=True)
class AtlasRow:
    """A residual stream of a model at a revision; of a model that could not be read, why.

    Attributes:
        model: hub id, sample name or path. revision: full commit hash; of local files the digest of what was read; "" where
            none became known.
        stack: the stream: "model", "encoder", "decoder", "text", …; "" where nothing was read.
        site: where the outliers were measured, relative to a block, as `scan` names it.
        family: model_type of the config; where that has none, the first whose row fits the tensors. norm: "layernorm" or
            "rmsnorm".
        norm_site: "stream" (post-norm), "write" (what a block adds is normed) or "read" (pre-norm).
        dtype: that most bytes of the weights are stored in. format: of the file.
        license, origin, created, downloads: as the hub tells; origin is where the model came from; created a day, 2019-10-04.
        bytes_read, bytes_total, requests, seconds: of the whole model, the same in each of its rows.
        outliers: strongest first.
        scale: of the norm at `site`, or of the first that reads the stream, its factors float16 [layers, width], as they
            act (1 + w where the family's norms add 1); None without one. bias likewise. Beyond ±65,504 they are infinite.
        failure: why the model could not be read, one line; None where it was. reason: in one or two words, to count by.
        version: of these columns.
    """

    model: str
    revision: str = ""
    stack: str = ""
    site: str = ""
    family: str = ""
    width: int = 0
    layers: int = 0
    dtype: str = ""
    format: str = ""
    norm: str = ""
    norm_site: str = ""
    license: str | None = None
    origin: str | None = None
    created: str | None = None
    downloads: int | None = None
    bytes_read: int = 0
    bytes_total: int = 0
    requests: int = 0
    seconds: float = 0.0
    outliers: tuple[AtlasOutlier, ...] = ()
    scale: np.ndarray | None = field(default=None, repr=False, compare=False)
    bias: np.ndarray | None = field(default=None, repr=False, compare=False)
    reason: str | None = None
    failure: str | None = None
    version: int = VERSION

    @property
    def key(self) -> tuple[str, str]:
        """What is done once: a model at a revision."""
        return self.model, self.revision


# --- of one model -----------------------------------------------------------------------------------------------------


def rows_of(checkpoint: Checkpoint, options: ScanOptions | None = None) -> tuple[AtlasRow, ...]:
    """A row for each residual stream of an open checkpoint, measured as `scan` with these options does.

    Raises:
        UnknownArchitecture, BadFile: see `architectures.bind`. TooMuchToRead: its linears have more than `max_read` bytes.
        RemoteError, TooMuchToRead: it is remote, and cannot be read, or not within the limit.
    """
    options = options or ScanOptions()
    began = time.monotonic()
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    sites = [site for stack in bound for site in sites_of(stack, options.view)]
    check_size(checkpoint, sites, options, instead="")
    measured = [(site, measure(checkpoint, site, digest)[0]) for site in sites]
    norms = [values if site.is_norm else _reading(checkpoint, site, digest) for site, values in measured]
    told = checkpoint.config.get("model_type")
    whole = AtlasRow(
        checkpoint.name,
        revision=getattr(checkpoint, "commit", "") or digest.hexdigest(),
        family=str(told or arch.families(checkpoint.tensors, checkpoint.config, checkpoint.name)[0]),
        format="safetensors" if checkpoint.kind == "hub" else checkpoint.kind,
        bytes_read=checkpoint.bytes_read,
        bytes_total=checkpoint.total_bytes,
        requests=getattr(checkpoint, "requests", 0),
        seconds=time.monotonic() - began,
    )
    rows = []
    for (site, values), norm in zip(measured, norms, strict=True):
        outliers = find(values, options.rule)
        layers, width = values.scale.shape
        scale, bias = (norm.scale, norm.bias) if norm else (None, None)
        rows.append(
            replace(
                whole,
                stack=site.stack.name, site=site.name, width=width, layers=layers, norm_site=site.stack.stack.norm_site,
                norm=norm_kind(checkpoint.config, has_bias=bias is not None),
                dtype=stored_as(checkpoint, site), outliers=tuple(map(_outlier, outliers)),
                scale=_half(scale), bias=_half(bias),
            )
        )  # fmt: skip
    return tuple(rows)


def norm_kind(config: Mapping[str, Any], *, has_bias: bool) -> str:
    """ "layernorm" or "rmsnorm": a bias is LayerNorm's; without one the config's words tell."""
    if has_bias:
        return "layernorm"
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    keys = {key for one in (config, *inner) for key in one}
    if str(config.get("norm_kind", "")) in ("layernorm", "rmsnorm"):
        return str(config["norm_kind"])
    names_rms = any("rms" in key for key in keys)
    return "layernorm" if not names_rms and keys & {"norm_bias", "layer_norm_eps"} else "rmsnorm"


def stored_as(checkpoint: Checkpoint, site: Site) -> str:
    """The format's word for the type of most of the weights; of a model in shards, of which few are opened, of the norms."""
    if getattr(checkpoint, "in_shards", False):
        return checkpoint.tensors[site.scale[0][0].name].dtype
    sizes = Counter[str]()
    for info in checkpoint.tensors.values():
        sizes[info.dtype] += info.nbytes
    return sizes.most_common(1)[0][0]


def _reading(checkpoint: Checkpoint, site: Site, digest: Any) -> LastOperation | None:
    """The vectors of the first norm that reads the stream; None where it has none that every layer has."""
    first = sites_of(site.stack, "reading")[:1]
    return measure(checkpoint, first[0], digest)[0] if first else None


def _outlier(one: Outlier) -> AtlasOutlier:
    z = strongest(one.z_scale)
    return AtlasOutlier(
        one.dim, z, strongest(one.z_bias) if one.z_bias else None, 1 if z > 0 else -1, one.layers_scale, one.p_holm
    )


def _half(values: np.ndarray | None) -> np.ndarray | None:
    with np.errstate(over="ignore"):
        return None if values is None else values.astype(np.float16)


# --- as Parquet has them ----------------------------------------------------------------------------------------------

ARRAYS = ("scale", "bias")
MAY_BE_NULL = {"license", "origin", "created", "downloads", "z_bias", "reason", "failure", *ARRAYS}
MOST_ITEMS = 10_000  # of any other list; not one dimension in four can pass 3 sigma in half of the layers
FINITE = {"z_scale", "z_bias", "p_holm"}
ELSE = "name another file, or make one with `outlierlens atlas build`"


def to_plain(row: AtlasRow) -> dict[str, Any]:
    """The row as Parquet holds it: outliers as dicts, arrays flat."""
    plain = {one.name: getattr(row, one.name) for one in fields(row)}
    plain["outliers"] = [vars(one) | {"layers": list(one.layers)} for one in row.outliers]
    for name in ARRAYS:
        plain[name] = None if plain[name] is None else plain[name].astype(np.float16).ravel()
    return plain


def from_plain(plain: dict[str, Any]) -> AtlasRow:
    """The row of what `to_plain` gave; columns that are left out keep their defaults.

    Raises:
        BadFile: a vector is not as long as layers times width.
    """
    values = dict(plain)
    if values.get("version", VERSION) > VERSION:
        raise BadFile(f"atlas rows of version {values['version']}; this outlierlens reads up to {VERSION}: update it")
    if "outliers" in values:
        values["outliers"] = tuple(
            AtlasOutlier(**one | {"layers": tuple(one["layers"])}) for one in values["outliers"] or ()
        )
    for name in ARRAYS:
        if values.get(name) is not None:
            flat = np.asarray(values[name], dtype=np.float16)
            if flat.size != values["layers"] * values["width"] or not flat.size:
                raise BadFile(f"atlas row of {values['model']}: {name} has {flat.size} values, not layers × width")
            values[name] = flat.reshape(values["layers"], values["width"])
    return AtlasRow(**values)


@functools.cache
def schema() -> Any:
    """The Parquet columns."""
    arrow = need("pyarrow", "models", "the atlas")
    outlier = arrow.struct(
        {
            "dim": arrow.int32(), "z_scale": arrow.float32(), "z_bias": arrow.float32(), "sign": arrow.int8(),
            "layers": arrow.list_(arrow.int16()), "p_holm": arrow.float64(),
        }.items()
    )  # fmt: skip
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float32()}
    special = {"outliers": arrow.list_(outlier), **dict.fromkeys(ARRAYS, arrow.list_(arrow.float16()))}
    plain = {str | None: str, int | None: int}
    return arrow.schema(
        [(one.name, special.get(one.name) or kinds[plain.get(one.type, one.type)]) for one in fields(AtlasRow)],  # type: ignore[index, arg-type]
        metadata={"outlierlens_atlas": str(VERSION)},
    )


def _check_columns(found: Any) -> None:
    """Raise ValueError where a file's columns are not those of `schema`; it names the first that differs."""
    for name in dict.fromkeys((*schema().names, *found.names)):
        here, ours = (one.field(name).type if name in one.names else "missing" for one in (found, schema()))
        if here != ours:
            raise ValueError(f"column {name[:80]} is {str(here)[:80]} here and {str(ours)[:80]} in an atlas; {ELSE}")


def _check_values(name: str, column: Any) -> None:
    """Raise ValueError where a column, or a list or record in it, holds a value that no row may."""
    types, wrong = need("pyarrow.types", "models", "the atlas"), ""
    if column.null_count and name not in MAY_BE_NULL:
        wrong = "a null"
    elif types.is_struct(column.type):
        for number, one in enumerate(column.type):
            _check_values(one.name, column.field(number))
    elif types.is_list(column.type):
        if name not in ARRAYS and column.value_lengths().drop_null().to_numpy().max(initial=0) > MOST_ITEMS:
            wrong = f"a list of more than {MOST_ITEMS:,}"
        else:
            _check_values(f"{name} items", column.flatten())
    elif not types.is_string(column.type):
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if np.isnan(values).any() or (name in FINITE and np.isinf(values).any()):
            wrong = "NaN or infinity"
        elif types.is_integer(column.type) and name != "sign" and values.min(initial=0) < 0:
            wrong = "a number below 0"
    if wrong:
        raise ValueError(f"column {name} holds {wrong}; {ELSE}")


def storable(row: AtlasRow) -> AtlasRow:
    """The row, or in its place one that says which of its values no atlas holds."""
    arrow = need("pyarrow", "models", "the atlas")
    plain, name = to_plain(row), ""
    try:
        for name in schema().names:
            _check_values(name, arrow.array([plain[name]], schema().field(name).type))
    except (arrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        said = one_line(f"no atlas holds this: {name}: {str(error).removesuffix(f'; {ELSE}')}")[:1000]
        return AtlasRow(row.model, row.revision, reason="malformed", failure=said)
    return row


def write_part(path: Path, rows: Sequence[AtlasRow]) -> Path:
    """One Parquet file of `rows`, there whole or not at all."""
    arrow = need("pyarrow", "models", "the atlas")
    parquet = need("pyarrow.parquet", "models", "the atlas")
    table = arrow.Table.from_pylist([to_plain(row) for row in rows], schema=schema())
    with replacing(path) as file:
        parquet.write_table(table, file, compression="zstd")
    return path


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[AtlasRow]:
    """The rows of a folder that `Store` writes, or of one Parquet file; `columns` alone where only those are needed.

    A file is read group by group: memory does not grow with the atlas.

    Raises:
        BadInput: no such file, or a folder without rows. BadFile: a file that holds none.
    """
    if columns is not None:
        columns = list(dict.fromkeys(("model", "layers", "width", "version", *columns)))
    files = sorted(path.glob(PARTS)) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise BadInput(f"{path}: no atlas; `outlierlens atlas build` makes one")
    for file in files:
        yield from map(from_plain, _plain_rows(file, columns))


def _plain_rows(file: Path, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    with parquet_of(file, BadFile) as parquet, parquet.ParquetFile(file) as opened:
        if b"outlierlens_atlas" not in (opened.schema_arrow.metadata or {}):
            raise BadFile(f"{file}: not rows of an atlas; `outlierlens atlas build` makes them")
        _check_columns(opened.schema_arrow)
        for batch in opened.iter_batches(batch_size=READ_ROWS, columns=columns):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _check_values(name, column)
            vectors = [name for name in ARRAYS if name in batch.schema.names]
            rows = batch.drop_columns(vectors).to_pylist()
            for name in vectors:
                for row, one in zip(rows, batch.column(name), strict=True):
                    row[name] = None if one.values is None else one.values.to_numpy(zero_copy_only=False)
            yield from rows


@dataclass
class Store:
    """The folder that `atlas build` writes.

    Attributes:
        done: revisions of every model with rows.
    """

    folder: Path
    done: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _waiting: list[AtlasRow] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator["Store"]:
        """Open or make the folder, which no other process may then open; what waits is written at the end.

        Raises:
            BadInput: another process writes to it. BadFile: something in it is not as it was written.
        """
        need("pyarrow", "models", "the atlas")
        with alone_in(folder, "atlas build", PARTS):
            store = cls(folder)
            for file in sorted(folder.glob(PARTS)):
                for plain in _plain_rows(file, ["model", "revision"]):
                    store._note(plain["model"], plain["revision"])
            try:
                yield store
            finally:
                store.flush()

    def _note(self, model: str, revision: str) -> None:
        self.done[model] = tuple(dict.fromkeys((*self.done.get(model, ()), revision)))

    def append(self, rows: Sequence[AtlasRow]) -> None:
        """Keep all rows of one model, unless its revision has some: what a name stands for may come to be known by looking."""
        first = rows[0]
        if first.revision in self.done.get(first.model, ()):
            return
        self._note(*first.key)
        self._waiting += rows
        size = sum(one.nbytes for row in self._waiting for one in (row.scale, row.bias) if one is not None)
        if size > PART_BYTES or time.monotonic() - self._since > PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Make a Parquet file of the rows that wait."""
        if self._waiting:
            numbers = [int(file.stem.rpartition("-")[2]) for file in self.folder.glob(PARTS)]
            write_part(self.folder / f"part-{max(numbers, default=0) + 1:06}.parquet", self._waiting)
        self._waiting, self._since = [], time.monotonic()


# --- names of models -------------------------------------------------------------------------------------------------


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
