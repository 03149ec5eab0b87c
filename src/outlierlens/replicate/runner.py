"""How a paper of many parts is measured: one part after the other, each by its analysis, and put together.

    class PuccettiRun(PaperRun): …                     # what its parts share
    PARTS = {"frequency": PaperPart("correlation with token frequency", _frequency, n_texts=1000), …}
    run = PuccettiRun(loaded, options, folder)
    run.measure(PARTS)
    run.found                                          # {name: its finding}

rows/               what the analyses have finished: the same command goes on, other settings have files of their own
parts/NAME.json     the part's finding
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from outlierlens.errors import BadInput, pick
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flag, check
from outlierlens.replicate.papers import checkpoint_of
from outlierlens.results.document import Result, save
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Row
from outlierlens.vectors.read import ReadOptions, text_stack
from outlierlens.view.section import Section, renamed


@dataclass(frozen=True)
class PaperPart:
    """One part of a paper: how it is measured, and with what.

    Attributes:
        measure: its finding, of the `PaperRun` that it is a part of.
        needs: what it cannot do without, as `PaperRun.lacks` understands it.
        n_texts: texts that it reads unless in full; 0 where it chooses its own.
    """

    title: str
    measure: Callable[[Any], Finding]
    needs: tuple[str, ...] = ()
    n_texts: int = 0


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """Options of a paper of many parts; a paper names its parts."""

    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Which parts, by commas."""
    full: bool = False
    """All data in every part, for hours; else the subsets that the result states."""
    stack: str | None = None
    """Which stream, where there are several."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 32
    """Texts per forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        names = type(self).parts  # by default all
        unknown = [name for name in self.parts if name not in names]
        if unknown or not self.parts:
            raise BadInput(f"unknown part {unknown[0] if unknown else ''!r}; parts are {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class MeasuredPart(Row):
    """A part that was measured."""

    part: str
    title: str
    """what"""


@dataclass(frozen=True, kw_only=True)
class PaperFinding(Finding):
    """A paper for one model: the findings of its parts, beside rows of its own.

    Attributes:
        checkpoint: the paper's checkpoint that this is, "" where it is none.
        full: whether everything was read, or stated subsets.
        parts: findings, in the order of `measured`.
    """

    paper: ClassVar[str] = ""  # begins the names of its sections and charts

    checkpoint: str = ""
    full: bool = False
    measured: tuple[MeasuredPart, ...] = ()
    """Parts"""
    parts: tuple[Result, ...] = ()

    @property
    def name(self) -> str:
        """Of its section and of the files of its pictures."""
        return self.paper

    def all_rows(self) -> dict[str, tuple[Row, ...]]:
        """{field: its rows}, its own before the parts."""
        rows = super().all_rows()
        return {name: rows[name] for name in sorted(rows, key="measured".__eq__)}

    def part(self, name: str) -> Any:
        """The finding of a part; raises BadInput with the parts there are."""
        return self.parts[self.measured.index(pick(self.measured, f"no part {name!r}", part=name))]

    def sentences(self) -> Iterator[str]:
        for part in self.parts:
            assert isinstance(part, Finding)
            yield from itertools.islice(part.sentences(), 1)

    def sections(self, *, verbose: bool = False) -> Iterator[Section]:
        """Its own, then those of its parts."""
        yield from super().sections(verbose=verbose)
        for row, part in zip(self.measured, self.parts, strict=True):
            assert isinstance(part, Finding)
            yield from (renamed(one, f"{self.paper}-{row.part}") for one in part.sections(verbose=verbose))


class PaperRun:
    """One run of a paper: the model, what was asked, and what is kept. A paper adds what its parts share."""

    def __init__(
        self, loaded: LoadedModel, options: Any, folder: Path, *, overwrite: bool = False, progress: Progress | None
    ):
        self.loaded, self.options, self.folder = loaded, options, folder
        self.progress = progress or (lambda *_: None)
        self.stack = text_stack(loaded, options.stack)
        self.rows = Keep(folder / "rows", fresh=overwrite)
        self.found: dict[str, Any] = {}  # {name: finding} of the parts that were measured
        self.notes: list[str] = []

    def lacks(self, part: PaperPart) -> str:
        """Why a part cannot be measured; "" where it can."""
        return ""

    def measure(self, parts: Mapping[str, PaperPart]) -> None:
        """Measure the parts asked for, but for those that something is lacking for, which a note says."""
        for name, part in parts.items():
            if name not in self.options.parts:
                continue
            if why := self.lacks(part):
                self.notes.append(f"{part.title}: left out, for {why}")
                continue
            self.progress(part.title, 0, 1)
            self.found[name] = part.measure(self)
            save(self.found[name], self.folder / "parts" / f"{name}.json")

    def reading(self, **more: Any) -> ReadOptions:
        """How the model is run; `more` are other fields."""
        batch, name = self.options.batch_size, self.stack.name
        return ReadOptions(batch_size=batch, stack=name, progress=self.progress, **more)

    def together(self, parts: Mapping[str, PaperPart], dims: Sequence[int], named_by: str = "") -> dict[str, Any]:
        """The fields of a `PaperFinding`; `dims` are those that it is about."""
        return {
            "provenance": self.loaded.provenance(seed=self.options.seed),
            "about": About(stack=self.stack.name, dims=tuple(map(str, dims)), named_by=named_by),
            "checkpoint": checkpoint_of(self.loaded.name, self.loaded.config),
            "full": self.options.full,
            "measured": tuple(MeasuredPart(part=one, title=parts[one].title) for one in self.found),
            "parts": tuple(self.found.values()),
            "notes": tuple(dict.fromkeys((*self.loaded.notes, *self.notes))),
        }
