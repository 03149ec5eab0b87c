"""What the project may not outgrow: pages, words, commands. (Options that `--help` shows: `tests/test_experiments.py`.)"""

import re
from pathlib import Path

from outlierlens.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def words(page: Path) -> int:
    """Tokens with a letter, outside fenced code."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"[^\W\d_]", word)) for word in prose.split())


def test_the_documentation_stays_small() -> None:
    counted = {page.relative_to(ROOT / "docs").as_posix(): words(page) for page in PAGES}
    print(f"{len(PAGES)} pages, {sum(counted.values()):,} words: {counted}")
    assert len(PAGES) <= 25
    assert sum(counted.values()) <= 22_000
    assert words(ROOT / "README.md") <= 450


def test_no_command_is_added_unless_another_goes() -> None:
    assert len(EXPERIMENTS) <= 37
