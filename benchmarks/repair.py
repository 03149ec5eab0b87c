"""What `repair` takes beside copying the model's folder: the whole of it, and the writing alone.

    OMP_NUM_THREADS=1 python benchmarks/repair.py                     # a random Llama of 8 layers, 576 wide
    python benchmarks/repair.py --model smollm2-135m --pairs 5

Each pair copies the folder and repairs it, one right after the other, both forced to the disk; ratios are medians over pairs,
with the smallest and the largest. Writing is loading the stored values, changing them and saving them; the rest loads the
model in float32, runs it on texts, reads the copy back and runs it again.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def source_of(name: str, layers: int, room: Path) -> Path:
    """The folder of the model of that name; without one, a random Llama with the tokenizer of a sample."""
    from outlierlens.models.load import LoadOptions, load_model

    loaded = load_model(name or "mini-planted", LoadOptions(device="cpu", offline=True))
    model: Any = loaded.model
    if not name:
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers,
                num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
            )
        )  # fmt: skip
        model.model.layers[0].mlp.down_proj.weight.data[5] *= 2.0**17  # what has room needs no repair
    folder = room / "source"
    model.save_pretrained(folder)
    assert loaded.tokenizer is not None
    loaded.tokenizer.save_pretrained(folder)
    return folder


def copied(source: Path, target: Path) -> None:
    """Copy the folder, forced to the disk."""
    shutil.copytree(source, target)
    force(target)


def force(folder: Path) -> None:
    """Force every file of a folder to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def main() -> None:
    """Print medians of both and their ratios."""
    from outlierlens.data.texts import EXCERPT, read_texts
    from outlierlens.experiments.repair import measure
    from outlierlens.experiments.repair.options import RepairOptions

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="sample or folder; by default a random one")
    parser.add_argument("--layers", type=int, default=8, help="of the random model")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--margin", type=int, default=32)
    parser.add_argument("--room", type=Path, help="where folders are written; default: the temporary one")
    asked = parser.parse_args()
    texts = read_texts(EXCERPT, limit=asked.texts)
    options = RepairOptions(fit="fp16", margin=asked.margin)
    copies, wholes, writes = [], [], []
    with tempfile.TemporaryDirectory(dir=asked.room) as place:
        room = Path(place)
        source = source_of(asked.model, asked.layers, room)
        size = sum(path.stat().st_size for path in source.iterdir())
        for number in range(asked.pairs + 1):
            moments: dict[str, float] = {}

            def step(label: str, done: int, total: int, moments: dict[str, float] = moments) -> None:
                moments[label] = time.perf_counter()

            def run(step: Callable[[str, int, int], None] = step) -> None:
                measure.repair(str(source), room / "repaired", options, texts=texts, progress=step)
                force(room / "repaired")

            taken = _seconds(lambda: copied(source, room / "copy")), _seconds(run)
            if number:  # the first fills caches and imports
                copies.append(taken[0])
                wholes.append(taken[1])
                writes.append(moments["checked"] - moments["written"])
            for name in ("copy", "repaired"):
                shutil.rmtree(room / name)
    print(f"{asked.model or 'random'}: {size / 1e6:,.0f} MB, {asked.texts} texts, {asked.pairs} pairs")
    for name, found in (("repair", wholes), ("its writing", writes)):
        ratios = sorted(one / copy for one, copy in zip(found, copies, strict=True))
        print(
            f"{name}: {statistics.median(found):.2f} s, copying {statistics.median(copies):.2f} s, ratio "
            f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        )


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
