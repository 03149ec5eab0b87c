"""Reach a Ray cluster, or start Ray on this machine alone, and have its workers make the runner of a sweep.

ray, started_here = connect("auto")
room(ray, cpus=1.0, gpus=0.5)                   # workers that the cluster's machines hold together
recipe = Recipe.like(runner, texts, load)       # where the sweep is planned
recipe()                                        # there: a runner that gives the same numbers, or an error

Nothing is reported, and a Ray that is started here does not listen to the network.
"""

import copy
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import CHECK_TEXTS, Runner, make_runner
from outlierlens.checkpoints.samples import is_sample
from outlierlens.checkpoints.samples.cache import say
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, MissingExtra, UnknownModel, need
from outlierlens.models.devices import pick_device
from outlierlens.models.load import DTYPES, LoadedModel, LoadOptions, fingerprint, load_model

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0
# Of a text's value, relative: processors, kernels and batch shapes differ; another tokenizer or file differs by far more.
DEVIATION = {"float32": 2e-4}
DEVIATION_OF_HALVES = 3e-2


def connect(address: str | None) -> tuple[Any, bool]:
    """(the module `ray`, initialised; whether it was started by this call, here or as a connection).

    A Ray that this process has initialised before is used as it is. None starts one on this machine, reachable from
    this machine only.

    Raises:
        BadInput: no cluster at `address`, or one of another version.
        MissingExtra: Ray, or for "ray://" its client, is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    # Ray hides the GPUs from workers that asked for none only with a warning; such workers are told to use the CPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = need("ray", "ray", "the Ray engine")
    if ray.is_initialized():
        return ray, False
    address = None if address == "local" else address
    if address is not None:
        _answers(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with _signals_kept():
            if address is None:
                # By default Ray's workers give way to whatever else runs, this process included.
                os.environ.setdefault("RAY_worker_niceness", "0")
                with _loopback(ray):
                    ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
            else:
                ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises many classes for what can go wrong, some bare
        where = "Ray cannot be started here" if address is None else f"cannot use the Ray cluster at {address!r}"
        raise BadInput(f"{where}: {' '.join(str(error).split())[:300]}") from error
    return ray, True


def room(ray: Any, cpus: float, gpus: float) -> int:
    """How many workers of this size the machines that are up hold, whatever else runs on them."""
    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = [has.get(name, 0.0) / size for name, size in (("CPU", cpus), ("GPU", gpus)) if size]
            count += int(min(fits) + 1e-6)
    return count


def _answers(address: str) -> None:
    """Raise where nothing listens: Ray itself would try again for minutes."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        try:
            need("grpc", "ray", "a ray:// address")
        except MissingExtra:
            raise MissingExtra(f"{address} needs Ray's client; run: pip install 'ray[client]'") from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput(f"{address!r} is no address of a Ray cluster; use auto, host:port or ray://host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise BadInput(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one there with ray start --head"
        ) from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's own answer to SIGTERM: Ray replaces it with an exit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Have Ray listen to this machine only: where it is told 127.0.0.1, it looks for the network's address instead."""
    services = ray._private.services
    before = services.get_node_ip_address
    services.get_node_ip_address = lambda *_: LOOPBACK
    try:
        yield
    finally:
        services.get_node_ip_address = before


@dataclass(frozen=True)
class Recipe:
    """A runner that can be sent: calling it loads the model, makes the runner and holds it against the original.

    Attributes:
        model: a name to load there, or the model itself.
        load: how to load; its dtype is what the original was loaded in, its device is where the runner computes.
        fingerprint: of the original's parameters. intact: the original's values on the first texts, nothing off.
    """

    model: str | LoadedModel
    load: LoadOptions
    texts: Data
    options: SweepOptions
    fingerprint: str
    n_texts: int
    intact: tuple[float, ...]

    @classmethod
    def like(cls, runner: Runner, texts: Data, load: LoadOptions | None = None, *, device: str = "cpu") -> "Recipe":
        """The recipe of `runner`, whose texts came from `texts`, computing on `device` unless `load` names one.

        With the options that its model was loaded with, the model is loaded by name where it is needed; without, it is
        sent whole.
        """
        loaded = runner.loaded
        model: str | LoadedModel = loaded.name
        if load is None:
            # Sent from a device, tensors would want the same device there.
            model = replace(loaded, model=copy.deepcopy(loaded.model).to("cpu"))
            load = LoadOptions()
        elif Path(loaded.name).exists() and not is_sample(loaded.name):
            model = str(Path(loaded.name).resolve())  # a worker has another working directory
        first = runner.values([{}], (0, min(CHECK_TEXTS, runner.n_texts)))[0]
        return cls(
            model=model,
            load=replace(
                load,
                dtype=loaded.dtype if loaded.dtype in DTYPES else load.dtype,
                device=device if load.device == "auto" else load.device,
                row=load.row.resolve() if isinstance(load.row, Path) else load.row,
                notice=say,
            ),
            texts=texts,
            options=runner.options,
            fingerprint=fingerprint(loaded.model),
            n_texts=runner.n_texts,
            intact=tuple(first.tolist()),
        )

    def __call__(self) -> Runner:
        """Load, make, compare.

        Raises:
            UnknownModel: the model's directory is not on this machine.
            BadInput: the model here has other parameters, or gives other numbers on the first texts.
        """
        loaded = self._loaded()
        here = fingerprint(loaded.model)
        if here != self.fingerprint:
            raise BadInput(
                f"{loaded.name} has other parameters here than where the sweep was started (fingerprint {here[:12]}, "
                f"not {self.fingerprint[:12]}); have the same revision, files and dtype on every machine"
            )
        runner = make_runner(loaded, self.texts, self.options)
        if runner.n_texts != self.n_texts:
            raise BadInput(
                f"{loaded.name} has {runner.n_texts} texts here, not {self.n_texts}: its tokenizer differs from the one "
                f"where the sweep was started; have the same files and library versions on every machine"
            )
        first = runner.values([{}], (0, len(self.intact)))[0]
        relative = DEVIATION.get(self.load.dtype, DEVIATION_OF_HALVES)
        if not np.allclose(first, self.intact, rtol=relative, atol=relative, equal_nan=True):
            raise BadInput(
                f"{loaded.name} gives other numbers here: {first[0]:.6g} on the first text, not {self.intact[0]:.6g}, with "
                f"the same parameters; have the same tokenizer files and library versions on every machine"
            )
        return runner

    def _loaded(self) -> LoadedModel:
        if isinstance(self.model, LoadedModel):
            self.model.model.to(pick_device(self.load.device)).eval()
            return self.model
        if Path(self.model).is_absolute() and not Path(self.model).exists():
            raise UnknownModel(
                f"{self.model}: no such file or directory on this machine; put the model where every machine sees it at this "
                f"path (shared storage, or a copy on each), or name it by sample or hub id"
            )
        return load_model(self.model, self.load)
