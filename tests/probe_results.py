"""Made-up results of `probe`: two layers, four dimensions of which 2 is named, five positions."""

from typing import Any

import numpy as np

from outlierlens.analyses.probe import (
    LayerProbe,
    PositionContribution,
    PositionProbe,
    ProbeAccuracy,
    ProbeContribution,
)
from outlierlens.analyses.probe_frozen import FrozenChoice, FrozenScore, FrozenScores
from outlierlens.analyses.probe_one_dimension import LayerOneDim, OneDim, OneDimension
from outlierlens.analyses.probe_training import ProbeEstimate
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

PROVENANCE = Provenance("m", "f", command="outlierlens probe m --data t.txt")
N_AT = np.array([0, 4, 4, 2, 1])
VALUES = {"embeddings": (0.1, 0.4, 0.3, 0.2), "0": (0.1, 0.2, 1.3, 0.4)}


def about(value: float) -> Estimate:
    return Estimate(value, value - 0.1, value + 0.05)


def accuracy(layer: str, vectors: str, value: float) -> ProbeAccuracy:
    changed = (value - 0.8, value - 0.9, value - 0.7) if vectors != "as they are" else (float("nan"),)
    return ProbeAccuracy(
        layer=layer, vectors=vectors, clipped=() if vectors == "as they are" else (2,), within_one=value + 0.02, loss=1.5,
        accuracy=ProbeEstimate(value, value - 0.1, value + 0.05, 0.04, 0.02), change=ProbeEstimate(*changed),
        by_position=(float("nan"), 1.0, 0.75, 0.5, 0.0),
    )  # fmt: skip


def position_probe() -> PositionProbe:
    """Dimension 2 is the second contributor of the embeddings and the first of layer 0, where it is clipped."""
    parts = [
        (layer, of, values[dim], 1 + sum(v > values[dim] for v in values))
        for layer, values in VALUES.items()
        for of, dim in (("highest other", 1 if layer != "0" else 3), ("2", 2))
    ]
    return PositionProbe(
        provenance=PROVENANCE,
        about=About(data="d.txt", stack="model", layers=(0,), dims=("2",), n_texts=4, n_tokens=11, max_length=128),
        accuracies=(
            accuracy("embeddings", "as they are", 0.8), accuracy("0", "as they are", 0.8), accuracy("0", "clipped", 0.6),
            accuracy("0", "clipped, trained again", 0.7),
        ),
        layers=tuple(
            LayerProbe(
                layer=layer, largest_dim=int(np.argmax(values)), other_dim=1 if layer != "0" else 3, mean=0.25, scale=0.5,
                contribution=values, weight=(0.4, 0.3, 0.1, 0.2),
            )
            for layer, values in VALUES.items()
        ),
        contributions=tuple(
            ProbeContribution(layer=layer, of=of, contribution=value, rank=rank, weight_rank=rank)
            for layer, of, value, rank in parts
        ),
        heat=tuple(
            PositionContribution(position=at, dim=dim, contribution=value * at)
            for dim, value in (("2 (clipped)", 1.3), ("3", 0.4)) for at in range(1, 5)
        ),
        train="t.txt", n_train=9, n_train_tokens=30, n_positions=5, n_trained_at=np.array([0, 12, 9, 6, 3]), n_at=N_AT,
        majority=1, majority_accuracy=4 / 11, epochs=1, learning_rate=0.01, batch=128, special=False,
        final_norm=False, clip="auto", clip_source="observed", n_redraws=7, heat_layer="0", notes=("a note",),
    )  # fmt: skip


def one_dimension() -> OneDimension:
    """Dimension 2 is the best, and 1 named by the weights."""
    alone = (
        OneDim(layer="0", dim=2, value=about(0.7), rank=1, train=0.75, variance_ratio=1.5, z=0.2, why="best on train",
               rule="no ≤ 0.5 < yes"),
        OneDim(layer="0", dim=1, value=about(0.6), rank=2, train=0.65, variance_ratio=2.5, z=9.0, why="weights",
               rule="always yes"),
    )  # fmt: skip
    layer = LayerOneDim(
        layer="0", best=2, value=about(0.7), rho_variance=0.5, rho_z=-0.5, shifted_dim=1, shifted_mean=0.1, shift=-0.5,
        above="yes", shifted_train=0.6, shifted=about(0.55), values=(0.5, 0.6, 0.7), train=(0.6, 0.65, 0.75),
        variance=(1.0, 2.0, 1.5),
    )  # fmt: skip
    return OneDimension(
        provenance=PROVENANCE, about=About(data="d", inputs="examples", task="glue:rte", metric="accuracy", n_texts=20),
        named=alone, layers=(layer,), pooling="first", by_class=False, full=about(0.75), majority=0.5, weights_name=(1,),
        train="t", n_train=40,
    )  # fmt: skip


def frozen_scores() -> FrozenScores:
    """Clipping helps by the dev split's choice and not by the test split's."""
    cells = [(layer, fix, value + more, more) for layer, value in (("embeddings", 0.7), ("0", 0.8))
             for fix, more in (("raw", 0.0), ("clip", 0.05))]  # fmt: skip
    choices = [("dev", "clip", "embeddings", Estimate(0.05, 0.01, 0.09), "helps"),
               ("test", "clip", "0", Estimate(0.05, -0.01, 0.09), "no difference")]  # fmt: skip
    return FrozenScores(
        provenance=PROVENANCE,
        about=About(data="e", inputs="examples", task="sst5", metric="accuracy", stack="model", dims=("3",), n_texts=30),
        by_layer=tuple(
            FrozenScore(layer=layer, fix=fix, test=about(value), change=about(more), dev=value, train=value, loss=0.5)
            for layer, fix, value, more in cells
        ),
        chosen=(
            *(FrozenChoice(by=by, fix="raw", layer="0", value=about(0.8)) for by in ("dev", "test")),
            *(FrozenChoice(by=by, fix=fix, layer=layer, value=about(0.85), change=change, verdict=verdict)
              for by, fix, layer, change, verdict in choices),
        ),
        special=False, final_norm=False, n_cut=1, train="t", dev="d", n_train=40, n_dev=20, held_out=True, n_dropped=2,
        epochs=10, train_batch=16, lr=0.01, bias=False, majority=0.5, clip_dims={"0": (3,)}, clip_source="named by hand",
        notes=("a note",),
    )  # fmt: skip


def made() -> dict[str, Any]:
    """{kind: result}"""
    return {"PositionProbe": position_probe(), "OneDimension": one_dimension(), "FrozenScores": frozen_scores()}
