"""How long a measurement takes: figured by hand on a clock that only the task moves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlierlens.ablation.controls import Extent
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.data.texts import Texts
from outlierlens.models.load import LoadedModel
from outlierlens.tasks import choice as forecasts
from outlierlens.tasks.choice import forecast

NAME = "mini-planted"


@dataclass
class Feed:
    slots: Sequence[int]
    n_tokens: int = 0


class Clock:
    """Half a second per text; eight texts, the last four of which are three times as long."""

    loaded = LoadedModel("clock", torch.nn.Identity(), None, "none", [])
    n_texts = 8
    lengths = np.array([10] * 4 + [30] * 4)
    weights = np.ones(8)
    now = 0.0

    def feeds(self, texts: Sequence[int], tokens: int | None = None) -> Iterator[Feed]:
        yield Feed(list(texts))

    def sums(self, feed: Feed) -> torch.Tensor:
        self.now += 0.5 * len(feed.slots)
        return torch.zeros(len(feed.slots))

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.now += 3.0
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Clock()
    monkeypatch.setattr(forecasts.time, "perf_counter", lambda: made.now)
    return made


def test_four_texts_are_timed_and_the_rest_goes_by_length(clock: Any) -> None:
    # four texts of 40 tokens take 2 s; all 160 tokens 8 s
    keeps = "an interrupted run keeps nothing (no file for rows)"
    assert forecast(clock, 5) == f"8 texts, read 5 times: about 40 s; {keeps}"
    assert forecast(clock, 5, share=2, inputs="images") == f"8 images, read 10 times: about 80 s; {keeps}"
    assert (
        forecast(clock, 5, rows=Path("r.jsonl"))
        == "8 texts, read 5 times: about 40 s; r.jsonl keeps finished measurements"
    )
    assert forecast(clock, 5, most=True).startswith("8 texts, read at most 5 times: at most 40 s")
    # entering takes 3 s for each measurement, however often it reads
    assert forecast(clock, 4, share=2, inside=clock.entered).startswith("8 texts, read 8 times: about 76 s")
    assert forecast(clock, 5, inside=clock.entered).startswith("8 texts, read 5 times: about 55 s")


def test_a_given_number_stands() -> None:
    assert Extent().n_sets == (19, 5)
    assert Extent(n_random=3, n_matched=0).n_sets == (3, 0)


def n_read_of(line: str) -> int:
    return int(line.split("read ")[1].split(" times", maxsplit=1)[0])


def test_ablate_says_it_before_the_work(loaded: LoadedModel, reviews: Texts, tmp_path: Path) -> None:
    lines: list[str] = []
    telling, options = replace(loaded, notice=lines.append), AblateOptions(n_random=2, n_matched=0)
    ablate(telling, reviews.first(4), [8], options)
    rows = tmp_path / "rows.jsonl"
    ablate(telling, reviews.first(4), [8], options, rows=rows)
    ablate(telling, reviews.first(4), [8], replace(options, n_random=3), rows=rows)
    ablate(telling, reviews.first(4), [8], options, rows=rows)  # all is there
    first, second, third, last = lines
    assert last == f"{rows}: every measurement is taken from there"
    n_controls = 4  # two random sets, and two ordinary ones, or fewer where they are the same
    assert first.startswith("mini-planted: 4 texts, read ")
    n_read = n_read_of(first)
    assert 3 <= n_read <= 1 + n_controls
    assert first.endswith("an interrupted run keeps nothing (no file for rows)")
    assert f"read {n_read} times" in second
    assert second.endswith(f"{rows} keeps finished measurements")
    assert n_read_of(third) < n_read
