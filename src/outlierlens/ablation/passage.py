"""What a model says of one passage as it is and with dimensions off: rows of `ablate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.fill import KINDS, Filled, continuation, exercise, fill, filled
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.study import Outcome, Study, dims_of
from outlierlens.results.rows import Quiet, Row


@dataclass(frozen=True, kw_only=True)
class Reply(Row):
    """A passage under one condition: filled in, and of causal models continued."""

    note = f"In brackets what the model fills in; where that is not the intact model's word: {KINDS}."
    off: str
    """condition"""
    dims: str
    """off"""
    filled: Annotated[str | None, Quiet]
    fill: Filled | None
    """passage"""
    begins: str | None
    continued: str | None
    plan: Annotated[Plan, Quiet]


def replies(
    switch: Switch, passage: str, conditions: Sequence[tuple[str, str, Plan]], *, seed: int = 0
) -> Iterator[Reply]:
    """The passage filled in and continued under each of `conditions`, the intact model first: (label, dimensions, plan)."""
    loaded, blanks, first = switch.loaded, exercise(switch.loaded, passage, seed=seed), None
    for label, dims, plan in conditions:
        with switch.off(plan):
            now = fill(loaded, blanks) if blanks else None
            said = continuation(loaded, passage)
        first = first or now
        words = (
            filled(loaded, blanks, now, first, label=label, dims=dims_of(plan)) if blanks and now and first else None
        )
        if words or said:
            begins, continued = said or (None, None)
            yield Reply(
                off=label, dims=dims, filled=words.line if words else None, begins=begins, continued=continued,
                fill=words, plan=plan,
            )  # fmt: skip


def typical(study: Study, done: Sequence[Outcome]) -> list[tuple[str, str, Plan]]:
    """Conditions of `replies`: intact, the median ordinary (or random) set off, the chosen one off."""
    kinds = [[one for one in done if one.condition.family == kind] for kind in ("ordinary", "random")]
    others = sorted(kinds[0] or kinds[1], key=lambda one: study.change(one).value)
    found: list[tuple[str, Plan]] = [("intact", {})]
    found += [("random", one.condition.plan) for one in others[len(others) // 2 :][:1]]
    return [(label, study.words(plan), plan) for label, plan in (*found, ("chosen", done[0].condition.plan))]
