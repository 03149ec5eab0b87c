"""What `outlierlens --help` shows, drawn from the table alone: the library for command lines takes most of the time.

print(overview(width=80))                            # at most 60 lines
"""

from textwrap import wrap

from outlierlens.experiments import EXPERIMENTS
from outlierlens.options.experiment import GROUP_NAMES, title

ABOUT = "Find the handful of dimensions a Transformer cannot live without, ablate them, measure what breaks."
# Commands of two words, by the first: what its help says, and the heading of the second words there.
FAMILIES = {
    "replicate": ("Run a paper's experiments on any model.", "Papers"),
    "atlas": ("Look up outlier dimensions of many models, or scan more.", "Atlas"),
    "prune": ("Protect outliers from pruning, check pruned models, measure the cost.", "Pruning"),
    "lab": ("Pre-train, fine-tune and attack models.", "Lab"),
}
PROGRAM = "This program"
INSTALL = "Set up completion by Tab in this shell, and exit."
SHOW = "Print what sets up completion, and exit."


def overview(width: int) -> str:
    """The commands under their headings, a line each on a terminal of 80 columns, and the options of the program itself."""
    rows: dict[str, dict[str, str]] = {title(name): {} for name in GROUP_NAMES}
    for row in EXPERIMENTS:
        family, _, name = row.name.rpartition(" ")
        rows[title(row.group)][family or name] = FAMILIES[family][0] if family else row.about.partition("\n\n")[0]
    rows[PROGRAM] = {
        "--help": "Show this text; after a command, its options.",
        "--version": "Print the version.",
        "--install-completion": INSTALL,
        "--show-completion": SHOW,
    }
    names = max(len(name) for heading in GROUP_NAMES for name in rows[title(heading)])
    lines = [
        "Usage: outlierlens COMMAND, or MODEL for its report",
        "",
        *wrap(ABOUT, width, break_on_hyphens=False),
    ]
    for heading, group in rows.items():
        lines += ["", heading]
        for name, about in group.items():
            indent = " " * (names + 4)
            lines += wrap(
                about, width, break_on_hyphens=False, initial_indent=f"  {name:{names}}  ", subsequent_indent=indent
            )
    return "\n".join(lines)
