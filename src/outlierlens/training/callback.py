"""Watch outlier dimensions emerge in a Hugging Face Trainer.

    OutlierCallback(Path("run/watch.jsonl"), WatchOptions(every=100)).attach(trainer)
    trainer.train()                                  # also with resume_from_checkpoint=…

Its numbers, `outliers/…`, go with the Trainer's own logs wherever those go (TensorBoard, wandb, MLflow, trackio, log_history);
the rows, in full precision, go to the file. `watch` does the same in a loop of one's own.
"""

from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from outlierlens.errors import need
from outlierlens.training.watch import Watcher, WatchOptions, watch
from outlierlens.training.watch_alarm import AlarmError

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback
else:
    TrainerCallback = need("transformers.trainer_callback", "models", "OutlierCallback").TrainerCallback

# Sums over the whole training or clock readings: a resumed training logs others.
NOT_CURVES = ("epoch", "total_flos", "train_loss", "num_input_tokens_seen", "outliers/")  # the last: another watcher's
NOT_CURVES_END = ("_runtime", "_per_second")
_RECORDING: WeakSet["OutlierCallback"] = WeakSet()


class OutlierCallback(TrainerCallback):
    """Records, at every N-th optimizer step, what `watch` records: see there.

    Gradients are those that the optimizer gets: after accumulation, averaging over processes, unscaling and clipping.
    (In fp16 without clipping, `max_grad_norm=0`, the Trainer unscales after it has called back: they are the loss scale
    times as large.)
    Weights are those that it leaves, and what other callbacks made of them in `on_optimizer_step`; what they change in
    `on_step_end` is seen at the next record.
    """

    def __init__(self, rows: Path | str, options: WatchOptions | None = None, tokenizer: Any = None):
        self.rows, self.options, self.tokenizer = Path(rows), options or WatchOptions(), tokenizer
        self.watcher: Watcher | None = None
        self.attached = False
        self._training: Any = None  # (thread, its state)
        self._pending: dict[str, float] = {}
        self._rate: float | None = None

    def attach(self, trainer: "Trainer") -> "OutlierCallback":
        """Put this callback before all others of `trainer`, so that reporters get its numbers; returns itself."""
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        self.attached = True
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, or go on from a checkpoint: rows of steps that will be replayed move aside."""
        self._close()
        for other in list(_RECORDING):  # a Trainer that fails tells its callbacks nothing
            thread, of = other._training
            if other.rows.absolute() == self.rows.absolute() and thread == get_ident() and of is not state:
                other._close()
        if not self.attached and state.is_world_process_zero:
            self.options.notice(
                f"{type(self).__name__} was not attached: its numbers are in log_history and in the rows, but reporters "
                "that come before it do not get them; use callback.attach(trainer)"
            )
        tokenizer = kwargs.get("processing_class") if self.tokenizer is None else self.tokenizer
        self.watcher = watch(kwargs["model"], self.rows, self.options, tokenizer=tokenizer, start=state.global_step)
        self._training = get_ident(), state
        _RECORDING.add(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the gradients and the learning rate of a step that will be recorded."""
        if self.watcher is not None and self.watcher.due(state.global_step + 1):
            self.watcher.hold_gradients()
            groups = getattr(kwargs.get("optimizer"), "param_groups", None)
            self._rate = float(groups[0]["lr"]) if groups else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record an N-th step, and save the training where an early warning was asked to."""
        if self.watcher is not None:
            try:
                self._pending = self.watcher.step(state.global_step, learning_rate=self._rate) or self._pending
            except AlarmError:
                self._close()
                raise
            control.should_save |= self.watcher.alarmed and self.options.on_alarm == "checkpoint"

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Keep logged scalars as curves, and add what was recorded since the last log to this one."""
        if self.watcher is None or logs is None:
            return
        for name, value in logs.items():
            if isinstance(value, int | float) and not name.startswith(NOT_CURVES) and not name.endswith(NOT_CURVES_END):
                self.watcher.log(state.global_step, name, value)
        # An evaluation's log is another group of charts.
        if not any(name.startswith("eval_") for name in logs):
            logs.update(self._pending)
            if state.log_history:
                state.log_history[-1].update(self._pending)
            self._pending = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the file of rows."""
        self._close()

    def _close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()
        _RECORDING.discard(self)
        self.watcher, self._training, self._pending = None, None, {}
