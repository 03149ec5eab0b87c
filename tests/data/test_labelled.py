"""The examples of labelled tasks: every kind of file and label, which number means what, and every way to get it wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.data.labelled import TASKS, examples, find_task, plain_task, read_examples
from outlierlens.data.labelled.labels import METRICS, with_metric
from outlierlens.errors import BadInput, Offline

RTE = find_task("glue:rte")
SORT = plain_task("classify", "text", "label")


def write(path: Path, rows: list[dict[str, Any]], features: dict[str, Any] | None = None) -> Path:
    """A file of these rows in the format of its ending; `features` as the datasets library notes them in parquet."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif path.suffix == ".parquet":
        table = pyarrow.Table.from_pylist(rows)
        if features is not None:
            noted = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": noted})
        pyarrow.parquet.write_table(table, path)
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        lines = [mark.join(map(str, values)) for values in ([*rows[0]], *(row.values() for row in rows))]
        path.write_text("\n".join(lines), "utf-8")
    return path


def pairs(*labels: Any) -> list[dict[str, Any]]:
    return [{"sentence1": f"a{i}", "sentence2": f"b{i}", "label": label} for i, label in enumerate(labels)]


def texts(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"t{i}", "label": label} for i, label in enumerate(labels)]


# (text, second text, labels by number, first metric, evaluated split), from the papers' data on the hub
GLUE = {
    "cola": ("sentence", None, "unacceptable acceptable", "mcc", "validation"),
    "sst2": ("sentence", None, "negative positive", "accuracy", "validation"),
    "mrpc": ("sentence1", "sentence2", "not_equivalent equivalent", "accuracy", "validation"),
    "stsb": ("sentence1", "sentence2", "", "pearson", "validation"),
    "qqp": ("question1", "question2", "not_duplicate duplicate", "accuracy", "validation"),
    "mnli": ("premise", "hypothesis", "entailment neutral contradiction", "accuracy", "validation_matched"),
    "mnli-mm": ("premise", "hypothesis", "entailment neutral contradiction", "accuracy", "validation_mismatched"),
    "qnli": ("question", "sentence", "entailment not_entailment", "accuracy", "validation"),
    "rte": ("sentence1", "sentence2", "entailment not_entailment", "accuracy", "validation"),
    "wnli": ("sentence1", "sentence2", "not_entailment entailment", "accuracy", "validation"),
}


@pytest.mark.parametrize("name", GLUE)
def test_rows_of_glue(name: str, tmp_path: Path) -> None:
    """The columns, labels and metric of each task, and its examples from a file in the hub's layout."""
    text, pair, labels, metric, split = GLUE[name]
    task = find_task(f"glue:{name}")
    assert find_task(name) is task
    assert (task.text, task.pair, " ".join(task.labels), task.metric, task.evaluated) == (
        text,
        pair,
        labels,
        metric,
        split,
    )
    assert task.regression == (name == "stsb")
    values: list[Any] = [2.5, 0.0] if task.regression else list(range(len(task.labels)))
    columns = [text, *([pair] if pair else [])]
    rows = [{column: f"{column} {i}" for column in columns} | {"label": v, "idx": i} for i, v in enumerate(values)]
    write(tmp_path / f"{split}.parquet", rows)
    found = read_examples(task, tmp_path)
    assert found.texts == tuple(f"{text} {i}" for i in range(len(values)))
    assert found.pairs == (tuple(f"{pair} {i}" for i in range(len(values))) if pair else ())
    assert found.labels == tuple(values)


def test_the_other_rows(tmp_path: Path) -> None:
    others = {"hans", "superglue:wic", "superglue:boolq", "sst5", "imdb"}
    assert set(TASKS) == {f"glue:{name}" for name in GLUE} | others
    assert all(set(task.metrics) <= set(METRICS) for task in TASKS.values())
    rows = [{"word": "bank", "pos": "N", "sentence1": "a bank", "sentence2": "the bank", "label": 1}]
    wic = read_examples(find_task("wic"), write(tmp_path / "wic.jsonl", rows))
    assert (wic.texts, wic.pairs, wic.labels) == (("bank: a bank",), ("the bank",), (1,))
    assert wic.task.labels == ("False", "True")
    rows = [{"question": "is it", "passage": "it is", "label": truth} for truth in (True, False, True)]
    boolq = read_examples(find_task("boolq"), write(tmp_path / "boolq.jsonl", rows))
    assert (boolq.texts[0], boolq.pairs[0], boolq.labels) == ("is it", "it is", (1, 0, 1))
    rows = [{"premise": "p", "hypothesis": "h", "label": label} for label in ("non-entailment", "entailment")]
    assert read_examples(find_task("hans"), write(tmp_path / "hans.jsonl", rows)).labels == (1, 0)
    with pytest.raises(
        BadInput, match=r"unknown task 'glue:imdb'; tasks are glue:cola, .* for your own data `classify`"
    ):
        find_task("glue:imdb")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize(
    "labels",
    [(1, 0, 1), ("not_entailment", "entailment", "not_entailment"), ("Not-Entailment", "ENTAILMENT", "not entailment")],
)
def test_every_file_and_spelling_gives_the_same_examples(tmp_path: Path, ending: str, labels: tuple[Any, ...]) -> None:
    found = read_examples(RTE, write(tmp_path / f"a.{ending}", pairs(*labels)))
    assert found.labels == (1, 0, 1)
    assert found.texts == ("a0", "a1", "a2")
    assert found.pairs == ("b0", "b1", "b2")
    same = read_examples(RTE, write(tmp_path / "same.jsonl", pairs(1, 0, 1)))
    assert found.digest == same.digest
    assert found.digest != read_examples(RTE, write(tmp_path / "other.jsonl", pairs(1, 1, 1))).digest


def test_numbers_mean_what_the_file_says(tmp_path: Path) -> None:
    """A parquet file whose ClassLabel counts the other way round."""
    noted = {"label": {"names": ["not_entailment", "entailment"], "_type": "ClassLabel"}}
    path = write(tmp_path / "a.parquet", pairs(0, 1, 1), noted)
    assert read_examples(RTE, path).labels == (1, 0, 0)
    noted["label"]["names"] = ["no", "yes"]
    with pytest.raises(
        BadInput, match=r"row 1: unknown label 0; the labels of glue:rte are 0 entailment, 1 not_entailment"
    ):
        read_examples(RTE, write(tmp_path / "b.parquet", pairs(0, 1), noted))
    for odd in ({"label": 3}, {"label": {"_type": "ClassLabel"}}, {"label": None}):  # notes that say nothing
        assert read_examples(RTE, write(tmp_path / "c.parquet", pairs(0, 1), odd)).labels == (0, 1)
    own = read_examples(
        SORT, write(tmp_path / "d.parquet", texts(2, 0), {"label": {"names": [*"xyz"], "_type": "ClassLabel"}})
    )
    assert own.task.labels == ("x", "y", "z")
    assert own.labels == (2, 0)


def test_labels_read_from_data(tmp_path: Path) -> None:
    def read(*labels: Any, ending: str = "jsonl", **more: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        found = read_examples(SORT, write(tmp_path / f"a.{ending}", texts(*labels)), **more)
        return found.task.labels, found.labels

    assert read("pos", "neg", "pos") == (("neg", "pos"), (1, 0, 1))
    assert read(3, 0) == (("0", "1", "2", "3"), (3, 0))
    assert read(10, 2, ending="csv") == (tuple(map(str, range(11))), (10, 2))  # not in the order of their letters
    assert read(True, False) == (("False", "True"), (1, 0))
    assert read("C++", "C", "C") == (("C", "C++"), (1, 0, 0))  # the same but for punctuation
    # Stars count from 1, unless a training split or a model says otherwise; pandas writes whole numbers with gaps as floats.
    assert read(5, 1) == (("1", "2", "3", "4", "5"), (4, 0))
    assert read(2, 1, labels=("0", "1", "2")) == (("0", "1", "2"), (2, 1))
    assert read(2, 5, labels=("1", "2", "3", "4", "5")) == (("1", "2", "3", "4", "5"), (1, 4))
    assert read(0.0, 1.0, 1.0) == (("0", "1"), (0, 1, 1))
    # A dev split that lacks classes is read with those of the training split.
    assert read("pos", "pos", labels=("neg", "pos", "so-so")) == (("neg", "pos", "so-so"), (1, 1))
    assert read(0, 1, labels=("0", "1", "2")) == (("0", "1", "2"), (0, 1))
    with pytest.raises(BadInput, match="row 2: unknown label 'bad'; the labels of classify are 0 neg, 1 pos"):
        read("pos", "bad", labels=("neg", "pos"))
    named = plain_task("classify", "text", "label", labels=("1", "2", "3"))
    path = tmp_path / "stars.jsonl"
    assert read_examples(named, write(path, texts(3, 1, 2))).labels == (2, 0, 1)  # all are names
    assert read_examples(named, write(path, texts(2, 0, 1))).labels == (2, 0, 1)  # 0 is none: they count from 0


@settings(max_examples=40)
@given(data=st.data())
def test_any_order_of_classes_gives_the_same_names(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """However a file numbers its classes, each example keeps the name that its number stands for there."""
    names = data.draw(st.permutations(["entailment", "neutral", "contradiction"]))
    numbers = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    rows = [{"premise": "p", "hypothesis": "h", "label": number} for number in numbers]
    path = tmp_path_factory.mktemp("mnli") / "validation_matched.parquet"
    write(path, rows, {"label": {"names": names, "_type": "ClassLabel"}})
    found = read_examples(find_task("mnli"), path.parent)
    assert [found.task.labels[label] for label in found.labels] == [names[number] for number in numbers]


BAD: list[tuple[str, Any, list[dict[str, Any]], str]] = [
    ("missing column", RTE, texts(0), "no column 'sentence1'; its columns are text, label"),
    ("missing label", SORT, [{"text": "a"}], "no column 'label'; its columns are text"),
    ("unknown word", RTE, pairs(0, "maybe"), r"row 2: unknown label 'maybe'; the labels of glue:rte are 0 entailment, 1 not_e"),
    ("number too high", RTE, pairs(0, 1, 2), "row 3: unknown label 2; the labels of glue:rte"),
    ("number below 0", RTE, pairs(-1, 1), r"row 1: unknown label -1, which marks an unlabelled row \(remove it\); the labels"),
    (
        "outside the scale", find_task("stsb"), pairs(4.5, -1.0),
        r"row 2: label -1.0, which marks an unlabelled row \(remove it\) is outside 0 to 5, the scale of glue:stsb",
    ),
    ("above the scale", find_task("stsb"), pairs(5.1), "row 1: label 5.1 is outside 0 to 5"),
    ("fraction", RTE, pairs(0, 0.5), r"row 2: unknown label 0\.5"),
    ("nothing", RTE, pairs(0, None), "row 2: the label is missing"),
    ("test split", RTE, pairs(-1, -1), "every label is −1, so this split is unlabelled .a test split..; use the validation"),
    ("test split of a regression", find_task("stsb"), pairs(-1.0, -1.0), "every label is −1"),
    ("word of a regression", find_task("stsb"), pairs(1.5, "high"), "row 2: label 'high' is not a number, and this task is"),
    ("infinite value", find_task("stsb"), pairs(1.5, float("inf")), "row 2: label inf is not a number"),
    ("no value", find_task("stsb"), pairs(1.5, None), "row 2: label None is not a number"),
    ("no text", RTE, [{"sentence1": None, "sentence2": "b", "label": 0}], "row 1: sentence1 holds None, not a text"),
    ("no pair", RTE, [{"sentence1": "a", "sentence2": 3, "label": 0}], "row 1: sentence2 holds 3, not a text"),
    (
        "no word", find_task("wic"), [{"word": None, "sentence1": "a", "sentence2": "b", "label": 0}],
        r"row 1: \{word\}: \{sentence1\} holds None, not a text",
    ),
    ("scores as labels", SORT, texts(0.25, 0.5), r"label 0\.25 is a number with a fraction; write labels .*task `regress`"),
    ("label from −3", SORT, texts(-3, 1), "labels go from -3 to 1; they must count from 0"),
    ("huge label", SORT, texts(0, 10**12), "labels go from 0 to 1000000000000; they must count from 0"),
    ("lists as labels", SORT, texts([1], [2]), r"label \[1\] is a list; write labels as text or as whole numbers"),
    ("mixed labels", SORT, texts(1, "one"), "labels of several types; write them all as text or all as numbers"),
    ("only empty labels", SORT, texts(None), "row 1: the label is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "rows", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_rows_are_one_clear_line(task: Any, rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        read_examples(task, write(tmp_path / "rows.jsonl", rows))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "rows.jsonl") in str(caught.value)


def test_labels_of_csv_files_with_fractions(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"label '0\.5' is a number with a fraction"):
        read_examples(SORT, write(tmp_path / "a.csv", texts("0.5", "1.0")))
    with pytest.raises(BadInput, match="every label is −1"):
        read_examples(RTE, write(tmp_path / "b.csv", pairs(-1, -1)))
    found = read_examples(plain_task("regress", "text", "label"), write(tmp_path / "c.csv", texts("0.5", "-1e2")))
    assert found.labels == (0.5, -100.0)
    assert found.task.labels == ()


def test_empty_splits_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pyarrow.schema([("sentence1", "string"), ("sentence2", "string"), ("label", "int64")])
    pyarrow.parquet.write_table(schema.empty_table(), tmp_path / "validation.parquet")
    with pytest.raises(
        BadInput, match=r"validation\.parquet: the validation split has no rows; name another file or split"
    ):
        read_examples(RTE, tmp_path)
    path = write(tmp_path / "a.parquet", pairs(0, 1, 0, 1))
    assert len(read_examples(RTE, path, limit=3)) == 3
    with pytest.raises(BadInput, match="limit is 0; it must be at least 1"):
        read_examples(RTE, path, limit=0)
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 3)
    with pytest.raises(BadInput, match="more than 3 rows; say with a limit how many to read"):
        read_examples(RTE, path)
    assert len(read_examples(RTE, path, limit=4)) == 4
    monkeypatch.setattr(examples, "MAX_CLASSES", 2)
    with pytest.raises(BadInput, match="3 different labels; is this the column of the label"):
        read_examples(SORT, write(tmp_path / "ids.jsonl", texts("id1", "id2", "id3")))


def test_files_that_claim_many_rows_are_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million equal rows in a few kilobytes: no more of them are held than the limit allows."""
    n = 500_000
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": pyarrow.repeat("a", n), "label": pyarrow.repeat(0, n)})
    pyarrow.parquet.write_table(table, path)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 1000)
    with pytest.raises(BadInput, match="more than 1,000 rows"):
        read_examples(SORT, path)


def test_folders_and_parts(tmp_path: Path) -> None:
    def folder(*names: str) -> Path:
        made = tmp_path / "-".join(names).replace("/", "")[:60]
        made.mkdir()
        for number, name in enumerate(names):
            write(made / name, pairs(number % 2))
        return made

    assert len(read_examples(RTE, folder("validation.parquet", "train.jsonl", "validation_matched.csv"))) == 1
    assert len(read_examples(RTE, folder("validation-00000-of-00001.parquet", "train.parquet"))) == 1
    one = folder("validation-00000-of-00001-0a1b2c.parquet")
    assert read_examples(RTE, one).source.endswith("0a1b2c.parquet")
    parts = folder(*(f"validation-{i}-of-11.jsonl" for i in range(11)))
    found = read_examples(RTE, parts)
    assert found.labels == tuple(i % 2 for i in range(11))  # part 10 comes last, not after part 1
    assert found.source == f"{parts}/validation-*.jsonl"
    assert read_examples(RTE, parts, limit=2).labels == (0, 1)
    for names, message in (
        (("train.parquet",), r"no file of the validation split \(validation.parquet\); it has train.parquet"),
        (("notes.txt",), "it has no data file"),
        (
            ("validation.csv", "validation.jsonl"),
            "2 files of the validation split .* that are not parts of one; name one file",
        ),
        (("validation.csv", "validation-00000-of-00001.csv"), "2 files of the validation split"),
        (("validation-0-of-2.csv", "validation-0-of-2.jsonl"), "2 files of the validation split"),
        (("validation-0-of-1.csv", "validation-1-of-2.csv"), "2 files of the validation split"),
        (
            ("validation-00001-of-00003.csv", "validation-00000-of-00003.csv"),
            "2 of the 3 parts of the validation split; fetch",
        ),
        (("validation-0-of-999999999.csv",), "1 of the 999999999 parts"),
    ):
        with pytest.raises(BadInput, match=message):
            read_examples(RTE, folder(*names))
    with pytest.raises(BadInput, match="no file of the dev split"):
        read_examples(RTE, one, split="dev")
    with pytest.raises(BadInput, match="no such data file"):
        read_examples(RTE, tmp_path / "missing.parquet")
    with pytest.raises(BadInput, match="task classify has no data set of its own; name a file with --data"):
        read_examples(SORT)


def test_parts_must_agree(tmp_path: Path) -> None:
    write(tmp_path / "validation-0-of-2.jsonl", pairs(0))
    write(tmp_path / "validation-1-of-2.jsonl", texts(0))
    with pytest.raises(
        BadInput, match=r"1-of-2.jsonl has the columns text, label, .* all files of a split must have the same"
    ):
        read_examples(RTE, tmp_path)
    (tmp_path / "validation-0-of-2.jsonl").unlink()
    (tmp_path / "validation-1-of-2.jsonl").unlink()
    for part, names in ((0, ["a", "b"]), (1, ["b", "a"])):
        path = tmp_path / f"validation-{part}-of-2.parquet"
        write(path, pairs(0), {"label": {"names": names, "_type": "ClassLabel"}})
    with pytest.raises(BadInput, match="name their labels differently; give one of them"):
        read_examples(RTE, tmp_path)


TAGS = plain_task("tokens", "words", "tags")


def test_labels_of_words(tmp_path: Path) -> None:
    rows = [{"words": ["a", "dog"], "tags": ["DET", "NOUN"]}, {"words": ["runs"], "tags": ["VERB"]}]
    found = read_examples(TAGS, write(tmp_path / "a.jsonl", rows))
    assert found.task.labels == ("DET", "NOUN", "VERB")
    assert found.labels == ((0, 1), (2,))
    assert found.words == (("a", "dog"), ("runs",))
    assert found.texts == ("a dog", "runs")
    for feature in (
        {"feature": {"names": ["VERB", "DET"], "_type": "ClassLabel"}, "_type": "Sequence"},
        {"feature": {"names": ["VERB", "DET"], "_type": "ClassLabel"}, "_type": "List"},
        [{"names": ["VERB", "DET"], "_type": "ClassLabel"}],
    ):
        path = write(tmp_path / "a.parquet", [{"words": ["a", "b"], "tags": [1, 0]}], {"tags": feature})
        assert read_examples(TAGS, path).task.labels == ("VERB", "DET")
    some = found.some([1])
    assert (some.words, some.labels, some.texts) == ((("runs",),), ((2,),), ("runs",))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"words": "a dog", "tags": ["X"]}],
            "row 1: words and tags must hold lists, one label per word; use .jsonl or .parquet",
        ),
        ([{"words": ["a"], "tags": ["X"]}, {"words": ["a", "b"], "tags": ["X"]}], "row 2: 2 words and 1 labels"),
        ([{"words": ["a", 3], "tags": ["X", "Y"]}], "row 1: words and tags must hold lists"),
        ([{"words": ["a"], "tags": ["X"]}, {"words": [], "tags": []}], "row 2: words holds no word; remove the row"),
        (
            [{"words": ["a", "b"], "tags": [1, -100]}],
            "labels go from -100, which marks a piece without a label .give one to",
        ),
        ([{"words": ["a"], "tags": ["X"]}, {"words": ["a", "b"], "tags": ["X", None]}], "row 2: the label is missing"),
    ],
)
def test_bad_labels_of_words(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        read_examples(TAGS, write(tmp_path / "a.jsonl", rows))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts rows in place of the hub, under a name, a configuration and a split."""
    import datasets

    known: dict[tuple[str, str | None, str], Any] = {}

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Any:
        assert streaming
        if (name, config, split) not in known:
            raise FileNotFoundError(f"no data set {name}")
        return known[name, config, split]

    def put(name: str, config: str | None, split: str, rows: list[dict[str, Any]], features: Any = None) -> None:
        found = datasets.Dataset.from_list(rows, features=datasets.Features(features) if features else None)
        known[name, config, split] = found.to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return put


def test_tasks_from_the_hub(hub: Callable[..., None]) -> None:
    from datasets import ClassLabel, Sequence, Value

    kinds = {"sentence1": Value("string"), "sentence2": Value("string")}
    hub("nyu-mll/glue", "rte", "validation", pairs(0, 1), kinds | {"label": ClassLabel(names=[*RTE.labels])})
    hub("nyu-mll/glue", "rte", "train", pairs(1), kinds | {"label": ClassLabel(names=[*reversed(RTE.labels)])})
    hub("nyu-mll/glue", "rte", "test", pairs(-1, -1))
    assert read_examples(RTE).labels == (0, 1)
    assert read_examples(RTE).source == "nyu-mll/glue:rte:validation"
    assert read_examples(RTE, split="train").labels == (0,)  # its 1 is called entailment
    assert read_examples(RTE, "nyu-mll/glue:rte:train").labels == (0,)
    with pytest.raises(BadInput, match="nyu-mll/glue:rte:test: every label is −1"):
        read_examples(RTE, split="test")
    with pytest.raises(BadInput, match="cannot be read as a hub data set"):
        read_examples(RTE, split="dev")
    with pytest.raises(Offline, match="a hub data set, and offline mode is on"):
        read_examples(RTE, offline=True)
    tags = Sequence(ClassLabel(names=["O", "X"]))
    hub(
        "o/tags",
        None,
        "validation",
        [{"words": ["a"], "tags": [1]}],
        {"words": Sequence(Value("string")), "tags": tags},
    )
    assert read_examples(TAGS, "o/tags").task.labels == ("O", "X")


def test_f1_belongs_to_two_classes(tmp_path: Path) -> None:
    """The classes of your own data are known when it is read."""
    task = plain_task("classify", "text", "label", metric="f1")
    assert read_examples(task, write(tmp_path / "a.jsonl", texts("no", "yes"))).task.metrics[0] == "f1"
    with pytest.raises(BadInput, match="classify: F1 is of two classes, and these are 3; use macro f1"):
        read_examples(task, write(tmp_path / "b.jsonl", texts("a", "b", "c")))
    plain = plain_task("classify", "text", "label")
    assert read_examples(plain, tmp_path / "a.jsonl").task.metrics == ("accuracy", "f1", "macro f1", "mcc")
    one_class = read_examples(task, write(tmp_path / "c.jsonl", texts("yes")))  # the model may have another
    assert one_class.among(("yes", "no")).task.metrics[0] == "f1"
    with pytest.raises(BadInput, match="these are 3; use macro f1"):
        one_class.among(("yes", "no", "perhaps"))
    named = read_examples(task, tmp_path / "a.jsonl", labels=("yes", "no"))  # in the order of a model's outputs
    assert named.task.labels == ("no", "yes")  # which does not say what F1 is of
    assert read_examples(plain, tmp_path / "b.jsonl").task.metrics == ("accuracy", "macro f1", "mcc")


def test_kinds_and_metrics() -> None:
    assert with_metric(find_task("mrpc"), "f1").metrics == ("f1", "accuracy")
    assert plain_task("classify", "t", "l", labels=("a", "b")).metrics == ("accuracy", "f1", "macro f1", "mcc")
    assert plain_task("classify", "t", "l", metric="mcc").metric == "mcc"
    with pytest.raises(BadInput, match="task glue:rte has no metric 'mcc'; its metrics are accuracy"):
        with_metric(RTE, "mcc")
    with pytest.raises(BadInput, match="unknown kind of task 'rank'; kinds are classify, regress, tokens"):
        plain_task("rank", "t", "l")
