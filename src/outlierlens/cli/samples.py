"""`fetch`: real models that need no hub, listed or fetched."""

import json
from dataclasses import dataclass
from typing import Annotated

from outlierlens.cli.common import say
from outlierlens.errors import BadInput
from outlierlens.options import Flag
from outlierlens.session import Session
from outlierlens.view.render import print_rows
from outlierlens.view.section import Rows


def _list(*, as_json: bool) -> None:
    """The samples as a table or as JSON."""
    from outlierlens.checkpoints.samples import SAMPLES, is_complete

    rows = [(name, sample, is_complete(sample)) for name, sample in SAMPLES.items()]
    if as_json:
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

    names: Annotated[tuple[str, ...], Flag(argument=True)] = ()
    """Sample names. None: all samples are listed, with licence and origin."""


def fetch(session: Session, options: FetchOptions) -> None:
    """Fetch each, and say where it is; list all where none is named.

    Raises:
        BadInput: --json with names, or a name that no sample has.
    """
    from outlierlens.checkpoints.samples import fetch as fetch_one

    if not options.names:
        _list(as_json=session.output.json)
        return
    if session.output.json:
        raise BadInput("--json lists the samples; name none with it")
    for name in options.names:
        path = fetch_one(name, session.notice)
        if not session.output.quiet:
            say(f"{name}: {path}")
