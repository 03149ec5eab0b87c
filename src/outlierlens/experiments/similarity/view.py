"""What is said of vectors of sentences (`Similarity`) and of words (`WordInContext`), for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.similarity.charts import sts_layers, wic_layers
from outlierlens.experiments.similarity.result import (
    OPEN,
    Choice,
    Fitted,
    Similarity,
    TaskScores,
    WordChoice,
    WordInContext,
)
from outlierlens.statistics.means import no_change, no_interval
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, dims_in_layers

BEST = {"best": "the best of all", "last": "the last", "clipped layer": "the best of those that are clipped"}


def sections(found: Similarity | WordInContext, *, verbose: bool = False) -> Iterator[Section]:
    """What was read and fitted, and what each fix changes; with `verbose` layer by layer."""
    if isinstance(found, Similarity):
        title, tables = "Sentence similarity", [_choices(found, task) for task in found.tasks]
        said, name, chart = _of_sentences(found), "similarities", sts_layers(found, name="similarities")
        if verbose:
            tables += [_by_layer(found, one.title, one.layers.pooled, "ρ × 100.") for one in found.tasks]
    else:
        title, tables = "Words in context", [_words(found)]
        said, name, chart = _of_words(found), "words", wic_layers(found, name="words")
        if verbose:
            note = "Accuracy × 100, each at its best threshold from 0.1 to 0.9."
            tables += [_by_layer(found, one.split, one.accuracy.max(2), note) for one in found.data]
    yield Section(name, title, tuple(said), (chart,), tuple(tables))


def _of_sentences(found: Similarity) -> Iterator[str]:
    for task in found.tasks:
        best = max(task.choices, key=lambda one: one.score, default=None)
        if best is not None:
            where = f"at layer {best.layer} ({BEST.get(best.how) or f'chosen on {best.chosen_on}'})"
            what, raw = best.fix, f"; raw vectors reach {100 * best.raw_score:.2f}"
            if best.fix == "raw":
                what, raw = "raw vectors", ""
            yield f"{task.title}: ρ × 100 is highest, {100 * best.score:.2f}, with {what} {where}{raw}."
    yield (
        f"{found.provenance.model}: {found.n_sentences:,} sentences, {found.pooling}{_norm(found)}; at most "
        f"{found.max_length} tokens."
    )
    yield from _fitted(found.fitted)


def _of_words(found: WordInContext) -> Iterator[str]:
    best = max(found.choices, key=lambda one: one.crossed)
    yield (
        f"Words in context: with {best.fix} at layer {best.layer}, {100 * best.crossed:.1f} % of the pairs of train are told "
        f"right, cross-validated; always saying “the same” gets {100 * found.data[0].all_true:.1f} %."
    )
    yield f"{found.provenance.model}: words as the mean of their sub-words{_norm(found)}."
    for split in found.data:
        left = f", {split.left_out:,} left out (word behind {found.max_length} tokens)" if split.left_out else ""
        yield (
            f"{split.split}: {split.n_pairs:,} pairs{left}; always “the same” is right in {100 * split.all_true:.1f} %."
        )
    yield from _fitted(found.fitted)


def _norm(found: Similarity | WordInContext) -> str:
    return ", through the final norm" if found.final_norm else ""


def _fitted(fitted: Fitted) -> Iterator[str]:
    if fitted.source:
        left = f", {fitted.dropped:,} evaluated texts left out" if fitted.dropped else ""
        what = f"Fixes fitted on {fitted.n:,} vectors of" if fitted.n else "Dimensions to clip observed on"
        yield f"{what} {fitted.source}{left}."
    if fitted.clipped:
        yield f"Clipped dimensions: {dims_in_layers(fitted.clipped)} ({fitted.clipping})."


def _choices(found: Similarity, task: TaskScores) -> Rows:
    """What the fixes reach on one task; ways to choose a layer that came to the same layers share a row."""
    sizes = ", ".join(f"{name} {size:,}" for name, size in zip(task.subsets, task.sizes, strict=True))
    ways = ("mean of subsets", "weighted") if task.subsets else ()
    rows: list[tuple[Cell, ...]] = []
    for fix in found.fixes:
        same: dict[tuple[str, str], list[Choice]] = {}
        for one in task.choices:
            if one.fix == fix:
                same.setdefault((one.layer, one.raw_layer), []).append(one)
        rows += [_choice(found, task, alike) for alike in same.values()]
    for row, static in enumerate(found.static):
        for column, fix in enumerate(found.fixes):
            values = [of[row, column] for of in (task.static.pooled, task.static.mean, task.static.weighted)]
            if math.isfinite(values[0]):
                scores = (100 * float(value) for value in values[: 1 + len(ways)])
                rows.append((fix, "static", static.name, *scores, *[None] * 5))
    note = ["Spearman's ρ of all pairs together; change from raw vectors at their own layer, paired 95 % intervals."]
    note += [f"Held out: layer chosen on {one.chosen_on}." for one in task.choices if one.how == "held out"][:1]
    if any((one.low, one.high) == (0, 0) and one.fix != "raw" for one in task.choices):
        note.append(f"Where nothing changed: {no_change(task.n_pairs, 'pairs', task.n_families)}.")
    if any(one.verdict == OPEN for one in task.choices):
        note.append(f"Not settled: {no_interval(task.n_families, 'independent pairs', metric='spearman')}.")
    heads = ("fix", "layer chosen", "layer", "ρ × 100", *ways, "change", "95 %", "raw layer", "raw", "says")
    title = f"{task.title}: {task.n_pairs:,} pairs{f' ({sizes})' if sizes else ''}"
    return Rows(title, heads, tuple(rows), " ".join(note))


def _choice(found: Similarity, task: TaskScores, alike: list[Choice]) -> tuple[Cell, ...]:
    one = alike[0]
    row, column = found.layers.index(one.layer), found.fixes.index(one.fix)
    ways = [task.layers.pooled, *((task.layers.mean, task.layers.weighted) if task.subsets else ())]
    scores = (100 * float(way[row, column]) for way in ways)
    start: tuple[Cell, ...] = (one.fix, ", ".join(choice.how for choice in alike), one.layer, *scores)
    if one.fix == "raw":
        return (*start, *[None] * 5)
    nothing = one.fix == "clip" and one.layer not in found.fitted.clipped
    says = f"{one.verdict}: nothing to clip there" if nothing else one.verdict
    return (*start, *_change(one.change, one.low, one.high), one.raw_layer, 100 * one.raw_score, says)


def _words(found: WordInContext) -> Rows:
    """The best layer and threshold of every fix."""
    held = any(one.held_out is not None for one in found.choices)
    heads = ["thresholds", "fix", "layer", "above"]
    for where in ("train (chosen on it)", "cross-validated", *(("validation",) if held else ())):
        heads += [where, "change", "95 %"]
    changed = [one for one in found.choices if one.fix != "raw"]
    note = [
        "Change from raw vectors at their own layer and threshold. Thresholds: grid is 0.1 to 0.9, the "
        "paper's; any is every threshold that tells pairs of train apart."
    ]
    train = any((0, 0) in ((one.low, one.high), (one.crossed_low, one.crossed_high)) for one in changed)
    validation = any((one.held_out_low, one.held_out_high) == (0, 0) for one in changed)
    same = [split for split, has in zip((found.data[0], found.data[-1]), (train, validation), strict=True) if has]
    note += [
        f"Where nothing changed in {one.split}: {no_change(one.n_pairs, 'pairs', one.n_families)}." for one in same
    ]
    return Rows("Accuracy × 100", (*heads, "says"), tuple(_word(one, held) for one in found.choices), " ".join(note))


def _word(one: WordChoice, held: bool) -> tuple[Cell, ...]:
    cells: list[Cell] = [one.thresholds, one.fix, one.layer, one.threshold]
    for value, change, low, high in (
        (one.accuracy, one.change, one.low, one.high),
        (one.crossed, one.crossed_change, one.crossed_low, one.crossed_high),
        (one.held_out, one.held_out_change, one.held_out_low, one.held_out_high),
    )[: 3 if held else 2]:
        cells.append(None if value is None else 100 * value)
        if one.fix == "raw" or change is None or low is None or high is None:
            cells += (None, None)
        else:
            cells += _change(change, low, high)
    return (*cells, one.verdict or None)


def _change(change: float, low: float, high: float) -> tuple[Cell, Cell]:
    return Change(100 * change), Interval(100 * low, 100 * high)


def _by_layer(found: Similarity | WordInContext, of: str, values: np.ndarray, note: str) -> Rows:
    """Scores [layer, fix] of every layer, × 100."""
    rows = tuple((layer, *(100 * row).tolist()) for layer, row in zip(found.layers, values, strict=True))
    return Rows(f"{of} by layer", ("layer", *found.fixes), rows, note)
