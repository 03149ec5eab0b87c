"""Fine-tuning with Hugging Face's Trainer: one folder a seed, continued where it was stopped.

    tuned = finetune("minilm-l6", train, dev, Path("runs/minilm-l6-rte"), FinetuneSettings(), seeds=(42, 43))

A run folder holds `finetuned.json` and for every seed `seed-42/`: `settings.json`, `checkpoint-N/` while it runs,
`epochs.jsonl` (dev scores of each epoch) and `model/`, the model of the epoch with the best dev metric. A run that was
killed gives what an uninterrupted one gives: the order is a function of the seed, and dropout's generator is restored.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from outlierlens.devices import auto_dtype, pick_device
from outlierlens.errors import BadInput
from outlierlens.finetune.card import card
from outlierlens.finetune.order import steps_per_epoch, training_order
from outlierlens.finetune.settings import FinetuneSettings
from outlierlens.finetuned import EpochScore, FineTuned, SeedRun
from outlierlens.inputs import token_limit
from outlierlens.labelled import Examples
from outlierlens.labelled.encode import Encoded, encode
from outlierlens.labelled.examples import NOT_A_LABEL
from outlierlens.models import LoadedModel, LoadOptions, NewHead, fingerprint, load_model
from outlierlens.results import Provenance, save, write_text
from outlierlens.run_files import newest_checkpoint
from outlierlens.tasks import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import interval

SETTINGS, EPOCHS, MODEL, RESULT = "settings.json", "epochs.jsonl", "model", "finetuned.json"


@dataclass(frozen=True)
class FinetuneOptions:
    """Where and how loudly; nothing here changes the numbers (`load` says where the model comes from).

    Attributes:
        command: what made it, for provenance and model card.
        overwrite: remove an earlier run with other settings from the folder.
        report_to: names of the Trainer's integrations ("tensorboard", "wandb", "trackio").
        keep_checkpoints: keep the newest checkpoint of a finished run; otherwise only the best epoch's model stays.
        progress: called with a line at each stage. on_log: called with (seed, step, steps, logged numbers).
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    command: str = ""
    overwrite: bool = False
    report_to: tuple[str, ...] = ()
    keep_checkpoints: bool = False
    progress: Callable[[str], None] = print
    on_log: Callable[[int, int, int, dict[str, float]], None] | None = None


def finetune(
    model: str,
    train: Examples,
    dev: Examples,
    folder: Path,
    settings: FinetuneSettings | None = None,
    *,
    seeds: Sequence[int] = (42,),
    options: FinetuneOptions | None = None,
) -> FineTuned:
    """Fine-tune `model` on `train` once a seed, keep each run's best epoch on `dev`, and write the run folder.

    Raises:
        BadInput: the folder holds runs with other settings, or the examples do not fit each other or the model.
    """
    settings, options = settings or FinetuneSettings(), options or FinetuneOptions()
    if not seeds or len(set(seeds)) != len(seeds):
        raise BadInput(f"seeds are {list(seeds)}; name at least one, and none twice")
    if train.task.labels != dev.task.labels or train.task.level != dev.task.level:
        raise BadInput(
            f"{train.source} has the labels {', '.join(train.task.labels)}, {dev.source} has {', '.join(dev.task.labels)}; "
            f"both must have the same"
        )
    transformers.utils.logging.disable_progress_bar()
    runs = []
    for seed in seeds:
        mine = replace(settings, seed=seed)
        runs.append(_one(model, train, dev, folder / f"seed-{seed}", mine, options))
    result = FineTuned(
        provenance=Provenance.now(model, runs[0].fingerprint, command=options.command, seed=seeds[0]),
        base=model,
        task=dev.task.name,
        metric=dev.task.metric,
        settings={name: value for name, value in settings.to_dict().items() if name != "seed"},
        train=train.source,
        dev=dev.source,
        n_train=min(len(train), settings.train_limit or len(train)),
        n_dev=len(dev),
        train_digest=train.digest,
        dev_digest=dev.digest,
        seeds=tuple(runs),
    )
    save(result, folder / RESULT)
    for run in runs:
        write_text(folder / f"seed-{run.seed}" / MODEL / "README.md", card(result, run))
    return result


def _one(
    model: str, train: Examples, dev: Examples, folder: Path, settings: FinetuneSettings, options: FinetuneOptions
) -> SeedRun:
    """One seed's run: train, or go on, or read what is there."""
    identity = {
        "model": model, "revision": options.load.revision, "task": dev.task.name, "metric": dev.task.metric,
        "train": train.digest, "dev": dev.digest, **settings.to_dict(),
    }  # fmt: skip
    _claim(folder, identity, options.overwrite)
    done = folder / "done.json"
    if done.is_file():
        kept = json.loads(done.read_text("utf-8"))
        options.progress(f"seed {settings.seed}: finished earlier, read from {folder}")
        return SeedRun(
            **{**kept, "epochs": tuple(EpochScore(**row) for row in kept["epochs"]), "folder": str(folder / MODEL)}
        )
    started = time.monotonic()
    head = NewHead(dev.task.labels, tokens=dev.task.level == "token", seed=settings.seed)
    loaded = load_model(model, replace(options.load, dtype="float32"), head)
    length = token_limit(loaded, settings.max_length)
    chosen = train
    if settings.train_limit is not None and settings.train_limit < len(train):
        drawn = np.random.default_rng([settings.seed, 7]).permutation(len(train))[: settings.train_limit]
        chosen = train.some(sorted(drawn.tolist()))
    rows = encode(loaded.tokenizer, chosen, max_length=length)
    scorer = LabelledScore(loaded, dev, TaskOptions(max_length=length, batch_size=64))
    keeper = _train(loaded, rows, scorer, folder, settings, options)
    tokens = np.array(dev.labels) if dev.task.level == "text" else None
    low, high = (
        interval(dev.task.metric, keeper.truth, keeper.best_predicted, seed=settings.seed)
        if tokens is not None
        else (float("nan"), float("nan"))
    )
    best = load_model(str(folder / MODEL), replace(options.load, dtype="float32"))
    run = SeedRun(
        settings.seed, str(folder / MODEL), tuple(keeper.epochs), keeper.best_epoch, low, high, fingerprint(best.model),
        time.monotonic() - started,
    )  # fmt: skip
    write_text(done, json.dumps(dataclasses.asdict(run)))
    if not options.keep_checkpoints:
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)
    return run


def _train(
    loaded: LoadedModel,
    rows: Encoded,
    scorer: LabelledScore,
    folder: Path,
    settings: FinetuneSettings,
    options: FinetuneOptions,
) -> "_Keeper":
    order = training_order(rows.lengths, batch=settings.batch, epochs=settings.epochs, seed=settings.seed)
    per_epoch = steps_per_epoch(len(rows.lengths), settings.batch)
    keeper = _Keeper(loaded, scorer, folder, settings, per_epoch, options)
    trainer = Trainer(
        model=loaded.model,
        args=_arguments(settings, folder, per_epoch, options),
        train_dataset=_Rows(rows, order),
        data_collator=_Collator(loaded.tokenizer),
        callbacks=[keeper],
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    newest = newest_checkpoint(folder)
    steps = per_epoch * settings.epochs
    options.progress(
        f"seed {settings.seed}: {'continuing from ' + newest.name if newest else 'training'}, {steps:,} steps of "
        f"{settings.batch}, {settings.epochs} epochs"
    )
    with torch.random.fork_rng():
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    return keeper


class _Rows(Dataset[dict[str, Any]]):
    """Training examples in the order of the steps."""

    def __init__(self, encoded: Encoded, order: np.ndarray):
        self.encoded, self.order = encoded, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, Any]:
        number = int(self.order[place])
        row: dict[str, Any] = {key: values[number] for key, values in self.encoded.inputs.items()}
        return {**row, "labels": self.encoded.labels[number]}


class _Collator:
    """Rows of one step, padded on the right to the longest."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        labels = [row["labels"] for row in rows]
        inputs = self.tokenizer.pad(
            [{key: value for key, value in row.items() if key != "labels"} for row in rows],
            return_tensors="pt", padding_side="right",
        )  # fmt: skip
        if isinstance(labels[0], list):
            longest = inputs["input_ids"].shape[1]
            labels = [row + [NOT_A_LABEL] * (longest - len(row)) for row in labels]
        kind = torch.float32 if isinstance(labels[0], float) else torch.int64
        return {**inputs, "labels": torch.tensor(labels, dtype=kind)}


class _Keeper(TrainerCallback):
    """Scores the dev set after each epoch, and keeps the model of the best one."""

    def __init__(
        self,
        loaded: LoadedModel,
        scorer: LabelledScore,
        folder: Path,
        settings: FinetuneSettings,
        per_epoch: int,
        options: FinetuneOptions,
    ):
        self.loaded, self.scorer, self.folder, self.settings = loaded, scorer, folder, settings
        self.per_epoch, self.options = per_epoch, options
        self.epochs: list[EpochScore] = []
        self.best_epoch = 0.0
        self._losses: list[float] = []
        path = folder / EPOCHS
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                self.epochs.append(EpochScore(**json.loads(line)))
        self._choose()

    def _choose(self) -> None:
        if self.epochs:
            self.best_epoch = max(self.epochs, key=lambda row: row.scores[self.scorer.examples.task.metric]).epoch

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **known: Any) -> None:
        if logs and "loss" in logs:
            self._losses.append(logs["loss"])
            if self.options.on_log:
                self.options.on_log(self.settings.seed, state.global_step, state.max_steps, dict(logs))

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if state.global_step % self.per_epoch:
            return
        epoch = state.global_step / self.per_epoch
        if any(row.epoch == epoch for row in self.epochs):
            return  # scored before the run was stopped
        self.loaded.model.eval()
        found = self.scorer.outputs()
        self.loaded.model.train()
        losses, self._losses = self._losses, []
        row = EpochScore(
            epoch,
            state.global_step,
            float(found.losses.mean()),
            found.scores,
            float(np.mean(losses)) if losses else None,
        )
        metric = self.scorer.examples.task.metric
        if not self.epochs or found.scores[metric] > max(other.scores[metric] for other in self.epochs):
            self._keep_model(found)
        self.epochs.append(row)
        with (self.folder / EPOCHS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")
        self._choose()
        said = ", ".join(f"{name} {value:.4f}" for name, value in found.scores.items())
        self.options.progress(f"seed {self.settings.seed}: epoch {epoch:g}: {said}, dev loss {row.loss:.4f}")

    def _keep_model(self, found: Any) -> None:
        """Write the model of this epoch beside the old one, then put it in its place."""
        part, final = self.folder / f".{MODEL}.part", self.folder / MODEL
        shutil.rmtree(part, ignore_errors=True)
        model: Any = self.loaded.model
        model.save_pretrained(part)
        tokenizer: Any = self.loaded.tokenizer
        tokenizer.save_pretrained(part)
        np.savez(part / "dev_predictions.npz", truth=found.truth, predicted=found.predicted, losses=found.losses)
        shutil.rmtree(final, ignore_errors=True)
        part.replace(final)

    @property
    def truth(self) -> np.ndarray:
        """Labels of the dev set."""
        with np.load(self.folder / MODEL / "dev_predictions.npz") as kept:
            return np.asarray(kept["truth"])

    @property
    def best_predicted(self) -> np.ndarray:
        """What the best epoch's model predicts on the dev set."""
        with np.load(self.folder / MODEL / "dev_predictions.npz") as kept:
            return np.asarray(kept["predicted"])


def _claim(folder: Path, identity: dict[str, Any], overwrite: bool) -> None:
    """Make the folder this run's own; raises BadInput where it holds another's."""
    noted = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder with -o")
    if noted.is_file():
        before = json.loads(noted.read_text("utf-8"))
        differing = [
            f"{key} was {before.get(key)!r}, is {value!r}"
            for key, value in identity.items()
            if before.get(key) != value
        ]
        if not differing:
            return
        if not overwrite:
            raise BadInput(
                f"{folder} holds a run with other settings ({'; '.join(differing[:3])}); name another folder with -o, or use "
                f"--overwrite to remove that run"
            )
        shutil.rmtree(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no run; name another folder with -o")
    write_text(noted, json.dumps(identity, indent=1))


def _arguments(settings: FinetuneSettings, folder: Path, per_epoch: int, options: FinetuneOptions) -> TrainingArguments:
    device = pick_device(options.load.device)
    if device.index:
        raise BadInput(
            f"device {device}: a training takes the first GPU that it sees; choose one by CUDA_VISIBLE_DEVICES={device.index}"
        )
    wanted = settings.precision
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=per_epoch * settings.epochs,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup * per_epoch * settings.epochs,
        weight_decay=settings.weight_decay,
        bf16=wanted == "bfloat16" or (wanted == "auto" and auto_dtype(device) == torch.bfloat16),
        use_cpu=str(device) == "cpu",
        seed=settings.seed,
        data_seed=settings.seed,
        train_sampling_strategy="sequential",  # the order is in the rows themselves
        remove_unused_columns=False,
        logging_steps=max(1, min(50, per_epoch // 4)),
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=settings.save_steps or per_epoch,
        save_total_limit=1,
        report_to=list(options.report_to) or "none",
        disable_tqdm=True,
        dataloader_num_workers=0,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
