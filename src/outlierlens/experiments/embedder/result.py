"""What an exported sentence embedder is, and how it was checked: plain data, without torch.

found.checks[0].relative               # largest difference from our own vectors, of their largest entry
found.sts.raw, found.sts.exported      # Spearman's ρ without the fix, and as read back from the folder
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class EmbedderCheck:
    """The written folder, read back by another library, against our own pass and fix.

    Attributes:
        reader: "transformers 5.23.0" (its model with our mean and the written matrix), "sentence-transformers 6.2.0".
        difference: largest absolute difference of an entry. relative: that over the largest absolute entry.
    """

    reader: str
    difference: float
    relative: float


@dataclass(frozen=True)
class EmbedderSts:
    """Spearman's ρ in [−1, 1] between cosines and scores that people gave.

    Attributes:
        source: file of the pairs. n_pairs: in it. n_fit_dropped: texts to fit on that it holds too, left out of the fit.
        raw: of the layer's vectors as they are. fixed: of ours after the fix. exported: as `reader` reads the folder.
    """

    source: str
    n_pairs: int
    n_fit_dropped: int
    raw: float
    fixed: float
    exported: float
    reader: str


@dataclass(frozen=True)
class Exported(Result):
    """A sentence-transformers model with a fix in it.

    Attributes:
        folder: its name.
        layer: "embeddings", "0", "1", …: the block whose output is pooled. n_blocks: kept, of `of_blocks`.
        final_norm: whether the vectors are what the model's final norm makes of that output; false where it has none.
        pooling, max_length: what a vector is the mean of, and how many tokens of a text are read.
        fix: "whiten:256".. dims: clipped dimensions. clip: where they come from.
        fit, fit_digest: the text that the fix was fitted on, "" for none. n_fitted: its vectors. shrinkage: of whiten.
        width: dimensions before and after the fix.
        normalized: whether vectors get length 1, behind the fix.
        n_checked: texts of the checks.
    """

    provenance: Provenance
    folder: str
    layer: str
    n_blocks: int
    of_blocks: int
    final_norm: bool
    pooling: str
    max_length: int
    fix: str
    dims: tuple[int, ...]
    clip: str
    fit: str
    fit_digest: str
    n_fitted: int
    shrinkage: float
    width: Annotated[tuple[int, int], "2"]
    normalized: bool
    n_checked: int
    checks: tuple[EmbedderCheck, ...]
    sts: EmbedderSts | None = None
    notes: tuple[str, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per reader."""
        for check in self.checks:
            yield {
                "reader": check.reader,
                "texts": self.n_checked,
                "largest difference": check.difference,
                "of the largest entry": check.relative,
            }
