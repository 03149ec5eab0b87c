"""`doctor`: what is installed, cached and missing, and for which command."""

import dataclasses
import json
from dataclasses import dataclass

from outlierlens.cli.common import say
from outlierlens.cli.diagnosis import Diagnosis, examine
from outlierlens.experiments import EXPERIMENTS
from outlierlens.session import Session
from outlierlens.view.section import Rows
from outlierlens.view.terminal import print_rows


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What is looked at."""

    devices: bool = False
    """Import torch too, and list what it computes on."""


def run(session: Session, options: DoctorOptions) -> None:
    """Examine and tell; exit code 1 where something that is installed is broken."""
    found = examine(devices=options.devices, commands=runs_models())
    if session.output.json:
        print(json.dumps({"format_version": 1, **dataclasses.asdict(found)}, indent=2))
    else:
        print_diagnosis(found)
    if found.broken:
        raise SystemExit(1)


def runs_models() -> tuple[str, ...]:
    """The commands that need a model in memory."""
    return tuple(dict.fromkeys(row.name.split()[0] for row in EXPERIMENTS if "loading" in row.takes))


def print_diagnosis(found: Diagnosis) -> None:
    """One part after the other; what is broken stands last, where a terminal ends."""
    memory = f", {found.memory / 1e9:,.1f} GB of memory" if found.memory else ""
    say(f"outlierlens {found.version}, Python {found.python}, {found.platform}")
    if found.devices is None:
        listed = "GPUs are listed with --devices, which imports torch"
    else:
        listed = ", ".join(found.devices) or "torch cannot be used"
    say(f"devices: {found.cores} cores{memory}; {listed}")
    libraries = tuple(
        (one.extra or "base", one.name, one.wanted or "any", one.installed or "missing") for one in found.libraries
    )
    print_rows(Rows("Libraries", ("part", "library", "wanted", "there"), libraries))
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
