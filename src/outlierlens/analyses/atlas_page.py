"""`outlierlens atlas page`: a site that shows an atlas, from files that load nothing.

    write_site(read_rows(Path("atlas"), COLUMNS), Path("site"))

`index.html` says how often, where and how large, and holds the models themselves while they are few; more are spread over
`models-001.html` and so on, in the order of their names, and the index leads to them. All text that came from a model or a
hub is escaped by the template, or lies in JSON that only `textContent` shows.
"""

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from outlierlens import __version__
from outlierlens.analyses.atlas_rows import AtlasRow
from outlierlens.errors import BadInput
from outlierlens.results.safe_files import new_folder, write_text
from outlierlens.view.charts.base import DARK, LIGHT, css
from outlierlens.view.render import escaped_json, policy

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
