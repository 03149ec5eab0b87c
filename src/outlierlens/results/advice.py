"""What to do about a finding: `Advice`, which results give (`Result.advice`), and the command lines that stand in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlierlens.errors import command, operand, option

if TYPE_CHECKING:
    from outlierlens.results.document import Provenance

TOPICS = ("prune", "quantize", "range", "compare", "explain", "transfer", "check", "nothing", "trust")  # in their order


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the number it rests on.

    Attributes:
        topic: for whom, of `TOPICS`. text, because: what, and why.
        commands: the command lines that do it, or look further.
        until: kinds of results that answer it: beside one of them it is not given.
    """

    topic: str
    text: str
    because: str
    commands: tuple[str, ...] = ()
    until: tuple[str, ...] = ()


def about(made: "Provenance", name: str, *words: str, dims: Sequence[int] = (), stack: str = "") -> str:
    """The command line `name` about the model of a finding, quoted for a shell."""
    listed = ["--dims", ",".join(map(str, dims))] if dims else []
    listed += option("--stack", stack) if stack else []
    listed += option("--model-args", f"adapter={made.adapter}") if made.adapter else []
    return command(*name.split(), operand(made.model), *words, *listed)


def fitted(made: "Provenance", form: str) -> str:
    """The command line that writes a copy of the model with room in a format, "fp16" or "int8"."""
    name = made.model.replace("\\", "/").rstrip("/").rpartition("/")[2] or "model"
    return about(made, "repair", "--fit", form, "-o", operand(f"{name}-{form}"))
