"""Results of pruning made up by hand: `check()` is broken at an outlier, `costs()` has controls that cost less."""

from outlierlens.ablation.study import Control
from outlierlens.analyses.prune import (
    PositionCheck,
    PruneCheck,
    PruneTest,
    PruningCondition,
    StreamCheck,
    WeightCheck,
)
from outlierlens.analyses.prune_guard import Removal
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

COUNTS = (0, 4, 0, 2, 0, 0, 1, 0)  # of four layers, the constraint at two


def check(
    counts: tuple[int, ...] = COUNTS, outliers: tuple[int, ...] = (1, 5), only_outliers: bool = False
) -> PruneCheck:
    """Position 1 is gone everywhere, 3 in two layers, 6 in one."""
    broken = tuple(sorted((dim for dim, n in enumerate(counts) if n >= 2), key=lambda dim: -counts[dim]))
    stream = StreamCheck(
        stack="model", site="output.LayerNorm", definition="scale and bias of the output norm zero", values=64,
        values_removed=2 * sum(counts), n_layers=4, needed=2, hidden_size=len(counts), n_broken=len(broken),
        named_by="given", layers_removed=counts, broken=broken, not_looked_at="",
    )  # fmt: skip
    positions = tuple(
        PositionCheck(
            dim=dim, stack="model", outlier=dim in outliers, layers_removed=counts[dim], n_layers=4, share=counts[dim] / 4,
            breaks=dim in broken, layers=tuple(range(counts[dim])), by_layer=tuple(float(i < counts[dim]) for i in range(4)),
        )
        for dim in dict.fromkeys((*outliers, *broken))
    )  # fmt: skip
    weight = WeightCheck(neuron="1:7", dim=5, stack="model", weight=25.0, times_median=1234.5, gone=False)
    return PruneCheck(
        provenance=Provenance("masks.pt", "ab", command="outlierlens prune check bert masks.pt"),
        about=About(stack="model", layers=(0, 1, 2, 3), dims=tuple(map(str, outliers)), named_by="given"),
        streams=(stream,), positions=positions, weights=(weight,), before="bert", after="masks.pt", evidence="masks",
        rule=Removal(only_outliers=only_outliers), bytes_read=900, total_bytes=10_000, notes=("a note",),
    )  # fmt: skip


def costs() -> PruneTest:
    """Position 1 forced, beside three random ones."""
    families = {"chosen": (1.5,), "magnitude": (0.01,), "random position": (0.0, 0.02, 0.04)}
    change = Estimate(1.5, 1.48, 1.52)
    controls = (
        Control(
            family="magnitude", n=1, median=0.01, percentile_95=0.01, mean=0.01, times_median=150.0, times_percentile_95=150.0,
            times_mean=150.0, p=None, change=change, sets=(0.01,),
        ),
        Control(
            family="random position", n=3, median=0.02, percentile_95=0.038, mean=0.02, times_median=75.0,
            times_percentile_95=1.5 / 0.038, times_mean=75.0, p=0.25, change=change, sets=(0.0, 0.02, 0.04),
        ),
    )  # fmt: skip
    conditions = tuple(
        PruningCondition(
            family=name, label=name + f" {i + 1}" * (len(sets) > 1), dims="1", perplexity=20.0, plan={0: (1,)}, also={},
            value=Estimate(3 + change, 2.9 + change, 3.1 + change), change=Estimate(change, change - 0.02, change + 0.02),
            n_set=8 * (name != "intact"), per_text=(3.0, 3.0 + 2 * change), swaps=4 * (name == "chosen"),
        )
        for name, sets in {"intact": (0.0,), **families}.items()
        for i, change in enumerate(sets)
    )  # fmt: skip
    return PruneTest(
        provenance=Provenance("bert", "ab", command="outlierlens prune test bert", seed=0),
        about=About(
            data="reviews", data_digest="cd", task="masked loss", unit="nats per token", stack="model", layers=(0, 1),
            dims=("1",), named_by="given", n_texts=2, n_tokens=40,
        ),
        controls=controls, conditions=conditions, site="output.LayerNorm", n_candidates=32, forced=4, budget=8,
        notes=("a note on the test",),
    )  # fmt: skip
