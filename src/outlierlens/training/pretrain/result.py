"""What came of a pre-training run, and of several side by side: plain data, without torch.

outcome.worst.change                       # nats per token that the worst single dimension costs
print(list(outcomes.records()))            # one row per recipe: mean over its seeds, and their range
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlierlens.results.document import Provenance, Result

OUTCOME = "outcome.json"  # in a run folder


@dataclass(frozen=True)
class LossChange:
    """Change of the loss, nats per masked token, with a 95 % interval over texts; `dims` that are off (none for INT8)."""

    change: float
    low: float
    high: float
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome(Result):
    """One trained model, measured.

    Attributes:
        recipe, about, seed, steps: of the run; `toml` is the whole recipe.
        tokens: that training read, special ones and padding included.
        held_out_loss: at the last evaluation, on the recipe's own held-out rows and masked share, nats per token.
        text_loss: on plain held-out texts with 15 % masked, the same for every recipe of the same text, nats per token.
        text: what those texts are; text_digest: SHA-256 over them.
        both: dimensions past the threshold of `Rule()` in its share of the layers, in scale and in bias (Kovaleva et al. 2021).
        scale_alone, bias_alone: dimensions past it in its share of the layers of one of them.
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
    off: LossChange | None
    random_median: float | None
    random_high: float | None
    worst: LossChange
    dim_median: float
    dim_high: float
    int8: LossChange
    notes: tuple[str, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """One row: see `Outcomes.records`."""
        return Outcomes((self,)).records()


@dataclass(frozen=True)
class Outcomes(Result):
    """Several runs, in the order given."""

    runs: tuple[Outcome, ...]

    def records(self) -> Iterator[dict[str, Any]]:
        """A row for each recipe, seeds of it together: the mean of every measure, and its least and largest value.

        Of a single seed, the changes of the loss have their 95 % interval over texts in place of that range. Runs that
        share a name but not what they were trained by are rows of their own; `changed` says what the later ones changed.
        """
        groups: list[tuple[dict[str, Any], list[Outcome]]] = []
        for run in self.runs:
            recipe = _trained_by(run)
            members = next((members for other, members in groups if not _differences(other, recipe)), None)
            if members is None:
                groups.append((recipe, [run]))
            else:
                members.append(run)
        first: dict[str, dict[str, Any]] = {}
        for recipe, members in groups:
            run = members[0]
            base = first.setdefault(run.recipe, recipe)
            row: dict[str, Any] = {
                "recipe": run.recipe,
                "changed": ", ".join(f"{key}={json.dumps(recipe[key])}" for key in _differences(base, recipe)),
                "steps": run.steps,
                "seeds": len({member.seed for member in members}),
            }
            for name, measure in MEASURES.items():
                values = [value for value in map(measure, members) if value is not None]
                row[name] = sum(values) / len(values) if values else None
                row[f"{name}_low"] = min(values, default=None)
                row[f"{name}_high"] = max(values, default=None)
            for name, part in CHANGES.items():
                change: LossChange | None = getattr(run, part)
                if len(members) == 1 and change is not None:
                    row[f"{name}_low"], row[f"{name}_high"] = change.low, change.high
            yield row


MEASURES = {
    "text_loss": lambda run: run.text_loss,
    "n_found": lambda run: float(len(run.both)),
    "n_one_sided": lambda run: float(len(set(run.scale_alone) | set(run.bias_alone))),
    "largest_z": lambda run: run.largest_z,
    "kurtosis": lambda run: run.kurtosis,
    "inf_norm": lambda run: run.inf_norm,
    "found_off": lambda run: run.off.change if run.off else None,
    "random_off": lambda run: run.random_median,
    "worst": lambda run: run.worst.change,
    "dim_median": lambda run: run.dim_median,
    "int8": lambda run: run.int8.change,
}


CHANGES = {"found_off": "off", "worst": "worst", "int8": "int8"}


def _trained_by(run: Outcome) -> dict[str, Any]:
    """{section.option: value} of the run's recipe, but for its seed and its words about itself."""
    options: dict[str, Any] = {"name": run.recipe, "training.steps": run.steps}
    for section, values in tomllib.loads(run.toml).items():
        options |= {f"{section}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {}
    return {key: value for key, value in options.items() if key != "training.seed"}


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The options that both have and that differ; an option that came later than a run is none of its differences."""
    return [key for key, value in other.items() if key in one and one[key] != value]
