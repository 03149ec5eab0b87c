"""A tokenizer that knows more ids than the embeddings have rows: one line says which id came, wherever it comes."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from outlierlens.analyses.ablate import ablate
from outlierlens.analyses.embed_pass import Pooling, sentence_vectors
from outlierlens.analyses.observe import observe
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.folder import row_count
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.vectors.read import ReadOptions

KNOWN = Texts("known", tuple(f"w{i} w{i + 1} w{i + 2} w{i + 3}" for i in range(12)))
FOREIGN = Texts("foreign", (*KNOWN.texts, "w3 w38 w4"))
LINE = r"small: token id 43 \('w38'\) has no row: the embeddings have 40 rows; .*resize_token_embeddings\(55\)"


def small(words: Any, kind: str = "masked") -> LoadedModel:
    """40 rows, and a tokenizer of 55 ids."""
    family, head = ("bert", "MaskedLM") if kind == "masked" else ("gpt2", "CausalLM")
    return from_objects(build(FAMILIES[family], head), words(50, kind=kind), name="small")


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_an_id_without_a_row_is_named(words: Any, kind: str) -> None:
    loaded = small(words, kind)
    measures: list[Callable[[], Any]] = [
        lambda: observe(loaded, FOREIGN),
        lambda: ablate(loaded, FOREIGN, [2]),
        lambda: make_task(loaded, FOREIGN, TaskOptions()),
        lambda: make_task(loaded, FOREIGN, TaskOptions(name="output change")),
        lambda: sentence_vectors(loaded, FOREIGN.texts, Pooling(max_length=8), ReadOptions()),
    ]
    for measure in measures:
        with pytest.raises(BadInput, match=LINE):
            measure()


def test_texts_without_such_ids_are_read_and_masks_draw_none_of_them(words: Any) -> None:
    loaded = small(words)
    assert observe(loaded, KNOWN).about.n_texts == 12
    for seed in range(20):
        make_task(loaded, KNOWN, TaskOptions(seed=seed, mask_fraction=0.9)).per_text()


def test_the_remedy_works_and_padding_counts(words: Any) -> None:
    loaded = small(words, "causal")
    loaded.tokenizer.add_special_tokens({"pad_token": "[MORE]"})  # type: ignore[union-attr]
    padded = Texts("padded", ("w1 w2 w3", "w1 w2 w3 w4 w5"))
    with pytest.raises(BadInput, match=r"token id 55 \('\[MORE\]'\) has no row"):
        observe(loaded, padded)
    loaded.model.resize_token_embeddings(56)  # type: ignore[operator]
    assert observe(loaded, padded).about.n_texts == 2
    assert observe(loaded, FOREIGN).about.n_texts == 13


def test_only_such_models_are_watched_and_they_can_be_copied_and_sent(words: Any, tmp_path: Path) -> None:
    def hooks(loaded: LoadedModel) -> int:
        return sum(len(module._forward_pre_hooks) for module in loaded.model.modules())

    plain = from_objects(build(FAMILIES["bert"], "MaskedLM"), words(35))
    assert (row_count(plain.model), hooks(plain)) == (40, 0)
    loaded = small(words)
    from_objects(loaded.model, loaded.tokenizer)
    assert hooks(loaded) == 1
    for other in (copy.deepcopy(loaded.model), pickle.loads(pickle.dumps(loaded.model))):
        with pytest.raises(BadInput, match="token id 43"):
            other(input_ids=torch.tensor([[3, 43]]))
    assert row_count(build(FAMILIES["vit"])) is None
