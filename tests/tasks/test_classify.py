"""Labelled tasks on tiny models against a plain loop: one example at a time, no padding, scikit-learn and scipy."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn

from architectures import FAMILIES, build
from outlierlens.ablation.switches import edited_hidden, removed_writes, zeroed_weights
from outlierlens.data.labelled import Examples, find_task, plain_task
from outlierlens.data.labelled.examples import NO_CLASS
from outlierlens.data.labelled.labels import NOT_A_LABEL, with_metric
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.tasks import classify as module
from outlierlens.tasks.base import UNSAID, TaskOptions, check_intact
from outlierlens.tasks.classify import LabelledScore

SEQUENCE = (
    "bert",
    "distilbert",
    "mpnet",
    "roberta",
    "albert",
    "deberta-v2",
    "modernbert",
    "xlnet",
    "gpt2",
    "llama",
    "opt",
)
TOKEN = ("bert", "distilbert", "roberta", "deberta-v2", "modernbert")
N = 23
Made = Callable[..., tuple[LoadedModel, Examples]]


@pytest.fixture(scope="module")
def made(words: Callable[..., Any]) -> Made:
    """A tiny model with a head, and examples of many lengths whose labels it gets right about half of the time."""

    def make(
        family: str, kind: str = "classify", n_labels: int = 3, *, pairs: bool = False, pad: int | None = 0
    ) -> Any:
        tokens = kind == "tokens"
        names = () if kind == "regress" else tuple("abcdefg"[:n_labels])
        shown = names or ("value",)
        known = FAMILIES[family]
        labels = {"id2label": dict(enumerate(shown)), "label2id": {name: i for i, name in enumerate(shown)}}
        wanted = known.config | labels | {"num_labels": len(shown), "pad_token_id": pad}
        model = build(replace(known, config=wanted), "TokenClassification" if tokens else "SequenceClassification")
        loaded = from_objects(model, name=family)
        tokenizer = words(kind="causal" if family in ("gpt2", "llama", "opt") else "masked")
        loaded = LoadedModel(family, model, tokenizer, loaded.head, loaded.stacks, loaded.config)
        random = np.random.default_rng(7)
        sentences = tuple(
            tuple(f"w{word}" for word in random.integers(0, 35, length)) for length in random.integers(1, 11, N)
        )
        task = plain_task(kind, "text", "label", pair="other" if pairs else None, labels=names)
        truth: tuple[Any, ...] = tuple(random.integers(0, n_labels, N).tolist())
        if tokens:
            truth = tuple(tuple(random.integers(0, n_labels, len(sentence)).tolist()) for sentence in sentences)
        elif kind == "regress":
            truth = tuple(random.normal(size=N).tolist())
        texts = tuple(" ".join(sentence) for sentence in sentences)
        second = tuple(reversed(texts)) if pairs else ()
        words_of = sentences if tokens else ()
        examples = Examples("made up", texts, "text", task=task, labels=truth, pairs=second, words=words_of)
        spread(loaded, examples)
        return loaded, examples

    return make


def spread(loaded: LoadedModel, examples: Examples) -> None:
    """Give each output mean 0 and deviation 1 over the examples: no constant predictions, no ties within rounding."""
    model: Any = loaded.model
    head = next(getattr(model, name) for name in ("classifier", "score", "logits_proj") if hasattr(model, name))
    last = [module for module in head.modules() if isinstance(module, torch.nn.Linear)][-1]
    logits = torch.cat([found.reshape(-1, found.shape[-1]) for found in plain_logits(loaded, examples)])
    deviation = logits.std(0)
    if last.bias is None:
        last.bias = torch.nn.Parameter(torch.zeros(len(last.weight)))
    with torch.no_grad():
        last.bias.copy_((last.bias - logits.mean(0)) / deviation)
        last.weight.div_(deviation[:, None])


def plain_logits(loaded: LoadedModel, examples: Examples) -> list[torch.Tensor]:
    """Logits of each example, read alone."""
    found = []
    model, tokenizer = loaded.model, loaded.tokenizer
    assert tokenizer is not None
    for number in range(len(examples)):
        parts = (examples.texts[number], examples.pairs[number]) if examples.pairs else (examples.texts[number],)
        ids = tokenizer(*parts, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float())
    return found


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("family", SEQUENCE)
def test_sequences_against_a_plain_loop(family: str, pairs: bool, made: Made) -> None:
    loaded, examples = made(family, pairs=pairs)
    logits = torch.stack(plain_logits(loaded, examples))
    truth, said = np.array(examples.labels), logits.argmax(-1).numpy()
    assert len(set(said.tolist())) > 1
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(truth), reduction="none").numpy()
    score = LabelledScore(loaded, examples, TaskOptions(max_length=32))
    outputs = score.outputs()
    assert outputs.predicted.tolist() == said.tolist()
    assert outputs.losses == pytest.approx(losses, abs=3e-5)
    assert outputs.scores == {
        "accuracy": pytest.approx(sklearn.accuracy_score(truth, said)),
        "macro f1": pytest.approx(sklearn.f1_score(truth, said, average="macro")),
        "mcc": pytest.approx(sklearn.matthews_corrcoef(truth, said)),
    }
    check_values(loaded, examples, {"loss": losses, "accuracy": (said != truth).astype(float), "metric": said})


def check_values(loaded: LoadedModel, examples: Examples, expected: dict[str, np.ndarray]) -> None:
    """`per_text`, and `feeds` with `sums`, give these values whatever goes into a batch."""
    for measure, values in expected.items():
        score = LabelledScore(loaded, examples, TaskOptions(max_length=32, measure=measure))  # type: ignore[arg-type]
        assert score.per_text()[0] == pytest.approx(values, abs=3e-5)
        some = [3, 0, 11, 3, *range(N)]  # repeats, in no order
        for tokens in (None, 1, 40, 10_000):
            totals = np.full(len(some), np.nan)
            with torch.inference_mode():
                for feed in score.feeds(some, tokens):
                    shape = feed.inputs["input_ids"].shape
                    assert tokens is None or len(feed.slots) == 1 or shape.numel() <= tokens
                    assert feed.n_tokens == sum(score.lengths[some[slot]] for slot in feed.slots)
                    totals[list(feed.slots)] = score.sums(feed).double().numpy()
            assert totals / score.weights[some] == pytest.approx(np.asarray(values)[some], abs=3e-5)


@pytest.mark.parametrize("family", SEQUENCE)
def test_regressions_against_a_plain_loop(family: str, made: Made) -> None:
    loaded, examples = made(family, "regress")
    said = torch.stack(plain_logits(loaded, examples))[:, 0].double().numpy()
    truth = np.array(examples.labels)
    outputs = LabelledScore(loaded, examples, TaskOptions(max_length=32)).outputs()
    assert outputs.predicted == pytest.approx(said, abs=1e-5)
    assert outputs.losses == pytest.approx((said - truth) ** 2, abs=1e-4)
    assert outputs.scores["pearson"] == pytest.approx(stats.pearsonr(truth, outputs.predicted).statistic)
    assert outputs.scores["spearman"] == pytest.approx(stats.spearmanr(truth, outputs.predicted).statistic)
    assert outputs.scores["pearson"] == pytest.approx(stats.pearsonr(truth, said).statistic, abs=1e-5)
    with pytest.raises(BadInput, match="regress is a regression, which is neither right nor wrong"):
        LabelledScore(loaded, examples, TaskOptions(measure="accuracy"))


@pytest.mark.parametrize("family", TOKEN)
def test_tokens_against_a_plain_loop(family: str, made: Made) -> None:
    loaded, examples = made(family, "tokens")
    losses, said = [], []
    for logits, labels in zip(plain_logits(loaded, examples), examples.labels, strict=True):
        of_words = logits[1:-1]  # one piece a word between the two special tokens
        losses.append(float(torch.nn.functional.cross_entropy(of_words, torch.tensor(labels))))
        said.append(of_words.argmax(-1).numpy())
    truth, flat = np.concatenate(examples.labels), np.concatenate(said)
    outputs = LabelledScore(loaded, examples, TaskOptions(max_length=32, measure="loss")).outputs()
    assert outputs.truth.tolist() == truth.tolist()
    assert outputs.predicted.tolist() == flat.tolist()
    assert outputs.scores["token accuracy"] == pytest.approx(sklearn.accuracy_score(truth, flat))
    assert outputs.scores["token f1"] == pytest.approx(sklearn.f1_score(truth, flat, average="macro"))
    wrong = np.array([np.mean(np.array(labels) != words) for labels, words in zip(examples.labels, said, strict=True)])
    check_values(loaded, examples, {"loss": np.array(losses), "accuracy": wrong, "metric": wrong})
    score = LabelledScore(loaded, examples, TaskOptions(max_length=32))
    assert score.weights.tolist() == [len(words) for words in examples.words]
    assert np.average(*score.per_text()[:1], weights=score.weights) == pytest.approx((flat != truth).mean())
    with pytest.raises(
        BadInput, match="token f1 is not a mean over texts, so no text has a value of it; use measure loss"
    ):
        LabelledScore(loaded, replace(examples, task=with_metric(examples.task, "token f1")), TaskOptions())


def test_labels_stand_at_the_first_piece_and_cut_words_do_not_count(made: Made) -> None:
    loaded, examples = made("bert", "tokens")
    score = LabelledScore(loaded, examples, TaskOptions(max_length=6, measure="loss"))
    for labels, placed in zip(examples.labels, score.encoded.labels, strict=True):
        kept = labels[:4]
        assert placed == [NOT_A_LABEL, *kept, NOT_A_LABEL]
    n_cut = sum(len(words) > 4 for words in examples.words)
    assert 0 < n_cut < N
    assert score.encoded.n_cut == n_cut  # those of exactly six tokens are whole
    assert score.notes == (
        f"{n_cut} of {N} examples do not fit into 6 tokens and were cut; labels of words that were cut off do not count",
    )


def test_cut_examples_are_noted(made: Made) -> None:
    loaded, examples = made("bert", pairs=True)
    whole = LabelledScore(loaded, examples, TaskOptions(max_length=32))
    assert whole.notes == ()
    longest = int(whole.lengths.max())
    n_cut = int((whole.lengths == longest).sum())
    assert LabelledScore(loaded, examples, TaskOptions(max_length=longest)).notes == ()
    noted = LabelledScore(loaded, examples, TaskOptions(max_length=longest - 1))
    assert noted.notes == (f"{n_cut} of {N} examples do not fit into {longest - 1} tokens and were cut",)
    assert noted.lengths.max() == longest - 1


@pytest.mark.parametrize("family", ["bert", "mpnet", "xlnet", "gpt2"])
def test_batches_change_no_prediction(family: str, made: Made) -> None:
    loaded, examples = made(family)
    task = replace(examples.task, regression=False)
    found = []
    for size in (1, 3, 64):
        score = LabelledScore(
            loaded, replace(examples, task=task), TaskOptions(max_length=32, batch_size=size, measure="loss")
        )
        assert score.tokens == size * score.max_length
        found.append(score.per_text()[0])
    some = LabelledScore(loaded, examples.some(range(N - 1, 4, -1)), TaskOptions(max_length=32, measure="loss"))
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert found[2] == pytest.approx(found[0], abs=1e-5)
    assert some.per_text()[0] == pytest.approx(found[0][:4:-1], abs=1e-5)


def test_smaller_batches_where_memory_runs_out(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, examples = made("bert")
    score = LabelledScore(loaded, examples, TaskOptions(max_length=32))
    expected = score.outputs()
    plain = module.LabelledScore._said
    tried = []

    def said(self: Any, feed: Any) -> Any:
        tried.append(feed.inputs["input_ids"].numel())
        if tried[-1] > 60:
            raise RuntimeError("CUDA out of memory")
        return plain(self, feed)

    monkeypatch.setattr(module.LabelledScore, "_said", said)
    found = score.outputs()
    assert found.predicted.tolist() == expected.predicted.tolist()
    assert found.losses == pytest.approx(expected.losses, abs=1e-5)
    assert tried[0] > 60
    assert score.tokens < 120

    def broken(self: Any, feed: Any) -> Any:
        raise RuntimeError("something else")

    monkeypatch.setattr(module.LabelledScore, "_said", broken)
    with pytest.raises(RuntimeError, match="something else"):
        score.outputs()


@pytest.mark.parametrize("kind", ["classify", "regress", "tokens"])
@pytest.mark.parametrize("mode", ["weights", "zero", "writes"])
def test_switching_off_and_on_again_restores_every_prediction(kind: str, mode: str, made: Made) -> None:
    loaded, examples = made("bert", kind)
    score = LabelledScore(loaded, examples, TaskOptions(max_length=32, measure="loss"))
    logits, outputs = torch.cat(plain_logits(loaded, examples)), score.outputs()
    off: Any
    if mode == "weights":
        off = zeroed_weights(loaded, [3, 7])
    elif mode == "zero":
        off = edited_hidden(loaded, [3, 7], "zero")
    else:
        off = removed_writes(loaded, [3, 7], embeddings=True)
    with off:
        assert not torch.equal(torch.cat(plain_logits(loaded, examples)), logits)
        assert not np.array_equal(score.outputs().losses, outputs.losses)
    assert torch.equal(torch.cat(plain_logits(loaded, examples)), logits)
    again = score.outputs()
    assert np.array_equal(again.losses, outputs.losses)
    assert np.array_equal(again.predicted, outputs.predicted)
    assert np.array_equal(again.truth, outputs.truth)
    assert again.scores == outputs.scores


def with_labels(loaded: LoadedModel, order: list[int], names: list[str]) -> LoadedModel:
    """The model with its outputs in another order, each called by its name."""
    model = copy.deepcopy(loaded.model)
    head: Any = model.classifier
    with torch.no_grad():
        head.weight.copy_(head.weight[order].clone())
        head.bias.copy_(head.bias[order].clone())
    config: Any = model.config
    config.id2label = dict(enumerate(names))
    return LoadedModel(loaded.name, model, loaded.tokenizer, loaded.head, loaded.stacks, loaded.config)


def test_a_permutation_of_the_labels_of_mnli_is_caught(made: Made) -> None:
    """Checkpoints of MNLI disagree about the order; the names decide, and only the user can say otherwise."""
    loaded, examples = made("bert", n_labels=3)
    mnli = find_task("mnli")
    examples = replace(examples, task=mnli)
    plainly = LabelledScore(
        with_labels(loaded, [0, 1, 2], [*mnli.labels]), examples, TaskOptions(max_length=32)
    ).outputs()
    order = [2, 0, 1]
    names = [mnli.labels[place] for place in order]
    permuted = with_labels(loaded, order, names)
    score = LabelledScore(permuted, examples, TaskOptions(max_length=32))
    assert score.order == (2, 0, 1)
    found = score.outputs()
    assert found.scores == plainly.scores
    assert found.predicted.tolist() == plainly.predicted.tolist()
    assert found.losses == pytest.approx(plainly.losses, abs=1e-6)
    by_hand = LabelledScore(permuted, examples, TaskOptions(max_length=32, labels=mnli.labels)).outputs()
    raw = torch.stack(plain_logits(permuted, examples)).argmax(-1).numpy()
    assert by_hand.scores["accuracy"] == pytest.approx(sklearn.accuracy_score(examples.labels, raw))
    assert by_hand.scores != plainly.scores
    nameless = with_labels(loaded, order, ["LABEL_0", "LABEL_1", "LABEL_2"])
    with pytest.raises(
        BadInput, match="bert calls its classes LABEL_0, LABEL_1, LABEL_2, which does not say what they mean"
    ):
        LabelledScore(nameless, examples, TaskOptions())
    told = LabelledScore(nameless, examples, TaskOptions(max_length=32, labels=tuple(names))).outputs()
    assert told.scores == plainly.scores

    score = LabelledScore(permuted, examples, TaskOptions(max_length=32, labels=mnli.labels))
    assert "labels was taken" in score.notes[-1]


def test_outputs_that_are_no_numbers_predict_nothing(made: Made) -> None:
    """argmax calls NaN the first class, so a model that was destroyed would be right about all of class 0."""
    for measure in ("accuracy", "metric"):
        loaded, examples = made("bert")
        score = LabelledScore(loaded, examples, TaskOptions(max_length=32, measure=measure))
        score.per_text()
        assert UNSAID not in score.also()
        head: Any = loaded.model.classifier  # type: ignore[union-attr]
        with torch.no_grad():
            head.bias.fill_(math.nan)
        values, _ = score.per_text()
        assert score.also() == {**dict.fromkeys(examples.task.metrics, 0), UNSAID: 1}
        assert np.all(values == (1 if measure == "accuracy" else NO_CLASS))
        with pytest.raises(
            BadInput, match=r"is no number \(NaN or infinite\) on .* of the values of classifier.bias; fetch"
        ):
            check_intact(loaded, score, values)
        assert np.isnan(score.outputs().losses).all()
        with torch.no_grad():
            head.bias.copy_(torch.tensor([0.0, -math.inf, -math.inf]))  # a class that is never said is no NaN
        assert score.outputs().predicted.tolist() == [0] * N
    tokens, words_of = made("bert", "tokens")
    score = LabelledScore(tokens, words_of, TaskOptions(max_length=32, measure="accuracy"))
    with torch.no_grad():
        tokens.model.classifier.bias.fill_(math.nan)  # type: ignore[union-attr, operator]
    found = score.outputs()
    assert set(found.predicted.tolist()) == {NO_CLASS}
    assert found.scores["token accuracy"] == 0


def test_examples_of_fewer_classes_than_the_model_has(made: Made) -> None:
    loaded, examples = made("bert", n_labels=3)
    whole = LabelledScore(loaded, examples, TaskOptions(max_length=32)).outputs()
    some = [number for number, label in enumerate(examples.labels) if label != 0]
    names = examples.task.labels
    mine = tuple(examples.labels[number] - 1 for number in some)
    fewer = replace(examples.some(some), labels=mine, task=replace(examples.task, labels=names[1:]))
    assert fewer.among(["x", *names]).task.labels == ("x", *names)
    assert fewer.among(names).labels == tuple(examples.labels[number] for number in some)
    score = LabelledScore(loaded, fewer, TaskOptions(max_length=32))
    assert score.outputs().predicted.tolist() == whole.predicted[some].tolist()
    numbers = replace(fewer, task=replace(fewer.task, labels=("1", "2")))
    for generic in (("LABEL_0", "LABEL_1", "LABEL_2"), ("0", "1", "2")):  # stars 1 and 2 may be the first two of three
        same = generic[0] == "0"
        assert numbers.among(generic).labels == (tuple(1 + one for one in mine) if same else mine)
    counted = replace(fewer, task=replace(fewer.task, labels=("0", "1")))
    assert counted.among(("LABEL_0", "LABEL_1", "LABEL_2")).task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert LabelledScore(loaded, examples, TaskOptions(max_length=32, labels="task")).order == (0, 1, 2)  # type: ignore[arg-type]
    words = replace(fewer, task=replace(fewer.task, level="token"), labels=tuple((one,) for one in mine))
    assert words.among(names).labels == tuple((examples.labels[number],) for number in some)


def test_hans_adds_the_probabilities_of_what_is_no_entailment(made: Made) -> None:
    loaded, examples = made("bert", n_labels=3)
    hans = find_task("hans")
    names = ["neutral", "entailment", "contradiction"]
    examples = replace(examples, task=hans, labels=tuple(label % 2 for label in examples.labels))
    model = with_labels(loaded, [0, 1, 2], names)
    outputs = LabelledScore(model, examples, TaskOptions(max_length=32)).outputs()
    probabilities = torch.stack(plain_logits(model, examples)).softmax(-1).numpy()
    both = np.stack([probabilities[:, 1], probabilities[:, 0] + probabilities[:, 2]], 1)
    assert outputs.predicted.tolist() == both.argmax(1).tolist()
    assert outputs.losses == pytest.approx(-np.log(both[np.arange(N), examples.labels]), abs=1e-5)


def test_what_cannot_be_scored(made: Made, words: Any) -> None:
    loaded, examples = made("bert")
    bare = from_objects(build(FAMILIES["bert"]), words(), name="bare")
    with pytest.raises(
        BadInput, match="bare is a BertModel without a head for classify; fine-tune it first: outlierlens lab fin"
    ):
        LabelledScore(bare, examples, TaskOptions())
    with pytest.raises(BadInput, match="bert is a BertForSequenceClassification without a head for tokens"):
        LabelledScore(loaded, made("bert", "tokens")[1], TaskOptions())
    with pytest.raises(BadInput, match="has no tokenizer beside it"):
        LabelledScore(LoadedModel("x", loaded.model, None, loaded.head, loaded.stacks, {}), examples, TaskOptions())
    with pytest.raises(BadInput, match="bert has 3 outputs, and regress is a regression, which needs one"):
        LabelledScore(loaded, made("bert", "regress")[1], TaskOptions())
    tokens, words_of = made("bert", "tokens")
    with pytest.raises(BadInput, match="made up: a text has no labelled word within 2 tokens"):
        LabelledScore(tokens, words_of, TaskOptions(max_length=2))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_heads_that_read_the_last_token_need_to_know_padding(family: str, made: Made) -> None:
    loaded, examples = made(family, pad=None)
    with pytest.raises(BadInput, match=r"names no padding token, .* set pad_token_id = 0 in the config"):
        LabelledScore(loaded, examples, TaskOptions())
    loaded, examples = made(family, pad=3)  # another one than the tokenizer's
    said = torch.stack(plain_logits(loaded, examples)).argmax(-1)
    assert LabelledScore(loaded, examples, TaskOptions(max_length=32)).outputs().predicted.tolist() == said.tolist()
    empty = replace(examples, texts=("w1", "", *examples.texts[2:]))
    with pytest.raises(BadInput, match=f"made up, row 2: no token at all for {family}; leave such rows out"):
        LabelledScore(loaded, empty, TaskOptions(max_length=32))
