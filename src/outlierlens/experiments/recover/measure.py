"""Does a fine-tuned model recover from losing its outlier dimensions when it is fine-tuned again?

    options = RecoverOptions(dims=(308, 381))
    found = recover("runs/rte/seed-42/model", train, dev, Path("runs/recovery"), options)
    found.arm("chosen", "again").recovered, found.arm("random", "again").lost

The model is scored intact, with the dimensions off, fine-tuned again after they were switched off (free to regrow them),
and fine-tuned again with them held at zero; a random set of the same size is treated alike, and the intact model is
fine-tuned as much further. Each fine-tuning is a run folder of `finetune`, so what was stopped goes on.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.switches import plan_dims, zeroed_weights
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints.live import LiveCheckpoint
from outlierlens.data.labelled import Examples
from outlierlens.detection.rules import Measured
from outlierlens.detection.scan.measure import measure, scan_stream, sites_of
from outlierlens.errors import BadInput
from outlierlens.experiments.recover.options import RecoverOptions
from outlierlens.experiments.recover.result import Arm, Recovery, Regrowth, State, What
from outlierlens.models.heads import NewHead
from outlierlens.models.load import LoadedModel, fingerprint, load_model, stream_width
from outlierlens.options import FIND
from outlierlens.results.document import save
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import Statistic, interval
from outlierlens.training.finetune.batches import steps_per_epoch

if TYPE_CHECKING:
    from outlierlens.training.finetune.loop import FinetuneOptions

RESULT = "recovery.json"


def recover(
    model: str,
    train: Examples,
    dev: Examples,
    folder: Path,
    options: RecoverOptions | None = None,
    how: "FinetuneOptions | None" = None,
) -> Recovery:
    """Run all arms and write `recovery.json`; `how` says where the model comes from and who is told.

    Raises:
        BadInput: a model without a head for the task, no dimension to switch off, or a folder with another run in it.
    """
    from outlierlens.training.finetune.loop import FinetuneOptions, finetune

    options, how = options or RecoverOptions(), how or FinetuneOptions()
    loaded = load_model(model, replace(how.load, dtype="float32"))
    _check_head(loaded, train)
    scorer = _Scorer(loaded, dev, options)
    chosen = scorer.found if options.dims == FIND else tuple(sorted(options.dims))
    if not chosen:
        raise BadInput(f"{model}: the rule finds no dimension in its weights; name some with --dims")
    plan_dims(scorer.stack, scorer.width, chosen)
    sets: list[tuple[What, tuple[int, ...]]] = [("chosen", chosen)]
    if options.n_random:
        avoid = (*chosen, *scorer.found)
        drawn = random_sets(scorer.width, len(chosen), avoid=avoid, n=options.n_random, seed=options.seed)
        sets += [("random", one) for one in drawn]
    arms = [scorer.arm("none", "intact", (), loaded, chosen)]
    for what, off in sets:
        with zeroed_weights(loaded, off, stack=scorer.stack.name):
            arms.append(scorer.arm(what, "off", off, loaded, off))
    for what, off, state, name in _trainings(sets):
        settings = options.settings
        if off:
            settings = replace(settings, off=off, hold=state == "held", stack=options.stack)
        how.progress(f"{name}: fine-tuning again" + (f" with {', '.join(map(str, off))} off" if off else ""))
        tuned = finetune(model, train, dev, folder / name, settings, seeds=options.seeds, options=how)
        for number, trained in enumerate(tuned.seeds):
            again = load_model(trained.folder, replace(how.load, dtype="float32", revision=None, subfolder=""))
            arm = scorer.arm(what, state, off, again, off or chosen)
            arms.append(replace(arm, seed=options.seeds[number], best_epoch=trained.best_epoch, folder=trained.folder))
    settings = options.settings
    n_train = min(len(train), settings.train_limit or len(train))
    steps = steps_per_epoch(n_train, settings.batch) * settings.epochs
    found = Recovery(
        provenance=loaded.provenance(command=how.command, seed=options.seed, digest=scorer.fingerprint),
        task=dev.task.name,
        metric=dev.task.metric,
        stack=scorer.stack.name,
        dims=chosen,
        train=train.source,
        dev=dev.source,
        n_train=n_train,
        n_dev=len(dev),
        settings={key: v for key, v in settings.to_dict().items() if key not in ("off", "hold", "stack", "seed")},
        reach=settings.learning_rate * steps / 2,
        arms=tuple(_recovered(arm, arms) for arm in arms),
    )
    save(found, folder / RESULT)
    return found


def _check_head(loaded: LoadedModel, train: Examples) -> None:
    """Raise BadInput where fine-tuning again would begin with a new head: what it lost could then not be told apart."""
    names = NewHead(train.task.labels).names
    stored = dict(loaded.config.get("id2label") or {})
    if not NewHead(train.task.labels).means(stored):
        raise BadInput(
            f"{loaded.name} names its outputs {', '.join(map(str, stored.values()))}, the task {', '.join(names)}: fine-tuning "
            f"again would begin with a new head; write the task's names into its config.json (id2label) in the order of its "
            f"outputs, if they mean the same, or use a model fine-tuned by outlierlens"
        )


def _trainings(sets: Sequence[tuple[What, tuple[int, ...]]]) -> list[tuple[What, tuple[int, ...], State, str]]:
    """(what, dimensions off, state, folder) of every fine-tuning."""
    runs: list[tuple[What, tuple[int, ...], State, str]] = [("none", (), "again", "none-again")]
    for number, (what, off) in enumerate(sets):
        name = what if what == "chosen" else f"random-{number}"
        states: tuple[State, ...] = ("again", "held")
        runs += [(what, off, state, f"{name}-{state}") for state in states]
    return runs


class _Scorer:
    """Scores a model on the dev set and measures its norms, always beside the intact one."""

    def __init__(self, loaded: LoadedModel, dev: Examples, options: RecoverOptions):
        self.dev, self.options = dev, options
        self.stack = loaded.stack(options.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.task_options = TaskOptions(max_length=options.settings.max_length, measure="loss")
        self.fingerprint = fingerprint(loaded.model)
        self.found = scan_stream(loaded, self.stack.name).dims
        self.intact_outputs = LabelledScore(loaded, dev, self.task_options).outputs()
        self.intact_weights = _weights(loaded, self.stack)

    def arm(self, what: What, state: State, off: tuple[int, ...], loaded: LoadedModel, shown: Sequence[int]) -> Arm:
        """Score `loaded` as it is now."""
        stack = loaded.stack(self.options.stack)
        outputs = self.intact_outputs
        if state != "intact":
            outputs = LabelledScore(loaded, self.dev, self.task_options).outputs()
        metric = self.dev.task.metric
        value = outputs.scores[metric]
        low, high = interval(metric, outputs.truth, outputs.predicted, seed=self.options.seed, groups=self.dev.family)
        lost = self.intact_outputs.scores[metric] - value
        lost_low, lost_high = 0.0, 0.0
        if state != "intact":
            before = self.intact_outputs
            change = Statistic(metric, before.truth, self.dev.family)
            lost_low, lost_high = change.interval(before.predicted, outputs.predicted, seed=self.options.seed)
        now = _weights(loaded, stack)
        return Arm(
            what=what,
            state=state,
            dims=off,
            seed=None,
            value=value,
            low=low,
            high=high,
            loss=float(outputs.losses.mean()),
            lost=lost,
            lost_low=lost_low,
            lost_high=lost_high,
            scores=outputs.scores,
            regrowth=tuple(_regrowth(dim, self.intact_weights, now) for dim in shown),
        )


def _weights(loaded: LoadedModel, stack: BoundStack) -> Measured:
    """Scale and bias [layer, dim] of each block's last operation as they are now."""
    checkpoint = LiveCheckpoint(loaded.model, name=loaded.name, config=loaded.config)
    return measure(checkpoint, sites_of(stack, "last")[0], hashlib.sha256())[0]


def _regrowth(dim: int, intact: Measured, now: Measured) -> Regrowth:
    parts = [(intact.scale[:, dim], now.scale[:, dim])]
    if intact.bias is not None and now.bias is not None:
        parts.append((intact.bias[:, dim], now.bias[:, dim]))
    sizes = [float(np.abs(after).mean()) for _, after in parts]
    befores = [float(np.abs(before).mean()) for before, _ in parts]
    shares = [size / before if before else None for size, before in zip(sizes, befores, strict=True)]
    before, after = (np.concatenate(side) for side in zip(*parts, strict=True))
    size = float(np.linalg.norm(before))
    z_bias = now.z_bias
    return Regrowth(
        dim=dim,
        scale=sizes[0],
        bias=sizes[1] if len(parts) == 2 else None,
        scale_share=shares[0],
        bias_share=shares[1] if len(parts) == 2 else None,
        z_scale=float(now.z_scale[:, dim].mean()),
        z_bias=float(z_bias[:, dim].mean()) if z_bias is not None else None,
        regrown=1 - float(np.linalg.norm(after - before)) / size if size else 0.0,
    )


def _recovered(arm: Arm, arms: Sequence[Arm]) -> Arm:
    """The arm with the share of its loss that is back."""
    off = next((one for one in arms if one.state == "off" and one.dims == arm.dims), None)
    if arm.state not in ("again", "held") or off is None or not off.lost_low > 0:
        return arm
    return replace(arm, recovered=1 - arm.lost / off.lost)
