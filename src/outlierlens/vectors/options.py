"""Options of the commands that read vectors: which layers and tokens, which dimensions are clipped, what fixes are fitted on.

options = session.vectors.options(loaded, final_norm=True, progress=progress)      # -> vectors.read.ReadOptions
tokens = tokenise(loaded, texts, max_length=session.vectors.max_length)
vectors = gather(loaded, tokens, tokens.sentences(), options, special=session.vectors.special)
fit = session.fitting.texts(offline=load.offline) or a default of the command's own
fit, dropped = apart(fit, texts)                            # data.labelled.apart: never an evaluated text
clipping = session.fitting.clipping(loaded, fit, session.vectors.stack)            # -> vectors.clip.Clipping
session.fitting.specs                                                              # -> tuple of vectors.fixes.FixSpec
asked = session.fitting.into(session.vectors.into(asked, loaded))                  # all that an experiment's options take
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Ge, Gt

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check, parse_layers

if TYPE_CHECKING:
    from outlierlens.data.texts import Data, Texts
    from outlierlens.models.load import LoadedModel
    from outlierlens.vectors.clip import Clipping
    from outlierlens.vectors.fixes import FixSpec
    from outlierlens.vectors.read import ReadOptions

Options = TypeVar("Options", bound=Any)  # of an experiment, a dataclass


@dataclass(frozen=True)
class VectorReading:
    """Which vectors are read."""

    layers: str = "all"
    """all, last, or embeddings,0-3,7 (blocks count from 0)."""
    stack: str | None = None
    """Which stream, where there are several."""
    special: Annotated[bool, Flag("--special/--no-special")] = False
    """Count special tokens ([CLS], [SEP], <s>) too."""
    final_norm: Annotated[bool | None, Flag("--final-norm/--no-final-norm")] = None
    """Pass vectors through the model's final norm, if it has one."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text (or window)."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 32
    """Texts per forward pass."""
    cache_gb: Annotated[float, Flag(hidden=True), Gt(0)] = 8.0
    """Memory for vectors, in gigabytes."""

    def __post_init__(self) -> None:
        check(self)
        if self.layers not in ("all", "last"):
            named_layers(self.layers)

    def into(
        self,
        options: Options,
        loaded: "LoadedModel",
        *,
        final_norm: bool = False,
        progress: "Callable[[str, int, int], None] | None" = None,
        data: "Data | None" = None,
    ) -> Options:
        """`options` of an experiment with what is said here, in the fields of it that take it: read, special, max_length."""
        read = self.options(loaded, final_norm=final_norm, progress=progress, data=data)
        return _filled(options, read=read, special=self.special, max_length=self.max_length)

    def options(
        self,
        loaded: "LoadedModel",
        *,
        final_norm: bool = False,
        progress: "Callable[[str, int, int], None] | None" = None,
        data: "Data | None" = None,
    ) -> "ReadOptions":
        """How vectors of `data` (texts, unless they are given) are read.

        `final_norm` is what the command does unless --final-norm or --no-final-norm is given.
        """
        from outlierlens.vectors.read import ReadOptions, stack_of

        layers: tuple[int, ...] | None = None
        if self.layers == "last":
            layers = (stack_of(loaded, data, self.stack).n_layers - 1,)
        elif self.layers != "all":
            layers = named_layers(self.layers)
        return ReadOptions(
            batch_size=self.batch_size,
            stack=self.stack,
            layers=layers,
            final_norm=final_norm if self.final_norm is None else self.final_norm,
            cache_gb=self.cache_gb,
            progress=progress,
        )


def _filled(options: Options, **values: object) -> Options:
    """`options` with those of `values` that it has fields for."""
    taken = {one.name for one in fields(options)} & values.keys()
    return replace(options, **{name: values[name] for name in taken})


def named_layers(text: str) -> tuple[int, ...]:
    """ "embeddings,0-3" -> (-1, 0, 1, 2, 3)."""
    from outlierlens.models.hooks import EMBEDDINGS

    found: list[int] = []
    for part in text.split(","):
        found += (EMBEDDINGS,) if part.strip() == "embeddings" else parse_layers(part)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Fitting:
    """Which dimensions are clipped, and what that and other fixes are fitted on."""

    fixes: str = "raw,clip,standardize,abtt,whiten"
    """raw, clip, centre, standardize, abtt:3, whiten:256, by commas."""
    clip: str = "auto"
    """auto (Luo's rule on the fit text), none, 557,143, 0-9:896;10-16:678, a name."""
    fit_data: str | None = None
    """Text to fit on: file or hub id; evaluated texts are left out of it."""
    fit_column: Annotated[str | None, Flag("column", into="--fit-data")] = None
    """Column that holds the text."""
    fit_limit: Annotated[int, Flag("limit", into="--fit-data"), Ge(2)] = 10_000
    """Fit on N texts at most, by --seed."""

    def __post_init__(self) -> None:
        check(self)
        if self.fit_column is not None and self.fit_data is None:
            raise BadInput("--fit-data column names a column; name the file too: --fit-data FILE:column=NAME")

    @property
    def specs(self) -> "tuple[FixSpec, ...]":
        """What --fixes asks for."""
        from outlierlens.vectors.fixes import parse_fixes

        return parse_fixes(self.fixes)

    def into(self, options: Options) -> Options:
        """`options` of an experiment with what is said here, in the fields of it that take it: fixes, clip, fit_limit."""
        return _filled(options, fixes=self.specs, clip=self.clip, fit_limit=self.fit_limit)

    def texts(self, *, offline: bool = False) -> "Texts | None":
        """The texts of --fit-data; None where it is not given. All of them: `data.labelled.labels` draws its limit."""
        from outlierlens.data.texts import read_texts

        if self.fit_data is None:
            return None
        return read_texts(self.fit_data, column=self.fit_column, offline=offline)

    def data(self, *, offline: bool = False) -> "Data | None":
        """The same of a command that takes pictures and recordings too."""
        from outlierlens.tasks.base import DataReading

        return (
            None
            if self.fit_data is None
            else DataReading(self.fit_data, text_column=self.fit_column).read(offline=offline)
        )

    def clipping(self, loaded: "LoadedModel", fit: "Texts | None", stack: str | None = None) -> "Clipping":
        """The dimensions that --clip names, layer by layer; "auto" observes them on `fit`."""
        from outlierlens.vectors.clip import resolve_clipping

        return resolve_clipping(self.clip, loaded, fit_texts=fit, stack=stack)
