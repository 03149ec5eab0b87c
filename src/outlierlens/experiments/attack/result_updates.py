"""Whether the updates of a federated round fall on outlier entries beyond their share: plain data, without torch.

found.flagged                              # names of the clients to look at, the strongest first
found.clients[0].ratio, found.clients[0].why
"""

from dataclasses import dataclass
from typing import Any

from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class ClientUpdate:
    """One client's update, after − before.

    Attributes:
        norm: its L2 norm over all entries that were read. n_changed: entries that differ.
        share: of its squared norm that is on outlier entries, in [0, 1]. ratio: share / the entries' share of parameters.
        p: rank p-value of the share among different random sets of as many dimensions of the same tensors.
        peak: its largest |change| of an outlier entry over the largest elsewhere.
        n_top: its largest entries that were looked at. n_top_outlier: of them outlier entries. expected_top: of them by chance.
        top_p: probability of as many or more if the largest entries lay anywhere (hypergeometric).
        z: how far log(ratio) is above the clients' median, in robust standard deviations; None with fewer than three.
        top_z: the same of log(1 + n_top_outlier).
        why: what is wrong with it; empty where nothing is.
    """

    model: str
    fingerprint: str
    norm: float
    n_changed: int
    share: float
    ratio: float
    p: float
    peak: float
    n_top: int
    n_top_outlier: int
    expected_top: float
    top_p: float
    z: float | None = None
    top_z: float | None = None
    why: tuple[str, ...] = ()

    @property
    def flagged(self) -> bool:
        """Whether anything is wrong with it."""
        return bool(self.why)


@dataclass(frozen=True)
class UpdateCheck(Result):
    """Updates of one or more clients, the most conspicuous first.

    Attributes:
        deep: whether every tensor was read, and not the vectors (norms and biases on the stream) alone.
        dims: {stream: outlier dimensions}; how: in words, how they were chosen.
        n_entries: that were compared; n_outlier_entries: of them on outlier dimensions.
        alpha, least_ratio, least_peak: a client alone is flagged from these on. least_z: one among others.
        n_draws: random sets of dimensions.
        bytes_read: of the model before and all after; total_bytes: that they have.
    """

    provenance: Provenance
    deep: bool
    dims: dict[str, tuple[int, ...]]
    how: str
    n_entries: int
    n_outlier_entries: int
    clients: tuple[ClientUpdate, ...]
    alpha: float
    least_ratio: float
    least_peak: float
    least_z: float
    n_draws: int
    bytes_read: int
    total_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def expected(self) -> float:
        """Share of the entries that are outlier entries, in [0, 1]."""
        return self.n_outlier_entries / self.n_entries

    @property
    def flagged(self) -> tuple[str, ...]:
        """Clients with whom something is wrong."""
        return tuple(client.model for client in self.clients if client.flagged)

    @property
    def verdict(self) -> str:
        """One line."""
        n = len(self.clients)
        base = f"{self.expected:.2%} of the entries are outlier entries"
        if self.flagged:
            first = self.clients[0]
            return (
                f"{len(self.flagged)} of {n} update{'s' if n > 1 else ''} flagged: {first.model} puts {first.share:.1%} of "
                f"its squared norm on them ({first.ratio:.3g} times their share), {first.n_top_outlier} of its "
                f"{first.n_top} largest entries; {base}"
            )
        if not any(client.n_changed for client in self.clients):
            return f"nothing changed in what was read ({self.n_entries:,} entries)"
        largest = max(client.ratio for client in self.clients)
        return f"no update touches outlier entries beyond its share (at most {largest:.3g} times); {base}"

    def records(self) -> list[dict[str, Any]]:
        """One flat row a client."""
        return [{**vars(client), "why": "; ".join(client.why), "flagged": client.flagged} for client in self.clients]
