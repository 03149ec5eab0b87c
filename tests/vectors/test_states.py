"""`ol.states`: the hidden states of transformers itself, token by token, with the tokens."""

import numpy as np
import pytest
import torch

import outlierlens as ol
from outlierlens.errors import BadInput
from planted import tiny

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
