"""A repaired model's result, by hand."""

from outlierlens.experiments.repair.result import Behaviour, Repaired
from outlierlens.results.document import Provenance


def repaired() -> Repaired:
    """A stream of two blocks divided by 16."""
    return Repaired(
        provenance=Provenance("mini", "0" * 64),
        folder="fits",
        fit="fp16",
        margin=4,
        exponent=-4,
        channels={"neurons": 2, "values": 3},
        epsilons={"rms_norm_eps": (1e-5, 1e-5 / 256)},
        untied=True,
        n_changed=9,
        n_parameters=21,
        exact=False,
        reasons=("norms multiply by 1 + weight",),
        difference=1e-6,
        n_texts=16,
        n_tokens=900,
        n_random=64,
        before=Behaviour((1200.0, 190000.0), {"stream": 190000.0, "MLP inner": 3000.0}, 900.0, 0.0, float("nan")),
        after=Behaviour((75.0, 11875.0), {"stream": 11875.0, "MLP inner": 1500.0}, 450.0, 1.0, 0.0125),
        notes=("a note",),
    )
