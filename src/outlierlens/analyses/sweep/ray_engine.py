"""The engine that runs a sweep on the machines of a Ray cluster, or on several workers of one machine.

sweep(loaded, texts, engine=on_ray(texts, load, Machines(ray="auto", gpus_per_worker=0.5)))

recipe = RunnerCopy.like(runner, texts, load)   # where the sweep is planned
recipe()                                        # there: a runner that gives the same numbers, or an error
"""

import copy
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.analyses.ray_pool import Pool
from outlierlens.analyses.sweep.options import Machines, SweepOptions
from outlierlens.analyses.sweep.runner import CHECK_TEXTS, Runner, make_runner
from outlierlens.analyses.sweep.units import PASSES_AT_ONCE, Work, by_span, shares
from outlierlens.architectures import refuse_offloaded
from outlierlens.checkpoints.samples import is_sample, say
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, OutlierlensError, UnknownModel
from outlierlens.models.devices import memory_kept, pick_device
from outlierlens.models.load import DTYPES, LoadedModel, LoadOptions, fingerprint, load_model

# Of a text's value, relative: processors, kernels and batch shapes differ; another tokenizer or file differs by far more.
DEVIATION = {"float32": 2e-4}
DEVIATION_OF_HALVES = 3e-2


def on_ray(texts: Data, load: LoadOptions | None, machines: Machines) -> Callable[[Runner], "RayEngine"]:
    """The `engine` of `sweep` that measures on Ray workers.

    Workers load the model by its name with `load`; with None, the model is sent to them. They compute in the dtype of the
    sweep's own model, on their share of a GPU if they have one: by default one each where that model is on a GPU.
    """

    def start(runner: Runner) -> "RayEngine":
        gpus = machines.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if runner.loaded.device.type == "cuda" else 0.0
        recipe = RunnerCopy.like(runner, texts, load, device="cuda" if gpus else "cpu")
        return RayEngine(recipe, machines, gpus=gpus, rows=runner.rows(runner.order))

    return start


class RayEngine:
    """An `Engine` on Ray workers, each with a runner that `make` made there; `rows` are those of a forward pass.

    Raises:
        BadInput, MissingExtra: see `Pool`.
    """

    def __init__(self, make: Callable[[], Runner], machines: Machines, *, rows: int, gpus: float = 0.0):
        self.pool, self.rows = Pool(machines, gpus=gpus), rows
        try:
            self._host = self.pool.send(_Host(make, self.pool.cpus, gpus))
        except BadInput:
            self.close()
            raise

    def close(self) -> None:
        """Let go of Ray."""
        self.pool.close()

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """See `Engine`.

        Raises:
            OutlierlensError: the work itself fails on a worker, or no worker can be had.
        """
        for share, values in self.pool.map(self._host, portions(works, self.pool.workers, self.rows)):
            if isinstance(values, OutlierlensError):
                start, stop = share[0].span
                raise OutlierlensError(
                    f"{self.pool.losses} Ray workers ended while measuring {share[0].unit.label} on texts {start} to {stop} "
                    f"(the last ended so: {values}); a smaller batch size needs less memory. Finished measurements are kept"
                )
            yield from zip(share, values, strict=True)


def portions(works: Sequence[Work], workers: int, rows: int) -> Iterator[list[Work]]:
    """Work on the same texts that is handed out together: a few forward passes, towards the end less, so that all end together.

    `rows` are the (unit, text) pairs of a pass; a piece of work is not cut.
    """
    left = sum(work.n_texts for work in works)
    for _, same in by_span(works):
        while same:
            share = next(shares(same, max(rows, min(PASSES_AT_ONCE * rows, math.ceil(left / (2 * workers))))))
            yield share
            left -= sum(work.n_texts for work in share)
            del same[: len(share)]


@dataclass(frozen=True)
class _Host:
    """What a worker process is sent: how it makes its runner, and its share of the machine."""

    make: Callable[[], Runner]
    cpus: float
    gpus: float

    def __call__(self) -> Callable[[list[Work]], np.ndarray]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        import torch

        torch.set_num_threads(max(1, int(self.cpus)))
        if 0 < self.gpus < 1 and torch.cuda.is_available():
            # Ray does not divide memory: without a limit, one worker's batch would take what another counts on.
            torch.cuda.set_per_process_memory_fraction(self.gpus)
        runner = self.make()

        def values(share: list[Work]) -> np.ndarray:
            with memory_kept():
                return runner.values([work.unit.plan for work in share], share[0].span, [work.only for work in share])

        return values


@dataclass(frozen=True)
class RunnerCopy:
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
    def like(cls, runner: Runner, texts: Data, load: LoadOptions | None = None, *, device: str = "cpu") -> "RunnerCopy":
        """The recipe of `runner`, whose texts came from `texts`, computing on `device` unless `load` names one.

        With the options that its model was loaded with, the model is loaded by name where it is needed; without, it is
        sent whole.
        """
        loaded = runner.loaded
        model: str | LoadedModel = loaded.name
        refuse_offloaded(loaded.model, "work in several processes")
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
                device_map=None,
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
