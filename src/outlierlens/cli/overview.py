"""What `outlierlens --help` shows, drawn from the table alone: the library for command lines takes most of the time.

print(overview(width=80))                            # what cyclopts would print, without its import and without colour
"""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from outlierlens.experiments import EXPERIMENTS, GROUP_NAMES

ABOUT = "Find the handful of dimensions a Transformer cannot live without, switch them off, measure what breaks."
# Commands of two words, by the first: what its help says, and the heading of the second words there.
FAMILIES = {
    "replicate": ("A paper's experiments for any model.", "Papers"),
    "atlas": (
        "The outlier dimensions of many models, as `scan` names them, and a site that shows them.",
        "Atlas",
    ),
    "prune": ("What pruning may take from the residual stream, what it took, and what that costs.", "Pruning"),
}
PROGRAM = "This program"
INSTALL = "Set up completion by Tab in this shell, and exit."
SHOW = "Print what sets up completion, and exit."


def title(group: str) -> str:
    """The heading of a group of commands."""
    return group[:1].upper() + group[1:]


def overview(width: int) -> str:
    """The commands under their headings in frames of `width` columns, and the options of the program itself."""
    rows: dict[str, dict[str, str]] = {title(name): {} for name in GROUP_NAMES}
    for row in EXPERIMENTS:
        family, _, name = row.name.rpartition(" ")
        rows[title(row.group)][family or name] = FAMILIES[family][0] if family else row.about.partition("\n\n")[0]
    rows[PROGRAM] = {
        "--help (-h)": "Display this message and exit.",
        "--install-completion": INSTALL,
        "--show-completion": SHOW,
        "--version": "Display application version.",
    }
    lines = ["Usage: outlierlens COMMAND", "", *wrap(ABOUT, width, break_on_hyphens=False), ""]
    for heading, group in rows.items():
        lines += _frame(heading, list(group.items()), width)
    return "\n".join(lines)


def _frame(heading: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    names = max(len(name) for name, _ in rows)
    yield f"╭─ {heading} ".ljust(width - 1, "─") + "╮"
    for name, about in rows:
        for place, line in enumerate(wrap(about, width - names - 6, break_on_hyphens=False)):
            yield f"│ {'' if place else name:{names}}  {line}".ljust(width - 1) + "│"
    yield f"╰{'─' * (width - 2)}╯"
