"""Linear repairs of vectors: x -> (x − centre) · matrix, fitted on text that is never the evaluated one.

    asked = parse_fixes("raw,clip,centre,standardize,abtt:3,whiten:256")
    fix = make_fix(asked[3], width, moments=moments_of(fitting), dims=(557,))
    better = fix.apply(vectors)                       # [vector, dim] -> [vector, kept], float64
    fix.weight, fix.bias                              # the same as a dense layer: x · weightᵀ + bias

raw          as they are
clip         chosen dimensions are zero (Luo et al. 2021, section 4: of extracted vectors, never inside the network)
centre       the mean of the fitting text is taken away
standardize  mean 0 and variance 1 in every dimension (Timkey and van Schijndel 2021, section 5)
abtt:k       all but the top: centred, without the k directions of largest variance (Mu and Viswanath 2018); k = 3
whiten:k     centred, covariance I; with k, the k directions of largest variance (Su et al. 2021); k = all

Each is affine, so it commutes with the mean over tokens: sentence vectors are repaired after pooling, and a repair can be
stored as one dense layer behind it. Whitening fitted on fewer than 10 vectors a dimension is shrunk towards the mean
variance, by the oracle approximating shrinkage of Chen et al. (2010).

Count, mean and covariance of vectors, in one pass over as many as there are.

moments = VectorMoments(width)
moments.add(vectors)                    # [vector, dim], again and again
moments.mean, moments.covariance
moments_of(vectors.values[layer])       # the same, block by block
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.ablation.switches import check_dims
from outlierlens.errors import USE_FLOAT32, BadInput

BLOCK = 4096  # vectors taken to float64 at once
KINDS = ("raw", "clip", "centre", "standardize", "abtt", "whiten")
USUAL = "raw,clip,standardize,abtt,whiten"  # what commands measure unless asked otherwise
SPELLED = {"center": "centre", "standardise": "standardize"}
ENOUGH = 10  # vectors a dimension that a covariance needs without shrinkage
TOP = 3  # directions that all-but-the-top removes
FLOOR = 1e-10  # a variance below this share of the largest is rounding, and is not divided by


class VectorMoments:
    """Streaming moments in float64, in any order (Chan, Golub and LeVeque 1983).

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
            mean, total = block.mean(0), self.n + len(block)
            away, delta = block - mean, mean - self.mean
            self.scatter = self.scatter + away.T @ away + np.outer(delta, delta) * (self.n * len(block) / total)
            self.mean = self.mean + delta * (len(block) / total)
            self.n = total
        self._principal = None

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


def moments_of(vectors: np.ndarray) -> VectorMoments:
    """The moments of `vectors` [vector, dim]."""
    moments = VectorMoments(vectors.shape[1])
    moments.add(vectors)
    return moments


@dataclass(frozen=True)
class FixSpec:
    """A repair as asked for: its kind, and `k` of abtt and whiten."""

    kind: str
    k: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"unknown fix {self.kind!r}; fixes are {', '.join(KINDS)}")
        if self.k is not None and (self.kind not in ("abtt", "whiten") or self.k < 1):
            raise BadInput(f"fix {self.kind}:{self.k}: a number belongs to abtt and whiten, and is at least 1")

    @property
    def name(self) -> str:
        """ "abtt:3"."""
        k = TOP if self.kind == "abtt" and self.k is None else self.k
        return self.kind if k is None else f"{self.kind}:{k}"

    @property
    def dense(self) -> bool:
        """Whether it is a matrix [dim, dim] and not a factor for each dimension."""
        return self.kind in ("abtt", "whiten")

    @property
    def fitted(self) -> bool:
        """Whether it needs a text to fit on."""
        return self.kind not in ("raw", "clip")


@dataclass(frozen=True)
class Fix:
    """x -> (x − centre) · matrix.

    Attributes:
        name: "whiten:256".
        centre: [dim]. matrix: [dim, kept]; or [dim], a factor for each dimension.
        n_fitted: vectors that it was fitted on; 0 for raw and clip.
        shrinkage: of whiten, in [0, 1]; else 0.
    """

    name: str
    centre: np.ndarray
    matrix: np.ndarray
    n_fitted: int = 0
    shrinkage: float = 0.0

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """[..., dim] -> [..., kept], float64."""
        away = np.asarray(vectors, dtype=np.float64) - self.centre
        return away * self.matrix if self.matrix.ndim == 1 else away @ self.matrix

    @property
    def weight(self) -> np.ndarray:
        """Of a dense layer that does the same [kept, dim]."""
        return np.diag(self.matrix) if self.matrix.ndim == 1 else self.matrix.T

    @property
    def bias(self) -> np.ndarray:
        """Of that layer [kept]."""
        return -(self.weight @ self.centre)


def parse_fixes(text: str) -> tuple[FixSpec, ...]:
    """ "raw,clip,abtt:3" -> specifications; raises BadInput for anything else."""
    found = []
    for part in text.split(","):
        kind, colon, k = part.strip().partition(":")
        if colon and (not k.isdecimal() or len(k) > 9):
            raise BadInput(f"cannot read the fix {part.strip()!r}; write abtt:3 or whiten:256")
        found.append(FixSpec(SPELLED.get(kind, kind), int(k) if colon else None))
    return tuple(dict.fromkeys(found))


def raw_first(specs: Sequence[FixSpec]) -> tuple[FixSpec, ...]:
    """`specs`, each once, behind raw vectors, which everything is compared with."""
    return tuple(dict.fromkeys((FixSpec("raw"), *specs)))


def make_fix(spec: FixSpec, width: int, *, moments: VectorMoments | None = None, dims: Sequence[int] = ()) -> Fix:
    """The repair of vectors of `width` dimensions; `moments` of the fitting text, `dims` for clip.

    Raises:
        BadInput: no text to fit on, a dimension or a `k` that the vectors do not have, or a covariance of all zeros.
    """
    if spec.kind == "raw":
        return Fix(spec.name, np.zeros(width), np.ones(width))
    if spec.kind == "clip":
        check_dims(dims, width, "the vectors")
        kept = np.ones(width)
        kept[list(dims)] = 0
        return Fix(spec.name, np.zeros(width), kept)
    if moments is None:
        raise BadInput(f"fix {spec.name} needs a text to fit on; name one (--fit-data) that is not the evaluated one")
    if moments.width != width:
        raise BadInput(f"fix {spec.name} was fitted on {moments.width} dimensions; the vectors have {width}")
    if spec.k is not None and spec.k > width - (spec.kind == "abtt"):
        raise BadInput(f"fix {spec.name}: the vectors have {width} dimensions")
    if spec.kind == "centre":
        return Fix(spec.name, moments.mean, np.ones(width), moments.n)
    if spec.kind == "standardize":
        variance = np.diag(moments.covariance)
        alive = variance > FLOOR * variance.max()
        return Fix(spec.name, moments.mean, np.where(alive, 1 / np.sqrt(np.where(alive, variance, 1)), 0), moments.n)
    if spec.kind == "abtt":
        _, directions = moments.principal
        top = directions[:, max(1, width - (spec.k or TOP)) :]
        return Fix(spec.name, moments.mean, np.eye(width) - top @ top.T, moments.n)
    return _whiten(spec, moments)


def chosen_shrinkage(moments: VectorMoments) -> float:
    """0 with 10 vectors per dimension or more, else the oracle approximating shrinkage (Chen et al. 2010, eq. 23)."""
    if moments.n >= ENOUGH * moments.width:
        return 0.0
    covariance = moments.scatter / max(moments.n, 1)
    width = moments.width
    squares, trace = float((covariance**2).sum()), float(np.trace(covariance)) ** 2
    above = (1 - 2 / width) * squares + trace
    below = (moments.n + 1 - 2 / width) * (squares - trace / width)
    return 1.0 if below <= 0 else min(1.0, above / below)


def _whiten(spec: FixSpec, moments: VectorMoments) -> Fix:
    shrinkage = chosen_shrinkage(moments)
    variances, directions = moments.principal
    # Shrinking towards an even covariance leaves the directions as they are.
    variances = (1 - shrinkage) * variances + shrinkage * variances.mean()
    order = np.argsort(-variances, kind="stable")[: spec.k or moments.width]
    largest = variances[order[0]]
    if not largest > 0:
        raise BadInput(f"fix {spec.name}: all vectors to fit on are alike; give another text")
    variances, directions = variances[order], directions[:, order]
    # A direction without variance carries nothing that could be scaled up.
    factors = np.where(variances > FLOOR * largest, 1 / np.sqrt(np.maximum(variances, FLOOR * largest)), 0)
    return Fix(spec.name, moments.mean, directions * factors, moments.n, shrinkage)
