"""What a scan found: plain data, without torch, and the flat rows that tables show.

found.stacks[0].dims                       # the dimensions, ascending
found.records()                            # a row per outlier
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.detection.rules import Outlier, Rule
from outlierlens.results.document import Provenance, Result
from outlierlens.view.section import number_of_layers


@dataclass(frozen=True)
class StackScan:
    """What the rule found in one residual stream, seen at one site of its blocks.

    Attributes:
        stack: "model", "encoder", "decoder", …; dimensions are named per stack.
        site: parameter that was measured, relative to the block.
        measure: "scale of the norm" or "L2 norm of the weights that write to the dimension".
        outliers: strongest first.
        n_sigma: threshold that was really used; below the rule's only when `relax_to` allowed it.
        n_layers: vectors of the measure, one for each block. n_run: layers that run, more where layers share their blocks.
        values_read: number of scalars the measure rests on.
        map_dims: dimensions of the columns of `z_scale` and `z_bias`, all of them unless that is too many.
        z_scale, z_bias: [layer, column]; z_bias is empty where there is no bias.
    """

    stack: str
    site: str
    measure: str
    norm_site: str
    n_layers: Annotated[int, "layer"]
    n_run: int
    hidden_size: int
    outliers: tuple[Outlier, ...]
    n_sigma: float
    values_read: int
    notes: tuple[str, ...]
    map_dims: Annotated[tuple[int, ...], "column"]
    z_scale: Annotated[np.ndarray, "layer column"]
    z_bias: Annotated[np.ndarray, "layer column, or empty"]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions found, ascending."""
        return tuple(sorted(outlier.dim for outlier in self.outliers))

    @property
    def counted(self) -> str:
        """What a rule counts: "12 layers", or "2 distinct blocks" where layers share theirs."""
        if self.n_run == self.n_layers:
            return number_of_layers(self.n_layers)
        return f"{self.n_layers} distinct block{'' if self.n_layers == 1 else 's'}"

    @property
    def shape(self) -> str:
        """ "12 layers × 768 dimensions", or "8 layers of 2 distinct blocks × 768 dimensions"."""
        blocks = "" if self.n_run == self.n_layers else f" of {self.counted}"
        return f"{number_of_layers(self.n_run)}{blocks} × {self.hidden_size:,} dimensions"

    @property
    def threshold(self) -> Rule:
        """The threshold that was used; ask it what passes in this stream, and how that is said."""
        return Rule(n_sigma=self.n_sigma)

    @property
    def named_by(self) -> str:
        """Who named the dimensions, in words."""
        return f"the scan of the weights, at {self.threshold.sigmas}"

    def one_sided(self, rule: Rule) -> tuple[int, ...]:
        """Dimensions past `n_sigma` in the layers that `rule` needs in scale or in bias, not in both, ascending.

        What Kovaleva et al.'s rule passes over; () where the norm has no bias.
        """
        _, scale, bias = self.past(rule)
        return tuple(sorted((*scale, *bias))) if self.z_bias.size else ()

    def strongest_dims(self, n: int) -> tuple[int, ...]:
        """The `n` dimensions whose |z|, averaged over layers and over scale and bias, is largest, strongest first.

        Whatever the rule says; fewer only where fewer differ from the rest at all, as in weights that are all equal.
        """
        size = np.abs(self.z_scale).mean(axis=0)  # [column]
        if self.z_bias.size:
            size = (size + np.abs(self.z_bias).mean(axis=0)) / 2
        return tuple(self.map_dims[column] for column in np.argsort(-size, kind="stable")[:n] if size[column] > 0)

    def past(self, rule: Rule) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Dimensions past `n_sigma` in the layers that `rule` needs: in scale and bias both, in scale alone, in bias alone."""
        scale = rule.enough(self.threshold.layers_past(self.z_scale), self.n_layers)  # [column]
        bias = (
            rule.enough(self.threshold.layers_past(self.z_bias), self.n_layers) if self.z_bias.size else scale & False
        )
        dims = np.array(self.map_dims)
        both, scale_alone, bias_alone = (dims[flag].tolist() for flag in (scale & bias, scale & ~bias, bias & ~scale))
        return tuple(both), tuple(scale_alone), tuple(bias_alone)


@dataclass(frozen=True)
class Standing:
    """A neuron that its weights single out.

    Attributes:
        neuron: as "11:1229". reach: the largest value that a normed input can give it. times_median: over its block's median.
        dim: of the stream, to which it writes with its largest weight, and `weight` that weight.
    """

    neuron: str
    reach: float
    times_median: float
    dim: int
    weight: float


@dataclass(frozen=True)
class NeuronScan:
    """What stands out among the neurons of the MLPs of a stream.

    Attributes:
        stack: "mlp", or "encoder.mlp". n_layers, n_neurons: blocks, and neurons of each.
        times: of the block's median, from which a neuron is named. largest: that any neuron reaches.
        normed: whether the scale of a norm before the MLP took part; without one what is read is taken to have equal sizes.
        found: the largest over its median first.
    """

    stack: str
    n_layers: int
    n_neurons: int
    times: float
    normed: bool
    found: tuple[Standing, ...]
    largest: float


@dataclass(frozen=True)
class Scan(Result):
    """Outlier dimensions of a model, from its weights alone."""

    provenance: Provenance
    model_type: str
    source: str
    rule: Rule
    view: str
    stacks: tuple[StackScan, ...]
    bytes_read: int
    total_bytes: int
    notes: tuple[str, ...] = ()
    requests: int = 0
    neurons: tuple[NeuronScan, ...] = ()

    def records(self) -> Iterator[dict[str, Any]]:
        """One flat row per outlier: model, stack, dim, layer counts, strongest z, p."""
        for stack in self.stacks:
            for outlier in stack.outliers:
                yield {
                    "model": self.provenance.model,
                    "stack": stack.stack,
                    "site": stack.site,
                    "dim": outlier.dim,
                    "layers": stack.n_layers,
                    "layers_scale": len(outlier.layers_scale),
                    "layers_bias": len(outlier.layers_bias) if outlier.z_bias else None,
                    "z_scale": strongest(outlier.z_scale),
                    "z_bias": strongest(outlier.z_bias) if outlier.z_bias else None,
                    "rank_scale": float(np.median(outlier.rank_scale)),
                    "rank_bias": float(np.median(outlier.rank_bias)) if outlier.rank_bias else None,
                    "p": outlier.p,
                    "p_holm": outlier.p_holm,
                }


@dataclass(frozen=True)
class Scans(Result):
    """Several models scanned under one rule, for one table."""

    scans: tuple[Scan, ...]

    def records(self) -> list[dict[str, Any]]:
        """One row per outlier, model and stack."""
        return [row for scan in self.scans for row in scan.records()]


def strongest(z: tuple[float, ...]) -> float:
    """The value of largest magnitude, with its sign."""
    return max(z, key=abs)
