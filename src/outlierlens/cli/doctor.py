"""`doctor`: what is installed, what is cached, and which commands that leaves unable to run: `examine()`.

A library that was never installed is missing; one that is installed and cannot work is broken: an older version than is
required, a requirement of it that is absent, or (with `devices`, which imports torch) a torch that fails to import.
"""

import dataclasses
import importlib
import json
import os
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from outlierlens import __version__
from outlierlens.checkpoints import formats
from outlierlens.checkpoints.samples import SAMPLES, folder_of, is_complete, network_is_off
from outlierlens.cli.common import say
from outlierlens.errors import install
from outlierlens.experiments import EXPERIMENTS
from outlierlens.models.devices import cores
from outlierlens.results.safe_files import cache_root
from outlierlens.session import Session
from outlierlens.view.render import print_rows
from outlierlens.view.section import Rows

PACKAGE = "outlierlens"
FOR_USERS = ("charts", "models", "onnx", "vision", "audio", "ray", "explore")  # not dev and crosscheck
USES = {  # extra -> what it is for, where that is no format of weights
    "charts": "--chart FILE.svg and .png, pictures beside a report",
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


@dataclass(frozen=True)
class Library:
    """A library of one extra ("" for those that are always needed), as the package's metadata wants it.

    `installed` is its version, None where it is missing; `problem` says why it cannot work.
    """

    name: str
    extra: str
    wanted: str
    installed: str | None
    problem: str = ""


@dataclass(frozen=True)
class CachedSample:
    """A sample model: "packaged", "complete", "incomplete" or "not fetched", its folder and its size on disk."""

    name: str
    state: str
    folder: str
    n_bytes: int


@dataclass(frozen=True)
class Diagnosis:
    """What `examine` found.

    Attributes:
        devices: "cpu", "cuda:0 NAME", "mps"; None where torch was not asked.
        lacking: for each extra that is not whole, what it is for, its missing libraries and the line that helps.
        free: bytes free on the disk of `cache`; None where the system does not say.
        broken: what is installed and cannot work, a sentence each.
    """

    version: str
    python: str
    platform: str
    cores: int
    devices: tuple[str, ...] | None
    libraries: tuple[Library, ...]
    lacking: tuple[str, ...]
    cache: str
    free: int | None
    samples: tuple[CachedSample, ...]
    offline: bool
    variables: dict[str, str]
    broken: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the libraries that are not installed."""
        return tuple(one.name for one in self.libraries if one.installed is None)


def examine(*, devices: bool = False) -> Diagnosis:
    """Look at this installation; nothing is changed, fetched or sent.

    Versions come from package metadata, so that torch is not imported (seconds, and hundreds of megabytes) unless
    `devices` asks for it.
    """
    libraries, samples = _libraries(), tuple(_sample(name) for name in SAMPLES)
    found, wrong = _devices() if devices else (None, "")
    cache, free, unwritable = _cache()
    problems = [f"{one.name} {one.installed or ''}".rstrip() + f": {one.problem}" for one in libraries if one.problem]
    problems += [wrong]
    problems += [
        f"sample {one.name} is incomplete in {one.folder}; run: outlierlens fetch {one.name}"
        for one in samples
        if one.state == "incomplete"
    ]
    return Diagnosis(
        version=__version__, python=platform.python_version(), platform=platform.platform(), cores=cores(), devices=found,
        libraries=libraries, lacking=_lacking(libraries), cache=cache, free=free, samples=samples, offline=network_is_off(),
        variables={k: "set" if k in SECRET else os.environ[k] for k in VARIABLES if os.environ.get(k)},
        broken=tuple(filter(None, (*problems, unwritable))),
    )  # fmt: skip


def _libraries() -> tuple[Library, ...]:
    try:
        wanted = [Requirement(line) for line in metadata.requires(PACKAGE) or []]
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return (Library(PACKAGE, "", "", None, f"its metadata is missing; {install()}"),)
    found = []
    for one in wanted:
        asks = [name for name in ("", *FOR_USERS) if not one.marker or one.marker.evaluate({"extra": name})]
        if one.name != PACKAGE and asks:
            found.append(_library(one, asks[0]))
    return tuple(sorted(found, key=lambda one: (one.extra != "", one.extra, one.name.lower())))


def _library(wanted: Requirement, extra: str) -> Library:
    name, bounds = wanted.name, str(wanted.specifier)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Library(name, extra, bounds, None, "" if extra else f"it is needed by everything; {install()}")
    fits = wanted.specifier.contains(version, prereleases=True)
    return Library(name, extra, bounds, version, "" if fits else f"{bounds} is needed; {install(extra)}")


def _lacking(libraries: tuple[Library, ...]) -> tuple[str, ...]:
    missing = {
        extra: [one.name for one in libraries if one.extra == extra and not one.installed] for extra in FOR_USERS
    }
    named = {extra: ", ".join(names) for extra, names in missing.items() if names}
    return tuple(f"missing for {use_of(extra)}: {names}; {install(extra)}" for extra, names in named.items())


def use_of(extra: str) -> str:
    """What an extra is for: of `models` the commands that need a model in memory."""
    if extra == "models":
        return ", ".join(dict.fromkeys(row.name.split()[0] for row in EXPERIMENTS if "loading" in row.takes))
    if extra in USES:
        return USES[extra]
    rows = [row for row in formats.FORMATS if row.extra == extra]
    files = [(name, Path(file).suffix) for name, sample in SAMPLES.items() for file in sample.files]
    samples = [f"the sample {name}" for name, suffix in files if any(suffix in row.suffixes for row in rows)]
    return ", and ".join([*(f"{row.name} files" for row in rows), *samples])


def _devices() -> tuple[tuple[str, ...], str]:
    """What torch can compute on, and what is wrong where it cannot be imported."""
    if util.find_spec("torch") is None:
        return ("cpu (torch is not installed)",), ""
    try:
        torch: Any = importlib.import_module("torch")
        cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        mps = ["mps"] if torch.backends.mps.is_available() else []
    except Exception as error:  # a library that will not load raises what it likes
        text = " ".join(str(error).split())[:200]
        return (), f"torch is installed and cannot be used: {type(error).__name__}: {text}; install it again"
    return ("cpu", *cuda, *mps), ""


def _sample(name: str) -> CachedSample:
    sample = SAMPLES[name]
    folder = folder_of(sample)
    if is_complete(sample):
        state = "packaged" if sample.packaged else "complete"
    else:
        state = "incomplete" if folder.is_dir() or sample.packaged else "not fetched"
    return CachedSample(
        name, state, str(folder), sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    )


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


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Whether to list devices."""

    devices: bool = False
    """Import torch too, and list what it computes on."""


def run(session: Session, options: DoctorOptions) -> None:
    """Examine and tell; exit code 1 where something that is installed is broken."""
    found = examine(devices=options.devices)
    if session.output.json:
        print(json.dumps({"format_version": 1, **dataclasses.asdict(found)}, indent=2))
    else:
        print_diagnosis(found)
    if found.broken:
        raise SystemExit(1)


def print_diagnosis(found: Diagnosis) -> None:
    """One part after the other; what is broken stands last, where a terminal ends."""
    say(f"outlierlens {found.version}, Python {found.python}, {found.platform}")
    listed = "GPUs are listed with --devices, which imports torch"
    if found.devices is not None:
        listed = ", ".join(found.devices) or "torch cannot be used"
    say(f"devices: {found.cores} cores; {listed}")
    libraries = tuple(
        (one.extra or "base", one.name, one.wanted or "any", one.installed or "missing") for one in found.libraries
    )
    print_rows(Rows("Libraries", ("part", "library", "wanted", "there"), libraries))
    free = f", {found.free / 1e9:,.1f} GB free" if found.free is not None else ""
    say(f"cache: {found.cache}{free}")
    for one in found.samples:
        size = f", {one.n_bytes / 1e6:,.1f} MB" if one.n_bytes else ", comes with the first command that names it"
        say(f"  sample {one.name}: {one.state}{size}")
    say(f"offline: {'yes, by HF_HUB_OFFLINE' if found.offline else 'no; --model-args offline, or HF_HUB_OFFLINE=1'}")
    for name, value in found.variables.items():
        say(f"  {name}={value}")
    for line in (*found.lacking, *(f"broken: {problem}" for problem in found.broken)):
        say(line)
    if not found.broken:
        say("nothing that is installed is broken")
