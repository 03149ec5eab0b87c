"""What `repair` takes beside copying the model's folder: its rewriting, its self-check, and the whole.

    OMP_NUM_THREADS=1 python benchmarks/repair.py --layers 8 --pairs 5   # a random Llama, 576 wide; without, of one layer
    python benchmarks/repair.py --model smollm2-135m --pairs 5

Each pair copies the folder and repairs it, one right after the other; ratios are medians over pairs, with the smallest and
the largest. Copying and rewriting read the same files, write as many bytes, and both are forced to the disk. Rewriting is all
that writes the new folder. Measuring loads the model in float32 and runs it; the self-check reads the copy back, holds it
against the source and runs it again.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

from timing import asked, load, random_llama, ratios, spread

from outlierlens.analyses.repair import RepairOptions, repair
from outlierlens.data.texts import EXCERPT, read_texts


def source_of(name: str, layers: int, room: Path) -> Path:
    """The folder of the model of that name; without one, a random Llama with the tokenizer of a sample."""
    loaded = load(name or "mini-planted")
    model = loaded.model if name else random_llama(layers)
    if not name:
        model.model.layers[0].mlp.down_proj.weight.data[5] *= 2.0**17  # what has room needs no repair
    for one in (model, loaded.tokenizer):
        one.save_pretrained(room / "source")
    return room / "source"


def force(folder: Path) -> None:
    """Force every file of a folder to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def main() -> None:
    """Print medians of both and their ratios."""
    given = asked(__doc__, model="", layers=1, pairs=1, texts=4, margin=32, room=Path)
    texts = read_texts(EXCERPT, limit=given.texts)
    options = RepairOptions(fit="fp16", margin=given.margin)
    taken: dict[str, list[float]] = {"copy": [], "measuring": [], "rewriting": [], "self-check": [], "whole": []}
    with tempfile.TemporaryDirectory(dir=given.room) as place:
        room = Path(place)
        source = source_of(given.model, given.layers, room)
        size = sum(path.stat().st_size for path in source.iterdir())
        for number in range(given.pairs + 1):
            moments: dict[str, float] = {}

            def step(label: str, done: int, total: int, moments: dict[str, float] = moments) -> None:
                if label == "checked":  # the new folder has no name yet
                    force(next(path for path in room.iterdir() if "repaired" in path.name and path.is_dir()))
                moments[label] = time.perf_counter()

            start = time.perf_counter()
            shutil.copytree(source, room / "copy")
            force(room / "copy")
            copied = time.perf_counter()
            repair(str(source), room / "repaired", options, texts=texts, progress=step)
            end = time.perf_counter()
            if number:  # the first fills caches and imports
                taken["copy"].append(copied - start)
                taken["measuring"].append(moments["written"] - copied)
                taken["rewriting"].append(moments["checked"] - moments["written"])
                taken["self-check"].append(end - moments["checked"])
                taken["whole"].append(end - copied)
            for name in ("copy", "repaired"):
                shutil.rmtree(room / name)
    print(f"{given.model or 'random'}: {size / 1e6:,.0f} MB, {given.texts} texts, {given.pairs} pairs")
    for name, found in taken.items():
        print(f"{name}: {spread(found)} s, {spread(ratios(found, taken['copy']), '.1f')} times the copy")


if __name__ == "__main__":
    main()
