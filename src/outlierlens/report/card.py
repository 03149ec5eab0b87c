"""The section on outlier dimensions of a model card: `card(data)`, Markdown that needs nothing beside it.

    text = card(load("runs/mini-bert/results.json"))

It says what the report says, by the same rules: verdicts, numbers with their intervals, advice, and where all came
from. Text of models and files is escaped, so that a name can neither break a table nor bring a link.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from outlierlens.analyses.ablate import Ablation, Damage
from outlierlens.errors import BadInput, markdown, printable
from outlierlens.report.advice import advice
from outlierlens.report.result import Joined, ReportData, joined_sections
from outlierlens.report.words import counted, finding, verdict
from outlierlens.statistics.means import interval_text
from outlierlens.view.section import listed, number

HEAD = "## Outlier dimensions"
_SHOWN = 12


def card(data: ReportData) -> str:
    """The section "Outlier dimensions" of a model card, as Markdown that ends in a newline."""
    return "\n".join(_lines(data)).rstrip() + "\n"


def refuse_others(path: Path) -> None:
    """Raise BadInput where `path` holds anything but a section of ours: a model's whole card has more than is made here."""
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HEAD)) in (b"", HEAD.encode()):
                return
    raise BadInput(f"{path}: no card's section of outlierlens, so it is not replaced; name another file with --card")


def _lines(data: ReportData) -> Iterator[str]:
    first, *others = finding(data)
    yield from (HEAD, "", f"**{markdown(first)}**", "")
    yield from (f"- {markdown(sentence)}" for sentence in others)
    yield from ("", "### What to do", "")
    yield from (f"- {markdown(step.text)} *({markdown(step.because)})*" for step in advice(data))
    yield from ("", *_found(data))
    for damage in data.damages:
        yield from ("", *_damage(damage))
    yield from _joined(data.joined)
    yield from ("", "### Provenance", "", *_provenance(data))


def _found(data: ReportData) -> Iterator[str]:
    rule = data.scan.rule
    yield from (f"### In the weights: rule {rule.name}, {rule.deviations}", "")
    rows = [
        (stack.stack, f"{stack.site} ({stack.measure})", stack.shape, dims or "none")
        for stack in data.scan.stacks
        for dims in [", ".join(str(one.dim) for one in counted(stack, rule.name)[:_SHOWN])]
    ]
    yield from _table(("stream", "measured at", "shape", "outliers, strongest first"), rows)
    detail = [
        (
            stack.stack,
            one.dim,
            len(one.layers_scale),
            len(one.layers_bias) if one.z_bias else "no bias",
            f"{one.p_holm:.2g}",
        )
        for stack in data.scan.stacks
        for one in counted(stack, rule.name)[:_SHOWN]
    ]
    if detail:
        yield ""
        heads = ("stream", "dimension", "layers past, scale", "layers past, bias", "p, corrected for all dimensions")
        yield from _table(heads, detail)


def _damage(damage: Ablation) -> Iterator[str]:
    dims = listed(sorted(damage.dims))
    yield from (f"### Switched off: {dims} ({verdict(damage)})", "")
    about = damage.about
    yield f"{markdown(about.task)}, {about.of_change}, on {about.n_texts:,} {about.inputs}; mode {damage.chosen.mode}."
    yield ""
    rows = [("intact", *_value(damage.intact), "")]
    rows += [(f"off: {dims}", *_value(damage.chosen), _change(damage.chosen))]
    yield from _table(("condition", "value", "perplexity", "change, 95 % interval"), rows)
    if damage.families:
        yield ""
        heads = ("control", "sets", "median change", "95th percentile", "rank p")
        controls = [
            (
                one.family,
                one.n,
                f"{one.median:+z.4f}",
                f"{one.percentile_95:+z.4f}",
                "–" if one.p is None else f"{one.p:.3g}",
            )
            for one in damage.families
        ]
        yield from _table(heads, controls)


def _value(condition: Damage) -> tuple[str, str]:
    perplexity = condition.perplexity
    return f"{condition.value.value:z.4f}", "" if perplexity is None else number(perplexity)


def _change(condition: Damage) -> str:
    change = condition.change
    return f"{change.value:+z.4f} ({interval_text(change.low, change.high, '+.4f')})"


def _joined(joined: Joined) -> Iterator[str]:
    for section in joined_sections(joined):
        yield from ("", f"### {markdown(section.title)}", "")
        yield from (f"- {markdown(sentence)}" for sentence in section.sentences)


def _provenance(data: ReportData) -> Iterator[str]:
    made = data.provenance
    libraries = ", ".join(f"{name} {version}" for name, version in made.libraries.items())
    rows: list[tuple[str, str]] = [("made by", f"outlierlens {made.version}"), ("model", made.model)]
    rows += [("seed", str(made.seed))] if made.seed is not None else []
    rows += [("libraries", libraries)] if libraries else []
    rows += [("computed in", made.dtype)] if made.dtype else []
    rows += [("date", made.created)] if made.created else []
    if data.observation is not None:
        seen = data.observation
        rows.append(("data", f"{seen.data}: {seen.n_texts:,} {seen.inputs}, {seen.n_tokens:,} tokens"))
        rows.append((f"SHA-256 of the {seen.inputs}", seen.data_digest))
    rows.append(("SHA-256 of names, shapes and values read", made.fingerprint))
    yield from _table(("", ""), rows)
    if made.command:
        yield from ("", f"    {printable(made.command)}")  # indented: no backquote in it can end the block
    notes = dict.fromkeys((*data.notes, *data.scan.notes, *(n for s in data.scan.stacks for n in s.notes)))
    if notes:
        yield ""
        yield from (f"- Note: {markdown(note)}" for note in notes)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(markdown(str(cell)) for cell in row) + " |"
