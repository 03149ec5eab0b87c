"""The commands, in the order of `--help`; each is one thin function in a file of its own kind.

Only the file of the command that is called is imported: a check that runs before every deployment (`verify`) should not pay
for the options of forty others. `--help` and a misspelt command look at all of them.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outlierlens import __version__
from outlierlens.experiments import BY_NAME

# command: file below cli, and its function there
COMMANDS = {
    "scan": ("weights", "scan"),
    "compare": ("weights", "compare"),
    "fingerprint": ("integrity", "fingerprint"),
    "verify": ("integrity", "verify"),
    "observe": ("measure", "observe"),
    "disable": ("measure", "disable"),
    "sweep": ("sweep", "sweep"),
    "beyond-zero": ("beyond_zero", "beyond_zero"),
    "prune-check": ("pruning", "prune_check"),
    "protect": ("pruning", "protect"),
    "prune-experiment": ("pruning", "prune_experiment"),
    "track": ("track", "track"),
    "pretrain": ("pretrain", "pretrain"),
    "outcomes": ("pretrain", "outcomes"),
    "finetune": ("finetune", "finetune"),
    "replicate": ("app", "papers"),
    "survival": ("downstream", "survival"),
    "recover": ("downstream", "recover"),
    "one-dimension": ("downstream", "one_dimension"),
    "sts": ("similarity", "sts"),
    "wic": ("similarity", "wic"),
    "origin": ("origin", "origin"),
    "detectors": ("detectors", "detectors"),
    "geometry": ("geometry", "geometry"),
    "frequency": ("frequency", "frequency"),
    "frequency-geometry": ("frequency_geometry", "frequency_geometry"),
    "predictions": ("predictions", "predictions"),
    "attention": ("attention", "attention"),
    "probe": ("probe", "probe"),
    "quant": ("experiment", "quant"),
    "count": ("count", "count"),
    "frozen": ("frozen", "frozen"),
    "export-embedder": ("embedder", "export_embedder"),
    "layer-story": ("layer_story", "layer_story"),
    "attack": ("attack", "attack"),
    "update-check": ("attack", "update_check"),
    "report": ("report", "report"),
    "explore": ("explore", "explore"),
    "doctor": ("doctor", "doctor"),
    "samples": ("samples", "samples"),
    "fetch": ("samples", "fetch"),
}
PAPERS = {
    "kovaleva-glue": ("replicate", "kovaleva_glue"),
    "puccetti-glue": ("replicate", "puccetti_glue"),
    "luo": ("replicate_luo", "luo"),
    "puccetti": ("replicate_puccetti", "puccetti"),
}


class _Commands(Mapping[str, Any]):
    """Commands by name, each made when somebody asks for it."""

    def __init__(self, places: dict[str, tuple[str, str]]) -> None:
        self._places, self._made = places, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            row = BY_NAME.get(name) or BY_NAME.get(f"replicate {name}")
            if row is not None:
                return self._made.setdefault(name, import_module("outlierlens.cli.experiment").Command(row))
            file, attribute = self._places[name]
            module = import_module(f"outlierlens.cli.{file}")
            found = getattr(module, attribute)
            self._made[name] = typer.main.get_command(found if isinstance(found, typer.Typer) else _alone(name, found))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places  # without importing it

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _alone(name: str, function: Any) -> typer.Typer:
    """An app of one command, which typer turns into just that."""
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    one.command(name)(function)
    return one


def _group(name: str, about: str, places: dict[str, tuple[str, str]], *, completion: bool = False) -> typer.Typer:
    class Group(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.commands = _Commands(places)  # type: ignore[assignment]  # nobody adds to them

    return typer.Typer(
        name=name,
        cls=Group,
        help=about,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )


app = _group(
    "outlierlens",
    "Find the handful of dimensions a Transformer cannot live without, switch them off, measure what breaks.",
    COMMANDS,
    completion=True,
)
papers = _group("replicate", "A paper's experiments for any model.", PAPERS)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"outlierlens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find the handful of dimensions a Transformer cannot live without, switch them off, measure what breaks."""


@papers.callback()  # without one typer takes it for an app without commands
def paper() -> None:
    """A paper's experiments for any model."""
