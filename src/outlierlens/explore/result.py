"""What the live page shows: the state somebody chose, and each view intact, with random and with chosen dimensions off.

state = State(text="A film worth seeing.", dims=(8, 24))
State.from_query(state.query()) == state       # a permalink restores it
found.loss.rows[2].change                      # of an `Explored`, as `explore.look` makes them

Plain data, without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
from annotated_types import Ge, Le

from outlierlens.ablation.fill import Blank, Continuation, Filled
from outlierlens.errors import BadInput
from outlierlens.options import check, options_of
from outlierlens.results.document import Provenance, Result

LABELS = ("intact", "random", "chosen")
VIEWS = ("passage", "loss", "guesses", "dimension", "vectors", "attention", "anisotropy", "life")
KINDS = ("embedding", "head", "neuron", "bias", "norm bias", "norm mean")  # parts of an account, without what was there
_LONGEST = 10  # digits of a number in a link


@dataclass(frozen=True)
class State:
    """What is looked at: all that a permalink holds."""

    text: str = ""
    """As typed; a page reads its first tokens."""
    dims: tuple[int, ...] = ()
    """Off under "chosen"; none leaves the model intact."""
    first: Annotated[int, Ge(0)] = 0
    """The first layer they are off in."""
    last: Annotated[int | None, Ge(0)] = None
    """The last layer they are off in, itself included; None is the model's last."""
    mode: str = "weights"
    """weights, norms, zero, mean, scale, resample or writes."""
    factor: float = 0.5
    """Factor of mode scale."""
    left: Annotated[float, Ge(0), Le(1)] = 1.0
    """What is left of the strongest dimension, in [0, 1]: each block's output there times this."""
    stack: str = ""
    """Which stream, where there are several: encoder, decoder."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random control."""
    blank: Annotated[int, Ge(0)] = 0
    """Blank whose guesses are shown, from 0."""
    dimension: Annotated[int | None, Ge(0)] = None
    """The dimension of the panel about one. Default: the strongest."""
    vector_layer: str = ""
    """embeddings, 0, 1, …: vectors after it. Default: the last."""
    vector_token: Annotated[int | None, Ge(0)] = None
    """Token whose vector is shown. Default: the mean."""
    attention_layer: Annotated[int | None, Ge(0)] = None
    """Layer of the attention map. Default: the last."""
    head: Annotated[int, Ge(0)] = 0
    """Head of the attention map."""

    def __post_init__(self) -> None:
        check(self)

    def query(self) -> str:
        """The part of an address behind its "?", with what differs from a new page; "" where nothing does."""
        pairs = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                pairs[one.name] = ",".join(map(str, value)) if one.name == "dims" else str(value)
        return urlencode(pairs, errors="replace")

    @classmethod
    def from_query(cls, query: str | Mapping[str, str]) -> "State":
        """The state in a query string (or in its pairs); names that are no part of a state are passed over.

        Raises:
            BadInput: a value that cannot be read.
        """
        pairs = dict(parse_qsl(query, keep_blank_values=True)) if isinstance(query, str) else dict(query)
        read: dict[Any, Callable[[str, str], Any]] = {
            str: lambda _, text: text,
            float: _number,
            tuple[int, ...]: lambda _, text: parse_dims(text),
        }
        options = (one for one in options_of(cls) if one.name in pairs)
        return cls(**{one.name: read.get(one.kind, _whole)(one.name, pairs[one.name]) for one in options})


def parse_dims(text: str) -> tuple[int, ...]:
    """ "308, 381" -> (308, 381), in the order given and each once; "" -> ().

    Raises:
        BadInput: anything but numbers and commas.
    """
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    parts = [part for part in parts if part]
    if not all(part.isascii() and part.isdecimal() and len(part) < _LONGEST for part in parts):
        raise BadInput(f"cannot read dimensions {text[:60]!r}; write whole numbers such as 308, 381")
    return tuple(dict.fromkeys(map(int, parts)))


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < _LONGEST):
        raise BadInput(f"{name} is {text[:60]!r} in this link; it must be a whole number from 0 on")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BadInput(f"{name} is {text[:60]!r} in this link; it must be a number")
    return value


@dataclass(frozen=True)
class Listed:
    """A dimension that the page lists: how far it stands out in the weights.

    Attributes:
        found: the rule found it; otherwise it is among the strongest of a stream where the rule found none.
        layers: layers in which scale or bias is past the threshold. strongest: the largest |z|, with its sign.
    """

    dim: int
    found: bool
    layers: tuple[int, ...]
    n_layers: int
    strongest: float

    @property
    def label(self) -> str:
        """ "308 · past 3 sigma in layers 0–11 · |z| up to 23.4"; for a box to tick."""
        where = f"layers {spans(self.layers)} of {self.n_layers}" if self.layers else "no layer stands out"
        return f"{self.dim} · {where} · |z| up to {abs(self.strongest):.1f}"


def spans(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "0–2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts)


@dataclass(frozen=True)
class Off:
    """A condition: its label ("intact", "random", "chosen", "alone") and what is off in which layers.

    Attributes:
        turned: the dimension that is turned down, if any; `left` of its values is left, in [0, 1].
    """

    label: str
    dims: tuple[int, ...]
    layers: tuple[int, ...]
    turned: tuple[int, ...] = ()
    left: float = 1.0

    @property
    def plan(self) -> dict[int, tuple[int, ...]]:
        """{layer: dimensions off}."""
        return dict.fromkeys(self.layers, self.dims) if self.dims else {}

    @property
    def turned_plan(self) -> dict[int, tuple[int, ...]]:
        """{layer: dimensions turned down}."""
        return dict.fromkeys(self.layers, self.turned) if self.turned else {}

    @property
    def changed(self) -> tuple[int, ...]:
        """Dimensions that are off or turned down."""
        return self.dims + self.turned

    @property
    def names(self) -> tuple[str, ...]:
        """("24", "8 × 0.4"): what is off, and what is left of the one that is turned down."""
        return (*map(str, self.dims), *(f"{dim} × {self.left:g}" for dim in self.turned))


@dataclass(frozen=True)
class Passage:
    """The text filled in (and, by decoders, continued) under each condition; `missing` says why it is not."""

    fills: tuple[Filled, ...] = ()
    continuations: tuple[Continuation, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class LossRow:
    """Mean over predicted tokens with a 95 % interval over them, and the change from the intact model, paired by token."""

    label: str
    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float


@dataclass(frozen=True)
class Loss:
    """How well the model predicts the text, or how far its outputs move where it predicts no words.

    Attributes:
        task: "masked loss", "causal loss" or "output change". unit: of the values.
        n_tokens: predictions that the mean is over.
    """

    task: str = ""
    unit: str = ""
    n_tokens: int = 0
    rows: tuple[LossRow, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Guess:
    """A word the model may put into a blank, and its probability in [0, 1]."""

    word: str
    probability: float


@dataclass(frozen=True)
class GuessList:
    """The likeliest guesses under one condition, the likeliest first."""

    label: str
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class Guesses:
    """The likeliest words of one blank; `number` counts blanks from 0, `original` is the text's own word."""

    number: int = 0
    original: str = ""
    lists: tuple[GuessList, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class OneDimension:
    """One dimension by itself: where it fires in the intact model, and what breaks when it alone is off.

    Attributes:
        layers: "embeddings", "0", …. tokens: as the vocabulary writes them.
        values: [layer, token], its value after each layer. shares: [layer, token], |value| / length of the vector, in [0, 1].
        loss: with the conditions "intact" and "alone".
        words: the words of the text that the model says otherwise then, of `n_words` that it was asked for.
    """

    dim: int = 0
    layers: Annotated[tuple[str, ...], "layer"] = ()
    tokens: Annotated[tuple[str, ...], "token"] = ()
    values: Annotated[np.ndarray, "layer token, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    shares: Annotated[np.ndarray, "layer token, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    loss: Loss = Loss()
    words: tuple[Blank, ...] = ()
    n_words: int = 0
    missing: str = ""

    @property
    def peak(self) -> tuple[int, int]:
        """(layer, token), as places in `layers` and `tokens`, of the largest |value|."""
        layer, token = np.unravel_index(np.nan_to_num(np.abs(self.values)).argmax(), self.values.shape)
        return int(layer), int(token)


@dataclass(frozen=True)
class Vectors:
    """Token vectors after one layer, with the dimensions in question marked.

    Attributes:
        layer: "embeddings" or the block's number. tokens: as the vocabulary writes them.
        drawn: "mean of all tokens", or the token whose vector it is.
        values: [condition, dim], that vector.
        named: the dimensions marked: those chosen, then those the page lists. marked: [condition, token, named].
        lengths: [condition, token], L2 norms.
    """

    layer: str = ""
    tokens: Annotated[tuple[str, ...], "token"] = ()
    drawn: str = ""
    values: Annotated[np.ndarray, "condition dim, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    named: Annotated[tuple[int, ...], "named"] = ()
    marked: Annotated[np.ndarray, "condition token named, or empty"] = field(
        default_factory=lambda: np.zeros((0, 0, 0))
    )
    lengths: Annotated[np.ndarray, "condition token, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    missing: str = ""


@dataclass(frozen=True)
class AttentionMaps:
    """One head's attention on the text.

    Attributes:
        weights: [condition, query, key]. special: whether each token is special to the tokenizer.
        n_heads: heads of the layer.
    """

    layer: int = 0
    head: int = 0
    n_heads: int = 0
    tokens: Annotated[tuple[str, ...], "token"] = ()
    special: Annotated[tuple[bool, ...], "token"] = ()
    weights: Annotated[np.ndarray, "condition token token, or empty"] = field(
        default_factory=lambda: np.zeros((0, 0, 0))
    )
    missing: str = ""


@dataclass(frozen=True)
class Anisotropy:
    """Mean cosine of all pairs of the text's tokens without special ones, by layer.

    Attributes:
        layers: "embeddings", "0", …. cosine: [condition, layer], in [−1, 1].
        share: [condition, layer], what the chosen dimensions add to it.
        n_tokens: tokens that are paired.
    """

    layers: Annotated[tuple[str, ...], "layer"] = ()
    cosine: Annotated[np.ndarray, "condition layer, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    share: Annotated[np.ndarray, "condition layer, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    n_tokens: int = 0
    missing: str = ""


@dataclass(frozen=True)
class Life:
    """One dimension in the intact model: its value by layer and token, and what each layer's parts add at one token.

    Attributes:
        layers: "embeddings", "0", …. values: [layer, token]. at: the token where it is largest.
        added: [layer, kind] at that token, the kinds of `KINDS`.
    """

    dim: int = 0
    layers: Annotated[tuple[str, ...], "layer"] = ()
    tokens: Annotated[tuple[str, ...], "token"] = ()
    values: Annotated[np.ndarray, "layer token, or empty"] = field(default_factory=lambda: np.zeros((0, 0)))
    at: int = 0
    added: Annotated[np.ndarray, "layer 6, or empty"] = field(default_factory=lambda: np.zeros((0, 6)))
    missing: str = ""


@dataclass(frozen=True)
class Explored(Result):
    """One state of the live page, measured; views that were not asked for are None.

    Attributes:
        state: with its defaults filled in. read: the part of the text that is read.
        conditions: intact and, where dimensions are chosen, random and chosen.
        notes: what a reader should know.
    """

    provenance: Provenance
    state: State
    read: str
    conditions: Annotated[tuple[Off, ...], "condition"]
    notes: tuple[str, ...] = ()
    passage: Passage | None = None
    loss: Loss | None = None
    guesses: Guesses | None = None
    dimension: OneDimension | None = None
    vectors: Vectors | None = None
    attention: AttentionMaps | None = None
    anisotropy: Anisotropy | None = None
    life: Life | None = None

    def records(self) -> list[dict[str, Any]]:
        """One row per condition: what is off where and, where it was asked for, the loss."""
        losses = {row.label: vars(row) for row in self.loss.rows} if self.loss else {}
        return [
            {"label": one.label, "dims": ", ".join(one.names), "layers": spans(one.layers)} | losses.get(one.label, {})
            for one in self.conditions
        ]
