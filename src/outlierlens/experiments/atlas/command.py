"""`outlierlens atlas build`: the folder of rows, and what was found on stdout; `outlierlens atlas page`: the site."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import islice

from outlierlens.checkpoints.pace import Turns
from outlierlens.cli.common import resumable, say
from outlierlens.errors import BadInput, command
from outlierlens.experiments.atlas.build import Built, Engine, Local, build
from outlierlens.experiments.atlas.look import Manner
from outlierlens.experiments.atlas.names import Named, listed, names_in
from outlierlens.experiments.atlas.options import BuildCall, PageCall
from outlierlens.experiments.atlas.page import COLUMNS, INDEX, write_site
from outlierlens.experiments.atlas.ray_engine import OnRay
from outlierlens.experiments.atlas.rows import JOURNAL, Store, read_rows
from outlierlens.results.safe_files import alone
from outlierlens.session import Session
from outlierlens.view.section import duration


def run(session: Session, call: BuildCall) -> None:
    """Look at what is asked for, and say what came of it."""
    output = session.output
    folder = output.output
    assert folder is not None  # its row asks for one
    manner = Manner(session.loading.token, call.max_read, call.parallel, call.rate)
    total = call.limit
    if call.names is not None:
        total = sum(1 for _ in islice(names_in(call.names), call.limit))
    with ExitStack() as inside:
        inside.enter_context(resumable(folder / JOURNAL))
        store = inside.enter_context(Store.open(folder))
        engine = inside.enter_context(_engine(call, manner))
        built = build(
            store, islice(_names(call, manner), call.limit), engine,
            update=call.update, max_total=call.max_total, total=total, progress=session.progress,
        )  # fmt: skip
    if output.json:
        print(json.dumps({"output": str(folder), **vars(built)}, indent=2))
    elif not output.quiet:
        for line in told(built):
            say(line)
        say(f"rows: {folder}; show them: {command('atlas', 'page', folder)}")


def _names(call: BuildCall, manner: Manner) -> Iterable[Named]:
    if call.query is not None:
        return listed(call.query, manner.token, manner.courtesy(Turns(manner.rate)))
    assert call.names is not None  # one of the two was given
    return names_in(call.names)


def _engine(call: BuildCall, manner: Manner) -> AbstractContextManager[Engine]:
    machines = call.machines
    if machines.engine == "local":
        return Local(manner)
    cpus = 1.0 if machines.cpus_per_worker is None else machines.cpus_per_worker
    return OnRay(manner, address=machines.address, workers=machines.workers, cpus_per_worker=cpus)


def told(built: Built) -> list[str]:
    """What a build did, in lines."""
    share = f", {built.bytes_read / built.bytes_total:.3%} of their weights" if built.bytes_total else ""
    lines = [
        f"{built.read:,} models read, {built.failed.total():,} not, {built.before:,} were there before; "
        f"{built.requests:,} requests, {built.bytes_read:,} bytes{share}, {duration(built.seconds)}"
    ]
    if built.failed:
        lines.append("not read: " + ", ".join(f"{reason} {count:,}" for reason, count in built.failed.most_common()))
    if built.stopped:
        lines.append(f"stopped: {built.stopped}; the same command goes on with a larger --max-total")
    return lines


def page(session: Session, call: PageCall) -> None:
    """Write the site, and say where it is."""
    output = session.output
    folder = output.output or (call.folder if call.folder.is_dir() else call.folder.parent) / "site"
    if (folder / INDEX).exists() and not output.overwrite:
        raise BadInput(f"{folder / INDEX} exists; name another folder with -o, or use --overwrite")
    with alone(folder, what="page"):
        written = write_site(read_rows(call.folder, COLUMNS), folder)
    if not output.quiet:
        say(f"site: {written[0]}" + (f" and {len(written) - 1} pages of models" if len(written) > 1 else ""))
