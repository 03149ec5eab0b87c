"""`fingerprint` and `verify`: record a model's sensitive values and hold copies against them; no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.common import Show, print_table, say
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.fingerprinted import Fingerprint
    from outlierlens.verified import Verification

SHOWN = 20  # rows of each table without --verbose

Dims = Annotated[
    str | None,
    typer.Option("--dims", help="308,381: these are the dangerous dimensions; default: what scan finds.", show_default=False),
]  # fmt: skip
Deep = Annotated[
    bool, typer.Option("--deep", help="Also embedding columns and hashes of whole tensors; reads everything.")
]
MaxRead = Annotated[str, typer.Option("--max-read", help="Refuse to read more than this to find the dimensions.")]


def fingerprint(
    model: common.Model,
    dims: Dims = None,
    deep: Deep = False,
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: MaxRead = "500MB",
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Record the sensitive values of a model, for `verify` to hold copies against."""
    show = Show.choose(format, json, quiet, output, overwrite)
    if output is None and show.format != "json":
        raise BadInput("name the file that shall keep the fingerprint: -o f.json (or --json for stdout)")
    from outlierlens.integrity.fingerprint import fingerprint as take

    options = fingerprint_options(
        dims, deep,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), revision=revision, subfolder=subfolder, token=token,
        offline=offline, notice=None if quiet else common.warn,
    )  # fmt: skip
    show.result(take(model, options, command=common.reproduce()), lambda found: _print_fingerprint(found, output))


def fingerprint_options(dims: str | None, deep: bool, **scan: Any) -> Any:
    """`FingerprintOptions` of the command line's words."""
    from outlierlens.integrity.fingerprint import FingerprintOptions
    from outlierlens.weights import ScanOptions

    asked = spelling.plain_dims(dims) if dims else None
    return FingerprintOptions(scan=ScanOptions(**scan), dims=asked, deep=deep)


def verify(
    model: common.Model,
    baseline: Annotated[
        Path, typer.Option("--baseline", help="The fingerprint to hold it against.", show_default=False)
    ],
    deep: Deep = False,
    arch: common.Arch = None,
    family: common.Family = None,
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
) -> None:
    """Say which sensitive values moved since the fingerprint, and whether they are the dangerous ones.

    Exit code 0: it matches; 3: it does not; 2: there is nothing to verify (an unusable baseline or model).
    """
    with common.unusable_is_2():
        show = Show.choose(format, json, quiet, output, overwrite)
        from outlierlens.integrity.fingerprint import load_fingerprint
        from outlierlens.integrity.verify import verify as hold
        from outlierlens.weights import ScanOptions

        options = ScanOptions(
            row=common.row_of(arch, family), revision=revision, subfolder=subfolder, token=token, offline=offline
        )
        found = hold(model, load_fingerprint(baseline), options, deep=deep, command=common.reproduce())
        show.result(found, lambda value: print_verification(value, verbose))
    if not found.matches:
        raise typer.Exit(common.FAILED)


def print_verification(found: "Verification", verbose: bool = False) -> None:
    """The verdict; tensors that are not the same; moved values; what was read."""
    say(f"{found.provenance.model} {found.verdict}")
    shown = [one for one in found.tensors if one.fails or verbose or one.fate == "extra"]
    if shown:
        rows = [
            (
                one.name, one.role, one.fate, f"{one.n_moved:,}" if one.n_moved else None,
                f"{one.n_dangerous:,}" if one.n_moved else None, one.largest or None,
                _types(one.dtype_before, one.dtype_after), one.note,
            )
            for one in shown[: None if verbose else SHOWN]
        ]  # fmt: skip
        print_table("", ("part", "role", "fate", "moved", "dangerous", "largest change", "types", "why"), rows)
        _more(len(shown) - len(rows), "tensors")
    if found.moved:
        values = found.moved[: None if verbose else SHOWN]
        lines = [
            (
                "dangerous" if one.dangerous else "", one.name, ", ".join(map(str, one.index)), one.dim,
                _exact(one.before), _exact(one.after), f"{one.change:+.3g}", one.allowed,
            )
            for one in values
        ]  # fmt: skip
        print_table("", ("says", "part", "index", "dim", "before", "after", "change", "rounding allows"), lines)
        _more(found.n_moved - len(values), "values")
    for stream in found.streams:
        dims = ", ".join(map(str, stream.dims)) or "none"
        if verbose:
            say(f"dangerous in stream {stream.name}: entries of dimension {dims} ({stream.how})")
    for note in found.notes:
        say(f"note: {note}")
    say(read_share(found.bytes_read, found.total_bytes))


def read_share(read: int, total: int) -> str:
    """How much of the files was read, in words."""
    return f"read {read:,} of {total:,} bytes ({read / max(total, 1):.2%})"


def _print_fingerprint(found: "Fingerprint", output: Path | None) -> None:
    size = f", {output.stat().st_size:,} bytes" if output else ""
    say(
        f"{found.provenance.model}: {found.n_values:,} sensitive values of {len(found.entries):,} tensors, "
        f"{found.n_dangerous:,} of them outlier entries{size}"
    )
    for stream in found.streams:
        dims = ", ".join(map(str, stream.dims)) or "none"
        say(f"{stream.name}, {stream.n_layers} × {stream.hidden_size}: dimension {dims} ({stream.how})")
    if found.hashes:
        say(f"hashes of {len(found.hashes):,} whole tensors")
    for note in found.notes:
        say(f"note: {note}")
    say(read_share(found.bytes_read, found.total_bytes))


def _types(before: str, after: str) -> str:
    return before if before == after or not after else f"{before or '–'} → {after or '–'}"


def _exact(value: float) -> str:
    return f"{value:.9g}"


def _more(left: int, what: str) -> None:
    if left > 0:
        say(f"and {left:,} more {what}; --verbose or --json shows more")
