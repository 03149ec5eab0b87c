"""Super weights: single weights behind the largest activations, and what the model loses without them. Plain data.

found.weights[0].place                      # "layer 2, [507, 1031]": row j writes the dimension, column k reads the MLP
found.trial("zeroed").change                # of the task, with its interval over texts
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from outlierlens.errors import pick


@dataclass(frozen=True)
class Spikes:
    """Largest |value| that the MLP's last linear reads and writes in each layer on one prompt, arrays [layer].

    `column` is the input k and `row` the output j where it stands, `read_position` and `write_position` the token.
    """

    read: Annotated[np.ndarray, "layer"]
    column: Annotated[tuple[int, ...], "layer"]
    read_position: Annotated[tuple[int, ...], "layer"]
    written: Annotated[np.ndarray, "layer"]
    row: Annotated[tuple[int, ...], "layer"]
    write_position: Annotated[tuple[int, ...], "layer"]


@dataclass(frozen=True)
class SuperWeight:
    """One weight that was found and removed.

    Attributes:
        layer: block, from 0. row: j, the dimension that it writes. column: k, what it reads.
        weight: its value. rank: of |weight| among all of its matrix, 1 = largest.
        read, written: the spiking input and output, signed. position, token: where the output spikes.
        share: of that output that this weight alone makes, weight × input / output at that token.
        remaining: largest |output| of the layer once it is removed.
    """

    layer: int
    row: int
    column: int
    weight: float
    rank: int
    read: float
    written: float
    position: int
    token: str
    share: float
    remaining: float

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"layer {self.layer}, [{self.row}, {self.column}]"


@dataclass(frozen=True)
class Trial:
    """The task with weights changed.

    Attributes:
        name: "zeroed", "restored", "× 2", "random 0", "largest". kind: "intact", "zeroed", "restored", "scaled", "random",
            "largest". factor: that the weights were multiplied by; NaN where they were not simply multiplied.
        value: of the task. change: from intact; low, high: its 95 % interval over texts.
    """

    name: str
    kind: str
    factor: float
    value: float
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class SuperWeights:
    """The search on one prompt, and the tests.

    Attributes:
        spike: what |input| and |output| must exceed.
        weights: in the order they were removed. stopped: why the search ended.
        before, after: spikes of the intact model, and with all of `weights` removed.
        task, unit, n_texts: of the trials, "" and 0 where none were asked for.
        restored_tokens: super activations that were put back in these texts.
    """

    prompt: str
    spike: float
    weights: tuple[SuperWeight, ...]
    stopped: str
    before: Spikes
    after: Spikes
    task: str = ""
    unit: str = ""
    n_texts: int = 0
    restored_tokens: int = 0
    trials: tuple[Trial, ...] = ()

    def trial(self, name: str) -> Trial:
        """One of `trials`; raises BadInput with those there are."""
        return pick(self.trials, f"no trial {name!r}", name=name)

    @property
    def restores(self) -> float:
        """Share of the damage that putting the super activations back undoes; NaN without trials or damage."""
        if not self.trials or not self.trial("zeroed").change > 0:
            return float("nan")
        return 1 - self.trial("restored").change / self.trial("zeroed").change
