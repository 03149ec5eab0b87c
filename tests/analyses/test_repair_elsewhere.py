"""A repaired folder goes on to other formats, and a kill at any write leaves no folder that looks whole.

Weight files that are written anew: the system may take less of a write than it was given.

Streams that are turned: the same logits, no outlier dimension, and a refusal where a turn would change something.
"""

import io
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from architectures import FAMILIES, batch, build
from llama_cpp import write_gguf
from outlierlens.analyses.repair import RepairOptions, repair
from outlierlens.analyses.repair_files import ONE, Shards, read_header, write_shards
from outlierlens.analyses.repair_rewriting import TOLERANCE, RewritingPlan, rotated, rotation, untie
from outlierlens.analyses.scan import scan_live
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
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


MOST = 1000  # bytes of one write; Linux takes 2,147,479,552


class _Short(io.FileIO):
    """A file whose system takes `MOST` bytes of a write at most, as any may."""

    taken: list[int]

    def write(self, content: Any) -> int:
        written = super().write(memoryview(content).cast("B")[:MOST])
        self.taken.append(written)
        return written


def test_what_the_system_takes_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, part = tmp_path / "source", tmp_path / "part"
    source.mkdir()
    part.mkdir()
    table = np.arange(40_000, dtype=np.float32).reshape(400, 100)
    save_file({"table": table, "other": np.ones(7, np.float32)}, source / ONE)
    taken: list[int] = []
    real = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any) -> Any:
        if not mode.startswith("x") or Path(file).parent != part:
            return real(file, mode, buffering, *given, **named)
        raw = _Short(file, "x")
        raw.taken = taken
        return raw if buffering == 0 else io.BufferedWriter(raw)

    monkeypatch.setattr(io, "open", opened)
    shards = Shards(source, {ONE: read_header(source / ONE)}, {}, head="head", table="table")
    write_shards(shards, part, RewritingPlan())
    found = load_file(part / ONE)
    assert set(found) == {"table", "other", "head"}
    for name, values in (("table", table), ("head", table), ("other", np.ones(7, np.float32))):
        np.testing.assert_array_equal(found[name], values)
    assert len(taken) > 320
    assert max(taken) == MOST
    assert sum(taken) == (part / ONE).stat().st_size > 2 * table.nbytes


def loaded_with_head(name: str, head: str = "ForCausalLM", **changes: Any) -> tuple[LoadedModel, Any]:
    """A tiny model with a head, and a forward pass that gives its logits."""
    import transformers

    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(family.model_type, **(family.config | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModel{head}").from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    given = batch(family)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return model(**given).logits

    return from_objects(model, None, name=name), run


@pytest.mark.parametrize("width", [1, 16, 576, 768, 9])
def test_a_rotation_is_orthogonal_and_spreads_every_dimension(width: int) -> None:
    turn = rotation(width, seed=3)
    assert np.allclose(turn @ turn.T, np.eye(width), atol=1e-12)
    assert np.array_equal(turn, rotation(width, seed=3))
    if width in (16, 576, 768):
        assert np.abs(turn).max() < 0.5


def test_its_hadamard_part_by_hand() -> None:
    assert np.allclose(np.abs(rotation(4)), 0.5)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("llama", "ForCausalLM"),
        ("llama-biases", "ForCausalLM"),
        ("qwen2", "ForCausalLM"),
        ("gemma", "ForCausalLM"),
        ("t5", "ForSeq2SeqLM"),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_stay(name: str, head: str, tied: bool) -> None:
    if name not in FAMILIES:
        pytest.skip("no tiny model of it")
    loaded, run = loaded_with_head(name, head, tie_word_embeddings=tied)
    before, states = run(), {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with rotated(loaded, run) as untied:
        assert untied == (tied or name == "t5")  # which ties whatever its config says
        assert torch.allclose(run(), before, atol=float(1e-5 * before.abs().max()))
        assert any(not torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())
        assert not loaded.model.config.tie_word_embeddings


def test_a_planted_outlier_is_gone() -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=False, hidden_size=64, head_dim=16)
    for layer in loaded.model.model.layers:
        layer.mlp.down_proj.weight.data[7] *= 40
    (found,) = scan_live(loaded).stacks
    assert 7 in {one.dim for one in found.outliers}
    with rotated(loaded, run):
        (found,) = scan_live(loaded).stacks
    assert not found.outliers


@pytest.mark.parametrize("tied", [False, True])
def test_in_a_context_every_bit_comes_back(tied: bool) -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=tied)
    before, states = run(), {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with rotated(loaded, run):
        assert not torch.equal(loaded.model.model.embed_tokens.weight, states["model.embed_tokens.weight"])
        assert torch.allclose(run(), before, atol=float(TOLERANCE * before.abs().max()))
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.model.config.tie_word_embeddings == tied
    assert all(torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("bert", "pre-norm"), ("gpt2", "subtracts the mean"), ("gemma2", "pre-norm"), ("olmo2", "pre-norm"),
     ("mixtral", r"experts are one parameter \(layers.0.mlp"), ("qwen3_moe", "experts"), ("gpt_oss", "experts")],
)  # fmt: skip
def test_what_a_turn_would_change_is_refused(name: str, reason: str) -> None:
    if name not in FAMILIES:
        pytest.skip("no tiny model of it")
    model = build(FAMILIES[name])
    loaded = from_objects(model, None, name=name)
    with pytest.raises(BadInput, match=reason), rotated(loaded, lambda: torch.ones(1)):
        pass


@pytest.mark.parametrize("tied", [False, True])
def test_a_reader_that_is_not_seen_is_said_and_nothing_changes(tied: bool) -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=tied)
    mlp = loaded.model.model.layers[1].mlp
    whole = mlp.forward
    mlp.forward = lambda x: whole(x.clone())  # a copy: its linears read another tensor than the norm gave
    states = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with pytest.raises(BadInput, match="nothing was changed"), rotated(loaded, run):
        pass
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.model.config.tie_word_embeddings == tied
    assert all(torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())


def test_untying_keeps_the_logits_and_comes_undone() -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=True)
    before, head, table = run(), loaded.model.lm_head, loaded.model.model.embed_tokens
    with ExitStack() as undo:
        untie(undo, loaded.model)
        assert head.weight is not table.weight
        assert torch.equal(run(), before)
    assert head.weight is table.weight
    assert loaded.model.config.tie_word_embeddings
