"""What `export-embedder` is asked: a layer and a fix, where they are written, and what they are checked on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check
from outlierlens.vectors.fixes import FixSpec, parse_fixes
from outlierlens.vectors.options import Fitting


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions:
    """What is exported and how it is read."""

    fix: Annotated[FixSpec, Flag(read="experiments.embedder.options:one_fix")]
    """raw, clip, centre, standardize, abtt, whiten; abtt:3 and whiten:256 too."""
    layer: str = "last"
    """last, embeddings or a block's number from 0; the rest is dropped."""
    normalize: Annotated[bool, Flag("--normalize/--no-normalize")] = False
    """End with vectors of length 1."""
    max_length: Annotated[int, Ge(2)] = 256
    """Tokens of a text at most, or fewer where the model has no more positions."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    clip: Annotated[str, Flag(hidden=True)] = "auto"
    """Dimensions of the fix "clip", as `resolve_clipping` takes them."""
    fit_limit: Annotated[int | None, Ge(2), Flag(hidden=True)] = Fitting.fit_limit
    """Fit on N texts at most, by the seed."""
    overwrite: Annotated[bool, Flag(hidden=True)] = False
    """Replace an embedder that was exported before."""
    progress: Annotated[Callable[[str, int, int], None] | None, Flag(hidden=True)] = field(default=None, compare=False)
    """Called with (label, texts done, texts)."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs_text(self) -> bool:
        """Whether the fix is fitted, or its dimensions are observed, on a text."""
        return self.fix.fitted or (self.fix.kind == "clip" and self.clip == "auto")


@dataclass(frozen=True, kw_only=True)
class EmbedderCall(EmbedderOptions):
    """What is exported, and where."""

    k: Annotated[int | None, Ge(1)] = None
    """Number of directions for abtt and whiten, as in abtt:3."""
    folder: Annotated[Path, Flag("-o", "--output")]
    """Folder to write; it must not exist."""
    check_data: Path | None = None
    """Score with and without the fix: file with sentence1, sentence2, score."""

    @property
    def spec(self) -> FixSpec:
        """The fix with the number of --k."""
        if self.k is None:
            return self.fix
        if self.fix.k is not None:
            raise BadInput(f"--fix {self.fix.name} and --k {self.k} both say a number; leave one out")
        return replace(self.fix, k=self.k)


def one_fix(text: str) -> FixSpec:
    """ "abtt:3"; raises BadInput for several."""
    specs = parse_fixes(text)
    if len(specs) != 1:
        raise BadInput(f"--fix {text!r} names {len(specs)} fixes; an embedder has one")
    return specs[0]
