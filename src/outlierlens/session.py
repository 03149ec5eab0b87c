"""What every command asks for beside its own options, and `Session`: one call of a command from its words to its result.

    session = Session(Subject("mpnet-base"), Reading(limit=64), Loading(), Output(), command="outlierlens quant mpnet-base")
    texts, others = session.texts(spare=16)
    found = quantize(session.loaded, texts, options, calibration=others, progress=session.progress)

Importing this needs neither torch nor a library for command lines.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag

if TYPE_CHECKING:
    from outlierlens.data import Texts
    from outlierlens.models import LoadedModel, LoadOptions


@dataclass(frozen=True)
class Subject:
    """The model of a command."""

    model: Annotated[str, Flag(argument=True)]
    """Sample name, directory, weight file or hub id."""


@dataclass(frozen=True)
class Reading:
    """Which texts are read; other defaults stand in the table of experiments."""

    data: str = "excerpt"
    """Text: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id owner/name:config:split."""
    text_column: str | None = None
    """Column that holds the text."""
    limit: Annotated[int | None, Ge(1)] = None
    """Use the first N texts."""


@dataclass(frozen=True)
class Loading:
    """How a model is loaded, wherever it is run."""

    arch: Path | None = None
    """TOML file with the architecture's row."""
    family: str | None = None
    """Take the model for one of this model_type: bert, llama, …"""
    tokenizer: str | None = None
    """Read texts with the tokenizer of this folder, sample or hub id."""
    revision: str | None = None
    """Hub revision: branch, tag or commit."""
    subfolder: str = ""
    """Folder inside the model's directory or repository."""
    token: Annotated[str | None, Flag("--token", env="HF_TOKEN")] = field(default=None, repr=False)
    """Hub token."""
    device: str = "auto"
    """auto, cpu, cuda:0, mps."""
    dtype: str = "float32"
    """float32, bfloat16, float16, checkpoint (as stored)."""
    trust_remote_code: bool = False
    """Run code that the model brings. Off."""
    offline: bool = False
    """Never use the network."""

    @property
    def row(self) -> Path | str | None:
        """What describes the architecture."""
        return row_of(self.arch, self.family)


def row_of(arch: Path | None, family: str | None) -> Path | str | None:
    """What describes the architecture: the file of --arch, the family of --family, or neither."""
    if arch is not None and family is not None:
        raise BadInput("--arch and --family both say what the model is; give one of them")
    return arch or family


@dataclass(frozen=True)
class Output:
    """Where a result goes."""

    chart: Path | None = None
    """Draw the result to this file: .html, .svg, .png or .json."""
    output: Annotated[Path | None, Flag("-o", "--output")] = None
    """Write the result to exactly this file (JSON)."""
    overwrite: bool = False
    """Replace existing output."""
    json: bool = False
    """One JSON document on stdout."""
    quiet: Annotated[bool, Flag("-q", "--quiet")] = False
    """Print nothing but errors."""
    verbose: Annotated[bool, Flag("-v", "--verbose")] = False
    """More columns, notes and provenance."""
    no_progress: bool = False
    """No progress on stderr."""


@dataclass
class Session:
    """One call of an experiment: what it runs on, read when it is asked for; `progress` is called as (label, done, total)."""

    subject: Subject
    reading: Reading
    loading: Loading
    progress: Callable[[str, int, int], None] | None = None
    notice: Callable[[str], None] = print

    @cached_property
    def load(self) -> "LoadOptions":
        """How models are loaded."""
        from outlierlens.models import LoadOptions

        one = self.loading
        return LoadOptions(
            revision=one.revision, subfolder=one.subfolder, token=one.token, dtype=one.dtype, device=one.device,
            trust_remote_code=one.trust_remote_code, offline=one.offline, row=one.row, tokenizer=one.tokenizer,
            notice=self.notice,
        )  # fmt: skip

    @cached_property
    def loaded(self) -> "LoadedModel":
        """The model, loaded once."""
        from outlierlens.models import load_model

        return load_model(self.subject.model, self.load)

    def texts(self, spare: int = 0) -> "tuple[Texts, Texts | None]":
        """(the first `limit` texts, the `spare` texts that follow them, or None where there are no others)."""
        from outlierlens.data import read_texts

        read, limit = self.reading, self.reading.limit
        found = read_texts(
            read.data,
            column=read.text_column,
            limit=None if limit is None else limit + spare,
            offline=self.loading.offline,
        )
        if limit is None:
            return found, None
        rest = range(limit, len(found))
        return found.first(limit), found.some(rest) if rest else None
