"""What became of a model's outlier dimensions when it was fine-tuned: plain data, without torch.

survived.tuned[0].dims[0].fate              # "stayed"
survived.tuned[0].dims[0].scale.z_after     # mean over layers, beside z_before
survived.records()                          # a row per dimension and tuned model
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from outlierlens.detection.scan.result import Scan
from outlierlens.results.document import Result

Fate = Literal["stayed", "came", "went", "neither"]


@dataclass(frozen=True)
class Shift:
    """One dimension's scale or bias before and after, in standard deviations of its layer's vector.

    Attributes:
        z_before, z_after: mean over layers.
        largest_before, largest_after: z of largest magnitude over layers, with its sign.
        layers_before, layers_after: layers with |z| at or past the threshold.
        moved, moved_most: |z after − z before|, mean over layers and largest.
    """

    z_before: float
    z_after: float
    largest_before: float
    largest_after: float
    layers_before: int
    layers_after: int
    moved: float
    moved_most: float


@dataclass(frozen=True)
class DimSurvival:
    """One dimension of one stream; `fate` is "neither" where it was asked for and the rule found it in no model.

    `bias` is None where the last operation has none.
    """

    stack: str
    site: str
    dim: int
    fate: Fate
    n_layers: int
    scale: Shift
    bias: Shift | None = None


@dataclass(frozen=True)
class Agreement:
    """How alike z is before and after, in the scale or the bias of one stream.

    Attributes:
        part: "scale" or "bias".
        r: Pearson correlation over all dimensions × layers, in [−1, 1].
        r_named: the same over the dimensions of the table alone; None for fewer than three values.
        moved_named, moved_others: mean |Δz| of the dimensions of the table (None without any), and of all others.
    """

    stack: str
    site: str
    part: Literal["scale", "bias"]
    r: float
    r_named: float | None
    moved_named: float | None
    moved_others: float


@dataclass(frozen=True)
class Movement:
    """How far one group of weights moved.

    Attributes:
        group: "scale, outliers", "scale, other dimensions", "bias, …", "embeddings", "matrices", "other vectors".
        n_values: scalars in it, stored in both models.
        rms: root mean square of after − before.
        relative: L2 norm of after − before over L2 norm of before; None where all were 0.
    """

    group: str
    n_values: int
    rms: float
    relative: float | None


@dataclass(frozen=True)
class TunedSurvival:
    """One fine-tuned model against the base.

    Attributes:
        scan: of the tuned model.
        dims: every dimension found in either model, and those asked for.
        jaccard: |both| / |either| in [0, 1] by stream; 1 where neither has any.
        movement: of all weights that both files hold; () where it was left out.
        n_matched, n_only_before, n_only_after: tensors in both models, in the base alone (its head), in the tuned one alone.
    """

    scan: Scan
    dims: tuple[DimSurvival, ...]
    jaccard: dict[str, float]
    agreement: tuple[Agreement, ...]
    movement: tuple[Movement, ...]
    n_matched: int = 0
    n_only_before: int = 0
    n_only_after: int = 0
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The tuned model."""
        return self.scan.provenance.model


@dataclass(frozen=True)
class Survival(Result):
    """The outlier dimensions of a pre-trained model in models fine-tuned from it, all by one rule."""

    base: Scan
    tuned: tuple[TunedSurvival, ...]

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per tuned model and dimension."""
        for tuned in self.tuned:
            for dim in tuned.dims:
                row: dict[str, Any] = {"model": tuned.name, "stack": dim.stack, "site": dim.site, "dim": dim.dim}
                row |= {"fate": dim.fate, "layers": dim.n_layers}
                for part, shift in (("scale", dim.scale), ("bias", dim.bias)):
                    if shift is not None:
                        row |= {f"{key}_{part}": value for key, value in vars(shift).items()}
                yield row
