"""Check a state and measure its views, one person at a time: the page's logic, without gradio.

    explorer = open_explorer("mini-planted")
    found = explorer.look(State(text="A film worth seeing.", dims=(8, 24)), ("loss",))
    found.loss("chosen").change                        # of the text, with 8 and 24 off; "random": as many random ones

One model serves everybody, so everything that runs it holds one lock, and every ablation is undone before it is let go.
Results depend on the state alone and are kept for the next who asks the same.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

import numpy as np

from outlierlens.ablation.controls import Plan, random_sets
from outlierlens.ablation.fill import Reply, exercise, fill, replies
from outlierlens.ablation.modes import MODES, Mode, Switch, means_over
from outlierlens.ablation.switches import EditSettings, plan_dims
from outlierlens.analyses.scan import scan_live
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import read_texts
from outlierlens.data.token_texts import KnownTokens, special_ids
from outlierlens.detection.weights import StackScan
from outlierlens.errors import BadInput, operand, option, pick, shell
from outlierlens.explore.state import EXAMPLES, VIEWS, Selection, parse_views
from outlierlens.models.attention_maps import tapped_attention
from outlierlens.models.hooks import layer_name, tapped
from outlierlens.models.inputs import TextReading, token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model, stream_width
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Estimate, More, Pivot, Quiet, Row
from outlierlens.session import MODEL_ARGS
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.cosines import contributions, mean_cosine, unit
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, Share, few, runs

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

LENGTH = 96  # tokens of the text that are read, as many as a filled passage has
COPIES = 8  # of a masked model's text, each masked anew: 15 % of a sentence's tokens are too few for an interval
LONGEST = 2000  # letters of a text: several times what is read, and short enough for a link
MEAN_TEXTS = 16  # of the shipped excerpt, over which mode "mean" takes its means
BEST = 8  # guesses that are listed
MOST = 64  # dimensions that are off at once
STRONGEST = 3  # listed where the rule finds none
KEPT = 96  # results of views that are kept
PAGE_MODES = tuple(mode for mode in MODES if mode != "scale")  # the slider scales


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnedDims:
    """A condition: its label ("intact", "random", "chosen"), and the dimensions of which `left` is left in `layers`."""

    label: str
    dims: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    left: float = 0.0

    @property
    def names(self) -> str:
        """ "8, 24 ablated in layers 0–3"; "8, 24 × 0.5 in layers 0–3"; "nothing"."""
        how = f"× {self.left:g}" if self.left else "ablated"
        return f"{few(self.dims)} {how} in layers {runs(self.layers)}" if self.dims else "nothing"

    @property
    def plan(self) -> Plan:
        """What is touched, by layer."""
        return dict.fromkeys(self.layers, self.dims)


@dataclass(frozen=True, kw_only=True)
class TextLoss(Row):
    """The loss of the text under a condition; where the model says no words, how far its outputs move."""

    note = "Intervals are over the text's predictions, as if each were independent: they do not cover other texts."
    condition: str
    off: Annotated[str, More]
    """ablated"""
    loss: Estimate
    """{task}, {unit}"""
    perplexity: float | None = None
    change: Annotated[Estimate, Change]
    """change: from intact, paired by token"""


@dataclass(frozen=True, kw_only=True)
class Guess(Row):
    """One of the likeliest words of a blank under a condition, and its probability in [0, 1]."""

    rank: int
    condition: str
    said: str
    """the likeliest words and their probabilities"""
    word: Annotated[str, Quiet]
    probability: Annotated[float, Quiet, Share]


@dataclass(frozen=True, kw_only=True)
class LargestValue(Row):
    """Where a dimension is largest on this text after a layer of the intact model, and its share of that vector's length."""

    layer: str
    dim: int
    size: float
    """largest |x| over the tokens, intact"""
    value: Annotated[float, Quiet]
    token: Annotated[str, Quiet]
    share: Annotated[float, Quiet, Share]


@dataclass(frozen=True, kw_only=True)
class AttentionSink(Row):
    """Attention in one layer, a mean over heads and over the tokens that attend, in [0, 1]."""

    layer: str
    condition: str
    first: Annotated[float, Share]
    """attention on the first token"""
    special: Annotated[float, Quiet, Share]


@dataclass(frozen=True, kw_only=True)
class TextCosine(Row):
    """Mean cosine of all pairs of the text's tokens, special ones left out (Ethayarajh 2019, section 3, on one text)."""

    layer: str
    condition: str
    cosine: float
    """mean cosine"""
    share: Annotated[float, Quiet]


@dataclass(frozen=True, kw_only=True)
class Exploration(Finding):
    """A text under the conditions of a state: intact, and with the chosen set and a random one turned down or off.

    Attributes:
        state: with its defaults filled in. blank: the text's word there.
    """

    title = "One text"
    layouts: ClassVar[Mapping[str, Pivot]] = {
        "guesses": Pivot("rank", "condition", "said"),
        "largest": Pivot("layer", "dim", "size"),
        "sinks": Pivot("layer", "condition", "first"),
        "cosines": Pivot("layer", "condition", "cosine"),
    }
    pictures = (
        Lines(rows="largest", x="layer", y="size", by="dim", title="Largest |x|, intact", captioned=False),
        Lines(rows="sinks", x="layer", y="first", by="condition", title="Attention on the first token"),
        Lines(rows="cosines", x="layer", y="cosine", by="condition", title="Mean cosine of the tokens"),
    )

    losses: tuple[TextLoss, ...] = ()
    """Loss of this text"""
    guesses: tuple[Guess, ...] = ()
    """Guesses for one blank"""
    largest: tuple[LargestValue, ...] = ()
    """Largest |x| of each dimension"""
    sinks: tuple[AttentionSink, ...] = ()
    """Attention on the first token"""
    cosines: tuple[TextCosine, ...] = ()
    """Anisotropy of this text's tokens"""
    replies: tuple[Reply, ...] = ()
    """(The same passage, filled in and continued)"""
    state: Selection
    blank: str = ""
    conditions: Annotated[tuple[TurnedDims, ...], "condition"] = ()

    def loss(self, condition: str) -> TextLoss:
        """The loss under a condition; raises BadInput where there is none."""
        return pick(self.losses, f"no loss under {condition!r}", condition=condition)

    def sentences(self) -> Iterator[str]:
        if len(self.losses) > 1:
            _, random, chosen = self.losses
            cost = f"{self.about.task} {chosen.change.written()} {self.about.unit}"
            yield f"{chosen.off}: {cost}; random: {random.change.written()}."
        yield from (f"{one.label}: {one.names}." for one in self.conditions[1:])
        yield from (f"{one.off}: {one.filled}" for one in self.replies if one.filled)
        yield from (f"{one.off}: {one.begins} → {one.continued}" for one in self.replies if one.begins)
        if self.guesses:
            yield f"Blank {self.state.blank + 1}: the text says “{self.blank}”."


# --- the explorer ----------------------------------------------------------------------------------------------------


def open_explorer(model: str, options: LoadOptions | None = None) -> "Explorer":
    """Load `model` with attention that can be looked at, scan its weights, and make it ready to be explored."""
    options = options or LoadOptions()
    return Explorer(load_model(model, replace(options, attention="eager")), options)


@dataclass(frozen=True)
class _Look:
    """One state of one model while it is measured."""

    state: Selection
    loaded: LoadedModel = field(compare=False)
    stack: BoundStack = field(compare=False)
    switch: Switch = field(compare=False)
    conditions: tuple[TurnedDims, ...] = field(compare=False)
    listed: tuple[int, ...] = field(compare=False)
    text: str = field(compare=False)

    def view(self, name: str) -> dict[str, Any]:
        """What a view adds to an `Exploration`."""
        measure = {"passage": self.passage, "loss": self.loss, "guesses": self.guesses}.get(name)
        return measure() if measure else self.layers[name]

    def each(self, measure: Callable[[TurnedDims], T]) -> dict[TurnedDims, T]:
        """What `measure` gives under each condition, the intact model first."""
        found = {}
        for one in self.conditions:
            with self.switch.off(one.plan):
                found[one] = measure(one)
        return found

    def passage(self) -> dict[str, Any]:
        conditions = [(one.label, ", ".join(map(str, one.dims)), one.plan) for one in self.conditions]
        found = tuple(replies(self.switch, self.text, conditions))
        return {"replies": found, "notes": () if found and found[0].fill else (_no_blanks(self.loaded),)}

    def guesses(self) -> dict[str, Any]:
        """The likeliest words of a blank (the last one where there are fewer) under each condition."""
        work, rows = exercise(self.loaded, self.text), []
        if work is None:
            return {"notes": (_no_blanks(self.loaded),)}
        number, tokenizer = min(self.state.blank, len(work.blanks) - 1), cast(Any, self.loaded.tokenizer)
        for one, now in self.each(lambda _: fill(self.loaded, work)).items():
            probabilities = now.probabilities[number]
            order = np.argsort(-probabilities, kind="stable")[:BEST].tolist()
            for rank, piece in enumerate(tokenizer.convert_ids_to_tokens(order)):
                word = tokenizer.convert_tokens_to_string([piece]).strip() or piece
                p = float(probabilities[order[rank]])
                rows.append(
                    Guess(rank=rank + 1, condition=one.label, said=f"{word}  {100 * p:.1f} %", word=word, probability=p)
                )
        return {"guesses": tuple(rows), "blank": work.originals[number].strip()}

    def loss(self) -> dict[str, Any]:
        copies = COPIES if self.loaded.head == "masked" else 1
        try:
            task: Any = make_task(self.loaded, [self.text] * copies, TaskOptions(max_length=LENGTH, batch_size=COPIES))
        except BadInput as error:  # a text of one token, a tokenizer without a mask: other views are still to be had
            return {"notes": (str(error),)}
        by_token = task.unit == "nats per token"
        losses = self.each(lambda _: (task.per_token if by_token else task.per_text)()[0])
        rows, intact = list[TextLoss](), next(iter(losses.values()))
        for one, values in losses.items():
            change, mean = values - intact, float(values.mean())
            rows.append(TextLoss(
                condition=one.label, off=one.names, loss=Estimate(mean, *mean_interval(values)),
                perplexity=float(np.exp(min(mean, 700))) if by_token else None,
                change=Estimate(float(change.mean()), *mean_interval(change)),
            ))  # fmt: skip
        about = About(task=task.name, unit=task.unit, n_texts=1, n_tokens=len(intact) if by_token else 0)
        return {"losses": tuple(rows), "about": about}

    @functools.cached_property
    def layers(self) -> dict[str, dict[str, Any]]:
        """Of the views by layer: the text runs once under each condition, without the head."""
        reading = TextReading(self.loaded, LENGTH)
        (batch,) = reading.batches([self.text], batch_size=1)
        ids, mask, _ = (one[0].cpu().numpy() for one in reading.sides(batch)[self.stack.name])
        words, special = reading.words(ids.tolist()), mask.astype(bool)
        largest, sinks, cosines = list[LargestValue](), list[AttentionSink](), list[TextCosine]()
        no_weights = ""
        try:
            with tapped_attention(self.loaded, self.stack, lambda *_: None):
                reading(batch)
        except BadInput as error:
            no_weights = str(error)
        short = np.count_nonzero(~special) < 2

        def run(one: TurnedDims) -> None:
            def states_of(_: BoundStack, layer: int, states: "Tensor") -> None:
                seen, name = states[0].float().cpu().numpy(), layer_name(layer)  # [token, dim]
                if one.label == "intact":
                    largest.extend(_largest(seen, name, dim, words) for dim in self.listed)
                if not short:
                    units = unit(seen[~special])
                    cosine, share = (
                        float(mean_cosine(units)[0]),
                        float(contributions(units)[list(self.state.dims)].sum()),
                    )
                    cosines.append(TextCosine(layer=name, condition=one.label, cosine=cosine, share=share))

            def attention_of(layer: int, weights: "Tensor", _: Any) -> None:
                mean = weights[0, :, : len(special), : len(special)].float().mean(0).cpu().numpy()  # [query, key]
                first, on = float(mean[:, 0].mean()), float(mean[:, special].sum(1).mean())
                sinks.append(AttentionSink(layer=layer_name(layer), condition=one.label, first=first, special=on))

            tap = nullcontext() if no_weights else tapped_attention(self.loaded, self.stack, attention_of)
            with tapped(self.loaded.model, [self.stack], states_of), tap:
                reading(batch)

        self.each(run)
        too_short = "a mean cosine needs at least two tokens; write a longer text"
        return {
            "dimensions": {"largest": tuple(largest)},
            "attention": {"sinks": tuple(sinks), "notes": (no_weights,) if no_weights else ()},
            "anisotropy": {"cosines": tuple(cosines), "notes": (too_short,) if short else ()},
        }


def _no_blanks(loaded: LoadedModel) -> str:
    if loaded.head not in ("masked", "causal"):
        return f"{loaded.name} has no head that says words, so there is nothing to fill in"
    if loaded.head == "masked" and not getattr(loaded.tokenizer, "is_fast", False):
        return "its tokenizer cannot say which letters a token stands for, so no blank can be cut"
    return "no word of this text is one token and can be left out; write a few more common words"


def _largest(states: np.ndarray, layer: str, dim: int, words: Sequence[str]) -> LargestValue:
    token = int(np.nan_to_num(np.abs(states[:, dim])).argmax())
    value, length = float(states[token, dim]), np.linalg.norm(states, axis=-1)[token]
    said, share = f"{token} {words[token]}", float(abs(value) / max(length, np.finfo(np.float32).tiny))
    return LargestValue(layer=layer, dim=dim, size=abs(value), value=value, token=said, share=share)


class Explorer:
    """A model that can be looked at by several people at once.

    Attributes:
        scan: what the weights show. stacks: streams that read text.

    Raises:
        BadInput: the model reads no text.
    """

    def __init__(self, loaded: LoadedModel, options: LoadOptions | None = None):
        tokenizer_of(loaded)
        self.loaded, self.options = loaded, options or LoadOptions()
        self.stacks = loaded.text_stacks
        self.scan = scan_live(loaded)
        self.fingerprint = fingerprint(loaded.model)
        self._lock = threading.RLock()
        texts = functools.partial(read_texts, "excerpt", limit=MEAN_TEXTS)
        how = {"length": LENGTH, "batch_size": MEAN_TEXTS}
        self._means = functools.cache(lambda stack: means_over(loaded, self.stack(stack), texts(), **how))
        self._measured = functools.lru_cache(KEPT)(_Look.view)

    def stack(self, name: str = "") -> BoundStack:
        """The stream of that name, or the first that reads text; raises BadInput with the choices."""
        message = f"{self.loaded.name} has no stream {name[:40]!r}"
        return pick(self.stacks, message, name=name) if name else self.stacks[0]

    def _scanned(self, name: str) -> StackScan:
        return next(one for one in self.scan.stacks if one.stack == self.stack(name).name)

    def listed(self, name: str = "") -> tuple[int, ...]:
        """The dimensions that the rule found in a stream, at most `MOST`; the strongest by |z| where it found none."""
        scanned = self._scanned(name)
        return tuple(one.dim for one in scanned.outliers)[:MOST] or tuple(scanned.strongest_dims(STRONGEST))

    def label(self, dim: int, name: str = "") -> str:
        """ "308 · layers 0–11 of 12 · |z| up to 23.4"; for a box to tick."""
        scanned = self._scanned(name)
        column = scanned.map_dims.index(dim)
        z = np.stack([one[:, column] for one in (scanned.z_scale, scanned.z_bias) if one.size])  # [vector, layer]
        past = np.flatnonzero(scanned.threshold.passes(z).any(0)).tolist()
        where = f"layers {runs(past)} of {scanned.n_layers}" if past else "not an outlier in any layer"
        return f"{dim} · {where} · |z| up to {np.abs(z).max():.1f}"

    def verdict(self, name: str = "") -> str:
        """One sentence: the outlier dimensions that the weights show, or that there are none."""
        said = next(iter(self.scan.headline(self.loaded.name)))
        listed = f" Listed are the {STRONGEST} strongest." if not self._scanned(name).outliers else ""
        return said + listed * bool(self.listed(name))

    def start(self) -> Selection:
        """What a new page shows: a text, and all that the rule found off (the strongest where it found none)."""
        dims = sorted(self.listed()) if self._scanned("").outliers else self.listed()[:1]
        return Selection(text=EXAMPLES["A review"], dims=tuple(dims))

    def look(self, state: Selection, views: Sequence[str] = VIEWS) -> Exploration:
        """Measure `views` of `state`.

        Raises:
            BadInput: no text or too long a one, an unknown dimension, layer, mode, stream or view.
        """
        views = parse_views(",".join(views))
        found: dict[str, Any] = {}
        with self._lock:
            at, notes = self._settle(state)
            others = replace(at, state=replace(at.state, blank=0))  # the blank is of the guesses alone
            for view in views:
                found |= self._measured(at if view == "guesses" else others, view)
                notes += found.pop("notes", ())
        about = found.pop("about", About(n_texts=1))
        line = command(self.loaded.name, self.options, at.state, views)
        return Exploration(
            provenance=self.loaded.provenance(command=line, seed=state.seed, digest=self.fingerprint),
            about=replace(about, stack=at.stack.name, dims=tuple(map(str, at.state.dims))),
            state=at.state, conditions=at.conditions, notes=tuple(dict.fromkeys(notes)), **found,
        )  # fmt: skip

    def _settle(self, state: Selection) -> tuple[_Look, list[str]]:
        """What the state means, and notes."""
        if state.mode not in PAGE_MODES:
            raise BadInput(f"mode is {state.mode[:40]!r}; it must be one of {', '.join(PAGE_MODES)}")
        stack = self.stack(state.stack)
        last = stack.n_layers - 1
        state = replace(state, stack=stack.name, last=last if state.last is None else state.last)
        if not 0 <= state.first <= (state.last or 0) <= last:
            raise BadInput(
                f"layers {state.first} to {state.last} cannot be; {stack.name} has layers 0 to {last}, the lower one first"
            )
        if len(state.dims) > MOST:
            raise BadInput(f"{len(state.dims)} dimensions are chosen; this page ablates at most {MOST}")
        width = stream_width(self.loaded.model, stack)
        plan = plan_dims(stack, width, state.dims or (0,), state.layers)
        mode = cast(Mode, "scale" if state.left else state.mode)
        means = self._means(stack.name) if mode == "mean" else None
        switch = Switch(self.loaded, stack, mode, settings=EditSettings(factor=state.left, means=means))
        conditions = [TurnedDims("intact")]
        if state.dims and state.left < 1:
            switch.check(plan)
            avoid = {*self.listed(stack.name), *state.dims}
            drawn = random_sets(width, len(state.dims), avoid=avoid, n=1, seed=state.seed)[0]
            conditions += [TurnedDims(label, dims, state.layers, state.left)
                           for label, dims in (("random", drawn), ("chosen", state.dims))]  # fmt: skip
        text, notes = self._readable(state.text)
        listed = tuple(dict.fromkeys((*state.dims, *self.listed(stack.name))))[:MOST]
        return _Look(state, self.loaded, stack, switch, tuple(conditions), listed, text), notes

    def _readable(self, text: str) -> tuple[str, list[str]]:
        """`text` as a tokenizer takes it, notes; raises BadInput for no text or too long a one."""
        if len(text) > LONGEST:
            raise BadInput(
                f"this text has {len(text):,} letters, and the page reads {LONGEST:,} at most; for whole files there is "
                "outlierlens ablate --data FILE"
            )
        # Half of a surrogate pair, which a link can hold, is no text that a tokenizer takes.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        tokenizer: Any = self.loaded.tokenizer
        ids, limit, known = tokenizer(text)["input_ids"], token_limit(self.loaded, LENGTH), KnownTokens()
        if not text.strip() or special_ids(tokenizer).issuperset(ids):
            raise BadInput("there is no text to read; write a sentence")
        known.add(tokenizer, ids)
        known.check(self.loaded.name)
        cut = f"the text has {len(ids):,} tokens; the first {limit} are read" if len(ids) > limit else ""
        return text, [note for note in (self.loaded.note, known.note, cut) if note]


def command(model: str, options: LoadOptions, state: Selection, views: Sequence[str]) -> str:
    """The command line that prints `views` of `state`, quoted for a shell, without the token."""
    words = ["outlierlens", "explore", operand(model), f"--text={state.text}", "--dims", ",".join(map(str, state.dims))]
    words += ["--layers", f"{state.first}-{state.last}", "--show", "all" if tuple(views) == VIEWS else ",".join(views)]
    row = "family" if isinstance(options.row, str) else "arch"
    parts = ("row", "adapter", "revision", "subfolder", "tokenizer", "trust_remote_code", "offline")
    asked = list[str]()
    for given, names in ((state, ("left", "mode", "stack", "seed", "blank")), (options, ("device", "dtype", *parts))):
        for name in names:
            value, key = getattr(given, name), row if name == "row" else name.replace("_", "-")
            if value != getattr(type(given)(), name) and name in parts:
                asked.append(key if value is True else f"{key}={value}")
            elif value != getattr(type(given)(), name):
                words += option(f"--{key}", value)
    return shell(*words, *((MODEL_ARGS, ",".join(asked)) if asked else ()))
