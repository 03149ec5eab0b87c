"""`attack`: the smallest edits of sensitive values with the largest damage. `update-check`: updates of a federated round."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.attacked import Attack, Attacked
    from outlierlens.models import LoadOptions
    from outlierlens.updated import UpdateCheck

SENTENCES = 8  # edits that --verbose lists of each kind
Dims = Annotated[
    str | None, typer.Option("--dims", help="100,247: the outlier dimensions; default: what the weights name.")
]


@common.loads_a_model
def attack(
    model: common.Model,
    data: Annotated[
        str, typer.Option("--data", help="Text to measure damage on: a file or a hub id.", show_default=False)
    ],
    budget: Annotated[int, typer.Option("--budget", min=1, help="Values that may be changed.")] = 48,
    kinds: Annotated[
        str, typer.Option("--kinds", help="zero, swap, sign-flip, exponent-flip, by commas; default: all.")
    ] = "zero,swap,sign-flip,exponent-flip",
    dims: Dims = None,
    bound: Annotated[
        float, typer.Option("--bound", help="Exponent flips stay below this times their tensor's largest value.")
    ] = 10.0,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Also edits of any weight, by gradient × change, reported apart.")
    ] = False,
    text_column: common.TextColumn = None,
    limit: common.Limit = 28,
    search_texts: Annotated[
        int, typer.Option("--search-texts", min=1, help="Texts that choose the edits; the others measure damage.")
    ] = 4,
    tries: Annotated[
        int, typer.Option("--tries", min=1, help="Edits that are tried alone before they are joined.")
    ] = 12,
    sets: Annotated[int, typer.Option("--sets", min=1, help="Sets of edits that are tried at each budget.")] = 12,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Draws of random edits, of each kind.")] = 3,
    factor: Annotated[
        float, typer.Option("--factor", help="The fewest edits are sought that multiply a loss so.")
    ] = 2.0,
    max_length: common.MaxLength = 32,
    batch_size: common.BatchSize = 16,
    seed: common.Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the model with the strongest edits to this folder; needs --yes."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do write a damaged copy, marked as one.")] = False,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """Measure how much damage few edits of sensitive values do, and how many of them verify finds; all in memory."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = spelling.plain_dims(dims) if dims else None
    named = tuple(kind.strip().replace("-", " ") for kind in kinds.split(","))
    from outlierlens.attacks.run import AttackOptions
    from outlierlens.attacks.run import attack as measure
    from outlierlens.attacks.saving import check_save, save_attacked
    from outlierlens.attacks.search import SearchOptions
    from outlierlens.data import read_texts
    from outlierlens.models import load_model
    from outlierlens.tasks import TaskOptions

    if save is not None:
        check_save(save, yes=yes)
    elif yes:
        raise BadInput("--yes belongs to --save FOLDER: without a folder nothing is written")
    options = AttackOptions(
        budget=budget, kinds=named, dims=asked, search=SearchOptions(n_single=tries, n_sets=sets, bound=bound),
        n_search=search_texts, n_random=n_random, anywhere=anywhere, factor=factor, row=load.row, seed=seed,
        task=TaskOptions(max_length=max_length, batch_size=batch_size, seed=seed),
    )  # fmt: skip
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    loaded = load_model(model, load)
    with Progress(not no_progress and show.format != "quiet") as progress:
        found = measure(loaded, texts, options, command=common.reproduce(), progress=progress)
    if chart:
        from outlierlens.charts.attack import attack as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_attack(value, verbose))
    if save is not None:
        n_values = save_attacked(loaded, found, found.strongest, save)
        common.warn(f"{save}: a deliberately damaged copy, {n_values} values changed ({found.strongest.kind})")


def print_attack(found: "Attack", verbose: bool = False) -> None:
    """One line that sums it up, a row for each kind, edits of any weight apart; with `verbose` the edits."""
    say(f"{found.provenance.model}: {found.verdict}")
    say(
        f"{found.task} ({found.unit}) of {found.n_texts} texts of at most {found.max_length} tokens ({found.n_tokens:,}): "
        f"{found.intact:.4g} intact; {found.n_search} other texts chose the edits"
    )
    dims = ", ".join(map(str, found.dims)) or "none"
    say(
        f"{found.n_sensitive:,} sensitive of {found.n_values:,} values; outlier dimensions {dims}; held as {found.dtype}"
    )
    print_table("edits of sensitive values", _heads(found), [_row(found, one) for one in found.kinds])
    if found.anywhere:
        print_table(
            "edits of any weight, by gradient × change",
            [*_heads(found)[:-1], "verify", "verify --deep"],
            [
                [*_row(found, one)[:-1], *(_caught(found, one, deep=deep) for deep in (False, True))]
                for one in found.anywhere
            ],
        )
    for one in (*found.kinds, *found.anywhere) if verbose else ():
        say(f"{one.kind} ({one.among}), the first {min(SENTENCES, len(one.edits))} of {len(one.edits)}:")
        for edit in one.edits[:SENTENCES]:
            bit = "" if edit.bit is None else f", bit {edit.bit}"
            say(f"  {edit.tensor}{list(edit.index)}: {edit.before:.6g} → {edit.after:.6g}{bit}")
    for note in found.notes:
        say(f"note: {note}")


def _heads(found: "Attack") -> list[str]:
    measured = ["change", "95 % interval", *(["times", f"edits for × {found.factor:g}"] if found.factor else [])]
    drawn = [f"random, {control.among}" for control in found.kinds[0].controls]
    return ["kind", "edits", *measured, *drawn, "rank p", "verify"]


def _row(found: "Attack", one: "Attacked") -> list[Any]:
    full = one.full
    cells: list[Any] = [one.kind, full.n_edits, f"{full.change:+.4g}", interval_text(full.low, full.high, "+.4g")]
    if found.factor:
        cells += [f"{full.times:.3g}", one.smallest.n_edits if one.smallest else None]
    controls = [one.control(control.among) for control in found.kinds[0].controls]
    cells += [None if control is None else f"{control.median:+.2g}" for control in controls]
    ps = [control.p for control in one.controls if control.p is not None]
    return [*cells, f"{max(ps):.2g}" if ps else None, _caught(found, one)]


def _caught(found: "Attack", one: "Attacked", *, deep: bool = False) -> str:
    caught, asked = found.detected(one, deep=deep)
    return f"{caught} of {asked}"


def update_check(
    before: Annotated[str, typer.Argument(help="The round's model before: sample, directory, file or hub id.")],
    after: Annotated[list[str], typer.Argument(help="Models after training, one a client.")],
    dims: Dims = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every tensor, not the stream's norms and biases alone.")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Largest entries of each update that are looked at.")] = 48,
    alpha: Annotated[float, typer.Option("--alpha", help="Flag a client alone at this p-value or below …")] = 0.01,
    least_ratio: Annotated[
        float, typer.Option("--least-ratio", help="… and from this many times the share of parameters on.")
    ] = 10.0,
    least_peak: Annotated[
        float, typer.Option("--least-peak", help="Flag a change this many times as large as the largest elsewhere.")
    ] = 3.0,
    least_z: Annotated[
        float, typer.Option("--least-z", help="Of three clients or more: robust standard deviations above the median.")
    ] = 3.5,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Random sets of dimensions.")] = 1999,
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: Annotated[str, typer.Option("--max-read", help="Bytes that the scan for outliers may read.")] = "500MB",
    token: common.Token = None,
    offline: common.Offline = False,
    seed: common.Seed = 0,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Flag updates of a federated round that fall on outlier entries beyond their share; exit code 3 if any does."""
    show = Show.choose(format, json, quiet, output, overwrite)
    asked = spelling.plain_dims(dims) if dims else None
    from outlierlens.attacks.updates import UpdateOptions
    from outlierlens.attacks.updates import update_check as check
    from outlierlens.weights import ScanOptions

    scan = ScanOptions(
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), token=token, offline=offline, notice=None if quiet else common.warn
    )  # fmt: skip
    options = UpdateOptions(
        scan=scan, dims=asked, deep=deep, n_top=top, alpha=alpha, least_ratio=least_ratio, least_peak=least_peak,
        least_z=least_z, n_draws=draws,
        seed=seed,
    )  # fmt: skip
    found = check(before, after, options, command=common.reproduce())
    show.result(found, print_update_check)
    if found.flagged:
        raise typer.Exit(common.FAILED)


def print_update_check(found: "UpdateCheck") -> None:
    """One line that sums it up, a row for each client, and what is wrong with those that are flagged."""
    say(f"{found.provenance.model}: {found.verdict}")
    dims = "; ".join(f"{name}: {', '.join(map(str, chosen)) or 'none'}" for name, chosen in found.dims.items())
    say(f"outlier dimensions {dims} ({found.how}); read {found.bytes_read:,} of {found.total_bytes:,} bytes")
    heads = [
        "client",
        "norm",
        "share",
        "× its share",
        "rank p",
        "peak",
        "of the largest",
        "expected",
        "p",
        "z",
        "flagged",
    ]
    rows = [
        [
            client.model, f"{client.norm:.4g}", f"{client.share:.3%}", f"{client.ratio:.3g}", f"{client.p:.2g}",
            f"{client.peak:.3g}", f"{client.n_top_outlier} of {client.n_top}", f"{client.expected_top:.2g}",
            f"{client.top_p:.2g}", None if client.z is None else f"{client.z:+.1f}", "yes" if client.flagged else "no",
        ]
        for client in found.clients
    ]  # fmt: skip
    print_table("", heads, rows)
    for client in found.clients:
        for why in client.why:
            say(f"{client.model}: {why}")
    for note in found.notes:
        say(f"note: {note}")
