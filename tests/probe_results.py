"""A made-up position probe: two layers, four dimensions of which 2 is named, five positions."""

from typing import Any

import numpy as np

from outlierlens.experiments.probe.result import AccuracyChange, Contribution, LayerProbe, PositionProbe, ProbeScore
from outlierlens.results.document import Provenance

N_AT = np.array([0, 4, 4, 2, 1])


def score(accuracy: float) -> ProbeScore:
    by_position = np.array([np.nan, 1.0, 0.75, 0.5, 0.0])
    return ProbeScore(accuracy, accuracy - 0.1, accuracy + 0.05, accuracy + 0.02, 1.5, by_position)


def layer(name: str, contribution: tuple[float, ...], clipped: bool) -> LayerProbe:
    value = np.array(contribution)
    rank = {dim: 1 + int((value > value[dim]).sum()) for dim in range(4)}
    other = int(np.argmax(np.where(np.arange(4) == 2, -1, value)))
    heat = np.outer(N_AT > 0, value[[2, other]]) * np.arange(5)[:, None]
    return LayerProbe(
        layer=name,
        scale=0.5,
        raw=score(0.8),
        clipped_dims=(2,) if clipped else (),
        clipped=score(0.6) if clipped else None,
        clipped_change=AccuracyChange(-0.2, -0.3, -0.1) if clipped else None,
        retrained=score(0.7) if clipped else None,
        retrained_change=AccuracyChange(-0.1, -0.2, 0.0) if clipped else None,
        contribution=value,
        mean=float(value.mean()),
        weight=np.array([0.4, 0.3, 0.1, 0.2]),
        named=(Contribution(2, float(value[2]), rank[2]),),
        other=Contribution(other, float(value[other]), rank[other]),
        heat_dims=(2, other),
        heat=heat,
    )


def position_probe(**changes: Any) -> PositionProbe:
    """Dimension 2 is the second contributor of the embeddings and the first of layer 0, where it is clipped."""
    values: dict[str, Any] = {
        "provenance": Provenance("m", "f", command="outlierlens probe m --data t.txt"),
        "stack": "model",
        "train": "t.txt",
        "dev": "d.txt",
        "n_train": 9,
        "n_train_tokens": 30,
        "n_dev": 4,
        "n_dev_tokens": int(N_AT.sum()),
        "n_positions": 5,
        "n_trained_at": np.array([0, 12, 9, 6, 3]),
        "n_at": N_AT,
        "majority": 1,
        "majority_accuracy": 4 / 11,
        "epochs": 1,
        "learning_rate": 0.01,
        "batch": 128,
        "row": "gold",
        "special": False,
        "max_length": 128,
        "final_norm": False,
        "clip": "auto",
        "clip_source": "observed",
        "cached": False,
        "in_embeddings": True,
        "left_only": False,
        "layers": (layer("embeddings", (0.1, 0.4, 0.3, 0.2), False), layer("0", (0.1, 0.2, 1.3, 0.4), True)),
        "notes": ("a note",),
    }
    return PositionProbe(**(values | changes))


def made() -> dict[str, Any]:
    """{kind: result}"""
    return {"PositionProbe": position_probe()}
