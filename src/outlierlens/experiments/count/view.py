"""What is said of token counts, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.data.token_counts import TokenCounts
from outlierlens.view.section import Count, FineShare, Rows, Section

MOST, MORE = 10, 100  # tokens that are shown


def sections(found: TokenCounts, *, verbose: bool = False, where: str = "") -> Iterator[Section]:
    """What was counted, and the tokens that occur most; `where` names the file of the counts."""
    said = (
        f"{where}{': ' if where else ''}{found.n_tokens:,} tokens in {found.n_texts:,} texts of {found.source}; "
        f"{found.n_types:,} of {len(found.tokens):,} ids occur; {int(found.special.sum()):,} special tokens around the texts "
        "are counted apart."
    )
    order = (-found.counts).argsort(kind="stable")[: MORE if verbose else MOST]
    rows = tuple(
        (found.tokens[n], n, Count(found.counts[n]), FineShare(found.counts[n] / found.n_tokens))
        for n in map(int, order)
        if found.counts[n]
    )
    tables = (Rows("Most frequent", ("token", "id", "count", "share"), rows),)
    yield Section("counts", "Token counts", (said,), (), tables)
