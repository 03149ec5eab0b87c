"""The benchmark measures what it says."""

from pathlib import Path
from typing import Any

import pytest

from script_modules import script


def test_benchmark(words: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    from architectures import FAMILIES, config_of

    BertModel(config_of(FAMILIES["bert"])).save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    module = script("benchmarks/attention.py")
    monkeypatch.setattr(module, "MOST", 1e9)
    monkeypatch.setattr(module, "MORE", 1e3)
    asked: list[int] = []
    monkeypatch.setattr(module, "peak", lambda *words: asked.append(int(words[-2])) or 100.0 + asked[-1])
    texts = tmp_path / "texts.txt"
    texts.write_text(("w0 w1 w2 w3 " * 20 + "\n") * 6)
    sizes = "--texts 6 --rounds 2 --max-length 16 --threads 1"
    call = [str(tmp_path), "--data", str(texts), *sizes.split()]
    assert module.main(call) == 0
    said = capsys.readouterr().out
    assert asked == [128, 512]
    assert "largest memory: 228 MB with 128 texts, 612 MB with 512" in said
    monkeypatch.setattr(module, "MORE", 10.0)
    assert module.main(call) == 1
    capsys.readouterr()
    assert module.main([*call, "--memory-only"]) == 0
    assert float(capsys.readouterr().out) > 10
