"""Where one dimension first stands out, in plain words, with what any other dimension reaches there.

verdict(0, dims, tables, norms, Rule(n_sigma=3.0)).sentences
# ("is the minimum of position row 0 (z −18.2) and of no other of the 512 rows", …)

A dimension stands out
- in the first position row, where its |z| within that row is n_sigma or more and above the largest |z| that any dimension
  reaches in 95 % of the other rows (in every row some dimension is the smallest: that alone says nothing);
- in a row of the token table, where its largest |z| within any row is n_sigma or more above the average of the dimensions'
  largest ones, and twice that away from its own in other rows (a few tokens carry it, rather than all);
- in a table, where it is the minimum, or the maximum, of at least half of the rows, or its mean over rows lies n_sigma or more
  from the other dimensions' means (Kovaleva et al. 2021, Figure 4);
- in a norm or a write, where its |z| among the dimensions is n_sigma or more.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.experiments.origin.result import NormOrigin, Place, TableOrigin, Verdict

MOST_ROWS = 0.5
CALM_SHARE = 0.95


def verdict(
    column: int,
    dims: tuple[int, ...],
    tables: Sequence[TableOrigin],
    norms: Sequence[NormOrigin],
    rule: Rule,
) -> Verdict:
    """What the weights say of dimension `dims[column]`."""
    places: list[Place] = []
    sentences: list[str] = []
    for one in tables:
        places += _table_places(one, column, rule)
        sentences += _table_sentences(one, column, dims)
    places += [place for _, place in sorted(_norm_places(norms, column, rule), key=lambda found: found[0])]
    sentences += _norm_sentences(norms, column, rule)
    if not places:
        sentences.append("stands out nowhere in the weights that were read")
    return Verdict(dims[column], tuple(places), tuple(sentences))


def signed(value: float) -> str:
    """A number with its sign, for reading."""
    return f"{value:+z.1f}".replace("-", "−")


def stands_out_first(one: TableOrigin, column: int, rule: Rule) -> bool:
    """Whether the first row that is read has the dimension farther out than other rows have any."""
    rows, first = one.rows, one.first_row
    if rows is None or one.kind not in ("position", "class", "mask") or first >= len(rows.low):
        return False
    z = abs(float(rows.z[first, column]))
    others = rows.top_z[first + 1 :]
    calm = float(np.quantile(others, CALM_SHARE)) if len(others) else 0.0
    return bool(rule.passes(z)) and z > calm


def _row_name(one: TableOrigin, row: int, token: str = "") -> str:
    if one.kind in ("class", "mask"):
        return f"the {one.kind} embedding"
    if one.kind == "token":
        return f"token {token or row}"
    # A table whose first rows are never read counts positions from a later row: both numbers are said.
    position = f" (position {row - one.first_row})" if one.first_row else ""
    return f"{one.kind} row {row}{position}"


def _table_places(one: TableOrigin, column: int, rule: Rule) -> Iterator[Place]:
    dim = one.dims[column]
    if stands_out_first(one, column, rule):
        assert one.rows is not None
        z = signed(one.rows.z[one.first_row, column])
        yield Place(_row_name(one, one.first_row), f"z {z} within the row", int(one.rows.n_far[one.first_row]))
    if one.kind in ("class", "mask"):
        return
    if one.kind == "token" and rule.above(dim.peak_sigma) and dim.peak_apart >= 2 * rule.n_sigma:
        entry = dim.extremes[0]
        yield Place(_row_name(one, entry.row, entry.token), f"z {signed(entry.z)} within the row", one.n_peak_outside)
    for share, word in ((dim.argmin_share, "minimum"), (dim.argmax_share, "maximum")):
        # Of a table of one or two rows, half is nothing.
        if share >= MOST_ROWS and one.n_read > 2:
            yield Place(f"{one.kind} table", f"{word} of {share:.1%} of its {one.n_read:,} rows", 1)
    if one.n_read > 1 and rule.passes(dim.mean_z):
        why = f"mean over rows: z {signed(dim.mean_z)}, rank {dim.mean_rank}"
        yield Place(f"{one.kind} table", why, one.n_mean_outside)


def _table_sentences(one: TableOrigin, column: int, dims: tuple[int, ...]) -> Iterator[str]:
    dim = one.dims[column]
    rows = f"{one.n_read:,} {one.kind} rows"
    if one.n_read == 1:
        entry = dim.extremes[0]
        yield f"in {_row_name(one, entry.row)}: z {signed(entry.z)}, rank {entry.rank_absolute} by |value|"
        return
    texts = {entry.row: entry.token for entry in dim.extremes}
    facts = (
        ("smallest", "minimum", dim.argmin_alone, dim.argmin_tied, dim.argmin_rows),
        ("largest", "maximum", dim.argmax_alone, dim.argmax_tied, dim.argmax_rows),
    )
    for end, word, alone, tied, listed in facts:
        ties = f" (and ties for it in {tied:,} more)" if tied else ""
        if alone == 1:
            yield f"is the {word} of {_row_name(one, listed[0], texts.get(listed[0], ''))} and of no other of the {rows}{ties}"
        elif alone:
            share = f"{alone / one.n_read:.1%}{_most(one, end, dims)}"
            yield f"is the {word} of {alone:,} of the {rows} ({share}){_which(one, listed)}{ties}"
    if not dim.argmin_alone + dim.argmax_alone:
        most = max((share.share for share in one.leaders if share.dim not in dims), default=0.0)
        yield f"is neither minimum nor maximum of any of the {rows} alone (most of any other dimension: {most:.1%})"
    if one.kind == "position":
        yield from _first(one, column)
    if one.kind == "token":
        entry = dim.extremes[0]
        yield (
            f"is farthest from a row's mean in {_row_name(one, entry.row, entry.token)}: z {signed(entry.z)}, rank "
            f"{dim.peak_rank} among the dimensions' farthest (their median {one.peak_median:.1f})"
        )
    if one.n_read > 1:
        yield (
            f"its mean over {one.kind} rows has z {signed(dim.mean_z)} among the dimensions' (rank {dim.mean_rank}; "
            f"{one.n_mean_outside} reach the threshold)"
        )


def _which(one: TableOrigin, listed: tuple[int, ...]) -> str:
    if one.kind != "position" or not listed:
        return ""
    return f", {_row_name(one, listed[0])} the first of them"


def _most(one: TableOrigin, end: str, dims: tuple[int, ...]) -> str:
    most = one.most_of_others(end, dims)
    return f"; most of any other dimension: {most.share:.1%}, {most.dim}" if most else ""


def _first(one: TableOrigin, column: int) -> Iterator[str]:
    """How it lies in the first position row, and what any dimension reaches in other rows."""
    rows, first = one.rows, one.first_row
    if rows is None or first >= len(rows.low):
        return
    others = rows.top_z[first + 1 :]
    usual = (
        f"; the largest |z| of any dimension is {np.median(others):.1f} in the median of the others"
        if len(others)
        else ""
    )
    ranks = ((int(rows.rank_bottom[first, column]), "bottom"), (int(rows.rank_top[first, column]), "top"))
    rank, end = min(ranks)
    yield f"in {_row_name(one, first)} its z is {signed(rows.z[first, column])}, rank {rank} from the {end}{usual}"


def norm_name(norm: NormOrigin) -> str:
    """A norm or linear in words, with what it does to the stream."""
    if norm.role in ("embedding norm", "final norm"):
        return f"{norm.role}, {norm.part}"
    if norm.role == "embedding projection":
        return norm.module  # its part is the last word of its name
    does = " (scales what is read)" if norm.role == "reads" else ""
    return f"{norm.module}, {norm.part}{does}"


def _order(layer: str, place: int) -> tuple[float, int]:
    number = {"embeddings": -1.0, "final": float("inf")}
    return number[layer] if layer in number else float(layer), place


def _norm_places(norms: Sequence[NormOrigin], column: int, rule: Rule) -> Iterator[tuple[tuple[float, int], Place]]:
    for number, norm in enumerate(norms):
        outside = np.flatnonzero(rule.passes(norm.z[:, column]))
        if not len(outside):
            continue
        first = int(outside[0])
        layer, many = norm.layers[first], len(norm.layers) > 1
        where = f"layer {layer}, {norm_name(norm)}" if layer not in ("embeddings", "final") else norm_name(norm)
        why = f"z {signed(norm.z[first, column])}, rank {norm.rank_z[first, column]} by |z|"
        why += f"; so in {len(outside)} of {len(norm.layers)} layers" if many else ""
        yield _order(layer, number), Place(where, why, int(norm.n_outside[first]))


def _norm_sentences(norms: Sequence[NormOrigin], column: int, rule: Rule) -> Iterator[str]:
    seen = False
    for norm in norms:
        z = norm.z[:, column]
        outside = int(rule.layers_past(z))
        alone = len(norm.layers) == 1
        if not outside and not norm.role.startswith("embedding"):
            continue
        seen = seen or outside > 0
        peak = int(np.abs(z).argmax())
        other = f"{signed(norm.other_z[peak])} of {norm.other_dim[peak]}" if norm.other_dim[peak] >= 0 else "none"
        at = (
            ""
            if alone
            else f"in {outside} of {len(norm.layers)} layers at {rule.sigmas}, most in {norm.layers[peak]}: "
        )
        yield (
            f"{norm_name(norm)}: {at}{norm.value[peak, column]:.3g}, z {signed(z[peak])}, rank "
            f"{norm.rank_z[peak, column]} by |z| ({norm.n_outside[peak]} dimensions reach it; largest z not named: {other})"
        )
    if not seen:
        yield f"no norm or write has it at {rule.sigmas}"


def summary(found: Verdict) -> str:
    """The verdict in one sentence."""
    if not found.places:
        return f"{found.dim}: stands out nowhere in the weights that were read"
    first, *rest = found.places
    more = f"; then {' · '.join(place.where for place in rest[:3])}" if rest else ""
    more += " and on" if len(rest) > 3 else ""
    return f"{found.dim}: first stands out in {first.where} ({first.why}; {_likewise(first)}){more}"


def _likewise(place: Place) -> str:
    others = place.n_likewise - 1
    return "no other dimension does" if others < 1 else f"{others} other{'s do' if others > 1 else ' does'} too"
