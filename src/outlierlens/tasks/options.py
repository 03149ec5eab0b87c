"""What a command reads and scores: texts, or the examples of a labelled task.

reading = TaskReading(task="glue:rte")
examples, options = reading.read(), reading.options(batch_size=32)
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt

from outlierlens.errors import BadInput, near
from outlierlens.options import check

if TYPE_CHECKING:
    from outlierlens.data.labelled import Examples, LabelledTask
    from outlierlens.data.media import Items, Kind
    from outlierlens.data.texts import Data
    from outlierlens.tasks.base import TaskOptions

OF_TEXTS = ("auto", "masked-loss", "causal-loss", "output-change", "sentence-change")
PLAIN = ("classify", "regress", "tokens")
OF_ITEMS = ("image-classification", "audio-classification")
MEASURES = ("metric", "accuracy", "loss")
OF_LABELS = ("measure", "metric", "labels", "split", "pair_column", "label_column")

LABELLED_TOKENS = 256  # of an example of a labelled task: a pair of GLUE fits, all but 0.1 %


@dataclass(frozen=True)
class Reading:
    """Which texts are read."""

    data: str = "excerpt"
    """Text: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id owner/name:config:split."""
    text_column: str | None = None
    """Column that holds the text."""
    limit: Annotated[int | None, Ge(1)] = None
    """Use the first N texts."""


@dataclass(frozen=True)
class TaskReading(Reading):
    """What is read, and what of it becomes a number.

    Raises:
        BadInput: options that do not belong to the task.
    """

    task: str = "auto"
    """auto, masked-loss, causal-loss, output-change, sentence-change; glue:rte, …; classify, regress, tokens;
    image-classification, audio-classification."""
    measure: str = "metric"
    """Labelled: metric (all examples), accuracy or loss (adaptive)."""
    metric: str | None = None
    """Labelled: f1, mcc, … Default: the task's first."""
    labels: str | None = None
    """Labelled: the model's labels in the order of its outputs, if its config has none."""
    split: str | None = None
    """Labelled: split to read. Default: dev."""
    pair_column: str | None = None
    """classify, regress: the second text."""
    label_column: str = "label"
    """Your own data: the label."""
    max_seconds: Annotated[float | None, Gt(0)] = None
    """Seconds of a recording that are read. Default: 30."""

    def __post_init__(self) -> None:
        check(self)
        if self.measure not in MEASURES:
            raise BadInput(f"--measure is {self.measure!r}; use {', '.join(MEASURES)}")
        if self.metric is not None and self.measure != "metric":
            raise BadInput(f"--metric {self.metric} belongs to --measure metric, not to --measure {self.measure}")
        usual = {field.name: field.default for field in fields(self)}
        if not self.is_labelled and any(getattr(self, name) != usual[name] for name in OF_LABELS):
            raise BadInput(
                f"--measure, --metric, --labels, --split, --pair-column and --label-column belong to a labelled task, not to "
                f"--task {self.task}"
            )
        own = self.text_column or self.label_column != "label"
        of_items = self.task in OF_ITEMS and not self.pair_column
        if self.is_labelled and self.task not in PLAIN and (own or self.pair_column) and not of_items:
            raise BadInput(
                f"--text-column, --pair-column and --label-column belong to {', '.join(PLAIN)}, not to {self.task}"
            )
        if self.max_seconds is not None and self.kind != "audio":
            raise BadInput("--max-seconds belongs to recordings (a folder of .wav, an .npz with `audio`)")
        if self.task == "tokens" and self.pair_column:
            raise BadInput("--pair-column belongs to classify and regress: words of tokens have no second text")

    @property
    def is_labelled(self) -> bool:
        """Whether the task has labels."""
        return self.task.replace(" ", "-") not in OF_TEXTS

    @property
    def labelled_task(self) -> "LabelledTask":
        """The row of the table, or one made of the columns given."""
        from outlierlens.data.labelled import find_task, plain_task
        from outlierlens.data.labelled.table import with_metric

        if self.task not in PLAIN:
            try:
                found = find_task(self.task)
            except BadInput as error:
                raise BadInput(f"{error}; of texts: {', '.join(OF_TEXTS)}{near(self.task, OF_TEXTS)}") from None
            return with_metric(found, self.metric)
        text = self.text_column or ("tokens" if self.task == "tokens" else "text")
        return plain_task(self.task, text, self.label_column, pair=self.pair_column, metric=self.metric)

    @cached_property
    def kind(self) -> "Kind | None":
        """What is read where it is no text: pictures or recordings, by the task, else by what the data looks like."""
        from outlierlens.data.media.read import TASKS, kind_of

        return kind_of(self.data) if not self.is_labelled else TASKS.get(self.task)

    def _items(self, kind: "Kind", offline: bool) -> "Items":
        from outlierlens.data.media.read import ItemOptions, read_items

        if self.data == Reading.data:
            raise BadInput(f"--task {self.task} needs your own data: --data FOLDER, with one sub-folder a class")
        more = {} if self.max_seconds is None else {"max_seconds": self.max_seconds}
        options = ItemOptions(
            labelled=self.is_labelled, label=self.label_column, column=self.text_column, limit=self.limit,
            split=self.split or "test", labels=self._names or (), metric=self.metric, **more,
        )  # fmt: skip
        return read_items(kind, self.data, options, offline=offline)

    def read(self, *, offline: bool = False) -> "Data":
        """The texts, examples or items; raises BadInput as `read_texts`, `read_examples` and `read_items` do."""
        from outlierlens.data.texts import read_texts

        if self.kind is not None:
            return self._items(self.kind, offline)
        if not self.is_labelled:
            return read_texts(self.data, column=self.text_column, limit=self.limit, offline=offline)
        from outlierlens.data.labelled import read_examples
        from outlierlens.data.labelled.labels import says_task_order

        data = None if self.data == Reading.data else self.data
        # These rows may lack some of the labels that the model knows.
        known = self._names or () if self.task == "classify" and not says_task_order(self._names) else ()
        return read_examples(
            self.labelled_task, data, split=self.split, limit=self.limit, offline=offline, labels=known
        )

    @property
    def _names(self) -> tuple[str, ...] | None:
        """`--labels` as names."""
        return None if self.labels is None else tuple(name.strip() for name in self.labels.split(","))

    def options(self, *, max_length: int | None = None, **more: Any) -> "TaskOptions":
        """How the texts become numbers; examples of a labelled task have as many tokens as `finetune` gives them."""
        from outlierlens.tasks.base import TaskOptions

        if self.kind is not None and max_length is not None:
            raise BadInput("--max-length counts tokens of texts; images are read whole, of recordings --max-seconds")
        usual = LABELLED_TOKENS if self.is_labelled else TaskOptions.max_length
        more["max_length"] = max_length or usual
        if not self.is_labelled:
            return TaskOptions(name=self.task.replace("-", " "), **more)  # type: ignore[arg-type]
        return TaskOptions(name="labelled", measure=self.measure, labels=self._names, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SplitReading(TaskReading):
    """Training and dev examples of one labelled task."""

    task: str = "auto"
    """sst2, cola, rte, hans, …; or classify, regress."""
    data: str = ""
    """Folder with a file per split, or hub id: both splits. Default: the hub's own copy."""
    text_column: str | None = None
    """classify, regress: the text."""
    label_column: str = "label"
    """classify, regress: the label."""
    metric: str | None = None
    """f1, mcc, … Default: the task's first."""
    dev_data: str | None = None
    """Dev examples; --data may then be a file of training examples."""

    def splits(self, *, offline: bool = False, of_words: bool = True) -> "tuple[Examples, Examples]":
        """(training, dev) examples; raises BadInput as `read_splits` does, and where words are labelled but may not be."""
        from outlierlens.data.labelled.splits import read_splits

        if self.task == "tokens" and not of_words:
            raise BadInput("--task tokens: this command scores whole texts; use a task of texts, classify or regress")
        return read_splits(self.labelled_task, self.data or None, self.dev_data, offline=offline)
