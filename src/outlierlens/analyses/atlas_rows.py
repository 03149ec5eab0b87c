"""The atlas's rows: what is kept of a model, without torch, and a folder of Parquet files that only grows.

    with open_checkpoint("mpnet-base") as checkpoint, Store.open(Path("atlas")) as store:
        store.append(rows_of(checkpoint))            # all rows of one model at once: a killed process loses none of them
    for row in read_rows(Path("atlas")): row.model, [one.dim for one in row.outliers]

Outliers are those of the blocks' last operation, as `scan` finds them: of models that end in a norm (BERT) from a few
kilobytes, of others (Llama) from the last linears. The vectors, by which models are compared, are those of that norm, or of
the first that reads the stream.

A model has a row for each of its residual streams (encoder and decoder are two), and one row without a stream where it could
not be read. A finished model goes to a journal first; when that holds `PART_MODELS` of them, its rows become one
Parquet file, so that memory and the number of files stay small.
"""

import base64
import functools
import hashlib
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.checkpoints import Checkpoint
from outlierlens.data.tables import parquet_of
from outlierlens.detection.rules import Measured, Outlier, find
from outlierlens.detection.weights import ScanOptions, Site, check_size, measure, sites_of, strongest
from outlierlens.errors import BadFile, BadInput, need, one_line
from outlierlens.results import row_store
from outlierlens.results.row_store import RowStore, alone_in
from outlierlens.results.safe_files import replacing

VERSION = 1  # of the columns
PART_MODELS = 256
PART_BYTES = 32_000_000  # of the journal: large models fill it sooner
JOURNAL = "journal.jsonl"
PARTS = "part-*.parquet"
IDENTITY = {"kind": "atlas", "version": VERSION}
# Reasons of failure that a later run tries again; all others stay as they are at this revision.
PASSING = ("unreachable", "error")


@dataclass(frozen=True)
class AtlasOutlier:
    """One dimension that the rule found in a stream.

    Attributes:
        z_scale: of largest magnitude over the layers, with its sign; z_bias likewise, None where the norm has no bias.
        sign: of z_scale: −1 or 1.
        layers: 0-based layers in which |z| of the scale passes the rule's threshold.
        p_holm: under independent positions a layer, corrected over the dimensions of the stream.
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
        k_bias_norms: Euclidean norm of each layer's key bias; () where keys have none.
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
    k_bias_norms: tuple[float, ...] = ()
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
    keys = key_bias_norms(checkpoint)
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
    for number, ((site, values), norm) in enumerate(zip(measured, norms, strict=True)):
        outliers, _ = find(values, options.rule)
        layers, width = values.scale.shape
        scale, bias = (norm.scale, norm.bias) if norm else (None, None)
        rows.append(
            replace(
                whole,
                stack=site.stack.name, site=site.name, width=width, layers=layers, norm_site=site.stack.stack.norm_site,
                norm=norm_kind(checkpoint.config, has_bias=bias is not None),
                dtype=stored_as(checkpoint, site), outliers=tuple(map(_outlier, outliers)),
                scale=_half(scale), bias=_half(bias), k_bias_norms=keys if number == 0 else (),
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


# Keys alone, and queries, keys and values one behind the other (GPT-2). What mixes them by head is not taken apart.
_KEYS = re.compile(r"(?:^|.*\.)(\d+)\.(?:.*\.)?(?:k_proj|k_lin|key)\.bias")
_JOINED_KEYS = re.compile(r"(?:^|.*\.)h\.(\d+)\.attn\.c_attn\.bias")
_CROSS = ("cross", "encoder_attn")  # keys of another stream


def key_bias_norms(checkpoint: Checkpoint) -> tuple[float, ...]:
    """Euclidean norm of each layer's key bias; () where the family's keys have none. Only these tensors are read."""
    layers = {}
    for name in checkpoint.tensors:
        match = _KEYS.fullmatch(name) or _JOINED_KEYS.fullmatch(name)
        if match and not any(word in name.lower() for word in _CROSS):
            layers[name] = int(match[1])
    norms = {}
    for name, values in checkpoint.read(layers):
        keys = values.ravel()
        if _JOINED_KEYS.fullmatch(name):
            keys = np.split(keys, 3)[1] if keys.size % 3 == 0 else keys[:0]
        if keys.size:
            size = np.nan_to_num(np.abs(keys.astype(np.float64)), nan=np.inf)
            norms[layers[name], name] = float(np.linalg.norm(size))
    return tuple(norms[key] for key in sorted(norms))


def stored_as(checkpoint: Checkpoint, site: Site) -> str:
    """The format's word for the type of most of the weights; of a model in shards, of which few are opened, of the norms."""
    if getattr(checkpoint, "in_shards", False):
        return checkpoint.tensors[site.scale[0][0].name].dtype
    sizes = Counter[str]()
    for info in checkpoint.tensors.values():
        sizes[info.dtype] += info.nbytes
    return sizes.most_common(1)[0][0]


def _reading(checkpoint: Checkpoint, site: Site, digest: Any) -> Measured | None:
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
    plain["k_bias_norms"] = list(row.k_bias_norms)
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
    if "k_bias_norms" in values:
        values["k_bias_norms"] = tuple(values["k_bias_norms"] or ())
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
    special = {
        "outliers": arrow.list_(outlier), "k_bias_norms": arrow.list_(arrow.float32()),
        **dict.fromkeys(ARRAYS, arrow.list_(arrow.float16())),
    }  # fmt: skip
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
        return _malformed(row.model, row.revision, f"{name}: {str(error).removesuffix(f'; {ELSE}')}")
    return row


def _malformed(model: str, revision: str, what: str) -> AtlasRow:
    return AtlasRow(model, revision, reason="malformed", failure=one_line(f"no atlas holds this: {what}")[:1000])


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

    Rows that are still in the journal come last. A file is read group by group: memory does not grow with the atlas.

    Raises:
        BadInput: no such file, or a folder without rows. BadFile: a file that holds none.
    """
    if columns is not None:
        columns = list(dict.fromkeys(("model", "layers", "width", "version", *columns)))
    files = sorted(path.glob(PARTS)) if path.is_dir() else [path]
    journal = path / JOURNAL
    if not journal.is_file() and not all(file.is_file() for file in files or [journal]):
        raise BadInput(f"{path}: no atlas; `outlierlens atlas build` makes one")
    last = set[tuple[str, str]]()
    for file in files:
        last = set()
        for plain in _plain_rows(file, columns):
            row = from_plain(plain)
            last.add(row.key)
            yield row
    if path.is_dir() and journal.is_file():
        for row in _from_journal(row_store.read_rows(journal)[1]):
            if row.key not in last:  # the process ended between writing the part and emptying the journal
                yield row


def _plain_rows(file: Path, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    with parquet_of(file, BadFile) as parquet, parquet.ParquetFile(file) as opened:
        if b"outlierlens_atlas" not in (opened.schema_arrow.metadata or {}):
            raise BadFile(f"{file}: not rows of an atlas; `outlierlens atlas build` makes them")
        _check_columns(opened.schema_arrow)
        for batch in opened.iter_batches(batch_size=PART_MODELS, columns=columns):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _check_values(name, column)
            vectors = [name for name in ARRAYS if name in batch.schema.names]
            rows = batch.drop_columns(vectors).to_pylist()
            for name in vectors:
                for row, one in zip(rows, batch.column(name), strict=True):
                    row[name] = None if one.values is None else one.values.to_numpy(zero_copy_only=False)
            yield from rows


def _journal_line(rows: Sequence[AtlasRow]) -> list[dict[str, Any]]:
    def packed(value: Any) -> Any:
        return base64.b64encode(value.tobytes()).decode() if isinstance(value, np.ndarray) else value

    return [{name: packed(value) for name, value in to_plain(row).items()} for row in rows]


def _from_journal(done: Mapping[str, Any]) -> Iterator[AtlasRow]:
    """The rows of a journal's units; in place of what no atlas holds a row that says so."""

    def vector(text: str | None) -> np.ndarray | None:
        return None if text is None else np.frombuffer(base64.b64decode(text), np.float16)

    for key, value in done.items():
        try:
            rows = [from_plain(plain | {name: vector(plain[name]) for name in ARRAYS}) for plain in value]
            yield from list(map(storable, rows))
        except (BadFile, KeyError, TypeError, ValueError, AttributeError) as error:
            model, _, revision = key.rpartition("@")
            yield _malformed(model, revision, f"its row in the journal ({type(error).__name__}: {error})")


@dataclass
class Store:
    """The folder that `atlas build` writes: Parquet files, and a journal of models that are in none yet.

    Attributes:
        done: revisions of every model with rows that stay.
        retry: of those whose failure may be over by now, to be looked at again.
    """

    folder: Path
    journal: RowStore
    done: dict[str, tuple[str, ...]] = field(default_factory=dict)
    retry: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _lock: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Open or make the folder, which no other process may then open.

        Raises:
            BadInput: another process writes to it. BadFile: something in it is not as it was written.
        """
        need("pyarrow", "models", "the atlas")
        with ExitStack() as lock:
            lock.enter_context(alone_in(folder, "atlas build", JOURNAL, PARTS))
            journal = lock.enter_context(RowStore.open(folder / JOURNAL, IDENTITY))
            store = cls(folder, journal)
            last = set[tuple[str, str]]()
            for file in sorted(folder.glob(PARTS)):
                last = set()
                for plain in _plain_rows(file, ["model", "revision", "reason"]):
                    last.add((plain["model"], plain["revision"]))
                    store._note(plain["model"], plain["revision"], plain["reason"])
            waiting = list(_from_journal(journal.done))
            if any(row.key in last for row in waiting):
                journal.restart()  # the process ended between writing the part and emptying the journal
            else:
                for row in waiting:
                    store._note(row.model, row.revision, row.reason)
            store._lock = lock.pop_all()
        return store

    def _note(self, model: str, revision: str, reason: str | None) -> None:
        where = self.retry if reason in PASSING else self.done
        where[model] = tuple(dict.fromkeys((*where.get(model, ()), revision)))

    def append(self, rows: Sequence[AtlasRow]) -> None:
        """Keep all rows of one model at a revision that has none: a killed process no longer loses them."""
        first = rows[0]
        if first.revision in self.done.get(first.model, ()):
            return  # of a name whose revision came to be known by looking
        self.journal.append("@".join(first.key), _journal_line(rows))
        self._note(*first.key, first.reason)
        if len(self.journal.done) >= PART_MODELS or self.journal.file.tell() > PART_BYTES:
            self.flush()

    def forget(self, models: Collection[str]) -> None:
        """Drop the rows of these models that are to be tried again, which is about to happen."""
        gone = {(model, revision) for model in models for revision in self.retry.pop(model, ())}
        if not gone:
            return
        self.flush()
        for file in sorted(self.folder.glob(PARTS)):
            found = {(plain["model"], plain["revision"]) for plain in _plain_rows(file, ["model", "revision"])}
            if found & gone:
                kept = [row for row in map(from_plain, _plain_rows(file, None)) if row.key not in gone]
                if kept:
                    write_part(file, kept)
                else:
                    file.unlink()

    def flush(self) -> None:
        """Make a Parquet file of what the journal holds, and empty it."""
        rows = list(_from_journal(self.journal.done))
        if rows:
            numbers = [int(file.stem.rpartition("-")[2]) for file in self.folder.glob(PARTS)]
            write_part(self.folder / f"part-{max(numbers, default=0) + 1:06}.parquet", rows)
        self.journal.restart()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self.flush()
