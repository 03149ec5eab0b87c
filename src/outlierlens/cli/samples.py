"""`samples` and `fetch`: real models that need no hub."""

import json
from dataclasses import dataclass
from typing import Annotated

from outlierlens.cli.common import say
from outlierlens.options import Flag
from outlierlens.session import Session
from outlierlens.view.render import print_rows
from outlierlens.view.section import Rows


def samples(session: Session, _: None) -> None:
    """List them as a table or as JSON."""
    from outlierlens.checkpoints.samples import SAMPLES, is_complete

    rows = [(name, sample, is_complete(sample)) for name, sample in SAMPLES.items()]
    if session.output.json:
        about = ("description", "licence", "origin", "packaged")
        listed = [
            {"name": name, **{field: getattr(sample, field) for field in about}, "fetched": there}
            for name, sample, there in rows
        ]
        print(json.dumps(listed, indent=2))
        return
    table = tuple(
        (name, "packaged" if sample.packaged else "fetched" if there else "no", sample.licence, sample.description)
        for name, sample, there in rows
    )
    print_rows(Rows("", ("model", "there", "licence", "what it is"), table))


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Which are fetched."""

    names: Annotated[tuple[str, ...], Flag(argument=True)]
    """Sample names; see `outlierlens samples`."""


def fetch(session: Session, options: FetchOptions) -> None:
    """Fetch each, and say where it is."""
    from outlierlens.checkpoints.samples import fetch as fetch_one

    for name in options.names:
        path = fetch_one(name, session.notice)
        if not session.output.quiet:
            say(f"{name}: {path}")
