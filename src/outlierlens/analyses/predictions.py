"""What a model predicts with dimensions off: which tokens, and how frequent in a corpus.

loaded = load_model("mini-bert")
counts = read_counts("counts.parquet", loaded.tokenizer)
found = predictions(loaded, read_texts("reviews", limit=100), counts, [105])
found.change("unmasked", "layers").direction                          # "more frequent", "rarer" or "neither"
found.change("unmasked", "layers", "kl_to_unigram").change            # an Estimate
found.prediction("unmasked").entropy                                  # of the intact model

layers       off in all layers, as `ablate` does; Puccetti et al. (2022) zero scale and bias of each block's last norm
last_hidden  off in what the body hands to the head, behind the final norm: the rest of the network is intact
logits       off in what is multiplied with the vocabulary matrix (Macocco et al. 2025). Without a transform in the head that is
             the last hidden state; BERT's head transforms it first, and dimensions of the two have only their number in common
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.ablation.controls import Plan, plan_key, random_sets, relabelled
from outlierlens.ablation.modes import MODES, Mode, Switch
from outlierlens.ablation.study import Condition, Progress, Study, dims_of
from outlierlens.ablation.switches import Dims, EditSettings, plan_dims
from outlierlens.analyses.frequency_counts import session_counts
from outlierlens.analyses.predictions_tally import INPUTS, OF_HEAD, TalliedLoss, Unigram, change
from outlierlens.data.texts import Texts
from outlierlens.data.token_counts import TokenCounts
from outlierlens.data.token_texts import special_ids
from outlierlens.detection.targets import NamedDims, named_dims
from outlierlens.errors import BadInput, pick
from outlierlens.models.forward import text_reader
from outlierlens.models.hooks import edited_calls, edited_output
from outlierlens.models.inputs import token_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find, Flag, Flat, belong, check, options_of
from outlierlens.results.finding import Finding
from outlierlens.results.row_store import Keep
from outlierlens.results.rows import Draws, Estimate, More, Quiet, Row
from outlierlens.statistics.means import no_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import TaskOptions
from outlierlens.vectors.read import text_stack
from outlierlens.view.pictures import Lines, Picture, Strips
from outlierlens.view.section import Change, Count, FineShare, P, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.ablate import Command
    from outlierlens.session import Session
    from outlierlens.view.charts.base import Spec

INTERVENTIONS = {
    "layers": "ablated in all layers",
    "last_hidden": "ablated in the last hidden state alone",
    "logits": "ablated in the product with the vocabulary alone",
}
NOTHING = "nothing"  # that is off
MAIN = ("log_frequency", "expected_log_frequency")
N_TEXTS = 200  # that are read where no number is given
MUCH_ADDED = 0.05  # share of the corpus' distribution that smoothing may be before it is said


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """Which predictions are measured, and how."""

    inputs: Annotated[tuple[str, ...] | None, Flag("--input", read="options:parse_names")] = None
    """Predictions: masked, unmasked; next of causal models. Default: all there are."""
    interventions: Annotated[tuple[str, ...] | None, Flag("--intervention", read="options:parse_names")] = None
    """Predictions: layers, last_hidden, logits, by commas. Default: all that differ."""
    smoothing: Annotated[float, Flag(hidden=True), Gt(0), Lt(float("inf"))] = 1.0
    """Predictions: occurrences added to every token of the corpus, so that rare ones have a logarithm."""
    n_bootstrap: Annotated[int, Flag(hidden=True), Ge(20)] = 1000
    """Predictions: bootstrap draws of the texts."""
    mode: Mode = "weights"
    """How dimensions are ablated in all layers: weights, norms, zero, mean, resample or writes."""
    layers: tuple[int, ...] | None = None
    """Those of "layers"; None takes all."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 19
    """Random sets of the same size."""
    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions()
    """How texts are read; `seed` replaces its own."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        for given, known, what in ((self.inputs, INPUTS, "input"), (self.interventions, INTERVENTIONS, "intervention")):
            wrong = [one for one in given or () if one not in known]
            if wrong or given == ():
                raise BadInput(f"unknown {what} {wrong[0] if wrong else ''!r}; {what}s are {', '.join(known)}")
        if self.task.blocks:
            raise BadInput("blocks join texts, and predictions are told text by text; leave blocks out")
        if self.mode not in MODES or self.mode == "scale":
            there = ", ".join(one for one in MODES if one != "scale")
            raise BadInput(f"predictions are compared in one mode, not {self.mode!r}; use one of {there}")


@dataclass(frozen=True, kw_only=True)
class PredictionCall:
    """Options of `ablate --predictions`, in addition to those of `ablate`."""

    predictions: str | None = None
    """Compare what the model predicts, in place of its loss: a corpus, or token counts, several by commas."""
    measured: Annotated[PredictionOptions, Flat("inputs", "interventions")] = PredictionOptions()
    """How they are measured."""

    def __post_init__(self) -> None:
        if self.predictions is None:
            belong("to --predictions; name token counts", self.measured)


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Prediction(Row):
    """What the model predicts under one condition: measures, from `accuracy` to `special`, and its commonest tokens."""

    input: str
    off: str
    """ablated"""
    accuracy: Annotated[float, FineShare]
    """accuracy: share of predictions that are the text's own token"""
    surprisal: float
    """surprisal: -ln probability of the text's own token, mean (nats)"""
    entropy: float
    """entropy: of the predicted distribution, mean (nats)"""
    log_frequency: float
    """ln frequency: in the corpus, of the predicted token, mean (nats)"""
    expected_log_frequency: Annotated[float, More]
    """expected ln frequency: in the corpus, under the predicted distribution, mean (nats)"""
    frequency: Annotated[float, More]
    """frequency: in the corpus, of the predicted token, mean (share of the corpus' tokens)"""
    slope: float
    """slope: of ln count among predictions on ln count in the corpus, types that are predicted"""
    spearman: float
    """ρ: rank correlation of the same two counts, in [-1, 1]"""
    slope_expected: Annotated[float, More]
    """slope, exp.: of ln mean predicted probability on ln count in the corpus, types that the corpus has"""
    spearman_expected: Annotated[float, More]
    """ρ, exp.: rank correlation of the same two, in [-1, 1]"""
    kl_to_unigram: float
    """KL to corpus: KL(mean predicted distribution || corpus) (nats)"""
    kl_from_unigram: float
    """KL from: KL(corpus || mean predicted distribution) (nats)"""
    special: Annotated[float, FineShare]
    """special: share of predictions that are special tokens"""
    n_types: Annotated[int, Count]
    """types: different tokens predicted"""
    says: str
    """top tokens: those predicted most often, with their share of predictions"""
    n_set: Annotated[int | None, Count, More]
    """values set: parameters; none where hidden states are edited"""
    covered: Annotated[tuple[float, ...], "point", Quiet]
    """share of predictions among the N most frequent types of the corpus"""


MEASURES = tuple(one.name for one in fields(Prediction))[2:-4]


@dataclass(frozen=True, kw_only=True)
class MeasureChange(Row):
    """What an intervention does to a measure, on one kind of input."""

    input: str
    off: str
    """ablated"""
    measure: str
    """measure: see `Prediction`"""
    intact: Annotated[float, More]
    ablated: Annotated[float, More]
    change: Annotated[Estimate, Change]
    """change: ablated − intact, paired by text; intervals of means are a BCa bootstrap's, of others a jackknife's"""
    random: Annotated[tuple[float, ...], Draws, Change]
    """random: the same change with each random set of the same size ablated"""
    p: Annotated[float | None, P]
    """p: (1 + number of random sets whose change is as large, either way) / (1 + n)"""

    @property
    def direction(self) -> str:
        """Of log frequencies: "more frequent", "rarer", "neither", or "unknown" without an interval."""
        if not self.change.settled:
            return "unknown"
        return {1: "more frequent", -1: "rarer", 0: "neither"}[self.change.side()]


@dataclass(frozen=True, kw_only=True)
class CurvePoint(Row):
    """How many of the predictions, or of the corpus' tokens, are among the N most frequent types of the corpus."""

    input: str
    off: str
    """ablated"""
    rank: int
    """most frequent types of the corpus"""
    covered: float
    """share of predictions among them"""


@dataclass(frozen=True, kw_only=True)
class Predictions(Finding):
    """What a model predicts with dimensions ablated, against the intact model and random ablations.

    Attributes:
        changes: by input, intervention and measure. predicted: by input, intact and under each intervention.
        n_positions: predictions by input. n_texts: texts by input.
        counts: where the corpus' token counts come from; n_counted: tokens counted; smoothing: occurrences added to each.
        mode: how dimensions are off in all layers; plan: which, by layer.
        random_sets: dimensions of each.
        ranks: at which curves are told. corpus_covered: that of the corpus' own tokens.
    """

    title = "What the model predicts with dimensions ablated"

    changes: tuple[MeasureChange, ...]
    """Corpus frequency of predicted tokens: Ablated − intact, in nats of its logarithm; every measure with --verbose. \
Intervals over texts; p by rank of the size among random sets."""
    predicted: tuple[Prediction, ...]
    """Predictions: Surprisal, entropy and divergences (KL) in nats."""
    n_positions: dict[str, int]
    n_texts: dict[str, int]
    random_sets: tuple[tuple[int, ...], ...]
    counts: str
    n_counted: int
    smoothing: float
    mode: str
    plan: Plan
    ranks: Annotated[tuple[int, ...], "point"]
    corpus_covered: Annotated[tuple[float, ...], "point"]

    def prediction(self, input: str, off: str = NOTHING) -> Prediction:
        """What is predicted intact, or under an intervention; raises BadInput with what there is."""
        return pick(self.predicted, f"no ablation of {off!r} on input {input!r} in this result", input=input, off=off)

    def change(self, input: str, off: str, measure: str = "log_frequency") -> MeasureChange:
        """What an intervention does to a measure; raises BadInput with what there is."""
        missing = f"no intervention {off!r} on input {input!r} in this result"
        return pick(self.changes, missing, input=input, off=off, measure=measure)

    @property
    def curves(self) -> tuple[CurvePoint, ...]:
        """Intact, under each intervention, and the corpus' own tokens."""
        lines = [(one.input, one.off, one.covered) for one in self.predicted]
        lines += [(name, "corpus", self.corpus_covered) for name in self.n_positions]
        return tuple(
            CurvePoint(input=input, off=off, rank=rank, covered=share)
            for input, off, covered in lines
            for rank, share in zip(self.ranks, covered, strict=True)
        )

    def sentences(self) -> Iterator[str]:
        for one in self.changes:
            if one.measure == MAIN[0]:
                clear = {"neither": "neither clearly more frequent nor rarer"}.get(one.direction, one.direction)
                why, rank = no_interval(self.n_texts[one.input]), "" if one.p is None else f"; rank p {one.p:.3g}"
                says = f"no verdict, for {why}" if one.direction == "unknown" else f"predicted tokens are {clear}"
                yield (
                    f"{one.input}, {INTERVENTIONS[one.off]}: {says}: {math.exp(one.change.value):.2g} times as frequent, "
                    f"{one.change.written('+.2f')} nats of log frequency{rank}."
                )
        read = ", ".join(f"{name} {n:,} tokens of {self.n_texts[name]:,} texts" for name, n in self.n_positions.items())
        n_random = len(self.changes[0].random)
        yield (
            f"Predicted: {read}; frequencies of {self.n_counted:,} tokens ({self.counts}); "
            f"dimensions ablated in all layers by {self.mode}, against {n_random} random sets of the same size."
        )

    def laid_out(self, name: str, rows: tuple[Any, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """A table; that of changes has two measures unless `verbose`."""
        if name == "changes" and not verbose:
            rows = tuple(one for one in rows if one.measure in MAIN)
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def drawn(self) -> tuple[Picture, ...]:
        """Changes of the log frequency; then of every input how predictions spread over the corpus' frequent tokens."""
        return (
            SHIFTS,
            *(replace(CURVES, where=partial(_is_of, name), title=f"Input: {name}") for name in self.n_positions),
        )


def _is_of(name: str, row: CurvePoint) -> bool:
    return row.input == name


@dataclass(frozen=True, kw_only=True)
class Curves(Lines):
    """Lines over ranks, on a logarithmic axis."""

    def panel(self, found: Finding) -> "Spec":
        made = super().panel(found)
        for one in made["layer"]:
            one["encoding"]["x"] |= {"scale": {"type": "log"}, "axis": {"format": "~g", "tickCount": 5}}
        return made


SHIFTS = Strips(
    rows="changes", x="change", y="off", by="input", draws="random", captioned=False,
    where=lambda one: one.measure == MAIN[0], title="ln corpus frequency of the predicted token, nats",
)  # fmt: skip
CURVES = Curves(rows="curves", x="rank", y="covered", by="off", captioned=False)


# --- how it is found ---------------------------------------------------------------------------------------------


def predictions(
    loaded: LoadedModel,
    texts: Texts,
    counts: TokenCounts,
    dims: Dims | Find = FIND,
    options: PredictionOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Keep | None = None,
) -> Predictions:
    """Corpus frequency and distribution of what `loaded` predicts, intact and with `dims` off.

    `dims` is a sequence, or {layer: dims}; "find" is what the scan of the weights finds, else its strongest two. `counts` are
    of this model's tokenizer. With `rows`, every finished condition is kept there and is not measured again.

    Raises:
        BadInput: a model without a head for words, an input or intervention that it does not have, an unknown dimension, counts
            of another vocabulary, or no usable text.
    """
    options = options or PredictionOptions()
    inputs = _inputs(loaded, options)
    stack = text_stack(loaded, options.stack)
    named = named_dims(loaded, stack) if dims == FIND else NamedDims((), "given", ())
    width = stream_width(loaded.model, stack)
    plan = plan_dims(stack, width, named.dims if dims == FIND else dims, options.layers)
    reading = replace(options.task, seed=options.seed)
    switch = Switch(loaded, stack, options.mode, settings=EditSettings(seed=options.seed))
    switch = switch.with_means(texts, length=token_limit(loaded, reading.max_length), batch_size=reading.batch_size)
    head = loaded.model.get_output_embeddings()  # type: ignore[operator]
    special = sorted(special_ids(loaded.tokenizer))
    unigram = Unigram.of(counts, n_rows=len(head.weight), special=special, smoothing=options.smoothing)
    tasks = {name: INPUTS[name](loaded, texts.texts, reading, unigram) for name in inputs}
    interventions, notes = _interventions(tasks[inputs[0]], switch, options)
    if "layers" in interventions:
        switch.check(plan)
    chosen = dims_of(plan)
    sets = (
        random_sets(width, len(chosen), n=options.n_random, seed=options.seed, other_than=chosen)
        if options.n_random
        else ()
    )
    work = _Interventions(switch, unigram, counts.tokens, options, [plan, *(relabelled(plan, one) for one in sets)])
    predicted, changes = [], []
    for name, task in tasks.items():
        with Study(loaded, task, texts, work.identity(name), rows=rows, progress=progress) as study:
            of_input, moved = work.measured(name, study, interventions)
        predicted += of_input
        changes += moved
    notes += dict.fromkeys(note for task in tasks.values() for note in task.notes)
    notes += [f"counts: {note}" for note in counts.notes]
    if unigram.added > MUCH_ADDED:
        notes.append(
            f"smoothing makes up {unigram.added:.0%} of the corpus' distribution: count more text, or lower it (smoothing)"
        )
    if any(task.n_texts < 2 for task in tasks.values()):
        notes.append("one text: there is no interval, for nothing can be resampled")
    about = study.about(plan, named_by=named.by, max_length=token_limit(loaded, reading.max_length))
    n_positions = {name: task.n_tokens for name, task in tasks.items()}
    return Predictions(
        provenance=loaded.provenance(seed=options.seed, digest=study.fingerprint),
        about=replace(about, task="predicted tokens", unit="", n_tokens=sum(n_positions.values())),
        changes=tuple(changes), predicted=tuple(predicted), n_positions=n_positions,
        n_texts={name: task.n_texts for name, task in tasks.items()}, random_sets=tuple(sets), counts=counts.source,
        n_counted=int(unigram.counts.sum()), smoothing=options.smoothing, mode=switch.name, plan=plan,
        ranks=tuple(unigram.ranks.tolist()), corpus_covered=tuple(unigram.covered(unigram.counts)),
        notes=(*loaded.notes, *named.notes, *notes),
    )  # fmt: skip


@dataclass(frozen=True)
class _Interventions:
    """What is measured on each kind of input: the chosen dimensions, then random ones, under every intervention."""

    switch: Switch
    unigram: Unigram
    tokens: Sequence[str]
    options: PredictionOptions
    plans: list[Plan]

    def identity(self, name: str) -> dict[str, Any]:
        options, counted = self.options, hashlib.sha256(self.unigram.counts.tobytes()).hexdigest()
        return {
            "input": name, "task": asdict(options.task), "stack": self.switch.stack.name, "seed": options.seed,
            "mode": self.switch.name, "counts": counted, "smoothing": options.smoothing,
        }  # fmt: skip

    def measured(
        self, name: str, study: Study, interventions: Sequence[str]
    ) -> tuple[list[Prediction], list[MeasureChange]]:
        """Rows of one kind of input: intact and under each intervention; and the changes."""
        task, options = study.task, self.options
        assert isinstance(task, TalliedLoss)
        assert study.intact
        intact = task.tally.details()  # of the pass that the study began with

        def conditions(off: str) -> Iterator[Condition]:
            for number, plan in enumerate(self.plans):
                label = f"{name}, {off}: " + (f"random {number}" if number else "chosen")
                more = None if number else lambda _: task.tally.details()
                yield Condition(off, label, plan, partial(self.off, off, plan), f"{off} {plan_key(plan)}", more)

        done = study.measure([one for off in interventions for one in conditions(off)])
        predicted, changes = [self._prediction(name, NOTHING, intact, 0)], []
        for off in interventions:
            chosen, *random = [one for one in done if one.condition.family == off]
            predicted.append(self._prediction(name, off, chosen.more, chosen.n_set))
            moved = change(intact, chosen.more, n_draws=options.n_bootstrap, seed=options.seed)
            for measure in MEASURES:
                before, value = intact["values"][measure], moved[measure].value
                others = tuple(one.also[measure] - before for one in random)
                p = rank_p(abs(value), np.abs(others)) if others and math.isfinite(value) else None
                changes.append(MeasureChange(
                    input=name, off=off, measure=measure, intact=before, ablated=chosen.more["values"][measure],
                    change=moved[measure], random=others, p=p,
                ))  # fmt: skip
        return predicted, changes

    def off(self, off: str, plan: Plan) -> AbstractContextManager[Any]:
        """The chosen dimensions off by an intervention."""
        loaded, edit = self.switch.loaded, partial(_without, dims=list(dims_of(plan)))
        if off == "layers":
            return self.switch.off(plan)
        if off == "logits":
            return edited_calls(loaded.model, {loaded.model.get_output_embeddings(): edit}, {})  # type: ignore[operator]
        return edited_output(loaded.model, text_reader(loaded, loaded.stacks), edit)

    def _prediction(self, name: str, off: str, found: dict[str, Any], n_set: int) -> Prediction:
        said = [f"{self.tokens[i] if i < len(self.tokens) else ''} {share:.0%}" for i, share in found["top"]]
        return Prediction(
            input=name, off=off, **found["values"], n_types=found["n_types"], says=", ".join(said), n_set=n_set or None,
            covered=tuple(found["covered"]),
        )  # fmt: skip


def _without(states: "Tensor", dims: list[int]) -> "Tensor":
    """A copy of states [..., dim] with `dims` zero."""
    changed = states.clone()
    changed[..., dims] = 0
    return changed


def _inputs(loaded: LoadedModel, options: PredictionOptions) -> tuple[str, ...]:
    there = OF_HEAD.get(loaded.head, ())
    if not there:
        outputs = "states" if loaded.head == "none" else type(loaded.model).__name__
        raise BadInput(
            f"{loaded.name} has no vocabulary head for tokens (its outputs are: {outputs}), and predictions need "
            f"one; use a masked or causal language model, such as the checkpoint that this one was made from"
        )
    wrong = [one for one in options.inputs or () if one not in there]
    if wrong:
        raise BadInput(f"input {wrong[0]!r} is not for a {loaded.head} model; {loaded.name} has {', '.join(there)}")
    return tuple(dict.fromkeys(options.inputs or there))


def _interventions(task: TalliedLoss, switch: Switch, options: PredictionOptions) -> tuple[tuple[str, ...], list[str]]:
    """Those asked for, or all that differ; and what to say about those that do not."""
    loaded, asked = switch.loaded, options.interventions
    wanted, notes = tuple(dict.fromkeys(asked or INTERVENTIONS)), list[str]()
    own, width = int(task.head.weight.shape[1]), stream_width(loaded.model, switch.stack)
    without = tuple(one for one in wanted if one != "logits")
    if task.reads_last_hidden():
        if {"last_hidden", "logits"} <= set(wanted):
            notes.append("the vocabulary head reads the last hidden state: last_hidden and logits are the same")
            wanted = without
    elif "logits" in wanted and own != width:
        widths = f"the vocabulary head reads {own} dimensions, the stream has {width}"
        if asked:
            raise BadInput(f"intervention logits: {widths}; leave it out")
        notes.append(f"logits left out: {widths}")
        wanted = without
    elif "logits" in wanted:
        notes.append(
            "the head transforms the last hidden state: dimensions of logits have those of the stream as their number alone"
        )
    if "last_hidden" in wanted and text_reader(loaded, loaded.stacks) is loaded.model:
        raise BadInput(f"{loaded.name}: no module of it ends at the last hidden state; leave last_hidden out")
    return wanted, notes


# Options of `ablate` that mean the same here; others change what is measured, and are refused.
TAKEN = ("dims", "modes", "layers", "stack", "n_random", "seed", "max_length",
         "predictions", "inputs", "interventions")  # fmt: skip


def compared(session: "Session", command: "Command") -> Predictions:
    """What `ablate --predictions` finds."""
    idle = [
        one.spelt
        for one in options_of(type(command))
        if one.name not in TAKEN and attrgetter(".".join(one.path))(command) != one.default
    ]
    if idle:
        raise BadInput(f"{idle[0]} is not for --predictions; leave it out")
    reading, asked, call = session.task_reading, command.options, command.words
    if reading.task != "auto" or reading.kind:
        raise BadInput("--predictions reads texts and scores no task; leave --task out, and name texts (--data)")
    texts = replace(reading, limit=N_TEXTS if reading.limit is None else reading.limit).read(
        offline=session.load.offline
    )
    assert isinstance(texts, Texts)
    task = reading.options(
        max_length=command.max_length, batch_size=asked.task.batch_size, mask_fraction=asked.task.mask_fraction
    )
    mode: Any = ",".join(asked.modes)
    options = replace(
        call.measured, mode=mode, layers=asked.layers, stack=asked.stack, n_random=asked.n_sets[0],
        task=task, seed=asked.seed,
    )  # fmt: skip
    counts = session_counts(session, call.predictions or "")
    return predictions(
        session.loaded, texts, counts, command.dims, options, progress=session.progress, rows=session.kept
    )
