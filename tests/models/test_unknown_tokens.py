"""Texts that a tokenizer does not know: said from 5 % of the tokens, refused where it knows none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, build
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.frequency_counts import count_texts
from outlierlens.analyses.observe import observe
from outlierlens.analyses.repair import RepairOptions, repair
from outlierlens.data.texts import Texts
from outlierlens.data.token_texts import special_ids, unknown_id
from outlierlens.detection.activations import ObserveOptions
from outlierlens.errors import BadInput
from outlierlens.models.inputs import check_known, token_ids
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.language_model import MaskedLoss
from outlierlens.vectors.read import tokenise
from tiny_tokenizers import byte_level, word_pieces

KNOWN = tuple(f"w{i} w{i + 1} w{i + 2} w{i + 3}" for i in range(12))
STRANGE = tuple(f"Wort{i} Satz" for i in range(6))
FEW = AblateOptions(n_random=2, n_matched=2)
UNKNOWN, SPECIAL = 4, {0, 1, 2, 3}  # of `words`


def model_of(family: str, head: str, words: Any, kind: str, told: list[str]) -> LoadedModel:
    made = from_objects(build(FAMILIES[family], head), words(kind=kind), name=family)
    return replace(made, notice=told.append)


@pytest.mark.parametrize(("family", "head", "kind"), [("bert", "MaskedLM", "masked"), ("gpt2", "CausalLM", "causal")])
def test_many_unknown_tokens_are_said_once_and_in_every_result(family: str, head: str, kind: str, words: Any) -> None:
    told: list[str] = []
    loaded = model_of(family, head, words, kind, told)
    mixed = Texts("mixed", (*KNOWN, *STRANGE))  # 48 tokens that are known, 12 that are not
    note = "20% of the tokens read are unknown to the tokenizer; it may not fit these texts (their language, script or case)"
    assert observe(loaded, mixed, ObserveOptions(max_length=32)).notes == (note,)
    assert ablate(loaded, mixed, [3], FEW).notes[0] == note
    assert [one for one in told if " times: about " not in one] == [f"{family}: {note}"]


@pytest.mark.parametrize(("family", "head", "kind"), [("bert", "MaskedLM", "masked"), ("gpt2", "CausalLM", "causal")])
def test_no_figure_where_every_token_is_unknown(family: str, head: str, kind: str, words: Any) -> None:
    texts = Texts("strange", STRANGE)
    for measure in (
        observe,
        lambda loaded, texts: ablate(loaded, texts, [3], FEW),
        tokenise,
        lambda loaded, texts: count_texts(loaded.tokenizer, texts.texts),
    ):
        with pytest.raises(BadInput, match="knows none of the 12 tokens"):
            measure(model_of(family, head, words, kind, []), texts)


def test_one_strange_text_among_others_is_no_reason_to_refuse(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked", [])
    found = MaskedLoss(loaded, (STRANGE[0], *KNOWN), TaskOptions(max_length=32))
    assert found.n_texts == 13


def test_the_unknown_token_is_masked_and_scored_like_any_word(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked", [])
    half = tuple(f"Satz w{i}" for i in range(20))
    task = MaskedLoss(loaded, half, TaskOptions(max_length=32, mask_fraction=0.5))
    targets = {token for feed in task.feeds(range(20)) for token in feed.targets.tolist()}
    assert UNKNOWN in targets
    assert not targets & SPECIAL
    found = observe(loaded, Texts("half", half))
    assert found.n_special == 40  # [CLS] and [SEP]
    with torch.no_grad():
        states = [
            loaded.model(input_ids=torch.tensor([[1, 4, 5 + i, 2]]), output_hidden_states=True).hidden_states[-1][
                0, 1:3
            ]
            for i in range(20)
        ]
    wanted = torch.cat(states).abs().max(0).values.numpy()
    np.testing.assert_allclose(found.stacks[0].view("without_special").abs_max[-1], wanted, atol=1e-5)


def test_what_counts_as_unknown(words: Any) -> None:
    assert (unknown_id(words()), special_ids(words())) == (UNKNOWN, SPECIAL)
    assert (unknown_id(word_pieces()), special_ids(word_pieces())) == (1, {0, 2, 3, 4})
    assert unknown_id(byte_level()) == 3
    ends = byte_level()
    ends.unk_token = "</s>"  # as GPT-2's: the token that ends texts stands for no unknown word
    assert unknown_id(ends) is None
    assert 2 in special_ids(ends)
    silent = words()
    silent.unk_token = None
    assert unknown_id(silent) == UNKNOWN  # what is inside of the tokenizer says it


def test_counting_takes_unknown_tokens_by_the_text(words: Any) -> None:
    loaded = model_of("gpt2", "CausalLM", words, "causal", [])
    assert token_ids(loaded, "w1 Satz") == [6, UNKNOWN]
    check_known(loaded, [[6, 7]])
    assert (loaded.known.n, loaded.known.unknown) == (4, 1)


def test_a_vocabulary_alone_says_whether_capitals_count(run: Any, tmp_path: Path) -> None:
    """Old folders hold a vocab.txt and nothing that says whether texts are lower-cased, which BERT's tokenizer does."""
    folder = tmp_path / "protein"
    build(FAMILIES["bert"], "MaskedLM").save_pretrained(folder)
    (folder / "vocab.txt").write_text(
        "\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCW"))
    )
    (tmp_path / "chains.txt").write_text("L A G V\nE S I K\n")
    code, _, err = run("observe", str(folder), "--data", str(tmp_path / "chains.txt"))
    assert code == 0, err
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    code, _, err = run("observe", str(folder), "--data", str(tmp_path / "chains.txt"))
    assert code == 1
    assert "(--model-args tokenizer=FOLDER)" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.txt").write_text((folder / "vocab.txt").read_text())
    code, _, err = run(
        "observe",
        str(folder),
        "--data",
        str(tmp_path / "chains.txt"),
        "--model-args",
        f"tokenizer={tmp_path / 'other'}",
    )
    assert code == 0, err


def test_word_pieces_are_read_where_the_family_has_files_of_another_kind(run: Any, tmp_path: Path) -> None:
    """ALBERT's own tokenizer reads a spiece.model; models of reactions and of Chinese come with a vocab.txt."""
    folder = tmp_path / "reactions"
    build(FAMILIES["albert"], "MaskedLM").save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"CcONn()=12")))
    (folder / "tokenizer_config.json").write_text("{}")
    (tmp_path / "reactions.txt").write_text("C C ( = O ) O\nc 1 c c c 2 c c 1 N\n")
    code, _, err = run("observe", str(folder), "--data", str(tmp_path / "reactions.txt"))
    assert code == 0, err
    assert "unknown" not in err


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_tokenizer_json_alone_says_whether_capitals_count(family: str, cased: bool, tmp_path: Path) -> None:
    """AutoTokenizer makes BERT's tokenizer anew and lower-cases, whatever the file's normalizer says."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from outlierlens.models.load import load_model

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "He", "cafe", "café"]
    made = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    build(FAMILIES[family]).save_pretrained(tmp_path)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer: Any = load_model(str(tmp_path)).tokenizer
    assert (
        tokenizer.tokenize("He café") == made.encode("He café").tokens == (["He", "café"] if cased else ["he", "cafe"])
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": cased})
    )  # said elsewhere: not overruled
    tokenizer = load_model(str(tmp_path)).tokenizer
    assert tokenizer.tokenize("He") == (["he"] if cased else ["He"])


def test_a_copy_is_not_checked_on_unknown_tokens_alone(words: Any, tmp_path: Path) -> None:
    build(FAMILIES["llama"], "CausalLM").save_pretrained(tmp_path / "model")
    words(kind="causal").save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match="knows none of the 12 tokens"):
        repair(str(tmp_path / "model"), tmp_path / "made", RepairOptions(fit="fp16"), texts=Texts("strange", STRANGE))
