"""How a process on another machine makes the runner of a sweep, and how it is known to be the same one: `Recipe`.

recipe = Recipe.like(runner, texts, load)      # where the sweep is planned
recipe()                                       # there: a runner that gives the same numbers, or an error
"""

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.checkpoints.samples import is_sample
from outlierlens.checkpoints.samples.cache import say
from outlierlens.data.texts import Data
from outlierlens.errors import BadInput, UnknownModel
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.runner import CHECK_TEXTS, Runner, make_runner
from outlierlens.models.devices import pick_device
from outlierlens.models.load import DTYPES, LoadedModel, LoadOptions, fingerprint, load_model

# Of a text's value, relative: processors, kernels and batch shapes differ; another tokenizer or file differs by far more.
DEVIATION = {"float32": 2e-4}
DEVIATION_OF_HALVES = 3e-2


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
