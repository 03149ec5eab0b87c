"""The program: `run(words)` calls the command that they name, `read(words)` only reads them; the table says which there are.

Only what the called command declares is imported: a check that runs before every deployment (`verify`) does not pay for the
options of forty others. `--help` imports none of them.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from cyclopts import App, Group

from outlierlens import __version__
from outlierlens.cli.flags import call
from outlierlens.cli.overview import ABOUT, FAMILIES, INSTALL, PROGRAM, SHOW, title
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME, EXPERIMENTS, GROUP_NAMES


@cache
def program() -> App:
    """All commands under the headings of the table, each imported when it is called."""
    app = App(
        name="outlierlens", help=ABOUT, version=f"outlierlens {__version__}", version_flags=["--version"],
        help_flags=["--help", "-h"], help_format="plaintext", result_action="return_value",
        group_commands=Group(PROGRAM, sort_key=len(GROUP_NAMES)),
    )  # fmt: skip
    groups = {name: Group(title(name), sort_key=place) for place, name in enumerate(GROUP_NAMES)}
    families: dict[str, App] = {}
    for place, row in enumerate(EXPERIMENTS):
        family, _, name = row.name.rpartition(" ")
        if family and family not in families:
            about, heading = FAMILIES[family]
            families[family] = App(
                name=family, help=about, version_flags=[], help_flags=["--help", "-h"], help_format="plaintext",
                result_action="return_value", group=groups[row.group], sort_key=place, group_commands=Group(heading),
            )  # fmt: skip
            app.command(families[family])
        group = None if family else groups[row.group]
        where = f"outlierlens.cli.experiment:{row.name}"
        families.get(family, app).command(where, name=name, help=row.about, sort_key=place, group=group)
    app.command(_install, name="--install-completion", help=INSTALL)
    app.command(_show, name="--show-completion", help=SHOW)
    return app


def run(words: Sequence[str]) -> None:
    """Call what the words name.

    Raises:
        Usage: words that it does not take.
    """
    spelt = _spelt(words)
    call(program(), spelt, named=_named(spelt))


def read(words: Sequence[str]) -> None:
    """Raise Usage for words that `run` would not take; nothing is run."""
    spelt = _spelt(words)
    call(program(), spelt, run=False, named=_named(spelt))


def _spelt(words: Sequence[str]) -> list[str]:
    """`_` and `-` are one in the names of commands and options: `frequency_geometry --max_length 8`."""
    found: list[str] = []
    names = True
    for word in words:
        names = names and not word.startswith("-") and len(found) < 2
        option = re.match(r"--[A-Za-z][\w-]*", word)
        name = option[0] if option else word if names and word.replace("_", "-") in _WORDS else ""
        found.append(name.replace("_", "-") + word[len(name) :])
    return found


_WORDS = {word for name in BY_NAME for word in name.split()}


def _named(words: Sequence[str]) -> str:
    """The command that the words name, as far as there is one."""
    for n in (2, 1):
        if " ".join(words[:n]) in {*BY_NAME, *FAMILIES}:
            return " ".join(words[:n])
    return ""


def _install(shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    if not sys.stdout.isatty() and shell is None:
        raise BadInput("say for which shell: outlierlens --install-completion bash (or zsh, fish)")
    from cyclopts.completion.detect import detect_shell

    from outlierlens.cli.completion import script

    of = shell or detect_shell()
    text = script(program.__wrapped__, of)
    place: Path = program().install_completion(shell=of)
    place.write_text(text, "utf-8")
    print(f"completion: {place}; it works in a new shell")


def _show(shell: Literal["bash", "zsh", "fish"] = "bash") -> None:
    from outlierlens.cli.completion import script

    print(script(program.__wrapped__, shell))
