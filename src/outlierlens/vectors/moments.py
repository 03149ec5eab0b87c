"""Count, mean and covariance of vectors, in one pass over as many as there are.

moments = Moments(width)
moments.add(vectors)                    # [vector, dim], again and again
moments.mean, moments.covariance
moments_of(vectors.values[layer])       # the same, block by block
"""

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput

BLOCK = 4096  # vectors taken to float64 at once


class Moments:
    """Streaming moments in float64, in any order and mergeable (Chan, Golub and LeVeque 1983).

    Attributes:
        n: vectors seen. mean: of them [dim]. scatter: sum of outer products of what is left after the mean [dim, dim].
    """

    def __init__(self, width: int):
        self.n = 0
        self.mean = np.zeros(width)
        self.scatter = np.zeros((width, width))
        self._principal: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return len(self.mean)

    def add(self, vectors: np.ndarray) -> None:
        """Take in `vectors` [vector, dim].

        Raises:
            BadInput: another width, or a value that is not finite.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise BadInput(f"vectors are {vectors.shape}, expected [vector, {self.width}]")
        for start in range(0, len(vectors), BLOCK):
            block = np.asarray(vectors[start : start + BLOCK], dtype=np.float64)
            if not np.isfinite(block).all():
                raise BadInput(f"a vector to fit on is NaN or infinite; leave that text out, or {USE_FLOAT32}")
            mean = block.mean(0)
            away = block - mean
            self._take(len(block), mean, away.T @ away)

    def merge(self, other: "Moments") -> None:
        """Take in what `other` has seen; `other` stays as it is."""
        if other.width != self.width:
            raise BadInput(f"moments of {other.width} dimensions cannot join those of {self.width}")
        if other.n:
            self._take(other.n, other.mean, other.scatter)

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased covariance [dim, dim]; raises BadInput with fewer than 2 vectors."""
        if self.n < 2:
            raise BadInput(f"a covariance needs at least 2 vectors to fit on, got {self.n}; give more text")
        return self.scatter / (self.n - 1)

    @property
    def principal(self) -> tuple[np.ndarray, np.ndarray]:
        """Variances, ascending [dim], and their directions [dim, direction]: the covariance taken apart, once."""
        if self._principal is None:
            variances, directions = np.linalg.eigh(self.covariance)
            self._principal = variances, directions
        return self._principal

    def _take(self, n: int, mean: np.ndarray, scatter: np.ndarray) -> None:
        total = self.n + n
        delta = mean - self.mean
        self.scatter = self.scatter + scatter + np.outer(delta, delta) * (self.n * n / total)
        self.mean = self.mean + delta * (n / total)
        self.n = total
        self._principal = None


def moments_of(vectors: np.ndarray) -> Moments:
    """The moments of `vectors` [vector, dim]."""
    moments = Moments(vectors.shape[1])
    moments.add(vectors)
    return moments
