"""What a command reads and scores: texts, or the examples of a labelled task; one home for the options of both."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.data import EXCERPT
from outlierlens.errors import BadInput, near

if TYPE_CHECKING:
    from outlierlens.data import Data
    from outlierlens.labelled import LabelledTask
    from outlierlens.media import Items, Kind
    from outlierlens.tasks import TaskOptions

TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        help="auto, masked-loss, causal-loss, output-change, sentence-change; glue:rte, …; classify, regress, tokens; "
        "image-classification, audio-classification.",
    ),
]
OF_TEXTS = ("auto", "masked-loss", "causal-loss", "output-change", "sentence-change")
PLAIN = ("classify", "regress", "tokens")
OF_ITEMS = ("image-classification", "audio-classification")
MEASURES = ("metric", "accuracy", "loss")
LABELLING: tuple[tuple[str, Any, Any], ...] = (
    (
        "measure",
        Annotated[
            str,
            typer.Option("--measure", help="Labelled: metric (all examples), accuracy or loss (adaptive)."),
        ],
        "metric",
    ),
    ("metric", Annotated[str | None, typer.Option("--metric", help="Labelled: f1, mcc, … Default: the task's first.")], None),
    (
        "labels",
        Annotated[
            str | None,
            typer.Option("--labels", help="Labelled: the model's labels in the order of its outputs, if its config has none."),
        ],
        None,
    ),
    ("split", Annotated[str | None, typer.Option("--split", help="Labelled: split to read. Default: dev.")], None),
    ("pair_column", Annotated[str | None, typer.Option("--pair-column", help="classify, regress: the second text.")], None),
    ("label_column", Annotated[str, typer.Option("--label-column", help="Your own data: the label.")], "label"),
    (
        "max_seconds",
        Annotated[float | None, typer.Option("--max-seconds", help="Of a recording that is read. Default: 30.")],
        None,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Labelling:
    """The options of `LABELLING` as given."""

    measure: str = "metric"
    metric: str | None = None
    labels: str | None = None
    split: str | None = None
    pair_column: str | None = None
    label_column: str = "label"
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise BadInput(f"--measure is {self.measure!r}; use {', '.join(MEASURES)}")
        if self.metric is not None and self.measure != "metric":
            raise BadInput(f"--metric {self.metric} belongs to --measure metric, not to --measure {self.measure}")


def takes_labels(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `LABELLING` in front of --seed; it gets them as `labelling`, a Labelling."""
    return common.with_group(command, LABELLING, "labelling", lambda options, _: Labelling(**options), before="seed")


@dataclass(frozen=True)
class Reading:
    """What is read: `task` and `data` as given on the command line."""

    task: str
    data: str
    text_column: str | None = None
    limit: int | None = None
    labelling: Labelling = Labelling()

    def __post_init__(self) -> None:
        if not self.is_labelled and replace(self.labelling, max_seconds=None) != Labelling():
            raise BadInput(
                f"--measure, --metric, --labels, --split, --pair-column and --label-column belong to a labelled task, not to "
                f"--task {self.task}"
            )
        own = self.text_column or self.labelling.label_column != "label"
        of_items = self.task in OF_ITEMS and not self.labelling.pair_column
        if self.is_labelled and self.task not in PLAIN and (own or self.labelling.pair_column) and not of_items:
            raise BadInput(
                f"--text-column, --pair-column and --label-column belong to {', '.join(PLAIN)}, not to {self.task}"
            )
        if self.labelling.max_seconds is not None and self.kind != "audio":
            raise BadInput("--max-seconds belongs to recordings (a folder of .wav, an .npz with `audio`)")
        if self.task == "tokens" and self.labelling.pair_column:
            raise BadInput("--pair-column belongs to classify and regress: words of tokens have no second text")

    @property
    def is_labelled(self) -> bool:
        """Whether the task has labels."""
        return self.task.replace(" ", "-") not in OF_TEXTS

    @property
    def labelled_task(self) -> "LabelledTask":
        """The row of the table, or one made of the columns given."""
        from outlierlens.labelled import find_task, plain_task
        from outlierlens.labelled.table import with_metric

        if self.task not in PLAIN:
            try:
                found = find_task(self.task)
            except BadInput as error:
                raise BadInput(f"{error}; of texts: {', '.join(OF_TEXTS)}{near(self.task, OF_TEXTS)}") from None
            return with_metric(found, self.labelling.metric)
        words, label = self.labelling, self.labelling.label_column
        text = self.text_column or ("tokens" if self.task == "tokens" else "text")
        return plain_task(self.task, text, label, pair=words.pair_column, metric=words.metric)

    @cached_property
    def kind(self) -> "Kind | None":
        """What is read where it is no text: pictures or recordings, by the task, else by what the data looks like."""
        from outlierlens.media.read import TASKS, kind_of

        return kind_of(self.data) if not self.is_labelled else TASKS.get(self.task)

    def _items(self, kind: "Kind", offline: bool) -> "Items":
        from outlierlens.media.read import ItemOptions, read_items

        words = self.labelling
        if self.data == EXCERPT:
            raise BadInput(f"--task {self.task} needs your own data: --data FOLDER, with one sub-folder a class")
        more = {} if words.max_seconds is None else {"max_seconds": words.max_seconds}
        options = ItemOptions(
            labelled=self.is_labelled, label=words.label_column, column=self.text_column, limit=self.limit,
            split=words.split or "test", labels=self._names or (), metric=words.metric, **more,
        )  # fmt: skip
        return read_items(kind, self.data, options, offline=offline)

    def read(self, *, offline: bool = False) -> "Data":
        """The texts, examples or items; raises BadInput as `read_texts`, `read_examples` and `read_items` do."""
        from outlierlens.data import read_texts

        if self.kind is not None:
            return self._items(self.kind, offline)
        if not self.is_labelled:
            return read_texts(self.data, column=self.text_column, limit=self.limit, offline=offline)
        from outlierlens.labelled import read_examples
        from outlierlens.labelled.labels import says_task_order

        data = None if self.data == EXCERPT else self.data
        split = self.labelling.split
        # These rows may lack some of the labels that the model knows.
        known = self._names or () if self.task == "classify" and not says_task_order(self._names) else ()
        return read_examples(self.labelled_task, data, split=split, limit=self.limit, offline=offline, labels=known)

    @property
    def _names(self) -> tuple[str, ...] | None:
        """`--labels` as names."""
        names = self.labelling.labels
        return None if names is None else tuple(name.strip() for name in names.split(","))

    def options(self, *, max_length: int | None = None, **more: Any) -> "TaskOptions":
        """How the texts become numbers; examples of a labelled task have as many tokens as `finetune` gives them."""
        from outlierlens.finetune.settings import FinetuneSettings
        from outlierlens.tasks import TaskOptions

        if self.kind is not None and max_length is not None:
            raise BadInput("--max-length counts tokens of texts; images are read whole, of recordings --max-seconds")
        usual = FinetuneSettings.max_length if self.is_labelled else TaskOptions.max_length
        more["max_length"] = max_length or usual
        if not self.is_labelled:
            return TaskOptions(name=self.task.replace("-", " "), **more)  # type: ignore[arg-type]
        return TaskOptions(name="labelled", measure=self.labelling.measure, labels=self._names, **more)  # type: ignore[arg-type]
