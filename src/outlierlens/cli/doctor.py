"""`doctor`: what is installed, what is cached, and which commands that leaves unable to run; `fetch`: the sample models.

A library that was never installed is missing; one that is installed and cannot work is broken: an older version than is
required, a requirement of it that is absent, or (with `devices`, which imports torch) a torch that fails to import.
"""

import importlib
import json
import os
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement

from outlierlens import __version__
from outlierlens.checkpoints import formats
from outlierlens.checkpoints import samples as of_samples
from outlierlens.checkpoints.samples import SAMPLES, folder_of, is_complete, network_is_off
from outlierlens.cli.experiment import say
from outlierlens.errors import BadInput, install
from outlierlens.experiments import EXPERIMENTS
from outlierlens.models.devices import cores
from outlierlens.options import Flag
from outlierlens.results.safe_files import cache_root
from outlierlens.session import Session
from outlierlens.view.render import print_rows
from outlierlens.view.section import Rows

PACKAGE = "outlierlens"
USES = {  # extra -> what it is for; "" where that follows from the commands, or from the formats that need it
    "charts": "--chart FILE.svg and .png, pictures beside a report",
    "models": "",
    "onnx": "",
    "vision": "image data of observe, ablate and sweep",
    "audio": "recordings",
    "ray": "sweep --engine ray",
    "explore": "the page of explore (its --show and --json work without)",
}
VARIABLES = (
    *("OUTLIERLENS_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN"),
    *("HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("NO_COLOR", "HTTPS_PROXY", "PIP_INDEX_URL"),
)
SECRET = ("HF_TOKEN", "HTTPS_PROXY", "PIP_INDEX_URL")  # a token, or an address that may hold a password


def examine(*, devices: bool = False) -> dict[str, Any]:
    """What `doctor --json` prints of this installation; nothing is changed, fetched or sent.

    "devices" is None unless asked for: versions come from package metadata, so that torch is not imported, which takes seconds
    and hundreds of megabytes. "lacking" has for each extra that is not whole what it is for, its missing libraries and the line
    that helps; "free" the bytes free on the disk of "cache"; "broken" what is installed and cannot work, a sentence each.
    """
    libraries, samples = _libraries(), [_sample(name) for name in SAMPLES]
    found, wrong = _devices() if devices else (None, "")
    cache, free, unwritable = _cache()
    problems = [f"{one['name']} {one['installed'] or ''}".rstrip() + f": {one['problem']}"
                for one in libraries if one["problem"]]  # fmt: skip
    for one in samples:
        if one["state"] == "incomplete":
            wrong_sample = f"sample {one['name']} is incomplete in {one['folder']}"
            problems.append(f"{wrong_sample}; run: outlierlens fetch {one['name']}")
    lacking = []
    for extra in USES:
        if missing := [one["name"] for one in libraries if one["extra"] == extra and not one["installed"]]:
            lacking.append(f"missing for {use_of(extra)}: {', '.join(missing)}; {install(extra)}")
    return {
        "format_version": 1, "version": __version__, "python": platform.python_version(), "platform": platform.platform(),
        "cores": cores(), "devices": found, "libraries": libraries, "lacking": lacking, "cache": cache, "free": free,
        "samples": samples, "offline": network_is_off(),
        "variables": {name: "set" if name in SECRET else os.environ[name] for name in VARIABLES if os.environ.get(name)},
        "broken": list(filter(None, (*problems, wrong, unwritable))),
    }  # fmt: skip


def _libraries() -> list[dict[str, Any]]:
    """Each library of each extra ("" for those that are always needed), as the package's metadata wants it.

    "installed" is its version, None where it is missing; "problem" says why it cannot work.
    """
    try:
        wanted = [Requirement(line) for line in metadata.requires(PACKAGE) or []]
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        lost = f"its metadata is missing; {install()}"
        return [{"name": PACKAGE, "extra": "", "wanted": "", "installed": None, "problem": lost}]
    found = []
    for one in wanted:
        asks = [name for name in ("", *USES) if not one.marker or one.marker.evaluate({"extra": name})]
        if one.name == PACKAGE or not asks:
            continue
        extra, bounds = asks[0], str(one.specifier)
        try:
            version = metadata.version(one.name)
            fits = one.specifier.contains(version, prereleases=True)
            problem = "" if fits else f"{bounds} is needed; {install(extra)}"
        except metadata.PackageNotFoundError:
            version, problem = None, "" if extra else f"it is needed by everything; {install()}"
        about = {"name": one.name, "extra": extra, "wanted": bounds, "installed": version, "problem": problem}
        found.append(about)
    return sorted(found, key=lambda one: (one["extra"] != "", one["extra"], one["name"].lower()))


def use_of(extra: str) -> str:
    """What an extra is for: of `models` the commands that need a model in memory."""
    if extra == "models":
        return ", ".join(dict.fromkeys(row.name.split()[0] for row in EXPERIMENTS if "loading" in row.takes))
    if USES.get(extra):
        return USES[extra]
    rows = [row for row in formats.FORMATS if row.extra == extra]
    files = [(name, Path(file).suffix) for name, sample in SAMPLES.items() for file in sample.files]
    samples = [f"the sample {name}" for name, suffix in files if any(suffix in row.suffixes for row in rows)]
    return ", and ".join([*(f"{row.name} files" for row in rows), *samples])


def _devices() -> tuple[list[str], str]:
    """What torch can compute on, and what is wrong where it cannot be imported."""
    if util.find_spec("torch") is None:
        return ["cpu (torch is not installed)"], ""
    try:
        torch: Any = importlib.import_module("torch")
        cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])], ""
    except Exception as error:  # a library that will not load raises what it likes
        text = " ".join(str(error).split())[:200]
        return [], f"torch is installed and cannot be used: {type(error).__name__}: {text}; install it again"


def _sample(name: str) -> dict[str, Any]:
    """A sample model: "packaged", "complete", "incomplete" or "not fetched", its folder and its size on disk."""
    sample = SAMPLES[name]
    folder = folder_of(sample)
    if is_complete(sample):
        state = "packaged" if sample.packaged else "complete"
    else:
        state = "incomplete" if folder.is_dir() or sample.packaged else "not fetched"
    size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    return {"name": name, "state": state, "folder": str(folder), "n_bytes": size}


def _cache() -> tuple[str, int | None, str]:
    """The cache's folder, bytes free on its disk, and why nothing could be written there."""
    root = cache_root()
    there = next((folder for folder in (root, *root.parents) if folder.exists()), Path(root.anchor))
    usable = there.is_dir() and os.access(there, os.W_OK)
    wrong = "" if usable else f"the cache {root} cannot be written; set OUTLIERLENS_CACHE to a folder that can"
    try:
        return str(root), shutil.disk_usage(there).free, wrong
    except OSError:
        return str(root), None, wrong


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Whether to list devices."""

    devices: bool = False
    """Import torch too, and list what it computes on."""


def run(session: Session, options: DoctorOptions) -> None:
    """Examine and tell; exit code 1 where something that is installed is broken, which stands last, where a terminal ends."""
    found = examine(devices=options.devices)
    if session.output.json:
        print(json.dumps(found, indent=2))
    else:
        say(f"outlierlens {found['version']}, Python {found['python']}, {found['platform']}")
        listed = "GPUs are listed with --devices, which imports torch"
        if found["devices"] is not None:
            listed = ", ".join(found["devices"]) or "torch cannot be used"
        say(f"devices: {found['cores']} cores; {listed}")
        libraries = ((one["extra"] or "base", one["name"], one["wanted"] or "any", one["installed"] or "missing")
                     for one in found["libraries"])  # fmt: skip
        print_rows(Rows("Libraries", ("part", "library", "wanted", "there"), tuple(libraries)))
        say(f"cache: {found['cache']}" + (f", {found['free'] / 1e9:,.1f} GB free" if found["free"] is not None else ""))
        for one in found["samples"]:
            size = f"{one['n_bytes'] / 1e6:,.1f} MB" if one["n_bytes"] else "comes with the first command that names it"
            say(f"  sample {one['name']}: {one['state']}, {size}")
        say(
            f"offline: {'yes, by HF_HUB_OFFLINE' if found['offline'] else 'no; --model-args offline, or HF_HUB_OFFLINE=1'}"
        )
        for name, value in found["variables"].items():
            say(f"  {name}={value}")
        broken = [f"broken: {problem}" for problem in found["broken"]]
        for line in (*found["lacking"], *(broken or ["nothing that is installed is broken"])):
            say(line)
    if found["broken"]:
        raise SystemExit(1)


# --- samples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Which are fetched."""

    names: Annotated[tuple[str, ...], Flag(argument=True)] = ()
    """Sample names. None: all samples are listed, with licence and origin."""


def fetch(session: Session, options: FetchOptions) -> None:
    """Fetch each, and say where it is; list all where none is named.

    Raises:
        BadInput: --json with names, or a name that no sample has.
    """
    if options.names and session.output.json:
        raise BadInput("--json lists the samples; name none with it")
    for name in options.names:
        path = of_samples.fetch(name, session.notice)
        if not session.output.quiet:
            say(f"{name}: {path}")
    if options.names:
        return
    rows = [(sample, is_complete(sample)) for sample in SAMPLES.values()]
    if session.output.json:
        about = ("name", "description", "licence", "origin", "packaged")
        listed = [{field: getattr(one, field) for field in about} | {"fetched": there} for one, there in rows]
        print(json.dumps(listed, indent=2))
        return
    table = ((one.name, "packaged" if one.packaged else "fetched" if there else "no", one.licence, one.description)
             for one, there in rows)  # fmt: skip
    print_rows(Rows("", ("model", "there", "licence", "what it is"), tuple(table)))
