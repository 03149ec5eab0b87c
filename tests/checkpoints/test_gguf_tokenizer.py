"""Tokenizers read out of GGUF files against those they were made of: SentencePiece itself, BERT's, byte-level BPE."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

import gguf_files
from llama_cpp import USER_DEFINED, byte_level, sentencepiece, wordpiece
from outlierlens.checkpoints.gguf_model import SPLITS, read_tokenizer
from outlierlens.data.texts import read_texts

HARD = (
    "It's 3.14159, isn't it?  I'LL SAY: 1234567 dollars ($50) — naïve CAFÉ, straße!",
    " leading and  double   spaces\tand tabs\n\nnew lines \r\n end ",
    "e\u0301te\u0301 ½ x² 你好,世界 日本語 한국어 العربية हिन्दी 🙂👍🏽 <|end|> www.example.org/a_b?c=d&e=1",
    "camelCaseWords HTTPServer don't DON'T we've 's 're a.b,c;d",
    "x" * 40 + "123456789012",
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [*read_texts("excerpt").texts, *read_texts("reviews").texts, *HARD]


def held(path: Path, tokenizer: dict[str, Any], architecture: str = "llama") -> Any:
    """The tokenizer that is read out of a file that holds this one."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in tokenizer.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[
            type(value)
        ]
        add(f"tokenizer.ggml.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), dtype=np.float32))
    gguf_files.write(writer)
    return read_tokenizer(path)


def split_by(pattern: str) -> Any:
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_alone])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
# As the published tokenizer.json of each has it, in its own words.
PUBLISHED = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama-bpe": split_by(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": split_by(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "tekken": split_by(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gpt-4o": split_by(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "bloom": split_by(r" ?[^(\s|[.,!?…。，、।۔،])]+"),
    "falcon": pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), GPT2, pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_tokens_are_those_of_the_tokenizer_it_was_made_of(
    pre: str, tmp_path: Path, texts: list[str]
) -> None:
    given, made = byte_level(texts, pre=pre, split=PUBLISHED[pre], size=1500)
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    read = held(tmp_path / "t.gguf", given)
    differ = [text for text in texts if read(text)["input_ids"] != made.encode(text).ids]
    assert differ == []
    assert read.decode(read("It's 12 o'clock.")["input_ids"]) == "It's 12 o'clock."
    ways = {SPLITS[one] for one in PUBLISHED}
    assert ways == set(SPLITS.values())  # every way to split has its line above


def test_ways_to_split_give_different_tokens(tmp_path: Path) -> None:
    """What the test above would not see: a name that is read as another. Merges reach over all that may be split."""
    found = {}
    given, _ = byte_level(HARD, split=split_by(r"[\s\S]{1,60}"), size=900)
    for pre in PUBLISHED:
        read = held(tmp_path / f"{pre}.gguf", given | {"pre": pre})
        found[pre] = tuple(tuple(read(text)["input_ids"]) for text in HARD)
    assert {(a, b) for a in found for b in found if a < b and found[a] == found[b]} == set()


def test_what_stands_before_and_behind_a_text(tmp_path: Path) -> None:
    given, _ = byte_level(HARD, size=300)
    plain = held(tmp_path / "a.gguf", given)("x")["input_ids"]
    both = held(tmp_path / "b.gguf", given | {"add_bos_token": True, "add_eos_token": True})
    assert both("x")["input_ids"] == [1, *plain, 2]
    assert both.bos_token_id == 1
    assert (both.eos_token, both.pad_token) == ("<|end|>", "<|pad|>")
    given.pop("add_bos_token")
    assert held(tmp_path / "c.gguf", given | {"pre": "llama-bpe"})("x")["input_ids"] == [1, *plain]
    assert held(tmp_path / "d.gguf", given)("x")["input_ids"] == plain
    roberta = held(tmp_path / "e.gguf", given | {"pre": "roberta-bpe", "add_bos_token": True})
    assert roberta("x")["input_ids"] == [1, *plain, 2]
    assert plain == held(tmp_path / "f.gguf", given)("x")["input_ids"]
    assert held(tmp_path / "g.gguf", given)("a<|end|>b")["input_ids"].count(2) == 1  # special tokens are never cut


def test_sentencepiece_bpe_is_sentencepiece(tmp_path: Path, texts: list[str]) -> None:
    given, library = sentencepiece(texts, kind="bpe", folder=tmp_path, size=1500)
    read = held(tmp_path / "t.gguf", given)
    assert [text for text in texts if read(text)["input_ids"] != library.encode(text)] == []
    assert read.decode(read("It is 12 o'clock.")["input_ids"]) == "It is 12 o'clock."
    assert held(tmp_path / "b.gguf", given | {"add_bos_token": True})("x")["input_ids"][0] == library.bos_id()
    bare = held(tmp_path / "c.gguf", given | {"add_space_prefix": False})
    assert bare("film")["input_ids"] != read("film")["input_ids"]
    assert bare(" film")["input_ids"] == read("film")["input_ids"]


def test_gemma_is_merged_in_the_order_of_its_tokens(tmp_path: Path, texts: list[str]) -> None:
    given, library = sentencepiece(texts, kind="bpe", folder=tmp_path, size=1500)
    unordered = given | {"scores": [-1000.0] * len(given["scores"])}
    read = held(tmp_path / "t.gguf", unordered, "gemma2")
    assert [text for text in texts if read(text)["input_ids"] != library.encode(text)] == []


def test_tokens_of_a_user_are_taken_whole(tmp_path: Path, texts: list[str]) -> None:
    given, library = sentencepiece(texts, kind="bpe", folder=tmp_path, size=1500)
    number = len(given["tokens"])
    given |= {
        "tokens": [*given["tokens"], "<think>"], "scores": [*given["scores"], -9e3],
        "token_type": [*given["token_type"], USER_DEFINED],
    }  # fmt: skip
    read = held(tmp_path / "t.gguf", given)
    assert number in read("so <think> it")["input_ids"]
    assert "<think>" not in read.all_special_tokens
    assert read("film")["input_ids"] == library.encode("film")


def test_unigrams_are_sentencepiece_s(tmp_path: Path, texts: list[str]) -> None:
    given, library = sentencepiece(texts, kind="unigram", folder=tmp_path, size=1000)
    read = held(tmp_path / "t.gguf", given)
    assert [text for text in texts if read(text)["input_ids"] != library.encode(text)] == []


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_is_bert_s(cased: bool, tmp_path: Path, texts: list[str]) -> None:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    learned = BertWordPieceTokenizer(lowercase=not cased)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    learned.train_from_iterator(texts, 800, special_tokens=special, show_progress=False)
    source = BertTokenizerFast(tokenizer_object=learned._tokenizer, do_lower_case=not cased)
    read = held(tmp_path / "t.gguf", wordpiece(source), "bert")
    assert [text for text in texts if read(text)["input_ids"] != source(text)["input_ids"]] == []
    assert (read.cls_token, read.sep_token, read.mask_token, read.pad_token) == ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
    assert read.tokenize("reading") == source.tokenize("reading")
