"""What the report says of attacks and of federated updates: `attack_sections(attacks, checks)`, one section each."""

from collections.abc import Sequence

from outlierlens.attacked import Attack, Attacked
from outlierlens.charts.attack import attack as draw
from outlierlens.updated import UpdateCheck
from outlierlens.view.section import Rows, Section

HEADS = (
    "edit",
    "of values",
    "values changed",
    "change",
    "95 % from",
    "to",
    "times",
    "found by verify",
    "by verify --deep",
)
CLIENT = (
    "client",
    "flagged",
    "share",
    "times its share",
    "rank p",
    "peak",
    "of the largest",
    "expected",
    "p",
    "robust z",
)


def attack_sections(attacks: Sequence[Attack] = (), checks: Sequence[UpdateCheck] = ()) -> tuple[Section, ...]:
    """A section for each attack and for each check of updates; none without them."""
    made = [_attack(found, number) for number, found in enumerate(attacks)]
    return (*made, *(_updates(found, number) for number, found in enumerate(checks)))


def _attack(found: Attack, number: int) -> Section:
    name = "attack" + (f"-{number + 1}" if number else "")
    said = [f"{found.verdict[:1].upper()}{found.verdict[1:]}."]
    for one in found.kinds:
        if one.controls:
            beside = ", ".join(f"{control.median:+.2g} {control.among}" for control in one.controls)
            said.append(f"{one.kind.capitalize()}: {one.full.change:+.3g}; as many random edits: median {beside}.")
    for one in found.anywhere:
        caught, asked = found.detected(one)
        deep, _ = found.detected(one, deep=True)
        said.append(
            f"{one.kind.capitalize()} of any weight, by gradient × change: {one.full.change:+.3g}; verify finds {caught} of "
            f"{asked}, verify --deep {deep}."
        )
    rows = tuple(_row(found, one) for one in (*found.kinds, *found.anywhere))
    note = (
        f"{found.n_texts} texts of {found.data} judge, {found.n_search} others chose the edits. Sensitive values are the "
        f"{found.n_sensitive:,} that a fingerprint holds, of {found.n_values:,}. Each edit was made alone for verify."
    )
    return Section(
        name,
        "How much damage few edits do",
        tuple(said),
        (draw(found, name=name),),
        (Rows("Edits", HEADS, rows, note),),
    )


def _row(found: Attack, one: Attacked) -> tuple[object, ...]:
    full = one.full
    caught, asked = found.detected(one)
    deep, deep_asked = found.detected(one, deep=True)
    return (
        one.kind, one.among, full.n_edits, full.change, full.low, full.high, full.times if found.factor else None,
        f"{caught} of {asked}", f"{deep} of {deep_asked}" if deep_asked else None,
    )  # fmt: skip


def _updates(found: UpdateCheck, number: int) -> Section:
    said = [f"{found.verdict[:1].upper()}{found.verdict[1:]}."]
    said += [f"{client.model}: {why}." for client in found.clients for why in client.why]
    rows = tuple(
        (
            client.model, "yes" if client.flagged else "no", f"{client.share:.3%}", client.ratio, client.p, client.peak,
            f"{client.n_top_outlier} of {client.n_top}", client.expected_top, client.top_p, client.z,
        )
        for client in found.clients
    )  # fmt: skip
    read = "every tensor" if found.deep else "norms and biases on the stream"
    note = f"{found.n_outlier_entries:,} of {found.n_entries:,} entries are outlier entries; {read} were read."
    name = "updates" + (f"-{number + 1}" if number else "")
    return Section(name, "Updates of a federated round", tuple(said), (), (Rows("Clients", CLIENT, rows, note),))
