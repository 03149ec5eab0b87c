"""`count`: how often every token of a tokenizer occurs in a corpus, and counts of several corpora in one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Progress, Show, print_table, say, warn
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.counting import CountOptions
    from outlierlens.models import LoadOptions
    from outlierlens.token_counts import TokenCounts

MOST_FREQUENT = 10


def count(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write the counts to this file (parquet).", show_default=False)
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="Model whose tokenizer counts: sample, directory or hub id.", show_default=False
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="Text: .txt (a text a line), .jsonl, .csv, .tsv, .parquet, a folder or glob of these, or a hub id "
            "owner/name:config:split. Repeatable.",
            show_default=False,
        ),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option("--merge", help="Add these up instead: a.parquet,b.parquet; published ones need --tokenizer."),
    ] = None,
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=2, help="Cut texts at N tokens. Default: texts are counted whole.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes; 0: one a core. 1: none but this one.")
    ] = 0,
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    trust_remote_code: common.RemoteCode = False,
    offline: common.Offline = False,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
) -> None:
    """Count how often every token id occurs in a corpus, on all cores; a stopped count goes on with the same command."""
    show = Show.choose(format, json, quiet, output, overwrite)
    if bool(data) == bool(merge):
        raise BadInput("give what is counted with --data, or counts to add up with --merge; one of the two")
    from outlierlens.models import LoadOptions

    load = LoadOptions(
        revision=revision,
        subfolder=subfolder,
        token=token,
        trust_remote_code=trust_remote_code,
        offline=offline,
        notice=(lambda _: None) if show.format == "quiet" else warn,
    )
    if merge:
        found = _merged(merge, tokenizer, load, output)
    else:
        from outlierlens.counting import CountOptions

        options = CountOptions(text_column, limit, max_length, workers, offline)
        found = _counted(
            data or [], tokenizer, load, options, output, overwrite, not no_progress and show.format != "quiet"
        )
    _show(found, output, show.format)


def _merged(merge: str, tokenizer: str | None, load: "LoadOptions", output: Path) -> "TokenCounts":
    from outlierlens.models import load_tokenizer
    from outlierlens.token_counts import open_counts, read_counts, write_counts

    found = open_counts(merge) if tokenizer is None else read_counts(merge, load_tokenizer(tokenizer, load))
    write_counts(found, output)
    return found


def _counted(
    data: list[str],
    tokenizer: str | None,
    load: "LoadOptions",
    options: "CountOptions",
    output: Path,
    overwrite: bool,
    show: bool,
) -> "TokenCounts":
    from dataclasses import replace

    from outlierlens.counting import count_tokens
    from outlierlens.counting.run import STATE, discard, parts_of
    from outlierlens.models import load_tokenizer

    if tokenizer is None:
        raise BadInput("whose tokens are counted? name a model with --tokenizer: a sample, a directory or a hub id")
    if overwrite:
        discard(parts_of(output))
    with Progress(show) as progress, common.resumable(parts_of(output) / STATE):

        def tell(source: str, done: int, total: int, n_texts: int, n_tokens: int) -> None:
            progress(f"{source}: {n_texts:,} texts, {n_tokens:,} tokens so far", done, total)

        return count_tokens(load_tokenizer(tokenizer, load), data, replace(options, progress=tell), output=output)


def _show(found: "TokenCounts", output: Path, format: str) -> None:
    """What was counted, and the tokens that occur most."""
    import json

    n_types = int((found.counts > 0).sum())
    if format == "json":
        said = {
            "output": str(output),
            "source": found.source,
            "n_texts": found.n_texts,
            "n_tokens": found.n_tokens,
            "n_special": int(found.special.sum()),
            "n_types": n_types,
            "n_vocabulary": len(found.tokens),
            "notes": list(found.notes),
        }
        print(json.dumps(said, indent=2, ensure_ascii=False))
    if format != "human":
        return
    say(
        f"{output}: {found.n_tokens:,} tokens in {found.n_texts:,} texts of {found.source}; {n_types:,} of "
        f"{len(found.tokens):,} ids occur; {int(found.special.sum()):,} special tokens around the texts are counted apart"
    )
    most = [int(n) for n in (-found.counts).argsort(kind="stable")[:MOST_FREQUENT] if found.counts[n]]
    rows = [[found.tokens[n], n, f"{found.counts[n]:,}", f"{found.counts[n] / found.n_tokens:.2%}"] for n in most]
    print_table("most frequent", ("token", "id", "count", "share"), rows)
    for note in found.notes:
        say(f"note: {note}")
