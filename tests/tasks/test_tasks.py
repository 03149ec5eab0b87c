"""Tasks against plain loops: one text at a time, full logits, no padding."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens.ablation.switches import zeroed_weights
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.tasks.base import TaskOptions, cheapest_cuts, log_sum_exp_, weighted_mean
from outlierlens.tasks.choice import make_task

TEXTS = [" ".join(f"w{(7 * i + j) % 35}" for j in range(n)) for i, n in enumerate((3, 20, 9, 14, 2))]
MASKED = ("bert", "distilbert", "mpnet", "roberta", "electra-generator", "albert", "deberta-v2", "modernbert")
MASKED += ("outlierlens-bert-rmsnorm", "outlierlens-bert-pre-norm")
CAUSAL = ("gpt2", "llama", "opt", "gpt_neox", "gemma2", "olmo2", "qwen3", "bloom")


def model_of(family: str, head: str, words: Any, **tokenizer: Any) -> LoadedModel:
    loaded = from_objects(build(FAMILIES[family], head), name=family)
    return LoadedModel(family, loaded.model, words(**tokenizer), loaded.head, loaded.stacks, loaded.config)


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("side", ["right", "left"])
def test_causal_loss_is_that_of_a_plain_loop(family: str, side: str, words: Any) -> None:
    loaded = model_of(family, "CausalLM", words, kind="causal", side=side)
    assert loaded.head == "causal"
    values, weights = make_task(loaded, TEXTS, TaskOptions(max_length=32, batch_size=3)).per_text()
    for text, value, weight in zip(TEXTS, values, weights, strict=True):
        ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, :-1].float()
        expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
        assert weight == ids.shape[1] - 1
        assert value == pytest.approx(float(expected), rel=2e-5)


def test_every_token_is_predicted_once_whatever_the_stride(words: Any) -> None:
    loaded = model_of("gpt2", "CausalLM", words, kind="causal")
    text = " ".join(f"w{i % 35}" for i in range(50))
    ids = loaded.tokenizer(text)["input_ids"]
    for stride in (None, 1, 3, 6, 7):
        task: Any = make_task(loaded, [text], TaskOptions(max_length=8, stride=stride))
        windows = task._windows(0, text)
        predicted = [
            (window.ids, i, t) for window in windows for i, t in zip(window.positions, window.targets, strict=True)
        ]
        assert [target for _, _, target in predicted] == ids[1:]
        assert all(window[i + 1 :][:1] in ([target], []) for window, i, target in predicted)
        assert all(len(window.ids) <= 8 for window in windows)


ADDED = {"causal": [], "begun": [1], "ended": [], "masked": [1]}  # what each kind of tokenizer puts in front


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize(("blocks", "stride"), [(True, None), (False, None), (False, 3)])
def test_windows_and_blocks_begin_as_the_tokenizer_begins_a_text(
    family: str, kind: str, blocks: bool, stride: int | None, words: Any
) -> None:
    """Token by token, each from what stands before it in its window: no batches, no padding, no parts of a vocabulary."""
    loaded = model_of(family, "CausalLM", words, kind=kind)
    task = make_task(loaded, TEXTS, TaskOptions(max_length=8, stride=stride, blocks=blocks, batch_size=3))
    front = ADDED[kind]
    room = 8 - len(front)
    plain = [[5 + int(word[1:]) for word in text.split()] for text in TEXTS]
    if blocks:
        joined = [token for text in plain for token in text]
        plain = [joined[i : i + room] for i in range(0, len(joined) - room + 1, room)]
    expected = []
    for ids in plain:
        losses = []
        for i in range(0 if front else 1, len(ids)):
            start = 0
            while i >= start + room:
                start += stride or room - 1
            with torch.no_grad():
                logits = loaded.model(input_ids=torch.tensor([front + ids[start:i]])).logits[0, -1]
            losses.append(float(torch.nn.functional.cross_entropy(logits[None], torch.tensor(ids[i : i + 1]))))
        expected.append(losses)
    values, weights = task.per_text()
    assert weights.tolist() == [len(losses) for losses in expected]
    assert values == pytest.approx([np.mean(losses) for losses in expected], rel=2e-5)
    what = "block" if blocks else "window"
    begins = f"every {what} begins with [CLS], as the tokenizer begins a text: among its 8 tokens, and not predicted"
    ends = "[SEP], which the tokenizer puts behind a text, is left out"
    assert task.notes == (begins,) * len(front) + (ends,) * (kind in ("ended", "masked"))


def test_a_window_may_hold_one_token_of_a_text_but_not_none(words: Any) -> None:
    loaded = model_of("llama", "CausalLM", words, kind="begun")
    task: Any = make_task(loaded, ["w1 w2 w3"], TaskOptions(max_length=2))
    assert [(window.ids, window.targets) for window in task._windows(0, "w1 w2 w3")] == [
        ([1, 6], [6]), ([1, 7], [7]), ([1, 8], [8]),
    ]  # fmt: skip
    twice = model_of("llama", "CausalLM", words, kind="begun twice")
    with pytest.raises(BadInput, match=r"windows of 2 tokens hold none of a text.* ask for at least 3"):
        make_task(twice, ["w1 w2 w3"], TaskOptions(max_length=2))
    assert make_task(twice, ["w1 w2 w3"], TaskOptions(max_length=3)).n_tokens == 3


def test_stride_one_gives_full_context(words: Any) -> None:
    loaded = model_of("gpt2", "CausalLM", words, kind="causal")
    text = " ".join(f"w{(3 * i) % 35}" for i in range(12))
    values, _ = make_task(loaded, [text], TaskOptions(max_length=6, stride=1)).per_text()
    ids = torch.tensor(loaded.tokenizer(text)["input_ids"])
    losses = []
    for target in range(1, len(ids)):
        start = max(0, target - 5)
        window = ids[max(0, start) : target][None]
        with torch.no_grad():
            logits = loaded.model(input_ids=window).logits[0, -1]
        losses.append(float(torch.nn.functional.cross_entropy(logits[None], ids[target][None])))
    # A window of six tokens that moves by one predicts each later token from the five before it.
    assert values[0] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("family", MASKED)
def test_masked_loss_is_that_of_a_plain_loop(family: str, words: Any) -> None:
    loaded = model_of(family, "MaskedLM", words)
    assert loaded.head == "masked"
    task: Any = make_task(loaded, TEXTS, TaskOptions(max_length=32, batch_size=2, seed=5))
    values, weights = task.per_text()
    for number, text in enumerate(TEXTS):
        (window,) = task._windows(number, text)
        ids = torch.tensor([window.ids])
        with torch.no_grad():
            logits = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float()
        expected = torch.nn.functional.cross_entropy(logits[window.positions], torch.tensor(window.targets))
        assert values[number] == pytest.approx(float(expected), rel=2e-5)
        assert weights[number] == len(window.positions)


def test_a_tagger_in_a_masked_models_clothes_is_read_by_its_outputs(words: Any) -> None:
    """Without a mask token there is no masked loss; the outputs' change is measured, 0 while the model is intact."""
    tokenizer = words()
    tokenizer.mask_token = None
    loaded = from_objects(build(FAMILIES["albert"], "MaskedLM"), tokenizer, name="albert")
    task = make_task(loaded, TEXTS, TaskOptions())
    assert (loaded.head, task.name) == ("other", "output change")
    assert task.per_text()[0] == pytest.approx([0.0] * len(TEXTS), abs=1e-6)
    with pytest.raises(
        BadInput, match="has no head, or no mask token, for 'masked loss'; the task that fits it is 'output"
    ):
        make_task(loaded, TEXTS, TaskOptions(name="masked loss"))


def test_masks_are_seeded_and_spare_special_tokens(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words)
    text = " ".join(f"w{i % 35}" for i in range(4000))
    options = TaskOptions(max_length=4096, seed=1)
    task: Any = make_task(loaded, ["w1 w2"], options)
    task.max_length = 4096  # beyond the tiny model's positions: only the masks are looked at
    (window,), (again,) = task._windows(0, text), task._windows(0, text)
    assert window == again
    (other,) = task._windows(1, text)
    assert other.positions != window.positions
    ids = loaded.tokenizer(text)["input_ids"]
    assert 0 not in window.positions
    assert len(ids) - 1 not in window.positions
    assert [ids[i] for i in window.positions] == window.targets
    assert len(window.positions) / 4000 == pytest.approx(0.15, abs=0.03)
    masked = sum(window.ids[i] == 3 for i in window.positions) / len(window.positions)
    kept = sum(window.ids[i] == ids[i] for i in window.positions) / len(window.positions)
    assert masked == pytest.approx(0.8, abs=0.07)
    assert kept == pytest.approx(0.1 + 0.1 / 40, abs=0.06)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", ""),
        ("gpt2", ""),
        ("bert", "TokenClassification"),
        ("t5", ""),
        ("bart", ""),
        ("electra-discriminator", "PreTraining"),
    ],
)
def test_output_change_is_zero_intact_and_positive_ablated(family: str, head: str, words: Any) -> None:
    loaded = model_of(family, head, words)
    task = make_task(loaded, TEXTS)
    assert task.name == "output change"
    values, weights = task.per_text()
    assert values == pytest.approx(np.zeros(5), abs=1e-6)
    assert weights.tolist() == [len(loaded.tokenizer(text)["input_ids"]) for text in TEXTS]
    with zeroed_weights(loaded, [3, 4, 5], stack=loaded.stacks[-1].name):
        changed, _ = task.per_text()
    assert (changed > 1e-6).all()
    assert set(task.also()) >= {"cosine distance", "relative change", "pooled cosine distance"}


@pytest.mark.parametrize(
    ("family", "head", "kind"),
    [("gpt2", "CausalLM", "causal"), ("bert", "MaskedLM", "masked"), ("bert", "TokenClassification", "masked")],
)
def test_output_change_of_models_with_logits_is_that_of_their_distribution(
    family: str, head: str, kind: str, words: Any
) -> None:
    loaded = model_of(family, head, words, kind=kind)
    task = make_task(loaded, TEXTS[:1], TaskOptions(name="output change"))
    ids = loaded.tokenizer(TEXTS[0], return_tensors="pt")
    inputs = {key: ids[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        before = loaded.model(**inputs).logits[0].log_softmax(-1)
        with zeroed_weights(loaded, [3]):
            after = loaded.model(**inputs).logits[0].log_softmax(-1)
            (value,), _ = task.per_text()
    assert task.unit == "KL divergence (nats)"
    assert value == pytest.approx(float((before.exp() * (before - after)).sum(-1).mean()), rel=1e-4)


def test_a_head_without_logits_is_compared_by_vectors(words: Any) -> None:
    loaded = model_of("bert", "QuestionAnswering", words)
    task = make_task(loaded, TEXTS)
    assert task.unit == "cosine distance"
    with zeroed_weights(loaded, [3, 4]):
        assert (task.per_text()[0] > 1e-6).all()


def test_long_limits_are_cut_to_the_model_s_positions(words: Any) -> None:
    text = " ".join(f"w{i % 35}" for i in range(100))
    for family, head, kind in (("bert", "", "masked"), ("gpt2", "CausalLM", "causal"), ("bert", "MaskedLM", "masked")):
        values, _ = make_task(model_of(family, head, words, kind=kind), [text], TaskOptions(max_length=1024)).per_text()
        assert len(values) == 1


def test_wrong_task_and_short_texts(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words)
    with pytest.raises(BadInput, match="no head for 'causal loss'; the task that fits it is 'masked loss'"):
        make_task(loaded, TEXTS, TaskOptions(name="causal loss"))
    causal = model_of("gpt2", "CausalLM", words, kind="causal")
    with pytest.raises(BadInput, match="no text has a token to predict"):
        make_task(causal, ["w1"])
    with pytest.raises(BadInput, match="stride is 0"):
        TaskOptions(stride=0)


def test_weighted_mean() -> None:
    assert weighted_mean(np.array([1.0, 4.0]), np.array([3.0, 1.0])) == pytest.approx(1.75)


def test_a_pass_holds_no_more_texts_than_asked_and_no_more_tokens_than_do_well(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model_of("llama", "CausalLM", words, kind="causal")
    texts = [" ".join(f"w{(5 * i + j) % 35}" for j in range(20)) for i in range(12)]

    def rows(batch_size: int) -> list[int]:
        task: Any = make_task(loaded, texts, TaskOptions(max_length=32, batch_size=batch_size))
        return [len(feed.slots) for feed in task._passes]

    assert rows(5) == [5, 5, 2]
    monkeypatch.setattr("outlierlens.models.devices.TOKENS_AT_ONCE", {"cpu": 80})
    assert rows(5) == [4, 4, 4]
    assert rows(3) == [3, 3, 3, 3]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), tokens=st.integers(1, 40), start=st.integers(0, 12)
)  # fmt: skip
def test_no_way_to_cut_computes_less(lengths: list[int], tokens: int, start: int) -> None:
    """Against every way to cut the rows where their length changes."""
    rows = np.array(sorted(lengths, reverse=True))
    cuts = cheapest_cuts(rows, tokens=tokens, start=start)
    assert [row for part in cuts for row in range(len(rows))[part]] == list(range(len(rows)))
    for part in cuts:
        assert len(rows[part]) == 1 or rows[part].max() * len(rows[part]) <= tokens

    def cost(begin: int, end: int) -> int:
        fitting = max(1, tokens // int(rows[begin]))
        return int(rows[begin]) * (end - begin) + start * -(-(end - begin) // fitting)

    places = [row for row in range(1, len(rows)) if rows[row] != rows[row - 1]]
    ways = (chosen for n in range(len(places) + 1) for chosen in combinations(places, n))
    least = min(sum(cost(a, b) for a, b in pairwise((0, *way, len(rows)))) for way in ways)
    computed = sum(int(rows[part].max()) * len(rows[part]) + start for part in cuts)
    assert computed <= least
    assert cheapest_cuts(rows[:0], tokens=tokens, start=start) == []


@pytest.mark.parametrize("family", MASKED)
def test_a_narrowed_last_mlp_gives_the_same_loss_from_fewer_tokens(family: str, words: Any) -> None:
    task = make_task(model_of(family, "MaskedLM", words), TEXTS, TaskOptions(max_length=32, batch_size=3))
    seen: list[int] = []
    head = task.loaded.model.get_output_embeddings()
    before_head = next(
        module
        for module in reversed(list(task.loaded.model.modules()))
        if isinstance(module, torch.nn.Linear) and module is not head
    )
    hook = before_head.register_forward_hook(lambda module, args, output: seen.append(output[..., 0].numel()))
    with torch.inference_mode():
        feeds = list(task.feeds(range(task.n_texts)))
        whole = [task.sums(feed) for feed in feeds]
        n_whole = sum(seen)
        with task.narrowed():
            seen.clear()
            narrow = [task.sums(feed) for feed in feeds]
            n_narrow = sum(seen)
        seen.clear()
        again = [task.sums(feed) for feed in feeds]
    hook.remove()
    for one, other, third in zip(whole, narrow, again, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
        assert torch.equal(one, third)
    assert sum(seen) == n_whole
    wide = ("albert", "modernbert", "outlierlens-bert-rmsnorm", "outlierlens-bert-pre-norm")  # no norm is known there
    assert (n_narrow < n_whole / 2) == (family not in wide)


def test_the_loss_of_infinite_logits_is_infinite() -> None:
    infinite = float("inf")
    logits = torch.tensor(
        [[0.5, -1.0, 2.0], [infinite, 0.0, 1.0], [-infinite, -infinite, -infinite], [100.0, 1.0, -infinite]]
    )
    torch.testing.assert_close(log_sum_exp_(logits.clone()), logits.logsumexp(-1))
