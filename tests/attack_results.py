"""Made-up results of `attack` and `update_check`: sign flips of sensitive values double a loss of 2 with 2 edits."""

from dataclasses import replace

from outlierlens.experiments.attack.result import Attack, Attacked, Control, Edit, Point
from outlierlens.experiments.attack.result_updates import ClientUpdate, UpdateCheck
from outlierlens.results.document import Provenance

BY = Provenance("m", "f", command="outlierlens attack m --data d.txt --budget 2", seed=0)


def edits(caught: bool, deep: bool | None = None) -> tuple[Edit, ...]:
    """Two sign flips."""
    return tuple(Edit("norm.weight", (dim,), dim, 1.0, -1.0, None, dim, caught, deep) for dim in (0, 1))


def attacked(among: str = "sensitive", *, caught: bool = True, deep: bool | None = None) -> Attacked:
    """Damage 0.5 with one edit, 3 with two; random edits change 0.01."""
    points = (
        Point(1, 1, 2.5, 0.5, 0.4, 0.6, 1.25, 2.6, edits(caught)[:1]),
        Point(2, 2, 5.0, 3.0, 2.5, 3.5, 2.5, 5.2, edits(caught, deep)),
    )
    controls = (Control("sensitive", (0.01, 0.02, 0.0), 2, 0.25), Control("anywhere", (0.0, 0.0, 0.001), 2, 0.25))
    return Attacked("sign flip", among, points, points[1], controls if among == "sensitive" else (), 9)


def attack() -> Attack:
    """Both families."""
    return Attack(
        provenance=BY, data="d.txt", data_digest="0", task="causal loss", unit="nats per token", n_texts=8, n_tokens=90,
        n_search=4, max_length=32, intact=2.0, budget=2, budgets=(1, 2), factor=2.0, dtype="float32", bound=10.0,
        n_sensitive=60, n_values=1000, dims=(0,), kinds=(attacked(),),
        anywhere=(attacked("anywhere", caught=False, deep=True),), notes=("a note",),
    )  # fmt: skip


def update_check() -> UpdateCheck:
    """The first of three clients is flagged."""
    good = ClientUpdate("b", "2", 1.0, 900, 0.011, 1.1, 0.4, 0.8, 48, 1, 0.48, 0.4, 0.0, 0.0)
    bad = replace(
        good,
        model="a",
        share=0.6,
        ratio=60.0,
        p=0.0005,
        peak=9.0,
        n_top_outlier=40,
        top_p=1e-9,
        z=41.0,
        why=("too much",),
    )
    clients = (bad, good, replace(good, model="c"))
    return UpdateCheck(
        BY, False, {"model": (0,)}, "model: as given", 1000, 10, clients, 0.01, 10.0, 3.0, 3.5, 1999, 4000, 90_000
    )


def made() -> dict[str, object]:
    """{kind: result}."""
    return {"Attack": attack(), "UpdateCheck": update_check()}
