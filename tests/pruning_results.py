"""Results of pruning made up by hand: `check()` is broken at an outlier, `experiment()` has controls that cost less."""

import numpy as np

from outlierlens.ablation.controls import compare_with
from outlierlens.ablation.damage import Condition, Score
from outlierlens.experiments.pruning.result import Hit, PruneCheck, PruneExperiment, Removal, StackCheck
from outlierlens.results.document import Provenance

WHERE = Provenance("bert", "ab", command="outlierlens prune-check bert masks.npz")


def stack(layers_removed: tuple[int, ...] = (0, 4, 0, 2, 0, 0, 1, 0), outliers: tuple[int, ...] = (1, 5)) -> StackCheck:
    """Four layers, the constraint at two of them; position 1 is gone everywhere, 3 in two layers, 6 in one."""
    counts = np.array(layers_removed)
    removed = np.arange(4)[:, None] < counts
    broken = [int(dim) for dim in np.argsort(-counts, kind="stable") if counts[dim] >= 2]
    dims = tuple(dict.fromkeys((*outliers, *broken)))
    return StackCheck(
        stack="model",
        site="output.LayerNorm",
        definition="scale and bias of the output norm zero",
        n_layers=4,
        needed=2,
        hidden_size=len(counts),
        values=64,
        values_removed=2 * int(counts.sum()),
        layers_removed=counts,
        broken=tuple(broken),
        outliers=tuple(
            Hit(dim, tuple(np.flatnonzero(removed[:, dim]).tolist()), float(removed[:, dim].mean())) for dim in outliers
        ),
        named_by="given",
        dims=dims,
        share=removed[:, list(dims)].astype(float),
        notes=("a note on the stream",),
    )


def check(scope: str = "all", **changes: object) -> PruneCheck:
    """A check whose only stream is `stack(**changes)`."""
    rule = Removal(scope=scope)  # type: ignore[arg-type]
    made = stack(**changes)  # type: ignore[arg-type]
    return PruneCheck(WHERE, "bert", "masks.npz", "masks", rule, (made,), 900, 10_000, ("a note",))


def condition(
    label: str, change: float, dims: tuple[int, ...] = (), by_layer: dict[int, tuple[int, ...]] | None = None
) -> Condition:
    """A condition whose interval is the change ± 0.02."""
    value = 3.0 + change
    score = Score(value, value - 0.1, value + 0.1, float(np.exp(value)), (value, value), {})
    return Condition(label, dims, by_layer or {}, score, change, change - 0.02, change + 0.02, 8, (0, 1))


def experiment(chosen: float = 1.5, magnitude: float = 0.01) -> PruneExperiment:
    """One position forced, beside three random and two scattered ones."""
    forced = condition("chosen", chosen, (1,))
    random = [condition(f"random position {i + 1}", 0.02 * i, (2 + i,)) for i in range(3)]
    scattered = [condition(f"scattered {i + 1}", 0.01 * i, (2, 3), {0: (2,), 1: (3,)}) for i in range(2)]
    return PruneExperiment(
        provenance=Provenance("bert", "ab", command="outlierlens prune-experiment bert", seed=0),
        data="reviews",
        data_digest="cd",
        task="masked loss",
        unit="nats per token",
        stack="model",
        site="output.LayerNorm",
        dims=(1,),
        dims_source="given",
        n_layers=2,
        hidden_size=8,
        n_candidates=32,
        forced=4,
        budget=8,
        n_texts=2,
        n_tokens=40,
        intact=condition("intact", 0.0),
        magnitude=condition("magnitude", magnitude),
        chosen=forced,
        controls=(
            compare_with("random position", forced, random, ranked=True),
            compare_with("scattered", forced, scattered, ranked=False),
        ),
        swaps={"magnitude": 0, "chosen": 4},
        notes=("a note on the experiment",),
    )
