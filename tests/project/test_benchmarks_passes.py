"""The benchmark of passes measures what it says, and judges by its bounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from script_modules import script


def test_every_pass_beside_a_plain_one(
    words: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForMaskedLM

    from architectures import FAMILIES, config_of

    BertForMaskedLM(config_of(FAMILIES["bert"])).save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    texts = tmp_path / "texts.txt"
    texts.write_text("w0 w1\n" + ("w0 w1 w2 w3 " * 20 + "\n") * 6)
    module = script("benchmarks/passes.py")
    asked: list[list[str]] = []

    def peak(_: str, *given: str) -> float:
        asked.append([*given])
        return 100.0 + int(given[-2])

    monkeypatch.setattr(module, "peak", peak)
    sizes = "--min-words 70 --texts 6 --rounds 1 --max-length 16 --memory-texts"
    call = ["--model", str(tmp_path), "--data", str(texts), *sizes.split()]
    assert module.main(["attention", *call, "64"]) == 1  # 356 MB are more than 164 and 64
    said = capsys.readouterr().out
    assert said.startswith("attention of ")
    assert ": 6 texts, cpu, 1 threads" in said
    assert "attention over eager, weights collected:" in said
    assert "peak of memory: 164 MB with 64 texts, 356 MB with four times as many" in said
    assert [given[0] for given in asked] == ["attention", "attention"]
    assert module.main(["attention", *call, "8"]) == 0  # 132 MB are 24 more than 108
    capsys.readouterr()
    assert module.main([*call, "0"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if " texts, cpu" in line] == [
        *module.PASSES
    ]
    for name in ("observe", "frequency", "attention"):
        assert module.main([name, *call, "0", "--alone"]) == 0
        assert float(capsys.readouterr().out) > 10
    monkeypatch.setattr(module, "compare", lambda *_: 1.21)
    assert [module.main([name, *call, "0", "--bounds"]) for name in module.PASSES] == [1, 0, 1, 0, 0]

    def off(ways: Any, _: int) -> dict[str, Any]:
        for way in ways:
            way.timed()
        return {way.name: np.array([float(number)]) for number, way in enumerate(ways)}

    monkeypatch.setattr(module, "rounds", off)
    assert module.main(["losses", *call, "0"]) == 1
