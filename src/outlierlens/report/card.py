"""The section on outlier dimensions of a model card: `card(data)`, the report in Markdown.

    text = card(load("runs/mini-bert/results.json"))

Its sentences, advice and sections are those of the page; text of models and files is escaped, so that a name can neither
break a table nor bring a link.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from outlierlens.errors import BadInput, markdown, printable
from outlierlens.report.result import ReportData
from outlierlens.view.render import sections_markdown, table_markdown

HEAD = "## Outlier dimensions"


def card(data: ReportData) -> str:
    """The section "Outlier dimensions" of a model card, as Markdown that ends in a newline."""
    first, *others = data.finding()
    lines = [HEAD, "", f"**{markdown(first)}**", "", *(f"- {markdown(sentence)}" for sentence in others)]
    lines += ["", "### What to do", ""]
    lines += [f"- {markdown(step.text)} *({markdown(step.because)})*" for step in data.advice()]
    lines += ["", sections_markdown(data.page_sections()), "### Provenance", "", *_provenance(data)]
    return "\n".join(lines).rstrip() + "\n"


def refuse_others(path: Path) -> None:
    """Raise BadInput where `path` holds anything but a section of ours: a model's whole card has more than is made here."""
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HEAD)) in (b"", HEAD.encode()):
                return
    raise BadInput(f"{path}: no card's section of outlierlens, so it is not replaced; name another file with --card")


def _provenance(data: ReportData) -> Iterator[str]:
    made, seen = data.provenance, data.observation
    rows = {
        "made by": f"outlierlens {made.version}",
        "model": made.model,
        "seed": "" if made.seed is None else str(made.seed),
        "libraries": ", ".join(f"{name} {version}" for name, version in made.libraries.items()),
        "computed in": made.dtype,
        "date": made.created,
        "data": seen.about.sentence(seen.about.data) if seen else "",
        "SHA-256 of the data": seen.about.data_digest if seen else "",
        "SHA-256 of names, shapes and values read": made.fingerprint,
    }  # fmt: skip
    yield from table_markdown(("", ""), [(name, value) for name, value in rows.items() if value])
    if made.command:
        yield from ("", f"    {printable(made.command)}")  # indented: no backquote in it can end the block
    yield from ("", *(f"- Note: {markdown(note)}" for note in data.remarks))
