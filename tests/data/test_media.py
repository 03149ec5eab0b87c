"""Pictures and recordings are read from every layout as what they are, within limits; what is damaged is named."""

import csv
import io
import json
import struct
import sys
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import media_models as made
from outlierlens.data.media import Items, LabelledItems, kind_of, read_items
from outlierlens.data.media.items import picture, recording
from outlierlens.data.media.read import ItemOptions
from outlierlens.data.tables import open_table
from outlierlens.errors import BadFile, BadInput, MissingExtra

UNLABELLED = ItemOptions(labelled=False)
PIXELS, LABELS = made.pictures(7, seed=0)


def decoded(items: Items) -> list[np.ndarray]:
    return [picture(part.content(), part.name) for part in items.parts]


def named(items: Items) -> list[str]:
    assert isinstance(items, LabelledItems)
    return [items.task.labels[label] for label in items.labels]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(made.write_pictures(tmp_path_factory.mktemp("pictures"), PIXELS, LABELS))


def test_of_a_folder_the_classes_take_turns(folder: Path) -> None:
    items = read_items("image", folder)
    wanted = [made.COLOURS[label] for label in LABELS]
    turns = [name for pair in zip(["blue"] * 7, ["red"] * 7, strict=True) for name in pair]
    assert sorted(named(items)) == sorted(wanted)
    assert named(items)[:6] == turns[:6]
    assert set(named(read_items("image", folder, ItemOptions(limit=2)))) == {"blue", "red"}
    for part, pixels in zip(items.parts, decoded(items), strict=True):
        assert np.array_equal(pixels, PIXELS[int(Path(part.name).stem)])
    assert items.task.name == "image-classification"
    assert items.task.labels == ("blue", "red")


def test_folders_with_numbers_for_names_are_classes_by_name(tmp_path: Path) -> None:
    made.write_pictures(tmp_path, PIXELS[:4], [0, 1, 0, 1], names=("10", "0002"))
    items = read_items("image", tmp_path)
    assert items.task.labels == ("0002", "10")
    assert [Path(part.name).parent.name for part in items.parts] == named(items)


def test_the_digest_follows_items_labels_and_how_much_is_read(folder: Path) -> None:
    items = read_items("image", folder)
    assert items.digest == read_items("image", folder).digest
    assert items.digest != items.first(6).digest
    bare = read_items("image", folder, UNLABELLED)
    assert bare.digest != items.digest
    sounds = [Items("s", "audio", (part := made_part(),), seconds) for seconds in (1.0, 2.0)]
    assert sounds[0].digest != sounds[1].digest
    assert Items("s", "audio", (part,), 1.0).digest == sounds[0].digest


def made_part() -> Any:
    from outlierlens.data.media.items import ItemSource

    return ItemSource("one", data=b"RIFF")


def test_a_table_holds_paths_or_bytes(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    made.write_pictures(tmp_path / "all", PIXELS, LABELS)
    paths = sorted((tmp_path / "all").glob("*/*.png"), key=lambda path: path.stem)
    words = [made.COLOURS[label] for label in LABELS]
    with (tmp_path / "list.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "label"])
        table.writerows((str(path.relative_to(tmp_path)), word) for path, word in zip(paths, words, strict=True))
    cells = [{"bytes": path.read_bytes(), "path": "x.png"} for path in paths]
    features = {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(made.COLOURS)}}
    hub = pyarrow.table({"img": cells, "label": LABELS.tolist()}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    parquet.write_table(hub, tmp_path / "hub.parquet")
    for name in ("list.csv", "hub.parquet"):
        items = read_items("image", tmp_path / name)
        assert np.array_equal(decoded(items), PIXELS)
        assert named(items) == words
    assert not isinstance(read_items("image", tmp_path / "hub.parquet", UNLABELLED), LabelledItems)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../secret.png", r"row 1: '../secret.png' leads out of"),
        ("/etc/hostname", r"leads out of"),
        ("none.png", r"row 1: no such file: 'none.png' beside the table"),
        ("", r"row 1: a str where the image should be; need a path or the bytes of a file"),
        ("a\0.png", r"row 1: 'a\\x00.png' is not a name of a file"),
        ("x" * 5000, r"row 1: 'x{100}' is not a name of a file"),
    ],
)
def test_paths_of_a_table_stay_beside_it(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "secret.png").write_bytes(made.png(PIXELS[0]))
    table = tmp_path / "in" / "list.jsonl"
    table.parent.mkdir()
    table.write_text(json.dumps({"image": path, "label": "red"}))
    with pytest.raises(BadInput, match=message):
        read_items("image", table)


def test_a_picture_that_links_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "list.jsonl").write_text(json.dumps({"image": "loop.png", "label": "red"}))
    with pytest.raises(BadInput, match=r"row 1: .*'loop.png'"):
        read_items("image", tmp_path / "list.jsonl")


def test_of_a_hub_data_set_files_are_left_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(made.COLOURS))})
    rows = [
        {"image": {"bytes": made.png(one), "path": None}, "label": int(label)}
        for one, label in zip(PIXELS, LABELS, strict=True)
    ]
    streamed = datasets.Dataset.from_list(rows, features=features).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: streamed)
    items = read_items("image", "someone/pictures")
    assert np.array_equal(decoded(items), PIXELS)
    assert named(items) == [made.COLOURS[label] for label in LABELS]
    assert isinstance(next(open_table("someone/pictures").rows(("image",)))[0]["bytes"], bytes)


def test_pictures_are_upright_grey_or_coloured_and_of_8_bits() -> None:
    from PIL import Image

    wide = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    note = Image.Exif()
    note[0x0112] = 6  # the camera was turned: show it turned clockwise
    buffer = io.BytesIO()
    Image.fromarray(wide).save(buffer, format="PNG", exif=note)
    assert np.array_equal(picture(buffer.getvalue(), "turned.png"), np.rot90(wide, -1))
    assert picture(made.png(wide), "grey", channels=1).shape == (2, 3, 1)
    assert np.array_equal(picture(made.png(wide[:, :, 0]), "one"), np.repeat(wide[:, :, :1], 3, axis=2))
    with pytest.raises(BadInput, match=r"deep\.png: more than 8 bits per channel \(mode I;16\)"):
        picture(made.png(np.zeros((2, 2), dtype=np.uint16)), "deep.png")


def test_what_is_no_picture_is_named() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(BadFile, match=r"bomb\.png: (60,000 × 60,000 pixels, more than|cannot be read as an image)"):
        picture(bomb, "bomb.png")
    less = struct.pack(">IIBBBBB", 8_000, 8_000, 8, 2, 0, 0, 0)
    with pytest.raises(BadFile, match=r"8,000 × 8,000 pixels, more than 50,000,000; make it smaller"):
        picture(bomb.replace(chunk(b"IHDR", header), chunk(b"IHDR", less)), "bomb.png")
    with pytest.raises(BadFile, match=r"1 × 27,000,000 pixels, a side of more than 100,000; cut it up"):
        picture(b"P6\n1 27000000\n255\n" + bytes(200_000), "thin.ppm")
    for content in (
        b"not a picture",
        b"",
        made.png(PIXELS[0])[:60],
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ):
        with pytest.raises(BadFile, match=r"x\.png: cannot be read as an image \(.*\); use PNG, JPEG"):
            picture(content, "x.png")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_of_every_width_is_what_was_written(tmp_path: Path, width: int) -> None:
    wave_form = np.sin(np.arange(40) / 3) * 0.8
    sound = recording(made.write_wav(tmp_path / "a.wav", wave_form, width=width).read_bytes(), "a.wav", max_seconds=9)
    assert (sound.rate, sound.cut, sound.samples.dtype) == (made.RATE, False, np.float32)
    assert np.abs(sound.samples - wave_form).max() <= 2.0 ** (2 - 8 * width) + 1e-7
    both = np.stack([wave_form, -wave_form / 2], axis=1)
    content = made.write_wav(tmp_path / "b.wav", both.reshape(-1), width=width, channels=2).read_bytes()
    mono = recording(content, "b.wav", max_seconds=0.02)
    assert mono.cut
    assert np.abs(mono.samples - wave_form[:20] / 4).max() <= 2.0 ** (2 - 8 * width) + 1e-7


def test_recordings_that_lie_or_are_damaged_are_named(tmp_path: Path) -> None:
    good = made.write_wav(tmp_path / "a.wav", np.zeros(50)).read_bytes()
    with pytest.raises(BadFile, match=r"a\.wav: its header promises more than the file holds"):
        recording(good[:-60], "a.wav", max_seconds=1)
    more = recording(good[:40] + struct.pack("<I", 10**9) + good[44:], "a.wav", max_seconds=1)
    assert len(more.samples) == 50  # what a part promises beyond the file is neither there nor made room for
    short = b"RIFF" + struct.pack("<I", 12) + good[8:20]
    for content, said in ((short, "Malformed 'fmt ' chunk"), (b"OggS", ""), (b"fLaC....", "")):
        with pytest.raises(BadFile, match=rf"x: cannot be read as a recording \(.*{said}.*\); convert it to \.wav"):
            recording(content, "x", max_seconds=1)
    empty = io.BytesIO()
    with wave.open(empty, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
    with pytest.raises(BadFile, match=r"0 samples at 8,000 per second"):
        recording(empty.getvalue(), "a.wav", max_seconds=1)


def test_recordings_need_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"reading a\.flac needs soundfile.*pip install '\.\[audio\]'"):
        recording(b"fLaC....", "a.flac", max_seconds=1)


def test_channels_are_averaged_and_more_than_asked_for_is_cut(tmp_path: Path) -> None:
    both = np.tile([[0.5, 0.25]], (30, 1)).reshape(-1)
    content = made.write_wav(tmp_path / "a.wav", both, rate=10, width=4, channels=2).read_bytes()
    sound = recording(content, "a.wav", max_seconds=2)
    assert (len(sound.samples), sound.rate, sound.cut) == (20, 10, True)
    np.testing.assert_allclose(sound.samples, 0.375, atol=1e-7)


def test_a_flac_file_is_read_as_it_was_written() -> None:
    soundfile = pytest.importorskip("soundfile")
    wave_of = np.round(np.sin(np.arange(40) / 3) * 20000).astype(np.int16)
    written = io.BytesIO()
    soundfile.write(written, np.stack([wave_of, wave_of // 2], axis=1), 8000, format="FLAC", subtype="PCM_16")
    sound = recording(written.getvalue(), "a.flac", max_seconds=1)
    assert (sound.rate, sound.cut) == (8000, False)
    np.testing.assert_allclose(sound.samples, (wave_of / 2 + wave_of // 2 / 2) / 32768, atol=1e-6)


def test_a_file_that_is_too_large_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.data.media.items.MAX_BYTES", 100)
    with pytest.raises(BadFile, match=r"\.png: 0\.0 GB, more than 0; cut it"):
        decoded(read_items("image", folder))


def test_what_holds_nothing_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no recordings; files end in \.wav"):
        read_items("audio", folder)
    (tmp_path / "notes.doc").write_text("x")
    with pytest.raises(BadInput, match=r"unknown ending '\.doc'"):
        read_items("image", tmp_path / "notes.doc")
    with pytest.raises(BadInput, match=r"no such data file"):
        read_items("image", "./none.parquet")
    (tmp_path / "words.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"which column holds the images.*one of a, b"):
        read_items("image", tmp_path / "words.csv")
    made.write_pictures(tmp_path / "mixed", PIXELS[:2], [0, 1])
    (tmp_path / "mixed" / "loose.png").write_bytes(made.png(PIXELS[0]))
    with pytest.raises(BadInput, match=r"1 images \(loose\.png, …\) lie beside the folders of the classes"):
        read_items("image", tmp_path / "mixed")
    assert len(read_items("image", tmp_path / "mixed", UNLABELLED)) == 3
    with pytest.raises(BadInput, match="limit is 0"):
        ItemOptions(limit=0)


def test_kinds_are_told_by_name(tmp_path: Path, folder: Path) -> None:
    recordings, labels = made.sounds(2, seed=0)
    made.write_sounds(tmp_path / "sounds", recordings, labels)
    for name, text in (("t.csv", "image,text\na,b\n"), ("i.csv", "image,label\na,b\n"), ("bad.jsonl", "{")):
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    found = {name: kind_of(tmp_path / name) for name in ("sounds", "t.csv", "i.csv", "bad.jsonl", "empty")}
    assert found == {
        "sounds": "audio", "t.csv": None, "i.csv": "image", "bad.jsonl": None, "empty": None
    }  # fmt: skip
    assert (kind_of(folder), kind_of("excerpt"), kind_of("owner/name")) == ("image", None, None)


def test_items_find_their_place_among_more_classes(folder: Path) -> None:
    items = read_items("image", folder)
    assert isinstance(items, LabelledItems)
    wider = items.among(("green", "Red", "BLUE"))
    assert wider.task.labels == ("green", "Red", "BLUE")
    assert [wider.task.labels[label].lower() for label in wider.labels] == named(items)
    for names in (("red", "blue"), ("LABEL_0", "LABEL_1", "LABEL_2"), ("green", "red", "pink")):
        assert items.among(names) is items


def test_what_is_no_data_is_named_by_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty: holds no recordings; files end in \.wav"):
        read_items("audio", tmp_path / "empty")
    with pytest.raises(BadInput, match=r"empty: a folder, and rows are read from one file .* and must hold some"):
        open_table(tmp_path / "empty")
    with pytest.raises(
        BadInput, match=r"nowhere: no such folder or file, .*; images are read from a folder with one sub-folder"
    ):
        read_items("image", "nowhere")
    with pytest.raises(BadFile, match=r"a\.wav: an empty file; leave it out"):
        recording(b"", "a.wav", max_seconds=1)
    with pytest.raises(BadFile, match=r"a\.wav: its header promises more than the file holds"):
        recording(made.write_wav(tmp_path / "a.wav", np.zeros(9)).read_bytes()[:20], "a.wav", max_seconds=1)


def test_transcripts_lie_beside_recordings(tmp_path: Path) -> None:
    for name in "ab":
        made.write_wav(tmp_path / f"{name}.wav", np.zeros(9))
    (tmp_path / "b.txt").write_text(" two\nlines \n", "utf-8")
    items = read_items("audio", tmp_path, UNLABELLED)
    assert [part.transcript for part in items.parts] == ["", "two lines"]
    without = read_items("audio", tmp_path / "b.wav", UNLABELLED).digest
    (tmp_path / "b.txt").write_text("three", "utf-8")
    assert read_items("audio", tmp_path / "b.wav", UNLABELLED).digest != without
    (tmp_path / "b.txt").write_text("x" * 200_000, "utf-8")
    with pytest.raises(BadInput, match=r"b\.txt: more than 100,000 bytes"):
        read_items("audio", tmp_path, UNLABELLED)
    table = tmp_path / "all.csv"
    table.write_text("audio,sentence\na.wav,one\nb.wav,\n", "utf-8")
    assert kind_of(table) is None  # its sentences may be what is wanted
    assert kind_of(table, "audio") == "audio"
    (tmp_path / "b.txt").unlink()
    assert [part.transcript for part in read_items("audio", table, UNLABELLED).parts] == ["one", ""]
