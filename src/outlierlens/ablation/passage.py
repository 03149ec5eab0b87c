"""What a model says of one passage as it is and with dimensions off: rows of `ablate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from outlierlens.ablation.controls import Plan
from outlierlens.ablation.fill import KINDS, Filled, answers, exercise
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


def replies(study: Study, switch: Switch, passage: str, done: Sequence[Outcome]) -> Iterator[Reply]:
    """The passage filled in and continued: intact, with the median ordinary (or random) set off, with the chosen one off."""
    kinds = [[one for one in done if one.condition.family == kind] for kind in ("ordinary", "random")]
    others = sorted(kinds[0] or kinds[1], key=lambda one: study.change(one).value)
    typical = [("random", one.condition.plan) for one in others[len(others) // 2 :][:1]]
    plans: list[tuple[str, Plan]] = [("intact", {}), *typical, ("chosen", done[0].condition.plan)]
    work = exercise(switch.loaded, passage, seed=study.seed)
    conditions = ((label, dims_of(plan), switch.off(plan)) for label, plan in plans)
    for (label, plan), (words, said) in zip(plans, answers(switch.loaded, passage, work, conditions), strict=True):
        if words or said:
            yield Reply(
                off=label, dims=study.words(plan), filled=words.line if words else None, fill=words, plan=plan,
                begins=said.prompt if said else None, continued=said.text if said else None,
            )  # fmt: skip
