"""Measure a trained model the same way for every recipe: loss, outlier dimensions, what they cost, sinks, and INT8.

outcome = measure(run)                     # `Outcomes` of one run; every dimension is switched off once
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.modes import Mode
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.attention import AttentionOptions, attention
from outlierlens.analyses.observe import observe
from outlierlens.analyses.quantize_rounding import loss_change
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.scan import scan_live
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import ScanOptions
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.document import Provenance, load, save
from outlierlens.results.finding import About
from outlierlens.results.rows import UNKNOWN, Estimate
from outlierlens.tasks.base import TaskOptions, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.training.pretrain.result import OUTCOME, Outcomes, TrainedModel

if TYPE_CHECKING:
    from outlierlens.training.pretrain.loop import PretrainingRun

INT8 = "int8-tensor/int8-tensor"  # the plainest scheme, and the one that a single large value harms most


@dataclass(frozen=True)
class OutcomeOptions:
    """How much is measured: held-out texts, random sets, and the seed of masks, sets and intervals."""

    n_texts: int = 128
    n_random: int = 24
    batch_size: int = 32
    seed: int = 0
    progress: Callable[[str], None] = print


def kept(run: "PretrainingRun", options: OutcomeOptions | None = None, *, command: str = "") -> Outcomes:
    """The outcome in the run's folder, measured and written if it is not there."""
    path = run.folder / OUTCOME
    if path.is_file():
        found: Outcomes = load(path)
        return found
    found = measure(run, options, command=command)
    save(found, path)
    return found


def measure(run: "PretrainingRun", options: OutcomeOptions | None = None, *, command: str = "") -> Outcomes:
    """The outcome of a finished run, on its first held-out texts, cut at the length that it was trained with."""
    options = options or OutcomeOptions()
    recipe = run.recipe
    loaded = from_objects(run.model, run.tokens.tokenizer, name=recipe.name)
    texts = Texts("held-out texts", run.tokens.held_out[: options.n_texts])
    task_options = TaskOptions(max_length=recipe.data.length, batch_size=options.batch_size, seed=options.seed)
    task = make_task(loaded, texts, task_options)
    options.progress(f"measuring on {len(texts)} held-out texts")
    found = scan_live(loaded, ScanOptions(view="last" if loaded.stack().ends_in_norm else "reading")).stacks[0]
    both, scale_alone, bias_alone = found.past(Rule())
    values, weights = task.per_text()
    seen = observe(loaded, texts, ObserveOptions(max_length=recipe.data.length, batch_size=options.batch_size))
    mode: Mode = "weights" if loaded.stack().ends_in_norm else "zero"
    states = seen.stacks[0].view()  # row 0 is the embeddings
    off, random = _found_off(loaded, texts, both or (*scale_alone, *bias_alone), mode, options, task_options)
    options.progress(f"ablating each of {found.hidden_size} dimensions")
    swept = sweep(
        loaded,
        texts,
        SweepOptions(exact=True, with_found=False, mode=mode, gradients=0, seed=options.seed, task=task_options),
    )
    changes = np.array([effect.change.value for effect in swept.singles()])
    worst = swept.top(1)[0]
    change, low, high = loss_change(loaded, task, parse(INT8))
    where = attention(
        loaded, texts,
        AttentionOptions(
            mode=mode, n_random=0, max_length=recipe.data.length, batch_size=options.batch_size, n_bootstrap=20,
        ),
    )  # fmt: skip
    model = TrainedModel(
        recipe=recipe.name,
        about=recipe.about,
        toml=recipe.to_toml(),
        seed=recipe.training.seed,
        steps=recipe.training.steps,
        n_parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        tokens=run.n_rows * recipe.data.length,
        held_out_loss=float([row["eval_loss"] for row in run.log if "eval_loss" in row][-1]),
        text_loss=weighted_mean(values, weights),
        text=f"{len(texts)} held-out texts, at most {recipe.data.length} tokens"
        + ("" if recipe.model.type == "llama" else ", 15 % masked"),
        text_digest=texts.digest,
        both=both,
        scale_alone=scale_alone,
        bias_alone=bias_alone,
        largest_z=float(np.abs(found.z_scale).mean(axis=0).max()),
        kurtosis=_spread_over_dims((states.std**2 + states.mean**2)[1:]),
        inf_norm=float(states.abs_max[1:].max()),
        first=where.figure("first").value.value,
        sinks=where.figure("sink_heads").value.value,
        off=off,
        random=random,
        worst=worst.change,
        worst_dims=worst.dims,
        dim_median=float(np.median(changes)),
        dim_high=float(np.quantile(changes, 0.95)),
        int8=Estimate(change, low, high),
    )
    fingerprint = swept.provenance.fingerprint
    return Outcomes(
        provenance=Provenance.now(recipe.name, fingerprint, command=command, seed=options.seed, dtype=loaded.dtype),
        about=About(),
        runs=(model,),
        notes=()
        if mode == "weights"
        else ("pre-norm: dimensions are set to 0 in the hidden states, not in the weights",),
    )


def _found_off(
    loaded: LoadedModel, texts: Texts, dims: tuple[int, ...], mode: Mode, options: OutcomeOptions, task: TaskOptions
) -> tuple[Estimate, tuple[float, ...]]:
    """What the named dimensions cost together, and what random sets of the same size cost [set]."""
    if not dims:
        return UNKNOWN, ()
    asked = AblateOptions(
        modes=(mode,), avoid=tuple(sorted(dims)), n_random=options.n_random, n_matched=0, seed=options.seed, task=task
    )
    found = ablate(loaded, texts, sorted(dims), asked)
    control, change = found.family("ordinary", "random"), found.chosen.change
    assert control is not None
    return change, tuple(control.sets)


def _spread_over_dims(second_moments: np.ndarray) -> float:
    """Largest kurtosis over dimensions of any block: mean(s²) / mean(s)², s [layer, dim] (He et al. 2024, eq. 1)."""
    s = second_moments
    return float(((s**2).mean(axis=1) / s.mean(axis=1) ** 2).max())
