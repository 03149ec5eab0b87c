"""`doctor`: what is installed, cached and missing, and for which command."""

import dataclasses
import json as json_library
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.common import print_table, say

if TYPE_CHECKING:
    from outlierlens.doctor import Diagnosis


def doctor(
    context: typer.Context,
    devices: Annotated[bool, typer.Option("--devices", help="Import torch too, and list what it computes on.")] = False,
    json: common.Json = False,
) -> None:
    """Print versions, devices, caches and offline state, and what is missing for which command; changes nothing.

    Exit code 0; 1 where something that is installed is broken.
    """
    from outlierlens.doctor import examine

    found = examine(devices=devices, commands=_commands(context))
    if json:
        print(json_library.dumps({"format_version": 1, **dataclasses.asdict(found)}, indent=2))
    else:
        print_diagnosis(found)
    if found.broken:
        raise typer.Exit(1)


def _commands(context: typer.Context) -> tuple[str, ...]:
    """Every command of the program, those of groups with their group's name."""
    root: Any = context.find_root().command
    return tuple(getattr(root, "commands", {}))


def print_diagnosis(found: "Diagnosis") -> None:
    """One part after the other; what is broken stands last, where a terminal ends."""
    memory = f", {found.memory / 1e9:,.1f} GB of memory" if found.memory else ""
    say(f"outlierlens {found.version}, Python {found.python}, {found.platform}")
    if found.devices is None:
        listed = "GPUs are listed with --devices, which imports torch"
    else:
        listed = ", ".join(found.devices) or "torch cannot be used"
    say(f"devices: {found.cores} cores{memory}; {listed}")
    print_table(
        "libraries",
        ["part", "library", "wanted", "there"],
        [(one.extra or "base", one.name, one.wanted or "any", one.installed or "missing") for one in found.libraries],
    )
    free = f", {found.free / 1e9:,.1f} GB free" if found.free is not None else ""
    say(f"cache: {found.cache}{free}")
    for one in found.samples:
        size = f", {one.n_bytes / 1e6:,.1f} MB" if one.n_bytes else ", comes with the first command that names it"
        say(f"  sample {one.name}: {one.state}{size}")
    say(f"hub cache: {found.hub_cache}, {found.hub_models} models, {found.hub_bytes / 1e6:,.1f} MB")
    say(f"offline: {'yes, by HF_HUB_OFFLINE' if found.offline else 'no; --offline of a command, or HF_HUB_OFFLINE=1'}")
    for name, value in found.variables.items():
        say(f"  {name}={value}")
    for lack in found.lacking:
        say(f"missing for {', '.join(lack.needed_by)}: {', '.join(lack.libraries)}; {lack.remedy}")
    for problem in found.broken:
        say(f"broken: {problem}")
    if not found.broken:
        say("nothing that is installed is broken")
