"""`samples` and `fetch`: real models that need no hub."""

import json as json_library
from typing import Annotated

import typer

from outlierlens.cli import common
from outlierlens.cli.common import print_table, say, warn


def samples(json: common.Json = False) -> None:
    """List the sample models: what they are, their licence, and whether they are there."""
    from outlierlens.samples import SAMPLES, is_complete

    rows = [(name, sample, is_complete(sample)) for name, sample in SAMPLES.items()]
    if json:
        print(
            json_library.dumps(
                [
                    {
                        "name": name,
                        "description": sample.description,
                        "licence": sample.licence,
                        "origin": sample.origin,
                        "packaged": sample.packaged,
                        "fetched": there,
                    }
                    for name, sample, there in rows
                ],
                indent=2,
            )
        )
        return
    print_table(
        "",
        ["model", "there", "licence", "what it is"],
        (
            (name, "packaged" if sample.packaged else "fetched" if there else "no", sample.licence, sample.description)
            for name, sample, there in rows
        ),
    )


def fetch(
    names: Annotated[list[str], typer.Argument(help="Sample names; see `outlierlens samples`.")],
    quiet: common.Quiet = False,
) -> None:
    """Fetch sample models into the user's cache, verified by hash; what is there already is kept."""
    from outlierlens.samples import fetch as fetch_one

    for name in names:
        path = fetch_one(name, (lambda _: None) if quiet else warn)
        if not quiet:
            say(f"{name}: {path}")
