"""Write the generated parts of the docs: a page per command, the Python names, and each page's line of terms.

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
MANY = 10
BY_HAND = "Generated from the options' declarations; run `make docs` after a change.\n"


def main() -> int:
    """Write or check every generated file; the exit status."""
    stale = []
    pages = {
        **cli(),
        **{name: make() for name, make in names.PAGES.items()},
    }  # fmt: skip
    (DOCS / "cli").mkdir(exist_ok=True)
    for path, text in [*((DOCS / name, text) for name, text in pages.items()), *terms.lines(DOCS)]:
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"stale: {', '.join(stale)}; run: make docs", file=sys.stderr)
    return bool(stale)


def cli() -> dict[str, str]:
    """{page: text} of the command line: the list of all commands, and a page for each with examples and options."""
    from outlierlens.cli.app import program
    from outlierlens.cli.overview import FAMILIES
    from outlierlens.experiments import BY_NAME

    text = program().generate_docs().replace("# outlierlens\n", "# What commands are there?\n\n" + BY_HAND, 1)
    text = re.sub(r"^outlierlens ([\w -]+) \1 \[", r"outlierlens \1 [", text, flags=re.MULTILINE)
    text = re.sub(r"\n## Table of Contents\n.*?(?=\n\*\*)", "", text, flags=re.DOTALL)  # which the lists by heading are
    text = re.sub(r"\* \[`--(install|show)-completion`\]\(#[^)]*\)", r"* `--\1-completion`", text)
    front, *parts = re.split(r"^##+ outlierlens (.+)$", text, flags=re.MULTILINE)
    said = dict(
        zip(parts[::2], parts[1::2], strict=True)
    )  # completion is of the shell, and `replicate` alone a heading
    shared = shared_options(said.values())
    made = {f"cli/{name.replace(' ', '-')}.md": command_page(row, said[name], shared) for name, row in BY_NAME.items()}
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


def shared_options(pages: Iterable[str]) -> set[str]:
    """Lines about an option that stand, word for word, in the help of ten commands or more."""
    lines = Counter(line for page in pages for line in page.splitlines() if line.startswith("* `--"))
    often = [line for line, times in lines.items() if times >= MANY]
    names = Counter(line.split()[1].strip("`,:") for line in often)  # one that means two things is said on each page
    return {line for line in often if names[line.split()[1].strip("`,:")] == 1}


def command_page(row: Experiment, said: str, shared: set[str]) -> str:
    """The page of one command: what it does, examples, its own options, and the names of those that many have."""
    usage, options = re.split(r"(?=^\*\*\w+\*\*:$)", said.strip() + "\n", maxsplit=1, flags=re.MULTILINE)
    calls = "\n".join(f"$ outlierlens {one}" for one in row.examples)
    about = f"# outlierlens {row.name}\n\n{row.about}\n"
    usage = usage[: usage.index("```", 3) + 3]
    note = EXAMPLE_FILES if re.search(r"texts\.txt|labelled|paper|decoder", calls) else ""
    examples = f"## Examples\n\n```console\n{calls}\n```\n\n{note}"
    own = "\n".join(line for line in options.splitlines() if line not in shared)
    own = re.sub(r"\*\*\w+\*\*:\n+(?=\*\*|\Z)", "", own)  # headings that have nothing left
    names = ", ".join(
        f"`{line[3:].split('`')[0].split()[0].strip(',')}`" for line in options.splitlines() if line in shared
    )
    rest = f"Also {names}: [what they mean](../cli.md#options-that-many-commands-share).\n\n" if names else ""
    return f"{about}\n{usage}\n\n{examples.strip()}\n\n## Options\n\n{own.strip()}\n\n{rest}[All commands](../cli.md)\n"


def summary(row: Experiment) -> str:
    """The first line of what a command is about."""
    return row.about.partition("\n\n")[0]


if __name__ == "__main__":
    raise SystemExit(main())
