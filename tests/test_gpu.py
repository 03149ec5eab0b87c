"""What a GPU gives is what the processor gives, which all other tests run on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpus
from gold import files, make

GPU = any(Path("/dev").glob("nvidia[0-9]*"))
pytestmark = pytest.mark.skipif(not GPU, reason="no GPU of NVIDIA's")
HERE = Path(__file__).parent
CLOSE = 1e-2  # relative: some numbers are small differences of what float32 sums in another order
CLOSE_ROUNDED = 0.2  # where inputs are rounded to 8 bits: some of them fall on the other side of a step

RUNS = """
import json
from pathlib import Path
import every_command
from gold import make
for name, words in every_command.RUNS.items():
    every_command.RUNS[name] = tuple("cuda" if word == "cpu" else word for word in words)
found = make.ran(Path.cwd(), {"runs"})["runs"]
import torch
assert torch.cuda.max_memory_allocated() > 1e6, "nothing ran on the GPU"
Path("found.json").write_text(json.dumps(found))
"""

STEPS = """
import torch
from transformers import BertConfig, BertForMaskedLM
from outlierlens.training.watch import WatchOptions, watch

torch.manual_seed(0)
model = BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)).cuda()
ids = torch.randint(0, 50, (4, 8), device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
with watch(model, "watch.jsonl", WatchOptions(every=4)) as watcher:
    for step in range(1, 10):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        torch.cuda.set_sync_debug_mode("default" if step % 4 == 0 else "error")
        watcher.step(step, loss=loss)
        torch.cuda.set_sync_debug_mode("default")
        optimizer.zero_grad()
"""

BLOCKS = """
from functools import partial
from architectures import FAMILIES, batch, build
from block_equality import CONDITIONS, equal, under
from outlierlens.models.load import LoadOptions, load_model

for name in ("llama", "bert", "mixtral"):
    build(FAMILIES[name], FAMILIES[name].heads[0]).save_pretrained(name)
    whole, split = (
        load_model(f"./{name}", LoadOptions(device="cuda", attention="eager", by_block=by_block))
        for by_block in (False, True)
    )
    inputs = [{key: one.cuda() for key, one in batch(FAMILIES[name], seed).items()} for seed in (1, 2, 3)]
    theirs = [under(whole, condition, inputs) for condition in CONDITIONS]
    assert theirs[0][0][0].is_cuda
    for memory in (None, split.blocks.bytes_for(0, 0)):  # states that wait are on the GPU, or in a file
        split.blocks.memory = memory
        assert equal(split.run([partial(under, split, condition, inputs) for condition in CONDITIONS]), theirs)
    for parameter in split.model.parameters():
        assert parameter.device.type == "cuda"
"""


def on_gpu(script: str, folder: Path) -> None:
    """Run a script in a folder, in a process of its own that sees the GPUs."""
    given = gpus.shown() | {"OUTLIERLENS_CACHE": str(folder / "cache")}
    paths = (str(HERE), str(HERE.parent / "scripts"), given["PYTHONPATH"])
    given["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """{command: its result on the GPU}."""
    folder = tmp_path_factory.mktemp("gpu").resolve()
    on_gpu(RUNS, folder)
    read: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return read


@pytest.mark.parametrize("path", sorted((make.HERE / "runs").glob("*.json")) if GPU else [], ids=lambda path: path.stem)
def test_a_command_finds_the_same(path: Path, found: dict[str, Any]) -> None:
    now = next(one for name, one in found.items() if make.path_of("runs", name) == path)
    close = CLOSE_ROUNDED if path.stem == "plan" else CLOSE
    found_otherwise = files.differences(files.read(path), now, close=close)
    differences = [line for line in found_otherwise if ".reader:" not in line]  # the version of a library
    assert not differences, "\n".join([f"{len(differences)} differences:", *differences[:20]])


def test_watching_waits_for_the_gpu_at_steps_that_are_recorded_alone(tmp_path: Path) -> None:
    on_gpu(STEPS, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert {"step 4", "step 8"} <= {row.get("key") for row in rows}


def test_a_model_read_block_by_block_gives_what_it_gives_whole(tmp_path: Path) -> None:
    on_gpu(BLOCKS, tmp_path)
