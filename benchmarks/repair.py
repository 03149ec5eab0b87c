"""What `repair` takes beside copying the model's folder: its rewriting, its self-check, and the whole.

    OMP_NUM_THREADS=1 python benchmarks/repair.py                     # a random Llama of 8 layers, 576 wide
    python benchmarks/repair.py --model smollm2-135m --pairs 5

Each pair copies the folder and repairs it, one right after the other; ratios are medians over pairs, with the smallest and
the largest. Copying and rewriting read the same files, write as many bytes, and both are forced to the disk. Rewriting is all
that writes the new folder. Measuring loads the model in float32 and runs it; the self-check reads the copy back, holds it
against the source and runs it again.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
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


def force(folder: Path) -> None:
    """Force every file of a folder to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def main() -> None:
    """Print medians of both and their ratios."""
    from outlierlens.analyses.repair import RepairOptions, repair
    from outlierlens.data.texts import EXCERPT, read_texts

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
    taken: dict[str, list[float]] = {"copy": [], "measuring": [], "rewriting": [], "self-check": [], "whole": []}
    with tempfile.TemporaryDirectory(dir=asked.room) as place:
        room = Path(place)
        source = source_of(asked.model, asked.layers, room)
        size = sum(path.stat().st_size for path in source.iterdir())
        for number in range(asked.pairs + 1):
            moments: dict[str, float] = {}

            def step(label: str, done: int, total: int, moments: dict[str, float] = moments) -> None:
                if label == "checked":  # the new folder has no name yet
                    force(next(path for path in room.iterdir() if "repaired" in path.name))
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
    print(f"{asked.model or 'random'}: {size / 1e6:,.0f} MB, {asked.texts} texts, {asked.pairs} pairs")
    for name, found in taken.items():
        ratios = sorted(one / copy for one, copy in zip(found, taken["copy"], strict=True))
        print(
            f"{name}: {statistics.median(found):.2f} s, {statistics.median(ratios):.1f} times the copy "
            f"({ratios[0]:.1f} to {ratios[-1]:.1f})"
        )


if __name__ == "__main__":
    main()
