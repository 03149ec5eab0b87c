"""Options, output and progress that the commands share."""

import functools
import inspect
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from outlierlens.cli import drop_output
from outlierlens.errors import OF_THE_MACHINE, BadInput, OutlierlensError, near, printable, told
from outlierlens.session import row_of

Model = Annotated[str, typer.Argument(help="Sample name, directory, weight file or hub id.", show_default=False)]
Data = Annotated[
    str, typer.Option("--data", help="Text: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id owner/name:config:split.")
]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="Column that holds the text.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Use the first N texts.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Hub revision: branch, tag or commit.")]
Subfolder = Annotated[str, typer.Option("--subfolder", help="Folder inside the model's directory or repository.")]
Token = Annotated[str | None, typer.Option("--token", envvar="HF_TOKEN", help="Hub token.", show_envvar=False)]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda:0, mps.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16, checkpoint (as stored).")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Texts in one forward pass.")]
MaxLength = Annotated[int, typer.Option("--max-length", min=2, help="Tokens of a text (or window) at most.")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that the model brings. Off.")]
Arch = Annotated[Path | None, typer.Option("--arch", help="TOML file with the architecture's row.", show_default=False)]
Family = Annotated[
    str | None,
    typer.Option("--family", help="Take the model for one of this model_type: bert, llama, …", show_default=False),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", help="Read texts with the tokenizer of this folder, sample or hub id.", show_default=False
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write the result to exactly this file (JSON).")]
Format = Annotated[str, typer.Option("--format", help="auto, human, json or quiet.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
Chart = Annotated[
    Path | None, typer.Option("--chart", help="Draw the result to this file: .html, .svg, .png or .json.")
]
Rows = Annotated[Path | None, typer.Option("--rows", help="Append finished conditions here; a rerun continues.")]
Bootstrap = Annotated[int, typer.Option("--bootstrap", min=20, help="Times that texts are drawn again.")]
MaxRead = Annotated[str, typer.Option("--max-read", help="Refuse to read more than this.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="More columns, notes and provenance.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress on stderr.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]

# Exit codes of commands that check: nothing could be checked; the check failed.
UNUSABLE, FAILED = 2, 3

FORMATS = ("auto", "human", "json", "quiet")

# How a model is loaded, wherever it is run: parameter, type, default. `loads_a_model` puts them into a command.
LOADING: tuple[tuple[str, Any, Any], ...] = (
    ("arch", Arch, None),
    ("family", Family, None),
    ("tokenizer", Tokenizer, None),
    ("revision", Revision, None),
    ("subfolder", Subfolder, ""),
    ("token", Token, None),
    ("device", Device, "auto"),
    ("dtype", Dtype, "float32"),
    ("trust_remote_code", RemoteCode, False),
    ("offline", Offline, False),
)


def loads_a_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `LOADING`, in front of --overwrite; it gets them as `load`, a LoadOptions."""

    def make(options: dict[str, Any], given: dict[str, Any]) -> Any:
        from outlierlens.models import LoadOptions

        notice = (lambda _: None) if given.get("quiet") else warn
        row = row_of(options.pop("arch"), options.pop("family"))
        return LoadOptions(row=row, notice=notice, **options)

    return with_group(command, LOADING, "load", make, before="overwrite")


def with_group(
    command: Callable[..., None],
    group: Sequence[tuple[str, Any, Any]],
    name: str,
    make: Callable[[dict[str, Any], dict[str, Any]], Any],
    *,
    before: str,
) -> Callable[..., None]:
    """Give a command the options of `group` in front of option `before`; it gets `make(them, its own)` as `name`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        options = {option: given.pop(option) for option, _, _ in group}
        command(**given, **{name: make(options, given)})

    own = [p for p in inspect.signature(command).parameters.values() if p.name != name]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    more = [inspect.Parameter(option, kind, default=value, annotation=hint) for option, hint, value in group]
    place = [p.name for p in own].index(before)
    parameters = [*own[:place], *more, *own[place:]]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


@contextmanager
def unusable_is_2() -> Iterator[None]:
    """Errors end the process with code 2, so that a gate can tell them from a difference (3)."""
    try:
        yield
        sys.stdout.flush()  # a full disk shows here
    except BrokenPipeError:
        raise  # the reader went away: nothing is wrong with what was checked
    except (OutlierlensError, *OF_THE_MACHINE) as error:
        drop_output()  # or `main` would meet the same full disk again
        warn(f"error: {told(error)}")
        raise typer.Exit(UNUSABLE) from None


@dataclass(frozen=True)
class Show:
    """Where a result goes: a table for people, JSON, a file, or nowhere."""

    format: str
    output: Path | None = None

    @classmethod
    def choose(cls, format: str, json: bool, quiet: bool, output: Path | None, overwrite: bool = False) -> "Show":
        """Resolve `--format auto`: a table. A written file must not exist yet, unless `--overwrite` is given."""
        if format not in FORMATS:
            raise BadInput(f"--format is {format!r}; use auto, human, json or quiet{near(format, FORMATS)}")
        if output and output.exists() and not overwrite:
            raise BadInput(f"{output} exists; give another name or --overwrite")
        folder = next((p for p in output.absolute().parents if p.exists()), None) if output else None
        if folder and not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise BadInput(f"{output} cannot be written: {folder} is no folder one may write in")
        chosen = "json" if json else "quiet" if quiet else "human" if format == "auto" else format
        return cls(chosen, output)

    def result(self, value: Any, human: Callable[[Any], None]) -> None:
        """Write `value` to the file asked for, and show it as asked."""
        from outlierlens.results import save, to_json  # brings numpy, which --help does not need

        if self.output:
            save(value, self.output)
        if self.format == "json":
            print(to_json(value, indent=2))
        elif self.format == "human":
            human(value)


def reproduce() -> str:
    """The command line that is running, quoted for a shell, without the token: results are made to be shared."""
    words, hidden = [], False
    for word in sys.argv[1:]:
        if not hidden and not word.startswith("--token"):
            words.append(word)
        hidden = word == "--token"
    return command(*words)


def command(*words: str | Path) -> str:
    """A command line of ours, quoted for a shell."""
    return "outlierlens " + shlex.join(map(str, words))


LEFT = (  # columns of words
    *("model", "stack", "site", "fate", "rule", "off", "weights", "of the", "why", "treatment"),
    *("fix", "layer chosen", "verdict", "says", "thresholds", "input", "measure", "real", "part", "library"),
)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout, readable without colour; text of models and files is shown as it is, never as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in LEFT else "right")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200)
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:z.3g}" if isinstance(value, float) else printable(str(value))


def say(text: str) -> None:
    """One line on stdout, control characters removed."""
    print(printable(text))


def warn(text: str) -> None:
    """One line on stderr."""
    print(printable(text), file=sys.stderr)


class Progress:
    """A progress bar on stderr, when it is a terminal and progress is wanted; otherwise a line a step."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self._bar: Any = None
        self._task: Any = None
        self._label = ""

    def __call__(self, label: str, done: int, total: int) -> None:
        """Report that `done` of `total` units are finished."""
        if not self.show:
            return
        if not sys.stderr.isatty():
            if label != self._label:
                self._label = label
                print(f"{label} ({done}/{total})", file=sys.stderr)
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(label, total=total)
        self._bar.update(self._task, description=label, completed=done, total=total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def resumable(rows: Path | None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM keep what is measured, say how to go on, and end with exit code 130 or 143."""
    terminated = False

    def terminate(*_: Any) -> NoReturn:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt  # nothing finer: some libraries raise a bare one for whatever a handler raised in them

    # Only the main thread may set a handler, and only it is interrupted.
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if here else None
    try:
        yield
    except KeyboardInterrupt:
        again = reproduce().replace(" --overwrite", "")
        kept = f"{rows} keeps what was measured; go on with: {again}" if rows else "nothing was kept (no --rows FILE)"
        if rows and not rows.exists():
            kept = f"nothing was measured yet; start again with: {again}"
        warn(f"{'terminated' if terminated else 'interrupted'}; {kept}")
        raise typer.Exit(143 if terminated else 130) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
