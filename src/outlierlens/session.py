"""What commands ask for beside their own options, and `Session`: one call of a command from its words to its result.

    session = Session(subject=Subject("mpnet-base"), reading=Reading(limit=64), command="outlierlens quantize mpnet-base")
    texts, others = session.texts(spare=16)
    found = quantize(session.loaded, texts, options, calibration=others, progress=session.progress)

Importing this needs neither torch nor a library for command lines.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from outlierlens.errors import BadInput
from outlierlens.options import Flag
from outlierlens.tasks.base import DataReading, Reading, SplitReading, TaskReading
from outlierlens.vectors.options import Fitting, VectorReading

if TYPE_CHECKING:
    from outlierlens.data.texts import Data, Texts
    from outlierlens.detection.weights import ScanOptions
    from outlierlens.models.load import LoadedModel, LoadOptions
    from outlierlens.results.row_store import Keep


@dataclass(frozen=True)
class Subject:
    """The model of a command."""

    model: Annotated[str, Flag(argument=True)]
    """Sample name, directory, weight file or hub id."""


MODEL_ARGS = "--model-args"


@dataclass(frozen=True)
class ModelSource:
    """Where the weights of a model come from, wherever they are read."""

    revision: Annotated[str | None, Flag(into=MODEL_ARGS)] = None
    """Hub revision: branch, tag or commit."""
    subfolder: Annotated[str, Flag(into=MODEL_ARGS)] = ""
    """Folder inside the model's directory or repository."""
    adapter: Annotated[str | None, Flag(into=MODEL_ARGS)] = None
    """Folder of a LoRA adapter (PEFT): look at the model with it on."""
    family: Annotated[str | None, Flag(into=MODEL_ARGS)] = None
    """Take the model for one of this model_type: bert, llama, …"""
    arch: Annotated[Path | None, Flag(into=MODEL_ARGS)] = None
    """TOML file with the architecture's row."""
    offline: Annotated[bool, Flag(into=MODEL_ARGS)] = False
    """Never use the network."""
    token: Annotated[str | None, Flag(hidden=True)] = field(default=None, repr=False)
    """Hub token. Default: HF_TOKEN, or that of `hf auth login`."""

    @property
    def row(self) -> Path | str | None:
        """What describes the architecture."""
        return row_of(self.arch, self.family)


@dataclass(frozen=True)
class Loading(ModelSource):
    """How a model is loaded, wherever it is run."""

    device: str = "auto"
    """auto, cpu, cuda:0, mps."""
    device_map: str | None = None
    """Spread the weights over devices, memory and disk as accelerate does: auto, balanced, sequential."""
    dtype: str = "float32"
    """float32, bfloat16, float16, checkpoint (as stored)."""
    tokenizer: Annotated[str | None, Flag(into=MODEL_ARGS)] = None
    """Read texts with the tokenizer of this folder, sample or hub id."""
    trust_remote_code: Annotated[bool, Flag(into=MODEL_ARGS)] = False
    """Run code that comes with the model. Default: no."""
    by_block: Annotated[bool | None, Flag("--by-block/--no-by-block")] = None
    """Read weights when their block runs: for a model larger than memory. Default: where it does not fit."""
    memory: Annotated[int | None, Flag("--memory", read="options:parse_bytes")] = None
    """Memory for reading block by block, without the libraries: 6GB."""
    keep_weights: bool = False
    """Keep weights that are read block by block in the hub's cache on this disk. Default: no."""


def row_of(arch: Path | None, family: str | None) -> Path | str | None:
    """What describes the architecture: the file of arch, the family, or neither."""
    if arch is not None and family is not None:
        raise BadInput("--model-args arch and family both say what the model is; give one of them")
    return arch or family


@dataclass(frozen=True)
class Output:
    """Where a result goes."""

    output: Annotated[Path | None, Flag("-o", "--output")] = None
    """Write the result to exactly this file (JSON)."""
    chart: Path | None = None
    """Draw the result to this file: .html, .svg, .png or .json."""
    overwrite: bool = False
    """Replace existing output."""
    json: bool = False
    """One JSON document on stdout."""
    quiet: Annotated[bool, Flag("-q", "--quiet")] = False
    """Print nothing but errors."""
    verbose: Annotated[bool, Flag("-v", "--verbose")] = False
    """More columns, notes and provenance."""

    @property
    def for_people(self) -> bool:
        """Whether stdout is read by people."""
        return not self.json and not self.quiet

    @property
    def tells_progress(self) -> bool:
        """Whether stderr says how far the work is."""
        return not self.quiet


@dataclass
class Session:
    """One call of an experiment: what it runs on, read when it is asked for.

    Attributes:
        subject, reading, vectors, fitting, loading, output: what the command line gave, where the row takes it.
        name: of the command. command: the command line.
        progress: called as (label, done, total).
        notice: called with a line for stderr.
        then: called once the result is written and shown.
        resumable: inside it an interrupt says that a file keeps what was measured.
    """

    subject: Subject = Subject("")
    reading: Reading = Reading()
    vectors: VectorReading = VectorReading()
    fitting: Fitting = Fitting()
    loading: ModelSource = Loading()
    output: Output = Output()
    name: str = ""
    command: str = ""
    progress: Callable[[str, int, int], None] = lambda *_: None
    notice: Callable[[str], None] = print
    then: Callable[[], None] | None = None
    resumable: Callable[[Path], AbstractContextManager[Any]] = nullcontext

    @cached_property
    def load(self) -> "LoadOptions":
        """How models are loaded."""
        from outlierlens.models.load import LoadOptions

        one = self.loading
        assert isinstance(one, Loading)  # the rows of commands that run a model take it
        return LoadOptions(
            revision=one.revision, subfolder=one.subfolder, token=one.token, dtype=one.dtype, device=one.device,
            trust_remote_code=one.trust_remote_code, offline=one.offline, row=one.row, tokenizer=one.tokenizer,
            adapter=one.adapter, device_map=one.device_map, notice=self.notice, by_block=one.by_block, memory=one.memory,
            keep_weights=one.keep_weights,
        )  # fmt: skip

    def scanning(self, asked: "ScanOptions | None" = None, **more: Any) -> "ScanOptions":
        """How weights are read: as `asked`, from where the command line says; `more` are other fields of `ScanOptions`."""
        from outlierlens.detection.weights import ScanOptions

        one = self.loading
        return replace(
            asked or ScanOptions(),
            row=one.row, revision=one.revision, subfolder=one.subfolder, token=one.token, offline=one.offline,
            adapter=one.adapter, notice=self.notice, **more,
        )  # fmt: skip

    @cached_property
    def loaded(self) -> "LoadedModel":
        """The model, loaded once."""
        from outlierlens.models.load import load_model

        found = load_model(self.subject.model, self.load)
        if found.blocks is not None:
            found.blocks.folder = self.kept.folder
        return found

    @property
    def task_reading(self) -> TaskReading:
        """What is read, of a command that scores examples of labelled tasks too."""
        assert isinstance(self.reading, TaskReading)  # its row takes it
        return self.reading

    @property
    def splits(self) -> SplitReading:
        """What is read, of a command that takes training and dev examples."""
        assert isinstance(self.reading, SplitReading)  # its row takes it
        return self.reading

    def folder(self, suffix: str = "", of: str = "") -> Path:
        """The run directory: where -o says, by default runs/MODEL-SUFFIX; `of` takes the place of the model's name.

        Of a hub id or path the name alone, so that the directory lies in runs/.
        """
        return self.output.output or Path("runs") / self._run(suffix, of)

    def _run(self, suffix: str, of: str = "") -> str:
        """The name of a run directory."""
        name = of or Path(self.subject.model).name or "model"
        return f"{name}-{suffix}" if suffix else name

    @property
    def kept(self) -> "Keep":
        """Where finished conditions are kept: runs/MODEL-COMMAND, or that below the folder OUTLIERLENS_RUNS."""
        from outlierlens.results.row_store import Keep

        runs = Path(os.environ.get("OUTLIERLENS_RUNS") or "runs")
        return Keep(runs / self._run(self.name.replace(" ", "-")), fresh=self.output.overwrite)

    def data(self, spare: int = 0) -> "Data":
        """The first `limit` texts, pictures or recordings, and `spare` that follow them."""
        read = self.reading
        assert isinstance(read, DataReading)  # its row takes it
        limit = None if read.limit is None else read.limit + spare
        return replace(read, limit=limit).read(offline=self.loading.offline)

    def texts(self, spare: int = 0) -> "tuple[Texts, Texts | None]":
        """(the first `limit` texts, the `spare` texts that follow them, or None where there are no others)."""
        from outlierlens.data.texts import read_texts

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
