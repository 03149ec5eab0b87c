"""What is said of fine-tuned models: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.results.finding import Finding
from outlierlens.training.finetune.result import EpochScore, FineTuned, SeedRun
from outlierlens.view.section import Cell, Rows, Section, Span


def sections(found: FineTuned | Finding, *, verbose: bool = False) -> Iterator[Section]:
    """The best epoch of each seed; with `verbose` every epoch, and where the models lie. A finding says itself what it says."""
    if isinstance(found, Finding):
        yield from found.sections(verbose=verbose)
        return
    names = tuple(found.seeds[0].best.scores)
    heads = ("seed", "epoch", "of", "dev loss", *names, f"{found.metric}, 95 %")
    tables = [Rows("The best epoch of each seed", heads, tuple(_best(run, names) for run in found.seeds))]
    if verbose:
        heads = ("seed", "epoch", "step", "training loss", "dev loss", *names)
        every = tuple(_epoch(run, one, names) for run in found.seeds for one in run.epochs)
        tables.append(Rows("Every epoch", heads, every))
        took = tuple((run.seed, run.seconds, run.fingerprint, run.folder) for run in found.seeds)
        tables.append(Rows("Models", ("seed", "seconds", "fingerprint", "folder"), took))
    yield Section("finetuned", f"Fine-tuned on {found.task}", tuple(_sentences(found)), (), tuple(tables))


def _sentences(found: FineTuned) -> Iterator[str]:
    mean, low, high = found.spread()
    several = len(found.seeds) > 1
    over = f"over {len(found.seeds)} seeds: mean {mean:.4f}, {low:.4f} to {high:.4f}" if several else f"{mean:.4f}"
    yield (
        f"{found.base} on {found.task}: {found.metric} {over}; trained on {found.n_train:,} examples, scored on "
        f"{found.n_dev:,}."
    )
    if off := found.settings.get("off"):
        held = "held at zero" if found.settings.get("hold") else "free to grow back"
        yield f"Dimensions {', '.join(map(str, off))} were set to zero before training, {held}."


def _best(run: SeedRun, names: tuple[str, ...]) -> tuple[Cell, ...]:
    scores = (run.best.scores[name] for name in names)
    return (run.seed, run.best_epoch, len(run.epochs), run.best.loss, *scores, Span(run.low, run.high))


def _epoch(run: SeedRun, one: EpochScore, names: tuple[str, ...]) -> tuple[Cell, ...]:
    return (run.seed, one.epoch, one.step, one.train_loss, one.loss, *(one.scores[name] for name in names))
