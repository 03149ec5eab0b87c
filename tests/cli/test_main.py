"""What the machine does to the command line, a full disk or a missing right, is one line; gates end with 2 then."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from architectures import FAMILIES, build
from outlierlens.analyses import scan as scan_command
from outlierlens.analyses.observe import observe
from outlierlens.cli import main
from outlierlens.data.texts import Texts
from outlierlens.errors import BadFile, takes_a_line, told
from outlierlens.models.load import load_model

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


def run(*arguments: str | Path, stdout: str = "", **variables: str) -> tuple[int, str]:
    """(exit code, stderr) of a command whose output goes to the file `stdout`."""
    with Path(stdout or os.devnull).open("w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "outlierlens", *arguments],
            stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables,
        )  # fmt: skip
    return done.returncode, done.stderr


@FULL
def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    line = "error: No space left on device; make room and run it again: outlierlens {}\n"
    assert run("scan", "mini-bert", "--json", stdout="/dev/full") == (1, line.format("scan mini-bert --json"))
    assert run("fingerprint", "mini-bert", "-q", "-o", tmp_path / "kept.json") == (0, "")
    words = ("verify", "mini-bert", "--baseline", str(tmp_path / "kept.json"))
    assert run(*words, stdout="/dev/full") == (2, line.format(" ".join(words)))


def test_a_place_that_cannot_be_written_and_letters_that_cannot_be_shown() -> None:
    if Path("/proc/self").exists():
        assert run("scan", "mini-bert", "-q", "-o", "/proc/x.json") == (
            1,
            "error: /proc/x.json: No such file or directory\n",
        )
    code, said = run("scan", "mini-bert", PYTHONIOENCODING="ascii")
    assert code == 1
    assert "run with PYTHONIOENCODING=utf-8" in said
    assert len(said.splitlines()) == 1
    assert run("scan", "mini-bert", PYTHONIOENCODING="utf-8") == (0, "")


@pytest.mark.parametrize("module", ["outlierlens.errors", "cyclopts", "numpy", "outlierlens.analyses.scan"])
def test_an_interrupt_while_the_program_starts_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    assert run("scan", "mini-bert", "-o", tmp_path / "a" / "b.json", PYTHONPATH=path) == (130, "interrupted\n")
    assert [one.name for one in tmp_path.iterdir() if one.name != "__pycache__"] == ["sitecustomize.py"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "there is not enough memory; take fewer"),
        (RecursionError("maximum"), "something that was read is nested too deeply"),
        (PermissionError(13, "Permission denied", "a\nb"), "a b: Permission denied; change its permissions"),
        (OSError(30, "Read-only file system", "x"), "x: Read-only file system; name another place"),
        (OSError("of a library\nin two lines"), "of a library in two lines"),
    ],
)
def test_errors_of_the_machine_say_what_can_be_done(error: BaseException, said: str) -> None:
    assert told(error).startswith(said)
    assert "\n" not in told(error)


def test_a_tokenizer_that_fails_on_a_word_is_one_line(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from outlierlens.checkpoints.samples import directory

    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(directory("mini-bert") / name)
    Tokenizer(WordLevel({"the": 0, "cat": 1, "sat": 2, "on": 3}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "the"}'
    )
    (tmp_path / "texts.txt").write_text("mat\n")
    code, said = run("observe", tmp_path, "--data", tmp_path / "texts.txt", "-q")
    assert code == 1
    assert "error: the tokenizer cannot read these texts (WordLevel error: Missing [UNK] token" in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize("change", [{"chunk_size_feed_forward": "x"}, {"chunk_size_feed_forward": 3}])
def test_what_a_config_makes_of_a_models_own_code_is_one_line(
    change: dict[str, Any], words: Any, tmp_path: Path
) -> None:
    folder = saved_with(change, words, tmp_path)
    with pytest.raises((TypeError, ValueError)) as caught:
        observe(load_model(folder), Texts("texts", ("w1 w2 w3",)))
    assert takes_a_line(caught.value)
    assert told(caught.value).startswith(f"the model's code in transformers fails ({caught.type.__name__}: ")
    assert not takes_a_line(ValueError("of our own"))


@pytest.mark.parametrize("part", ["x", 5, [1], {}])
def test_a_config_whose_part_is_none_is_read_as_a_whole(part: Any, words: Any, tmp_path: Path) -> None:
    loaded = load_model(saved_with({"text_config": part}, words, tmp_path))
    assert observe(loaded, Texts("texts", ("w1 w2 w3",))).about.n_tokens == 5


def saved_with(change: dict[str, Any], words: Any, folder: Path) -> str:
    build(FAMILIES["bert"], "MaskedLM").save_pretrained(folder)
    words().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    settled = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settled | {"model_input_names": ["zzz"]}))
    with pytest.raises(BadFile, match="models take no input_ids; correct model_input_names"):
        load_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(settled))
    return str(folder)


def test_a_bare_exception_of_another_library_keeps_its_traceback() -> None:
    with pytest.raises(Exception, match="not of a tokenizer") as caught:
        raise Exception("not of a tokenizer")
    assert not takes_a_line(caught.value)


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_file_name_that_is_no_utf8_is_written_as_json(tmp_path: Path) -> None:
    from outlierlens.checkpoints.samples import directory

    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(directory("mini-bert") / name)
    out = tmp_path / "scan.json"
    assert run("scan", folder, "--json", stdout=str(out)) == (0, "")
    assert json.loads(out.read_bytes())["provenance"]["model"] == str(folder)


def test_garbage_is_collected_while_a_command_works_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(scan_command, "run", lambda *_: found.append((gc.isenabled(), gc.get_freeze_count() > 0)))
    monkeypatch.setattr(sys, "argv", ["outlierlens", "scan", "mini-bert"])
    frozen = gc.get_freeze_count()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert found == [(True, True)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen == 0
