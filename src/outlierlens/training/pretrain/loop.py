"""Pre-training of language models by recipe, with Hugging Face's Trainer; resumed where it was stopped.

    run = pretrain(read_recipe("mini-bert"), Path("runs/mini-bert"))
    run.folder                                       # model, tokenizer, recipe, checkpoints, rows of the watch

A run folder holds `recipe.toml`, `checkpoint-N/` every `save_every` steps, `watch.jsonl` (norms and probe activations
every `watch_every` steps) and at the end `model/`. A run that was killed continues from its newest whole checkpoint and
gives what an uninterrupted run gives: order and masks depend on the recipe alone, and dropout's generator is restored.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.hooks import head_only_at
from outlierlens.models.load import config_dict
from outlierlens.results.safe_files import new_folder, read_json, refuse_links, remove, write_text
from outlierlens.training.callback import OutlierCallback
from outlierlens.training.pretrain.build import build, clamp_scale_, kurtosis, norm_spread
from outlierlens.training.pretrain.corpus import PackedTokens, prepare
from outlierlens.training.pretrain.recipe import Recipe, TrainingRecipe, read_recipe
from outlierlens.training.pretrain.result import OUTCOME
from outlierlens.training.pretrain.rows import IGNORED, PackedRows, TrainingRows
from outlierlens.training.run_files import checkpoints, newest_checkpoint
from outlierlens.training.trainer import refuse_foreign, training_arguments
from outlierlens.training.watch import WatchOptions

if TYPE_CHECKING:
    from torch import Tensor

RECIPE = "recipe.toml"
WATCH = "watch.jsonl"
DATA = "data.json"
RESUMING = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth")
PROBE_TEXTS = 8
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "polynomial": "polynomial",
    "constant": "constant_with_warmup",
}


@dataclass(frozen=True)
class RunOptions:
    """Device, folder and messages of a training; nothing here changes the numbers."""

    device: str = "auto"
    """auto, cpu, cuda or mps; several processes come from `accelerate launch` or `torchrun`."""
    offline: bool = False
    """Never use the network."""
    overwrite: bool = False
    """Remove an earlier run of another recipe from the folder."""
    report_to: tuple[str, ...] = ()
    """Names of the Trainer's integrations: tensorboard, wandb, mlflow, trackio."""
    progress: Callable[[str], None] = print
    """Called with a line at each stage."""
    on_log: Callable[[int, int, dict[str, float]], None] | None = None
    """Called with (step, steps, logged numbers) whenever something is logged."""


@dataclass(frozen=True)
class PretrainingRun:
    """A finished pre-training: the folder, the trained model in evaluation mode, and what it was trained on.

    `n_rows` were read, by all processes together, of which one `is_main`; it writes.
    """

    folder: Path
    recipe: Recipe
    model: Any
    tokens: PackedTokens
    n_rows: int
    log: tuple[dict[str, float], ...]
    is_main: bool = True

    @property
    def model_folder(self) -> Path:
        """The trained model and its tokenizer, as `load_model` takes them."""
        return self.folder / "model"


def pretrain(recipe: Recipe, folder: Path, options: RunOptions | None = None) -> PretrainingRun:
    """Train what `recipe` says, or go on with it, and write the run folder.

    Raises:
        BadInput: the folder holds a run of another recipe, or the recipe cannot be trained on this text or device.
    """
    options = options or RunOptions()
    transformers.utils.logging.disable_progress_bar()
    _claim(folder, recipe, options.overwrite)
    tokens = prepare(recipe, offline=options.offline, progress=options.progress)
    _same_rows(folder, tokens.folder.name)
    model = build(recipe, tokens.tokenizer)
    (stack,) = arch.bind(arch.stacks_of(config_dict(model)), arch.live_parameters(model))
    arguments = _arguments(recipe.training, folder, options)
    newest = newest_checkpoint(folder)
    _same_processes(newest, recipe.training.steps, arguments.world_size)
    n_rows = recipe.training.steps * recipe.training.batch * recipe.training.accumulation * arguments.world_size
    trainer = RecipeTrainer(
        stack,
        recipe.training,
        model=model,
        args=arguments,
        train_dataset=TrainingRows(tokens, recipe, n_rows),
        eval_dataset=PackedRows(tokens.validation[: recipe.training.evaluate_rows or None], tokens, recipe),
        callbacks=[_Housekeeping(model, stack, recipe.training, options)],
        processing_class=tokens.tokenizer,
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    probe = Texts("held-out texts", tokens.held_out[:PROBE_TEXTS])
    watching = WatchOptions(
        every=recipe.training.watch_every, probe=probe, probe_texts=PROBE_TEXTS, probe_tokens=recipe.data.length,
        notice=options.progress,
    )  # fmt: skip
    OutlierCallback(folder / WATCH, watching, tokenizer=tokens.tokenizer).attach(trainer)
    options.progress(f"{'continuing from ' + newest.name if newest else 'training'}: {recipe.training.steps:,} steps")
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    if not any("eval_loss" in row and row["step"] == recipe.training.steps for row in trainer.state.log_history):
        trainer.evaluate()
    # The Trainer's last row is about the time since the last start.
    log = tuple(row for row in trainer.state.log_history if "train_runtime" not in row)
    # Mixed precision wraps forward; what is measured is the model that is saved.
    model = trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()
    if trainer.is_world_process_zero():
        with new_folder(folder / "model") as making:
            trainer.save_model(str(making))
        write_text(folder / "log.json", json.dumps({"log_history": log}, indent=0, sort_keys=True))
    return PretrainingRun(folder, recipe, model, tokens, n_rows, log, trainer.is_world_process_zero())


class RecipeTrainer(Trainer):
    """Trainer that computes the vocabulary head at the predicted tokens alone, with the recipe's optimizer and penalty."""

    def __init__(self, stack: BoundStack, training: TrainingRecipe, **arguments: Any):
        def collated(items: Sequence[tuple[PackedRows, int]]) -> dict[str, "Tensor"]:
            return items[0][0].collate([place for _, place in items])

        super().__init__(data_collator=collated, **arguments)
        self.stack, self.training = stack, training
        self.model_accepts_loss_kwargs = False  # the loss is a mean; over `accumulation` batches the Trainer averages

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """All parameters where the recipe decays norms and biases too; else transformers' choice."""
        if self.training.decay_norms:
            return [name for name, _ in model.named_parameters()]
        return list(super().get_decay_parameter_names(model))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW, or where the recipe says so Muon for the blocks' matrices and AdamW for the rest."""
        made: torch.optim.Optimizer = super().create_optimizer() if model is None else super().create_optimizer(model)
        if self.training.optimizer == "muon" and not isinstance(made, MuonAndAdamW):
            blocks = tuple(f"{block}." for block in self.stack.blocks)
            matrices = {
                id(parameter)
                for name, parameter in self.accelerator.unwrap_model(self.model).named_parameters()
                if parameter.ndim == 2 and name.startswith(blocks)
            }
            made = self.optimizer = MuonAndAdamW(made, matrices)
        return made

    def compute_loss(
        self, model: Any, inputs: dict[str, "Tensor"], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean nats per predicted token, plus the penalty while training."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        row, token = (labels != IGNORED).nonzero(as_tuple=True)
        at = row, token
        penalty = self.training.penalty if model.training else "none"
        bare = self.accelerator.unwrap_model(model)
        with head_only_at(bare, at):
            output = model(**inputs, output_hidden_states=penalty == "kurtosis")
        logits = output.logits.float()
        # A batch of nothing but special tokens has nothing to predict; a mean of it would be NaN, and all later logs too.
        loss = functional.cross_entropy(logits, labels[at]) if len(row) else logits.sum()
        if penalty == "norm-spread":
            loss = loss + self.training.penalty_strength * norm_spread(bare, [self.stack])
        elif penalty == "kurtosis":
            read = inputs["attention_mask"].bool()  # padding is no token
            # The embeddings come first; every block's output after them.
            values = [kurtosis(states[read]) for states in output.hidden_states[1:]]
            loss = loss + self.training.penalty_strength * torch.stack(values).mean()
        return (loss, {"loss": loss}) if return_outputs else loss

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A checkpoint holds a tensor that several parameters share once; the Trainer takes the others for missing.
        values = dict(self.accelerator.unwrap_model(self.model).named_parameters(remove_duplicate=False))
        missing = set(load_result.missing_keys)
        read = {id(parameter) for name, parameter in values.items() if name not in missing}
        lost = [name for name in load_result.missing_keys if name not in values or id(values[name]) not in read]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=lost))


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the matrices whose ids are given and AdamW for the other parameters of `made`, as one optimizer."""

    def __init__(self, made: torch.optim.Optimizer, matrices: set[int]):
        apart: list[tuple[dict[str, Any], bool]] = [
            ({**group, "params": some}, muon)
            for group in made.param_groups
            for muon in (True, False)
            if (some := [one for one in group["params"] if (id(one) in matrices) is muon])
        ]
        (group, *_) = made.param_groups
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                [{"params": one["params"], "weight_decay": one["weight_decay"]} for one, muon in apart if muon],
                lr=group["lr"], adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW([one for one, muon in apart if not muon], lr=group["lr"]),
        )  # fmt: skip
        super().__init__([{"params": one["params"]} for one, _ in apart], {})
        self._share()

    def _share(self) -> None:
        # The same dictionaries: a schedule sets the rate in them.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> Any:
        """One step of both; see torch."""
        losses = [part.step(closure) for part in self.parts]
        return losses[0]

    def state_dict(self) -> dict[str, Any]:
        """Of both, one after the other."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share()


class _Housekeeping(TrainerCallback):
    """Clamps after each step, prunes what only resuming needs, and passes logs on."""

    def __init__(self, model: Any, stack: BoundStack, training: TrainingRecipe, options: RunOptions):
        self.model, self.stack, self.training, self.options = model, stack, training, options

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if self.training.clamp_scale:
            clamp_scale_(self.model, [self.stack], self.training.clamp_scale)

    def on_save(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if not state.is_world_process_zero:
            return
        for old in checkpoints(Path(args.output_dir))[: -self.training.keep_states]:
            for pattern in RESUMING:
                for file in old.glob(pattern):
                    file.unlink()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **known: Any) -> None:
        if self.options.on_log and state.is_world_process_zero and logs:
            self.options.on_log(state.global_step, state.max_steps, dict(logs))


def _same_processes(newest: Path | None, steps: int, now: int) -> None:
    """Raise BadInput where a run would go on with another number of processes: a step would read other rows."""
    if newest is None or newest.name == f"checkpoint-{steps}":
        return
    before = len(list(newest.glob("rng_state_*.pth"))) or 1  # the Trainer numbers these files where there are several
    if before != now:
        raise BadInput(
            f"{newest}: was trained by {before} processes at a time, and now there would be {now}, which read other rows; "
            f"go on with {before}, or name another folder with -o"
        )


def _same_rows(folder: Path, rows: str) -> None:
    """Note which rows the run reads; raises BadInput where it began with others, because a file of text has changed."""
    noted = folder / DATA
    begun = noted.is_file() and (checkpoints(folder) or (folder / "model").exists())
    if begun and read_json(noted, "name another folder with -o") != {"rows": rows}:
        raise BadInput(f"{folder} was trained on text that has changed since; bring it back, or name another folder")
    if not begun:
        write_text(noted, json.dumps({"rows": rows}))


def _claim(folder: Path, recipe: Recipe, overwrite: bool) -> None:
    """Make the folder this recipe's own; raises BadInput where it is another's."""
    noted = folder / RECIPE
    refuse_links(folder)
    if not noted.is_file():
        refuse_foreign(folder, RECIPE)
    elif (before := read_recipe(noted)).digest == recipe.digest:
        return
    elif not overwrite:
        raise BadInput(
            f"{folder} holds a run of another recipe ({_difference(before, recipe)}); name another folder with -o, or "
            f"use --overwrite to remove that run"
        )
    else:
        watched = folder.glob(f"{Path(WATCH).stem}*{Path(WATCH).suffix}")  # what was replayed, too
        written = [folder / name for name in ("model", "log.json", OUTCOME, DATA)]
        for path in [*folder.glob("checkpoint-*"), *watched, *written]:
            remove(path)
    write_text(noted, recipe.to_toml())


def _difference(before: Recipe, now: Recipe) -> str:
    one, other = dataclasses.asdict(before), dataclasses.asdict(now)
    found = [
        f"{section}.{key} was {value!r}, is {other[section][key]!r}"
        for section in ("data", "tokenizer", "model", "training")
        for key, value in one[section].items()
        if value != other[section][key]
    ]
    return "; ".join(found[:3]) or "another name"


def _arguments(training: TrainingRecipe, folder: Path, options: RunOptions) -> TrainingArguments:
    last = training.steps
    arguments = training_arguments(
        folder,
        device=options.device,
        precision=training.precision,
        seed=training.seed,
        report_to=options.report_to,
        max_steps=last,
        per_device_train_batch_size=training.batch,
        per_device_eval_batch_size=training.batch,
        gradient_accumulation_steps=training.accumulation,
        learning_rate=training.learning_rate,
        lr_scheduler_type=SCHEDULES[training.schedule],
        warmup_steps=training.warmup,
        weight_decay=training.weight_decay,
        adam_beta1=training.adam_betas[0],
        adam_beta2=training.adam_betas[1],
        adam_epsilon=training.adam_epsilon,
        max_grad_norm=training.clip_norm,
        logging_steps=training.log_every,
        eval_strategy="steps" if training.evaluate_every else "no",
        eval_steps=training.evaluate_every or last,
        save_steps=training.save_every or last,
        prediction_loss_only=True,
        ddp_find_unused_parameters=False,
    )
    if arguments.n_gpu > 1:
        options.progress(
            f"1 of {arguments.n_gpu} GPUs is used; `accelerate launch -m outlierlens lab pretrain …` uses all"
        )
        # The Trainer would split every batch over replicas, whose rows the head's positions do not name.
        arguments._n_gpu = 1
    return arguments
