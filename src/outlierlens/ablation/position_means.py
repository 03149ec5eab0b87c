"""Mean hidden values of some dimensions at every position, for `edited_hidden("position mean")`.

    with collected(loaded, stack, dims) as sums:     # every forward pass inside adds up its own tokens
        task.per_text()
    means = sums.means(width)                        # [layer, dim], for "mean"
    table = sums.position_means()                    # for "position mean"

A position is the number of valid tokens before a token in its row: 0 is the first token of what the model reads at once,
wherever padding stands. Padding is never counted. Sums add up, so those of all texts less those of some are those of the
others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import EMBEDDINGS, tapped, valid_tokens
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.architectures import BoundStack


@dataclass(frozen=True)
class PositionMeans:
    """Mean values `values` [layer, position + 1, column] of the dimensions `dims` [column].

    The last row is the mean over all tokens: it stands for positions that are not in the table.
    """

    dims: tuple[int, ...]
    values: np.ndarray

    def columns(self, dims: Sequence[int]) -> list[int]:
        """Places of `dims` in the table; raises BadInput for one that is not in it."""
        places = {dim: column for column, dim in enumerate(self.dims)}
        missing = [dim for dim in dims if dim not in places]
        if missing:
            raise BadInput(f"the means hold no dimension {missing[0]}; collect them for all dimensions that are edited")
        return [places[dim] for dim in dims]


@dataclass
class PositionSums:
    """Sums of hidden values by layer and position.

    Attributes:
        dims: dimensions of the columns.
        sums: [layer, position, column]. counts: tokens at each position [position].
    """

    dims: tuple[int, ...]
    sums: np.ndarray
    counts: np.ndarray

    def add(self, layer: int, states: "Tensor", valid: "Tensor") -> None:
        """Add the valid tokens of `states` [batch, token, dim]; `valid` is bool [batch, token]."""
        import torch

        places = positions(valid)[valid].cpu()
        index = torch.tensor(self.dims, device=states.device)
        values = states[valid].index_select(1, index).detach().cpu().double()  # [token, column]
        length = int(places.max()) + 1 if len(places) else 0
        if length > len(self.counts):
            longer = self._longer(length)
            self.sums, self.counts = longer.sums, longer.counts
        np.add.at(self.sums[layer], places.numpy(), values.numpy())
        if layer == 0:
            np.add.at(self.counts, places.numpy(), 1)

    @property
    def n_tokens(self) -> int:
        """Tokens that were added up."""
        return int(self.counts.sum())

    def plus(self, other: "PositionSums", sign: int = 1) -> "PositionSums":
        """Both together; with `sign` −1 this without `other`, which is a part of it."""
        length = max(len(self.counts), len(other.counts))
        mine, theirs = self._longer(length), other._longer(length)
        return PositionSums(self.dims, mine.sums + sign * theirs.sums, mine.counts + sign * theirs.counts)

    def means(self, width: int) -> np.ndarray:
        """Mean over all tokens, [layer, `width`]; NaN for dimensions that were not collected.

        Raises:
            BadInput: no token was added up.
        """
        found = np.full((len(self.sums), width), np.nan)
        found[:, list(self.dims)] = self._overall()
        return found

    def position_means(self) -> PositionMeans:
        """Means at every position; where no token was, the mean over all tokens.

        Raises:
            BadInput: no token was added up.
        """
        overall = self._overall()[:, None]  # [layer, 1, column]
        seen = self.counts > 0
        means = self.sums / np.where(seen, self.counts, 1)[None, :, None]
        return PositionMeans(
            self.dims, np.concatenate([np.where(seen[None, :, None], means, overall), overall], axis=1)
        )

    def _overall(self) -> np.ndarray:
        if not self.n_tokens:
            raise BadInput("no token to take the mean over; give at least one text")
        return np.asarray(self.sums.sum(1) / self.n_tokens)

    def _longer(self, length: int) -> "PositionSums":
        more = length - len(self.counts)
        sums = np.pad(self.sums, ((0, 0), (0, more), (0, 0)))
        return PositionSums(self.dims, sums, np.pad(self.counts, (0, more)))


@temporary
def collected(loaded: LoadedModel, stack: "BoundStack", dims: Sequence[int]) -> Iterator[PositionSums]:
    """Add up the values of `dims` in each block's output, in every forward pass inside the block."""
    found = PositionSums(tuple(dims), np.zeros((stack.n_layers, 0, len(dims))), np.zeros(0, dtype=np.int64))
    with valid_tokens(loaded.model) as mask_of:

        def look(_: "BoundStack", layer: int, states: "Tensor") -> None:
            if layer != EMBEDDINGS:
                found.add(layer, states, mask_of(states))

        with tapped(loaded.model, [stack], look):
            yield found


def positions(valid: "Tensor") -> "Tensor":
    """Number of valid tokens before each token of its row, int [batch, token], from bool `valid` [batch, token]."""
    return (valid.long().cumsum(1) - 1).clamp_min(0)


def first_tokens(valid: "Tensor") -> "Tensor":
    """The first valid token of each row: bool [batch, token] from bool `valid` [batch, token]."""
    return valid & (valid.long().cumsum(1) == 1)
