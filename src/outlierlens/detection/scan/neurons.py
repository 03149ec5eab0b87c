"""Which neurons of the blocks' MLPs weights alone single out: those that can become far larger than their block's others.

    with open_checkpoint("smollm2-135m") as checkpoint:
        scan_neurons(checkpoint, bound, hashlib.sha256())              # NeuronScan: found[0].neuron is "28:678"

What an MLP reads is γ ⊙ n with ‖n‖ ≤ √d behind a norm of scale γ. So a neuron of an ungated MLP is at most √d ‖γ ⊙ u‖, with u
its row of the up projection, and one of a gated MLP, up × act(gate) with an act that grows as its argument does, at most

    max over n of |(γ ⊙ u)·n| · |(γ ⊙ g)·n|  =  d/2 · ‖γ ⊙ u‖ ‖γ ⊙ g‖ (1 + |cos|)

(the largest |eigenvalue| of the symmetric part of u gᵀ, times d). Super activations (Yu et al. 2024) need just that: rows that
are long and point the same way. A neuron that reaches `TIMES` the median of its block is named.
"""

from typing import Any

import numpy as np

from outlierlens.architectures import BoundStack, Neuron, Param, mlp_axis
from outlierlens.architectures.bind import MLP
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.scan.result import NeuronScan, Standing
from outlierlens.errors import BadInput

TIMES = 10.0  # the median of its block, from which a neuron is named


def scan_neurons(checkpoint: Checkpoint, bound: BoundStack, digest: Any, name: str = MLP) -> NeuronScan:
    """The neurons of a stream's MLPs that can become `TIMES` as large as the median one; `digest` takes what was read.

    `name` is what the axis is called: "mlp", or "encoder.mlp".

    Raises:
        BadInput: the MLP's last linear, or what makes its neurons, is no linear of its own in every block.
    """
    axis = mlp_axis(bound, name)
    reading = bound.stack.reading_norms[-1] if bound.stack.reading_norms else ""
    reach, found = [], []
    for layer, path in enumerate(axis.reads):
        ups = first_linears(checkpoint, bound, layer, f"{path}.weight")
        norms = [one for one in bound.reading[layer] if reading and f".{reading}." in one.name]
        wanted = {one: Param(one) for one in (*ups, f"{path}.weight", *(norm.name for norm in norms))}
        read = {one: np.asarray(values, dtype=np.float64) for one, values in checkpoint.read(wanted)}
        for one in sorted(read):
            digest.update(one.encode() + read[one].tobytes())
        turned = {name: one.T for name, one in read.items()} if bound.stack.weight_is_in_by_out else read
        down, rows = turned[f"{path}.weight"], [turned[name] for name in ups]
        if len(rows) == 1 and len(rows[0]) == 2 * down.shape[1]:
            rows = np.split(rows[0], 2)
        scale = read[norms[0].name] - norms[0].off if norms else np.ones(rows[0].shape[1])
        values = _reach([one * scale for one in rows])
        reach.append(values)
        median = float(np.median(values))
        for number in np.flatnonzero(values >= TIMES * median).tolist() if median > 0 else ():
            column = down[:, number]
            row = int(np.abs(column).argmax())
            found.append(
                Standing(
                    str(Neuron(layer, number)), float(values[number]), values[number] / median, row, float(column[row])
                )
            )
    return NeuronScan(
        stack=axis.name,
        n_layers=len(reach),
        n_neurons=len(reach[0]),
        times=TIMES,
        normed=bool(reading),
        found=tuple(sorted(found, key=lambda one: -one.times_median)),
        largest=max(float((values / np.median(values)).max()) for values in reach if np.median(values) > 0),
    )


def _reach(rows: list[np.ndarray]) -> np.ndarray:
    """The largest value of each neuron [neuron], of its scaled rows: up alone [neuron, in], or up and gate."""
    sizes = [np.linalg.norm(one, axis=1) for one in rows]
    width = rows[0].shape[1]
    if len(rows) == 1:
        return np.sqrt(width) * sizes[0]
    product = np.einsum("ni,ni->n", *rows)
    found: np.ndarray = width / 2 * (sizes[0] * sizes[1] + np.abs(product))
    return found


def first_linears(checkpoint: Checkpoint, bound: BoundStack, layer: int, last: str) -> list[str]:
    """Names of the weights of a block's MLP that make its neurons: one, or up and gate, or both in one."""
    width, n_neurons = checkpoint.tensors[last].shape[:: 1 if not bound.stack.weight_is_in_by_out else -1]
    shapes = {(n_neurons, width), (2 * n_neurons, width)}
    block = bound.blocks[layer]
    names = [
        name for name, stored in checkpoint.tensors.items()
        if name.startswith(f"{block}.") and name.endswith(".weight") and name != last
        and tuple(stored.shape[:: 1 if not bound.stack.weight_is_in_by_out else -1]) in shapes
    ]  # fmt: skip
    parent = last.removesuffix(".weight").rpartition(".")[0]
    beside = [name for name in names if name.startswith(f"{parent}.")] or names
    if not 1 <= len(beside) <= 2:
        raise BadInput(
            f"{checkpoint.name}: which linears make the neurons of {block} cannot be told from their shapes "
            f"({len(beside)} fit); measure them with observe --stack {bound.name}.mlp"
        )
    return beside
