"""`atlas build` and `atlas page`: the outlier dimensions of many models, a few at a time, each kept as soon as it is known.

    with Store.open(Path("atlas")) as store:
        built = build(store, names_in(Path("models.txt")), partial(in_threads, access=HubAccess(rate=10)))

An engine looks at models as their names come and yields rows in the order in which they are known. What is in the store
already is not looked at again, and nothing that a model brings stops the others. One process alone writes rows. A model that
the hub did not give has none: the next run tries again.

`outlierlens atlas page`: a site that shows an atlas, from files that load nothing.

    write_site(read_rows(Path("atlas"), COLUMNS), Path("site"))

`index.html` says how often, where and how large, and holds the models themselves while they are few; more are spread over
`models-001.html` and so on, in the order of their names, and the index leads to them. All text that came from a model or a
hub is escaped by the template, or lies in JSON that only `textContent` shows.
"""

import functools
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jinja2
from annotated_types import Ge, Gt
from markupsafe import Markup

from outlierlens import __version__
from outlierlens.analyses.atlas_rows import (
    AtlasRow,
    ListEntry,
    Query,
    Store,
    listed,
    names_in,
    read_rows,
    rows_of,
    storable,
)
from outlierlens.analyses.sweep.options import Machines
from outlierlens.checkpoints import as_weights, open_checkpoint
from outlierlens.checkpoints.hub import COMMIT, Repository, open_repository
from outlierlens.checkpoints.ranges import Rate, Wire, hub_endpoint
from outlierlens.checkpoints.samples import SAMPLES, is_sample
from outlierlens.detection.weights import MAX_READ, ScanOptions
from outlierlens.errors import (
    BadFile,
    BadInput,
    GatedModel,
    NoSafetensors,
    Offline,
    OutlierlensError,
    RemoteError,
    TooMuchToRead,
    UnknownArchitecture,
    UnknownModel,
    command,
    one_line,
    printable,
    told,
)
from outlierlens.options import Flag, Flat, check
from outlierlens.results.safe_files import alone, new_folder, write_text
from outlierlens.view.charts.base import DARK, LIGHT, css
from outlierlens.view.render import escaped_json, policy
from outlierlens.view.section import duration

if TYPE_CHECKING:
    from outlierlens.session import Session

UNREACHABLE = "unreachable"
SECONDS_BETWEEN_LINES = 20.0
MAX_UNREACHABLE = 50  # models in a row that the hub did not give before it is left alone
MAX_LOSSES = 3  # Ray workers that a model may end
# What a Ray worker must know of this process's surroundings to reach the same hub.
SURROUNDINGS = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "NO_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
# The reason of a failure by its error; the first that fits.
REASONS: tuple[tuple[type[OutlierlensError], str], ...] = (
    (GatedModel, "gated"),
    (RemoteError, UNREACHABLE),
    (Offline, UNREACHABLE),
    (UnknownModel, "missing"),
    (NoSafetensors, "no safetensors"),
    (UnknownArchitecture, "unknown family"),
    (TooMuchToRead, "too large"),
    (BadFile, "malformed"),
    (OutlierlensError, "unusable"),
)
Rows = tuple[AtlasRow, ...]
# What looks at models: the rows of each, () where its present revision is known; names are taken when there is room.
Engine = Callable[[Iterator[ListEntry]], Generator[Rows, None, None]]


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BuildCall:
    """Which models are looked at, where, and how politely."""

    names: Annotated[Path | None, Flag(argument=True)] = None
    """File of names, one per line."""
    query: Annotated[Query | None, Flag(read="analyses.atlas_rows:query")] = None
    """Ask the hub instead: task=fill-mask,family=bert,downloads=1000; also author, search."""
    limit: Annotated[int | None, Ge(1)] = None
    """Use only the first N names."""
    update: bool = False
    """Check names that have rows for a new revision, and scan it."""
    parallel: Annotated[int, Ge(1)] = 16
    """Models at once per process."""
    rate: Annotated[float | None, Flag(read="options:number_or_none", words="10"), Gt(0)] = 10.0
    """Requests per second to the hub, over all processes; none: no limit."""
    max_read: Annotated[int, Flag(read="options:parse_bytes", words="500MB"), Ge(1)] = MAX_READ
    """Maximum bytes per model."""
    max_total: Annotated[int | None, Flag(read="options:parse_bytes"), Ge(1)] = None
    """Start no further model once this many bytes were read."""
    machines: Annotated[Machines, Flat("ray", "workers", "cpus_per_worker")] = Machines()

    def __post_init__(self) -> None:
        check(self)
        if (self.names is None) == (self.query is None):
            raise BadInput(
                "which models? name a file with one name per line, or --query task=fill-mask; one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class PageCall:
    """The atlas that is shown."""

    folder: Annotated[Path, Flag(argument=True)]
    """Folder that `atlas build` wrote, or one Parquet file of rows."""


# --- one model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubAccess:
    """How models are asked for, wherever that is done.

    Attributes:
        max_bytes: of all answers for one model.
        parallel: models at once in a process.
        rate: requests a second to the hub, of all processes together; None is no limit.
    """

    token: str | None = field(default=None, repr=False)
    max_bytes: int | None = None
    parallel: int = 16
    rate: float | None = None


def look(entry: ListEntry, access: HubAccess, rate: Rate) -> Rows:
    """The rows of a model, or one that says why there are none; () where its present revision is one of `entry.known`."""
    began, here = time.monotonic(), False
    options = ScanOptions(max_read=access.max_bytes or MAX_READ)
    repository: Repository | None = None
    rows: Rows
    try:
        if entry.fault:
            raise BadFile(entry.fault)
        here = not entry.listed and (is_sample(entry.model) or Path(entry.model).exists())
        if here:
            with open_checkpoint(entry.model) as checkpoint:
                rows = rows_of(checkpoint, options)
        else:
            wire = Wire(access.token, rate=rate, max_bytes=access.max_bytes)
            repository = Repository(entry.model, wire, revision=entry.revision or None)
            if entry.known and repository.resolved() in entry.known:
                return ()
            with as_weights(open_repository(repository)) as checkpoint:
                rows = rows_of(checkpoint, options)
    except Exception as error:
        rows = (failed(entry, error),)
        if repository is not None:
            wire = repository.wire
            rows = (replace(rows[0], revision=repository.commit, bytes_read=wire.received, requests=wire.requests),)
    sample = SAMPLES.get(entry.model) if here else None
    listed: dict[str, Any] = {
        "license": entry.license or (sample.licence if sample else None), "created": entry.created,
        "origin": sample.origin if sample else "a local file" if here else hub_endpoint(), "downloads": entry.downloads,
        "seconds": time.monotonic() - began,
    }  # fmt: skip
    return tuple(storable(replace(row, **listed)) for row in rows)


def failed(entry: ListEntry, error: Exception) -> AtlasRow:
    """The row of a model that could not be read."""
    reason = next((word for kind, word in REASONS if isinstance(error, kind)), "error")
    ours = isinstance(error, (OutlierlensError, OSError, MemoryError))
    said = told(error) if ours else one_line(f"{type(error).__name__}: {error}")
    return AtlasRow(entry.model, entry.revision, reason=reason, failure=said[:1000])


# --- engines ---------------------------------------------------------------------------------------------------------


def in_threads(entries: Iterator[ListEntry], access: HubAccess) -> Generator[Rows, None, None]:
    """An `Engine` of threads in this process."""
    rate, pool, running = Rate(access.rate), ThreadPoolExecutor(access.parallel), set[Future[Rows]]()
    try:
        while True:
            for entry in islice(entries, 2 * access.parallel - len(running)):
                running.add(pool.submit(look, entry, access, rate))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        pool.shutdown(cancel_futures=True)


def on_ray(entries: Iterator[ListEntry], access: HubAccess, machines: Machines) -> Generator[Rows, None, None]:
    """An `Engine` on the machines of a Ray cluster, or in several processes of one machine.

    What workers had that died is looked at in the end, each model in a task of its own: one that ends `MAX_LOSSES` of them gets
    a row that says so.

    Raises:
        BadInput: a worker has another version of outlierlens. OutlierlensError: no worker could be had.
    """
    from outlierlens.analyses.ray_pool import Pool

    surroundings = {name: value for name in SURROUNDINGS if (value := os.environ.get(name)) is not None}
    with Pool(machines, losses=MAX_LOSSES) as pool:
        share = replace(access, rate=access.rate and access.rate / pool.workers)
        work, lost = pool.send(partial(_looking, share, surroundings)), list[ListEntry]()
        for batch, answer in pool.map(work, iter(lambda: tuple(islice(entries, 2 * access.parallel)), ())):
            if isinstance(answer, OutlierlensError):
                lost += batch
            else:
                yield from answer
        for (entry,), answer in pool.map(work, ((one,) for one in lost)):
            if isinstance(answer, OutlierlensError):
                said = OutlierlensError(f"{MAX_LOSSES} Ray workers ended while they read it ({answer})")
                yield (replace(failed(entry, said), reason="error"),)
            else:
                yield from answer


def _looking(access: HubAccess, surroundings: dict[str, str]) -> Callable[[tuple[ListEntry, ...]], list[Rows]]:
    """What looks at models in a worker process, in threads and with a rate of its own."""
    os.environ |= surroundings
    rate = Rate(access.rate)

    def look_at(entries: tuple[ListEntry, ...]) -> list[Rows]:
        with ThreadPoolExecutor(access.parallel) as threads:
            return list(threads.map(lambda entry: look(entry, access, rate), entries))

    return look_at


# --- many models -----------------------------------------------------------------------------------------------------


@dataclass
class BuildSummary:
    """What one run of `build` did.

    Attributes:
        read: models with rows. failed: by reason. before: models that the store held already.
        bytes_read, requests: of all that were looked at. stopped: why it ended before the last name, "" where it did not.
    """

    read: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    before: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    requests: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def looked_at(self) -> int:
        """Models that were looked at."""
        return self.read + self.failed.total()

    def add(self, first: AtlasRow) -> None:
        """Count a model by its first row."""
        self.bytes_read += first.bytes_read
        self.bytes_total += first.bytes_total
        self.requests += first.requests
        self.read += first.reason is None
        self.failed.update([first.reason] if first.reason else [])

    def so_far(self, total: int | None) -> str:
        """ "1,234 looked at, 41 of them not read, 25 a second, 6 min left" """
        pace = self.looked_at / self.seconds if self.seconds else 0.0
        left = f", {duration((total - self.looked_at - self.before) / pace)} left" if total and pace else ""
        return f"{self.looked_at:,} looked at, {self.failed.total():,} of them not read, {pace:.3g} a second{left}"

    def lines(self) -> Iterator[str]:
        """What it did, for reading."""
        share = f", {self.bytes_read / self.bytes_total:.3%} of their weights" if self.bytes_total else ""
        yield (
            f"{self.read:,} models read, {self.failed.total():,} not, {self.before:,} were there before; "
            f"{self.requests:,} requests, {self.bytes_read:,} bytes{share}, {duration(self.seconds)}"
        )
        if self.failed:
            yield "not read: " + ", ".join(f"{reason} {count:,}" for reason, count in self.failed.most_common())
        if self.stopped:
            yield f"stopped: {self.stopped}; the same command goes on with a larger --max-total"


def build(
    store: Store,
    entries: Iterable[ListEntry],
    engine: Engine,
    *,
    update: bool = False,
    max_total: int | None = None,
    total: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> BuildSummary:
    """Look at every model that the store has no row of, and keep its row; `total` is the number of names.

    Raises:
        RemoteError: the hub gave none of `MAX_UNREACHABLE` models in a row. What was found is kept.
    """
    built, began, said, unreachable = BuildSummary(), time.monotonic(), -SECONDS_BETWEEN_LINES, 0

    def wanted() -> Iterator[ListEntry]:
        for entry in entries:
            known, fixed = store.done.get(entry.model, ()), COMMIT.match(entry.revision)
            if entry.revision in known or (known and not update and not fixed):
                built.before += 1
                continue
            if max_total is not None and built.bytes_read >= max_total:
                built.stopped = f"{built.bytes_read:,} bytes were read, of {max_total:,} allowed"
                return
            yield entry if fixed else replace(entry, known=known)

    with closing(engine(wanted())) as looked:
        for rows in looked:
            if not rows:
                built.before += 1
                continue
            built.add(rows[0])
            if rows[0].reason != UNREACHABLE:  # which passes: the next run tries again
                store.append(rows)
            unreachable = unreachable + 1 if rows[0].reason == UNREACHABLE else 0
            if unreachable == MAX_UNREACHABLE:
                raise RemoteError(
                    f"the hub gave none of {unreachable} models in a row ({rows[0].failure}); run it again later"
                )
            built.seconds = time.monotonic() - began
            if progress and built.seconds - said >= SECONDS_BETWEEN_LINES:
                said, done = built.seconds, built.looked_at + built.before
                progress(built.so_far(total), done, total or done)
    built.seconds = time.monotonic() - began
    return built


# --- commands --------------------------------------------------------------------------------------------------------


def run(session: "Session", call: BuildCall) -> None:
    """Scan the models that are named, and report the numbers."""
    output, folder = session.output, session.output.output
    assert folder is not None  # its row asks for one
    access = HubAccess(session.loading.token, call.max_read, call.parallel, call.rate)
    total, entries = call.limit, names_in(call.names) if call.names else None
    if call.names is not None:
        total = sum(1 for _ in islice(names_in(call.names), call.limit))
    elif call.query is not None:
        entries = listed(call.query, access.token, Rate(access.rate))
    engine = partial(in_threads, access=access)
    if call.machines.ray is not None:
        engine = partial(on_ray, access=access, machines=call.machines)
    with session.resumable(folder), Store.open(folder) as store:
        built = build(
            store, islice(entries or (), call.limit), engine,
            update=call.update, max_total=call.max_total, total=total, progress=session.progress,
        )  # fmt: skip
    if output.json:
        print(json.dumps({"output": str(folder), **vars(built)}, indent=2))
    elif not output.quiet:
        for line in (*built.lines(), f"rows: {folder}; show them: {command('atlas', 'page', folder)}"):
            print(printable(line))


def page(session: "Session", call: PageCall) -> None:
    """Write the site, and say where it is."""
    output = session.output
    folder = output.output or (call.folder if call.folder.is_dir() else call.folder.parent) / "site"
    if (folder / INDEX).exists() and not output.overwrite:
        raise BadInput(f"{folder / INDEX} exists; name another folder with -o, or use --overwrite")
    with alone(folder, what="page"):
        written = write_site(read_rows(call.folder, COLUMNS), folder)
    if not output.quiet:
        more = f" and {len(written) - 1} pages of models" if len(written) > 1 else ""
        print(printable(f"site: {written[0]}{more}"))


# --- the page --------------------------------------------------------------------------------------------------------


COLUMNS = (
    "revision", "stack", "site", "family", "norm", "norm_site", "license", "created", "downloads", "outliers", "bytes_read",
    "bytes_total", "requests", "reason", "failure",
)  # fmt: skip
MAX_MODELS = 10_000  # of one page
MAX_BYTES = 4_000_000  # of the models of one page
MAX_GROUPS = 300  # families by shape that the index lists
INDEX, SHARD = "index.html", "models-{:03}.html"
MARK = b"<title>Atlas of outlier dimensions</title>"  # of a page of ours
SITES = {"stream": "post-norm", "write": "norm on writes", "read": "pre-norm"}


@dataclass(frozen=True)
class Bar:
    """One row of a histogram: `n` models, of which `with_any` have an outlier dimension, `median` of them where they do."""

    label: str
    n: int
    with_any: int
    median: float

    @property
    def share(self) -> float:
        """Of models with an outlier dimension."""
        return self.with_any / self.n


@dataclass(frozen=True)
class Group:
    """Models of one family, width and depth, and the positions that two or more of them share: (dim, how many)."""

    family: str
    width: int
    layers: int
    stack: str
    n: int
    shared: tuple[tuple[int, int], ...]


Model = Sequence[AtlasRow]


def models_of(rows: Iterable[AtlasRow]) -> list[Model]:
    """The rows of each model at the revision that was looked at last, in the order of names."""
    found: dict[str, list[AtlasRow]] = {}
    for row in rows:
        same = found.get(row.model)
        if same and same[0].revision == row.revision:
            same.append(row)
        else:
            found[row.model] = [row]
    return [found[name] for name in sorted(found, key=lambda name: (name.casefold(), name))]


def write_site(rows: Iterable[AtlasRow], folder: Path) -> list[Path]:
    """Write the site as `folder`, in place of a site that was there before.

    Raises:
        BadInput: there are no rows, or the folder holds anything but pages of an atlas; nothing is touched then.
    """
    for path in sorted(folder.glob("*")) if folder.is_dir() else [folder] * folder.exists():
        if path == folder or path.is_symlink() or path.suffix != ".html" or MARK not in path.read_bytes():
            raise BadInput(
                f"{path} is not a page of an atlas, and a site needs a folder of its own; name a new one with -o"
            )
    models = models_of(rows)
    if not models:
        raise BadInput("the atlas has no rows yet; `outlierlens atlas build` makes them")
    shards = list(_shards([plain(model) for model in models]))
    alone = len(shards) == 1
    names = [SHARD.format(number) for number in range(1, len(shards) + 1)]
    listed = [
        {"file": name, "first": shard[0][0], "last": shard[-1][0], "n": len(shard)}
        for name, shard in zip(names, shards, strict=True)
    ]
    about = summary(models)
    with new_folder(folder.resolve()) as making:
        _page(making / INDEX, about, shards[0] if alone else [], [] if alone else listed)
        for name, shard in zip(names, shards, strict=True) if not alone else ():
            _page(making / name, {"shard": f"{shard[0][0]} to {shard[-1][0]}"}, shard, listed)
    return [folder / name for name in (INDEX, *([] if alone else names))]


def plain(model: Model) -> list[Any]:
    """A model as the page's script reads it; see `page.js`."""
    first = model[0]
    streams = [
        [row.stack, row.site, row.width, row.layers, [
            [one.dim, round(one.z_scale, 1), None if one.z_bias is None else round(one.z_bias, 1), len(one.layers)]
            for one in row.outliers
        ]]
        for row in model if row.reason is None
    ]  # fmt: skip
    return [
        first.model, first.family, f"{first.norm} {SITES[first.norm_site]}" if first.norm_site in SITES else first.norm,
        (first.created or "")[:10], first.downloads, first.license, first.revision[:12], streams, first.reason,
        first.failure and first.failure[:200],
    ]  # fmt: skip


def _shards(models: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Models in turn, as many as one page may hold."""
    shard, size = list[list[Any]](), 0
    for model in models:
        bytes_ = len(escaped_json(model).encode())
        if shard and (len(shard) == MAX_MODELS or size + bytes_ > MAX_BYTES):
            yield shard
            shard, size = [], 0
        shard.append(model)
        size += bytes_
    yield shard


def summary(models: Sequence[Model]) -> dict[str, Any]:
    """What the index says of all models."""
    read = [model for model in models if model[0].reason is None]
    with_any = sum(any(row.outliers for row in model) for model in read)
    return {
        "n": len(models),
        "n_read": len(read),
        "with_any": with_any,
        "bytes_read": sum(model[0].bytes_read for model in read),
        "bytes_total": sum(model[0].bytes_total for model in read),
        "requests": sum(model[0].requests for model in models),
        "failed": Counter(model[0].reason for model in models if model[0].reason is not None).most_common(),
        "histograms": [
            ("By kind of norm", _bars(read, lambda row: f"{row.norm}, {SITES.get(row.norm_site, row.norm_site)}")),
            ("By year", _bars(read, lambda row: (row.created or "")[:4] or "not told")),
        ],
        "groups": groups(read),
    }


def _bars(models: Sequence[Model], label: Callable[[AtlasRow], str]) -> list[Bar]:
    """Models by what `label` says of their first stream, in the order of the labels."""
    counts: dict[str, list[int]] = defaultdict(list)
    for model in models:
        counts[label(model[0])].append(sum(len(row.outliers) for row in model))
    bars = []
    for text in sorted(counts):
        some = [count for count in counts[text] if count]
        bars.append(Bar(text, len(counts[text]), len(some), statistics.median(some) if some else 0))
    return bars


def groups(models: Sequence[Model]) -> list[Group]:
    """Families by shape, those with the most models first, and the positions that their models share."""
    dims: dict[tuple[str, int, int, str], Counter[int]] = defaultdict(Counter)
    sizes: Counter[tuple[str, int, int, str]] = Counter()
    for model in models:
        for row in model:
            key = (row.family, row.width, row.layers, row.stack)
            sizes[key] += 1
            dims[key].update({one.dim for one in row.outliers})
    return [
        Group(*key, n, tuple((dim, count) for dim, count in dims[key].most_common(12) if count > 1))
        for key, n in sizes.most_common(MAX_GROUPS)
    ]


def _page(path: Path, about: dict[str, Any], models: list[list[Any]], shards: list[dict[str, Any]]) -> None:
    script = _file("atlas_page.js")
    page = _template().render(
        policy=policy(script), script=Markup(script), version=__version__, index=INDEX, about=about, shards=shards,
        colours=Markup(f":root{{{css(LIGHT)}}}@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{css(DARK)}}}}}"),
        data=Markup(escaped_json({"models": models, "shards": shards, "index": INDEX})),
    )  # fmt: skip
    write_text(path, page)


@functools.cache
def _file(name: str) -> str:
    return resources.files("outlierlens.analyses").joinpath(name).read_text("utf-8").replace("\r\n", "\n")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("atlas_page.html.jinja"))
