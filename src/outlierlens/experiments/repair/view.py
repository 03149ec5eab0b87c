"""What is said of a repaired model: `sections(found)`."""

from collections.abc import Iterator
from math import inf
from pathlib import Path

from outlierlens.analyses.range import INSIDE
from outlierlens.errors import command, operand
from outlierlens.experiments.repair.options import LIMITS
from outlierlens.experiments.repair.result import Repaired
from outlierlens.view.section import Rows, Section, cell_text, rows_of

CHANNELS = {
    "neurons": "neurons take a factor of their own: a row of the linear before them, and back in the one behind.",
    "values": "dimensions of values take a factor of their own, and back in the columns that read them.",
    "keys": "dimensions of keys take a factor of their own, and back in the queries that meet them.",
    "norms": "weights of norms take a factor of their own, and back in the columns that read them.",
}


def sections(found: Repaired, *, verbose: bool = False, folder: Path | None = None) -> Iterator[Section]:
    """What was rewritten, whether outputs stayed, and how it does in the target format."""
    tables = [rows_of(f"In {found.fit}, before and after", found.records())]
    if verbose:
        pairs = zip(found.before.layers, found.after.layers, strict=True)
        rows = tuple((layer, before, after) for layer, (before, after) in enumerate(pairs))
        tables.append(Rows("Largest |h| after each block", ("layer", "before", "after"), rows))
        kinds = tuple((kind, size, found.after.kinds.get(kind)) for kind, size in found.before.kinds.items())
        tables.append(Rows("Largest |x| of each kind of tensor", ("tensor", "before", "after"), kinds))
    yield Section("repair", "A repaired model", tuple(_sentences(found, folder)), (), tuple(tables))


def _sentences(found: Repaired, folder: Path | None) -> Iterator[str]:
    if not found.folder:
        yield _unchanged(found)
        yield from _beyond(found)
        yield "Nothing was written."
        return
    if found.rotated:
        names = [", ".join(map(str, one.named)) or "none" for one in (found.before, found.after)]
        yield f"The residual stream is turned. Dimensions that a scan names: {names[0]}; now: {names[1]}. Weights are float32."
    if found.exponent:
        before, after = cell_text(found.before.largest), cell_text(found.after.largest)
        yield f"The residual stream is divided by {2**-found.exponent:,}: its largest value was {before} and is {after}."
    for key, (old, new) in found.epsilons.items():
        yield f"{key} in the config: {old:g} became {new:.6g}."
    for kind, count in found.channels.items():
        yield f"{count:,} {CHANNELS[kind]}"
    if found.untied:
        yield "The head is a parameter of its own now."
    yield f"{found.n_changed:,} of {found.n_parameters:,} parameters change."
    read = f"{found.n_texts:,} {found.inputs} and {found.n_random:,} random tokens"
    if found.exact:
        yield f"Outputs in float32 are equal bit for bit on {read}."
    else:
        why = "; ".join(found.reasons)
        yield f"Outputs in float32 differ by {found.difference:.2g} of the largest on {read}: {why}."
    yield from _beyond(found)
    yield f"written: {folder or found.folder}"


def _unchanged(found: Repaired) -> str:
    model = found.provenance.model
    if found.fit == "int8":
        return (
            f"No repair helps: no factors of neurons bring {model}'s outputs in int8 nearer to float32. "
            f"`{command('quantize', operand(model))}` measures what int8 costs."
        )
    largest = cell_text(found.before.largest)
    return (
        f"No repair needed: {model} fits {found.fit} with a margin of {found.margin:g} ×. The largest value of its residual "
        f"stream is {largest}."
    )


def _beyond(found: Repaired) -> Iterator[str]:
    limit = LIMITS.get(found.fit, inf)
    if beyond := [kind for kind, size in found.after.kinds.items() if size > limit and kind not in INSIDE]:
        yield f"Still beyond {found.fit}: {', '.join(beyond)}. No factor passes there."
