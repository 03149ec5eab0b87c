"""What rounding keys and values loses: sums of squares by layer and channel while a model runs.

    errors = CacheErrors()
    errors.add("0", "k", states, valid)          # [batch, token, channel], as attention multiplies them
    errors.rows()                                # CacheError by layer, tensor and scheme

A step is shared by all heads: one a text ("tensor"), one a token, or one a channel of a text.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_schemes import Grain, Number, Scheme, fake_quantize_inputs
from outlierlens.experiments.range.result import CacheError

if TYPE_CHECKING:
    from torch import Tensor

NUMBERS: tuple[Number, ...] = ("int8", "int4")
GRAINS: tuple[Grain, ...] = ("tensor", "token", "channel")


@dataclass
class CacheErrors:
    """Σ x² and Σ (rounded − x)² of each channel, float64 on the CPU, by layer, tensor ("k", "v"), number and grain."""

    power: dict[tuple[str, str], "Tensor"] = field(default_factory=dict)
    error: dict[tuple[str, str, str, str], "Tensor"] = field(default_factory=dict)

    def add(self, layer: str, name: str, states: "Tensor", valid: "Tensor") -> None:
        """Take keys or values of a batch; padding is left out."""
        kept = states.float().masked_fill(~valid[..., None], 0.0)
        power = kept.double().square().sum((0, 1)).cpu()
        self.power[layer, name] = self.power.get((layer, name), 0.0) + power
        for number in NUMBERS:
            for grain in GRAINS:
                scheme = Scheme(number, "token" if grain == "channel" else grain)
                if grain == "channel":
                    rounded = fake_quantize_inputs(kept.transpose(1, 2), scheme).transpose(1, 2)
                else:
                    rounded = fake_quantize_inputs(kept, scheme, valid)
                lost = (rounded - kept).masked_fill(~valid[..., None], 0.0).double().square().sum((0, 1)).cpu()
                key = (layer, name, number, grain)
                self.error[key] = self.error.get(key, 0.0) + lost

    def rows(self) -> tuple[CacheError, ...]:
        """Relative errors by layer in order."""
        found = []
        for (layer, name, number, grain), lost in self.error.items():
            power = self.power[layer, name]
            used = power > 0
            if bool(used.any()):
                whole = float((lost.sum() / power.sum()).sqrt())
                middle = float((lost[used] / power[used]).sqrt().median())
                found.append(CacheError(int(layer), name, number, grain, whole, middle))
        return tuple(sorted(found, key=lambda one: (one.layer, one.tensor)))
