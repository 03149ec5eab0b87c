"""`scan` and `compare`: weights alone, no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common, integrity
from outlierlens.cli.common import Show, print_table, say
from outlierlens.errors import BadInput, OutlierlensError, one_line

if TYPE_CHECKING:
    from outlierlens.comparison import Comparison
    from outlierlens.scanned import Scan
    from outlierlens.weights import ScanOptions

RuleOption = Annotated[str, typer.Option("--rule", help="kovaleva, puccetti or luo.")]
SigmaOption = Annotated[float, typer.Option("--n-sigma", help="Threshold on |z|.")]
FractionOption = Annotated[
    float, typer.Option("--min-layer-fraction", help="Share of layers that must pass (kovaleva).")
]
SameLayerOption = Annotated[bool, typer.Option("--same-layer", help="Scale and bias must pass in the same layer.")]
TopKOption = Annotated[int, typer.Option("--top-k", help="puccetti: length of the list; luo: ranks that count.")]
RelaxOption = Annotated[
    float | None, typer.Option("--relax-to", help="Lower n-sigma down to this until something is found; reported.")
]
ViewOption = Annotated[str, typer.Option("--view", help="last: the block's last operation; reading: norms that read.")]


def scan_options(
    rule: str, n_sigma: float, fraction: float, same_layer: bool, top_k: int, relax_to: float | None, **rest: Any
) -> "ScanOptions":
    """The rule's options as given, and what else `ScanOptions` takes."""
    from outlierlens.detect import Rule
    from outlierlens.weights import ScanOptions

    if rest["view"] not in ("last", "reading"):
        raise BadInput(f"--view is {rest['view']!r}; use last or reading")
    checked = Rule(rule, n_sigma, fraction, same_layer, top_k, relax_to)  # type: ignore[arg-type]
    return ScanOptions(rule=checked, **rest)


def scan(
    models: Annotated[
        list[str] | None, typer.Argument(help="Sample names, directories, weight files or hub ids.", show_default=False)
    ] = None,
    rule: RuleOption = "kovaleva",
    n_sigma: SigmaOption = 3.0,
    min_layer_fraction: FractionOption = 0.5,
    same_layer: SameLayerOption = False,
    top_k: TopKOption = 6,
    relax_to: RelaxOption = None,
    view: ViewOption = "last",
    arch: common.Arch = None,
    family: common.Family = None,
    propose: Annotated[
        bool, typer.Option("--propose", help="Print a draft row (TOML) for an unknown architecture.")
    ] = False,
    max_read: common.MaxRead = "500MB",
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
    """Find outlier dimensions in the weights of one or more models, without loading them."""
    from outlierlens.scanned import Scans
    from outlierlens.weights import scan as scan_one

    if not models:
        raise BadInput("name at least one model: a sample, directory, weight file or hub id")
    source = {"revision": revision, "subfolder": subfolder, "token": token, "offline": offline}
    if propose:
        _propose(models, source, family, Show.choose("auto", False, quiet, output, overwrite))
        return
    show = Show.choose(format, json, quiet, output, overwrite)
    options = scan_options(
        rule, n_sigma, min_layer_fraction, same_layer, top_k, relax_to,
        view=view,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), notice=None if quiet else common.warn, **source,
    )  # fmt: skip
    found, failed = [], list[OutlierlensError]()
    for model in models:
        try:
            found.append(scan_one(model, options, command=common.reproduce()))
        except OutlierlensError as error:
            failed.append(error)
    if found:
        result = found[0] if len(models) == 1 else Scans(tuple(found))
        show.result(result, lambda _: _print_scans(found, verbose))
    for other in failed[:-1]:
        common.warn(f"error: {one_line(str(other))}")
    if failed:
        raise failed[-1]  # what was found for the others is shown


def _propose(models: list[str], source: dict[str, Any], family: str | None, show: Show) -> None:
    """Print draft rows, or write the one of one model to the file of --output."""
    from outlierlens.arch import families
    from outlierlens.arch.propose import propose
    from outlierlens.checkpoint import open_checkpoint
    from outlierlens.writing import write_text

    if show.output and len(models) > 1:
        raise BadInput("--propose -o FILE writes the row of one model; name one, or leave out -o to print all")
    for model in models:
        with open_checkpoint(model, **source) as checkpoint:
            config = checkpoint.config
            if family is not None or not isinstance(config.get("model_type"), str):
                config = config | {"model_type": family or families(checkpoint.tensors, config, checkpoint.name)[0]}
            row = propose(config).toml
        if show.output:
            write_text(show.output, row)
        else:
            print(row, end="")


def _print_scans(found: "list[Scan]", verbose: bool) -> None:
    several = len(found) > 1
    rows = [row for scan in found for row in scan.records()]
    stacks = len({(row["stack"], row["site"]) for row in rows}) > 1 or verbose
    columns = [*(["model"] if several else []), *(["stack", "site"] if stacks else [])]
    columns += ["dim", "layers_scale", "layers_bias", "z_scale", "z_bias", "p_holm"]
    if verbose or any(scan.rule.name == "luo" for scan in found):
        columns += ["rank_scale", "rank_bias"]
    for scan in found:
        for stack in scan.stacks:
            dims = ", ".join(map(str, stack.dims)) or "none"
            say(
                f"{scan.provenance.model}, {stack.stack}, {stack.site} ({stack.measure}, {stack.n_layers} × "
                f"{stack.hidden_size}): {dims}"
            )
            for note in (*stack.notes, *scan.notes):
                say(f"  note: {note}")
    if rows:
        heads = [column.replace("layers_", "layers: ").replace("_", " ") for column in columns]
        print_table("", heads, ([_of(row, column) for column in columns] for row in rows))
    if verbose:
        for scan in found:
            rule = f"{scan.rule.name}, {scan.rule.n_sigma:g} sigma, ≥ {scan.rule.min_layer_fraction:.0%} of layers"
            say(
                f"{scan.provenance.model}: {rule}; read {scan.bytes_read:,} of {scan.total_bytes:,} bytes ({scan.source})"
            )


def _of(row: dict[str, Any], column: str) -> Any:
    if column.startswith("layers_") and row[column] is not None:
        return f"{row[column]}/{row['layers']}"
    return row[column]


def compare(
    base: Annotated[str, typer.Argument(help="Model before: sample, directory, file, hub id, or a scan's JSON.")],
    other: Annotated[str, typer.Argument(help="Model after, named likewise.")],
    rule: RuleOption = "kovaleva",
    n_sigma: SigmaOption = 3.0,
    min_layer_fraction: FractionOption = 0.5,
    same_layer: SameLayerOption = False,
    top_k: TopKOption = 6,
    relax_to: RelaxOption = None,
    view: ViewOption = "last",
    values: Annotated[
        bool, typer.Option("--values", help="Also hold sensitive values against each other; exit code 3 if any moved.")
    ] = False,
    dims: integrity.Dims = None,
    deep: integrity.Deep = False,
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: common.MaxRead = "500MB",
    revision: common.Revision = None,
    other_revision: Annotated[
        str | None, typer.Option("--other-revision", help="Hub revision of the second model; default: --revision.")
    ] = None,
    token: common.Token = None,
    offline: common.Offline = False,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Say which outliers stayed, moved, came and went between a model and its fine-tuned (or later) version.

    With --values, also which sensitive values differ, as `verify` would.
    """
    from dataclasses import replace

    from outlierlens.comparison import compare as compare_scans

    show = Show.choose(format, json, quiet, output, overwrite)
    options = scan_options(
        rule, n_sigma, min_layer_fraction, same_layer, top_k, relax_to,
        view=view,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), revision=revision, token=token, offline=offline,
        notice=None if quiet else common.warn,
    )  # fmt: skip
    later = replace(options, revision=other_revision or revision)
    if not values:
        if deep or dims:
            raise BadInput("--deep and --dims are about sensitive values; add --values")
        show.result(compare_scans(_scan_or_load(base, options), _scan_or_load(other, later)), _print_comparison)
        return
    with common.unusable_is_2():
        from outlierlens.integrity.fingerprint import FingerprintOptions
        from outlierlens.integrity.verify import compare_values

        if scans := [name for name in (base, other) if _is_scan(name)]:
            raise BadInput(f"{scans[0]} is a scan, which holds no values: --values needs the models themselves")
        outliers = compare_scans(_scan_or_load(base, options), _scan_or_load(other, later))
        asked = FingerprintOptions(options, spelling.plain_dims(dims) if dims else None, deep)
        found = compare_values(base, other, asked, later, command=common.reproduce())
        show.result(replace(outliers, values=found), _print_comparison)
    if not found.matches:
        raise typer.Exit(common.FAILED)


def _scan_or_load(name: str, options: "ScanOptions") -> "Scan":
    from outlierlens.results import load
    from outlierlens.scanned import Scan
    from outlierlens.weights import scan as scan_one

    if not _is_scan(name):
        return scan_one(name, options, command=common.reproduce())
    loaded = load(name)
    if not isinstance(loaded, Scan):
        raise BadInput(
            f"{name} holds a {type(loaded).__name__}, not a Scan; make it with outlierlens scan MODEL -o {name}"
        )
    return loaded


def _is_scan(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".index.json") and Path(name).is_file()


def _print_comparison(comparison: "Comparison") -> None:
    title = f"{comparison.before.model} → {comparison.after.model}"
    for stack, share in comparison.jaccard.items():
        moved = "; all that went were replaced: the outliers moved" if comparison.moved[stack] else ""
        none = not any(change.stack == stack.partition(", ")[0] for change in comparison.changes)
        said = "no outlier in either model" if none else f"{share:.0%} of the outliers in common{moved}"
        say(f"{title}, {stack}: {said}")
    columns = ["stack", "site", "dim", "fate", "z_scale_before", "z_scale_after", "layers_before", "layers_after"]
    if comparison.changes:
        heads = [column.replace("_", " ") for column in columns]
        print_table("", heads, ([getattr(change, c) for c in columns] for change in comparison.changes))
    if comparison.values:
        integrity.print_verification(comparison.values)
