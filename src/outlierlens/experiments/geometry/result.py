"""How vectors lie in space, layer by layer and fix by fix: plain data, without torch.

found.row("5", "raw").anisotropy.value             # mean cosine of random tokens of different sentences
found.row("5", "clip").anisotropy.change           # what clipping adds to it, with change_low and change_high
found.row("5", "raw").top[0].dim                   # the dimension that carries most of it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.vectors.cosines import Estimate

MEASURES = (
    "anisotropy", "pairs_cosine", "self_similarity", "self_similarity_adjusted", "intra_sentence",
    "intra_sentence_adjusted", "iso_score",
)  # fmt: skip


@dataclass(frozen=True)
class Contribution:
    """What one dimension adds to the mean cosine (Timkey and van Schijndel 2021).

    Attributes:
        contribution: mean over pairs of u_d v_d / (|u| |v|); over all dimensions they sum to the anisotropy.
        share: of the anisotropy; NaN where its interval reaches 0, and there is nothing to share.
    """

    dim: int
    contribution: float
    share: float


@dataclass(frozen=True)
class LayerGeometry:
    """One layer's vectors after one fix.

    Attributes:
        layer: its number as text, or "embeddings". fix: "raw", "clip", "abtt:3", …
        width: dimensions after the fix.
        clipped: dimensions that are zero, of fix "clip".
        n_fitted, shrinkage: vectors the fix was fitted on, and shrinkage of the covariance of "whiten".
        anisotropy: mean cosine of all pairs of the drawn tokens, one a sentence, in [−1, 1].
        pairs_cosine: of Luo et al.'s (2021, section 4.1) disjoint pairs alone: the same quantity with a wider interval.
        self_similarity: mean over words of the mean pairwise cosine of a word's vectors in different sentences.
        self_similarity_adjusted: minus the anisotropy. None, both, where the text has no word that is frequent enough.
        intra_sentence: mean over sentences of the mean cosine between a sentence's tokens and their mean (Ethayarajh 2019,
            section 3). intra_sentence_adjusted: minus the anisotropy. None, both, where no sentence has two tokens.
        iso_score: IsoScore (Rudman et al. 2022) in [0, 1] of the vectors that sentences are drawn from, whatever their number;
            interval by jackknife over groups of sentences.
        effective_rank: exp of the entropy of the normalised singular values of the centred token vectors (Roy and Vetterli
            2007), in [1, width].
        top: dimensions that carry most of the anisotropy, largest first; empty after "whiten", whose coordinates are
            directions of its own. named: the dimensions that the weights or the clipping name.
        top_share: share of the three largest contributions; NaN as in `Contribution`.
        informativity: {k: r² between cosines of pairs with and without the k dimensions of largest contribution}, in
            [0, 1] (Timkey and van Schijndel 2021); {} after "whiten".
    """

    layer: str
    fix: str
    width: int
    clipped: tuple[int, ...]
    n_fitted: int
    shrinkage: float
    anisotropy: Estimate
    pairs_cosine: Estimate
    self_similarity: Estimate | None
    self_similarity_adjusted: Estimate | None
    intra_sentence: Estimate | None
    intra_sentence_adjusted: Estimate | None
    iso_score: Estimate
    effective_rank: float
    top: tuple[Contribution, ...]
    named: tuple[Contribution, ...]
    top_share: float
    informativity: dict[int, float]


@dataclass(frozen=True)
class Geometry(Result):
    """Anisotropy, self-similarity and their kind of a model's vectors, at every layer, before and after each fix.

    Attributes:
        n_texts: different sentences there were to draw from. n_read: sentences that went through the model.
        special: whether special tokens were drawn too. skip_first: tokens left out at the start of each text.
        n_pairs: disjoint pairs of sentences; `2 n_pairs` tokens were drawn, one a sentence.
        words: whose self-similarity is measured, of `n_eligible` that occur in at least `min_sentences` sentences.
        n_contexts: their vectors, at most `max_contexts` a word and one a sentence.
        n_tokens, n_token_sentences: token vectors of whole sentences, of intra-sentence similarity, IsoScore and
            effective rank.
        n_bootstrap: times that sentences were drawn again.
        fit_data, fit_digest: the text that fixes were fitted on, "" for none; n_fit_texts, n_fit_vectors (tokens) of it.
        n_shared: texts left out of it because they are evaluated.
        clipping, clipping_source: name and origin of what is clipped; clipped: by layer.
        weights_name: dimensions that the scan of the weights finds.
    """

    provenance: Provenance
    data: str
    data_digest: str
    stack: str
    final_norm: bool
    special: bool
    skip_first: int
    max_length: int
    hidden_size: int
    n_texts: int
    n_read: int
    n_pairs: int
    words: tuple[str, ...]
    n_eligible: int
    n_contexts: int
    min_sentences: int
    max_contexts: int
    n_tokens: int
    n_token_sentences: int
    n_bootstrap: int
    fit_data: str
    fit_digest: str
    n_fit_texts: int
    n_fit_vectors: int
    n_shared: int
    clipping: str
    clipping_source: str
    clipped: dict[str, tuple[int, ...]]
    weights_name: tuple[int, ...]
    rows: tuple[LayerGeometry, ...]
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(dict.fromkeys(row.layer for row in self.rows))

    @property
    def fixes(self) -> tuple[str, ...]:
        """Names of the fixes, in order."""
        return tuple(dict.fromkeys(row.fix for row in self.rows))

    def row(self, layer: str, fix: str = "raw") -> LayerGeometry:
        """One layer after one fix; raises BadInput with what there is."""
        return pick(self.rows, f"no layer {layer!r} with fix {fix!r} in this result", layer=layer, fix=fix)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per layer and fix, with every number."""
        return geometry_rows(self)


def geometry_rows(found: Geometry) -> Iterator[dict[str, Any]]:
    """One flat row per layer and fix: every measure with its interval and change, top dimensions, informativity."""
    for row in found.rows:
        flat: dict[str, Any] = {"layer": row.layer, "fix": row.fix, "width": row.width}
        for name in MEASURES:
            estimate: Estimate | None = getattr(row, name)
            for part in ("value", "low", "high", "change", "change_low", "change_high"):
                key = name if part == "value" else f"{name}_{part}"
                flat[key] = float("nan") if estimate is None else getattr(estimate, part)
        flat |= {"effective_rank": row.effective_rank}
        flat |= {"top_share": row.top_share, "top_dims": ", ".join(str(one.dim) for one in row.top)}
        flat |= {f"share_{one.dim}": one.share for one in row.named}
        flat |= {f"r2_without_{k}": value for k, value in row.informativity.items()}
        flat |= {"clipped": ", ".join(map(str, row.clipped)), "n_fitted": row.n_fitted, "shrinkage": row.shrinkage}
        yield flat
