"""The folder of a fine-tuning: whose it is, what is finished in it, and the best model so far.

    claim(folder, identity, seeds, overwrite=False)  # raises where it is another run's
    kept = Kept(folder / "seed-42")                  # scores of the epochs so far, and the best one's model
    kept.add(row, write)                             # a kill at any moment leaves the old best or the new one
    kept.finish()                                    # the best model is now in seed-42/model

While a run lasts, the model of epoch 2 lies in `best-2/`, and counts once `epochs.jsonl` has that epoch's row.

The model card of a fine-tuned model: what it is, and the numbers it reached.
"""

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.formats import suffixes
from outlierlens.checkpoints.samples import is_sample
from outlierlens.errors import BadFile, BadInput, markdown, need, one_line, printable
from outlierlens.results import safe_files as documents
from outlierlens.results.row_store import LOCK
from outlierlens.results.safe_files import rename, write_text
from outlierlens.statistics.means import interval_text
from outlierlens.training.finetune.options import differences
from outlierlens.training.finetune.result import EpochScore, FineTuned, SeedRun
from outlierlens.training.run_files import newest_checkpoint

# What the hub calls metrics; a model-index has these types and our names beside them.
HUB_METRICS = {
    "macro f1": "f1",
    "token accuracy": "accuracy",
    "token f1": "f1",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
AGAIN = "remove its folder to train again"
SETTINGS, EPOCHS, MODEL, RESULT, DONE = "settings.json", "epochs.jsonl", "model", "finetuned.json", "done.json"
PREDICTIONS = "dev_predictions.npz"  # in the model's folder: truth, predicted, losses of the dev examples


def card(tuned: FineTuned, run: SeedRun) -> str:
    """Markdown under the metadata that the hub reads."""
    yaml = need("yaml", "models", "a model card")
    best = run.best
    names = list(best.scores)
    scores = ", ".join(f"{markdown(name)} {value:.4f}" for name, value in best.scores.items())
    rows = "\n".join(
        f"| {row.epoch:g} | {row.loss:.4f} | " + " | ".join(f"{row.scores[name]:.4f}" for name in names) + " |"
        for row in run.epochs
    )
    shown = {**tuned.settings, "seed": run.seed}
    settings = "\n".join(f"- {name}: {markdown(str(value))}" for name, value in shown.items())
    base, task, metric, train, dev = map(markdown, (tuned.base, tuned.task, tuned.metric, tuned.train, tuned.dev))
    return f"""---
{yaml.safe_dump(_metadata(tuned, run), allow_unicode=True, sort_keys=False).strip()}
---
# {base} fine-tuned on {task}

Epoch {run.best_epoch:g} of {len(run.epochs)}, the one with the best {metric} on {tuned.n_dev:,} dev examples:
{scores} (95 % interval of {metric} {interval_text(run.low, run.high, ".4f")}, examples resampled).
The dev set chose the epoch, so these numbers are slightly optimistic.

| epoch | dev loss | {" | ".join(map(markdown, names))} |
|---|---|{"---|" * len(names)}
{rows}

Trained on {tuned.n_train:,} examples of {train} (SHA-256 {tuned.train_digest[:16]}…), scored on {dev}
(SHA-256 {tuned.dev_digest[:16]}…), with outlierlens {tuned.provenance.version}:

{settings}

Made again by:

    {printable(tuned.provenance.command or "outlierlens.training.finetune.loop.finetune(…)")}
"""


def _metadata(tuned: FineTuned, run: SeedRun) -> dict[str, Any]:
    kind = "token-classification" if tuned.metric.startswith("token") else "text-classification"
    metrics = [
        {"type": HUB_METRICS.get(name, name), "name": name, "value": round(value, 6)}
        for name, value in ((one_line(key), value) for key, value in run.best.scores.items())
    ]
    task = one_line(tuned.task)
    result = {"task": {"type": kind}, "dataset": {"type": task, "name": task}, "metrics": metrics}
    found: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": kind}
    if (
        re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", tuned.base, re.ASCII) and not Path(tuned.base).exists()
    ):  # the hub takes nothing but its own ids here
        found["base_model"] = tuned.base
    found["tags"] = ["outlierlens", task.replace(":", "-")]
    found["metrics"] = list(dict.fromkeys(metric["type"] for metric in metrics))
    found["model-index"] = [{"name": f"{printable(tuned.base)} fine-tuned on {task}", "results": [result]}]
    return found


def seed_folder(folder: Path, seed: int) -> Path:
    """Where the run of `seed` lies."""
    return folder / f"seed-{seed}"


def claim(folder: Path, identity: Mapping[str, Any], seeds: Sequence[int], *, overwrite: bool) -> None:
    """Make the folder the home of runs that are `identity` but for their seed; nothing is written before all is checked.

    Raises:
        BadInput: it is a file, or holds other runs (removed with `overwrite`) or something else.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder with -o")
    inside = list(folder.iterdir()) if folder.is_dir() else []
    places = [path for path in inside if path.is_dir() and re.fullmatch(r"seed-\d+", path.name)]
    other = [path for path in inside if path not in places and not path.name.startswith((RESULT, f".{RESULT}.", LOCK))]
    for path in places:
        if not (path / SETTINGS).is_file():  # a run killed at once leaves no more than a part of its settings
            other += [file for file in path.iterdir() if not file.match(f".{SETTINGS}.*.part")]
    ours = [path for path in places if (path / SETTINGS).is_file()]
    if other and not ours:
        raise BadInput(f"{folder} is not empty and holds no run; name another folder with -o")
    begun = [path for path in ours if any(next(path.glob(name), None) for name in (EPOCHS, DONE, "checkpoint-*"))]
    for path in begun:
        found = differences({**read_json(path / SETTINGS), "seed": 0}, {**identity, "seed": 0})
        if found and not overwrite:
            raise BadInput(
                f"{path} holds a run with other settings ({'; '.join(found[:3])}); name another folder with -o, or use "
                f"--overwrite to remove the runs in {folder}"
            )
        if found:
            for old in ours:
                shutil.rmtree(old)
            (folder / RESULT).unlink(missing_ok=True)
            break
    for seed in seeds:
        place = seed_folder(folder, seed)
        if place not in begun or not place.is_dir():
            write_text(place / SETTINGS, json.dumps({**identity, "seed": seed}, indent=1))


def named_by_weights(model: str, subfolder: str = "") -> dict[str, str]:
    """What tells one model from another: its name; of files, which may be moved, a SHA-256 of the weights (1 s/GB)."""
    if is_sample(model) or not Path(model).exists():
        return {"model": model}
    digest = hashlib.sha256()
    inside = [Path(model)] if Path(model).is_file() else Path(model, subfolder).glob("*")
    for path in sorted(file for file in inside if file.suffix in suffixes()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return {"weights": digest.hexdigest()}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small file of ours; raises BadFile for anything else."""
    try:
        return dict(documents.read_json(path, AGAIN, a=dict))
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({type(error).__name__}); {AGAIN}") from None


def finished(folder: Path) -> SeedRun | None:
    """The finished run in a seed's folder, or None; raises BadFile where its model is gone."""
    if not (folder / DONE).is_file():
        return None
    kept = read_json(folder / DONE)
    if not (folder / MODEL / "config.json").is_file():
        raise BadFile(f"{folder}: the run is finished, and its model is gone; remove the folder to train again")
    known = {field.name for field in dataclasses.fields(SeedRun)}
    try:
        epochs = tuple(EpochScore(**row) for row in kept["epochs"])
        values = {name: value for name, value in kept.items() if name in known}
        run = SeedRun(**{**values, "epochs": epochs, "folder": str(folder / MODEL)})
        _ = run.best  # raises where the epoch that it names is not there
    except (KeyError, TypeError, StopIteration) as error:
        raise BadFile(f"{folder / DONE}: not what a run leaves ({error!r}); remove the folder to train again") from None
    return run


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


class Kept:
    """The epochs of a run so far and the model of the best one, as files that a kill at any moment leaves sound."""

    def __init__(self, folder: Path, metric: str):
        self.folder, self.metric = folder, metric
        self.epochs = self._read()
        if self.epochs and not (self._best.is_dir() or (folder / MODEL).is_dir()):
            # Somebody has removed the model: nothing else holds it, so the run begins anew.
            for path in folder.glob("checkpoint-*"):
                shutil.rmtree(path)
            (folder / EPOCHS).unlink()
            self.epochs = []
        self._tidy()

    @property
    def best_epoch(self) -> float:
        """The first of those with the highest metric."""
        return max(self.epochs, key=lambda row: row.scores[self.metric]).epoch

    @property
    def _best(self) -> Path:
        return self.folder / f"best-{self.best_epoch:g}"

    @property
    def model(self) -> Path:
        """Where the best model lies at this moment."""
        return self._best if self._best.is_dir() else self.folder / MODEL

    def row(self, epoch: float) -> EpochScore | None:
        """The scores of `epoch`, where it was scored before the run was stopped."""
        return next((row for row in self.epochs if row.epoch == epoch), None)

    def add(self, row: EpochScore, write: Callable[[Path], None]) -> None:
        """Note an epoch; where it is the best so far, `write` puts its model into the folder given."""
        value = row.scores[self.metric]
        if all(value > other.scores[self.metric] for other in self.epochs):
            part, whole = self.folder / ".best.part", self.folder / f"best-{row.epoch:g}"
            for old in (part, whole):
                shutil.rmtree(old, ignore_errors=True)
            write(part)
            rename(part, whole)
        with (self.folder / EPOCHS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")
        self.epochs.append(row)
        self._tidy()

    def finish(self) -> Path:
        """Put the best model into its place and return that."""
        final = self.folder / MODEL
        if self._best.is_dir():
            shutil.rmtree(final, ignore_errors=True)
            rename(self._best, final)
        return final

    def _read(self) -> list[EpochScore]:
        path = self.folder / EPOCHS
        if not path.is_file():
            return []
        try:
            text = path.read_text("utf-8")
            whole = text[: text.rfind("\n") + 1]
            rows = [EpochScore(**documents.parse_json(line, str(path), AGAIN)) for line in whole.splitlines()]
            for row in rows:
                if not (_is_number(row.epoch) and isinstance(row.scores, dict) and _is_number(row.scores[self.metric])):
                    raise ValueError("an epoch or a score is no number")
        except (ValueError, TypeError, KeyError) as error:
            raise BadFile(f"{path}: not the scores of epochs ({error}); {AGAIN}") from None
        if whole != text:  # killed while it was writing the last row
            write_text(path, whole)
        return rows

    def _tidy(self) -> None:
        """Remove models that are not the best, and checkpoints that the run does not go on from."""
        best = self._best if self.epochs else None
        newest = newest_checkpoint(self.folder)
        for path in [*self.folder.glob("best-*"), *self.folder.glob("checkpoint-*")]:
            if path not in (best, newest):
                shutil.rmtree(path)
