"""What `replicate` measures: a paper's table of fine-tuned models with dimensions off. Plain data, no torch.

made = load("runs/bert-kovaleva/replication.json")
made.tables[0].outliers_row.lost                  # metric lost with all outliers off: 0.12 is 12 points
made.tables[0].outliers_row.times_random          # over the mean loss of random sets of the same size
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.means import interval_text, no_change, no_interval

RowKind = Literal["intact", "alone", "together", "at least 5 × random", "random", "matched"]
ENOUGH = 5.0  # times the mean loss of random sets, which Puccetti et al. (2022) ask for


@dataclass(frozen=True)
class Reference:
    """A published number for one checkpoint.

    Attributes:
        paper: "Puccetti et al. 2022". checkpoint: hub id. dims: that were off.
        task, metric: as in the task table; metric is "" where it was not seen stated.
        intact, off: metric in [−1, 1]; None where not known. lost: intact − off.
        source: where in the paper, as far as known.
        evidence: how the number was got at: "paper", "code" or "second-hand" (quoted by others, the passage not seen).
    """

    paper: str
    checkpoint: str
    dims: tuple[int, ...]
    task: str
    metric: str
    intact: float | None
    off: float | None
    lost: float
    source: str
    evidence: Literal["paper", "code", "second-hand"]


@dataclass(frozen=True)
class Row:
    """One line of the table: a set of dimensions off, or a family of control sets.

    Attributes:
        kind: "alone" is one outlier, "together" all of them; "random" and "matched" are families of sets.
        label: what is off, for reading.
        dims: dimensions off; of a family ().
        size: dimensions off in each layer.
        n_sets: sets measured: 1, or those of the family.
        window: layers they are off in: "all layers", "layer 3".
        value: the metric; of a family its median over sets. low, high: its 95 % interval for the intact model; NaN for
            all others, whose interval is that of what they lose.
        lost: intact metric − metric, of a family its median; low and high: 95 % interval, paired by example, (0, 0) where no
            example changed; of a family its 5th and 95th percentile.
        mean: of a family: mean of what is lost.
        times_random: lost / mean of the random sets of the same size and window; None where that mean is not positive.
        enough: whether that is at least 5 (Puccetti et al. 2022). Where random sets cost nothing on average a ratio says
            nothing, and it is whether the interval of `lost` lies above 0. None without random sets.
        p: rank p-value among them, (1 + #{random >= lost}) / (1 + n); of a dimension where all were swept, among all others.
        n_parameters: set to zero; share: of all parameters of the model.
        closeness: matched: median of the magnitudes over those wanted; 1 is a perfect match.
    """

    kind: RowKind
    label: str
    dims: tuple[int, ...]
    size: int
    n_sets: int
    window: str
    value: float
    low: float
    high: float
    lost: float
    lost_low: float
    lost_high: float
    mean: float | None = None
    times_random: float | None = None
    enough: bool | None = None
    p: float | None = None
    n_parameters: int = 0
    share: float = 0.0
    closeness: float | None = None
    reference: Reference | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the interval of what is lost reaches 0: a ratio then says little."""
        return not self.lost_low > 0

    @property
    def passes(self) -> str | None:
        """`enough` in words: "yes", "yes, in doubt", "no"; None without random sets."""
        if self.enough is None:
            return None
        return "no" if not self.enough else "yes, in doubt" if self.doubtful else "yes"


@dataclass(frozen=True)
class TaskTable:
    """One fine-tuned model on one task.

    Attributes:
        task, metric: "glue:rte", "accuracy". model: folder or name of the fine-tuned model. label: "rte seed-42".
        fingerprint: of its parameters.
        data, n_examples: what it was measured on.
        dims: the outliers, strongest first. named_by: how they were found, for reading.
        by_rule: whether the paper's rule named them; otherwise they were given, or there are none.
        n_parameters: of the whole model.
        rows: switched off in all layers. windows: in each single layer, where that was asked for; else empty.
        seconds: spent measuring.
        dtype: what the model's weights were in, "bfloat16".
    """

    task: str
    metric: str
    model: str
    label: str
    fingerprint: str
    data: str
    n_examples: int
    stack: str
    n_layers: int
    width: int
    n_parameters: int
    dims: tuple[int, ...]
    named_by: str
    by_rule: bool
    rows: tuple[Row, ...]
    windows: tuple[Row, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    dtype: str = ""

    @property
    def intact(self) -> Row:
        """The model as it is."""
        return next(row for row in self.rows if row.kind == "intact")

    @property
    def outliers_row(self) -> Row | None:
        """All outliers off (the only one where there is one); None where none is named."""
        alone = [row for row in self.rows if row.kind == "alone"]
        together = next((row for row in self.rows if row.kind == "together"), None)
        return together or (alone[0] if len(alone) == 1 else None)

    @property
    def tested(self) -> Row | None:
        """The row of all outliers, where random sets stand beside it."""
        row = self.outliers_row
        return row if row is not None and row.enough is not None else None

    def interval(self, row: Row, form: str = "+.1f") -> str:
        """The interval of what a set of dimensions loses in words, × 100."""
        return interval_text(100 * row.lost_low, 100 * row.lost_high, form, no_change(self.n_examples, "examples"))

    def family(self, kind: RowKind, size: int | None = None) -> Row | None:
        """The family of control sets of that kind, of as many dimensions as the outliers unless `size` is given."""
        if size is None and self.outliers_row is not None:
            size = self.outliers_row.size
        return next((row for row in self.rows if row.kind == kind and size in (None, row.size)), None)


def where_enough(tables: "Sequence[tuple[str, TaskTable]]") -> str:
    """In how many of named tables the outliers cost at least 5 times what random sets cost, and where that is in doubt.

    "2 of 3 (cola, rte; in rte the interval of the loss holds 0)"; tables without outliers or random sets do not count.
    """
    tested = [(name, row) for name, one in tables if (row := one.tested) is not None]
    enough = [(name, row) for name, row in tested if row.enough]
    said = ", ".join(name for name, _ in enough)
    known = [(name, row) for name, row in enough if math.isfinite(row.lost_low)]
    if doubtful := [name for name, row in known if row.doubtful]:
        said += f"; in {', '.join(doubtful)} the interval of the loss holds 0"
    of = dict(tables)
    for name in (name for name, row in enough if not math.isfinite(row.lost_low)):
        said += f"; {name} is not settled, for {no_interval(of[name].n_examples, 'examples', metric=of[name].metric)}"
    return f"{len(enough)} of {len(tested)}" + (f" ({said})" if said else "")


@dataclass(frozen=True)
class Replication(Result):
    """A paper's table for one model.

    Attributes:
        paper: "kovaleva-glue" or "puccetti-glue". base: the pre-trained model.
        settings: of the measuring, by name.
        tables: one a task and fine-tuned model.
    """

    provenance: Provenance
    paper: str
    base: str
    settings: dict[str, Any]
    tables: tuple[TaskTable, ...]
    notes: tuple[str, ...] = field(default=())

    def records(self) -> list[dict[str, Any]]:
        """One flat row per line of every table, windows of layers after the rest."""
        return [
            {
                "base": self.base,
                "task": one.task,
                "model": one.label,
                "metric": one.metric,
                "off": row.label,
                "kind": row.kind,
                "window": row.window,
                "dims": ",".join(map(str, row.dims)),
                "sets": row.n_sets,
                "value": row.value,
                "low": row.low,
                "high": row.high,
                "lost": row.lost,
                "lost_low": row.lost_low,
                "lost_high": row.lost_high,
                "mean_lost": row.mean,
                "times_random": row.times_random,
                "enough": row.enough,
                "p": row.p,
                "parameters": row.n_parameters,
                "share": row.share,
                "reference_lost": row.reference.lost if row.reference else None,
                "reference": f"{row.reference.paper} ({row.reference.evidence})" if row.reference else None,
            }
            for one in self.tables
            for row in (*one.rows, *one.windows)
        ]
