"""Watch outlier dimensions emerge while a model trains, in any training loop; `callback` does it for a Trainer.

    with ol.watch(model, "watch.jsonl", every=100, tokenizer=tokenizer) as watcher:
        ...                                          # a step's backward and optimizer.step()
        metrics = watcher.step(loss=loss)            # before zero_grad; every 100th step, else {}

A row holds scale and bias of what ends the blocks with their gradients and updates, and kurtosis, largest values and largest
attention logits on a fixed probe. Modes, gradients and random states of the training stay as they are.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

import outlierlens.architectures as arch
from outlierlens.ablation.switches import check_dims
from outlierlens.architectures import live_parameters
from outlierlens.checkpoints.samples import say
from outlierlens.data.texts import Texts
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import Site, live_norms, live_values
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, config_dict
from outlierlens.options import check
from outlierlens.results.row_store import RowStore
from outlierlens.training.run_files import tracked_site
from outlierlens.training.watch_alarm import (
    MEASURED,
    Alarm,
    AlarmError,
    Approach,
    Crossings,
    EarlyWarning,
    metrics_of,
    z_of,
)
from outlierlens.training.watch_probe import Probe, bare_model, make_probe
from outlierlens.training.watch_rows import KIND, StreamRow, log_key, nothing, recorded, step_key, step_of

if TYPE_CHECKING:
    from torch import Tensor, nn

LOGGED_DIMS = 8  # tracked one by one in what goes to TensorBoard and its kind; the rows hold every dimension
ON_ALARM = ("log", "raise", "checkpoint")
SAME_VALUE = 4e-3  # relative: what bfloat16 keeps of a value that a checkpoint rounded


@dataclass(frozen=True)
class WatchOptions:
    """What to record, and when to say something.

    Attributes:
        every: record each N-th optimizer step.
        probe: texts, or token ids [text, token], on which hidden states are measured; by default the excerpt that is
            shipped, where there is a tokenizer.
        probe_texts, probe_tokens: how many texts of the probe are read, and at most how many tokens of each.
        dims: dimensions whose numbers are returned and logged one by one; "auto": eight at most, those that
            are past the rule's `n_sigma` now, then those that were. The rows hold every dimension in any case.
        rule: by which a dimension is announced: it has left when |z| >= n_sigma in a share of the layers.
        approach: when a dimension that has not left is announced early.
        on_alarm: what an early warning does beside its line and the count that is logged. "raise" raises `AlarmError` in
            every process; "checkpoint" has the Trainer save at this step, and in a loop of one's own `watcher.alarmed` says
            so; a function gets the alarms, in the process of rank 0.
        notice: receives a line when a dimension nears the threshold, leaves or comes back, and remarks.
    """

    every: Annotated[int, Ge(1)] = 100
    probe: "Texts | Any | None" = field(default=None, compare=False)
    probe_texts: Annotated[int, Ge(1)] = 16
    probe_tokens: Annotated[int, Ge(2)] = 64
    dims: Literal["auto"] | Sequence[int] = "auto"
    rule: Rule = Rule()
    approach: Approach = Approach()
    on_alarm: Literal["log", "raise", "checkpoint"] | Callable[[tuple[Alarm, ...]], None] = field(
        default="log", compare=False
    )
    notice: Callable[[str], None] = field(default=say, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if not callable(self.on_alarm) and self.on_alarm not in ON_ALARM:
            raise BadInput(f"on_alarm is {self.on_alarm!r}; use {', '.join(ON_ALARM)} or a function")
        if isinstance(self.dims, str) and self.dims != "auto":
            raise BadInput(f'dims is {self.dims!r}; use "auto" or a list of dimensions')


def watch(
    model: "nn.Module", rows: Path | str, options: WatchOptions | None = None, *, tokenizer: Any = None, start: int = 0
) -> "Watcher":
    """Begin to watch `model`; rows are appended to the file `rows`, by the process of rank 0 alone.

    `start` is the optimizer step that the weights have behind them: 0, or that of the checkpoint they were loaded from.
    Rows of later steps then will be replayed, and move to a file next to it.

    Raises:
        BadInput: sharded parameters, an unusable probe, or a file that holds rows of other work.
        UnknownArchitecture: no row of the architecture table fits the model.
    """
    return Watcher(model, Path(rows), options or WatchOptions(), tokenizer=tokenizer, start=start)


class Watcher:
    """A training that is being watched; made by `watch`.

    Attributes:
        recording: whether this process writes; only that of rank 0 does.
        last: the last step that was counted.
        alarms: early warnings of the last recorded step, in the process of rank 0.
        alarmed: whether there were any; with `on_alarm="checkpoint"` in every process.
    """

    def __init__(self, model: "nn.Module", path: Path, options: WatchOptions, *, tokenizer: Any, start: int):
        if start < 0:
            raise BadInput(f"start is {start}; it is the number of optimizer steps done, at least 0")
        self.path, self.options, self.last = path, options, start
        self.model = bare_model(model)
        self.recording = rank() == 0
        self._held: dict[str, dict[str, np.ndarray]] | None = None
        self._before: dict[str, Tensor] = {}  # followed weights before the step that will be recorded
        self._rows: RowStore | None = None
        self._diverged = self._closed = self._told = False
        self.alarms: tuple[Alarm, ...] = ()
        self.alarmed = False
        if self.recording:
            self._begin(tokenizer)

    def step(
        self, step: int | None = None, *, loss: Any = None, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Count an optimizer step, by default the next; record it when it is an N-th one and return its numbers.

        Call it after `backward` (and `optimizer.step`) and before `zero_grad`; with a gradient scaler, after `unscale_`.
        `loss` may be a tensor: it is read only for steps that are recorded.

        Raises:
            BadInput: the step does not come after the last one.
            AlarmError: there is an early warning, and `on_alarm` is "raise"; its row is written.
        """
        step = self.last + 1 if step is None else step
        if step <= self.last:
            raise BadInput(f"step {step} comes after step {self.last}; start again with watch(…, start=) to go back")
        self.last = step
        self.alarms, self.alarmed = (), False
        metrics: dict[str, float] = {}
        if self.due(step):
            loss = loss.detach() if hasattr(loss, "detach") else loss
            metrics = self._record(step, None if loss is None else float(loss), learning_rate)
        self._keep(step)
        if not self._closed and step % self.options.every == 0:
            self._act(step)
        return metrics

    def due(self, step: int) -> bool:
        """Whether this process records `step`."""
        return self.recording and step % self.options.every == 0

    def hold_gradients(self) -> None:
        """Keep the gradients of this moment for the next recorded step, for a loop that clears them before it."""
        live = live_parameters(self.model)
        self._held = {name: _norms(site, lambda param: live[param].grad) for name, site in self._sites.items()}

    def _keep(self, step: int) -> None:
        """Forget what was held for a record, and keep the weights where the next step will be one."""
        self._held, self._before = None, {}
        if self.due(step + 1):
            live = live_parameters(self.model)
            names = {p.name for site in self._sites.values() for layer in (*site.scale, *site.bias) for p in layer}
            # On the CPU: of models that do not end in norms these are whole matrices.
            self._before = {name: live[name].detach().to("cpu", copy=True) for name in names}

    def log(self, step: int, name: str, value: float) -> None:
        """Append a logged scalar, such as a loss averaged over steps; the first of a name at a step counts."""
        if self._rows is not None and (key := log_key(step, name)) not in self._rows.done:
            self._append(key, float(value))

    def close(self) -> None:
        """Close the file of rows; what was recorded stays."""
        if self._rows is not None:
            self._rows.__exit__(None, None, None)
            self._rows = None
        self.recording, self._closed = False, True

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self, tokenizer: Any) -> None:
        model, options = self.model, self.options
        arch.refuse_offloaded(model, "training")
        config, kind = config_dict(model), type(model).__name__
        bound = arch.bind_live(arch.stacks_of(config, kind), model)
        self._sites = {stack.name: tracked_site(stack) for stack in bound}
        loaded = LoadedModel(kind, model, tokenizer, "none", bound, config)
        self._probe: Probe | None = None
        try:
            texts, tokens = options.probe_texts, options.probe_tokens
            self._probe = make_probe(loaded, options.probe, texts=texts, tokens=tokens)
        except BadInput as error:
            if options.probe is not None:
                raise
            options.notice(f"the weights are watched, hidden states are not: {error}")
        streams, several = {}, len(bound) > 1
        self._crossings, self._warnings = dict[str, Crossings](), dict[str, EarlyWarning]()
        for stack in bound:
            name, site = stack.name, self._sites[stack.name]
            layers, width = self._values(name)[0].shape
            streams[name] = {
                "site": site.name, "norm_site": stack.stack.norm_site, "view": site.view, "layers": layers, "width": width,
            }  # fmt: skip
            if options.dims != "auto":
                check_dims(options.dims, width, f"stream {name!r}")
            self._crossings[name] = Crossings(options.rule, f"{name}: " * several)
            self._warnings[name] = EarlyWarning(options.rule, options.approach, name * several)
        self._n_alarms = 0
        identity = {
            "kind": KIND,
            "model_type": str(config.get("model_type", "")),
            "streams": streams,
            "probe": self._probe.digest if self._probe else "",
            "every": options.every,
        }
        self._rows = RowStore.open(self.path, identity)
        try:
            self._resume(self._rows)
            if self.due(self.last) and step_key(self.last) not in self._rows.done:
                self._record(self.last, None, None)
            self._keep(self.last)
        except BaseException:
            self.close()
            raise

    def _resume(self, rows: RowStore) -> None:
        """Check that the past is this model's, put rows of the future aside, and take up what was known then."""
        if self.last and (here := rows.get(step_key(self.last))) is not None:
            for name, seen in here["streams"].items():
                self._check_same(name, StreamRow.from_json(seen))
        # Rows at step 0 may be of another initialisation; the one at hand is recorded anew.
        aside = rows.rewind(lambda key: step_of(key) <= self.last and self.last > 0)
        if aside is not None:
            self.options.notice(
                f"{self.path} held rows of steps after {self.last:,}, which this training replays; moved to {aside.name}"
            )
        for step, value in recorded(rows.done).items():
            for name, seen in value["streams"].items():
                row = StreamRow.from_json(seen)
                kinds = _kinds(row)
                z = {kind: z_of(values) for kind, values in kinds.items()}
                self._crossings[name].see(step, z["scale"], z.get("bias"))
                self._n_alarms += len(self._warnings[name].see(step, kinds))
        rows.done = dict.fromkeys(rows.done)  # the keys suffice; the vectors would fill the memory of a long training

    def _check_same(self, name: str, row: StreamRow) -> None:
        for now, before in zip(self._values(name), (row.scale, row.bias), strict=True):
            same = np.abs(now - before) <= SAME_VALUE * np.abs(before)
            # Half of them: a callback of the user's may have changed some after the row was written.
            if same.size and np.isfinite(before).all() and same.mean() < 0.5:
                raise BadInput(
                    f"{self.path}: the weights at step {self.last:,} are not those of this model, so its rows are of another "
                    "training; name another file"
                )

    def _record(self, step: int, loss: float | None, learning_rate: float | None) -> dict[str, float]:
        """Append the row of a step; returns what a logger wants of it."""
        activations = self._probe.measure() if self._probe else {}
        if not self._told and any("largest_logit" not in seen for seen in activations.values()):
            self.options.notice("attention logits are not recorded: no softmax of torch's own attends in this model")
        self._told = True
        if self._held is None:
            self.hold_gradients()
        gradients, live = self._held or {}, live_parameters(self.model)

        def added(name: str) -> "Tensor | None":
            before = self._before.get(name)
            return None if before is None else live[name].detach().float() - before.to(live[name].device).float()

        metrics: dict[str, float] = {}
        streams = {}
        for name, site in self._sites.items():
            scale, bias = self._values(name)
            learnt = {"gradient": gradients[name], "update": _norms(site, added)}
            norms = {f"{what}_{kind}": values for what, kinds in learnt.items() for kind, values in kinds.items()}
            row = StreamRow(scale, bias, **norms, **activations.get(name, {}))
            streams[name] = row.to_json()
            prefix = "outliers/" if len(self._sites) == 1 else f"outliers/{name}/"
            metrics |= {prefix + key: value for key, value in self._look(step, name, row).items()}
        self._append(step_key(step), {"loss": loss, "learning_rate": learning_rate, "streams": streams})
        return metrics | {"outliers/alarms": float(self._n_alarms)}

    def _act(self, step: int) -> None:
        """Do what an early warning was asked to do; what concerns every process is agreed among them."""
        asked = self.options.on_alarm
        if callable(asked) and self.alarms:
            asked(self.alarms)
        self.alarmed = bool(self.alarms) if asked == "log" or callable(asked) else self._agreed(bool(self.alarms))
        if self.alarmed and asked == "raise":
            said = "; ".join(map(str, self.alarms)) or f"step {step:,}: an early warning, says the log of rank 0"
            raise AlarmError(f"{said}; on_alarm='log' trains on")

    def _agreed(self, alarmed: bool) -> bool:
        """What the process of rank 0 says, in every process; without others nothing is sent."""
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return alarmed
        said = torch.tensor(int(alarmed), device=next(self.model.parameters()).device)
        torch.distributed.broadcast(said, 0)
        return bool(said)

    def _look(self, step: int, name: str, row: StreamRow) -> dict[str, float]:
        """Say what crossed the threshold, and sum the row up."""
        kinds = _kinds(row)
        z = {kind: z_of(values) for kind, values in kinds.items()}
        if not self._diverged and not (np.isfinite(row.scale).all() and np.isfinite(row.bias).all()):
            self._diverged = True
            self.options.notice(f"step {step:,}: weights hold NaN or infinity, so the training has diverged")
        crossings = self._crossings[name]
        for line in crossings.see(step, z["scale"], z.get("bias")):
            self.options.notice(line)
        alarms = self._warnings[name].see(step, kinds)
        for alarm in alarms:
            self.options.notice(str(alarm))
        if alarms and not self._n_alarms:
            self.options.notice(MEASURED)
        self.alarms += alarms
        self._n_alarms += len(alarms)
        chosen = self.options.dims
        dims = crossings.foremost(LOGGED_DIMS) if chosen == "auto" else [int(dim) for dim in chosen]
        return metrics_of(row, z, dims, self.options.rule)

    def _append(self, key: str, value: Any) -> None:
        assert self._rows is not None
        self._rows.append(key, value)
        self._rows.done[key] = None

    def _values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Scale and bias of a stream as they act, float32 [layer, dim]; the bias is empty where there is none."""
        site = self._sites[name]
        scale = live_values(self.model, site.scale).astype(np.float32)
        return scale, live_values(self.model, site.bias).astype(np.float32) if all(site.bias) else nothing()


def _norms(site: Site, values_of: Callable[[str], "Tensor | None"]) -> dict[str, np.ndarray]:
    """L2 norm over layers of each parameter's values at each dimension [dim], by kind; empty where there are none."""
    found = {}
    for kind, layers in (("scale", site.scale), ("bias", site.bias)):
        squares = []
        for param in (param for layer in layers for param in layer):
            if (values := values_of(param.name)) is not None:
                squares.append(np.square(live_norms(values, param).double().cpu().numpy()))
        found[kind] = np.sqrt(np.sum(squares, axis=0)).astype(np.float32) if squares else nothing()
    return found


def _kinds(row: StreamRow) -> dict[str, np.ndarray]:
    """Scale and, where there is one, bias."""
    return {kind: values for kind in ("scale", "bias") if (values := getattr(row, kind)).size}


def rank() -> int:
    """This process's rank among those that train together."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)
