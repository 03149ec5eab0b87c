"""What came of pre-training runs, of one or of several side by side.

found.runs[0].worst.value                  # nats per token that the worst single dimension costs
found.recipes()                            # one row per recipe: mean over its seeds, and their range
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.results.finding import Finding
from outlierlens.results.rows import UNKNOWN, Draws, Estimate, More, Quiet, Row
from outlierlens.view.section import Change, Count, Rows, Spread

OUTCOME = "outcome.json"  # in a run folder
PAST = f"past {Rule().sigmas} in {Rule().share} of the layers"


@dataclass(frozen=True, kw_only=True)
class TrainedModel(Row):
    """One trained model, measured on plain held-out texts, the same for every recipe of the same text.

    Of an encoder 15 % of the tokens are masked; a decoder predicts every token.
    """

    note = (
        f"Found: dimensions {PAST}, in scale and bias or in one of them. Off and INT8: changes in nats per predicted token, "
        "with 95 % intervals over texts."
    )

    recipe: str
    about: Annotated[str, Quiet]
    toml: Annotated[str, Quiet]
    """the whole recipe"""
    seed: int
    steps: Annotated[int, Count]
    n_parameters: Annotated[int, Count, More]
    """parameters"""
    tokens: Annotated[int, Count, More]
    """tokens: that training read, special ones and padding included"""
    held_out_loss: Annotated[float, More]
    """held-out loss: at the last evaluation, on the recipe's own held-out rows and masked share, nats per token"""
    text_loss: float
    """loss: nats per predicted token"""
    text: Annotated[str, Quiet]
    """texts"""
    text_digest: Annotated[str, Quiet]
    """SHA-256 of the texts"""
    both: tuple[int, ...]
    """found: in scale and bias (Kovaleva et al. 2021)"""
    scale_alone: tuple[int, ...]
    bias_alone: tuple[int, ...]
    largest_z: float
    """largest z: mean over layers of |z| in the scale"""
    kurtosis: float
    """kurtosis: largest over blocks of He et al.'s (2024) kurtosis over dimensions"""
    inf_norm: float
    """largest |h|: of any block's output"""
    first: float
    """first token: share of a query's attention on it, mean over heads and layers"""
    sinks: float
    """sinks: share of heads whose mean attention on the first token is above 0.3 (Gu et al. 2024)"""
    off: Annotated[Estimate, Change] = UNKNOWN
    """found ablated: the dimensions that the weights name (`both`, or else the two others together); none without any"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    """random sets ablated: of the same size"""
    worst_dims: tuple[int, ...]
    """worst: the single dimension that costs most"""
    worst: Annotated[Estimate, Change]
    """worst ablated"""
    dim_median: Annotated[float, Change]
    """median ablated: over all dimensions, each alone"""
    dim_high: Annotated[float, Change, More]
    """95th percentile ablated: likewise"""
    int8: Annotated[Estimate, Change]
    """INT8: weights and inputs of the blocks' linears quantized per tensor to 8 bits"""

    @property
    def named(self) -> tuple[int, ...]:
        """The dimensions that are off in `off`."""
        return self.both or (*self.scale_alone, *self.bias_alone)

    @property
    def measures(self) -> dict[str, float | None]:
        """{name: number} of what seeds are averaged over; none where nothing was named."""
        return {
            "loss": self.text_loss,
            "found": float(len(self.both)),
            "one-sided": float(len({*self.scale_alone, *self.bias_alone})),
            "largest z": self.largest_z,
            "kurtosis": self.kurtosis,
            "largest |h|": self.inf_norm,
            "first token": self.first,
            "sinks": self.sinks,
            "found ablated": Change(self.off.value) if self.named else None,
            "random ablated": Change(np.median(self.random)) if self.random else None,
            "worst ablated": Change(self.worst.value),
            "median ablated": Change(self.dim_median),
            "INT8": Change(self.int8.value),
        }

    def trained_by(self) -> dict[str, Any]:
        """{section.option: value} of its recipe, but for its seed and its words about itself."""
        options: dict[str, Any] = {"name": self.recipe, "training.steps": self.steps}
        for section, values in tomllib.loads(self.toml).items():
            options |= {f"{section}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {}
        return {key: value for key, value in options.items() if key != "training.seed"}


@dataclass(frozen=True, kw_only=True)
class Outcomes(Finding):
    """What came of pre-training runs, in the order given."""

    title = "Pre-training runs"

    runs: tuple[TrainedModel, ...]
    """Runs"""

    def sentences(self) -> Iterator[str]:
        """A sentence per run, and whether they may be compared."""
        for run in self.runs:
            groups = {"scale and bias": run.both, "scale alone": run.scale_alone, "bias alone": run.bias_alone}
            named = ", ".join(f"{' and '.join(map(str, dims))} ({label})" for label, dims in groups.items() if dims)
            yield (
                f"{run.recipe}, seed {run.seed}, {run.steps:,} steps, {run.n_parameters:,} parameters: {PAST}: "
                f"{named or 'none'}; loss {run.text_loss:.3f} nats per predicted token on {run.text}; the worst single "
                f"dimension, {', '.join(map(str, run.worst_dims))}, costs {run.worst.value:+z.3g}."
            )
        if len({run.text_digest for run in self.runs}) > 1:
            yield "These runs were measured on different texts; their losses cannot be compared."

    def recipes(self) -> Iterator[dict[str, Any]]:
        """A row for each recipe, seeds of it together: the mean of every measure, with its least and largest value.

        Runs that share a name but not what they were trained by are rows of their own; "changed" says what the later ones
        changed.
        """
        groups: list[tuple[dict[str, Any], list[TrainedModel]]] = []
        for run in self.runs:
            recipe = run.trained_by()
            members = next((members for other, members in groups if not _differences(other, recipe)), None)
            if members is None:
                groups.append((recipe, [run]))
            else:
                members.append(run)
        first: dict[str, dict[str, Any]] = {}
        for recipe, members in groups:
            base = first.setdefault(members[0].recipe, recipe)
            changed = ", ".join(f"{key}={json.dumps(recipe[key])}" for key in _differences(base, recipe))
            row: dict[str, Any] = {"recipe": members[0].recipe, "changed": changed, "steps": members[0].steps}
            row["seeds"] = len({member.seed for member in members})
            for name in members[0].measures:
                values = [value for member in members if (value := member.measures[name]) is not None]
                kind = type(values[0]) if values else float
                row[name] = Spread(kind(sum(values) / len(values)), min(values), max(values)) if values else None
            yield row

    def shown(self, *, verbose: bool = False) -> Iterator[Rows]:
        """The runs; of several also their recipes."""
        yield from super().shown(verbose=verbose)
        rows = list(self.recipes()) if len(self.runs) > 1 else []
        if rows:
            note = "In brackets the range over seeds."
            yield Rows("Recipes", tuple(rows[0]), tuple(tuple(row.values()) for row in rows), note)


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The options that both have and that differ; an option that came later than a run is none of its differences."""
    return [key for key, value in other.items() if key in one and one[key] != value]
