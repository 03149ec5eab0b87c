"""The run: every scheme on the whole model, then with outliers, random dimensions and features spared, and smoothed.

    loaded = load_model("smollm2-135m")
    found = quantize(loaded, read_texts("test.parquet", limit=32), QuantizeOptions())
    found.verdict

The loop is `_Study.rounding`: enter a setting, score, leave; every setting reads the same tokens and masks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.bench import AblationBench, Progress, Steps
from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.extent import limited
from outlierlens.data.texts import Data
from outlierlens.detection.observe.measure import ObserveOptions
from outlierlens.detection.targets import active_dims, named_dims
from outlierlens.experiments.quantization.apply import Keeping, rounded
from outlierlens.experiments.quantization.noise import NoiseDraws
from outlierlens.experiments.quantization.options import QuantizeOptions
from outlierlens.experiments.quantization.places import (
    Calibration,
    Place,
    calibrate,
    find_places,
    smooth_factors,
    without_foreign_readers,
)
from outlierlens.experiments.quantization.result import (
    Difference,
    Errors,
    Quantized,
    Rounding,
    Setting,
    SmoothScale,
    What,
)
from outlierlens.experiments.quantization.rounding_error import OutputError, Reading, local_errors
from outlierlens.experiments.quantization.schemes import Recipe
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND
from outlierlens.session import Session
from outlierlens.statistics.means import mean_interval, mean_noise
from outlierlens.statistics.p_values import rank_p
from outlierlens.tasks.base import Task, weighted_mean
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from torch import Tensor

MAP_CELLS = 65_536  # layers × dimensions that a result holds of each scheme
MOST_SEEN = 8  # dimensions that are taken from activations where the weights name none


def quantize(
    loaded: LoadedModel,
    texts: Data,
    options: QuantizeOptions | None = None,
    *,
    calibration: Data | None = None,
    command: str = "",
    progress: Progress | None = None,
    rows: Path | None = None,
) -> Quantized:
    """Measure `loaded` intact and rounded by every scheme, with what helps beside a control; the model is left as it was.

    `calibration` are the texts that SmoothQuant's scales rest on; the measured texts themselves where none are given. With
    `rows`, every finished setting is appended to that file, and settings found there are not measured again.

    Raises:
        BadInput: a dimension that does not exist, a scheme that does not fit the weights, or no usable text.
    """
    options = options or QuantizeOptions()
    study = _Study(loaded, texts, options, calibration or texts)
    report = Steps(progress, study.n_settings)
    identity = study.bench.identity(texts, study.task_options, **study.identity(calibration or texts))
    with study.bench.resumed(rows, identity):
        study.announce(texts)
        errors = local_errors(
            loaded, options.schemes, study.dims, study.places, texts.first(options.n_error_texts), study.how
        )
        roundings = [study.rounding(recipe, report) for recipe in options.schemes]
    map_dims = _map_dims([by_dim for _, by_dim in roundings], study.dims)
    if calibration is None and study.factors:
        study.notes.append("SmoothQuant's scales rest on the very texts that are measured: no others were given")
    return Quantized(
        provenance=loaded.provenance(command=command, seed=options.seed, digest=study.bench.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=study.task.name,
        unit=study.task.unit,
        stack=study.stack.name,
        layers=tuple(map(str, range(study.stack.n_layers))),
        hidden_size=study.width,
        dims=study.dims,
        dims_source=study.dims_source,
        n_texts=study.task.n_texts,
        n_tokens=study.task.n_tokens,
        max_length=study.how.max_length,
        intact=study.setting("intact", (), _TextRuns(study.intact, study.intact[None, :0]), 1.0),
        roundings=tuple(
            replace(one, errors=replace(one.errors, by_dim=by_dim[:, list(map_dims)], linears=errors[one.scheme]))
            for one, by_dim in roundings
        ),
        alpha=options.alpha if study.factors else None,
        threshold=options.threshold,
        smoothing=study.smoothing(),
        calibration=(calibration or texts).source,
        n_calibration=len(calibration or texts),
        n_error_texts=min(options.n_error_texts, len(texts)),
        map_dims=map_dims,
        notes=tuple(dict.fromkeys((*loaded.notes, *study.notes))),
        noise_draws=study.noise.n,
        n_noise_texts=study.noise.n_texts,
    )


def run(session: Session, options: QuantizeOptions) -> Quantized:
    """The experiment, as the command runs it."""
    session.reading = limited(session.reading, thorough=options.thorough)
    texts, others = session.texts(spare=options.n_calibrate)
    rows = session.rows.rows
    return quantize(session.loaded, texts, options, calibration=others, progress=session.progress, rows=rows)


@dataclass(frozen=True)
class _TextRuns:
    """The value of every text, [text], and of the first in every run, [run, text], that without noise first."""

    values: np.ndarray
    runs: np.ndarray

    def __sub__(self, other: "_TextRuns") -> "_TextRuns":
        return _TextRuns(self.values - other.values, self.runs - other.runs)


class _Study:
    """A model, its task, its outliers, and what it does in every setting."""

    def __init__(self, loaded: LoadedModel, texts: Data, options: QuantizeOptions, calibration: Data):
        self.loaded, self.options = loaded, options
        self.stack = loaded.stack(options.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.how = Reading(self.stack.name, row_limit(loaded, texts, options.task.max_length), options.task.batch_size)
        self.notes: list[str] = []
        self.dims, self.dims_source = self._outliers(calibration)
        task = replace(options.task, seed=options.seed)
        if loaded.head == "none" and task.name == "auto" and texts.plural == "texts":
            task = replace(task, name="sentence change")
        self.task_options = task
        self.task: Task = make_task(loaded, texts, task)
        self.bench = AblationBench(loaded, self.task, seed=options.seed)
        self.intact, self.weights = self.bench.intact.per_text, self.bench.weights
        self.notes += self.task.notes
        places = find_places(loaded, self.stack.name)
        self.seen: Calibration = calibrate(
            loaded,
            places,
            calibration,
            stack=self.stack.name,
            max_length=self.how.max_length,
            batch_size=self.how.batch_size,
        )
        # A linear that no text reaches reads nothing that could be measured.
        self.places: tuple[Place, ...] = without_foreign_readers(
            tuple(place for place in places if place.name in self.seen.largest), self.seen.shared
        )
        rounds_inputs = any(recipe.inputs is not None for recipe in options.schemes)
        self.factors: dict[str, Tensor] = {}
        if options.alpha is not None and rounds_inputs:
            self.factors = smooth_factors(self.places, self.seen, options.alpha)
        self.random: tuple[tuple[int, ...], ...] = random_sets(
            self.width, len(self.dims), n=options.n_sets, seed=options.seed, other_than=self.dims
        )
        self.noise = NoiseDraws(loaded, self.stack, self.task, options.noise_draws, options.seed)
        self.outputs = OutputError(loaded, texts.first(options.n_error_texts), self.how)
        self._say()

    @property
    def n_settings(self) -> int:
        """Settings that are measured beside the intact model."""
        with_inputs = sum(recipe.inputs is not None for recipe in self.options.schemes)
        each = 2 + len(self.random)
        more = (self.options.threshold is not None) + bool(self.factors)
        return len(self.options.schemes) * each + with_inputs * more

    def rounding(self, recipe: Recipe, report: Callable[[str], None]) -> tuple[Rounding, np.ndarray]:
        """One scheme in all settings, and where the error of the rounded model lies, [layer, dim] of all."""
        tried: dict[What, tuple[Setting, _TextRuns]] = {}
        errors: dict[What, np.ndarray] = {}
        draws: list[tuple[Setting, _TextRuns]] = []
        n_linears = n_weights = 0
        for what, keeping in self._settings(recipe):
            report(f"{recipe.name}, {what}")
            with_errors = what in ("rounded", "kept") or (what == "random" and not draws)
            key = f"{recipe.name} {what} {len(draws) if what == 'random' else ''}".strip()
            row = self.bench.row(key, partial(self._measured, recipe, keeping, with_errors))
            n_linears, n_weights = row["n_linears"], row["n_weights"]
            values = np.array(row["per_text"])
            measured = _TextRuns(values, np.array([values[: self.noise.n_texts], *row["noisy"]]))
            if with_errors:
                errors[what] = np.array(row["errors"])
            one = (self.setting(what, keeping.dims, measured, row["kept"]), measured)
            if what == "random":
                draws.append(one)
            else:
                tried[what] = one
        plain, spared = tried["rounded"][1], tried["kept"][1]
        beyond, p = None, None
        if draws:
            means = (np.mean([getattr(of, name) for _, of in draws], axis=0) for name in ("values", "runs"))
            beyond = self.mean(_TextRuns(*means) - spared)
            # A loss that is no number any more is as bad as one that is infinite.
            values = np.array([tried["kept"][0].value, *(setting.value for setting, _ in draws)])
            given_back = -np.nan_to_num(values, nan=np.inf, posinf=np.inf)
            p = None if np.isnan(values[0]) else rank_p(given_back[0], given_back[1:])
        mixed, smoothed = tried.get("mixed"), tried.get("smoothed")
        return (
            Rounding(
                scheme=recipe.name,
                n_linears=n_linears,
                n_weights=n_weights,
                rounded=tried["rounded"][0],
                kept=tried["kept"][0],
                random=tuple(setting for setting, _ in draws),
                mixed=mixed[0] if mixed else None,
                smoothed=smoothed[0] if smoothed else None,
                regained=self.mean(plain - spared),
                beyond_random=beyond,
                regained_mixed=self.mean(plain - mixed[1]) if mixed else None,
                regained_smoothed=self.mean(plain - smoothed[1]) if smoothed else None,
                p=p,
                errors=self._errors(errors),
            ),
            errors["rounded"] / self.outputs.power.sum(1, keepdims=True),
        )

    def _measured(self, recipe: Recipe, keeping: Keeping, with_errors: bool) -> dict[str, Any]:
        """One setting as row files hold it: values of texts, with noise too, and errors [layer, dim]."""
        with rounded(self.loaded, recipe, keeping, stack=self.stack.name, places=self.places) as tally:
            values, _ = self.task.per_text()
            return {
                "per_text": values.tolist(),
                "noisy": self.noise.runs(values)[1:].tolist(),
                "errors": self.outputs.measure().tolist() if with_errors else [],
                "kept": tally.kept,
                "n_linears": tally.n_linears,
                "n_weights": tally.n_weights,
            }

    def identity(self, calibration: Data) -> dict[str, Any]:
        """What settings depend on, beside model, texts and task."""
        options = self.options
        return {
            "stack": self.stack.name, "dims": list(self.dims), "threshold": options.threshold, "smooth": options.alpha,
            "calibration": calibration.digest, "noise": options.noise_draws, "seed": options.seed,
            "error texts": options.n_error_texts,
        }  # fmt: skip

    def announce(self, texts: Data) -> None:
        """Say how long it takes: each setting reads the texts, and a part of them again with noise and layer by layer."""
        recipe = next((one for one in self.options.schemes if one.inputs is not None), self.options.schemes[0])
        n_read = self.task.n_texts + self.noise.n * self.noise.n_texts
        inside = partial(rounded, self.loaded, recipe, Keeping(), stack=self.stack.name, places=self.places)
        self.bench.announce(self.n_settings, share=n_read / self.task.n_texts, inputs=texts.plural, inside=inside)

    def _settings(self, recipe: Recipe) -> list[tuple[What, Keeping]]:
        found: list[tuple[What, Keeping]] = [("rounded", Keeping()), ("kept", Keeping(self.dims))]
        found += [("random", Keeping(dims)) for dims in self.random]
        if recipe.inputs is not None and self.options.threshold is not None:
            found.append(("mixed", Keeping(threshold=self.options.threshold)))
        if recipe.inputs is not None and self.factors:
            found.append(("smoothed", Keeping(factors=self.factors)))
        return found

    def setting(self, what: What, dims: tuple[int, ...], of: _TextRuns, kept: float) -> Setting:
        """The figures of one setting from the value of every text."""
        intact = _TextRuns(self.intact, self.intact[: of.runs.shape[1]])
        value, change = self.mean(of), self.mean(of - intact)
        return Setting(
            what,
            dims,
            value.value,
            value.low,
            value.high,
            change.value,
            change.low,
            change.high,
            kept,
            tuple(of.values.tolist()),
            value.noise,
        )

    def mean(self, of: _TextRuns) -> Difference:
        """The mean over texts with its interval and noise; of a difference of two settings, texts and noise are paired."""
        noise = mean_noise(of.runs, self.weights[: of.runs.shape[1]], len(of.values))
        low, high = mean_interval(of.values, self.weights, noise=noise)
        return Difference(weighted_mean(of.values, self.weights), low, high, noise.floor if noise else float("nan"))

    def smoothing(self) -> tuple[SmoothScale, ...]:
        """The scale of every outlier, for each tensor that linears read."""
        found, layers = [], {place.name: place for place in self.places}
        for group in self.seen.shared:
            mine = [layers[name] for name in group if name in self.factors]
            if not mine:
                continue
            scale = self.factors[mine[0].name].double().cpu().numpy()
            found.append(
                SmoothScale(
                    layer=mine[0].layer,
                    parts=tuple(place.part for place in mine),
                    scales=tuple(scale[list(self.dims)].tolist()),
                    ranks=tuple(int((scale > scale[dim]).sum()) + 1 for dim in self.dims),
                    median=float(np.median(scale)),
                    largest=float(scale.max()),
                )
            )
        return tuple(found)

    def _errors(self, errors: dict[What, np.ndarray]) -> Errors:
        power = self.outputs.power  # [layer, dim]
        others = np.ones(self.width, dtype=bool)
        others[list(self.dims)] = False

        def relative(what: What, among: np.ndarray) -> np.ndarray:
            if what not in errors:
                return np.zeros(0)
            found: np.ndarray = errors[what][:, among].sum(1) / power[:, among].sum(1)
            return found

        everywhere = np.ones(self.width, dtype=bool)
        total = errors["rounded"].sum(1)
        share = np.divide(errors["rounded"][:, ~others].sum(1), total, out=np.zeros_like(total), where=total > 0)
        return Errors(
            output=relative("rounded", everywhere),
            output_kept=relative("kept", everywhere),
            output_random=relative("random", everywhere),
            others=relative("rounded", others),
            others_kept=relative("kept", others),
            others_random=relative("random", others),
            share=share,
            by_dim=np.zeros((len(total), 0)),
            linears=(),
        )

    def _outliers(self, texts: Data) -> tuple[tuple[int, ...], str]:
        """The dimensions, ascending, and who names them: the caller, the weights, the activations, or the strongest two."""
        named = named_dims(self.loaded, self.stack, self.options.dims)
        if self.options.dims == FIND and not named.found:
            options = ObserveOptions(max_length=self.how.max_length, batch_size=self.how.batch_size, passage_tokens=0)
            dims, rule = active_dims(self.loaded, self.stack, texts, options)
            if dims:
                return tuple(sorted(dims[:MOST_SEEN])), f"the activations, rule {rule}"
        self.notes += named.notes
        return tuple(sorted(named.dims)), named.by

    def _say(self) -> None:
        """Notes on what a reader of the numbers should know."""
        if self.task.n_texts < 2:
            self.notes.append("one text: there is no interval, for nothing can be resampled")
        if any(module.endswith("()") for module in self.stack.stack.last_linear):
            self.notes.append("packed experts are bare parameters, not linears: they stay as they are")
        kinds = {str(place.weight().dtype).removeprefix("torch.") for place in self.places}
        if kinds - {"float32", "float64"}:
            self.notes.append(
                f"weights and inputs are {', '.join(sorted(kinds))}: what is rounded is rounded to that once more; "
                f"--dtype float32 avoids it"
            )


def _map_dims(by_dim: Sequence[np.ndarray], dims: tuple[int, ...]) -> tuple[int, ...]:
    """All dimensions, or as many as a result holds: the outliers, and those where most of any layer's error lies."""
    n_layers, width = by_dim[0].shape
    most = max(len(dims) + 1, MAP_CELLS // n_layers)
    if width <= most:
        return tuple(range(width))
    size = np.max([one.max(0) for one in by_dim], axis=0)  # [dim]
    size[list(dims)] = np.inf
    return tuple(sorted(np.argsort(-size, kind="stable")[:most].tolist()))
