"""What is said of an exported embedder: `sections(found)`."""

from collections.abc import Iterator
from pathlib import Path

from outlierlens.experiments.embedder.card import describe
from outlierlens.experiments.embedder.result import Exported
from outlierlens.view.section import Section, rows_of


def sections(found: Exported, *, verbose: bool = False, folder: Path | None = None) -> Iterator[Section]:
    """What was written to `folder`, how it scores, and how readers of it agree with our own vectors."""
    table = rows_of("Read back from the folder, against our own vectors", found.records())
    yield Section(
        "embedder", "An exported embedder", tuple(_sentences(found, folder or Path(found.folder))), (), (table,)
    )


def _sentences(found: Exported, folder: Path) -> Iterator[str]:
    for name, text in describe(found).items():
        yield f"{name}: {text}"
    if sts := found.sts:
        yield (
            f"Spearman × 100 on {sts.n_pairs:,} pairs of {sts.source}: {100 * sts.raw:.2f} without the fix, "
            f"{100 * sts.fixed:.2f} with it, {100 * sts.exported:.2f} by {sts.reader} from the folder"
        )
        if sts.n_fit_dropped:
            yield f"{sts.n_fit_dropped:,} of these sentences were in the fit text too and were left out of it"
    yield f'written: {folder}; SentenceTransformer("{folder}") loads it'
