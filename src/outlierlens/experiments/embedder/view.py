"""What is said of an exported embedder: `sections(found)`.

The model card of an exported embedder: what it is, its numbers, and how to load it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.errors import literal, markdown, need, printable
from outlierlens.experiments.embedder.result import Exported
from outlierlens.view.section import Section, rows_of


def card(found: Exported) -> str:
    """Markdown under the metadata that the hub reads."""
    yaml = need("yaml", "models", "a model card")
    base = markdown(found.provenance.model)
    return f"""---
{yaml.safe_dump(_metadata(found), allow_unicode=True, sort_keys=False).strip()}
---
# {base}, layer {found.layer}, {found.fix}

Sentence vectors of {found.width[1]} dimensions. Load them with sentence-transformers alone:

    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer({found.folder!r})
    vectors = model.encode(["A plane is taking off."])

| | |
|---|---|
{_table(found)}
{_numbers(found)}
{_licence(found)}

Written by outlierlens {found.provenance.version}, again by:

    {printable(found.provenance.command or "outlierlens.experiments.embedder.measure.export_embedder(…)")}
"""


def describe(found: Exported) -> dict[str, str]:
    """What the model is, a line each, in words."""
    blocks = "all" if found.n_blocks == found.of_blocks else f"the first {found.n_blocks}"
    behind = ", behind the model's final norm" if found.final_norm else ""
    vector = "the input of the first block" if found.n_blocks == 0 else f"the output of block {found.layer} (from 0)"
    kept, width = found.width[1], found.width[0]
    if found.fix == "raw":
        fix = "none"
    elif found.dims:
        fix = f"clip: dimensions {', '.join(map(str, found.dims))} of the mean are zero ({found.clip})"
    else:
        shrunk = f", covariance shrunk by {found.shrinkage:.3f}" if found.shrinkage else ""
        fix = f"{found.fix}, a dense layer {width} → {kept} behind the mean{shrunk}"
    fitted = f"{found.n_fitted:,} sentence vectors of {found.fit}" if found.n_fitted else "nothing"
    return {
        "base model": found.provenance.model,
        "blocks": f"{blocks} of {found.of_blocks}; {vector}{behind}",
        "pooling": f"{found.pooling}; texts cut at {found.max_length} tokens",
        "fix": fix,
        "fitted on": f"{fitted}" + (f" (SHA-256 {found.fit_digest[:16]}…)" if found.n_fitted else ""),
        "length": "every vector has length 1" if found.normalized else "as it comes; compare by cosine",
    }


def _table(found: Exported) -> str:
    return "\n".join(f"| {name} | {markdown(text)} |" for name, text in describe(found).items())


def _numbers(found: Exported) -> str:
    lines = [
        f"- {check.reader} reads this folder back as outlierlens makes the vectors: largest difference "
        f"{check.difference:.2g}, {check.relative:.1g} of the largest entry ({found.n_checked} texts)."
        for check in found.checks
    ]
    if sts := found.sts:
        lines.append(
            f"- Spearman × 100 of cosines on {sts.n_pairs:,} pairs of {markdown(sts.source)}: {100 * sts.raw:.2f} without the "
            f"fix, {100 * sts.fixed:.2f} with it, {100 * sts.exported:.2f} as {sts.reader} reads this folder. None of its "
            f"sentences was fitted on."
        )
    lines += [f"- Note: {markdown(note)}." for note in found.notes]
    return "\n" + "\n".join(lines) + "\n"


def _licence(found: Exported) -> str:
    sample = SAMPLES.get(found.provenance.model)
    known = f" ({sample.licence})" if sample else ""
    return f"The licence of the base model applies{known}: these are its weights."


def _metadata(found: Exported) -> dict[str, Any]:
    base = found.provenance.model
    meta: dict[str, Any] = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    sample = SAMPLES.get(base)
    name = sample.hub_id if sample else base
    if (
        re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name, re.ASCII) and not Path(name).exists()
    ):  # the hub takes its own ids alone
        meta["base_model"] = name
    meta["tags"] = ["sentence-transformers", "feature-extraction", "sentence-similarity", "outlierlens"]
    return meta


def sections(found: Exported, *, verbose: bool = False, folder: Path | None = None) -> Iterator[Section]:
    """What was written to `folder`, how it scores, and how readers of it agree with our own vectors."""
    table = rows_of("Read back from the folder, against our own vectors", found.records())
    yield Section(
        "embedder", "An exported embedder", tuple(_sentences(found, folder or Path(found.folder))), (), (table,)
    )


def _sentences(found: Exported, folder: Path) -> Iterator[str]:
    for name, text in describe(found).items():
        yield f"{name}: {text}"
    if sts := found.sts:
        yield (
            f"Spearman × 100 on {sts.n_pairs:,} pairs of {sts.source}: {100 * sts.raw:.2f} without the fix, "
            f"{100 * sts.fixed:.2f} with it, {100 * sts.exported:.2f} by {sts.reader} from the folder"
        )
        if sts.n_fit_dropped:
            yield f"{sts.n_fit_dropped:,} of these sentences were in the fit text too and were left out of it"
    yield f"written: {folder}; SentenceTransformer({literal(str(folder))}) loads it"
