"""Which label each output of a model means: by name, whatever the order; never by the order alone."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.data.labelled import find_task, label_order, plain_task
from outlierlens.data.labelled.labels import contradicted, places_among, plain_label
from outlierlens.errors import BadInput

MNLI, HANS, RTE, STSB = (find_task(name) for name in ("mnli", "hans", "rte", "stsb"))


def named(*labels: str) -> dict[int, str]:
    return dict(enumerate(labels))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_permutation_of_mnli(order: tuple[int, ...]) -> None:
    labels = [MNLI.labels[place] for place in order]
    assert label_order(MNLI, named(*labels)) == order
    assert label_order(MNLI, named(*(label.upper() for label in labels))) == order
    assert (
        label_order(MNLI, {str(i): label for i, label in enumerate(labels)}) == order
    )  # keys as a config.json has them
    generic = named("LABEL_0", "LABEL_1", "LABEL_2")
    assert label_order(MNLI, generic, labels) == order
    assert label_order(MNLI, generic, "task") == (0, 1, 2)


@settings(max_examples=60)
@given(data=st.data())
def test_order_says_what_each_output_means(data: Any) -> None:
    labels = data.draw(
        st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1), min_size=2, unique_by=plain_label)
    )
    order = data.draw(st.permutations(range(len(labels))))
    task = plain_task("classify", "text", "label", labels=labels)
    assert label_order(task, named(*(labels[place] for place in order))) == tuple(order)


def test_ten_outputs_count_as_numbers() -> None:
    """Keys of id2label are strings in some configs: "10" comes after "9"."""
    labels = [f"class {letter}" for letter in "abcdefghijk"]
    task = plain_task("classify", "text", "label", labels=labels)
    assert label_order(task, {str(i): label for i, label in reversed([*enumerate(labels)])}) == tuple(range(11))


def test_names_by_any_spelling() -> None:
    assert label_order(RTE, named("Not-Entailment", "Entailed")) == (1, 0)
    assert label_order(find_task("sst2"), named("POS", "NEG")) == (1, 0)
    assert label_order(find_task("boolq"), named("false", "TRUE")) == (0, 1)
    assert label_order(find_task("wnli"), named("entailment", "not_entailment")) == (1, 0)
    symbols = plain_task("classify", "text", "label", labels=("C", "C++", "C#"))
    assert label_order(symbols, named("C#", "C", "C++")) == (2, 0, 1)


def test_numbers_mean_numbers_only() -> None:
    """A data set without names for its numbers, and a model that says LABEL_1: the number is all there is."""
    numbers = plain_task("classify", "text", "label", labels=("0", "1"))
    assert label_order(numbers, named("LABEL_0", "LABEL_1")) == (0, 1)
    assert label_order(numbers, named("1", "0")) == (1, 0)
    assert label_order(numbers, named("no", "yes"), ("1", "0")) == (1, 0)
    with pytest.raises(
        BadInput, match=r"has the classes no, yes, which are not those of classify .0, 1.; .* with labels"
    ):
        label_order(numbers, named("no", "yes"))


def test_hans_is_read_with_three_labels_or_two() -> None:
    """McCoy et al. 2019: neutral and contradiction both mean non-entailment."""
    assert label_order(HANS, named("contradiction", "entailment", "neutral")) == (1, 0, 1)
    assert label_order(HANS, named("non-entailment", "entailment")) == (1, 0)
    assert label_order(HANS, named("not_entailment", "entailment")) == (1, 0)
    three = named("LABEL_0", "LABEL_1", "LABEL_2")
    assert label_order(HANS, three, ("neutral", "entailment", "contradiction")) == (1, 0, 1)
    assert label_order(HANS, three, "task") == (0, 1, 1)
    with pytest.raises(BadInput, match=r"labels=entailment,neutral,contradiction\)"):
        label_order(HANS, three)
    with pytest.raises(
        BadInput, match="has the classes entailment, entailment, entailment, which are not those of hans"
    ):
        label_order(HANS, three, ("entailment",) * 3)


def test_regressions_have_one_output() -> None:
    assert label_order(STSB, named("LABEL_0")) == ()
    with pytest.raises(BadInput, match="org/m has 2 outputs, and glue:stsb is a regression, which needs one"):
        label_order(STSB, named("a", "b"), where="org/m")


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (("a", "b"), None, r"org/m has 2 classes \(a, b\), glue:mnli has 3 \(entailment, neutral, contradiction\); use a "),
        (("LABEL_0",) * 2, None, "org/m has 2 classes"),
        (tuple("abcdefgh"), None, "a, b, c, d, e, f, … 8 in all"),
        (
            ("LABEL_0", "LABEL_1", "LABEL_2"), None,
            "calls its classes LABEL_0, LABEL_1, LABEL_2, which does not say what they mean, and models disagree; name them in "
            "the order of its outputs with labels behind the task .*:labels=entailment,neutral,contradiction",
        ),
        (("0", "1", "2"), None, "which does not say what they mean"),
        (("entailment", "neutral", "sarcasm"), None, "which are not those of glue:mnli .* fine-tuned on glue:mnli, or name"),
        (("entailment", "neutral", "neutral"), None, "which are not those of glue:mnli"),
        (("entailment", "neutral", "LABEL_2"), None, "which are not those of glue:mnli"),
        (("a", "b", "c"), ("entailment", "neutral"), "has the classes entailment, neutral, which are not those"),
        (("a", "b", "c"), "entailment", "has the classes entailment, which are not those"),
        (("a", "b", "c"), ("yes", "no", "maybe"), "has the classes yes, no, maybe"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit(labels: tuple[str, ...], given: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        label_order(MNLI, named(*labels), given, where="org/m")


def test_a_model_of_another_task_is_named() -> None:
    with pytest.raises(BadInput, match=r"use a model fine-tuned on glue:mnli$"):
        label_order(find_task("mnli-mm"), named("a", "b"))


def test_the_users_word_is_taken() -> None:
    """Names given by hand come before the config's, even where they contradict it; that is said."""
    one, other = named("entailment", "not_entailment"), ("not_entailment", "entailment")
    assert label_order(RTE, one, other) == (1, 0)
    (note,) = contradicted(RTE, one, other, where="org/m")
    assert note.startswith("the config of org/m calls its outputs entailment, not_entailment, labels says otherwise")
    numbers = plain_task("classify", "text", "label", labels=("0", "1"))
    for task, config, words in (
        (RTE, one, ("entailment", "not_entailment")),
        (RTE, one, None),
        (RTE, named("LABEL_0", "LABEL_1"), other),
        (RTE, named("a", "b"), other),
        (numbers, named("LABEL_0", "LABEL_1"), ("1", "0")),  # numbers say little, and are what is corrected
        (STSB, named("LABEL_0"), None),
    ):
        assert contradicted(task, config, words) == ()


def test_places_among_more_classes() -> None:
    assert places_among(("neg", "pos"), ("pos", "so-so", "Neg")) == (2, 0)
    assert places_among(("1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")) == (1, 2)
    assert places_among(("neg", "pos"), ("pos", "neg")) is None  # no more than these
    assert places_among(("neg", "good"), ("pos", "so-so", "neg")) is None
