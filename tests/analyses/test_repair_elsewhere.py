"""A repaired folder goes on to other formats, and a kill at any write leaves no folder that looks whole."""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from llama_cpp import write_gguf
from outlierlens.analyses.repair import RepairOptions, repair
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Texts
from outlierlens.models.load import LoadOptions, load_model
from planted import some_texts

FP16 = RepairOptions(fit="fp16", max_length=16)
IDS = torch.tensor([[1, 2, 3, 5, 8]])
N_KILLS = 10
WRITES = ("os.rename", "os.mkdir", "os.chmod", "shutil.copyfile")


@pytest.fixture
def texts() -> Texts:
    return some_texts(6, seed=3)


@pytest.fixture
def source(tmp_path: Path, words: Any) -> Path:
    """A tiny Llama whose first block writes far beyond float16."""
    model = build(FAMILIES["llama"], "CausalLM")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[5] *= 2.0**17
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    words(kind="causal").save_pretrained(folder)
    (folder / "README.md").write_text("# A card\n")
    return folder


def read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@torch.no_grad()
def test_it_is_exported_to_onnx(source: Path, texts: Texts, tmp_path: Path) -> None:
    """The graph gives the logits of the source; its reader finds the tensors of the repaired folder."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    class Logits(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            read: torch.Tensor = self.model(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
            return read

    assert repair(str(source), tmp_path / "fits", FP16, texts=texts).exact
    n = IDS.shape[1]
    later = torch.ones(n, n).triu(1).bool()
    given = (IDS, torch.zeros(1, 1, n, n).masked_fill(later, -1e9), torch.arange(n)[None])
    path = tmp_path / "onnx" / "model.onnx"
    path.parent.mkdir()
    repaired = read(tmp_path / "fits")
    torch.onnx.export(Logits(repaired), given, str(path), dynamo=False, input_names=["ids", "mask", "places"])
    graph = ReferenceEvaluator(onnx.load(path))
    (found,) = graph.run(None, {name: one.numpy() for name, one in zip(("ids", "mask", "places"), given, strict=True)})
    torch.testing.assert_close(torch.tensor(found), read(source)(IDS).logits, rtol=1e-4, atol=1e-4)
    name = "model.layers.1.mlp.down_proj.weight"
    with open_checkpoint(str(path)) as checkpoint:
        (stored,) = (one for one in checkpoint.tensors if one.endswith(name))
        ((_, values),) = checkpoint.read([stored])
    assert torch.equal(torch.tensor(values), repaired.state_dict()[name])


@torch.no_grad()
def test_it_is_converted_to_gguf(source: Path, texts: Texts, tmp_path: Path) -> None:
    """The converted copy keeps the smaller epsilon and gives the logits of the source, bit for bit."""
    pytest.importorskip("gguf")
    assert repair(str(source), tmp_path / "fits", FP16, texts=texts).exact
    (tmp_path / "gguf").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tmp_path / "fits" / name, tmp_path / "gguf" / name)
    path = write_gguf(tmp_path / "gguf" / "model.gguf", read(tmp_path / "fits"), "llama")
    loaded = load_model(str(path), LoadOptions(device="cpu"))
    loaded.model.set_attn_implementation("eager")  # type: ignore[operator]
    assert torch.equal(loaded.model(IDS).logits, read(source)(IDS).logits)  # type: ignore[operator]


def in_child(work: Callable[[], object], at: int, place: Path) -> tuple[int, int]:
    """(exit code, steps) of `work` in a copy of this process, killed before step `at` that changes a file in `place`."""
    ends = os.pipe()
    child = os.fork()
    if not child:

        def look(event: str, given: tuple[Any, ...]) -> None:
            written = event == "open" and str(given[1])[:1] in ("w", "x", "a", "r") and (given[2] or 0) & os.O_ACCMODE
            if (written or event in WRITES) and str(given[0]).startswith(str(place)):
                os.write(ends[1], b".")
                if os.fstat(ends[0]) and next(steps) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        steps = iter(range(1, 10_000))
        sys.addaudithook(look)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(ends[1])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(ends[0], "rb") as said:
        return code, len(said.read())


def test_ten_kills_leave_nothing_that_looks_whole(source: Path, texts: Texts, tmp_path: Path) -> None:
    """Before any step that writes, renames or copies: no folder has the name, or it is whole and reads back exactly."""
    before = read(source)(IDS).logits
    whole = tmp_path / "whole" / "fits"
    code, n_steps = in_child(lambda: repair(str(source), whole, FP16, texts=texts), 0, whole.parent)
    assert code == 0
    assert n_steps >= N_KILLS
    wanted = {path.name: path.read_bytes() for path in whole.iterdir()}
    # The last steps are those where a folder may have its name already.
    moments = {*random.Random(0).sample(range(1, n_steps - 1), N_KILLS - 2), n_steps - 1, n_steps}
    for at in sorted(moments):
        target = tmp_path / str(at) / "fits"
        code, _ = in_child(lambda target=target: repair(str(source), target, FP16, texts=texts), at, target.parent)  # type: ignore[misc]
        assert code == -signal.SIGKILL
        if target.exists():
            assert {path.name: path.read_bytes() for path in target.iterdir()} == wanted
    target = tmp_path / str(min(moments)) / "fits"
    assert repair(str(source), target, FP16, texts=texts).exact
    assert torch.equal(read(target)(IDS).logits, before)
