"""Make again what the docs and the example notebooks show of the packaged models, and tell whether it is what comes now.

python scripts/printed.py                       # every notebook and every page with such a command, in place
python scripts/printed.py quickstart            # those of this name

Of a page it is what stands below each `$ outlierlens … mini-…` that is alone in its console block; of a notebook, its texts,
tables and pictures, small and the same everywhere (not what it says on stderr, nor charts' specifications, of which the picture
is). Each runs in an empty folder, with an empty cache and one thread. `differences` is the comparison that the tests make.
"""

import asyncio
import base64
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```console\n\$ (outlierlens [^\n]*\bmini-[^\n]*)\n([^$`].*?)^```", re.MULTILINE | re.DOTALL)
KEPT = ("text/plain", "text/html", "image/png")
COLOURS = 48
TALLEST = 2000  # pixels; of taller pictures, of many panels, each side is halved
SECONDS = 600  # of a cell, where a machine does other things too
TOLERANCE = 1e-4  # or one in a number's last digit, if that is more; whole numbers are equal
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


@contextlib.contextmanager
def empty_place() -> Iterator[tuple[str, dict[str, str]]]:
    """An empty folder, and the variables of a process that starts there with an empty cache."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        # One thread: models this small lose by more.
        yield folder, {**os.environ, "OMP_NUM_THREADS": "1", "OUTLIERLENS_CACHE": cache}


def shown(page: str) -> list[tuple[str, str]]:
    """(command, what stands below it) of a page."""
    return [(found[1], found[2]) for found in BLOCK.finditer(page)]


def printed(command: str) -> str:
    """What a command of the docs prints on stdout."""
    with empty_place() as (folder, variables):
        words = [sys.executable, "-m", *shlex.split(command, comments=True)]
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def renewed(page: str) -> str:
    """The page with what its commands print now."""
    return BLOCK.sub(lambda found: f"```console\n$ {found[1]}\n{printed(found[1])}```", page)


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    with empty_place() as (folder, variables):
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        asyncio.run(client.async_execute(env=variables))  # in a loop of ours: the client would leave its own open
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
    """The PNG in base64 with a palette of few colours, and not at twice the size where it is tall: a fraction of the bytes."""
    made = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    (image if image.height <= TALLEST else image.reduce(2)).quantize(COLOURS).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


def said(notebook: Any) -> list[str]:
    """Every text that the outputs hold, in order; a picture is the text beside it."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            texts.append(output.get("text") or data.get("text/html") or data.get("text/plain") or "")
    return texts


def differences(kept: list[str], now: list[str]) -> list[str]:
    """Where texts that are kept and those that came now differ, apart from numbers that are close."""
    if len(kept) != len(now):
        return [f"{len(kept)} texts are kept, {len(now)} came"]
    return [f"kept: {one}\nnow:  {other}" for one, other in zip(kept, now, strict=True) if not alike(one, other)]


def alike(kept: str, now: str) -> bool:
    """Whether two texts are the same but for numbers within the tolerance."""
    pairs = zip(NUMBER.findall(kept), NUMBER.findall(now), strict=False)
    return NUMBER.sub("#", kept) == NUMBER.sub("#", now) and all(close(*pair) for pair in pairs)


def close(kept: str, now: str) -> bool:
    """Whether two numbers as they are written agree within the tolerance."""
    one, other = (float(number.replace(",", "").replace("−", "-")) for number in (kept, now))
    mantissa, _, power = kept.partition("e")
    if "." not in mantissa:
        return one == other
    last_digit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(one - other) < max(TOLERANCE, 1.001 * last_digit)


def main() -> int:
    """Make again what is named, or all; the exit status."""
    wanted = [path for path in (*PAGES, *NOTEBOOKS) if len(sys.argv) == 1 or path.stem in sys.argv[1:]]
    for path in wanted:
        if path.suffix == ".ipynb":
            nbformat.write(executed(path), path)
        elif shown(page := path.read_text("utf-8")):
            path.write_text(renewed(page), "utf-8")
        else:
            continue
        print(path.relative_to(ROOT), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
