"""A made-up result of what became of outliers after pre-training."""

from typing import Any

from outlierlens.analyses.recover import Arm, Recovery
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

PROVENANCE = Provenance("m", "f", command="outlierlens finetune m --task rte --recover")


def recovery() -> Recovery:
    """Intact 0.8, off 0.5, again 0.75, held 0.7."""

    def arm(what: Any, state: Any, value: float, **more: Any) -> Arm:
        lost = 0.8 - value
        return Arm(
            what=what, state=state, dims=() if what == "none" else (3,), value=Estimate(value, value - 0.05, value + 0.05),
            lost=Estimate(lost, lost - 0.05, lost + 0.05), regrown=0.25, each_regrown=(0.25,), loss=0.6,
            scores={"accuracy": value}, **more,
        )  # fmt: skip

    arms = (
        arm("none", "intact", 0.8), arm("chosen", "off", 0.5), arm("chosen", "again", 0.75, seed=1, recovered=5 / 6),
        arm("chosen", "again", 0.77, seed=2, recovered=0.9), arm("chosen", "held", 0.7, seed=1, best_epoch=2.0, folder="x"),
    )  # fmt: skip
    return Recovery(
        provenance=PROVENANCE, arms=arms, train="t", n_train=40, settings={"epochs": 2}, reach=1e-3,
        about=About(
            data="d", inputs="examples", task="glue:rte", metric="accuracy", stack="model", dims=("3",), named_by="given",
            n_texts=20,
        ),
    )  # fmt: skip
