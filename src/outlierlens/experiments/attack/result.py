"""How much damage few edits of single values can do, and which of them a fingerprint sees: plain data, without torch.

found.kind("sign flip").full.times          # loss with the whole budget spent, as a multiple of the intact one
found.kind("sign flip").smallest            # the fewest edits that multiply the loss by `factor`; None: none do
found.caught, found.n_edits                 # edits of sensitive values that `verify` finds, one by one
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.results.document import Provenance, Result

KINDS = ("zero", "swap", "sign flip", "exponent flip")


@dataclass(frozen=True)
class Edit:
    """One value that is changed.

    Attributes:
        tensor, index: which. dim: the stream's dimension that it belongs to; None where it belongs to none.
        before, after: its value, exactly as the model holds it.
        bit: of an exponent flip: the bit of the stored number, 0 the lowest; None else.
        move: edits of one move share a number: a swap changes two values, every other kind one.
        caught: whether `verify` finds this edit (both of a swap together) when nothing else is changed; None: not asked.
        caught_deep: the same of `verify --deep`.
    """

    tensor: str
    index: tuple[int, ...]
    dim: int | None
    before: float
    after: float
    bit: int | None
    move: int
    caught: bool | None = None
    caught_deep: bool | None = None


@dataclass(frozen=True)
class Point:
    """What a number of edits does to the texts that the search never saw.

    Attributes:
        budget: values that may be changed. n_edits: that are changed, at most as many.
        value: of the task. change: value − intact; low, high: its 95 % interval, paired by text.
        times: value / intact of a loss; NaN for how far vectors move.
        searched: the value on the texts that the edits were chosen by.
        edits: what is changed.
    """

    budget: int
    n_edits: int
    value: float
    change: float
    low: float
    high: float
    times: float
    searched: float
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Control:
    """Random edits of the same kind and number.

    Attributes:
        among: "sensitive" (values that a fingerprint holds) or "anywhere" (any value of the model).
        changes: what each draw changes. n_edits: values that each of them changes, at most.
        p: rank p-value of the attack with its whole budget, (1 + #{draw >= attack}) / (1 + n); None where the loss is no
            number any more.
    """

    among: str
    changes: tuple[float, ...]
    n_edits: int
    p: float | None

    @property
    def median(self) -> float:
        """Median change over draws."""
        return float(np.median(self.changes))


@dataclass(frozen=True)
class Attacked:
    """One kind of edit.

    Attributes:
        kind: "zero", "swap", "sign flip" or "exponent flip". among: "sensitive" or "anywhere".
        points: for each budget, the strongest edit that was found.
        smallest: the fewest edits, in the order of the search, that multiply the value by the attack's `factor`.
        controls: random edits of this kind.
        n_measured: edits that were tried on the search texts.
    """

    kind: str
    among: str
    points: tuple[Point, ...]
    smallest: Point | None
    controls: tuple[Control, ...] = ()
    n_measured: int = 0

    @property
    def full(self) -> Point:
        """With the whole budget."""
        return self.points[-1]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Those of the whole budget, which are held against a fingerprint."""
        return self.full.edits

    def control(self, among: str) -> Control | None:
        """Random edits of "sensitive" values or "anywhere"; None where there were none."""
        return next((one for one in self.controls if one.among == among), None)


@dataclass(frozen=True)
class Attack(Result):
    """The smallest edits with the largest damage, by kind, beside random ones.

    Attributes:
        data, data_digest: what was read. n_texts, n_tokens: that damage is measured on; n_search texts chose the edits.
        task, unit: what is measured: a loss in nats per token, or how far vectors move. intact: its value, intact.
        budget: values that may be changed. budgets: of the curve.
        factor: that `smallest` multiplies the loss by; 0 where the task is no loss, so nothing can be multiplied.
        dtype: in which the model is held, whose exponent bits are flipped.
        bound: an exponent flip may not go beyond this times the largest |value| of its tensor.
        n_sensitive: values that a fingerprint holds. n_values: of the model.
        dims: outlier dimensions that group the search.
        kinds: of sensitive values. anywhere: of any values, apart; empty where that was not asked for.
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    n_texts: int
    n_tokens: int
    n_search: int
    max_length: int
    intact: float
    budget: int
    budgets: tuple[int, ...]
    factor: float
    dtype: str
    bound: float
    n_sensitive: int
    n_values: int
    dims: tuple[int, ...]
    kinds: tuple[Attacked, ...]
    anywhere: tuple[Attacked, ...] = ()
    notes: tuple[str, ...] = ()

    def kind(self, name: str, among: str = "sensitive") -> Attacked:
        """One row: a kind of edit of sensitive values, or "anywhere"."""
        rows = self.kinds if among == "sensitive" else self.anywhere
        return next(one for one in rows if one.kind == name)

    @property
    def strongest(self) -> Attacked:
        """The kind that does most with the whole budget."""
        return max(self.kinds, key=lambda one: one.full.change)

    @property
    def n_edits(self) -> int:
        """Edits of sensitive values that `verify` was asked about."""
        return sum(edit.caught is not None for one in self.kinds for edit in one.edits)

    @property
    def caught(self) -> int:
        """Those of them that it found."""
        return sum(edit.caught is True for one in self.kinds for edit in one.edits)

    def detected(self, one: Attacked, *, deep: bool = False) -> tuple[int, int]:
        """(found, asked) edits of a row under `verify`, or under `verify --deep`."""
        seen = [edit.caught_deep if deep else edit.caught for edit in one.edits]
        return sum(value is True for value in seen), sum(value is not None for value in seen)

    @property
    def verdict(self) -> str:
        """One line: how few edits do how much, and how many of them are found."""
        one = self.strongest
        full = one.full
        if self.factor:
            does = f"{_edits(full.n_edits, one.kind)} of {self.n_values:,} values multiply the {self.task} by {full.times:.3g}"
            least = min((k.smallest.n_edits for k in self.kinds if k.smallest), default=None)
            enough = "no edit found is" if least is None else f"{least} {'edit is' if least == 1 else 'edits are'}"
            does += f"; {enough} enough for × {self.factor:g}"
        else:
            does = f"{_edits(full.n_edits, one.kind)} of {self.n_values:,} values move the {self.task} by {full.change:.3g}"
        return f"{does}; verify finds {self.caught} of {self.n_edits} edits of sensitive values"

    def records(self) -> list[dict[str, Any]]:
        """One flat row for each kind and budget."""
        return [
            {
                "among": one.among,
                "kind": one.kind,
                "budget": point.budget,
                "edits": point.n_edits,
                "value": point.value,
                "times": point.times,
                "change": point.change,
                "low": point.low,
                "high": point.high,
            }
            for one in (*self.kinds, *self.anywhere)
            for point in one.points
        ]


def _edits(n: int, kind: str) -> str:
    return f"{n} {kind} edit{'' if n == 1 else 's'}"
