"""What came of a pre-training run, and of several side by side: plain data, without torch.

outcome.worst.change                       # nats per token that the worst single dimension costs
print(outcomes.rows())                     # one row a recipe: mean over its seeds, and their range
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.results import Provenance, result, table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Change:
    """Change of the loss, nats per masked token, with a 95 % interval over texts; `dims` that are off (none for INT8)."""

    change: float
    low: float
    high: float
    dims: tuple[int, ...] = ()


@result
@dataclass(frozen=True)
class Outcome:
    """One trained model, measured.

    Attributes:
        recipe, about, seed, steps: of the run; `toml` is the whole recipe.
        tokens: that training read, special ones and padding included.
        held_out_loss: at the last evaluation, on the recipe's own held-out rows and masked share, nats per token.
        text_loss: on plain held-out texts with 15 % masked, the same for every recipe of the same text, nats per token.
        text: what those texts are; text_digest: SHA-256 over them.
        both: dimensions past 3 sigma in half of the layers, in scale and in bias (Kovaleva et al. 2021).
        scale_alone, bias_alone: dimensions past 3 sigma in half of the layers of one of them.
        largest_z: largest mean over layers of |z| in the scale.
        kurtosis: largest over blocks of He et al.'s (2024) kurtosis over dimensions, on those texts.
        inf_norm: largest |h| of any block's output on them.
        off: what weights name (`both`, or else the two others together) switched off; None where they name none.
        random_median, random_high: median and 95th percentile of as many random sets of that size; None without `off`.
        worst: the single dimension that costs most; dim_median, dim_high: median and 95th percentile of all dimensions.
        int8: weights and inputs of the blocks' linears rounded per tensor to 8 bits.
    """

    provenance: Provenance
    recipe: str
    about: str
    toml: str
    seed: int
    steps: int
    n_parameters: int
    tokens: int
    held_out_loss: float
    text_loss: float
    text: str
    text_digest: str
    both: tuple[int, ...]
    scale_alone: tuple[int, ...]
    bias_alone: tuple[int, ...]
    largest_z: float
    kurtosis: float
    inf_norm: float
    off: Change | None
    random_median: float | None
    random_high: float | None
    worst: Change
    dim_median: float
    dim_high: float
    int8: Change
    notes: tuple[str, ...] = ()


@result
@dataclass(frozen=True)
class Outcomes:
    """Several runs, in the order given."""

    runs: tuple[Outcome, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row a recipe (and number of steps): means over its seeds, "low" and "high" over them."""
        return list(outcome_rows(self.runs))

    def to_pandas(self) -> "pandas.DataFrame":
        """`rows` as a data frame."""
        return table(self.rows())

    def _repr_html_(self) -> str:
        from outlierlens.show import html_table

        return html_table(self.rows(), caption="pre-training runs")


MEASURES = {
    "text_loss": lambda run: run.text_loss,
    "n_found": lambda run: float(len(run.both)),
    "n_one_sided": lambda run: float(len(set(run.scale_alone) | set(run.bias_alone))),
    "largest_z": lambda run: run.largest_z,
    "kurtosis": lambda run: run.kurtosis,
    "inf_norm": lambda run: run.inf_norm,
    "found_off": lambda run: run.off.change if run.off else None,
    "worst": lambda run: run.worst.change,
    "dim_median": lambda run: run.dim_median,
    "int8": lambda run: run.int8.change,
}


def outcome_rows(runs: Iterable[Outcome]) -> Iterable[dict[str, Any]]:
    """A row for each recipe and number of steps: mean, least and largest of every measure over its seeds."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for run in runs:
        groups.setdefault((run.recipe, run.steps), []).append(run)
    for (recipe, steps), members in groups.items():
        row: dict[str, Any] = {"recipe": recipe, "steps": steps, "seeds": len({run.seed for run in members})}
        for name, measure in MEASURES.items():
            values = [value for value in map(measure, members) if value is not None]
            row[name] = sum(values) / len(values) if values else None
            row[f"{name}_low"] = min(values, default=None)
            row[f"{name}_high"] = max(values, default=None)
        yield row
