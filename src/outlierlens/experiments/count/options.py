"""What `count` is asked: a corpus, or counts to add up, and how it is counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check


@dataclass(frozen=True, kw_only=True)
class CountOptions:
    """How a corpus is counted."""

    max_length: Annotated[int | None, Ge(2)] = None
    """Cut texts at N tokens, those put around them included. Default: texts are counted whole."""
    workers: Annotated[int, Ge(0)] = 0
    """Processes; 0: one per core. 1: this one alone."""
    text_column: Annotated[str | None, Flag(hidden=True)] = None
    """Column that holds the text; None finds it by its usual names."""
    limit: Annotated[int | None, Flag(hidden=True), Ge(1)] = None
    """Use the first N texts."""
    offline: Annotated[bool, Flag(hidden=True)] = False
    """Never use the network."""
    progress: Annotated[Callable[[str, int, int, int, int], None] | None, Flag(hidden=True)] = None
    """Called now and then with (source, whole sources, sources, texts, tokens)."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class CountCall:
    """What the command is asked."""

    data: tuple[str, ...] = ()
    """Text: .txt (a text per line), .jsonl, .csv, .tsv, .parquet, a folder or glob of these, or a hub id
    owner/name:config:split. Repeatable."""
    merge: str | None = None
    """Add these up instead: a.parquet,b.parquet; published ones need --tokenizer."""
    counted: Annotated[CountOptions, Flat("max_length", "workers")] = CountOptions()
    """How a corpus is counted; how it is read is a group of its own."""

    def __post_init__(self) -> None:
        if bool(self.data) == bool(self.merge):
            raise BadInput("give what is counted with --data, or counts to add up with --merge; one of the two")
