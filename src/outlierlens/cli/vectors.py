"""Options of the commands that read vectors: which layers and tokens, which dimensions are clipped, what fixes are fitted on.

@common.loads_a_model
@reads_vectors                      # --layers --stack --special --final-norm --max-length --batch-size --cache-gb
@repairs                            # --fixes --clip --fit-data --fit-column --fit-limit; or @clips: without --fixes
def command(model, …, seed: common.Seed = 0, …, overwrite…, *, reading: Reading, fitting: Fitting, load: LoadOptions):
    loaded = load_model(model, load)
    options = reading.options(loaded, final_norm=True, progress=progress)      # -> vectors.ReadOptions
    tokens = tokenise(loaded, texts, max_length=reading.max_length)
    vectors = gather(loaded, tokens, tokens.sentences(), options, special=reading.special)
    fit = fitting.texts(offline=load.offline) or a default of the command's own
    fit, dropped = apart(fit, texts)                                           # vectors.apart: never an evaluated text
    clipping = fitting.clipping(loaded, fit, reading.stack)                    # -> clipping.Clipping
    fitting.specs                                                              # -> tuple of vectors.FixSpec
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.clipping import Clipping
    from outlierlens.data import Texts
    from outlierlens.models import LoadedModel
    from outlierlens.vectors.fixes import FixSpec
    from outlierlens.vectors.read import ReadOptions

FIXES = "raw,clip,standardize,abtt,whiten"
FIT_LIMIT = 10_000  # texts: ten vectors a dimension for a width of 1,000

# What is read: parameter, type, default.
READING: tuple[tuple[str, Any, Any], ...] = (
    ("layers", Annotated[str, typer.Option("--layers", help="all, last, or embeddings,0-3,7 (blocks count from 0).")], "all"),
    ("stack", Annotated[str | None, typer.Option("--stack", help="Which stream, where there are several.")], None),
    (
        "special",
        Annotated[bool, typer.Option("--special/--no-special", help="Count special tokens ([CLS], [SEP], <s>) too.")],
        False,
    ),
    (
        "final_norm",
        Annotated[
            bool | None,
            typer.Option("--final-norm/--no-final-norm", help="Pass vectors through the model's final norm, if it has one."),
        ],
        None,
    ),
    ("max_length", common.MaxLength, 128),
    ("batch_size", common.BatchSize, 32),
    ("cache_gb", Annotated[float, typer.Option("--cache-gb", help="Vectors may take so many gigabytes.")], 8.0),
)  # fmt: skip
CLIPPING: tuple[tuple[str, Any, Any], ...] = (
    (
        "clip",
        Annotated[
            str,
            typer.Option("--clip", help="auto (Luo's rule on the fit text), none, 557,143, 0-9:896;10-16:678, a name."),
        ],
        "auto",
    ),
    (
        "fit_data",
        Annotated[
            str | None,
            typer.Option("--fit-data", help="Text to fit on: file or hub id; evaluated texts are left out of it."),
        ],
        None,
    ),
    ("fit_column", Annotated[str | None, typer.Option("--fit-column", help="Column of --fit-data that holds the text.")], None),
    ("fit_limit", Annotated[int, typer.Option("--fit-limit", min=2, help="Fit on N texts at most, by --seed.")], FIT_LIMIT),
)  # fmt: skip
REPAIRS: tuple[tuple[str, Any, Any], ...] = (
    (
        "fixes",
        Annotated[str, typer.Option("--fixes", help="raw, clip, centre, standardize, abtt:3, whiten:256, by commas.")],
        FIXES,
    ),
    *CLIPPING,
)


@dataclass(frozen=True)
class Reading:
    """The options of `READING` as given."""

    layers: str = "all"
    stack: str | None = None
    special: bool = False
    final_norm: bool | None = None
    max_length: int = 128
    batch_size: int = 32
    cache_gb: float = 8.0

    def __post_init__(self) -> None:
        if self.layers not in ("all", "last"):
            _named_layers(self.layers)
        if not self.cache_gb > 0:
            raise BadInput(f"--cache-gb is {self.cache_gb}; it must be above 0")

    def options(
        self,
        loaded: "LoadedModel",
        *,
        final_norm: bool = False,
        progress: "Callable[[str, int, int], None] | None" = None,
    ) -> "ReadOptions":
        """How vectors are read; `final_norm` is what the command does unless --final-norm or --no-final-norm is given."""
        from outlierlens.vectors.read import ReadOptions, text_stack
        from outlierlens.vectors.store import Budget

        layers: tuple[int, ...] | None = None
        if self.layers == "last":
            layers = (text_stack(loaded, self.stack).n_layers - 1,)
        elif self.layers != "all":
            layers = _named_layers(self.layers)
        return ReadOptions(
            batch_size=self.batch_size,
            stack=self.stack,
            layers=layers,
            final_norm=final_norm if self.final_norm is None else self.final_norm,
            budget=Budget(self.cache_gb),
            progress=progress,
        )


def _named_layers(text: str) -> tuple[int, ...]:
    """ "embeddings,0-3" -> (-1, 0, 1, 2, 3)."""
    from outlierlens.hidden import EMBEDDINGS

    found: list[int] = []
    for part in text.split(","):
        found += (EMBEDDINGS,) if part.strip() == "embeddings" else spelling.parse_layers(part)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Fitting:
    """The options of `REPAIRS` as given; `seed` draws the texts to fit on."""

    fixes: str = FIXES
    clip: str = "auto"
    fit_data: str | None = None
    fit_column: str | None = None
    fit_limit: int = FIT_LIMIT
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fit_column is not None and self.fit_data is None:
            raise BadInput("--fit-column names a column of --fit-data; name that too")

    @property
    def specs(self) -> "tuple[FixSpec, ...]":
        """What --fixes asks for."""
        from outlierlens.vectors.fixes import parse_fixes

        return parse_fixes(self.fixes)

    def texts(self, *, offline: bool = False) -> "Texts | None":
        """The texts of --fit-data; None where it is not given. All of them: `vectors.apart` draws --fit-limit."""
        from outlierlens.data import read_texts

        if self.fit_data is None:
            return None
        return read_texts(self.fit_data, column=self.fit_column, offline=offline)

    def clipping(self, loaded: "LoadedModel", fit: "Texts | None", stack: str | None = None) -> "Clipping":
        """The dimensions that --clip names, layer by layer; "auto" observes them on `fit`."""
        from outlierlens.clipping import resolve_clipping

        return resolve_clipping(self.clip, loaded, fit_texts=fit, stack=stack)


def reads_vectors(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `READING` in front of --seed; it gets them as `reading`, a Reading."""
    return common.with_group(command, READING, "reading", lambda options, _: Reading(**options), before="seed")


def repairs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `REPAIRS` in front of --seed; it gets them as `fitting`, a Fitting."""
    return common.with_group(command, REPAIRS, "fitting", _fitting, before="seed")


def clips(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `CLIPPING`, which leaves out --fixes; it gets them as `fitting`, a Fitting."""
    return common.with_group(command, CLIPPING, "fitting", _fitting, before="seed")


def _fitting(options: dict[str, Any], given: dict[str, Any]) -> Fitting:
    return Fitting(**options, seed=given["seed"])
