"""Check a state and measure its views, one person at a time: the page's logic, without gradio.

    explorer = open_explorer("mini-planted")
    found = explorer.look(State(text="A film worth seeing.", dims=(8, 24)), ("loss",))
    found.loss("chosen").change                        # of the text, with 8 and 24 off; "random": as many random ones

One model serves everybody, so everything that runs it holds one lock, and every ablation is undone before it is let go.
Results depend on the state alone and are kept for the next who asks the same.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.fill import Continuation, Filled, answers, exercise, fill
from outlierlens.ablation.mode_names import MODES, Mode
from outlierlens.ablation.modes import Switch, means_over
from outlierlens.ablation.switches import EditSettings, plan_dims
from outlierlens.analyses.scan import scan_live
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, read_texts
from outlierlens.data.token_texts import nothing_known, special_ids, unknown_id, unknown_note
from outlierlens.detection.weights import StackScan
from outlierlens.errors import BadInput, near, operand, option, shell
from outlierlens.explore.state import EXAMPLES, VIEWS, State
from outlierlens.models.attention_maps import check_eager, tapped_attention
from outlierlens.models.forward import text_stacks
from outlierlens.models.hooks import layer_name, tapped
from outlierlens.models.inputs import token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model, stream_width
from outlierlens.models.passes import TextReading
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Estimate, More, Pivot, Quiet, Row
from outlierlens.tasks.base import TaskOptions, mean_estimate
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.cosines import contributions, mean_cosine, unit
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, Share, few, runs

if TYPE_CHECKING:
    from torch import Tensor

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
class Off:
    """A condition: its label ("intact", "random", "chosen"), and the dimensions of which `left` is left in `layers`."""

    label: str
    dims: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    left: float = 0.0

    @property
    def names(self) -> str:
        """ "8, 24 off in layers 0–3"; "8, 24 × 0.5 in layers 0–3"; "nothing"."""
        how = f"× {self.left:g}" if self.left else "off"
        return f"{few(self.dims)} {how} in layers {runs(self.layers)}" if self.dims else "nothing"


@dataclass(frozen=True, kw_only=True)
class TextLoss(Row):
    """The loss of the text under a condition; where the model says no words, how far its outputs move."""

    note = "Intervals are over the text's predictions, as if each were independent: they do not cover other texts."
    condition: str
    off: Annotated[str, More]
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
class Explored(Finding):
    """A text under the conditions of a state: intact, and with the chosen set and a random one turned down or off.

    Attributes:
        state: with its defaults filled in. read: the part of the text that is read. blank: the text's word there.
        fills, continuations: the text filled in, and continued by decoders, under each condition.
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
    state: State
    read: str = ""
    blank: str = ""
    conditions: Annotated[tuple[Off, ...], "condition"] = ()
    fills: tuple[Filled, ...] = ()
    continuations: tuple[Continuation, ...] = ()

    def loss(self, condition: str) -> TextLoss:
        """The loss under a condition; raises BadInput where there is none."""
        found = {row.condition: row for row in self.losses}
        if condition not in found:
            raise BadInput(f"no loss under {condition!r}{near(condition, found)}")
        return found[condition]

    def sentences(self) -> Iterator[str]:
        """What is off, what that costs, and what the model says."""
        for one in self.losses[-1:]:
            if one.condition == "chosen":
                random = self.loss("random").change.written()
                yield f"{one.off}: {self.about.task} {one.change.written()} {self.about.unit}; random: {random}."
        yield from (f"{one.label}: {one.names}." for one in self.conditions[1:])
        yield from (f"{one.label}: {one.line}" for one in self.fills)
        yield from (f"{one.label}: {one.prompt} → {one.text}" for one in self.continuations)
        if self.guesses:
            yield f"Blank {self.state.blank + 1}: the text says “{self.blank}”."


# --- the explorer ----------------------------------------------------------------------------------------------------


def open_explorer(model: str, options: LoadOptions | None = None) -> "Explorer":
    """Load `model` with attention that can be looked at, scan its weights, and make it ready to be explored."""
    options = options or LoadOptions()
    return Explorer(load_model(model, replace(options, attention="eager")), options)


@dataclass
class _Look:
    """One state while it is measured: the tables and words of its views are collected in `found`."""

    loaded: LoadedModel
    stack: BoundStack
    state: State
    text: str
    conditions: tuple[Off, ...]
    listed: tuple[int, ...]
    switch: Switch
    found: dict[str, Any] = field(default_factory=dict)

    def off(self, condition: Off) -> AbstractContextManager[int]:
        """The model under a condition."""
        return self.switch.off(dict.fromkeys(condition.layers, condition.dims) if condition.dims else None)

    def run(self) -> tuple[TextReading, Batch]:
        """What runs the text once through the stream, without the head."""
        reading = TextReading(self.loaded, LENGTH)
        (batch,) = reading.batches([self.text], batch_size=1)
        return reading, batch


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
        self.stacks = text_stacks(loaded)
        self.scan = scan_live(loaded)
        self.fingerprint = fingerprint(loaded.model)
        self._lock = threading.RLock()
        self._means: dict[str, np.ndarray] = {}
        self._kept: OrderedDict[tuple[State, str], dict[str, Any]] = OrderedDict()

    def stack(self, name: str = "") -> BoundStack:
        """The stream of that name, or the first that reads text; raises BadInput with the choices."""
        names = [stack.name for stack in self.stacks]
        if name and name not in names:
            raise BadInput(f"there is no stream {name[:40]!r}; {self.loaded.name} has {', '.join(names)}")
        return self.stacks[names.index(name) if name else 0]

    def _scanned(self, name: str) -> StackScan:
        return next(one for one in self.scan.stacks if one.stack == self.stack(name).name)

    def listed(self, name: str = "") -> tuple[int, ...]:
        """The dimensions that the rule found in a stream, at most `MOST`; the strongest by |z| where it found none."""
        scanned = self._scanned(name)
        return tuple(one.dim for one in scanned.outliers)[:MOST] or tuple(scanned.strongest_dims(STRONGEST))

    def label(self, dim: int, name: str = "") -> str:
        """ "308 · layers 0–11 of 12 · |z| up to 23.4"; for a box to tick."""
        scanned = self._scanned(name)
        column, layers = scanned.map_dims.index(dim), np.zeros(scanned.n_layers, dtype=bool)
        vectors = [one[:, column] for one in (scanned.z_scale, scanned.z_bias) if one.size]
        for z in vectors:
            layers |= scanned.threshold.passes(z)
        past = np.flatnonzero(layers).tolist()
        where = f"layers {runs(past)} of {scanned.n_layers}" if past else "no layer stands out"
        return f"{dim} · {where} · |z| up to {max(np.abs(z).max() for z in vectors):.1f}"

    def verdict(self, name: str = "") -> str:
        """One sentence: the outlier dimensions that the weights show, or that there are none."""
        said = next(iter(self.scan.headline(self.loaded.name)))
        few = self.listed(name) and not self._scanned(name).outliers
        return f"{said} Listed are the {STRONGEST} strongest." if few else said

    def start(self) -> State:
        """What a new page shows: a text, and all that the rule found off (the strongest where it found none)."""
        found = tuple(sorted(self.listed()))
        return State(text=EXAMPLES["A review"], dims=found if self._scanned("").outliers else self.listed()[:1])

    def look(self, state: State, views: Sequence[str] = VIEWS) -> Explored:
        """Measure `views` of `state`.

        Raises:
            BadInput: no text or too long a one, an unknown dimension, layer, mode, stream or view.
        """
        if unknown := [view for view in views if view not in VIEWS]:
            raise BadInput(f"unknown view {unknown[0]!r}; views are {', '.join(VIEWS)}")
        with self._lock:
            at, notes = self._settle(state)
            found: dict[str, Any] = {}
            for view in views:
                more = self._view(view, at)
                notes += more.pop("notes", ())
                found |= more
        about = found.pop("about", About(n_texts=1))
        line = command(self.loaded.name, self.options, at.state, views)
        return Explored(
            provenance=self.loaded.provenance(command=line, seed=state.seed, digest=self.fingerprint),
            about=replace(about, stack=at.stack.name, dims=tuple(map(str, at.state.dims))),
            state=at.state, read=at.text, conditions=at.conditions, notes=tuple(dict.fromkeys(notes)), **found,
        )  # fmt: skip

    def _settle(self, state: State) -> tuple[_Look, list[str]]:
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
            raise BadInput(f"{len(state.dims)} dimensions are chosen; this page switches off {MOST} at most")
        width = stream_width(self.loaded.model, stack)
        plan = plan_dims(stack, width, state.dims or (0,), state.layers)
        mode = cast(Mode, "scale" if state.left else state.mode)
        settings = EditSettings(factor=state.left) if state.left else EditSettings()
        if mode == "mean":
            settings = EditSettings(means=self._mean(stack))
        switch = Switch(self.loaded, stack, mode, settings=settings)
        conditions = [Off("intact")]
        if state.dims and state.left < 1:
            switch.check(plan)
            avoid = {*self.listed(stack.name), *state.dims}
            drawn = random_sets(width, len(state.dims), avoid=avoid, n=1, seed=state.seed)[0]
            conditions += [Off(label, dims, state.layers, state.left)
                           for label, dims in (("random", drawn), ("chosen", state.dims))]  # fmt: skip
        text, notes = self._cut(state.text)
        listed = tuple(dict.fromkeys((*state.dims, *self.listed(stack.name))))[:MOST]
        return _Look(self.loaded, stack, state, text, tuple(conditions), listed, switch), notes

    def _cut(self, text: str) -> tuple[str, list[str]]:
        """(the part of `text` that is read, notes); raises BadInput for no text or too long a one."""
        if len(text) > LONGEST:
            raise BadInput(
                f"this text has {len(text):,} letters, and the page reads {LONGEST:,} at most; for whole files there is "
                "outlierlens ablate --data FILE"
            )
        # Half of a surrogate pair, which a link can hold, is no text that a tokenizer takes.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        tokenizer: Any = self.loaded.tokenizer
        limit = token_limit(self.loaded, LENGTH)
        special, unknown = special_ids(tokenizer), unknown_id(tokenizer)
        ids = tokenizer(text)["input_ids"] if text.strip() else []
        ordinary = [token for token in ids if token not in special]
        if not ordinary:
            raise BadInput("there is no text to read; write a sentence")
        if ordinary.count(unknown) == len(ordinary):
            raise BadInput(nothing_known(self.loaded.name, len(ordinary)))
        notes = [note] if (note := unknown_note(ordinary.count(unknown), len(ordinary))) else []
        if len(ids) <= limit:
            return text, notes
        notes.append(f"the text has {len(ids):,} tokens; the first {limit} are read")
        if tokenizer.is_fast:
            offsets = tokenizer(text, truncation=True, max_length=limit, return_offsets_mapping=True)["offset_mapping"]
            return text[: max(end for _, end in offsets)], notes
        kept = tokenizer(text, truncation=True, max_length=limit)["input_ids"]
        return tokenizer.decode(kept, skip_special_tokens=True), notes

    def _mean(self, stack: BoundStack) -> np.ndarray:
        if stack.name not in self._means:
            texts = read_texts("excerpt", limit=MEAN_TEXTS)
            self._means[stack.name] = means_over(self.loaded, stack, texts, length=LENGTH, batch_size=MEAN_TEXTS)
        return self._means[stack.name]

    def _view(self, view: str, at: _Look) -> dict[str, Any]:
        """What is kept of this view, or is measured now."""
        key = (at.state if view == "guesses" else replace(at.state, blank=0), view)
        if key not in self._kept:
            self._kept[key] = _MEASURES[view](at)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return dict(self._kept[key])


def command(model: str, options: LoadOptions, state: State, views: Sequence[str]) -> str:
    """The command line that prints `views` of `state`, quoted for a shell, without the token."""
    words = ["outlierlens", "explore", operand(model), f"--text={state.text}", "--dims", ",".join(map(str, state.dims))]
    words += ["--layers", f"{state.first}-{state.last}", "--show", "all" if tuple(views) == VIEWS else ",".join(views)]
    for name in ("left", "mode", "stack", "seed", "blank"):
        if getattr(state, name) != getattr(State(), name):
            words += option(f"--{name}", getattr(state, name))
    for name, spelt in (("row", "--arch"), *((n, f"--{n}") for n in ("revision", "subfolder", "device", "dtype"))):
        if (value := getattr(options, name)) != getattr(LoadOptions(), name):
            words += option(spelt, value)
    return shell(*words, *(f"--{n.replace('_', '-')}" for n in ("trust_remote_code", "offline") if getattr(options, n)))


# --- views: what each adds to an `Explored` --------------------------------------------------------------------------


def _no_blanks(loaded: LoadedModel) -> str:
    if loaded.head not in ("masked", "causal"):
        return f"{loaded.name} has no head that says words, so there is nothing to fill in"
    if loaded.head == "masked" and not getattr(loaded.tokenizer, "is_fast", False):
        return "its tokenizer cannot say which letters a token stands for, so no blank can be cut"
    return "no word of this text is one token and can be left out; write a few more common words"


def _passage(at: _Look) -> dict[str, Any]:
    work = exercise(at.loaded, at.text)
    conditions = ((one.label, one.dims, at.off(one)) for one in at.conditions)
    fills, said = zip(*answers(at.loaded, at.text, work, conditions), strict=True)
    notes = () if work else (_no_blanks(at.loaded),)
    return {"fills": tuple(filter(None, fills)), "continuations": tuple(filter(None, said)), "notes": notes}


def _guesses(at: _Look) -> dict[str, Any]:
    """The likeliest words of a blank (the last one where there are fewer) under each condition."""
    work, rows = exercise(at.loaded, at.text), []
    if work is None:
        return {"notes": (_no_blanks(at.loaded),)}
    number, tokenizer = min(at.state.blank, len(work.blanks) - 1), cast(Any, at.loaded.tokenizer)
    for one in at.conditions:
        with at.off(one):
            probabilities = fill(at.loaded, work).probabilities[number]
        order = np.argsort(-probabilities, kind="stable")[:BEST].tolist()
        for rank, piece in enumerate(tokenizer.convert_ids_to_tokens(order)):
            word, p = tokenizer.convert_tokens_to_string([piece]).strip() or piece, float(probabilities[order[rank]])
            rows.append(
                Guess(rank=rank + 1, condition=one.label, said=f"{word}  {100 * p:.1f} %", word=word, probability=p)
            )
    return {"guesses": tuple(rows), "blank": work.originals[number].strip()}


def _loss(at: _Look) -> dict[str, Any]:
    copies = COPIES if at.loaded.head == "masked" else 1
    try:
        task: Any = make_task(at.loaded, [at.text] * copies, TaskOptions(max_length=LENGTH, batch_size=COPIES))
    except BadInput as error:  # a text of one token, a tokenizer without a mask: the other views are still to be had
        return {"notes": (str(error),)}
    by_token = task.unit == "nats per token"
    measure: Callable[[], tuple[np.ndarray, Any]] = task.per_token if by_token else task.per_text
    rows, intact = list[TextLoss](), np.zeros(0)
    for one in at.conditions:
        with at.off(one):
            values, _ = measure()
        intact = intact if len(intact) else values
        loss = mean_estimate(values)
        rows.append(TextLoss(
            condition=one.label, off=one.names, loss=loss, change=mean_estimate(values - intact),
            perplexity=float(np.exp(min(loss.value, 700))) if by_token else None,
        ))  # fmt: skip
    about = About(task=task.name, unit=task.unit, n_texts=1, n_tokens=len(intact) if by_token else 0)
    return {"losses": tuple(rows), "about": about}


def _dimensions(at: _Look) -> dict[str, Any]:
    reading, batch = at.run()
    ids, _ = reading.sides(batch)[at.stack.name]
    tokens, dims, rows = reading.words(ids[0].tolist()), at.listed, list[LargestValue]()

    def look(_: BoundStack, layer: int, states: "Tensor") -> None:
        seen = states[0].float().cpu().numpy()  # [token, dim]
        lengths = np.maximum(np.linalg.norm(seen, axis=-1), np.finfo(np.float32).tiny)
        for dim in dims:
            token = int(np.nan_to_num(np.abs(seen[:, dim])).argmax())
            value = float(seen[token, dim])
            rows.append(LargestValue(
                layer=layer_name(layer), dim=dim, size=abs(value), value=value, token=f"{token} {tokens[token]}",
                share=float(abs(value) / lengths[token]),
            ))  # fmt: skip

    with tapped(at.loaded.model, [at.stack], look):
        reading(batch)
    return {"largest": tuple(rows)}


def _attention(at: _Look) -> dict[str, Any]:
    try:
        check_eager(at.loaded, at.stack)
    except BadInput as error:
        return {"notes": (str(error),)}
    reading, batch = at.run()
    special = reading.sides(batch)[at.stack.name][1][0].cpu().numpy().astype(bool)
    n, rows = len(special), list[AttentionSink]()
    for one in at.conditions:

        def look(layer: int, weights: "Tensor", _: Any, label: str = one.label) -> None:
            mean = weights[0, :, :n, :n].float().mean(0).cpu().numpy()  # [query, key]
            on = mean[:, special].sum(1).mean()
            rows.append(AttentionSink(
                layer=layer_name(layer), condition=label, first=float(mean[:, 0].mean()), special=float(on)
            ))  # fmt: skip

        with at.off(one), tapped_attention(at.loaded, at.stack, look):
            reading(batch)
    return {"sinks": tuple(rows)}


def _anisotropy(at: _Look) -> dict[str, Any]:
    reading, batch = at.run()
    kept = np.flatnonzero(~reading.sides(batch)[at.stack.name][1][0].cpu().numpy().astype(bool))
    if len(kept) < 2:
        return {"notes": ("a mean cosine needs at least two tokens; write a longer text",)}
    chosen, rows = list(at.state.dims), list[TextCosine]()
    for one in at.conditions:

        def look(_: BoundStack, layer: int, states: "Tensor", label: str = one.label) -> None:
            units = unit(states[0].float().cpu().numpy()[kept])
            share = float(contributions(units)[chosen].sum()) if chosen else 0.0
            cosine = float(mean_cosine(units)[0])
            rows.append(TextCosine(layer=layer_name(layer), condition=label, cosine=cosine, share=share))

        with at.off(one), tapped(at.loaded.model, [at.stack], look):
            reading(batch)
    return {"cosines": tuple(rows)}


_MEASURES: dict[str, Callable[[_Look], dict[str, Any]]] = {
    "passage": _passage, "loss": _loss, "guesses": _guesses, "dimensions": _dimensions, "attention": _attention,
    "anisotropy": _anisotropy,
}  # fmt: skip
