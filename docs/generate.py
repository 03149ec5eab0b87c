"""Write the generated parts of the docs: a page per command, architectures, the Python names, the table of trainers
and each page's line of terms.

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


ROWS_BY_HAND = """
## Without a row

A model whose config names a `model_type` of the table is read by that row. One without a `model_type` (an old folder,
an ONNX file without a config) is read by the row that fits the names of its tensors, where one row alone does; a note
says which. `--family bert` decides otherwise, in every command that reads a model. Families that share a row (BERT
and RoBERTa) are one to `scan`; to run the model takes `--family`, unless the names or a `vocab.txt` say which.

A `model_type` that the table lacks is taken apart when it is first met: a small random model is made of its config, and a
linear writes to the stream if changing one of its rows changes one dimension. Blocks need not be alike; names in files are
found by saving the small model. This takes seconds, torch and transformers, and no weights. The row is kept in the cache
(`rows/`), and a note of each result says what it rests on and what was not established. What transformers itself does not
know, or what hands no stream from block to block, is refused with the reason.

`--propose` prints such a row, each line with its evidence, to be read and changed by hand:

```console
$ outlierlens scan --propose ./model -o row.toml
$ outlierlens scan ./model --arch row.toml
```

## A row by hand

Where no draft can be made (code of its own, weights without a config), a row is a TOML file. `outlierlens scan` takes
it with `--arch`, and so does every other command. This one is BERT's:

```toml
[[stack]]
blocks = "encoder.layer.{layer}"                 # path of a block; what stands before it ("bert.") is left out
norm_site = "stream"                             # the block ends in a norm of the stream; "read" where norms only read it
last_norm = "output.LayerNorm"                   # the block's last operation; none with "read"
last_linear = ["output.dense"]                   # what writes to the stream last
other_writes = ["attention.output.dense"]        # what else writes to it
other_norms = ["attention.output.LayerNorm"]     # further norms of the stream
embeddings = ["embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings"]
embedding_norm = "embeddings.LayerNorm"
```

1. List the tensors: `python -c "from outlierlens.checkpoints import open_checkpoint as o; print(*o('MODEL').tensors,
   sep='\\n')"`.
2. `blocks` is what repeats, with `{layer}` for its number. All other names of a block are relative to it, without
   `.weight`.
3. `norm_site` is in the model's code: `x = norm(x + f(x))` is `stream`, `x = x + norm(f(x))` is `write`, `x = x +
   f(norm(x))` is `read`. With `read` there is no `last_norm`, and the norms go to `reading_norms`.
4. `last_linear` is the MLP's second linear. Linears stored `[in, out]`, as GPT-2's are, take `weight_is_in_by_out =
   true`.

A factor of each dimension behind a linear (LayerScale) is `write_scales = { "mlp.fc2" = "layer_scale2.lambda1" }`.

`from outlierlens.architectures import Stack; help(Stack)` says what every key means. A wrong key is named, and so is a
path that the model does not have (`exact = false` lets it stand). Where layers share their blocks, `layer_blocks` lists the
path of each layer's block and `shared_blocks = true` says so.
"""


EXAMPLE_FILES = """`mini-planted`, `mini-bert` and the texts `reviews` come with the package. `texts.txt` (one text per line),
`labelled/` and `paper/` (data sets, a file per split) and `decoder/` (a model) are yours. Examples of other commands write the
other files.
"""
TRAINERS_HEAD = "| written by | a file of step 100 | where the model lies | several ranks |\n|---|---|---|---|\n"
MANY = 10
BY_HAND = "Generated from the options' declarations; run `make docs` after a change.\n"


def main() -> int:
    """Write or check every generated file; the exit status."""
    stale = []
    pages = {
        **cli(), "architectures.md": architectures(),
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


def architectures() -> str:
    """The architecture table as Markdown."""
    from outlierlens.architectures import ARCHITECTURES

    lines = [
        "# Architectures\n",
        "Generated from `src/outlierlens/architectures`; run `make docs` after a change. `stream`: the block ends in a norm of "
        "the",
        "residual stream (post-norm). `write`: what the last operation adds is normed first. `read`: pre-norm; the rule then",
        "rests on the rows of the last linear. Rows marked *by config* depend on the model's configuration.\n",
        "| model_type | stream | norm site | last operation | other writes |",
        "|---|---|---|---|---|",
    ]
    for model_type, row in sorted(ARCHITECTURES.items()):
        if callable(row.stacks):
            lines.append(f"| {model_type} | *by config* | | {first_line(row.stacks.__doc__)} | |")
            continue
        for stack in row.stacks:
            last = stack.last_norm or " + ".join(stack.last_linear)
            others = ", ".join(f"`{write}`" for write in stack.other_writes)
            lines.append(f"| {model_type} | {stack.name} | {stack.norm_site} | `{last}` | {others} |")
    return "\n".join(lines) + "\n" + ROWS_BY_HAND


def with_trainers(text: str) -> str:
    """A page whose table of checkpoints of trainers, where it has one, is that of the code."""
    from outlierlens.checkpoints.trainers import TRAINERS

    rows = []
    for form in TRAINERS:
        inside = f"`{'` in `'.join(reversed(form.inside))}`" if form.inside else "the file itself"
        several = "joined where names are known" if any("{rank}" in file for file in form.files) else ""
        rows.append(f"| {form.name} | `{form.example}` | {'refused' if form.refused else inside} | {several} |\n")
    return re.sub(rf"(?<={re.escape(TRAINERS_HEAD)})(?:\|.*\n)*", lambda _: "".join(rows), text)


def first_line(text: str | None) -> str:
    """The first sentence of a docstring."""
    return (text or "").strip().splitlines()[0] if text else ""


if __name__ == "__main__":
    raise SystemExit(main())
