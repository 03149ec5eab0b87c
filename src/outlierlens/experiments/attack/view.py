"""What is said of attacks and of a federated round's updates, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.attack.charts import attack as draw
from outlierlens.experiments.attack.result import Attack, Attacked
from outlierlens.experiments.attack.result_updates import UpdateCheck
from outlierlens.statistics.words import interval_text, no_interval
from outlierlens.view.charts.base import begun
from outlierlens.view.section import Cell, Change, Exact, FineShare, Interval, P, Rows, Section

LISTED = 8  # edits of each kind that `verbose` lists
CLIENTS = (
    *("client", "flagged", "norm", "share", "times its share", "rank p", "peak"),
    *("of the largest", "expected", "p", "robust z"),
)


def sections(found: Attack | UpdateCheck, *, verbose: bool = False) -> Iterator[Section]:
    """The damage of each kind of edit, with `verbose` the edits too; or the updates of each client."""
    yield _updates(found) if isinstance(found, UpdateCheck) else _attack(found, verbose)


def _attack(found: Attack, verbose: bool) -> Section:
    rows = (*found.kinds, *found.anywhere)
    note = (
        f"{found.n_texts:,} texts of {found.data} judge, {found.n_search:,} others chose the edits. Sensitive values are the "
        f"{found.n_sensitive:,} that a fingerprint holds, of {found.n_values:,}. Each edit was made alone for verify."
    )
    tables = [Rows("Edits", _heads(found), tuple(_row(found, one) for one in rows), note)]
    tables += [_edits(one) for one in rows] if verbose else []
    return Section("attack", "How much damage few edits do", tuple(_said(found)), (draw(found),), tuple(tables))


def _said(found: Attack) -> Iterator[str]:
    full = found.strongest.full
    why = no_interval(
        found.n_texts, "texts that judge", max(1, round((found.n_texts + found.n_search) / found.n_texts))
    )
    yield f"{begun(found.verdict)}. The change's 95 % interval: {interval_text(full.low, full.high, '+.3g', why=why)}."
    yield (
        f"{found.provenance.model}, held as {found.dtype}: {found.task} ({found.unit}) of {found.n_texts:,} texts of at most "
        f"{found.max_length} tokens ({found.n_tokens:,}), {found.intact:.4g} intact; outlier dimensions: "
        f"{', '.join(map(str, found.dims)) or 'none'}."
    )
    for one in found.kinds:
        if one.controls:
            beside = ", ".join(f"{control.median:+.2g} {control.among}" for control in one.controls)
            yield f"{begun(one.kind)}: {one.full.change:+.3g}; as many random edits: median {beside}."
    for one in found.anywhere:
        caught, asked = found.detected(one)
        deep, _ = found.detected(one, deep=True)
        yield (
            f"{begun(one.kind)} of any weight, by gradient × change: {one.full.change:+.3g}; verify finds {caught} of "
            f"{asked}, verify --deep {deep}."
        )


def _heads(found: Attack) -> tuple[str, ...]:
    times = ("times", f"edits for × {found.factor:g}") if found.factor else ()
    drawn = (f"random, {control.among}" for control in found.kinds[0].controls)
    deep = ("verify --deep",) if found.anywhere else ()
    return ("edit", "of values", "values changed", "change", "95 %", *times, *drawn, "rank p", "verify", *deep)


def _row(found: Attack, one: Attacked) -> tuple[Cell, ...]:
    full = one.full
    times = (full.times, one.smallest.n_edits if one.smallest else None) if found.factor else ()
    drawn = (one.control(control.among) for control in found.kinds[0].controls)
    ps = [control.p for control in one.controls if control.p is not None]
    deep = (_caught(found, one, deep=True),) if found.anywhere else ()
    return (
        *(one.kind, one.among, full.n_edits, Change(full.change), Interval(full.low, full.high), *times),
        *(None if control is None else Change(control.median) for control in drawn),
        *(P(max(ps)) if ps else None, _caught(found, one), *deep),
    )


def _caught(found: Attack, one: Attacked, *, deep: bool = False) -> str | None:
    caught, asked = found.detected(one, deep=deep)
    return f"{caught} of {asked}" if asked else None


def _edits(one: Attacked) -> Rows:
    rows = tuple(
        (edit.tensor, ", ".join(map(str, edit.index)), edit.dim, Exact(edit.before), Exact(edit.after), edit.bit)
        for edit in one.edits[:LISTED]
    )
    title = f"{begun(one.kind)} ({one.among}): {len(rows)} of {len(one.edits)}"
    return Rows(title, ("tensor", "index", "dimension", "before", "after", "bit"), rows)


def _updates(found: UpdateCheck) -> Section:
    dims = "; ".join(f"{name}: {', '.join(map(str, chosen)) or 'none'}" for name, chosen in found.dims.items())
    said = [
        f"{begun(found.verdict)}.",
        f"Model before: {found.provenance.model}; outlier dimensions {dims} ({found.how}).",
        *(f"{client.model}: {why}." for client in found.clients for why in client.why),
    ]
    rows = tuple(
        (
            client.model, client.flagged, client.norm, FineShare(client.share), client.ratio, P(client.p), client.peak,
            f"{client.n_top_outlier} of {client.n_top}", client.expected_top, P(client.top_p),
            None if client.z is None else Change(client.z),
        )
        for client in found.clients
    )  # fmt: skip
    note = (
        f"Share: of the squared norm, on outlier entries: {found.n_outlier_entries:,} of {found.n_entries:,} entries. "
        f"{'Every tensor was' if found.deep else 'Norms and biases on the stream were'} read: {found.bytes_read:,} of "
        f"{found.total_bytes:,} bytes."
    )
    return Section("updates", "Updates of a federated round", tuple(said), (), (Rows("Clients", CLIENTS, rows, note),))
