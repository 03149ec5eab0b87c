"""A passage under one condition, as data: what the model fills in, and how it goes on. No torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

FillKind = Literal["same", "other", "nonsense", "changed"]
SIGNS: dict[FillKind, str] = {"same": "=", "other": "≠", "nonsense": "✗", "changed": "!"}
KINDS = ", ".join(f"{sign} {kind}" for kind, sign in SIGNS.items() if kind != "same")


@dataclass(frozen=True)
class Blank:
    """What the model says at one position of a passage: its word, the intact model's, and the verdict.

    `kind` of a blank is "same" (equal to the intact fill), "other" (another word) or "nonsense", by the rule of `fill.judge`;
    "changed" is a word that a masked model was shown, that the intact model repeats, and that this one takes for another.
    """

    position: int
    filled: str
    intact: str
    original: str
    kind: FillKind


@dataclass(frozen=True)
class Filled:
    """The passage under one condition: `pieces` are the texts between `blanks` (changed words among them), one more.

    The space before a blank ends the piece before it.
    """

    label: str
    dims: tuple[int, ...]
    pieces: Annotated[tuple[str, ...], "blank+1"]
    blanks: Annotated[tuple[Blank, ...], "blank"]

    @property
    def line(self) -> str:
        """The passage in one line, words of the model in brackets with their sign; "same" has none."""
        parts = [self.pieces[0]]
        for blank, piece in zip(self.blanks, self.pieces[1:], strict=True):
            sign = "" if blank.kind == "same" else SIGNS[blank.kind]
            parts.append(f"[{sign}{blank.filled}]{piece}")
        return "".join(parts)


@dataclass(frozen=True)
class Continuation:
    """What a causal model says after a prompt, greedily, under one condition."""

    label: str
    dims: tuple[int, ...]
    prompt: str
    text: str
