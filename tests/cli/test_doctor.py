"""`doctor`: versions and bounds, what is missing for which command, broken installations, caches."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from outlierlens.checkpoints.samples import SAMPLES, folder_of
from outlierlens.cli import doctor

WHOLE = ("filelock>=3.12", 'torch>=2.4; extra == "models"', 'onnx>=1.17; extra == "onnx"', 'pytest>=8; extra == "dev"')


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Have the metadata say that exactly these packages are installed."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor.metadata, "requires", lambda _: [*WHOLE, 'outlierlens[onnx]; extra == "all"'])
    monkeypatch.setattr(doctor.metadata, "version", version)


def test_missing_libraries_name_extra_commands_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"filelock": "3.20"})
    found = doctor.examine()
    assert [(one["name"], one["extra"], one["wanted"]) for one in found["libraries"]] == [
        ("filelock", "", ">=3.12"),
        ("torch", "models", ">=2.4"),
        ("onnx", "onnx", ">=1.17"),
    ]  # neither what developers need nor ourselves
    assert [one["name"] for one in found["libraries"] if one["installed"] is None] == ["torch", "onnx"]
    models, onnx = found["lacking"]
    assert models.startswith("missing for observe, ")
    assert models.endswith(": torch; run in a clone of outlierlens: pip install '.[models]'")
    assert onnx.startswith("missing for ONNX files, and the sample distilbert-cased: onnx; ")
    assert not [text for text in found["broken"] if "torch" in text or "onnx" in text]  # missing is not broken


def test_an_old_library_and_a_lost_one_are_broken(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    pretend(monkeypatch, {"torch": "2.3.9", "onnx": "1.20"})
    code, out, _ = run("doctor")
    assert code == 1
    assert "broken: torch 2.3.9: >=2.4 is needed; run in a clone of outlierlens: pip install '.[models]'" in out
    assert "broken: filelock: it is needed by everything" in out


def test_every_library_that_errors_name_belongs_to_a_known_extra() -> None:
    known = {one["extra"] for one in doctor.examine()["libraries"]}
    assert known <= {"", *doctor.USES}
    assert all(map(doctor.use_of, doctor.USES))


def test_caches_offline_and_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Any) -> None:
    for name in doctor.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "on")
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    half = folder_of(SAMPLES["mpnet-base"])
    half.mkdir(parents=True)
    (half / "config.json").write_bytes(b"{}")
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert "hf_very_secret" not in out
    assert found["variables"]["HF_TOKEN"] == "set"
    assert (found["format_version"], found["offline"]) == (1, True)
    states = {one["name"]: one["state"] for one in found["samples"]}
    assert states["mini-bert"] == "packaged"
    assert (states["mpnet-base"], states["minilm-l6"]) == ("incomplete", "not fetched")
    assert code == 1
    assert any("outlierlens fetch mpnet-base" in text for text in found["broken"])


def test_a_torch_that_will_not_load_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise OSError("libcudart.so: not found")

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    devices, wrong = doctor._devices()
    assert devices == []
    assert wrong.startswith("torch is installed and cannot be used: OSError: libcudart.so: not found")


def test_devices_are_listed_on_request() -> None:
    assert doctor.examine()["devices"] is None
    assert doctor.examine(devices=True)["devices"][0] == "cpu"


SCRIPT = """
import sys
from outlierlens.cli import main
sys.argv = ["outlierlens", "doctor", "--json"]
try:
    main()
except SystemExit as stop:
    heavy = [name for name in ("torch", "transformers", "scipy", "pandas", "gradio") if name in sys.modules]
    print(heavy, file=sys.stderr)
"""


def test_doctor_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_values(tmp_path: Path) -> None:
    program = tmp_path / "outlierlens"
    program.write_text(f"#!{sys.executable}\nfrom outlierlens.cli import main\nmain()\n")
    program.chmod(0o755)
    script = """
    eval "$(outlierlens --show-completion bash)"
    for words in "fi" "scan mini-p" "fetch smollm" "ablate mini-planted --modes z" "ablate x --task masked" \
            "scan x --rule pu" "lab finetune x --task rt" "quantize x --dtype flo"; do
        COMP_WORDS=(outlierlens $words)
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _outlierlens
        echo "${COMPREPLY[@]}"
    done
    complete -p outlierlens
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    first, *lines, shown = done.stdout.splitlines()
    assert first.split() == ["fingerprint"], done.stderr
    assert lines[0] == "mini-planted"
    assert "smollm2-135m" in lines[1].split()
    assert lines[2:] == ["zero", "masked-loss", "puccetti", "rte", "float32 float16"]
    assert "-o default" in shown  # files, where no value fits
