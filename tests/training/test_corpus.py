"""Text becomes rows on disk: several files, packings, held-out texts, batches, and the cache."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.errors import BadFile, BadInput
from outlierlens.training.pretrain import corpus
from outlierlens.training.pretrain.corpus import PackedTokens, prepare
from outlierlens.training.pretrain.recipe import DataRecipe, Recipe, TokenizerRecipe
from outlierlens.training.pretrain.rows import HELD_OUT_EPOCH, PackedRows, TrainingRows

FIVE = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
STORY = ["the cat sat . it ran !", "a dog barked ? no . yes .", "the end ."]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; the folder that rows are made in."""
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pretrain"


@pytest.fixture
def tokenizer(tmp_path: Path, words: Any) -> str:
    """The folder of a tokenizer over w0 … w34."""
    words(35).save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
def reading(tokenizer: str, tmp_path: Path) -> Callable[..., PackedTokens]:
    """Prepare rows of some files with that tokenizer, a text per sentence, every second text held out by default."""

    def read(*sources: Path | str, progress: Callable[[str], None] = lambda line: None, **data: Any) -> PackedTokens:
        settings = {"sentences": "lines", "min_characters": 1, "length": 8, "validation": 0.49, **data}
        recipe = Recipe(
            "tiny", data=DataRecipe(source=tuple(map(str, sources)), **settings), tokenizer=TokenizerRecipe(tokenizer)
        )
        return prepare(recipe, progress=progress)

    return read


def lines(folder: Path, name: str, texts: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


def read_back(rows: np.ndarray) -> list[str]:
    """Rows as words: ids from 5 are w0, w1, …"""
    return [" ".join(FIVE[token] if token < 5 else f"w{token - 5}" for token in row) for row in rows]


def test_texts_of_several_files_in_order_and_every_second_held_out(
    reading: Callable[..., PackedTokens], tmp_path: Path
) -> None:
    one = lines(tmp_path, "a.txt", ["w0 w1", "w2 w3 w4", "", "w5"])
    two = lines(tmp_path, "b.jsonl", [json.dumps({"id": n, "text": text}) for n, text in enumerate(["w6 w7", "w8"])])
    three = tmp_path / "c.csv"
    three.write_text('text,label\n"w9, w10",1\nw11,0\n')
    made = reading(one, two, three, packing="lines")
    # Of w0 w1 | w2 w3 w4 | w5 | w6 w7 | w8 | w9, w10 | w11 the first, third, … are held out.
    pad = " [PAD]"
    assert read_back(made.train) == [
        f"[CLS] w2 w3 w4 [SEP]{3 * pad}",
        f"[CLS] w6 w7 [SEP]{4 * pad}",
        f"[CLS] [UNK] w10 [SEP]{4 * pad}",
    ]
    assert read_back(made.validation) == [
        f"[CLS] w0 w1 [SEP]{4 * pad}",
        f"[CLS] w5 [SEP]{5 * pad}",
        f"[CLS] w8 [SEP]{5 * pad}",
        f"[CLS] w11 [SEP]{5 * pad}",
    ]
    assert made.held_out == ("w0 w1", "w5", "w8", "w11")
    expected = np.zeros(40, dtype=int)
    for token, count in {0: 11, 1: 3, 2: 3, 4: 1, 7: 1, 8: 1, 9: 1, 11: 1, 12: 1, 15: 1}.items():
        expected[token] = count
    np.testing.assert_array_equal(made.counts, expected)
    assert made.special == (0, 1, 2, 3)  # [UNK], 4, stands for a word


@pytest.mark.parametrize(("validation", "every"), [(0.49, 2), (0.34, 3), (0.1, 10), (0.01, 100)])
def test_the_share_that_is_held_out(
    validation: float, every: int, reading: Callable[..., PackedTokens], tmp_path: Path
) -> None:
    texts = [f"w{number % 35}" for number in range(205)]
    made = reading(lines(tmp_path, "a.txt", texts), packing="lines", validation=validation)
    assert list(made.held_out) == texts[::every]
    assert read_back(made.train[:, 1:2]) == [text for number, text in enumerate(texts) if number % every]
    assert len(made.validation) + len(made.train) == 205


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        # Sentences: the cat sat . | it ran ! | a dog barked ? | no . | yes . | the end .
        (
            "sentences",
            [
                "[CLS] the cat sat . [SEP] [CLS] it",
                "ran ! [SEP] [CLS] a dog barked ?",
                "[SEP] [CLS] no . [SEP] [CLS] yes .",
            ],
        ),
        (
            "split",
            [
                "[CLS] the cat sat . [SEP] it ran",
                "[CLS] ! [SEP] a dog barked ? [SEP]",
                "[CLS] no . [SEP] yes . [SEP] the",
            ],
        ),
        (
            "one-sep",
            ["[CLS] the cat sat . it ran [SEP]", "[CLS] ! a dog barked ? no [SEP]", "[CLS] . yes . the end . [SEP]"],
        ),
        (
            "lines",
            [
                "[CLS] the cat sat . [SEP] [PAD] [PAD]",
                "[CLS] it ran ! [SEP] [PAD] [PAD] [PAD]",
                "[CLS] a dog barked ? [SEP] [PAD] [PAD]",
                "[CLS] no . [SEP] [PAD] [PAD] [PAD] [PAD]",
                "[CLS] yes . [SEP] [PAD] [PAD] [PAD] [PAD]",
                "[CLS] the end . [SEP] [PAD] [PAD] [PAD]",
            ],
        ),
    ],
)
def test_text_to_rows_by_hand(packing: str, expected: list[str], tmp_path: Path) -> None:
    """From text through sentences and tokens to rows of 8, as Puccetti et al. describe SPLIT and ONE_SEP."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    names = [*FIVE, *sorted({word for text in STORY for word in text.split()})]
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    special = dict(zip(("pad_token", "cls_token", "sep_token", "mask_token", "unk_token"), FIVE, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(tmp_path / "story")
    texts = [text.replace(" .", ".").replace(" !", "!").replace(" ?", "?") for text in STORY]
    source = lines(tmp_path, "story.txt", [line for text in texts for line in ("the cat. the dog. the end.", text)])
    data = DataRecipe((str(source),), min_characters=1, packing=packing, length=8, validation=0.49)  # type: ignore[arg-type]
    made = prepare(Recipe("x", data=data, tokenizer=TokenizerRecipe(str(tmp_path / "story"))), progress=lambda _: None)
    assert [" ".join(names[token] for token in row) for row in made.train] == expected


def made_folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_rows_are_made_once_for_equal_content(
    reading: Callable[..., PackedTokens], tmp_path: Path, cache: Path
) -> None:
    said: list[str] = []
    source = lines(tmp_path, "a.txt", ["w1 w2", "w3 w4"] * 3)
    first = reading(source, packing="lines", progress=said.append)
    assert len(said) == 2
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(source, tmp_path / "elsewhere" / "b.txt")
    again = reading(copy, packing="lines", progress=said.append)
    assert again.folder == first.folder
    assert len(said) == 2
    np.testing.assert_array_equal(again.train, first.train)
    assert made_folders(cache) == [first.folder.name]


def test_other_content_settings_order_or_kind_of_file_are_other_rows(
    reading: Callable[..., PackedTokens], tmp_path: Path, cache: Path, tokenizer: str, words: Any
) -> None:
    one = lines(tmp_path, "a.txt", ["text", "w3 w4", "w5"] * 3)
    other = lines(tmp_path, "b.txt", ["text", "w3 w4", "w6"] * 3)
    folders = [
        reading(one, packing="lines").folder,
        reading(other, packing="lines").folder,
        reading(one, other, packing="lines").folder,
        reading(other, one, packing="lines").folder,
        reading(one, packing="lines", length=9).folder,
        reading(one, packing="split").folder,
        # The same bytes with a header that is one.
        reading(shutil.copy(one, tmp_path / "a.csv"), packing="lines").folder,
    ]
    words(30).save_pretrained(tokenizer)
    folders.append(reading(one, packing="lines").folder)
    assert len(set(folders)) == len(folders) == len(made_folders(cache))


def test_two_bytes_a_token_where_they_suffice(tmp_path: Path) -> None:
    for n_vocabulary, kind in ((2**16, np.uint16), (2**16 + 1, np.uint32)):
        path = tmp_path / f"{n_vocabulary}.bin"
        rows = [[n_vocabulary - 1, 0, 1], [2, 3, 4]]
        corpus._write_rows(path, iter(rows), n_vocabulary, 3)
        stored = corpus._rows(path, n_vocabulary, 3)
        assert stored.dtype == kind
        assert stored.tolist() == rows


def test_more_rows_than_are_written_at_once(
    reading: Callable[..., PackedTokens], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(corpus, "TEXTS_AT_ONCE", 4)
    texts = [f"w{number % 35} w{number // 35}" for number in range(100)]
    made = reading(lines(tmp_path, "a.txt", texts), packing="lines")
    assert read_back(made.train[:, 1:3]) == texts[1::2]
    assert read_back(made.validation[:, 1:3]) == texts[::2]
    assert isinstance(made.train, np.memmap)
    assert made.counts.sum() == made.train.size


@pytest.mark.parametrize("change", [{"flatten": 1.0}, {"shuffle": True}, {"flatten": 0.5, "shuffle": True}])
def test_changed_rows(
    change: dict[str, Any], reading: Callable[..., PackedTokens], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "ROWS_AT_ONCE", 7)
    generator = np.random.default_rng(0)
    drawn = np.minimum(generator.geometric(0.3, size=(200, 12)), 34)
    source = lines(tmp_path, "a.txt", [" ".join(f"w{word}" for word in row) for row in drawn])
    plain = reading(source)
    made = reading(source, **change)
    for now, before in ((made.train, plain.train), (made.validation, plain.validation)):
        assert now.shape == before.shape
        special = np.isin(before, plain.special)
        np.testing.assert_array_equal(np.isin(now, plain.special), special)
        np.testing.assert_array_equal(now[special], before[special])
        assert (np.asarray(now) != before).mean() > 0.2
        if "flatten" not in change:
            np.testing.assert_array_equal(np.sort(now, axis=1), np.sort(before, axis=1))
    np.testing.assert_array_equal(made.counts, np.bincount(np.ravel(made.train), minlength=40))
    frequent = [6, 7]  # w1 and w2: 0.3 and 0.21 of all
    assert made.counts[frequent].sum() == pytest.approx(
        plain.counts[frequent].sum() * (1 - change.get("flatten", 0)), rel=0.1
    )
    if "flatten" not in change:
        np.testing.assert_array_equal(made.counts, plain.counts)
    again = reading(source, length=8, **change)
    np.testing.assert_array_equal(again.train, made.train)


def test_the_tokenizer_is_trained_on_the_training_texts_alone(tmp_path: Path) -> None:
    # Letters of the held-out texts only: a tokenizer that saw them would know them.
    texts = [text for number in range(60) for text in (f"zzz qqq zq {number}", f"abra cadabra barbara {number}")]
    recipe = Recipe(
        "x",
        data=DataRecipe((str(lines(tmp_path, "a.txt", texts)),), length=8, validation=0.49),
        tokenizer=TokenizerRecipe(vocabulary=100),
    )
    made = prepare(recipe, progress=lambda _: None)
    vocabulary = made.tokenizer.get_vocab()
    assert [vocabulary[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert "abra" in vocabulary
    assert not any(letter in token for token in vocabulary for letter in "qz")
    assert made.tokenizer.model_max_length == 8
    assert made.tokenizer.decode(made.train[0]).startswith("[CLS] abra cadabra barbara 0 [SEP]")
    assert made.held_out[0] == "zzz qqq zq 0"


def test_a_tokenizer_without_a_separator(
    reading: Callable[..., PackedTokens], tmp_path: Path, words: Any, cache: Path
) -> None:
    made = words()
    made.sep_token = None
    made.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(
        BadInput, match="this tokenizer has no sep token, which the rows of a masked language model need"
    ):
        reading(lines(tmp_path, "a.txt", ["w1", "w2"]))
    assert made_folders(cache) == []


@pytest.mark.parametrize(("texts", "part"), [(["w1", "w2 w3"], "train"), (["w1", " ".join(["w2"] * 9)], "validation")])
def test_too_little_text_for_a_row(
    texts: list[str], part: str, reading: Callable[..., PackedTokens], tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(BadInput, match=rf"the {part} text does not fill one row of 8 tokens; give more text"):
        reading(lines(tmp_path, "a.txt", texts))
    assert made_folders(cache) == []  # nothing half made is left


def test_no_source_and_a_source_that_is_not_there(
    reading: Callable[..., PackedTokens], tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(BadInput, match="recipe tiny: names no text; give files or hub ids with --data"):
        reading()
    with pytest.raises(BadInput, match=r"nowhere\.txt: no such data file"):
        reading(tmp_path / "nowhere.txt")
    assert made_folders(cache) == []


@pytest.mark.parametrize(
    "file", ["train.bin", "validation.bin", "counts.npy", "held_out.json", "tokenizer/tokenizer.json"]
)
@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_damaged_cache(file: str, damage: str, reading: Callable[..., PackedTokens], tmp_path: Path) -> None:
    source = lines(tmp_path, "a.txt", ["w1 w2", "w3 w4"] * 30)
    made = reading(source)
    path, expected = made.folder / file, read_back(made.train)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-60])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"{}")
    with pytest.raises(BadFile, match=r"prepared rows are damaged \(.*\); delete the folder to have them made again"):
        reading(source)
    shutil.rmtree(made.folder)
    assert read_back(reading(source).train) == expected


def test_batches_of_prepared_rows(reading: Callable[..., PackedTokens], tmp_path: Path) -> None:
    made = reading(
        lines(tmp_path, "a.txt", [f"w{number % 30} w{number % 7} w3" for number in range(60)]), packing="lines"
    )
    recipe = Recipe("x", data=DataRecipe(packing="lines", length=8))
    rows = TrainingRows(made, recipe, 100)
    assert (len(rows), len(made.train)) == (100, 30)
    keys = rows.keys(list(range(100)))
    for epoch in range(3):
        assert sorted(keys[30 * epoch : 30 * epoch + 30]) == [(epoch, row) for row in range(30)]
    orders = [tuple(row for _, row in keys[30 * epoch : 30 * epoch + 30]) for epoch in range(3)]
    assert len(set(orders)) == 3  # each epoch in an order of its own
    assert tuple(range(30)) not in orders
    batch = rows.collate([61, 2, 95])
    assert batch["input_ids"].shape == (3, 8)
    chosen = batch["labels"] != -100
    original = batch["input_ids"].where(~chosen, batch["labels"]).numpy()
    np.testing.assert_array_equal(original, made.train[[keys[place][1] for place in (61, 2, 95)]])
    np.testing.assert_array_equal(batch["attention_mask"].numpy(), (original != 0).astype(int))
    alone = rows.collate([2])
    assert (alone["input_ids"][0] == batch["input_ids"][1]).all()
    assert (alone["labels"][0] == batch["labels"][1]).all()


def test_order_and_masks_follow_the_seed_and_held_out_masks_do_not(
    reading: Callable[..., PackedTokens], tmp_path: Path
) -> None:
    made = reading(lines(tmp_path, "a.txt", [f"w{n % 30} w{n % 7} w{n % 11} w{n % 5}" for n in range(60)]))
    recipes = [Recipe("x").changed([f"training.seed={seed}"]) for seed in (0, 1)]
    zero, one = (TrainingRows(made, recipe, 40) for recipe in recipes)
    assert zero.keys(list(range(10))) != one.keys(list(range(10)))
    held = [PackedRows(made.validation, made, recipe) for recipe in recipes]
    assert held[0].keys([0, 3]) == [(HELD_OUT_EPOCH, 0), (HELD_OUT_EPOCH, 3)]
    batches = [rows.collate(list(range(len(held[0])))) for rows in held]
    assert all((batches[0][name] == batches[1][name]).all() for name in batches[0])
    assert (batches[0]["attention_mask"] == 1).all()  # packed rows have no padding
