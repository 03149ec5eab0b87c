"""What `replicate kovaleva-glue` and `replicate puccetti-glue` are asked: tasks, fine-tuned models, outliers and controls."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check, parse_names
from outlierlens.training.finetune.options import FinetuneSettings


@dataclass(frozen=True, kw_only=True)
class GlueOptions:
    """What is replicated, and how."""

    tasks: Annotated[tuple[str, ...], Flag(read="options:parse_names", words="rte,cola,stsb,sst2")] = (
        *("rte", "cola", "stsb", "sst2"),
    )
    """Labelled tasks: rte,cola,stsb,sst2, …"""
    data: str | None = None
    """Folder with one folder per task. Default: the hub's copies."""
    tuned: Annotated[dict[str, tuple[str, ...]], Flag(hidden=True)] = field(default_factory=dict)
    """{task: its fine-tuned models}: runs of finetune, folders or hub ids; others are trained."""
    settings: Annotated[FinetuneSettings, Flat("epochs", "learning_rate", "max_length", "train_limit")] = (
        FinetuneSettings()
    )
    """Of fine-tuning."""
    seeds: Annotated[tuple[int, ...], Flag(read="options:parse_seeds", words="42")] = (42,)
    """Seeds of fine-tuning, one model each: 42,43."""
    dims: Annotated[tuple[int, ...] | str, Flag(read="options:dims_or_strongest")] = ()
    """Switch off these (308,381) in place of the rule's; strongest: the two largest |z|."""
    outliers_of: str = "tuned"
    """Model whose weights name the outliers: tuned or base."""
    n_sigma: Annotated[float | None, Gt(0), Lt(float("inf"))] = None
    """Threshold of the rule. Default: 3 (Kovaleva), 2.5 (Puccetti)."""
    relax_to: Annotated[float | None, Gt(0)] = None
    """Lower the threshold to this until something is found; the result says so."""
    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets (and dimensions). Default: the paper's 1,000."""
    n_matched: Annotated[int, Flag("--matched"), Ge(0)] = 19
    """Sets as large, at other positions."""
    every: bool = False
    """Every single dimension too: Kovaleva's figure 2."""
    windows_task: str | None = None
    """Task measured in each single layer too; none. Default: mnli, or the first."""
    labels: Annotated[dict[str, tuple[str, ...]], Flag(hidden=True)] = field(default_factory=dict)
    """{task: labels of its models in the order of their outputs}, where their config has none."""
    limit: Annotated[int | None, Ge(2)] = None
    """First N examples of the dev split."""
    batch_size: Annotated[int | None, Ge(1)] = None
    """Rows of a forward pass."""
    seed: Annotated[int, Ge(0)] = 42
    """Seed of the control sets."""

    def __post_init__(self) -> None:
        check(self)
        if self.outliers_of not in ("tuned", "base"):
            raise BadInput(f"outliers_of is {self.outliers_of!r}; use tuned or base")


@dataclass(frozen=True, kw_only=True)
class GlueCall:
    """What the command is asked: options, and what it writes otherwise than Python does."""

    paper: Annotated[str, Flag(hidden=True)]
    """Whose protocol it is."""
    options: Annotated[GlueOptions, Flat()] = GlueOptions()
    """How it is replicated."""
    train_batch: Annotated[int, Ge(1)] = FinetuneSettings.batch
    """Examples of a training step."""
    tuned: tuple[str, ...] = ()
    """rte=DIR: a fine-tuned model, or a run of finetune. Repeatable; others are trained."""
    labels: tuple[str, ...] = ()
    """rte=NAME,NAME: a model's labels in the order of its outputs, if its config has none. Repeatable."""
    beside: tuple[Path, ...] = ()
    """Run directory of another model, for the chart. Repeatable."""

    @property
    def models(self) -> dict[str, tuple[str, ...]]:
        """{task: models} of --tuned rte=DIR."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.tuned:
            task, equals, model = one.partition("=")
            if not (task and equals and model):
                raise BadInput(f"--tuned is {one!r}; write it as rte=DIR")
            found[task] = (*found.get(task, ()), model)
        return found

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """{task: names} of --labels rte=entailment,not_entailment; without a task they are of the only one."""
        tasks = self.options.tasks
        found: dict[str, tuple[str, ...]] = {}
        for one in self.labels:
            task, equals, names = one.rpartition("=")
            if not equals and len(tasks) > 1:
                raise BadInput(f"--labels is {one!r}, and there are {len(tasks)} tasks; write it as {tasks[0]}={one}")
            if not parse_names(names) or (equals and not task):
                raise BadInput(f"--labels is {one!r}; write it as rte=NAME,NAME")
            found[task if equals else tasks[0]] = parse_names(names)
        return found


KOVALEVA, PUCCETTI = GlueCall(paper="kovaleva-glue"), GlueCall(paper="puccetti-glue")
