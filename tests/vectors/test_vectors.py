"""Vectors of spans from every layer, against plain loops over states of each text on its own; what cannot be read.

`ol.states`: the hidden states of transformers itself, token by token, with the tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import outlierlens as ol
from architectures import FAMILIES, REPRESENTATIVE, Family
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.load import LoadedModel
from outlierlens.vectors.read import (
    IN_MEMORY,
    ReadOptions,
    Spans,
    Tokens,
    allocate,
    check_matrices,
    final_norm,
    gather,
    text_stack,
    token_batches,
    tokenise,
)
from planted import Oracle, some_texts, tiny, wrap

SPANS = Spans(np.array([3, 0, 3, 1, 5]), np.array([0, 0, 1, 1, 2]), np.array([2, 9, 2, 1, 4]))


def expected(loaded: LoadedModel, texts: Texts, spans: Spans, special: bool) -> np.ndarray:
    """Mean states [layer, span, dim], text by text and without padding."""
    stack = text_stack(loaded, None).name
    oracle = Oracle(loaded, texts, 8)
    found = []
    for text, first, last in zip(spans.text, spans.first, spans.last, strict=True):
        ids = oracle.ids[text]
        ordinary = np.array(loaded.tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)) == 0
        place = np.arange(len(ids))
        kept = (place >= first) & (place < last) & (ordinary | special)
        layers = oracle.by_text[stack][text]
        found.append([layer[kept].mean(0) if kept.any() else np.zeros(layer.shape[1]) for layer in layers])
    return np.array(found).swapaxes(0, 1)


@pytest.mark.parametrize("family", REPRESENTATIVE, ids=lambda family: family.name)
def test_vectors_are_the_means_of_each_texts_own_states(family: Family, words: Callable[..., Any]) -> None:
    loaded = wrap(family, words())
    texts = some_texts(6, seed=1)
    tokens = tokenise(loaded, texts, max_length=8)
    for special in (False, True):
        got = gather(loaded, tokens, SPANS, ReadOptions(batch_size=4), special=special)
        wanted = expected(loaded, texts, SPANS, special)
        # float32 of the result, beside the oracle's float64
        np.testing.assert_allclose(got.values, wanted, rtol=2e-5, atol=2e-5)
        assert got.n_tokens[3] == 0
        assert not got.values[:, 3].any()


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_whole_texts_are_the_same_in_any_batch(batch_size: int, words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    texts = some_texts(7, seed=2)
    tokens = tokenise(loaded, texts, max_length=8)
    got = gather(loaded, tokens, tokens.sentences(), ReadOptions(batch_size=batch_size))
    np.testing.assert_allclose(got.values, expected(loaded, texts, tokens.sentences(), False), rtol=2e-5, atol=2e-5)
    assert got.n_tokens.tolist() == [len(tokens.ordinary(i)) for i in range(7)]


def test_layers_are_chosen_and_named(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    tokens = tokenise(loaded, some_texts(3), max_length=8)
    every = gather(loaded, tokens, tokens.sentences())
    assert every.layers == ("embeddings", "0", "1", "2")
    some = gather(loaded, tokens, tokens.sentences(), ReadOptions(layers=(2, EMBEDDINGS)))
    assert some.layers == ("2", "embeddings")
    np.testing.assert_array_equal(some.at("embeddings"), every.values[0])
    with pytest.raises(BadInput, match="no layer '0' was read; there are 2, embeddings"):
        some.at("0")
    with pytest.raises(BadInput, match="stream model has no layer 3; its blocks are 0 to 2"):
        gather(loaded, tokens, tokens.sentences(), ReadOptions(layers=(3,)))


def test_a_final_norm_is_applied_to_every_layer_before_the_mean(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["llama"], words())
    tokens = tokenise(loaded, ("w1 w2 w3",), max_length=8)
    stack = text_stack(loaded, None)
    norm = final_norm(loaded, stack)
    assert norm is not None
    got = gather(loaded, tokens, tokens.sentences(), ReadOptions(final_norm=True))
    for batch in token_batches(loaded, tokens):
        with torch.no_grad():
            wanted = [norm(states)[0][batch.ordinary[0]].mean(0).numpy() for states in batch.states]
    np.testing.assert_allclose(got.values[:, 0], np.array(wanted), rtol=1e-5, atol=1e-6)
    assert got.final_norm
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor([tokens.encoded["input_ids"][0]])}
        last = loaded.model(**inputs, output_hidden_states=True).hidden_states[-1][0]  # after the final norm
    np.testing.assert_allclose(got.at("2")[0], last[tokens.ordinary(0)].mean(0).numpy(), rtol=1e-5, atol=1e-6)
    bert = wrap(FAMILIES["bert"], words())
    assert not gather(bert, tokens, tokens.sentences(), ReadOptions(final_norm=True)).final_norm


def test_a_decoder_behind_an_encoder_reads_its_text_one_later(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bart"], words())
    tokens = tokenise(loaded, ("w1 w2 w3 w4",), max_length=8)
    ids = tokens.encoded["input_ids"][0]
    (batch,) = token_batches(loaded, tokens, ReadOptions(stack="decoder"))
    assert batch.ids[0].tolist() == [loaded.config["decoder_start_token_id"], *ids[:-1]]
    token = int(tokens.ordinary(0)[0])
    got = gather(loaded, tokens, tokens.single([0], [token]), ReadOptions(stack="decoder"))
    for layer, states in enumerate(batch.states):
        np.testing.assert_allclose(got.values[layer, 0], states[0, token + 1].numpy(), rtol=1e-5, atol=1e-6)


def test_words_are_the_tokens_that_their_characters_touch() -> None:
    offsets = (np.array([[0, 0], [0, 3], [3, 6], [7, 9], [0, 0]]),)
    special = (np.array([True, False, False, False, True]),)
    tokens = Tokens(("carry a",), {"input_ids": [[1, 7, 8, 9, 2]]}, special, offsets, 8)
    spans = tokens.words([0, 0, 0], [0, 7, 20], [6, 9, 25])
    assert spans.first.tolist() == [1, 3, 0]
    assert spans.last.tolist() == [3, 4, 0]
    slow = Tokens(tokens.texts, tokens.encoded, special, None, 8)
    with pytest.raises(
        BadInput, match="does not say where in the text its tokens stand; use the model's fast tokenizer"
    ):
        slow.words([0], [0], [1])


def test_a_text_without_a_token_has_no_vector(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["llama"], words())
    tokens = tokenise(loaded, ("", "w1"), max_length=8)
    got = gather(loaded, tokens, tokens.sentences(), special=True)
    assert got.n_tokens[1] >= 1
    assert (got.n_tokens[0] == 0) == (not got.values[:, 0].any())
    with pytest.raises(BadInput, match="no token in these texts"):
        gather(loaded, tokenise(loaded, (), max_length=8), Spans(*(np.zeros(0, dtype=np.int64),) * 3))


def test_states_that_are_not_finite_are_named(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    tokens = tokenise(loaded, ("w1 w2",), max_length=8)
    with torch.no_grad():
        dict(loaded.model.named_parameters())[loaded.stacks[0].scale[1][0].name].fill_(float("inf"))
    with pytest.raises(BadInput, match="layer 1: a state is NaN or infinite; use --dtype float32"):
        gather(loaded, tokens, tokens.sentences())


def test_bad_requests_are_clear(words: Callable[..., Any]) -> None:
    loaded = wrap(FAMILIES["bert"], words())
    with pytest.raises(BadInput, match="max_length is 1; it must be at least 2"):
        tokenise(loaded, ("w1",), max_length=1)
    with pytest.raises(BadInput, match="bert: this model has no tokenizer beside it"):
        tokenise(wrap(FAMILIES["bert"], None), ("w1",))
    tokens = tokenise(loaded, ("w1",), max_length=8)
    with pytest.raises(BadInput, match="batch_size is 0"):
        gather(loaded, tokens, tokens.sentences(), ReadOptions(batch_size=0))
    with pytest.raises(BadInput, match="--stack must be one of model, not 'decoder'"):
        gather(loaded, tokens, tokens.sentences(), ReadOptions(stack="decoder"))
    clip = wrap(FAMILIES["clip"], None)
    with pytest.raises(BadInput, match="has no stream that reads text"):
        text_stack(replace(clip, stacks=[clip.stack("vision")]), None)
    with pytest.raises(BadInput, match=r"3 × 1 × 16 need 0\.0 GB and the budget is 1e-09 GB; raise cache_gb"):
        gather(loaded, tokens, tokens.sentences(), ReadOptions(layers=(0, 1, 2), cache_gb=1e-9))


def test_large_arrays_lie_in_a_file_without_a_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shape = (2, IN_MEMORY // 8 + 1, 1)
    large = allocate(shape, 2)
    assert isinstance(large, np.memmap)
    assert list(tmp_path.iterdir()) == []
    large[1, -1] = 7
    assert large[1, -1, 0] == 7
    assert large[0, 0, 0] == 0
    assert not isinstance(allocate((2, 3), 2), np.memmap)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(BadInput, match=r"cannot hold them \(No space left on device\); set TMPDIR"):
        allocate((2, IN_MEMORY // 8 + 1, 1), 2)


def test_matrices_that_do_not_fit_are_told_before_they_are_made() -> None:
    check_matrices(2, 1000, 0.016, what="fixes")  # 2 × 10⁶ × 8 bytes
    with pytest.raises(
        BadInput, match=r"fixes: 33 matrices of 4,096 × 4,096 need 4\.4 GB .* budget is 4 GB; raise cache_gb"
    ):
        check_matrices(33, 4096, 4, what="fixes")


def test_layer_names_round_trip() -> None:
    assert layer_name(EMBEDDINGS) == "embeddings"


WORDS = ["A film worth seeing.", "No.", "It was long and dull, and so was I."]


def test_states_are_those_of_transformers_at_each_token() -> None:
    loaded = ol.load_model("mini-planted")
    found = ol.states(loaded, WORDS, batch_size=2)
    assert found.layers == (-1, *range(loaded.stacks[0].n_layers))
    for text, words in enumerate(WORDS):
        encoded = loaded.tokenizer(words, return_tensors="pt")
        with torch.inference_mode():
            states = loaded.model(**encoded, output_hidden_states=True).hidden_states
        mine = found.text == text
        assert [token for token, one in zip(found.tokens, mine, strict=True) if one] == encoded.tokens()
        assert found.position[mine].tolist() == list(range(len(encoded.tokens())))
        assert found.special[mine].tolist() == [True, *[False] * (len(encoded.tokens()) - 2), True]
        for layer, wanted in zip(found.layers, states, strict=True):
            np.testing.assert_allclose(found[layer][mine], wanted[0], atol=1e-5)


def test_chosen_layers_as_an_array_and_a_data_frame() -> None:
    found = ol.states("mini-planted", WORDS, layers=[3, 0])
    assert found.values.shape == (2, len(found.tokens), 128)
    frame = found.to_pandas([8, 9])
    row = frame[(frame.layer == 3) & (frame.text == 1) & (frame.position == 1)]
    assert (row.token.item(), row["8"].item()) == ("no", found[3][found.text == 1][1, 8])
    with pytest.raises(BadInput, match=r"layer 1 was not read; there are 3, 0"):
        found[1]
    with pytest.raises(BadInput, match="has no layer 9; its blocks are 0 to 3"):
        ol.states("mini-planted", WORDS, layers=[9])


def test_a_decoder_behind_an_encoder_has_the_tokens_that_it_reads() -> None:
    loaded = tiny("bart", "Seq2SeqLM")
    ids, start = [[5, 6, 7, 8], [9, 10]], loaded.model.config.decoder_start_token_id
    encoder, decoder = (ol.states(loaded, ids, layers=[0], stack=stack) for stack in ("encoder", "decoder"))
    assert encoder.position.tolist() == [0, 1, 2, 3, 0, 1]
    wanted = loaded.tokenizer.convert_ids_to_tokens([start, 5, 6, 7, start, 9])
    assert [token for token, place in zip(decoder.tokens, decoder.position, strict=True) if place < 4] == wanted
    with torch.inference_mode():
        read = loaded.model(
            torch.tensor(ids[:1]), decoder_input_ids=torch.tensor([[start, 5, 6, 7]]), output_hidden_states=True
        )
    np.testing.assert_allclose(decoder[0][decoder.text == 0][:4], read.decoder_hidden_states[1][0], atol=1e-5)


def test_without_a_tokenizer_tokens_are_ids() -> None:
    loaded = tiny("gpt2", "CausalLM")
    assert ol.states((loaded.model, None), [[5, 6]], layers=[0]).tokens == ("5", "6")
