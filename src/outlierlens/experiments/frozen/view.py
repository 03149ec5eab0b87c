"""What is said of classifiers on frozen vectors, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.frozen.charts import frozen
from outlierlens.experiments.frozen.result import Chosen, FrozenScores
from outlierlens.experiments.similarity.result import OPEN
from outlierlens.statistics.means import no_change, no_interval
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Span, dims_in_layers


def sections(found: FrozenScores, *, verbose: bool = False) -> Iterator[Section]:
    """The metric by layer and repair, and what repairs change at the chosen layers; with `verbose` of dev and train too."""
    tables = [_chosen(found)]
    tables += [_by_layer(found, split) for split in (("test", "dev", "train") if verbose else ("test",))]
    said = (lead(found), *_sentences(found))
    yield Section("frozen", "Classifiers on frozen vectors", said, (frozen(found, name="frozen"),), tuple(tables))


def lead(found: FrozenScores) -> str:
    """What linear classifiers on raw frozen vectors reach, in a sentence."""
    raw = found.fix("raw")
    return (
        f"{found.provenance.model} on {found.task}: linear classifiers on frozen mean vectors reach {found.metric} "
        f"{raw.selected.value:.4f} at layer {raw.selected.layer} (chosen on dev), {raw.best.value:.4f} at layer "
        f"{raw.best.layer}, the best on test; always the commonest label gets {found.majority:.4f}."
    )


def _sentences(found: FrozenScores) -> Iterator[str]:
    some = "" if found.n_train == found.n_train_all else f" of {found.n_train_all:,}"
    tested = "" if found.n_test == found.n_test_all else f" of {found.n_test_all:,}"
    held = "held out of train" if found.held_out else found.dev
    yield (
        f"{found.n_train:,}{some} training, {found.n_dev:,} dev ({held}) and {found.n_test:,}{tested} test examples, "
        f"{found.n_dropped:,} dropped as shared; at most {found.max_length} tokens ({found.n_cut:,} texts that long); special "
        f"tokens {'counted' if found.special else 'left out'}."
    )
    yield (
        f"{found.epochs} epochs of Adam, {found.n_steps:,} steps of {found.train_batch:,} examples, learning rate "
        f"{found.lr:g}, {'with' if found.bias else 'without'} bias; clipped: {dims_in_layers(found.clip_dims) or 'nothing'} "
        f"({found.clip_source})."
    )


def _by_layer(found: FrozenScores, split: str) -> Rows:
    columns = [getattr(one, split).tolist() for one in found.fixes]
    rows = tuple(zip(found.layers, *columns, strict=True))
    return Rows(f"{found.metric}, {split} split", ("layer", *(one.fix for one in found.fixes)), rows)


def _chosen(found: FrozenScores) -> Rows:
    rows = [("dev", one.fix, one.selected) for one in found.fixes] + [
        ("test", one.fix, one.best) for one in found.fixes
    ]
    note = "Layer by: the split that chooses it; test itself is the paper's way. Change from raw vectors, chosen alike."
    if any((one.change_low, one.change_high) == (0, 0) and one.verdict for _, _, one in rows):
        note += f" Where nothing changed: {no_change(found.n_test, 'examples')}."
    if any(one.verdict == OPEN for _, _, one in rows):
        note += f" Not settled: {no_interval(found.n_test, 'test examples', metric=found.metric)}."
    heads = ("layer by", "fix", "layer", found.metric, "95 %", "change", "95 %", "says")
    return Rows("At the chosen layer", heads, tuple((by, fix, *_row(one)) for by, fix, one in rows), note)


def _row(one: Chosen) -> tuple[Cell, ...]:
    start: tuple[Cell, ...] = (one.layer, one.value, Span(one.low, one.high))
    if not one.verdict:
        return (*start, None, None, None)
    return (*start, Change(one.change), Interval(one.change_low, one.change_high), one.verdict)
