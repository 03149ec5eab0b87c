"""Switch dimensions off beside fair controls and measure what breaks.

    damage = disable(load_model("smollm2-135m"), read_texts("excerpt"), [100, 247, 507])
    damage.chosen.change                        # nats per token
    damage.controls[0].p                        # rank p among random sets of the same size

Every condition is measured on one `AblationBench`: it reads the same tokens and masks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.bench import AblationBench, Progress, Steps
from outlierlens.ablation.controls import (
    Plan,
    compared,
    matched_neurons,
    matched_sets,
    plan_key,
    random_families,
    random_neurons,
    relabelled,
)
from outlierlens.ablation.damage import Condition, Continuation, Damage, Filled
from outlierlens.ablation.extent import limited
from outlierlens.ablation.fill import Exercise, continuation, exercise, fill, filled
from outlierlens.ablation.mode_names import ON_WEIGHTS
from outlierlens.ablation.modes import Ablation, means_over, task_for, tokens_read
from outlierlens.ablation.switches import Dims, EditSettings, plan_dims
from outlierlens.data.texts import Data
from outlierlens.detection.observe.measure import magnitude
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput
from outlierlens.experiments.disable.options import Asked, DisableOptions
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find
from outlierlens.results.safe_files import new_folder
from outlierlens.statistics.words import unseen_note
from outlierlens.tasks.choice import make_task

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack
    from outlierlens.session import Session

UNLIKE = 3.0  # |z| of what a neuron writes, within its layer, from which no ordinary set holds it


def disable(
    loaded: LoadedModel,
    texts: Data,
    dims: Dims | Find = FIND,
    options: DisableOptions | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
    rows: Path | None = None,
) -> Damage:
    """Measure `loaded` intact, with `dims` off, and with control sets off.

    With `rows`, every finished condition is appended to that file, and conditions found there are not measured again.

    `dims` is a sequence, {layer: dims} where layers differ (a random set then replaces each dimension by one other in every
    layer it is off in), or "find" for those that the scan of the weights finds, or else its strongest two.

    Raises:
        BadInput: unknown dimension, layer or mode; no usable text; a mode the model does not allow.
    """
    options = options or DisableOptions()
    stack = loaded.axis(options.stack)
    width = stream_width(loaded.model, stack)
    dims, remarks = _found(loaded, stack, dims)
    if stack.reads:
        check_neurons(stack, dims, options)
    task = make_task(loaded, texts, task_for(options.mode, options.task))
    bench = AblationBench(loaded, task, seed=options.seed, by_neuron=bool(stack.reads))
    notes = [*remarks, *task.notes, unseen_note(task.n_texts, texts.plural)]
    settings = EditSettings(factor=options.factor, seed=options.seed)
    if options.mode == "mean":
        length = row_limit(loaded, texts, options.task.max_length)
        means = means_over(loaded, stack, texts, length=length, batch_size=options.task.batch_size)
        settings = EditSettings(means=means)
        notes.append(
            f"the mean that replaces a value is taken over {tokens_read(length)} of each of these {texts.plural}"
        )
    ablation = Ablation(loaded, stack, options.mode, options.embeddings, settings)
    plan = plan_dims(stack, width, dims, options.layers)
    ablation.check(plan)
    passage = options.passage or texts.passage
    blanks = exercise(loaded, passage, seed=options.seed)
    controls, closeness = _control_sets(loaded, (stack, width), plan, options)
    report = Steps(progress, 2 + len({plan_key(item) for family in controls.values() for _, item in family}))
    identity = bench.identity(texts, options.task, mode=ablation.name, stack=stack.name, seed=options.seed)
    with bench.resumed(rows, identity):
        bench.announce(report.total - 1, inputs=texts.plural)  # the intact model was measured with the bench
        report("intact")
        intact = bench.intact_condition()
        report("chosen")
        chosen = bench.condition("chosen", plan, lambda: ablation.off(plan))
        done: dict[str, Condition] = {}
        measured: dict[str, list[Condition]] = {}
        for kind, family in controls.items():
            for label, item in family:
                key = plan_key(item)
                if key not in done:
                    report(f"{kind} control")
                    done[key] = bench.condition(label, item, partial(ablation.off, item))
                measured.setdefault(kind, []).append(done[key])
        if n_lost := sum(map(math.isnan, chosen.score.per_text)):
            notes.append(
                f"with these dimensions off the {task.name} is no number (NaN) on {n_lost:,} of {task.n_texts:,} "
                f"{texts.plural}: there is no change to give, and no p"
            )
        shown = _shown(chosen, measured.get("ordinary", measured.get("random", [])))
        said = list(_say(ablation, width, (passage, blanks), shown))
        report("done")
    return Damage(
        provenance=loaded.provenance(command=command, seed=options.seed, digest=bench.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=task.name,
        unit=task.unit,
        mode=ablation.name,
        stack=stack.name,
        layers=tuple(sorted(plan)),
        n_texts=task.n_texts,
        n_tokens=task.n_tokens,
        intact=intact,
        chosen=chosen,
        controls=compared(measured, chosen, ranked="random", closeness=closeness),
        fills=tuple(item for item in said if isinstance(item, Filled)),
        continuations=tuple(item for item in said if isinstance(item, Continuation)),
        notes=(*loaded.notes, *notes),
        metric=task.metric,
        inputs=texts.plural,
    )


def run(session: "Session", asked: Asked) -> Damage:
    """What the command finds; a copy of the model is written once that is shown."""
    reading, options = session.task_reading, asked.options
    if reading.limit is None and not reading.is_labelled:
        reading = limited(reading, thorough=options.thorough)
    if reading.is_labelled and asked.stride is not None:
        raise BadInput(f"--stride belongs to causal-loss, not to --task {reading.task}")
    size, seed = options.task.batch_size, options.seed
    task = reading.options(max_length=asked.max_length, stride=asked.stride, batch_size=size, seed=seed)
    rows, options = session.rows.rows, replace(options, task=task)
    texts = reading.read(offline=session.load.offline)
    if asked.save:
        check_save(asked.save, options.mode)
        session.then = partial(_save, session, asked)
    return disable(session.loaded, texts, asked.dims, options, progress=session.progress, rows=rows)


def _found(loaded: LoadedModel, stack: "BoundStack", dims: Dims | Find) -> tuple[Dims, tuple[str, ...]]:
    """(dimensions, remarks on them): those given, or for "find" what the weights name."""
    if not isinstance(dims, str):
        return dims, ()
    if stack.reads:
        raise BadInput(f"--stack {stack.name}: a neuron is named with its block; write --dims 11:1229")
    found = named_dims(loaded, stack)
    return found.dims, found.notes


def _save(session: "Session", asked: Asked) -> None:
    assert asked.save is not None
    n_values = save_disabled(session.loaded, asked.dims, asked.save, asked.options)
    session.notice(f"{asked.save}: model with {n_values:,} values off")


def _control_sets(
    loaded: LoadedModel, stream: tuple["BoundStack", int], plan: Plan, options: DisableOptions
) -> tuple[dict[str, list[tuple[str, Plan]]], float | None]:
    """(sets of each kind with their labels, how near the matched ones came) for `plan` in a stream of this width."""
    stack, width = stream
    if stack.reads:
        return _neuron_sets(loaded, stream, plan, options)
    tested = {dim for dims in plan.values() for dim in dims}
    if options.avoid:
        plan_dims(stack, width, options.avoid)
    found = scan_stream(loaded, stack.name).dims if options.avoid is None else options.avoid
    families: dict[str, list[tuple[str, Plan]]] = {}
    closeness, (n_random, n_matched) = None, options.n_sets
    if n_random:
        for kind, sets in random_families(width, tested, avoid=found, n=n_random, seed=options.seed).items():
            families[kind] = [(f"{kind} {i + 1}", relabelled(plan, dims)) for i, dims in enumerate(sets)]
    if n_matched:
        strength = magnitude(loaded, stack)
        matched = matched_sets(strength, plan, avoid=found, n=n_matched, seed=options.seed, blocks=stack.blocks)
        families["matched"] = [(f"matched {i + 1}", item.plan) for i, item in enumerate(matched)]
        closeness = float(np.median([item.closeness for item in matched]))
    return families, closeness


def check_neurons(stack: "BoundStack", dims: Dims, options: DisableOptions) -> None:
    """Raise BadInput where neurons are named without their block, or with what belongs to dimensions."""
    if not isinstance(dims, Mapping) and options.layers is None:
        raise BadInput(
            f"--stack {stack.name}: a neuron is named with its block; write --dims 11:{dims[0] if dims else 0}"
        )
    if options.avoid is not None:
        raise BadInput(f"--avoid names dimensions; leave it out with --stack {stack.name}")
    if options.mode in ("norms", "writes"):
        raise BadInput(
            f"--mode {options.mode} is of dimensions; with --stack {stack.name} use weights, zero, mean or scale"
        )


def _neuron_sets(
    loaded: LoadedModel, stream: tuple["BoundStack", int], plan: Plan, options: DisableOptions
) -> tuple[dict[str, list[tuple[str, Plan]]], float | None]:
    """`_control_sets` of neurons: drawn, and matched, among the neurons of the same layers."""
    stack, width = stream
    strength = magnitude(loaded, stack)
    avoid = {layer: np.flatnonzero(strength[layer] >= UNLIKE).tolist() for layer in plan}
    families: dict[str, list[tuple[str, Plan]]] = {}
    closeness, (n_random, n_matched) = None, options.n_sets
    if n_random:
        for kind, sets in random_neurons(width, plan, avoid=avoid, n=n_random, seed=options.seed).items():
            families[kind] = [(f"{kind} {i + 1}", one) for i, one in enumerate(sets)]
    if n_matched:
        matched = matched_neurons(strength, plan, avoid={}, n=n_matched, seed=options.seed)
        families["matched"] = [(f"matched {i + 1}", item.plan) for i, item in enumerate(matched)]
        closeness = float(np.median([item.closeness for item in matched]))
    return families, closeness


def _shown(chosen: Condition, random: Sequence[Condition]) -> list[tuple[str, Condition | None]]:
    """What fills in the passage: the model intact, with the median of `random` off where there are any, with `chosen` off."""
    typical = sorted(random, key=lambda condition: condition.change)[len(random) // 2 : len(random) // 2 + 1]
    return [("intact", None), *(("random", one) for one in typical), ("chosen", chosen)]


def _say(
    ablation: Ablation,
    width: int,
    work: tuple[str, Exercise | None],
    shown: Sequence[tuple[str, Condition | None]],
) -> Iterator[Filled | Continuation]:
    """The passage, `work` with its blanks, filled in (and continued) under the conditions of `shown`."""
    passage, blanks = work
    loaded, intact = ablation.loaded, None
    for label, condition in shown:
        dims = condition.dims if condition else ()
        plan: Plan | None = None
        if condition:
            plan = condition.by_layer or plan_dims(ablation.stack, width, condition.dims, condition.layers)
        with ablation.off(plan):
            now = fill(loaded, blanks) if blanks else None
            said = continuation(loaded, passage)
        intact = intact or now
        if blanks and now and intact:
            yield filled(loaded, blanks, now, intact, label=label, dims=dims)
        if said:
            yield Continuation(label, dims, *said)


def check_save(directory: Path, mode: str) -> None:
    """Raise BadInput where `save_disabled` could not write; ask before measuring."""
    if mode not in ON_WEIGHTS:
        raise BadInput(f"--save needs --mode weights, norms or writes: mode {mode!r} lives in the running network only")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} is not empty; name a new folder")


def save_disabled(loaded: LoadedModel, dims: Dims | Find, directory: Path, options: DisableOptions) -> int:
    """Write a loadable copy of the model with `dims` off in its weights; returns the number of values set.

    Raises:
        BadInput: the mode edits hidden states, which no weights file can hold; or the folder is not empty.
    """
    check_save(directory, options.mode)
    stack = loaded.axis(options.stack)
    dims, _ = _found(loaded, stack, dims)
    if stack.reads:
        check_neurons(stack, dims, options)
    plan = plan_dims(
        stack, stream_width(loaded.model, stack), dims, None if isinstance(dims, Mapping) else options.layers
    )
    with new_folder(directory) as making:
        with Ablation(loaded, stack, options.mode, options.embeddings).off(plan) as touched:
            loaded.model.save_pretrained(making)  # type: ignore[operator]
        for part in (loaded.tokenizer, loaded.processor):
            if part is not None:
                part.save_pretrained(making)
    return touched
