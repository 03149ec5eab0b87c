"""Models whose predictions are known by hand: one dimension of what the head reads says the log frequency of every token.

With it the predicted distribution is the corpus' own; without it, it is `RARE` a little before all others.
"""

from typing import Any

import numpy as np

from outlierlens.data.token_counts import TokenCounts
from outlierlens.models.load import LoadedModel, from_objects

N_TYPES, SPECIAL, UNKNOWN, FREQUENCY, OTHER, RARE = 40, 4, 4, 3, 9, 37
LEAD = 0.5  # logit of `RARE` over the others without the dimension


def counts() -> TokenCounts:
    """Zipfian counts of w0, w1, …, fewer of the unknown word; the special tokens have none."""
    found = np.zeros(N_TYPES, dtype=np.int64)
    found[UNKNOWN] = 25
    found[UNKNOWN + 1 :] = 1000 // np.arange(1, N_TYPES - UNKNOWN)
    tokens = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{i}" for i in range(N_TYPES - UNKNOWN - 1)))
    return TokenCounts(found, np.zeros(N_TYPES, dtype=np.int64), tokens, 10, "counted by hand")


def probability() -> np.ndarray:
    """The corpus' distribution with one occurrence added to every ordinary type, float64 [type]."""
    added = np.where(np.arange(N_TYPES) < SPECIAL, 0.0, counts().counts + 1.0)
    return added / added.sum()


def head_column() -> np.ndarray:
    """Weights of the dimension in the vocabulary matrix: with `OTHER`'s, logits are ln of the probability."""
    column = np.log(np.where(probability() > 0, probability(), 1e-12))  # special tokens are out of reach
    column[RARE] -= LEAD
    return column


def causal(words: Any) -> LoadedModel:
    """A GPT-2 whose last norm gives the same vector everywhere: 1 in `FREQUENCY` and in `OTHER`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=N_TYPES, n_positions=32, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.zero_()
        model.transformer.ln_f.bias[[FREQUENCY, OTHER]] = 1.0
        _plant(model.lm_head.weight)
    return from_objects(model, words(kind="causal"), name="planted-gpt2")


def masked(words: Any, n_layers: int = 1) -> LoadedModel:
    """A BERT whose head's norm gives the same vector everywhere, likewise."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=N_TYPES, hidden_size=16, num_hidden_layers=n_layers, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForMaskedLM(config).eval()
    with torch.no_grad():
        norm = model.cls.predictions.transform.LayerNorm
        norm.weight.zero_()
        norm.bias.zero_()
        norm.bias[[FREQUENCY, OTHER]] = 1.0
        _plant(model.cls.predictions.decoder.weight)
        model.cls.predictions.decoder.bias.zero_()
    return from_objects(model, words(), name="planted-bert")


def _plant(weight: Any) -> None:
    import torch

    weight.zero_()
    weight[:, FREQUENCY] = torch.tensor(head_column(), dtype=torch.float32)
    weight[RARE, OTHER] = LEAD
    weight[:SPECIAL, OTHER] = -30.0  # special tokens stay out of reach without the dimension too
