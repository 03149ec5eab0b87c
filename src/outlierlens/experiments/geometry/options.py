"""What `geometry` is asked: how much is drawn, which dimensions' shares are said, and what fixes rest on."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check
from outlierlens.vectors.fixes import USUAL, FixSpec, parse_fixes
from outlierlens.vectors.read import ReadOptions
from outlierlens.vectors.spans import Drawing

DRAWN = ("n_pairs", "n_words", "min_sentences", "max_contexts", "max_tokens", "skip_first")


@dataclass(frozen=True, kw_only=True)
class GeometryOptions:
    """What is measured, and how."""

    drawing: Annotated[Drawing, Flat(*DRAWN)] = Drawing()
    """How much is drawn."""
    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """308,381: say their share of the cosine too, beside those that the weights and the clipping name."""
    n_bootstrap: Annotated[int, Flag("--bootstrap"), Ge(20)] = 500
    """Bootstrap draws of the sentences."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    fixes: Annotated[tuple[FixSpec, ...], Flag(hidden=True)] = parse_fixes(USUAL)
    """Repairs, `raw` among them for differences."""
    clip: Annotated[str, Flag(hidden=True)] = "auto"
    """Of fix "clip", as `vectors.clip.resolve_clipping` takes it."""
    fit_limit: Annotated[int, Flag(hidden=True), Ge(2)] = 10_000
    """Texts to fit on, at most; reading ends before, at 20 token vectors per dimension."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How the model is run."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Tokens of a text."""

    def __post_init__(self) -> None:
        check(self)
        if not self.fixes:
            raise BadInput("name at least one fix; raw is the vectors as they are")
