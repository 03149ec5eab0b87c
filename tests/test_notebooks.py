"""The example notebooks run and say what their kept outputs say; the outputs are small and tell nothing of a machine."""

import base64
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MAX_PICTURE, MAX_BYTES = 100_000, 200_000


@pytest.fixture(scope="module")
def script() -> Any:
    """scripts/notebooks.py."""
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "scripts" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# Of jupyter_client and its sockets, which end with the kernel.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_it_says_what_is_kept(path: Path, script: Any) -> None:
    import nbformat

    assert script.differences(nbformat.read(path, as_version=4), script.executed(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_small_and_of_no_machine(path: Path, script: Any) -> None:
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
    texts = "\n".join(script.said(notebook))
    assert not re.search(r"/(?:home|root|tmp|work|Users)/|\bseconds?\b|\d\d:\d\d", texts)
    assert all(cell.outputs or "=" in cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_numbers_may_move_a_little_and_words_may_not(script: Any) -> None:
    def notebook(text: str) -> Any:
        return script.nbformat.v4.new_notebook(
            cells=[
                script.nbformat.v4.new_code_cell(
                    "", outputs=[{"output_type": "stream", "name": "stdout", "text": text}]
                )
            ]
        )

    kept = notebook("dim 507: +7.75 nats of 1,000")
    assert script.differences(kept, notebook("dim 507: +7.61 nats of 1,010")) == []
    assert script.differences(kept, notebook("dim 507: +6.10 nats of 1,000"))
    assert script.differences(kept, notebook("dim 507: −7.75 nats of 1,000"))
    assert script.differences(kept, notebook("507: +7.75 nats of 1,000"))
    assert script.differences(kept, script.nbformat.v4.new_notebook())
