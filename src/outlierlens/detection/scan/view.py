"""What is said of outlier dimensions in weights, for every surface: `sections(found)`."""

from collections.abc import Iterator
from typing import Any

from outlierlens.detection.scan.result import Scan, Scans, Standing
from outlierlens.view.section import Cell, Count, Of, P, Rows, Section, percent

HEADS = {
    "model": "model", "stack": "stack", "site": "site", "dim": "dim", "layers_scale": "layers: scale",
    "layers_bias": "layers: bias", "z_scale": "z scale", "z_bias": "z bias", "p_holm": "p holm",
    "rank_scale": "rank scale", "rank_bias": "rank bias",
}  # fmt: skip
NEURONS = ("neuron", "× median", "largest value", "writes most to", "with weight")
REACH = "Of each neuron the largest value that any input of the norm before its MLP can give it."


def sections(found: Scan | Scans, *, verbose: bool = False) -> Iterator[Section]:
    """The dimensions of every stream, and a row for each; with `verbose` all columns, the rule and what was read."""
    scans = found.scans if isinstance(found, Scans) else (found,)
    rows = [row for scan in scans for row in scan.records()]
    absent = {"model"} if len(scans) == 1 else set()
    if len({(row["stack"], row["site"]) for row in rows}) < 2 and not verbose:
        absent |= {"stack", "site"}
    if not verbose and all(scan.rule.name != "luo" for scan in scans):
        absent |= {"rank_scale", "rank_bias"}
    cells = tuple(tuple(value for name, value in _cells(row).items() if name not in absent) for row in rows)
    table = Rows("", tuple(head for name, head in HEADS.items() if name not in absent), cells)
    said = [sentence for scan in scans for sentence in _sentences(scan)]
    several = ("model",) if len(scans) > 1 else ()
    neurons = tuple(
        (*((scan.provenance.model,) if several else ()), *_standing(one))
        for scan in scans for each in scan.neurons for one in each.found
    )  # fmt: skip
    standing = Rows("", (*several, *NEURONS), neurons, REACH)
    if verbose:
        said += map(_read, scans)
    if any(scan.stacks for scan in scans):
        yield Section("scan", "Outlier dimensions in the weights", tuple(said), (), (table,) if rows else ())
    else:
        yield Section("scan", "Neurons in the weights", tuple(said), (), (standing,) if neurons else ())


def _standing(one: Standing) -> tuple[Cell, ...]:
    return one.neuron, Count(round(one.times_median)), one.reach, one.dim, one.weight


def _cells(row: dict[str, Any]) -> dict[str, Cell]:
    counts = {name: row[name] for name in ("layers_scale", "layers_bias")}
    of = {name: None if count is None else Of(count, row["layers"]) for name, count in counts.items()}
    return {name: row[name] for name in HEADS} | of | {"p_holm": P(row["p_holm"])}


def _sentences(scan: Scan) -> Iterator[str]:
    for stack in scan.stacks:
        dims = ", ".join(map(str, stack.dims)) or "none"
        size = f"{stack.measure}, {stack.n_layers} × {stack.hidden_size}"
        yield f"{scan.provenance.model}, {stack.stack}, {stack.site} ({size}): {dims}"

    for one in scan.neurons:
        names = (
            ", ".join(each.neuron for each in one.found)
            or f"none (the largest is {one.largest:.3g} × its block's median)"
        )
        bare = "" if one.normed else "; no norm stands before the MLP, so all that it reads counts alike"
        yield (
            f"{scan.provenance.model}, {one.stack} (largest value that a normed input can give, from {one.times:g} × "
            f"the block's median, {one.n_layers} × {one.n_neurons:,}): {names}{bare}"
        )


def _read(scan: Scan) -> str:
    rule = f"{scan.rule.name}, {scan.rule.sigmas}, ≥ {percent(scan.rule.min_layer_fraction)} of layers"
    return f"{scan.provenance.model}: {rule}; read {scan.bytes_read:,} of {scan.total_bytes:,} bytes ({scan.source})"
