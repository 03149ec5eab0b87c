"""What is said of a model that was looked up: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.lookup.result import Lookup, Stream
from outlierlens.view.section import Change, P, Rows, Section, few, number_of_layers, runs


def sections(found: Lookup, *, verbose: bool = False) -> Iterator[Section]:
    """What is known of it, its relatives, and what its outlier dimensions cost."""
    tables = [*_outliers(found), *_relatives(found)]
    if found.costs:
        columns = ("model", "dimensions", "task", "intact", "change", "random sets, median", "p", "texts")
        rows = tuple(
            (one.model, one.dims, one.task, one.intact, Change(one.change), Change(one.random), P(one.p),
             f"{one.n_texts} of {one.texts}")
            for one in found.costs
        )  # fmt: skip
        tables.append(Rows("What switching them off cost", columns, rows))
    yield Section("lookup", "What the atlas knows", tuple(_sentences(found)), (), tuple(tables))


def _sentences(found: Lookup) -> Iterator[str]:
    family = f"{found.family}, " if found.family else ""
    for stream in found.streams:
        name = found.provenance.model if len(found.streams) == 1 else f"{found.provenance.model}, {stream.stack}"
        dims = f"dimensions {few(stream.dims, 12)} stand out" if len(stream.dims) > 1 else "no dimension stands out"
        if len(stream.dims) == 1:
            dims = f"dimension {stream.dims[0]} stands out"
        yield (
            f"{name} ({family}{number_of_layers(stream.layers)} of {stream.width}, {stream.norm}): {dims} at {stream.site}."
        )
        yield _parent(found, stream)
    if found.known:
        yield f"It is in {found.atlas} atlas: {found.origin or 'origin not told'}; licence {found.licence or 'not told'}."
    else:
        yield f"Read {found.bytes_read:,} of {found.bytes_total:,} bytes; {found.atlas} atlas has {found.n_models} models."


def _parent(found: Lookup, stream: Stream) -> str:
    if not stream.n_compared:
        return f"No parent is known: no other model of the atlas is {stream.width} wide."
    if stream.parent is None:
        least = min(one.p_holm for one in stream.relatives)
        return (
            f"No parent is known: of {stream.n_compared} as wide none is like it (smallest corrected p {least:.2g}, "
            f"level {found.level:g})."
        )
    first = stream.relatives[0]
    if first.equal:
        return f"Its norms are those of {first.model}: the same model, or one whose norms were not trained."
    below = f"= {first.p_holm:.2g}" if first.p_holm >= 1e-12 else "< 1e-12"
    return (
        f"The likely parent, or a model of the same parent, is {first.model} (correlation of norms {first.closeness:.3f}, "
        f"corrected p {below} of models that were trained apart)."
    )


def _outliers(found: Lookup) -> Iterator[Rows]:
    for stream in found.streams:
        if stream.outliers:
            yield Rows(
                f"Outlier dimensions, {stream.stack}",
                ("dim", "z scale", "z bias", "layers", "p holm"),
                tuple((one.dim, one.z_scale, one.z_bias, runs(one.layers), P(one.p_holm)) for one in stream.outliers),
            )


def _relatives(found: Lookup) -> Iterator[Rows]:
    for stream in found.streams:
        if stream.relatives:
            yield Rows(
                f"Nearest in the atlas, {stream.stack}",
                ("model", "family", "layers", "correlation of norms", "p", "p holm", "origin"),
                tuple(
                    (one.model, one.family, one.layers, one.closeness, P(one.p), P(one.p_holm), one.origin)
                    for one in stream.relatives
                ),
                "p: at least this likeness between two models that were trained apart.",
            )
