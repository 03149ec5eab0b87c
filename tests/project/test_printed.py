"""Notebooks and commands of the docs say what is kept of them; what is kept is small and tells nothing of a machine."""

import base64
import re
from pathlib import Path

import printed
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MAX_PICTURE, MAX_BYTES = 100_000, 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_is_kept(path: Path) -> None:
    import nbformat

    kept, now = nbformat.read(path, as_version=4), printed.executed(path)
    found = printed.differences(printed.said(kept), printed.said(now))
    assert not found, "\n".join(found)


def test_commands_of_the_docs_print_what_is_shown() -> None:
    blocks = [block for page in printed.PAGES for block in printed.shown(page.read_text("utf-8"))]
    assert {command.split()[1] for command, _ in blocks} >= {"scan", "ablate"}
    found = printed.differences([text for _, text in blocks], [printed.printed(command) for command, _ in blocks])
    assert not found, "\n".join(found)


def test_the_tolerance_is_said_where_numbers_are_shown() -> None:
    pages = [page for page in printed.PAGES if printed.shown(page.read_text("utf-8"))]
    assert pages
    for path in (*pages, *NOTEBOOKS):
        assert "last digit may differ by one" in path.read_text("utf-8"), path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_small_and_of_no_machine(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < MAX_BYTES
    pictures = [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 2
    assert all(picture.startswith(b"\x89PNG") and len(picture) < MAX_PICTURE for picture in pictures)
    texts = "\n".join(printed.said(notebook))
    assert not re.search(r"/(?:home|root|tmp|work|Users)/|\bseconds?\b|\d\d:\d\d", texts)
    assert all(cell.outputs or "=" in cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_numbers_may_move_a_little_and_words_may_not() -> None:
    kept = "dim 507: +7.75 nats of 1,000, p 0.04, slope 2.1e-05"
    assert printed.alike(kept, "dim 507: +7.76 nats of 1,000, p 0.03, slope −4.2e-05")
    for now in (
        kept.replace("7.75", "7.77"),
        kept.replace("+7.75", "−7.75"),
        kept.replace("1,000", "1,001"),
        kept.replace("507", "508"),
        kept.replace("2.1e-05", "3.1e-04"),
        kept.replace("dim ", ""),
        kept + ", 3",
    ):
        assert not printed.alike(kept, now)
    assert printed.differences([kept], [kept, kept])


def test_a_page_is_renewed_below_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "printed", lambda command: f"now of {command}\n")
    page = """# A page
```console
$ outlierlens scan mini-bert  # its norms
then 3.14 of `x`
```
```console
$ outlierlens fetch minilm-l6
said
```
```console
$ outlierlens report mini-bert
$ outlierlens report mini-planted
```
"""
    assert printed.shown(page) == [("outlierlens scan mini-bert  # its norms", "then 3.14 of `x`\n")]
    now = "now of outlierlens scan mini-bert  # its norms"
    assert printed.renewed(page) == page.replace("then 3.14 of `x`", now)
