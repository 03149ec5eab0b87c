"""Damaged and hostile files that fuzzing found: one line of ours each, before anything large is made of them."""

import io
import json
import re
import struct
import subprocess
import sys
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.analyses.atlas_rows import _plain_rows
from outlierlens.analyses.embed_pass import own_pooling
from outlierlens.analyses.finetune import MODEL, SeedFolder
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples import Sample, _unpack
from outlierlens.data.labelled.examples import read_examples
from outlierlens.data.labelled.labels import plain_task
from outlierlens.data.media.items import picture, recording
from outlierlens.data.tables import open_table, parquet_of
from outlierlens.data.token_counts import read_counts
from outlierlens.errors import LONGEST, BadFile, BadInput, told
from outlierlens.models.load import LoadOptions, load_model, load_tokenizer
from outlierlens.report.job import is_finished
from outlierlens.results.row_store import RowStore
from outlierlens.training.pretrain.recipe import read_recipe
from tiny_tokenizers import word_pieces

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_what_is_told_is_a_line_with_its_remedy_however_long_a_name_is() -> None:
    text = told(BadFile(f"m.bin: tensor {'x' * 100_000!r} is none; save it again"))
    assert text.startswith("m.bin: tensor 'xxx")
    assert text.endswith("xxx' is none; save it again")
    assert len(text) == LONGEST
    assert told(BadFile("m.bin: short")) == "m.bin: short"


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_shard_whose_name_no_file_system_holds(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{ending}.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    with pytest.raises(BadFile, match="which is not a plain file name"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("shape", [[0, 2**63 - 1], [2**62, 0, 2], [2**31, 0, 2**31]])
def test_a_tensor_of_no_values_whose_shape_no_array_has(shape: list[int], tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(BadFile, match="lacks a sound dtype, shape"):
        open_checkpoint(str(path))


def test_weights_that_were_saved_with_their_wish_for_gradients(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.bin"
    torch.save({"a": torch.ones(2, 3, requires_grad=True)}, path)
    with open_checkpoint(str(path)) as checkpoint:
        assert dict(checkpoint.read(["a"]))["a"].tolist() == [[1, 1, 1], [1, 1, 1]]
        assert checkpoint.take_rows("a", [1]).tolist() == [[1, 1, 1]]
        assert sum(rows.size for rows in checkpoint.read_rows("a", 1)) == 6


# --- archives ----------------------------------------------------------------------------------------------------


def misplaced(entries: dict[str, bytes]) -> bytes:
    """A zip archive whose entries stand in front of its first byte."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    raw = bytearray(made.getvalue())
    (start,) = struct.unpack_from("<I", raw, len(raw) - 6)  # where the directory begins
    struct.pack_into("<I", raw, len(raw) - 6, start + 1000)
    return bytes(raw)


def future(entries: dict[str, bytes]) -> bytes:
    """A zip archive that asks for a version of the format that is not there yet."""
    raw = bytearray(misplaced(entries))
    struct.pack_into("<I", raw, len(raw) - 6, struct.unpack_from("<I", raw, len(raw) - 6)[0] - 1000)
    struct.pack_into("<H", raw, raw.index(b"PK\x01\x02") + 6, 255)
    return bytes(raw)


@pytest.mark.parametrize("make", [misplaced, future])
def test_archives_whose_directory_is_damaged(make: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(make({"m/data.pkl": b"\x80\x02}.", "m/version": b"3\n"}))
    with pytest.raises(BadFile, match="not a readable PyTorch file"):
        open_checkpoint(str(path))
    sample = tmp_path / "x.whl"
    sample.write_bytes(make({"m/a}b": b"1"}))
    with pytest.raises(BadFile, match="not a readable zip"):
        _unpack(sample, Sample("x", "", "", "", inside="m", files={"a}b": 1}), tmp_path / "made")


def test_an_entry_of_an_archive_whose_own_name_is_no_utf8(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("é/data.pkl", b"1")
    path = tmp_path / "x.bin"
    path.write_bytes(made.getvalue().replace("é".encode(), b"\xca\xff", 1))  # its first place; the directory's stays
    with pytest.raises(BadFile, match="not a readable PyTorch file"):
        open_checkpoint(str(path))
    with pytest.raises(BadFile, match="not a readable zip"):
        _unpack(path, Sample("x", "", "", "", inside="é", files={"data.pkl": 1}), tmp_path / "made")


# --- models ------------------------------------------------------------------------------------------------------

CONFIG = {"model_type": "bert", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 8, "max_position_embeddings": 8}


def saved(folder: Path) -> Path:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**{key: CONFIG[key] for key in CONFIG if key != "model_type"})).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**30}, r"config.json says 1e\+30 layers, more than 2,000"),
        ({"text_config": {"decoder_layers": 10**9}}, r"config.json says 1e\+09 layers"),
        ({"vocab_size": 2**31}, r"config.json asks for [\d,]+ parameters, and the weight files have [\d,]+ bytes"),
        ({"intermediate_size": 10**12}, "config.json asks for"),
        ({"num_labels": 10**7}, "config.json says 10,000,000 labels, more than 250,000"),
    ],
)
def test_a_config_that_promises_a_giant_is_refused_before_one_is_made(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(BadFile, match=message):
        load_model(str(folder), LoadOptions(device="cpu", offline=True))


def test_a_vocabulary_that_reads_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
    with pytest.raises(BadFile, match="its tokenizer reads no text"):
        load_tokenizer(str(tmp_path), LoadOptions(offline=True))
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n" + "b" * 100_000)
    with pytest.raises(BadFile, match="a word piece of 100,000 characters"):
        load_tokenizer(str(tmp_path), LoadOptions(offline=True))


def test_a_tokenizer_of_which_the_library_panics(tmp_path: Path) -> None:
    word_pieces().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    named = document["post_processor"]["special_tokens"]
    named["x"] = named.pop("[SEP]")
    path.write_text(json.dumps(document))
    with pytest.raises(BadFile, match=r"its tokenizer (reads no text|cannot be read)"):
        load_tokenizer(str(tmp_path), LoadOptions(offline=True))


def test_onnx_names_that_are_no_utf8(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "weight")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [], [], initializer=[weight])
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString().replace(b"weight", b"weigh\xff"))
    with pytest.raises(BadFile, match=r"a name in it is no UTF-8"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("content", [[], "text", 7, {"max_seq_length": "x"}])
def test_the_length_of_an_embedder_that_is_none(content: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(content))
    assert own_pooling(str(tmp_path), LoadOptions(offline=True)).max_length == 128
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": "x" * 5000}]))
    with pytest.raises(BadFile, match="which is no folder beside it"):
        own_pooling(str(tmp_path), LoadOptions(offline=True))


# --- texts -------------------------------------------------------------------------------------------------------

EACH_BYTE = """
import sys
from pathlib import Path
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput
path = Path(sys.argv[1])
whole, n = path.read_bytes(), 0
for place in range(len(whole)):
    for bit in (1, 16):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            read_texts(path)
        except BadInput:
            n += 1
print(n)
"""


def test_every_changed_byte_of_a_parquet_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: pyarrow ended it for some."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    table = arrow.table({"text": ["one", "two"], "n": [1, 2], "words": [["a"], ["b", "c"]]})
    parquet.write_table(table, path, compression="none", use_dictionary=False, store_schema=False)
    done = subprocess.run([sys.executable, "-c", EACH_BYTE, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_texts_in_parquet_that_are_no_utf8(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ends = arrow.py_buffer(np.array([0, 2, 4], np.int32))
    texts = arrow.Array.from_buffers(arrow.string(), 2, [None, ends, arrow.py_buffer(b"\xff\xfeab")])
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"text": texts, "token": texts, "count": [1, 2]}), path)
    with pytest.raises(BadInput, match=r"cannot be read as a parquet file: 'utf-8' codec"):
        list(open_table(path).rows(("text",)))
    with pytest.raises(BadFile, match="cannot be read as a parquet file of token counts"):
        read_counts(path, word_pieces())


def test_times_in_parquet_that_python_cannot_hold(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    for kind in (arrow.duration("s"), arrow.timestamp("ms")):
        times = arrow.array([2**62], kind)
        parquet.write_table(arrow.table({"text": times, "token": times, "model": times, "count": [1]}), path)
        with pytest.raises(BadInput, match="cannot be read as a parquet file: "):
            list(open_table(path).rows(("text",)))
        with pytest.raises(BadFile, match="cannot be read as a parquet file of token counts: "):
            read_counts(path, word_pieces())
        marked = arrow.table({"model": times}).replace_schema_metadata({"outlierlens_atlas": "1"})
        parquet.write_table(marked, tmp_path / "rows.parquet")
        with pytest.raises(BadFile, match="cannot be read as a parquet file: "):
            list(_plain_rows(tmp_path / "rows.parquet", None))


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, column = tmp_path / "x.parquet", arrow.array(["a"])
    parquet.write_table(arrow.Table.from_arrays([column, column], names=["text", "text"]), path)
    with pytest.raises(BadInput, match=r'cannot be read as a parquet file: Field "text" exists 2 times'):
        list(open_table(path).rows(("text",)))


def test_what_the_disk_says_of_a_parquet_stays(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), parquet_of(tmp_path / "x.parquet") as parquet:
        parquet.ParquetFile(tmp_path / "x.parquet")


def test_half_a_character_is_no_token(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    half = [
        None,
        arrow.py_buffer(np.array([0, 3], np.int32)),
        arrow.py_buffer("\ud800".encode("utf-8", "surrogatepass")),
    ]
    column, path = arrow.Array.from_buffers(arrow.string(), 1, half), tmp_path / "counts.parquet"
    parquet.write_table(arrow.Table.from_arrays([column, arrow.array([3])], names=["token", "count"]), path)
    with pytest.raises(BadFile, match=r"cannot be read as a parquet file of token counts: .*Invalid UTF8"):
        read_counts(path, word_pieces())


def test_numbers_that_no_float_holds(tmp_path: Path) -> None:
    rows = tmp_path / "x.jsonl"
    rows.write_text('{"text": "a", "label": 1%s}\n' % ("0" * 400))
    with pytest.raises(BadInput, match="is not a number, and this task is a regression"):
        read_examples(plain_task("regress", "text", "label"), rows)
    recipe = tmp_path / "recipe.toml"
    text = read_recipe("bert-medium").to_toml()
    assert "learning_rate" in text
    recipe.write_text(re.sub(r"(?m)^learning_rate = .*$", f"learning_rate = 1{'0' * 400}", text))
    with pytest.raises(BadInput, match="a value of type float is needed"):
        read_recipe(str(recipe))


# --- recordings --------------------------------------------------------------------------------------------------


def wav(width: int, channels: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(8000)
        out.writeframes(bytes(24 * width))
    return file.getvalue()


def test_parts_of_a_wav_that_lead_out_of_it() -> None:
    whole = wav(2)
    inside = b"RIFF" + struct.pack("<I", len(whole)) + whole[8:12] + b"LIST" + struct.pack("<I", 2**31) + whole[12:]
    with pytest.raises(BadFile, match="cannot be read as a recording"):
        recording(inside, "x.wav", max_seconds=9)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_a_wav_whose_last_frame_is_cut_is_read_without_it(width: int, cut: int) -> None:
    whole = wav(width)
    raw = bytearray(whole[: len(whole) - cut])
    struct.pack_into("<I", raw, 4, len(raw) - 8)  # the file says its length, the part of samples promises more
    found = recording(bytes(raw) + b"", "x.wav", max_seconds=9)
    assert len(found.samples) == (24 * width - cut) // (2 * width)


def test_a_library_that_seeks_in_front_of_a_recording_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(400) / 9).astype(np.float32), 8000, format="AIFF")
    raw = file.getvalue()
    for place in range(4, 60):
        for value in (0x7F, 0x80, 0xFF):
            try:
                recording(raw[:place] + bytes([value]) + raw[place + 1 :], "x", max_seconds=9)
            except (BadFile, BadInput):
                continue
    assert capfd.readouterr().err == ""


# --- runs --------------------------------------------------------------------------------------------------------

ROW = {"epoch": 1, "step": 3, "loss": 0.5, "scores": {"accuracy": 0.5}}


@pytest.mark.parametrize(
    "change",
    [{"scores": {}}, {"scores": "x"}, {"scores": {"accuracy": "x"}}, {"epoch": {}}, {"epoch": "1"}, {"epoch": 10**400}],
)
def test_epochs_that_no_run_wrote(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / MODEL).mkdir()
    for number, row in enumerate((ROW, ROW | change)):
        with RowStore.open(tmp_path / f"rows-{number}.jsonl", {}) as rows:
            rows.append("epoch 1", row)
            if number:
                with pytest.raises(BadFile, match="not the scores of epochs"):
                    SeedFolder(tmp_path, rows, "accuracy")
            else:
                assert SeedFolder(tmp_path, rows, "accuracy").best.epoch == 1


@pytest.mark.parametrize(
    ("files", "finished"),
    [
        ((), False),
        (("results.json",), False),
        (("results.json", "report.html"), False),  # its charts or its manifest could not be written
        (("a/results.json", "report.html"), False),
        (("results.json", "report.html", "manifest.json"), True),
        (("report.html",), True),  # somebody else's
    ],
)
def test_a_report_that_was_stopped_while_it_was_written_goes_on(
    files: tuple[str, ...], finished: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert is_finished(tmp_path) is finished


def test_a_picture_that_claims_more_pixels_than_its_bytes_hold() -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (700, 5)).save(file, "TIFF")
    content = bytearray(file.getvalue())
    height = content.index(struct.pack("<H", 257), 8)  # the tag ImageLength: its type, count and value follow
    content[height + 2 : height + 12] = struct.pack("<HII", 4, 1, 60_001)
    with pytest.raises(BadFile, match=r"bytes cannot hold 700 × 60,001 pixels; fetch it again"):
        picture(bytes(content), "p.tiff")
