"""Recipes for assistants: `AGENTS.md` leads to each, each says when it is used, and its commands and its Python run offline."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))


def test_agents_lead_to_every_recipe() -> None:
    links = re.findall(r"\]\((skills/[^)]*)\)", (ROOT / "AGENTS.md").read_text("utf-8"))
    assert sorted(ROOT / link for link in links) == SKILLS
    assert len(SKILLS) == 4


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_a_recipe_runs_as_printed(path: Path, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text("utf-8")
    front = dict(re.findall(r"^(\w+): (.*)$", text.split("---")[1], re.MULTILINE))
    assert front["name"] == path.parent.name
    assert "Use " in front["description"]
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^\s*\$ (outlierlens .*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        code, out, err = run(*shlex.split(line)[1:])
        assert (code, bool(out.strip())) == (0, True), (line, err)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        known: dict[str, Any] = {}
        exec(compile(re.sub(r"^   ", "", block, flags=re.MULTILINE), path.parent.name, "exec"), known)
        assert callable(known["mask"])
