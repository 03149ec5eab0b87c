"""What is said of how vectors lie in space, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

from outlierlens.experiments.geometry.charts import anisotropy, cosine_shares, self_similarity
from outlierlens.experiments.geometry.result import Geometry, LayerGeometry
from outlierlens.statistics.means import interval_text
from outlierlens.vectors.cosines import Estimate
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Share, Span

NAME = "geometries"
HEADS = (
    *("layer", "fix", "anisotropy", "95 %", "of pairs", "self-similarity", "95 %", "intra-sentence", "95 %"),
    *("IsoScore", "effective rank", "top 3"),
)
MORE = (
    *("layer", "fix", "change of anisotropy", "95 %", "of pairs", "95 %", "IsoScore", "95 %"),
    *("r² −1", "r² −3", "r² −5"),
)
TOP, NAMED = 3, 12  # dimensions of a layer, and named ones, whose shares are shown
NOTE = (
    "Self-similarity and intra-sentence similarity less the anisotropy; of pairs: the mean cosine of disjoint pairs of "
    "sentences, as in Luo et al. (2021); top 3: share of the anisotropy that three dimensions carry. 95 % intervals over "
    "sentences."
)
R2 = "r² −k: of the cosine with all dimensions and without the k that carry most of it; near 1 they do not matter."


def sections(found: Geometry, *, verbose: bool = False) -> Iterator[Section]:
    """Every layer before and after every fix, and which dimensions carry the cosine; with `verbose` more measures."""
    charts = [anisotropy(found, name=f"{NAME}-anisotropy")]
    if found.words:
        charts.append(self_similarity(found, name=f"{NAME}-self-similarity"))
    tables = [Rows("Geometry by layer", HEADS, tuple(map(_measures, found.rows)), NOTE)]
    if verbose:
        tables.append(
            Rows("Pairs, IsoScore, informativity", MORE, tuple(map(_more, found.rows)), R2)
        )  # fmt: skip
    if any(row.top for row in found.rows):
        charts.append(cosine_shares(found, name=f"{NAME}-cosine-shares"))
        tables.append(_shares(found))
    yield Section(NAME, "How vectors lie in space", tuple(_sentences(found)), tuple(charts), tuple(tables))


def _sentences(found: Geometry) -> Iterator[str]:
    first = "raw" if "raw" in found.fixes else found.fixes[0]
    worst = max((found.row(layer, first) for layer in found.layers), key=lambda row: row.anisotropy.value)
    yield (
        f"Random tokens of different sentences have a mean cosine of {worst.anisotropy.value:.3f} "
        f"({_ends(worst.anisotropy)}) in layer {worst.layer}{'' if first == 'raw' else f' after {first}'}, the most of all "
        "layers."
    )
    for fix in found.fixes:
        one = found.row(worst.layer, fix).anisotropy
        if fix != first:
            ends = interval_text(one.change_low, one.change_high)
            change = f", a change of {one.change:+z.3f} ({ends})" if math.isfinite(one.change) else ""
            yield f"{fix}: {one.value:.3f} there{change}."
    special = "special tokens counted" if found.special else "without special tokens"
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_pairs:,} pairs of sentences, {len(found.words):,} words in "
        f"{found.n_contexts:,} contexts, {found.n_tokens:,} tokens of {found.n_token_sentences:,} sentences, {special}."
    )
    if found.n_fit_vectors:
        yield (
            f"Fixes are fitted on {found.n_fit_vectors:,} token vectors of {found.n_fit_texts:,} texts of {found.fit_data}; "
            f"{found.n_shared:,} of its texts are measured and were left out."
        )


def _measures(row: LayerGeometry) -> tuple[Cell, ...]:
    own, intra = row.self_similarity_adjusted, row.intra_sentence_adjusted
    return (
        *(row.layer, _fix(row), *_estimate(row.anisotropy), row.pairs_cosine.value, *_estimate(own), *_estimate(intra)),
        *(row.iso_score.value, row.effective_rank, Share(row.top_share)),
    )


def _more(row: LayerGeometry) -> tuple[Cell, ...]:
    one = row.anisotropy
    return (
        *(row.layer, _fix(row), Change(one.change), Interval(one.change_low, one.change_high)),
        *(*_estimate(row.pairs_cosine), *_estimate(row.iso_score)),
        *(row.informativity.get(k) for k in (1, 3, 5)),
    )


def _estimate(one: Estimate | None) -> tuple[Cell, Cell]:
    return (None, None) if one is None else (one.value, Span(one.low, one.high))


def _ends(one: Estimate) -> str:
    return interval_text(one.low, one.high, ".3f")


def _fix(row: LayerGeometry) -> str:
    """Its name, and what it clips."""
    if row.fix != "clip":
        return row.fix
    return f"clip {', '.join(map(str, row.clipped[:4])) or '–'}{' …' if len(row.clipped) > 4 else ''}"


def _shares(found: Geometry) -> Rows:
    """What carries the cosine of each layer's vectors, of the first fix that keeps the model's dimensions."""
    by_layer = [next((row for row in found.rows if row.layer == layer and row.top), None) for layer in found.layers]
    shown = [row for row in by_layer if row is not None]
    named = list(dict.fromkeys(one.dim for row in shown for one in row.named))[:NAMED]
    rows = []
    for row in shown:
        most = [cell for one in row.top[:TOP] for cell in (one.dim, Share(one.share))]
        own = {one.dim: Share(one.share) for one in row.named}
        rows.append(
            (row.layer, _fix(row), *most, *[None] * (2 * TOP - len(most)), *(own.get(dim) for dim in named))
        )  # fmt: skip
    heads = ("layer", "fix", "most", "share", "second", "share", "third", "share", *(f"dim {dim}" for dim in named))
    note = "Of the mean cosine, by dimension: those that carry most of it, then those that are named."
    return Rows("What carries the cosine", heads, tuple(rows), note)
