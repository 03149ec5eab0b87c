"""The run: what the model says intact, with the dimensions off and with random ones off, on every kind of input.

    loaded = load_model("mini-bert")
    counts = read_counts("counts.parquet", loaded.tokenizer)
    found = predictions(loaded, read_texts("reviews", limit=100), counts, [105])
    found.shift("unmasked", "layers").direction

The loop is `_hear`: enter an intervention, read every text, add the logits to a tally.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.ablation.controls import Plan, random_sets, relabelled
from outlierlens.ablation.switches import Dims, plan_dims
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts, compat_counts, read_counts
from outlierlens.data.token_texts import special_ids
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.options import PredictionOptions, PredictionsCall
from outlierlens.experiments.predictions.result import (
    INTERVENTIONS,
    Heard,
    MeasureChange,
    Predictions,
    Shift,
    Spoken,
    Word,
)
from outlierlens.experiments.predictions.tally import GROUPS, Scale, Tally, Unigram, change
from outlierlens.experiments.predictions.words import INPUT_TASKS, OF_HEAD, Said, Switches, every
from outlierlens.models.inputs import token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find
from outlierlens.session import Session
from outlierlens.statistics.p_values import rank_p
from outlierlens.vectors.read import text_stack

TOP = 10  # predicted tokens named
MUCH_ADDED = 0.05  # share of the corpus' distribution that smoothing may be before it is said
Progress = Callable[[str, int, int], None]


@dataclass
class _Condition:
    """Something that is off, and the predictions with it off; `intervention` "" is the intact model."""

    label: str
    intervention: str
    plan: Plan
    tally: Tally
    n_values: int = 0


def predictions(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    dims: Dims | Find = FIND,
    options: PredictionOptions | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> Predictions:
    """Corpus frequency and distribution of what `loaded` predicts, intact and with `dims` off.

    `dims` is a sequence, or {layer: dims}; "find" is what the scan of the weights finds. `counts` are of this model's
    tokenizer.

    Raises:
        BadInput: a model without a head for words, an input or intervention that it does not have, no dimension, counts of
            another vocabulary, or no usable text.
    """
    options = options or PredictionOptions()
    inputs = _inputs(loaded, options)
    stack = text_stack(loaded, options.stack)
    found = scan_stream(loaded, stack.name).dims if dims == FIND else dims
    if not found:
        raise BadInput(f"the scan of {loaded.name} finds no outlier to switch off; name dimensions (--dims)")
    plan = plan_dims(stack, stream_width(loaded.model, stack), found)
    reading = replace(options.task, seed=options.seed)
    switches = Switches.make(loaded, stack, options.mode, texts, reading, head_norm=options.paper_compat)
    tasks = {name: INPUT_TASKS[name](loaded, texts.texts, reading) for name in inputs}
    first = tasks[inputs[0]]
    interventions, notes = _interventions(first, switches, options)
    if "layers" in interventions:
        switches.ablation.check(plan)
    notes += dict.fromkeys(note for task in tasks.values() for note in task.notes)
    unigram = Unigram.of(
        counts, n_rows=first.n_rows, special=sorted(special_ids(loaded.tokenizer)), smoothing=options.smoothing
    )
    heard: list[Heard] = []
    for number, (name, task) in enumerate(tasks.items()):
        conditions = _conditions(task, unigram, plan, interventions, switches.width, options)
        report = _reporter(progress, name, number, len(tasks))
        _hear(task, switches, conditions, report)
        heard.append(_summed(name, task, unigram, counts, conditions, options))
    notes += [f"counts: {note}" for note in counts.notes]
    if unigram.added > MUCH_ADDED:
        notes.append(
            f"smoothing makes up {unigram.added:.0%} of the corpus' distribution: count more text, or lower it (--smoothing)"
        )
    if any(one.n_texts < 2 for one in heard):
        notes.append("one text: there is no interval, for nothing can be resampled")
    layers_differ = len(set(plan.values())) > 1 or len(plan) < stack.n_layers
    return Predictions(
        provenance=loaded.provenance(command=command, seed=options.seed),
        data=texts.source,
        data_digest=texts.digest,
        counts=counts.source,
        n_counted=int(unigram.counts.sum()),
        smoothing=options.smoothing,
        head=loaded.head,
        stack=stack.name,
        mode=switches.ablation.name,
        dims=every(plan),
        by_layer=plan if layers_differ else {},
        max_length=token_limit(loaded, options.task.max_length),
        n_groups=GROUPS,
        n_bootstrap=options.n_bootstrap,
        paper_compat=options.paper_compat,
        corpus=unigram.curve(unigram.counts),
        heard=tuple(heard),
        notes=(*loaded.notes, *notes),
    )


def run(session: Session, asked: PredictionsCall) -> Predictions:
    """The measurement, as the command runs it."""
    texts, _ = session.texts()
    loaded = session.loaded
    if loaded.tokenizer is None:
        raise BadInput(
            f"{session.subject.model} has no tokenizer beside it, so texts cannot be read; use a model with one"
        )
    read = compat_counts if asked.options.paper_compat else read_counts
    counts = read(asked.counts, loaded.tokenizer)
    return predictions(loaded, texts, counts, asked.dims, asked.options, progress=session.progress)


def _hear(task: Said, switches: Switches, conditions: Sequence[_Condition], report: Callable[[int, int], None]) -> None:
    """Read every text once intact, and once for every condition that changes a state; add the logits to the tallies."""
    import torch

    # Conditions that only leave dimensions out of the last product share the intact model's pass.
    together = [one for one in conditions if one.intervention in ("", "logits")]
    passes = [together, *([one] for one in conditions if one not in together)]
    feeds = task.all_feeds()
    for number, those in enumerate(passes):
        report(number, len(passes))
        one = those[0]
        context = switches.off(one.intervention, one.plan) if one.intervention else nullcontext(0)
        off = [every(condition.plan) if condition.intervention == "logits" else () for condition in those]
        with context as one.n_values, torch.inference_mode():
            for feed in feeds:
                for which, rows, logits in task.logits(feed, off):
                    those[which].tally.add(logits, feed.targets[rows], feed.text[rows])
    report(len(passes), len(passes))


def _inputs(loaded: LoadedModel, options: PredictionOptions) -> tuple[str, ...]:
    there = OF_HEAD.get(loaded.head, ())
    if not there:
        outputs = "states" if loaded.head == "none" else type(loaded.model).__name__
        raise BadInput(
            f"{loaded.name} has no vocabulary head for tokens (its outputs are: {outputs}), and predictions need "
            f"one; use a masked or causal language model, such as the checkpoint that this one was made from"
        )
    wanted = options.inputs or there
    wrong = [one for one in wanted if one not in there]
    if wrong:
        raise BadInput(f"input {wrong[0]!r} is not for a {loaded.head} model; {loaded.name} has {', '.join(there)}")
    return tuple(dict.fromkeys(wanted))


def _interventions(task: Said, switches: Switches, options: PredictionOptions) -> tuple[tuple[str, ...], list[str]]:
    """Those asked for, or all that differ; and what to say about those that do not."""
    asked, notes = options.interventions, list[str]()
    if task.reads_last_hidden():
        if asked is None or {"last_hidden", "logits"} <= set(asked):
            notes.append(
                "what is multiplied with the vocabulary is the last hidden state: last_hidden and logits are one"
            )
            asked = tuple(one for one in asked or INTERVENTIONS if one != "logits")
        return tuple(dict.fromkeys(asked)), notes
    fits = task.width == switches.width
    if asked is None and not fits:
        notes.append(
            f"logits left out: what is multiplied with the vocabulary has {task.width} dimensions, the stream {switches.width}"
        )
        return tuple(one for one in INTERVENTIONS if one != "logits"), notes
    if asked is not None and "logits" in asked and not fits:
        raise BadInput(
            f"intervention logits: what is multiplied with the vocabulary has {task.width} dimensions, the stream "
            f"{switches.width}; leave it out"
        )
    wanted = tuple(dict.fromkeys(asked or INTERVENTIONS))
    if "logits" in wanted:
        notes.append(
            "the head transforms the last hidden state: dimensions of logits have those of the stream as their number alone"
        )
    return wanted, notes


def _conditions(
    task: Said,
    unigram: Unigram,
    plan: Plan,
    interventions: Sequence[str],
    width: int,
    options: PredictionOptions,
) -> list[_Condition]:
    """Intact first, then every intervention with the chosen and the random dimensions."""
    scale = Scale.of(unigram, task.loaded.device)
    groups = min(GROUPS, task.n_texts)
    chosen = every(plan)
    sets: tuple[tuple[int, ...], ...] = ()
    if options.n_random:
        sets = random_sets(width, len(chosen), n=options.n_random, seed=options.seed, other_than=chosen)

    def made(label: str, intervention: str, off: Plan, *, whole: bool) -> _Condition:
        tally = Tally(scale, n_texts=task.n_texts, n_groups=groups if whole else 1)
        return _Condition(label, intervention, off, tally)

    conditions = [made("intact", "", {}, whole=True)]
    for intervention in interventions:
        conditions.append(made("chosen", intervention, plan, whole=True))
        conditions += [
            made(f"random {number}", intervention, relabelled(plan, dims), whole=False)
            for number, dims in enumerate(sets)
        ]
    return conditions


def _summed(
    name: str,
    task: Said,
    unigram: Unigram,
    counts: TokenCounts,
    conditions: Sequence[_Condition],
    options: PredictionOptions,
) -> Heard:
    """Numbers of every condition, and their changes from the intact one."""
    first = conditions[0]
    intact = _spoken(first, unigram, counts.tokens)
    shifts: list[Shift] = []
    for intervention in dict.fromkeys(one.intervention for one in conditions[1:]):
        chosen, *rest = [one for one in conditions if one.intervention == intervention]
        random = tuple(_spoken(one, unigram, ()) for one in rest)
        found = change(first.tally, chosen.tally, unigram, n_draws=options.n_bootstrap, seed=options.seed)
        changes: dict[str, MeasureChange] = {}
        for measure, (moved, low, high) in found.items():
            others = tuple(one.values[measure] - intact.values[measure] for one in random)
            p = rank_p(abs(moved), np.abs(others)) if others and np.isfinite(moved) else None
            changes[measure] = MeasureChange(moved, low, high, others, p)
        shifts.append(Shift(name, intervention, _spoken(chosen, unigram, counts.tokens), random, changes))
    return Heard(name, task.n_texts, task.n_tokens, intact, tuple(shifts))


def _spoken(condition: _Condition, unigram: Unigram, tokens: Sequence[str]) -> Spoken:
    said = condition.tally.said.sum(0)
    most = np.argsort(-said, kind="stable")[: TOP if len(tokens) else 0]
    share = unigram.share
    words = [
        Word(tokens[i] if i < len(tokens) else "", float(said[i] / said.sum()), float(share[i]))
        for i in most
        if said[i]
    ]
    return Spoken(
        label=condition.label,
        dims=every(condition.plan),
        n_values=condition.n_values,
        values=condition.tally.values(unigram),
        n_types=int((said > 0).sum()),
        curve=unigram.curve(said.astype(np.float64)),
        top=tuple(words),
    )


def _reporter(progress: Progress | None, name: str, number: int, total: int) -> Callable[[int, int], None]:
    if progress is None:
        return lambda done, passes: None
    return lambda done, passes: progress(f"{name}: reading", number * passes + done, total * passes)
