"""`outlierlens compare`, from its options to its result."""

from dataclasses import replace
from pathlib import Path

from outlierlens.detection.scan.measure import ScanOptions, scan
from outlierlens.detection.scan.result import Scan
from outlierlens.errors import BadInput
from outlierlens.experiments.compare.options import CompareOptions
from outlierlens.experiments.compare.result import Comparison, compare
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
            f"{name} holds a {type(loaded).__name__}, not a Scan; make it with outlierlens scan MODEL -o {name}"
        )
    return loaded


def _is_scan(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".index.json") and Path(name).is_file()
