"""`outlierlens compare`, from its options to its result."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from outlierlens.detection.scan.measure import ScanOptions, scan
from outlierlens.detection.scan.result import Scan, StackScan, strongest
from outlierlens.errors import BadInput, command, operand
from outlierlens.experiments.compare.options import CompareOptions
from outlierlens.experiments.compare.result import Comparison, DimFate
from outlierlens.experiments.integrity.fingerprint import FingerprintOptions
from outlierlens.experiments.integrity.verify import compare_values
from outlierlens.results.document import load
from outlierlens.session import Session


def run(session: Session, options: CompareOptions) -> Comparison:
    """Outliers of one model against those of the other; with --values sensitive values too."""
    if options.values and (scans := [name for name in (options.base, options.other) if _is_scan(name)]):
        raise BadInput(f"{scans[0]} is a scan, which holds no values: --values needs the models themselves")
    before = session.scanning(options.scan)
    after = replace(before, revision=options.other_revision or before.revision)
    found = compare(*(_scan_of(*one, session) for one in ((options.base, before), (options.other, after))))
    if not options.values:
        return found
    asked = FingerprintOptions(scan=before, dims=options.dims, deep=options.deep)
    return replace(found, values=compare_values(options.base, options.other, asked, after, command=session.command))


def _scan_of(name: str, options: ScanOptions, session: Session) -> Scan:
    if not _is_scan(name):
        return scan(name, options, command=session.command)
    loaded = load(name)
    if not isinstance(loaded, Scan):
        raise BadInput(
            f"{name} holds a {type(loaded).__name__}, not a Scan; make it with {command('scan', 'MODEL', '-o', operand(name))}"
        )
    return loaded


def _is_scan(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".index.json") and Path(name).is_file()


def compare(before: Scan, after: Scan) -> Comparison:
    """Which outliers stayed, came and went from `before` to `after`, both scanned under one rule and view.

    Raises:
        BadInput: rules, views, stacks or widths differ.
    """
    if before.rule != after.rule or before.view != after.view:
        raise BadInput("the two scans used different rules or views; scan both the same way")
    ours = {(s.stack, s.site): s for s in before.stacks}
    theirs = {(s.stack, s.site): s for s in after.stacks}
    if ours.keys() != theirs.keys() or any(ours[k].hidden_size != theirs[k].hidden_size for k in ours):
        sizes = " against ".join(
            ", ".join(f"{s.stack}: {s.site} × {s.hidden_size}" for s in scan.stacks) for scan in (before, after)
        )
        raise BadInput(f"the two models have different streams ({sizes}); compare models of one architecture")
    changes: list[DimFate] = []
    jaccard, moved = {}, {}
    for key, stack in ours.items():
        other = theirs[key]
        was, now = ({o.dim: o for o in s.outliers} for s in (stack, other))
        for dim in sorted(was.keys() | now.keys()):
            fate: Literal["stayed", "came", "went"]
            fate = "stayed" if dim in was and dim in now else "came" if dim in now else "went"
            changes.append(
                DimFate(
                    stack=stack.stack,
                    site=stack.site,
                    dim=dim,
                    fate=fate,
                    z_scale_before=_column(stack, dim),
                    z_scale_after=_column(other, dim),
                    layers_before=len(was[dim].layers_scale) if dim in was else 0,
                    layers_after=len(now[dim].layers_scale) if dim in now else 0,
                )
            )
        either = was.keys() | now.keys()
        where = stack.stack if len({s for s, _ in ours}) == len(ours) else f"{stack.stack}, {stack.site}"
        jaccard[where] = len(was.keys() & now.keys()) / len(either) if either else 1.0
        went, came = len(was.keys() - now.keys()), len(now.keys() - was.keys())
        moved[where] = went == came > 0
    return Comparison(before.provenance, after.provenance, tuple(changes), jaccard, moved)


def _column(stack: StackScan, dim: int) -> float:
    """Strongest z of `dim` over layers; NaN where the map does not hold it."""
    if dim not in stack.map_dims:
        return float("nan")
    return strongest(tuple(stack.z_scale[:, stack.map_dims.index(dim)].tolist()))
