"""What the rows of an atlas say together: how often dimensions stand out, where, how much, and what of the papers holds.

python scripts/atlas_science.py --write               # into benchmarks/README.md, of the package's atlas
python scripts/atlas_science.py DIR                   # of the rows of an `atlas build`, to stdout
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom, binomtest

from outlierlens.analyses.atlas_lookup import ATLAS, LEVEL, costs, likeness
from outlierlens.analyses.atlas_rows import AtlasRow, read_rows
from outlierlens.detection.rules import LastOperation, Rule, find, zscore

PAGE = Path(__file__).parents[1] / "benchmarks" / "README.md"
START, END = "<!-- python scripts/atlas_science.py -->\n", "<!-- end -->"
RULE = Rule()
NULLS = 200
SITES = {"stream": "post-norm", "write": "normed writes", "read": "pre-norm (its last linear)"}


@dataclass(frozen=True)
class Origin:
    """Models with one origin, of which one speaks for all: that with the most layers, then the first by name."""

    row: AtlasRow
    others: tuple[str, ...]


def origins(rows: Sequence[AtlasRow]) -> list[Origin]:
    """Rows grouped by lineage: two that are alike at the level of `lookup` count once."""
    names = sorted({row.model for row in rows})
    found = ((one.model, other.model, likeness(one, other)) for one, other in combinations(rows, 2))
    near = [(names.index(one), names.index(other)) for one, other, like in found if like and like.p <= LEVEL]
    one, other = np.array(near).reshape(-1, 2).T
    _, group = connected_components(coo_array((np.ones(len(one)), (one, other)), shape=(len(names),) * 2))
    made = []
    for number in range(max(group) + 1):
        members = [row for row in rows if group[names.index(row.model)] == number]
        some = sorted(members, key=lambda row: (-row.layers, row.model))
        others = tuple(dict.fromkeys(row.model for row in some if row.model != some[0].model))
        made += [Origin(row, others) for row in some if row.model == some[0].model]
    return sorted(made, key=lambda origin: min(origin.row.model, *origin.others, origin.row.model))


def share(found: int, of: int) -> str:
    """A share with its 95 % interval (Wilson 1927)."""
    if not of:
        return "–"
    low, high = binomtest(found, of).proportion_ci(0.95, "wilson")
    return f"{found} of {of} ({low:.0%} to {high:.0%})".replace("%", " %")


def median(values: Sequence[float], form: str = ".1f") -> str:
    """A median with the 95 % interval that order statistics give; the range where there are too few."""
    ordered = sorted(values)
    if not ordered:
        return "–"
    at = int(binom.ppf(0.025, len(ordered), 0.5))
    low, high = (ordered[at - 1], ordered[-at]) if at else (ordered[0], ordered[-1])
    return f"{np.median(ordered):{form}} ({low:{form}} to {high:{form}}{'' if at else ', all'})"


def at_norm(row: AtlasRow) -> bool:
    """Whether the row's vectors are those that its outliers were found in."""
    return row.norm_site != "read"


def by_chance(rows: Sequence[AtlasRow]) -> str:
    """The mean `null_rate` of those whose outliers are a norm's; a dash without any."""
    rates = [null_rate(row) for row in rows if at_norm(row)]
    return f"{np.mean(rates):.2f}" if rates else "–"


def null_rate(row: AtlasRow) -> float:
    """Share of draws with an outlier where each layer's dimensions are permuted by themselves."""
    random, found = np.random.default_rng(0), 0
    kept = [values.astype(np.float64) for values in (row.scale, row.bias) if values is not None]
    for _ in range(NULLS):
        parts = (np.stack([random.permutation(layer) for layer in values]) for values in kept)
        found += bool(find(LastOperation(*parts), RULE))
    return found / NULLS


def parts(rows: Sequence[AtlasRow], where: str) -> Iterator[str]:
    """The tables and what they need to be read, paragraph by paragraph."""
    known = origins(rows)
    n_models = len({row.model for row in rows})
    with_outliers = [one for one in known if one.row.outliers]
    asked = RULE.asks(12, "12 layers", has_bias=True).replace("6 of 12 layers", "half of the layers")
    yield (
        f"Made by `python scripts/atlas_science.py{where}` from {n_models} real models of "
        f"{len({row.family for row in rows})} families. Models with one origin, as `atlas lookup` tells it, count once: "
        f"{len(known)} streams. The rule is that of `scan`: an outlier {asked} (without a bias, in the scale alone). "
        "Of pre-norm models the last linear is measured, whose vectors an atlas does not keep: draws and signs are of norms. "
        "Intervals are 95 %: of shares Wilson's, of medians from order statistics. "
        "These models are on PyPI; they are few, and no random sample of anything."
    )
    yield "**The models**"
    yield table(
        ("model", "family", "layers × width", "norm", "site", "dimensions found", "largest abs. z", "one origin with"),
        [
            (f"`{one.row.model}`", one.row.family, f"{one.row.layers} × {one.row.width}", one.row.norm,
             SITES[one.row.norm_site],
             ", ".join(str(each.dim) for each in one.row.outliers) or "none",
             f"{max(abs(each.z_scale) for each in one.row.outliers):.1f}" if one.row.outliers else "–",
             ", ".join(f"`{name}`" for name in one.others) or "–")
            for one in known
        ],
    )  # fmt: skip
    yield "**How often**"
    split: list[tuple[str, Callable[[AtlasRow], str]]] = [
        ("norm", lambda row: row.norm), ("site", lambda row: SITES[row.norm_site]), ("family", lambda row: row.family),
        ("width", lambda row: "up to 256" if row.width <= 256 else "more than 256"),
    ]  # fmt: skip
    lines = [("all", "", share(len(with_outliers), len(known)), by_chance([one.row for one in known]))]
    for title, of in split:
        for value in sorted({of(one.row) for one in known}):
            some = [one.row for one in known if of(one.row) == value]
            lines.append((title, value, share(sum(bool(row.outliers) for row in some), len(some)), by_chance(some)))
    yield table(("by", "", "streams with an outlier dimension", "the same in permuted layers"), lines)
    yield (
        "The last column is what the rule finds where each layer's dimensions are permuted by themselves: one or two layers "
        "agree on a position by chance, twelve do not. A model of one or two layers says little."
    )
    deep = [one for one in with_outliers if one.row.layers >= 3]
    found = [(one.row, each) for one in deep for each in one.row.outliers]
    yield (
        f"**Where, and how large.** Of the {len(deep)} streams of three layers and more that have any ({len(found)} "
        "dimensions):"
    )
    signs = [constant_sign(row, each.dim) for row, each in found if at_norm(row)]
    places = np.array([each.dim / row.width for row, each in found])
    passing = [100 * len(each.layers) / row.layers for row, each in found]
    sizes = {kind: [abs(each.z_scale) for row, each in found if row.norm == kind] for kind in ("layernorm", "rmsnorm")}
    yield table(
        ("what", "median, or share"),
        [
            ("outlier dimensions a stream", median([len(one.row.outliers) for one in deep], ".0f")),
            ("share of the width", median([100 * len(one.row.outliers) / one.row.width for one in deep], ".2f") + " %"),
            ("share of layers in which the scale passes", median(passing, ".0f") + " %"),
            ("largest abs. z of the scale, models with LayerNorm", median(sizes["layernorm"])),
            ("largest abs. z of the scale, models with RMSNorm", median(sizes["rmsnorm"])),
            (
                "scales below the mean where they are largest",
                share(sum(each.sign < 0 for _, each in found), len(found)),
            ),
            ("a norm's z has one sign in all layers", share(sum(signs), len(signs))),
            ("in the first half of the width", share(int((places < 0.5).sum()), len(places))),
        ],
    )
    yield "**The papers' claims, on all of them**"
    yield table(("claim", "seen here"), list(claims(known, rows)))
    measured = costs()
    if measured:
        yield "**What they cost**"
        yield table(
            ("model", "ablated dimensions", "task", "intact", "change", "random sets, median", "p among random sets", "texts"),
            [
                (f"`{one.model}`", ", ".join(map(str, one.dims)), one.task, f"{one.intact:.3g}", f"{one.change:+.3g}",
                 f"{one.random:+.3g}", f"{one.p:.2g}", f"{one.n_texts} of {one.texts}")
                for one in measured
            ],
        )  # fmt: skip
        yield "Few texts and nine random sets, with which p can be no smaller than 0.1: a first look, not a finding."


def constant_sign(row: AtlasRow, dim: int) -> bool:
    """Whether the scale's z has one sign in all layers that pass."""
    assert row.scale is not None
    z = zscore(row.scale.astype(np.float64))[:, dim]
    passing = z[np.abs(z) >= RULE.n_sigma]
    return bool((passing > 0).all() or (passing < 0).all())


def claims(known: Sequence[Origin], rows: Sequence[AtlasRow]) -> Iterator[tuple[str, str]]:
    """(claim, what is seen)."""
    deep = [one.row for one in known if one.row.layers >= 3]
    post = [row for row in deep if row.norm_site == "stream" and row.norm == "layernorm"]
    yield (
        "BERT-like models have outlier dimensions in scale and bias of the output LayerNorm, at one place in most "
        "layers (Kovaleva et al. 2021)",
        f"{share(sum(bool(row.outliers) for row in post), len(post))} of the post-norm models of three layers and more",
    )
    counts = [100 * len(row.outliers) / row.width for row in deep if row.outliers]
    few = f"{median(counts, '.2f')} % of the width where there are any; at most {max(counts, default=0):.1f} %"
    yield "They are very few (Kovaleva et al. 2021)", few
    signs = [constant_sign(row, each.dim) for row in deep if at_norm(row) for each in row.outliers]
    yield (
        "They have one sign over layers (Luo et al. 2021, of hidden states)",
        f"{share(sum(signs), len(signs))} of dimensions, of the norms' scales",
    )
    pairs = [
        (one.row, other.row)
        for one, other in combinations(known, 2)
        if one.row.width == other.row.width and one.row.outliers and other.row.outliers
    ]
    shared = sum(common(*pair) for pair in pairs)
    expected = sum(len(one.outliers) * len(other.outliers) / one.width for one, other in pairs)
    yield (
        "Their places are arbitrary: another training has others (Puccetti et al. 2022)",
        f"{shared} places in common in {len(pairs)} pairs of models as wide and of other origin; {expected:.1f} by chance",
    )
    by_name = {row.model: row for row in rows}
    family = [(origin.row, by_name[name]) for origin in known for name in origin.others]
    family = [(one, other) for one, other in family if one.width == other.width]
    kept, total = sum(common(*pair) for pair in family), sum(len(one.outliers) for one, _ in family)
    yield (
        "They survive fine-tuning (Kovaleva et al. 2021)",
        f"{kept} of {total} are outliers in the others of the same origin too" if total else
        "no origin with an outlier has a second model here: not seen",
    )  # fmt: skip


def common(one: AtlasRow, other: AtlasRow) -> int:
    """How many dimensions stand out in both."""
    return len({each.dim for each in one.outliers} & {each.dim for each in other.outliers})


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows))


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atlas", type=Path, nargs="?", default=ATLAS)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows = sorted(
        (row for row in read_rows(asked.atlas) if row.scale is not None), key=lambda row: (row.model, row.stack)
    )
    text = "\n\n".join(parts(rows, " --write" if asked.atlas == ATLAS else f" {asked.atlas}")) + "\n"
    if asked.write:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(before + START + text + END + rest.partition(END)[2], "utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
