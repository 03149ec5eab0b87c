"""Every published definition of an outlier dimension on one model, beside what each finds under its nulls.

    found = definitions(load_model("minilm-l6"), read_texts("excerpt", limit=32))
    found.of("massive").dims; found.of("timkey", "rotated").layers["3"]
    found.agreement(); found.weights                      # Jaccard [definition, definition]; the super weights
    weights_definitions(checkpoint)                       # those that rest on weights alone, without torch

One streaming pass over the texts serves all definitions on activations, in the model's basis and in a rotated one; a null
with other weights is one more pass each. Definitions on weights need no text, and no rotation: their basis is the model's.
"""

import hashlib
import math
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge

from outlierlens.ablation.study import Progress
from outlierlens.analyses.definitions_sums import (
    FINAL,
    Basis,
    Pairs,
    gathered,
    judged,
    judged_weights,
    randomly_initialised,
    rotation,
    shuffled,
)
from outlierlens.analyses.super_experts import SuperExpert, expert_outputs, expert_rows
from outlierlens.analyses.super_weights import SuperActivations, SuperWeight, WeightTrial, super_weights, trials
from outlierlens.architectures import (
    NO_EXPERT,
    BoundStack,
    bound_stacks,
    is_mlp,
    last_linears,
    live_parameters,
    neurons_of,
    streams_of,
)
from outlierlens.checkpoints import Checkpoint
from outlierlens.data.texts import Data, Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.rules import SUPER_EXPERT, ActivationRules
from outlierlens.detection.weights import ScanOptions, check_size, sites_of
from outlierlens.errors import BadInput, near, pick
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import Flag, check, parse_names
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import More, Pivot, Quiet, Row
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.read import text_stack
from outlierlens.view.pictures import Lines, Strips
from outlierlens.view.section import Count, Rows, few, runs, these

Null = Literal["random", "shuffled", "rotated"]
NULLS: tuple[Null, ...] = get_args(Null)
MODEL = "model"  # the condition without a null
AGREED = 0.5  # of the definitions that find anything
SHOWN = 8  # dimensions in a cell
ON_WEIGHTS = ("kovaleva", "puccetti", "luo-rank")


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Definition(Row):
    """One published definition as it was applied."""

    name: str
    """definition"""
    tap: str
    """looks at"""
    rule: str
    """a {kind} counts: when, and how layers are pooled"""
    thresholds: str
    source: Annotated[str, More]


_LAST, _BLOCKS = "the last layer: behind the final norm where there is one", "block outputs, before any final norm"
# docs/methods.md says what the sources leave open and was decided here.
DEFINITIONS = (
    Definition(
        name="kovaleva", source="Kovaleva et al. 2021, section 3", tap="scale and bias of the block's last operation",
        rule="|z| >= n_sigma within a layer's vector, in min_layer_fraction of the blocks, scale and bias both",
        thresholds="n_sigma=3.0, min_layer_fraction=0.5"),
    Definition(
        name="puccetti", source="Puccetti et al. 2022, parameter_access.py", tap="as kovaleva",
        rule="|x − mean| > n_sigma × unbiased std in more than 3 blocks; both lists interleaved, the first puccetti_top",
        thresholds="n_sigma=3.0, puccetti_top=6"),
    Definition(
        name="luo-rank", source="Luo et al. 2021, Positional Artefacts, section 3", tap="scale and bias of every norm",
        rule="|z| among the luo_rank largest in more blocks than chance allows: Holm's p <= luo_rank_p / norms",
        thresholds="luo_rank=6, luo_rank_p=0.05"),
    Definition(
        name="luo-share", source="Luo et al. 2021, Positional Artefacts, section 2", tap=_BLOCKS,
        rule="smallest, or largest, entry of luo_share of the token vectors, in luo_layer_fraction of the blocks",
        thresholds="luo_share=0.5, luo_layer_fraction=0.25"),
    Definition(
        name="llm.int8", source="Dettmers et al. 2022, section 4", tap="what norms hand on, else block outputs",
        rule="|h| >= int8_size in int8_position_share of the tokens of int8_layer_fraction of the blocks",
        thresholds="int8_size=6.0, int8_position_share=0.06, int8_layer_fraction=0.25"),
    Definition(
        name="massive", source="Sun et al. 2024, Massive Activations, section 2", tap="embeddings and block outputs",
        rule="max |h| > massive_size and > massive_ratio × the layer's median |h|, in any layer",
        thresholds="massive_size=100.0, massive_ratio=1000.0"),
    Definition(
        name="systematic", source="An et al. 2025, Systematic Outliers", tap="as massive", thresholds="systematic_ratio=1000.0",
        rule="max |h| > systematic_ratio × the layer's mean |h|, in any layer"),
    Definition(
        name="super-weight", source="Yu et al. 2024, analyze.py", tap="input and output of the MLP's last linear, one prompt",
        rule="row (of neurons the column) of a weight that joins |input| and |output| above super_spike, removed one by one",
        thresholds="super_spike=50.0, super_left=0.5, super_rounds=16"),
    Definition(
        name="rudman", source="Rudman et al. 2023", tap="first token (of a decoder the last) of each text, " + _LAST,
        rule="variance over texts >= rudman_factor × the mean variance over dimensions", thresholds="rudman_factor=5.0"),
    Definition(
        name="timkey", source="Timkey and van Schijndel 2021, section 3", tap=_BLOCKS,
        rule="adds >= timkey_share of the mean cosine of all pairs of tokens, where that is >= timkey_cosine, in any block",
        thresholds="timkey_share=0.05, timkey_cosine=0.05"),
    Definition(
        name="macocco", source="Macocco et al. 2025, evaluate.py", tap=_LAST, thresholds="macocco_quantile=0.99",
        rule="median |h| > the macocco_quantile of all |h| of the layer"),
    Definition(
        name="he-kurtosis", source="He et al. 2024", tap=_BLOCKS, thresholds="he_kurtosis=5.0, carrier_share=0.5",
        rule="it carries carrier_share of K − 1 with others, K = mean(s²) / mean(s)² >= he_kurtosis, s mean h², in any block"),
    Definition(
        name="bondarenko-out", source="Bondarenko et al. 2023, validate_mlm.py", tap=_BLOCKS,
        rule="it carries carrier_share of the kurtosis of entries with others, if that is >= bondarenko_kurtosis, any block",
        thresholds="bondarenko_kurtosis=10.0, carrier_share=0.5"),
    Definition(
        name="bondarenko-ffn", source="as bondarenko-out", tap="output of the MLP's last linear", rule="as bondarenko-out",
        thresholds="bondarenko_kurtosis=10.0, carrier_share=0.5"),
)  # fmt: skip
NOT_OF_NEURONS = {
    **dict.fromkeys(
        ("kovaleva", "puccetti", "luo-rank", "luo-share", "llm.int8"),
        "asks for one position in many layers, and a neuron has its place in one",
    ),
    "rudman": "is of the vector that stands for a text, whose entries are dimensions",
    "macocco": "is of the stream's last layer, whose entries are dimensions",
    "bondarenko-ffn": "measures the output of the last linear, whose entries are dimensions",
}
NAMES = tuple(one.name for one in DEFINITIONS)
LIMITS: dict[str, float] = {
    name: literal_eval(value) for one in DEFINITIONS for name, value in (t.split("=") for t in one.thresholds.split(", "))
} | SUPER_EXPERT  # fmt: skip


# --- options ---------------------------------------------------------------------------------------------------------


def parse_nulls(text: str) -> tuple[str, ...]:
    """ "random,rotated" -> ("random", "rotated"); "none" -> ()."""
    return () if text == "none" else parse_names(text)


def parse_thresholds(given: Sequence[str]) -> dict[str, float]:
    """["rudman-factor=4"] -> {"rudman_factor": 4.0}; raises BadInput for what is no NAME=NUMBER."""
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name.strip().replace("-", "_")] = float(value)
        except ValueError:
            raise BadInput(f"cannot read threshold {text!r}; write NAME=NUMBER, such as rudman_factor=4") from None
    return found


@dataclass(frozen=True, kw_only=True)
class DefinitionOptions:
    """Definitions, nulls and thresholds, and how texts are read."""

    nulls: Annotated[
        tuple[Null, ...], Flag(read="analyses.definitions:parse_nulls", words="random,shuffled,rotated")
    ] = NULLS
    """Rule all: nulls by commas, random (initialisation), shuffled (weights), rotated (basis); or none."""
    thresholds: Annotated[
        dict[str, float], Flag("--threshold", read="analyses.definitions:parse_thresholds", repeats=True)
    ] = field(default_factory=dict)
    """Rule all: NAME=NUMBER in place of a published threshold. Repeatable; the table of rules has the names."""
    trial_texts: Annotated[int, Ge(0)] = 0
    """Rule all: test super weights on N texts: zero, restore, scale. 0 skips the test."""
    seed: Annotated[int, Ge(0)] = 0
    """Rule all: seed of everything random."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder. mlp (encoder.mlp): neurons of the blocks' MLPs."""
    special: bool = True
    """Whether special tokens ([CLS], [SEP], <s>) count too."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts per forward pass."""
    histogram_bytes: int = 500_000_000
    """Memory for the quantiles of macocco, in each basis; beyond it, dimensions with the largest |h| only."""

    def __post_init__(self) -> None:
        check(self)
        if bad := [one for one in self.nulls if one not in NULLS]:
            raise BadInput(f"unknown null {bad[0]!r}; nulls are {', '.join(NULLS)}, or none")
        for name, value in self.thresholds.items():
            if (usual := LIMITS.get(name)) is None:
                raise BadInput(f"no threshold {name!r}; there are {', '.join(LIMITS)}{near(name, LIMITS)}")
            whole, share = isinstance(usual, int), usual < 1
            if not 0 < value < math.inf or (share and value > 1) or (whole and value % 1):
                must = "a whole number of at least 1" if whole else "in (0, 1]" if share else "positive"
                raise BadInput(f"{name} is {value:g}; it must be {must}")

    @property
    def limits(self) -> dict[str, float]:
        """Every threshold by its name."""
        return LIMITS | self.thresholds

    @property
    def observing(self) -> ObserveOptions:
        """How `observe` reads the same, by the same thresholds."""
        rules = ActivationRules(**{one.name: self.limits[one.name] for one in fields(ActivationRules)})
        return ObserveOptions(
            max_length=self.max_length, batch_size=self.batch_size, rules=rules, histogram_bytes=self.histogram_bytes
        )


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DefinitionHits(Row):
    """What one definition finds under one condition."""

    definition: str
    condition: str
    n: Annotated[int | None, Count]
    """{kind}s found: pooled over layers; none where the definition says nothing"""
    names: tuple[str, ...] = ()
    """{kind}s: as the definition pools layers, ascending"""
    layers: Annotated[dict[str, tuple[int, ...]], Quiet] = field(default_factory=dict)
    """{kind}s by layer: the strongest first, layers without any left out"""
    strength: Annotated[dict[str, tuple[float, ...]], Quiet] = field(default_factory=dict)
    """the number that the rule compares, of each of them"""
    why_not: str = ""
    """says nothing: why"""

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions; of neurons their numbers within a block."""
        return tuple(int(name.rpartition(":")[2]) for name in self.names)

    def overlap(self, other: "DefinitionHits", layer: str | None = None) -> float:
        """Jaccard index of two definitions, pooled or in one layer; NaN where one says nothing, or neither finds any."""
        a, b = ({*one.names} if layer is None else {*one.layers.get(layer, ())} for one in (self, other))
        return len(a & b) / len(a | b) if a | b and self.n is not None and other.n is not None else math.nan


@dataclass(frozen=True, kw_only=True)
class Vote(Row):
    """A dimension, or a neuron, that several definitions find in the model."""

    name: str
    """{kind}"""
    n: Annotated[int, Count]
    """definitions"""
    by: tuple[str, ...]
    """which"""


@dataclass(frozen=True, kw_only=True)
class Overlap(Row):
    """How far two definitions that find any agree on the model."""

    one: str
    """definition"""
    other: str
    jaccard: float
    """Jaccard index of the {kind}s found: pooled over layers"""


@dataclass(frozen=True, kw_only=True)
class LayerNumbers(Row):
    """Numbers of a whole layer under one condition; NaN where there is no such tap."""

    condition: str
    layer: str
    mean_cosine: float
    """mean cosine: of all pairs of token vectors, in [−1, 1]: anisotropy"""
    he_kurtosis: float
    """He: mean_j(s_j²) / mean_j(s_j)², s_j the mean over tokens of h_j², in [1, width]; 1 is even"""
    bondarenko_out: float
    """Bondarenko out: kurtosis of the block's output over all tokens × dimensions of a text, mean over texts"""
    inf_norm: float
    """inf norm: mean over texts of the largest |h|"""
    bondarenko_ffn: float
    """Bondarenko ffn: the same kurtosis of the output of the MLP's last linear"""
    gamma: float
    """γ: ‖mean‖ / ‖standard deviation‖ of the states"""


@dataclass(frozen=True, kw_only=True)
class Definitions(Finding):
    """Every definition side by side, in the model and under its nulls; those on weights alone where nothing was run.

    Attributes:
        stopped: why the search for super weights ended; "" where there was none.
    """

    title = "Every definition side by side"
    layouts = {"overlaps": Pivot("one", "other", "jaccard")}  # noqa: RUF012
    pictures = (
        Strips(rows="found", x="n", y="definition", by="condition", captioned=False),
        Lines(rows="numbers", x="layer", y="gamma", by="condition", captioned=False),
        Strips(rows="trials", x="change", y="label", where=lambda one: one.label != "intact", title="Super weights"),
    )

    found: tuple[DefinitionHits, ...]
    """Found: Columns of nulls: how many are found there; – where a definition does not apply."""
    overlaps: tuple[Overlap, ...]
    """Agreement"""
    several: tuple[Vote, ...]
    """Found by several definitions"""
    definitions: tuple[Definition, ...]
    """Rules"""
    numbers: tuple[LayerNumbers, ...] = ()
    """(Numbers of layers)"""
    weights: tuple[SuperWeight, ...] = ()
    """Super weights: in the order in which they were removed, by their spikes on one prompt."""
    experts: tuple[SuperExpert, ...] = ()
    """Super experts: The rule of Su et al. 2025 always names the largest expert, under nulls too: compare × median."""
    trials: tuple[WeightTrial, ...] = ()
    """Super weights tested"""
    stopped: str = ""

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions that were measured, the model itself first."""
        return tuple(dict.fromkeys(one.condition for one in self.found))

    def of(self, name: str, condition: str = MODEL) -> DefinitionHits:
        """What a definition finds under a condition; raises BadInput with what there is."""
        pick(self.definitions, f"no definition {name!r}", name=name)
        mine = [one for one in self.found if one.definition == name]
        return pick(mine, f"condition {condition!r} was not measured", condition=condition)

    def agreement(self, layer: str | None = None, condition: str = MODEL) -> np.ndarray:
        """Jaccard index [definition, definition] in [0, 1] of what is found: pooled, or in one `layer` ("embeddings", "3").

        NaN where neither of the two finds anything, or one does not apply.
        """
        rows = [self.of(one.name, condition) for one in self.definitions]
        return np.array([[one.overlap(other, layer) for other in rows] for one in rows])

    def sentences(self) -> Iterator[str]:
        """Which dimensions at least half of the definitions agree on, what nulls show, and the super weights."""
        kind, named, finding = self.about.kind, self.about.dims, [one for one in self.found if one.n]
        n = sum(one.condition == MODEL for one in finding)
        if named:
            found = f"{these(named, kind).capitalize()}: outlier{'s' * (len(named) > 1)} by at least half of the definitions"
            yield f"{found} that find any; a claim about other {kind}s rests on its definition."
        beside = "" if named or not n else f", and no {kind} is found by half of those"
        yield f"{n} of {len(self.definitions)} definitions find{'s' * (n == 1)} an outlier {kind}{beside}."
        for condition in self.conditions[1:]:
            still = [one.definition for one in finding if one.condition == condition]
            yield f"Under the null {condition}, {', '.join(still) or 'none'} still find{'s' * (len(still) < 2)} any."
        if mine := [one for one in self.experts if one.condition == MODEL]:
            first, nulls = mine[0], [one.times for one in self.experts if one.condition != MODEL]
            under = f"; under nulls the largest is {max(nulls):.3g} times" if nulls else ""
            yield (
                f"Super experts: {', '.join(f'{one.layer}:{one.expert}' for one in mine[:SHOWN])}"
                f"{f' and {len(mine) - SHOWN:,} more' if len(mine) > SHOWN else ''}; {first.layer}:{first.expert} writes "
                f"{first.written:,.3g} to dimension {first.dim}, {first.times:.3g} times the median expert's largest{under}."
            )
        if self.stopped:
            yield f"The search for super weights removed {len(self.weights)}; {self.stopped}."
        if self.trials:
            zeroed, restored = (pick(self.trials, "", label=one) for one in ("zeroed", "restored"))
            yield (
                f"Without them the {self.about.measured} changes by {zeroed.change.written()}; with {restored.n_restored:,} "
                f"super activations put back by {restored.change.written()}."
            )

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """What is found: a line for each definition, with the number under each null."""
        if name != "found":
            return super().laid_out(name, rows, head, note, verbose=verbose)
        others, lines = self.conditions[1:], []
        for one in (self.of(each.name) for each in self.definitions):
            at = [layer for layer, dims in one.layers.items() if {*dims} & {*one.dims}]
            named = [layer for layer in at if not layer.isdecimal()]
            layers = ", ".join(filter(None, (runs([int(layer) for layer in at if layer.isdecimal()]), *named)))
            nulls = (self.of(one.definition, condition).n for condition in others)
            lines.append((one.definition, one.n, one.why_not or few(one.names, SHOWN) or "none", layers, *nulls))
        kind, note = self.about.kind, note if others else ""
        heads = ("definition", MODEL, f"{kind}s", "layers", *others)
        return Rows(f"{kind.capitalize()}s found", heads, tuple(lines), note)


# --- how it is found -------------------------------------------------------------------------------------------------


def definitions(
    loaded: LoadedModel, texts: Data, options: DefinitionOptions | None = None, *, progress: Progress | None = None
) -> Definitions:
    """What every published definition of an outlier dimension finds, in the model and under nulls.

    Raises:
        BadInput: no such stream or MLP axis, texts that the model cannot read, a state that is not finite, or too few tokens.
    """
    loaded.need_whole("a comparison of definitions, which looks into weights and for super weights,")
    options = options or DefinitionOptions()
    if isinstance(texts, Texts) and not is_mlp(options.stack):
        stack = text_stack(loaded, options.stack)
    else:
        stack = loaded.axis(options.stack)
    turn = rotation(stream_width(loaded.model, stack), seed=options.seed) if "rotated" in options.nulls else None
    model = _Judge(stack, options, MODEL)
    own, *turned = gathered(loaded, texts, stack, options, turn=turn, progress=progress)
    model.everything(loaded, texts, own)
    judges, notes = [model], [*loaded.notes, *stack.stack.notes]
    if not all(known := np.isfinite(own.medians).all(0)):
        notes.append(f"macocco judged {sum(known)} of {len(known)} dimensions: memory for quantiles reached no farther")
    if not options.special and own.n_special:
        notes.append(f"{own.n_special:,} special tokens are left out; llm.int8 counts them all the same")
    for null, make in (("random", randomly_initialised), ("shuffled", shuffled)):
        if null in options.nulls:
            judge = _Judge(stack, options, null)
            try:
                other = make(loaded, seed=options.seed)
                judge.everything(other, texts, gathered(other, texts, stack, options, progress=progress)[0])
            except BadInput as error:
                judge = _Judge(stack, options, null)
                judge.nothing(str(error), *NAMES)
                notes.append(f"{null}: not measured: {error}")
            judges.append(judge)
    for seen in turned:
        judges.append(judge := _Judge(stack, options, "rotated"))
        judge.nothing("rests on weights, whose basis is the model's own", *ON_WEIGHTS, "super-weight")
        judge.activations(seen)
    about = About(data=texts.source, data_digest=texts.digest, inputs=texts.plural, n_texts=len(texts), n_tokens=own.n_tokens,
                  max_length=options.max_length)  # fmt: skip
    tested: tuple[WeightTrial, ...] = ()
    if model.weights and options.trial_texts and isinstance(texts, Texts):
        some = texts.first(options.trial_texts)
        task = make_task(loaded, some, TaskOptions(max_length=options.max_length))
        stream = next(one for one in loaded.stacks if one.blocks == stack.blocks)
        activations = SuperActivations(loaded, stream, options.limits["super_spike"])
        tested = trials(activations, model.weights, task, some, seed=options.seed, progress=progress)
        about, notes = replace(about, task=task.name, unit=task.unit, metric=task.metric), [*notes, *task.notes]
    return _finding(
        loaded.provenance(seed=options.seed), about, judges, numbers=tuple(one for judge in judges for one in judge.numbers),
        weights=model.weights, stopped=model.stopped, experts=tuple(one for judge in judges for one in judge.experts),
        trials=tested, notes=tuple(notes),
    )  # fmt: skip


def weights_definitions(checkpoint: Checkpoint, options: ScanOptions) -> Definitions:
    """What the definitions that rest on weights alone find in a checkpoint; `options.rule` has their thresholds.

    Raises:
        BadInput: an MLP axis, of whose neurons none of them says anything.
        TooMuchToRead: the blocks' last linears have to be read, and are more than `options.max_read` bytes.
    """
    if is_mlp(options.stack):
        raise BadInput("no definition on weights applies to neurons; name a stream, or leave --stack out")
    stack, rule = streams_of(bound_stacks(checkpoint, options.row), options.stack, checkpoint.name)[0], options.rule
    check_size(checkpoint, sites_of(stack, "last"), options, instead="")
    given = {"n_sigma": rule.n_sigma, "min_layer_fraction": rule.min_layer_fraction}
    given |= dict.fromkeys(("puccetti_top", "luo_rank"), rule.top_k)
    judge = _Judge(stack, DefinitionOptions(thresholds=given), MODEL)
    digest = hashlib.sha256(checkpoint.header_digest().encode())
    judge.stored(checkpoint, digest)
    provenance = Provenance.now(checkpoint.name, digest.hexdigest(), adapter=checkpoint.adapter)
    return _finding(provenance, About(), [judge], notes=tuple(checkpoint.notes))


class _Judge:
    """What the definitions find under one condition: `found`, the numbers of layers, and the super weights."""

    def __init__(self, stack: BoundStack, options: DefinitionOptions, condition: str):
        self.stack, self.options, self.limits, self.condition = stack, options, options.limits, condition
        self.found: dict[str, DefinitionHits] = {}
        self.numbers: list[LayerNumbers] = []
        self.weights: tuple[SuperWeight, ...] = ()
        self.experts: tuple[SuperExpert, ...] = ()
        self.stopped = ""

    def everything(self, loaded: LoadedModel, texts: Data, seen: Basis) -> None:
        """Hold a model and what a pass gathered against all definitions."""
        if self.stack.reads:
            self.nothing("", *ON_WEIGHTS)
        else:
            self.stored(loaded.weights, hashlib.sha256())
        self.activations(seen)
        stream = next(one for one in loaded.stacks if one.blocks == self.stack.blocks)
        if not isinstance(texts, Texts):
            self.nothing("searched on a prompt, and these data are not texts", "super-weight")
            return
        try:
            mlps = last_linears(stream, live_parameters(loaded.model))
        except BadInput as error:
            self.nothing(str(error), "super-weight")
            return
        prompt, length = texts.texts[0], self.options.max_length
        self.weights, self.stopped = super_weights(loaded, stream, prompt, self.limits, max_length=length)
        pairs: Pairs = {}
        for one in self.weights:
            place = one.column if self.stack.reads else one.row
            pairs.setdefault(str(one.layer), {}).setdefault(place, abs(one.written))
        self.keep("super-weight", pairs)
        if any(one.expert != NO_EXPERT for one in mlps):
            size = self.options.batch_size
            outputs = expert_outputs(loaded, stream, texts, max_length=length, batch_size=size)
            self.experts = expert_rows(loaded, stream, outputs, self.limits, condition=self.condition)

    def nothing(self, why: str, *names: str) -> None:
        """These definitions say nothing here, and why."""
        for name in names:
            why_not = NOT_OF_NEURONS.get(name, why) if self.stack.reads else why
            self.found[name] = DefinitionHits(definition=name, condition=self.condition, n=None, why_not=why_not)

    def keep(self, name: str, pairs: Pairs, dims: Iterable[int] | None = None, sign: int = -1) -> None:
        """What a definition finds, of the numbers of dimensions by layer; pooled are `dims`, all of them unless given."""
        if self.stack.reads and name in NOT_OF_NEURONS:
            self.nothing("", name)
            return
        order = sorted(filter(pairs.get, pairs), key=lambda one: (one == FINAL, int(one) if one.isdecimal() else -1))
        at = {one: sorted(pairs[one], key=lambda dim: (sign * pairs[one][dim], dim)) for one in order}
        pooled = {dim for some in at.values() for dim in some} if dims is None else dims
        names = neurons_of({int(layer): some for layer, some in at.items()}) if self.stack.reads else sorted(pooled)
        self.found[name] = DefinitionHits(
            definition=name, condition=self.condition, n=len(names), names=tuple(map(str, names)),
            layers={layer: tuple(some) for layer, some in at.items()},
            strength={layer: tuple(float(pairs[layer][dim]) for dim in some) for layer, some in at.items()},
        )  # fmt: skip

    def activations(self, seen: Basis) -> None:
        """Hold what a pass gathered against the definitions on activations."""
        for name, pairs, dims in judged(seen, self.options):
            self.keep(name, pairs, dims)
            if name == "bondarenko-ffn" and np.isnan(seen.written).all():
                self.nothing(seen.unwritten, name)
        for i, layer in enumerate(seen.layers):
            numbers = {name: float(values[i]) for name, values in seen.numbers.items()}
            self.numbers.append(LayerNumbers(condition=self.condition, layer=layer, **numbers))

    def stored(self, checkpoint: Checkpoint, digest: Any) -> None:
        """Hold weights against the definitions on weights; `digest` takes what is read."""
        for name, pairs, why_not in judged_weights(checkpoint, self.stack, self.limits, digest):
            self.keep(name, pairs, sign=1 if name == "luo-rank" else -1)
            if why_not:
                self.nothing(why_not, name)


def _finding(provenance: Provenance, about: About, judges: Sequence[_Judge], **more: Any) -> Definitions:
    """The finding, with who agrees with whom."""
    stack, limits = judges[0].stack, judges[0].limits
    there = [one for one in DEFINITIONS if one.name in judges[0].found]
    finding = [found for one in there if (found := judges[0].found[one.name]).n]
    votes: dict[str, list[str]] = {}
    for found in finding:
        for name in found.names:
            votes.setdefault(name, []).append(found.definition)
    order = sorted(votes, key=lambda name: (-len(votes[name]), [int(part) for part in name.split(":")]))
    agreed = [name for name in order if len(votes[name]) >= max(2, AGREED * len(finding))]
    overlaps = [Overlap(one=a.definition, other=b.definition, jaccard=a.overlap(b)) for a in finding for b in finding]
    return Definitions(
        provenance=provenance,
        about=replace(about, stack=stack.name, layers=tuple(range(stack.n_layers)), dims=tuple(agreed),
                      kind="neuron" if stack.reads else "dimension"),
        found=tuple(judge.found[one.name] for one in there for judge in judges),
        several=tuple(Vote(name=name, n=len(votes[name]), by=tuple(votes[name])) for name in order if len(votes[name]) > 1),
        definitions=tuple(
            replace(one, thresholds=re.sub(r"(\w+)=[^,]+", lambda said: f"{said[1]}={limits[said[1]]:g}", one.thresholds))
            for one in there
        ),
        overlaps=tuple(overlaps), **more,
    )  # fmt: skip
