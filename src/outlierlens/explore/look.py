"""Check a state and measure its views, one at a time for all who ask: the page's logic, without gradio.

    explorer = open_explorer("mini-planted")
    explorer.listed("model")                           # dimensions, with layers and strength
    found = explorer.look(State(text="A film worth seeing.", dims=(8, 24)), ("loss",))

One model serves everybody, so everything that runs it holds one lock, and every ablation is undone before it is let go.
Results depend on the state alone and are kept for the next who asks the same.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.mode_names import check_mode
from outlierlens.ablation.modes import Switch, means_over
from outlierlens.ablation.switches import EditSettings, plan_dims
from outlierlens.architectures import BoundStack
from outlierlens.checkpoints.samples import SAMPLES, texts_for
from outlierlens.data.texts import read_texts
from outlierlens.data.token_texts import nothing_known, special_ids, unknown_id, unknown_note
from outlierlens.detection.scan.measure import scan_live
from outlierlens.detection.scan.result import Scan, StackScan
from outlierlens.errors import BadInput
from outlierlens.explore import inside, snippets
from outlierlens.explore.inside import LENGTH, Comparison, life
from outlierlens.explore.result import VIEWS, Explored, Listed, Off, State
from outlierlens.explore.snippets import MEAN_TEXTS
from outlierlens.models.forward import text_stacks
from outlierlens.models.hooks import EMBEDDINGS
from outlierlens.models.inputs import token_limit, tokenizer_of
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model, stream_width

LONGEST = 2000  # letters of a text: several times what is read, and short enough for a link
MOST = 64  # dimensions that are off at once
STRONGEST = 3  # listed where the rule finds none
KEPT = 96  # results of views that are kept

_OWN = {
    "guesses": ("blank",),
    "dimension": ("dimension",),
    "life": ("dimension",),
    "vectors": ("vector_layer", "vector_token"),
    "attention": ("attention_layer", "head"),
}
_SHARED = ("text", "dims", "first", "last", "mode", "factor", "left", "stack", "seed")


@dataclass(frozen=True)
class _Settled:
    """A state with its defaults filled in, and what follows from it."""

    state: State
    comparison: Comparison
    notes: tuple[str, ...]


def open_explorer(model: str, options: LoadOptions | None = None) -> "Explorer":
    """Load `model` with attention that can be looked at, scan its weights, and make it ready to be explored."""
    options = options or LoadOptions()
    return Explorer(load_model(model, replace(options, attention="eager")), options)


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
        self.scan: Scan = scan_live(loaded)
        self.fingerprint = fingerprint(loaded.model)
        self._lock = threading.RLock()
        self._means: dict[str, np.ndarray] = {}
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def stack(self, name: str = "") -> BoundStack:
        """The stream of that name, or the first that reads text; raises BadInput with the choices."""
        names = [stack.name for stack in self.stacks]
        if name and name not in names:
            raise BadInput(f"there is no stream {name[:40]!r}; {self.loaded.name} has {', '.join(names)}")
        return self.stacks[names.index(name) if name else 0]

    def width(self, name: str = "") -> int:
        """Dimensions of a stream."""
        return stream_width(self.loaded.model, self.stack(name))

    def _scanned(self, name: str) -> StackScan:
        return next(one for one in self.scan.stacks if one.stack == name)

    def listed(self, name: str = "") -> tuple[Listed, ...]:
        """The dimensions that the rule found in a stream, of smallest p first; the strongest by |z| where it found none."""
        scanned = self._scanned(self.stack(name).name)
        found = [outlier.dim for outlier in scanned.outliers]
        return tuple(_listed(scanned, dim, found=bool(found)) for dim in found or scanned.strongest_dims(STRONGEST))

    def verdict(self, name: str = "") -> str:
        """One sentence: how many outlier dimensions the weights show, or that there are none."""
        scanned, rule = self._scanned(self.stack(name).name), self.scan.rule
        needed = f"at least {rule.needed(scanned.n_layers)} of {scanned.counted}"
        where = f"past {scanned.threshold.sigmas} in {needed} ({scanned.measure})"
        if scanned.outliers:
            n = len(scanned.outliers)
            return f"{n} outlier dimension{'s' if n > 1 else ''} of {scanned.hidden_size}: {where}."
        listed = f" Listed are the {STRONGEST} strongest." if scanned.strongest_dims(STRONGEST) else ""
        return f"No outlier dimension: none of {scanned.hidden_size} is {where}.{listed}"

    def strongest(self, name: str = "") -> int:
        """The listed dimension of largest |z|; 0 in a stream that has none to list."""
        return max(self.listed(name), key=lambda one: abs(one.strongest), default=Listed(0, False, (), 0, 0.0)).dim

    def start(self) -> State:
        """The state of a new page: a text, and every dimension on."""
        source = texts_for(self.loaded.name) if self.loaded.name in SAMPLES else "excerpt"
        return State(text=_first_words(read_texts(source).passage))

    def standing_out(self) -> tuple[int, ...]:
        """The dimensions that the rule found, in order; the one strongest where it found none."""
        found = sorted(one.dim for one in self.listed() if one.found)[:MOST]
        return tuple(found) or tuple(one.dim for one in self.listed()[:1])

    def look(self, state: State, views: Sequence[str] = VIEWS) -> Explored:
        """Measure `views` of `state`.

        Raises:
            BadInput: no text or too long a one, an unknown dimension, layer, mode, head, token or view.
        """
        unknown = [view for view in views if view not in VIEWS]
        if unknown:
            raise BadInput(f"unknown view {unknown[0]!r}; views are {', '.join(VIEWS)}")
        with self._lock:
            settled = self._settle(state)
            measured = {view: self._view(view, settled) for view in views}
        comparison = settled.comparison
        command = snippets.command(self.loaded.name, self.options, settled.state, views)
        return Explored(
            provenance=self.loaded.provenance(command=command, seed=state.seed, digest=self.fingerprint),
            state=settled.state,
            read=comparison.text,
            conditions=comparison.conditions,
            notes=settled.notes,
            **measured,
        )

    def random_dims(self, state: State, n: int = 1) -> tuple[int, ...]:
        """`n` dimensions that are neither listed nor chosen, drawn with the state's seed."""
        avoid = {one.dim for one in self.listed(state.stack)} | set(state.dims)
        return random_sets(self.width(state.stack), n, avoid=avoid, n=1, seed=state.seed)[0]

    def settled(self, state: State) -> State:
        """`state` with its defaults filled in; raises BadInput as `look`."""
        with self._lock:
            return self._settle(state).state

    def _settle(self, state: State) -> _Settled:
        check_mode(state.mode, state.factor, False)
        stack = self.stack(state.stack)
        state = replace(state, stack=stack.name, last=stack.n_layers - 1 if state.last is None else state.last)
        if self.strongest(stack.name) in state.dims:  # nothing is left of what is off
            state = replace(state, left=State.left)
        if state.mode != "scale":
            state = replace(state, factor=State.factor)
        last = stack.n_layers - 1
        assert state.last is not None
        if not 0 <= state.first <= state.last <= last:
            raise BadInput(
                f"layers {state.first} to {state.last} cannot be; {stack.name} has layers 0 to {last}, the lower one first"
            )
        if len(state.dims) > MOST:
            raise BadInput(f"{len(state.dims)} dimensions are chosen; this page switches off {MOST} at most")
        conditions = self._conditions(state, stack)
        text, notes = self._cut(state.text)
        state = replace(
            state,
            vector_layer=_layer(state.vector_layer or str(last), stack),
            attention_layer=last if state.attention_layer is None else state.attention_layer,
        )
        if not 0 <= (state.attention_layer or 0) <= last:
            raise BadInput(f"layer {state.attention_layer} does not exist; {stack.name} has layers 0 to {last}")
        if state.dimension is None:
            state = replace(state, dimension=self.strongest(stack.name))
        plan_dims(stack, self.width(stack.name), (state.dimension or 0,), _layers(state))
        named = tuple(dict.fromkeys((*state.dims, *(one.dim for one in self.listed(stack.name)))))[:MOST]
        settings = EditSettings(factor=state.factor)
        if state.mode == "mean":
            settings = EditSettings(means=self._mean(stack))
        ablation = Switch(self.loaded, stack, state.mode, settings=settings)  # type: ignore[arg-type]
        ablation.check(conditions[-1].plan)
        turning = Switch(self.loaded, stack, "scale", settings=EditSettings(factor=state.left))
        return _Settled(state, Comparison(self.loaded, ablation, turning, text, conditions, named), notes)

    def _conditions(self, state: State, stack: BoundStack) -> tuple[Off, ...]:
        intact = Off("intact", (), ())
        turned = () if state.left == State.left else (self.strongest(stack.name),)
        if not (state.dims or turned):
            return (intact,)
        layers = _layers(state)
        plan_dims(stack, self.width(stack.name), state.dims + turned, layers)
        n = len(state.dims)
        drawn = self.random_dims(state, n + len(turned))
        random = Off("random", drawn[:n], layers, drawn[n:], state.left)
        return (intact, random, Off("chosen", state.dims, layers, turned, state.left))

    def _cut(self, text: str) -> tuple[str, tuple[str, ...]]:
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
        note = unknown_note(ordinary.count(unknown), len(ordinary))
        notes = (note,) if note else ()
        if len(ids) <= limit:
            return text, notes
        if tokenizer.is_fast:
            offsets = tokenizer(text, truncation=True, max_length=limit, return_offsets_mapping=True)["offset_mapping"]
            cut = text[: max(end for _, end in offsets)]
        else:
            kept = tokenizer(text, truncation=True, max_length=limit)["input_ids"]
            cut = tokenizer.decode(kept, skip_special_tokens=True)
        return cut, (
            *notes,
            f"the text has {len(ids):,} tokens; the first {limit} are read",
        )

    def _mean(self, stack: BoundStack) -> np.ndarray:
        if stack.name not in self._means:
            texts = read_texts("excerpt", limit=MEAN_TEXTS)
            self._means[stack.name] = means_over(self.loaded, stack, texts, length=LENGTH, batch_size=MEAN_TEXTS)
        return self._means[stack.name]

    def _view(self, view: str, settled: _Settled) -> Any:
        """What is kept of this view, or is measured now."""
        state, comparison = settled.state, settled.comparison
        key = (view, *(getattr(state, name) for name in (*_SHARED, *_OWN.get(view, ()))))
        if key not in self._kept:
            self._kept[key] = _measure(view, state, comparison)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _measure(view: str, state: State, comparison: Comparison) -> Any:
    at = EMBEDDINGS if state.vector_layer == "embeddings" else int(state.vector_layer)
    measures: dict[str, Callable[[], Any]] = {
        "passage": lambda: inside.passage(comparison),
        "loss": lambda: inside.loss(comparison),
        "guesses": lambda: inside.guesses(comparison, state.blank),
        "dimension": lambda: inside.dimension(comparison, state.dimension or 0, _layers(state)),
        "vectors": lambda: inside.vectors(comparison, at, state.vector_token),
        "attention": lambda: inside.attention(comparison, state.attention_layer or 0, state.head),
        "anisotropy": lambda: inside.anisotropy(comparison),
        "life": lambda: life(comparison, state.dimension or 0),
    }
    return measures[view]()


def _layers(state: State) -> tuple[int, ...]:
    return tuple(range(state.first, (state.last or 0) + 1))


def _layer(name: str, stack: BoundStack) -> str:
    if name != "embeddings" and not (name.isascii() and name.isdecimal() and int(name[:9]) < stack.n_layers):
        raise BadInput(f"layer {name[:40]!r} does not exist; there are embeddings and 0 to {stack.n_layers - 1}")
    return name if name == "embeddings" else str(int(name))


def _listed(scanned: StackScan, dim: int, *, found: bool) -> Listed:
    column = scanned.map_dims.index(dim)
    z = scanned.z_scale[:, column]
    past = scanned.threshold.passes(z)
    if scanned.z_bias.size:
        bias = scanned.z_bias[:, column]
        past |= scanned.threshold.passes(bias)
        z = np.concatenate([z, bias])
    layers = tuple(np.flatnonzero(past).tolist())
    return Listed(dim, found, layers, scanned.n_layers, float(z[np.abs(z).argmax()]))


def _first_words(text: str) -> str:
    """The sentences of `text` up to about 300 letters, whole ones."""
    cut = text[:300]
    end = max(cut.rfind(". "), cut.rfind("! "), cut.rfind("? "))
    return text if len(text) <= 300 else cut[: end + 1] if end > 60 else cut.rsplit(" ", 1)[0]
