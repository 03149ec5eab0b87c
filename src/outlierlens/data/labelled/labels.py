"""Labelled tasks, and texts and labels as a model takes them: which label each output means, token ids, texts kept apart.

    task = find_task("glue:sst2")
    task.labels                     # ("negative", "positive"): label 1 of the data means "positive"
    label_order(find_task("glue:mnli"), {0: "contradiction", 1: "neutral", 2: "entailment"})       # (2, 1, 0)
    encode(tokenizer, examples, max_length=128).inputs["input_ids"]           # one list an example
    fit, dropped = apart(read_texts("train.parquet"), evaluated, limit=10_000, seed=0)

`data_files/tasks.toml` is THE table. Labels are matched by the names in a
config, never by their order. Examples are encoded the same way for training and for measuring.
"""

import inspect
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from outlierlens.data.texts import Data, beginnings
from outlierlens.errors import BadInput, near
from outlierlens.results.safe_files import packaged_table

if TYPE_CHECKING:
    from outlierlens.data.labelled.examples import Examples


Level = Literal["text", "token"]
METRICS = ("accuracy", "f1", "macro f1", "mcc", "pearson", "spearman", "token accuracy", "token f1")


@dataclass(frozen=True)
class LabelledTask:
    """One labelled task.

    Attributes:
        name: "glue:sst2".
        text, pair: columns of the first and second text; `text` may be a template over columns, "{word}: {sentence1}".
        labels: names in the order of the data's numbers; () is a regression (or, of a plain task, labels to be read).
        metrics: the first is what counts.
        hub: data set and configuration on the hub, "nyu-mll/glue:sst2".
        evaluated, trained: names of the splits.
        label: column of the label.
        level: "token" where `text` holds words and `label` one label a word.
        regression: whether labels are numbers on a scale. scale: its ends; () where they are not known.
        merges: labels of a model that mean a label of this task: HANS is read with MNLI's three.
        trained_on: the task that models for this one are trained on.
    """

    name: str
    text: str
    pair: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    hub: str = ""
    evaluated: str = "validation"
    trained: str = "train"
    label: str = "label"
    level: Level = "text"
    regression: bool = False
    scale: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    trained_on: str = ""

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return self.metrics[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        fields = [name for part in (self.text, self.pair or "") for name in _fields(part)]
        return tuple(dict.fromkeys((*fields, self.label)))

    def labelled(self, names: tuple[str, ...]) -> "LabelledTask":
        """With the labels that its data holds; F1 is of two classes (of the second of them), and left out for more.

        Raises:
            BadInput: F1 is what counts, and there are more.
        """
        metrics = self.metrics
        if "f1" in metrics and len(names) > 2:
            if self.metric == "f1":
                raise BadInput(f"{self.name}: F1 is of two classes, and these are {len(names)}; use macro f1")
            metrics = tuple(name for name in metrics if name != "f1")
        return replace(self, labels=names, metrics=metrics)

    def filled(self, part: str, row: dict[str, object]) -> object:
        """The value of column (or template) `part` in `row`; None where a column that a template needs is empty."""
        if "{" not in part:
            return row[part]
        if any(row[name] is None for name in _fields(part)):
            return None
        return re.sub(r"\{(\w+)\}", lambda found: str(row[found[1]]), part)


def _fields(part: str) -> list[str]:
    """Columns of a template; a plain name is one column."""
    return re.findall(r"\{(\w+)\}", part) or ([part] if part else [])


TASKS = {name: LabelledTask(name, **{"pair": None, **row}) for name, row in packaged_table("tasks.toml").items()}


def find_task(name: str) -> LabelledTask:
    """The row called `name`; the part before the colon may be left out where that is clear.

    Raises:
        BadInput: no such task; the message lists them.
    """
    short = {task.split(":")[-1]: task for task in TASKS}
    found = TASKS.get(name) or TASKS.get(short.get(name, ""))
    if found is None:
        similar = near(name, (*TASKS, "classify", "regress", "tokens"))
        raise BadInput(
            f"unknown task {name!r}; tasks are {', '.join(TASKS)}, and for your own data `classify`, `regress` or `tokens` "
            f"with --data FILE:column=TEXT and --task classify:label=LABEL{similar}"
        )
    return found


def plain_task(
    kind: str, text: str, label: str, *, pair: str | None = None, labels: Sequence[str] = (), metric: str | None = None
) -> LabelledTask:
    """A task over your own columns: `kind` is "classify", "regress" or "tokens"; `labels` may be left to be read.

    Raises:
        BadInput: an unknown kind, or a metric that does not belong to it.
    """
    fitting = {
        "classify": ("accuracy", "f1", "macro f1", "mcc"),
        "regress": ("pearson", "spearman"),
        "tokens": ("token accuracy", "token f1"),
    }
    if kind not in fitting:
        raise BadInput(f"unknown kind of task {kind!r}; kinds are {', '.join(fitting)}")
    metrics = fitting[kind]
    task = LabelledTask(
        kind, text, pair, (), metrics, label=label, level="token" if kind == "tokens" else "text",
        regression=kind == "regress",
    )  # fmt: skip
    task = with_metric(task, metric)
    return task.labelled(tuple(labels)) if labels else task


def with_metric(task: LabelledTask, metric: str | None) -> LabelledTask:
    """`task` with `metric` as the one that counts; raises BadInput for one that it does not have."""
    if metric is None or metric == task.metric:
        return task
    if metric not in task.metrics:
        raise BadInput(f"task {task.name} has no metric {metric!r}; its metrics are {', '.join(task.metrics)}")
    return replace(task, metrics=(metric, *(other for other in task.metrics if other != metric)))


# --- texts kept apart ------------------------------------------------------------------------------------------------

AnyData = TypeVar("AnyData", bound=Data)


def apart(fit: AnyData, evaluated: Collection[str], *, limit: int | None = None, seed: int = 0) -> tuple[AnyData, int]:
    """(texts of `fit` that are not `evaluated`, by their keys, how many are), each once, and of them `limit` drawn by `seed`.

    Texts are the same where they differ in spaces at most; pictures and recordings where their files are equal.

    Raises:
        BadInput: less than two texts are left, as where `fit` is the evaluated data itself.
    """
    seen = {plain_text(text) for text in evaluated}
    given = once(fit.keys)
    left = [number for key, number in given.items() if key not in seen]
    dropped = len(given) - len(left)
    if len(left) < 2:
        raise BadInput(
            f"{fit.source}: {dropped:,} of its {len(given):,} {fit.plural} are evaluated ones, so {len(left)} is left to fit "
            f"on; give other {fit.plural} (--fit-data)"
        )
    if limit is not None and limit < len(left):
        drawn = np.random.default_rng([seed, 11]).permutation(len(left))[:limit]
        left = [left[i] for i in sorted(drawn.tolist())]
    return fit.some(left), dropped


def once(keys: Sequence[str]) -> dict[str, int]:
    """{plain text: number of the first of the `keys` that is so}, in order."""
    found: dict[str, int] = {}
    for number, key in enumerate(keys):
        found.setdefault(plain_text(key), number)
    return found


def plain_text(text: str) -> str:
    """A text with single spaces: two are the same where these are."""
    return " ".join(text.split())


def families(*parts: Sequence[Hashable]) -> np.ndarray:
    """Which items hang together, int [item]: those that share a value in any of the `parts` [item], directly or over others.

    Pairs of which two share a sentence are no two independent pairs: `families(pairs.first, pairs.second)`.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_items, node = len(parts[0]), dict[Hashable, int]()
    links = [(item, n_items + node.setdefault(value, len(node))) for part in parts for item, value in enumerate(part)]
    n_nodes = n_items + len(node)
    graph = coo_array((np.ones(len(links), bool), np.array(links, int).reshape(-1, 2).T), shape=(n_nodes, n_nodes))
    return np.unique(connected_components(graph, directed=False)[1][:n_items], return_inverse=True)[1]


# --- labels and outputs ----------------------------------------------------------------------------------------------

GENERIC = re.compile(r"(label)?\s*\d+")
ALIASES = {
    "non": "not",
    "contradictory": "contradiction",
    "entailed": "entailment",
    "neg": "negative",
    "pos": "positive",
}
IN_TASK_ORDER = "task"


def plain_label(name: str) -> str:
    """A label's name without case and punctuation: "Not_Entailment", "non-entailment" are the same, "LABEL_0" is "0"."""
    words = re.findall(r"[^\W_]+", name.casefold())
    if len(words) == 2 and words[0] == "label" and words[1].isdecimal():
        words = words[1:]
    return " ".join(ALIASES.get(word, word) for word in words) or name.strip()


def in_order_of_outputs(id2label: Mapping[Any, str]) -> list[str]:
    """What a config calls the outputs of its model, first to last."""
    return [str(id2label[key]) for key in sorted(id2label, key=int)]


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names of classes are but numbers ("LABEL_0"), which do not tell their meaning."""
    return all(GENERIC.fullmatch(plain_label(name)) for name in names)


def says_task_order(given: Sequence[str] | str | None) -> bool:
    """Whether `given` stands for the task's own order and names no class."""
    return given in (IN_TASK_ORDER, (IN_TASK_ORDER,))


def finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Finds the place of a label in `names`: by its exact name, else by `plain` where that tells all of them apart."""
    exact = {name: place for place, name in enumerate(names)}
    loose = {plain_label(name): place for place, name in enumerate(names)}
    if len(loose) < len(exact):
        loose = {}  # "C" and "C++"
    return lambda name: exact.get(name, loose.get(plain_label(name)))


def places_among(labels: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Where each of `labels` stands in the more classes `names` of a model; None where these are not more, or lack one."""
    find = finder(names)
    places = [find(label) for label in labels]
    found = tuple(place for place in places if place is not None)
    more = len(names) > len(labels) and len(set(found)) == len(labels)
    return found if more else None


def label_order(
    task: LabelledTask,
    id2label: Mapping[Any, str],
    given: Sequence[str] | str | None = None,
    *,
    where: str = "the model",
) -> tuple[int, ...]:
    """For each output of the model, the place of the label it means in `task.labels`; () for a regression.

    `given` names the model's labels in the order of its outputs (or is "task", for the task's own order), for a model whose
    config does not. Bare numbers ("LABEL_0") say something only where the task's own labels are numbers.

    Raises:
        BadInput: another number of classes, names that are not the task's, or names that say nothing while `given` is
            missing.
    """
    n = len(id2label)
    if task.regression:
        if n != 1:
            raise BadInput(f"{where} has {n} outputs, and {task.name} is a regression, which needs one")
        return ()
    names = in_order_of_outputs(id2label)
    wanted = _in_order(task, n)
    if len(wanted) != n:
        raise BadInput(
            f"{where} has {n} classes ({_some(names)}), {task.name} has {len(task.labels)} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}{_or_named(task, n)}"
        )
    find, into = finder(task.labels), dict(task.merges)
    merged = finder(tuple(into))

    def place(name: str) -> int | None:
        other = merged(name)
        return find(name) if other is None else find(tuple(into.values())[other])

    if says_task_order(given):
        names = list(wanted)
    elif given is not None:
        names = [given] if isinstance(given, str) else list(given)
    elif are_numbers(names) and None in map(place, names):
        raise BadInput(
            f"{where} calls its classes {_some(names)}, which does not say what they mean, and models disagree; name them in "
            f"the order of its outputs with labels behind the task ({task.name}:labels={','.join(wanted)})"
        )
    places = [place(name) for name in names]
    found = tuple(number for number in places if number is not None)
    if len(found) != n or len(names) != n or len(set(found)) != len(task.labels):
        raise BadInput(
            f"{where} has the classes {_some(names)}, which are not those of {task.name} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}, or name its {n} classes as {task.name} does, in the order of its "
            f"outputs, with labels behind the task ({task.name}:labels={','.join(wanted[:6])})"
        )
    return found


def contradicted(
    task: LabelledTask, id2label: Mapping[Any, str], given: Sequence[str] | str | None, *, where: str = "the model"
) -> tuple[str, ...]:
    """A note where `given` (see `label_order`, which takes its word) means another order than the names in the config."""
    if given is None or task.regression:
        return ()
    names = in_order_of_outputs(id2label)
    try:
        own = label_order(task, id2label, where=where)
    except BadInput:
        return ()  # its own names say nothing of this task
    if are_numbers(names) or own == label_order(task, id2label, given, where=where):
        return ()
    return (f"the config of {where} calls its outputs {_some(names)}, labels says otherwise, and labels was taken",)


def _in_order(task: LabelledTask, n: int) -> tuple[str, ...]:
    """The labels of a model with `n` outputs in the task's order: the task's own, or with those that are merged into one."""
    if n == len(task.labels) or not task.merges:
        return task.labels
    merged = {name for _, name in task.merges}
    return (*(name for name in task.labels if name not in merged), *(name for name, _ in task.merges))


def _or_named(task: LabelledTask, n: int) -> str:
    """The other remedy where a task's classes are those that its rows hold: these rows may lack some of the model's."""
    named_here = task.name not in TASKS and len(task.labels) < n
    return (
        f", or, where these rows lack some classes, name all {n} as the rows do with labels behind the task"
        if named_here
        else ""
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … {len(names)} in all" if len(names) > 6 else "")


# --- token ids -------------------------------------------------------------------------------------------------------

NOT_A_LABEL = -100  # of a token that is no first piece of a word; what the Hugging Face libraries leave out of losses


@dataclass(frozen=True)
class EncodedExamples:
    """What a tokenizer made of some examples.

    Attributes:
        inputs: by name (input_ids, attention_mask, token_type_ids where the model has them), one list an example.
        labels: of each example: its number, or of a token task a list [token], `NOT_A_LABEL` where none is asked for.
        n_cut: examples that did not fit.
    """

    inputs: dict[str, list[list[int]]]
    labels: tuple[Any, ...]
    n_cut: int = 0

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example."""
        return [len(ids) for ids in self.inputs["input_ids"]]

    def for_model(self, model: Any) -> "EncodedExamples":
        """Without what `model` does not take: tokenizers of no class of their own make token_type_ids for every model."""
        taken = inspect.signature(type(model).forward).parameters
        return replace(self, inputs={key: values for key, values in self.inputs.items() if key in taken})


def encode(tokenizer: Any, examples: "Examples", *, max_length: int) -> EncodedExamples:
    """Token ids of all examples, cut at `max_length` tokens; of a pair, the longer text is cut first.

    A word's label stands at its first piece (as in BERT's tagging).

    Raises:
        BadInput: no tokenizer, or one that cannot tell words apart where a task needs it.
    """
    if tokenizer is None:
        raise BadInput(
            "this model has no tokenizer beside it, so texts cannot be read; pass one (--model-args tokenizer=FOLDER)"
        )
    if examples.words:
        return _encode_words(tokenizer, examples, max_length)
    texts = (
        (list(examples.texts), list(examples.pairs))
        if examples.pairs
        else (beginnings(tokenizer, examples.texts, max_length),)
    )
    full = tokenizer(*texts, truncation=True, max_length=max_length)
    inputs = {key: list(full[key]) for key in full}
    return EncodedExamples(inputs, examples.labels, _n_cut(tokenizer, texts, inputs["input_ids"], max_length))


def _encode_words(tokenizer: Any, examples: "Examples", max_length: int) -> EncodedExamples:
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput("labels of words need a tokenizer that says which word a token is of (a fast one)")
    words = [list(mine) for mine in examples.words]
    try:
        full = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
    except (AssertionError, ValueError) as error:
        raise BadInput(f"this tokenizer cannot read separate words: {str(error).splitlines()[0]}") from None
    labels = []
    for row, mine in enumerate(examples.labels):
        before: int | None = None
        placed = []
        for word in full.word_ids(row):
            placed.append(NOT_A_LABEL if word is None or word == before else mine[word])
            before = word
        labels.append(placed)
    inputs = {key: list(full[key]) for key in full}
    n_cut = _n_cut(tokenizer, (words,), inputs["input_ids"], max_length, is_split_into_words=True)
    return EncodedExamples(inputs, tuple(labels), n_cut)


def _n_cut(tokenizer: Any, texts: tuple[list[Any], ...], ids: list[list[int]], max_length: int, **how: bool) -> int:
    """How many examples are longer than `max_length` tokens: those that fill it are read again, uncut."""
    full = [row for row, mine in enumerate(ids) if len(mine) >= max_length]
    if not full:
        return 0
    again = tokenizer(*([part[row] for row in full] for part in texts), verbose=False, **how)["input_ids"]
    return sum(len(mine) > max_length for mine in again)
