"""Write the generated parts of the docs: a page per command, the Python names, the table of trainers, each page's terms.

python docs/generate.py            # write
python docs/generate.py --check    # exit 1 when something is stale
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from _site import names, terms

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from outlierlens.options.experiment import Experiment

DOCS = Path(__file__).parent

EXAMPLE_FILES = """`mini-planted`, `mini-bert` and the texts `reviews` come with the package. `texts.txt` (one text per line),
`labelled/` and `paper/` (data sets, a file per split) and `decoder/` (a model) are yours. Examples of other commands write the
other files.
"""
TRAINERS_HEAD = "| written by | a file of step 100 | where the model lies | several ranks |\n|---|---|---|---|\n"
MANY = 10
BY_HAND = """Generated from the options' declarations; run `make docs` after a change. `--help` shows at most twelve options,
`--help-all` the rest. Some have parts, by commas: `--rule kovaleva:sigma=2.5,same-layer`, `--data FILE:column=review`.
"""


def main() -> int:
    """Write or check every generated file; the exit status."""
    stale = []
    pages = {
        **cli(),
        **{name: make() for name, make in names.PAGES.items()},
    }  # fmt: skip
    (DOCS / "cli").mkdir(exist_ok=True)
    by_hand = ((path, with_trainers(text)) for path, text in terms.lines(DOCS))
    for path, text in [*((DOCS / name, text) for name, text in pages.items()), *by_hand]:
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"stale: {', '.join(stale)}; run: make docs", file=sys.stderr)
    return bool(stale)


def cli() -> dict[str, str]:
    """{page: text} of the command line: the list of all commands, and a page for each with examples and options."""
    from outlierlens.cli.app import program, showing_everything
    from outlierlens.cli.overview import FAMILIES
    from outlierlens.experiments import BY_NAME

    front, first = parts_of(program().generate_docs())
    with showing_everything():
        _, said = parts_of(program.__wrapped__().generate_docs())
    shared = shared_options(said.values())
    made = {
        f"cli/{name.replace(' ', '-')}.md": command_page(row, said[name], first[name], shared)
        for name, row in BY_NAME.items()
    }
    for name in sorted(BY_NAME, key=len, reverse=True):
        front = front.replace(f"(#outlierlens-{name.replace(' ', '-')})", f"(cli/{name.replace(' ', '-')}.md)")
    for family in FAMILIES:
        pair = [
            f"* [`{name}`](cli/{name.replace(' ', '-')}.md): {summary(row)}"
            for name, row in BY_NAME.items() if name.startswith(f"{family} ")
        ]  # fmt: skip
        front = re.sub(rf"^\* \[`{family}`\].*$", "\n".join(pair), front, flags=re.MULTILINE)
    listed = "\n".join(sorted(shared))
    return {"cli.md": f"{front.strip()}\n\n## Options that many commands share\n\n{listed}\n", **made}


def parts_of(text: str) -> tuple[str, dict[str, str]]:
    """(the front page, {command: its page}) of what cyclopts writes."""
    text = text.replace("# outlierlens\n", "# What commands are there?\n\n" + BY_HAND, 1)
    text = re.sub(r"^outlierlens ([\w -]+) \1 \[", r"outlierlens \1 [", text, flags=re.MULTILINE)
    text = re.sub(r"\n## Table of Contents\n.*?(?=\n\*\*)", "", text, flags=re.DOTALL)  # which the lists by heading are
    text = re.sub(r"\* \[`--(install|show)-completion`\]\(#[^)]*\)", r"* `--\1-completion`", text)
    front, *parts = re.split(r"^##+ outlierlens (.+)$", text, flags=re.MULTILINE)
    return front, dict(zip(parts[::2], parts[1::2], strict=True))  # completion is of the shell, `replicate` a heading


def shared_options(pages: Iterable[str]) -> set[str]:
    """Lines about an option that stand, word for word, in the help of ten commands or more."""
    lines = Counter(line for page in pages for line in page.splitlines() if line.startswith("* `--"))
    often = [line for line, times in lines.items() if times >= MANY]
    names = Counter(line.split()[1].strip("`,:") for line in often)  # one that means two things is said on each page
    return {line for line in often if names[line.split()[1].strip("`,:")] == 1}


def command_page(row: Experiment, said: str, first: str, shared: set[str]) -> str:
    """The page of one command: what it does, examples, the options of --help and, below, those of --help-all (`said`)."""
    usage, options = re.split(r"(?=^\*\*\w+\*\*:$)", said.strip() + "\n", maxsplit=1, flags=re.MULTILINE)
    calls = "\n".join(f"$ outlierlens {one}" for one in row.examples)
    about = f"# outlierlens {row.name}\n\n{row.about}\n"
    usage = usage[: usage.index("```", 3) + 3]
    note = EXAMPLE_FILES if re.search(r"texts\.txt|labelled|paper|decoder", calls) else ""
    examples = f"## Examples\n\n```console\n{calls}\n```\n\n{note}"
    lines = [line for line in options.splitlines() if line.startswith("* `")]
    named = {name_of(line) for line in first.splitlines() if line.startswith("* `")}
    parts = []
    for help_, of_help in (("--help", True), ("--help-all", False)):
        listed = [line for line in lines if (name_of(line) in named) == of_help]
        own = "\n".join(line for line in listed if line not in shared)
        names = ", ".join(f"`{name_of(line)}`" for line in listed if line in shared)
        rest = f"Also {names}: [what they mean](../cli.md#options-that-many-commands-share)." if names else ""
        if listed:
            parts.append("\n\n".join(filter(None, (f"`{help_}` shows:", own, rest))))
    return "\n\n".join([f"{about}\n{usage}", examples.strip(), "## Options", *parts, "[All commands](../cli.md)\n"])


def name_of(line: str) -> str:
    """How a line of help calls its option or argument."""
    return line[3:].split("`", maxsplit=1)[0].split(maxsplit=1)[0].strip(",")


def summary(row: Experiment) -> str:
    """The first line of what a command is about."""
    return row.about.partition("\n\n")[0]


def with_trainers(text: str) -> str:
    """A page whose table of checkpoints of trainers, where it has one, is that of the code."""
    from outlierlens.checkpoints.trainers import TRAINERS

    rows = []
    for form in TRAINERS:
        inside = f"`{'` in `'.join(reversed(form.inside))}`" if form.inside else "the file itself"
        several = "joined where names are known" if any("{rank}" in file for file in form.files) else ""
        rows.append(f"| {form.name} | `{form.example}` | {'refused' if form.refused else inside} | {several} |\n")
    return re.sub(rf"(?<={re.escape(TRAINERS_HEAD)})(?:\|.*\n)*", lambda _: "".join(rows), text)


if __name__ == "__main__":
    raise SystemExit(main())
