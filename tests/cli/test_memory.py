"""Where memory runs out, a command goes on with half the texts per forward pass."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch

from outlierlens.cli.experiment import fitting
from outlierlens.options import Flat
from outlierlens.session import Session
from outlierlens.tasks.base import TaskOptions
from outlierlens.vectors.options import VectorReading


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options with a number of texts per forward pass, two levels down."""

    task: Annotated[TaskOptions, Flat("max_length")] = TaskOptions(max_length=99, batch_size=12)
    """How texts become numbers."""


def session(*, loaded: bool = True) -> tuple[Session, list[str]]:
    told: list[str] = []
    made = Session(notice=told.append, vectors=VectorReading(batch_size=5))
    if loaded:
        vars(made)["loaded"] = object()
    return made, told


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_halves_until_it_fits(error: Exception) -> None:
    made, told = session()

    def run(session: Session, options: Asked) -> tuple[int, int, int]:
        if options.task.batch_size > 3:
            raise error
        return options.task.batch_size, session.vectors.batch_size, options.task.max_length

    assert fitting(run, made, Asked()) == (3, 1, 99)
    assert told == [
        "memory ran out at 12 texts per forward pass; going on with 6",
        "memory ran out at 6 texts per forward pass; going on with 3",
    ]


@pytest.mark.parametrize(
    ("error", "loaded", "calls"),
    [(MemoryError(), True, 4), (MemoryError(), False, 1), (RuntimeError("shapes differ"), True, 1)],
)
def test_what_half_cannot_help_is_raised(error: Exception, loaded: bool, calls: int) -> None:
    made, told = session(loaded=loaded)
    seen: list[Any] = []

    def run(session: Session, options: Asked) -> None:
        seen.append(options)
        raise error

    with pytest.raises(type(error)):
        fitting(run, made, Asked())
    assert len(seen) == calls
    assert len(told) == calls - 1
