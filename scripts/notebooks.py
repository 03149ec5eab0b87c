"""Execute the example notebooks and keep their outputs: text, tables and pictures, small and the same everywhere.

python scripts/notebooks.py                     # all of them, in place
python scripts/notebooks.py quickstart          # one

Each runs in an empty folder of its own. What a notebook says on stderr (progress) is not kept, nor are charts' specifications,
of which the picture is. `differences` compares texts and tables, numbers within a tolerance; the tests use it.
"""

import base64
import io
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
KEPT = ("text/plain", "text/html", "image/png")
COLOURS = 96
SECONDS = 120  # of a cell
TOLERANCE = 0.05  # relative or absolute: other processors round otherwise, and a training adds that up
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the kernel: models this small lose by more
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [_kept(output) for output in _joined(cell.outputs)]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Without stderr, and what was printed before and after it in one piece: when pieces end is chance."""
    found: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.get("name") == "stdout" and found and found[-1].get("name") == "stdout":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def _kept(output: Any) -> Any:
    if "data" in output:
        output.data = {kind: value for kind, value in output.data.items() if kind in KEPT}
        if "text/html" in output.data:
            output.data["text/plain"] = "(table)"  # a result's own words are long, and readers see the table
        if "image/png" in output.data:
            output.data["image/png"] = _smaller(output.data["image/png"])
    return output


def _smaller(picture: str) -> str:
    """The PNG in base64 with a palette of few colours: a quarter of the bytes, alike to the eye."""
    made = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(COLOURS).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


def said(notebook: Any) -> list[str]:
    """Every text that the outputs hold, in order; a picture is the text beside it."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            texts.append(output.get("text") or data.get("text/html") or data.get("text/plain") or "")
    return texts


def differences(kept: Any, fresh: Any) -> list[str]:
    """What two executions of a notebook say differently, apart from numbers that are close."""
    before, now = said(kept), said(fresh)
    if len(before) != len(now):
        return [f"{len(before)} outputs are kept, {len(now)} came"]
    found = []
    for one, other in zip(before, now, strict=True):
        numbers = [
            [float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(t)] for t in (one, other)
        ]
        same = NUMBER.sub("#", one) == NUMBER.sub("#", other) and all(
            math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in zip(*numbers, strict=True)
        )
        if not same:
            found.append(f"kept: {one}\nnow:  {other}")
    return found


def main() -> int:
    """Execute the named notebooks, or all; the exit status."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            nbformat.write(executed(path), path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
