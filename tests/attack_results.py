"""Made-up results of `attack` and `update_check`: sign flips of sensitive values double a loss of 2 with 2 edits."""

from dataclasses import replace

from outlierlens.analyses.attack import Attack, AttackEdit, EditDamage
from outlierlens.analyses.compare_updates import ClientUpdate, UpdateCheck
from outlierlens.results.document import Provenance
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate

BY = Provenance("m", "f", command="outlierlens lab attack m --data d.txt --budget 2", seed=0)


def attack() -> Attack:
    """Damage 0.5 with one edit, 3 with two; random edits change 0.01."""
    one = EditDamage(
        kind="sign-flip", budget=1, n_edits=1, value=Estimate(2.5, 2.4, 2.6), change=Estimate(0.5, 0.4, 0.6), times=1.25,
        searched=2.6, per_text=(2.5,) * 8,
    )  # fmt: skip
    two = replace(
        one, budget=2, n_edits=2, value=Estimate(5.0, 4.5, 5.5), change=Estimate(3.0, 2.5, 3.5), times=2.5, searched=5.2,
        enough=2, random=(0.01, 0.02, 0.0), p=0.25, caught=2,
    )  # fmt: skip
    edit = AttackEdit(
        kind="sign-flip", budget=1, move=0, tensor="norm.weight", index=(0,), dim=0, before=1.0, after=-1.0, bit=None,
        caught=None,
    )  # fmt: skip
    edits = (edit, *(replace(edit, budget=2, move=i, index=(i,), dim=i, caught=True) for i in (0, 1)))
    return Attack(
        provenance=BY, points=(one, two), edits=edits, budget=2, factor=2.0, intact=2.0, n_search=4, n_sensitive=60,
        n_values=1000, notes=("a note",),
        about=About(
            data="d.txt", task="causal loss", unit="nats per token", stack="model", layers=(0, 1), dims=("0",),
            named_by="as given", n_texts=8, n_tokens=90, max_length=32,
        ),
    )  # fmt: skip


def update_check() -> UpdateCheck:
    """The first of three clients is flagged."""
    good = ClientUpdate(
        model="b", fingerprint="2", norm=1.0, n_changed=900, share=0.011, ratio=1.1, p=0.4, peak=0.8, n_top=48,
        n_top_outlier=1, expected_top=0.48, top_p=0.4, z=0.0, top_z=0.0,
    )  # fmt: skip
    bad = replace(
        good, model="a", share=0.6, ratio=60.0, p=0.0005, peak=9.0, n_top_outlier=40, top_p=1e-9, z=41.0, why=("too much",),
        flagged=True,
    )  # fmt: skip
    return UpdateCheck(
        provenance=BY, about=About(stack="model", dims=("0",), named_by="as given"), deep=False, n_entries=1000,
        n_outlier_entries=10, clients=(bad, good, replace(good, model="c")), bytes_read=4000,
    )  # fmt: skip


def made() -> dict[str, object]:
    """{kind: result}."""
    return {"Attack": attack(), "UpdateCheck": update_check()}
