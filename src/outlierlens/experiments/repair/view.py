"""What is said of a repaired model: `sections(found)`."""

from collections.abc import Iterator
from pathlib import Path

from outlierlens.experiments.repair.result import Repaired
from outlierlens.view.section import Rows, Section, cell_text, rows_of


def sections(found: Repaired, *, verbose: bool = False, folder: Path | None = None) -> Iterator[Section]:
    """What was rewritten, whether outputs stayed, and how it does in the target format."""
    tables = [rows_of(f"In {found.fit}, before and after", found.records())]
    if verbose:
        pairs = zip(found.before.layers, found.after.layers, strict=True)
        rows = tuple((layer, before, after) for layer, (before, after) in enumerate(pairs))
        tables.append(Rows("Largest |h| after each block", ("layer", "before", "after"), rows))
    yield Section("repair", "A repaired model", tuple(_sentences(found, folder)), (), tuple(tables))


def _sentences(found: Repaired, folder: Path | None) -> Iterator[str]:
    if found.rotated:
        names = [", ".join(map(str, one.named)) or "none" for one in (found.before, found.after)]
        yield f"The residual stream is turned. Dimensions that a scan names: {names[0]}; now: {names[1]}. Weights are float32."
    if found.exponent:
        before, after = cell_text(found.before.largest), cell_text(found.after.largest)
        yield f"The residual stream is divided by {2**-found.exponent:,}: its largest value was {before} and is {after}."
    for key, (old, new) in found.epsilons.items():
        yield f"{key} in the config: {old:g} became {new:.6g}."
    if found.n_neurons:
        yield (
            f"{found.n_neurons:,} neurons take a factor of their own: a row of the linear before them, and back in the one "
            f"behind."
        )
    if found.untied:
        yield "The head is a parameter of its own now."
    yield f"{found.n_changed:,} of {found.n_parameters:,} parameters change."
    read = f"{found.n_texts:,} texts and {found.n_random:,} random tokens"
    if found.exact:
        yield f"Outputs in float32 are equal bit for bit on {read}."
    else:
        why = "; ".join(found.reasons)
        yield f"Outputs in float32 differ by {found.difference:.2g} of the largest on {read}: {why}."
    yield f"written: {folder or found.folder}"
