"""Checkpoints as trainers write them: scan, the model that runs and track read of each what they read of the plain folder.

The layouts are written by hand as each trainer documents them; torch.distributed.checkpoint writes its own.
"""

import argparse
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import filesystem, metadata

from architectures import FAMILIES, build
from flax_files import packed_arrays
from outlierlens.analyses.scan import scan
from outlierlens.analyses.track import TrackOptions, track
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.trainers import TRAINERS, form_of
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, UnknownModel
from outlierlens.models.load import load_model
from outlierlens.results.document import to_json

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
State = dict[str, torch.Tensor]
DIM = 5
MODELS = {name: build(FAMILIES[name], "CausalLM") for name in ("llama", "gpt2")}
HEADS, KEYS, WIDTH = 2, 1, 8  # of the tiny Llama


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path_factory.mktemp("cache")))


def state_at(step: int, family: str = "llama") -> State:
    """The weights of a tiny model in which dimension 5 is large from step 200 on."""
    state = {name: value.clone() for name, value in MODELS[family].state_dict().items()}
    for name, value in state.items():
        if name.endswith("down_proj.weight"):
            value[DIM] *= 30 if step >= 200 else 1
        elif name.endswith("mlp.c_proj.weight"):
            value[:, DIM] *= 30 if step >= 200 else 1
    return state


# --- what trainers write -----------------------------------------------------------------------------------------


def saved(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)


def around(state: State, before: str) -> State:
    return OrderedDict((f"{before}{name}", value) for name, value in state.items())


OPTIMIZER = {
    "state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(1.0)}},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}


def random_states() -> dict[str, Any]:
    numbers = ("MT19937", np.zeros(624, np.uint32), 0, 0, 0.0)  # as NumPy's get_state gives them
    return {"python": random.getstate(), "numpy": numbers, "torch": torch.get_rng_state()}


def lightning(run: Path, step: int, state: State) -> None:
    saved(run / f"epoch={step // 100}-step={step}.ckpt", {
        "epoch": step // 100, "global_step": step, "pytorch-lightning_version": "2.5.0",
        "state_dict": around(state, "model."), "loops": {"fit_loop": {"state_dict": {}}}, "callbacks": {"Timer": {"t": 1.0}},
        "optimizer_states": [OPTIMIZER], "lr_schedulers": [], "hparams_name": "kwargs",
        "hyper_parameters": argparse.Namespace(lr=0.1, path=Path("x")),
    })  # fmt: skip


def composer(run: Path, step: int, state: State) -> None:
    model = around(state, "module.model.")
    content = {
        "state": {"model": model, "optimizers": {"Adam": OPTIMIZER}, "rank_zero_seed": 3},
        "rng": [random_states()],
    }
    saved(run / f"ep0-ba{step}-rank0.pt", content)
    shutil.copy(run / f"ep0-ba{step}-rank0.pt", run / "latest-rank0.pt")


def deepspeed(run: Path, step: int, state: State) -> None:
    saved(run / f"global_step{step}" / "mp_rank_00_model_states.pt", {
        "module": OrderedDict(state), "buffer_names": [], "optimizer": None,
        "param_shapes": [OrderedDict(a=torch.Size([2, 3]))],
        "sparse_tensor_module_names": set(), "global_steps": step, "mp_world_size": 1, "dp_world_size": 2,
        "ds_config": {"train_batch_size": 2}, "ds_version": "0.16.0", "rng": random_states(),
    })  # fmt: skip
    for rank in (0, 1):
        saved(
            run / f"global_step{step}" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
            {"optimizer_state_dict": OPTIMIZER},
        )
    (run / "zero_to_fp32.py").write_text("")
    (run / "latest").write_text(f"global_step{step}")


def cut(value: torch.Tensor, n: int, rank: int, axis: int | None) -> torch.Tensor:
    return value if axis is None else value.chunk(n, axis)[rank].clone()


def joined_heads(state: State, before: str) -> torch.Tensor:
    """Megatron's queries, keys and values: [group, queries of the group and its key and value, width]."""
    parts = (state[f"{before}self_attn.{one}_proj.weight"] for one in "qkv")
    return torch.cat([one.reshape(KEYS, -1, WIDTH, 16) for one in parts], 1).flatten(0, 2)


ARGS = {
    "num_layers": 3, "hidden_size": 16, "num_attention_heads": HEADS, "kv_channels": WIDTH, "swiglu": True,
    "group_query_attention": True, "num_query_groups": KEYS, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1,
}  # fmt: skip


def megatron_core(run: Path, step: int, state: State) -> None:
    padding = torch.zeros(8, 16)
    model: dict[str, Any] = {
        "embedding.word_embeddings.weight": torch.cat([state["model.embed_tokens.weight"], padding]),
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": torch.cat([state["lm_head.weight"], padding]), "output_layer._extra_state": None,
    }  # fmt: skip
    for layer in range(3):
        old, new = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        model |= {
            f"{new}self_attention.linear_qkv.weight": joined_heads(state, old),
            f"{new}self_attention.linear_qkv.layer_norm_weight": state[f"{old}input_layernorm.weight"],
            f"{new}self_attention.linear_qkv._extra_state": torch.zeros(4, dtype=torch.uint8),
            f"{new}self_attention.linear_proj.weight": state[f"{old}self_attn.o_proj.weight"],
            f"{new}mlp.linear_fc1.layer_norm_weight": state[f"{old}post_attention_layernorm.weight"],
            f"{new}mlp.linear_fc1.weight": torch.cat([state[f"{old}mlp.{one}_proj.weight"] for one in ("gate", "up")]),
            f"{new}mlp.linear_fc2.weight": state[f"{old}mlp.down_proj.weight"],
        }
    saved(run / f"iter_{step:07}" / "mp_rank_00" / "model_optim_rng.pt", {
        "args": argparse.Namespace(**ARGS), "checkpoint_version": 3.0, "iteration": step, "model": model,
        "optimizer": OPTIMIZER, "rng_state": [random_states()],
    })  # fmt: skip
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))


def megatron_gpt2(run: Path, step: int, state: State, n: int = 1, **version: float) -> None:
    """As Megatron-LM wrote GPT-2 before its core: dictionaries inside each other; all queries first, without a version."""
    for rank in range(n):
        layers: dict[str, Any] = {}
        for layer in range(3):
            old, new = f"transformer.h.{layer}.", f"layers.{layer}."
            for leaf in ("weight", "bias"):
                whole = state[f"{old}attn.c_attn.{leaf}"].t() if leaf == "weight" else state[f"{old}attn.c_attn.{leaf}"]
                mixed = torch.stack([one.reshape(2, 8, *one.shape[1:]) for one in whole.chunk(3)], 1).flatten(0, 2)
                heads = mixed if version else whole
                layers[f"{new}attention.query_key_value.{leaf}"] = cut(heads, n, rank, 0)
                layers[f"{new}input_layernorm.{leaf}"] = state[f"{old}ln_1.{leaf}"]
                layers[f"{new}post_attention_layernorm.{leaf}"] = state[f"{old}ln_2.{leaf}"]
                for theirs, ours, axis in (("attention.dense", "attn.c_proj", 1), ("mlp.dense_h_to_4h", "mlp.c_fc", 0),
                                           ("mlp.dense_4h_to_h", "mlp.c_proj", 1)):  # fmt: skip
                    value = state[f"{old}{ours}.{leaf}"]
                    one = (
                        cut(value.t(), n, rank, axis) if leaf == "weight" else cut(value, n, rank, None if axis else 0)
                    )
                    layers[f"{new}{theirs}.{leaf}"] = one
        layers |= {f"final_layernorm.{leaf}": state[f"transformer.ln_f.{leaf}"] for leaf in ("weight", "bias")}
        table = {"weight": cut(state["transformer.wte.weight"], n, rank, 0)}
        model = {"language_model": {
            "embedding": {"word_embeddings": table, "position_embeddings": {"weight": state["transformer.wpe.weight"]}},
            "encoder": layers,
        }}  # fmt: skip
        saved(run / f"iter_{step:07}" / f"mp_rank_{rank:02}" / "model_optim_rng.pt", {"model": model, **version})


def llama_own(run: Path, step: int, state: State, n: int = 1, table_axis: int = 1) -> None:
    """Meta's files: rows of queries and keys are pairs; linears are cut over files, the table by columns until Llama 2."""

    def pairs(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(-1, 2, WIDTH // 2, 16).transpose(1, 2).reshape(-1, 16)

    for rank in range(n):
        content = {"rope.freqs": torch.ones(4), "norm.weight": state["model.norm.weight"]}
        content["tok_embeddings.weight"] = cut(state["model.embed_tokens.weight"], n, rank, table_axis)
        content["output.weight"] = cut(state["lm_head.weight"], n, rank, 0)
        for layer in range(3):
            old, new = f"model.layers.{layer}.", f"layers.{layer}."
            for theirs, ours, axis in (("attention.wv", "self_attn.v_proj", 0), ("attention.wo", "self_attn.o_proj", 1),
                                       ("feed_forward.w1", "mlp.gate_proj", 0), ("feed_forward.w2", "mlp.down_proj", 1),
                                       ("feed_forward.w3", "mlp.up_proj", 0), ("attention_norm", "input_layernorm", None),
                                       ("ffn_norm", "post_attention_layernorm", None)):  # fmt: skip
                content[f"{new}{theirs}.weight"] = cut(state[f"{old}{ours}.weight"], n, rank, axis)
            for one in "qk":
                content[f"{new}attention.w{one}.weight"] = cut(
                    pairs(state[f"{old}self_attn.{one}_proj.weight"]), n, rank, 0
                )
        saved(run / f"step-{step}" / f"consolidated.{rank:02}.pth", content)
    told = {
        "dim": 16,
        "n_layers": 3,
        "n_heads": HEADS,
        "n_kv_heads": KEYS,
        "norm_eps": 1e-6,
        "multiple_of": 8,
        "vocab_size": -1,
    }
    (run / f"step-{step}" / "params.json").write_text(json.dumps(told))


def mistral_own(run: Path, step: int, state: State) -> None:
    """Mistral's files: Meta's names as safetensors."""
    llama_own(run, step, state)
    path = run / f"step-{step}" / "consolidated.00.pth"
    save_file(torch.load(path), path.with_name("consolidated.safetensors"))
    path.unlink()


def distributed(run: Path, step: int, state: State) -> None:
    content = {"model": around(state, "_orig_mod."), "optimizer": OPTIMIZER, "step": step}
    dcp.save(content, checkpoint_id=run / f"step-{step}", no_dist=True)


def sharded(run: Path, step: int, state: State) -> None:
    """As four processes would write it with FSDP and two tensor parallel ranks: every matrix in four pieces of three files."""
    folder = run / f"checkpoint-{step}" / "pytorch_model_fsdp_0"
    folder.mkdir(parents=True)
    files = [(folder / f"__{n}_0.distcp").open("wb") for n in range(3)]
    tensors, places, paths = {}, {}, {}
    for name, value in state.items():
        halves = [(slice(0, size // 2), slice(size // 2, size)) for size in value.shape]
        cuts = [(one,) for one in halves[0]] if value.ndim == 1 else [(a, b) for a in halves[0] for b in halves[1]]
        chunks, fqn = [], f"model.{name}"
        for number, where in enumerate(cuts):
            part, file = value[where].clone(), files[number % 3]
            start = file.tell()
            torch.save(part, file)
            at = torch.Size([one.start for one in where])
            chunks.append(metadata.ChunkStorageMetadata(at, part.shape))
            stored = filesystem._StorageInfo(Path(file.name).name, start, file.tell() - start)
            places[metadata.MetadataIndex(fqn, at, number)] = stored
        tensors[fqn] = metadata.TensorStorageMetadata(metadata.TensorProperties(value.dtype), value.shape, chunks)
        paths[fqn] = ("model", name)
    for file in files:
        file.close()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata.Metadata(tensors, paths, places)))


def numpy_archive(run: Path, step: int, state: State) -> None:
    run.mkdir(exist_ok=True)
    arrays = {
        name: np.asarray(value.numpy(), order="F" if "down_proj" in name else "C") for name, value in state.items()
    }
    np.savez(run / f"step_{step}.npz", **arrays)


def flax(run: Path, step: int, state: State) -> None:
    tree: dict[str, Any] = {}
    for name, value in state.items():
        *path, leaf = name.split(".")
        node = tree
        for one in path:
            node = node.setdefault(one, {})
        array = value.numpy()
        if array.ndim == 1:
            leaf = "scale" if leaf == "weight" else leaf
        elif leaf == "weight":
            leaf, array = ("embedding", array) if path[-1] in ("embed_tokens", "wte", "wpe") else ("kernel", array.T)
        node[leaf] = np.ascontiguousarray(array)
    (run / f"step-{step}").mkdir(parents=True)
    (run / f"step-{step}" / "flax_model.msgpack").write_bytes(packed_arrays(tree))


@dataclass(frozen=True)
class Layout:
    """A writer of (run folder, step, weights), what to name of step 200, and the family."""

    write: Callable[[Path, int, State], None]
    name: str
    family: str = "llama"


LAYOUTS = {
    "Lightning": Layout(lightning, "epoch=2-step=200.ckpt"),
    "Composer": Layout(composer, "ep0-ba200-rank0.pt"),
    "DeepSpeed": Layout(deepspeed, "global_step200"),
    "DeepSpeed below the Trainer": Layout(
        lambda run, step, state: deepspeed(run / f"checkpoint-{step}", step, state), "checkpoint-200"
    ),
    "Megatron's core": Layout(megatron_core, "iter_0000200"),
    "Megatron's GPT-2 of 2019": Layout(megatron_gpt2, "iter_0000200", "gpt2"),
    "Megatron's GPT-2, two ranks": Layout(
        lambda *given: megatron_gpt2(*given, 2, checkpoint_version=2.0), "iter_0000200", "gpt2"
    ),
    "Llama's own": Layout(llama_own, "step-200"),
    "Mistral's own": Layout(mistral_own, "step-200"),
    "torch DCP": Layout(distributed, "step-200"),
    "torch DCP, in pieces": Layout(sharded, "checkpoint-200"),
    "torch DCP, in pieces, GPT-2": Layout(sharded, "checkpoint-200", "gpt2"),
    "NumPy": Layout(numpy_archive, "step_200.npz"),
    "Flax": Layout(flax, "step-200"),
    "Flax's GPT-2": Layout(flax, "step-200", "gpt2"),
    "{'model': …} with another tensor beside": Layout(
        lambda run, step, state: saved(run / f"ckpt_{step}.pt", {"state": OPTIMIZER, "model": state, "rng": torch.ones(3)}),
        "ckpt_200.pt",
    ),
    "{'model_state_dict': …}": Layout(
        lambda run, step, state: saved(run / f"step_{step}.pth", {"model_state_dict": state, "loss": 1.0}), "step_200.pth"
    ),
}  # fmt: skip


def written(layout: Layout, run: Path, steps: tuple[int, ...] = (1000, 100, 200)) -> None:
    run.mkdir(parents=True, exist_ok=True)
    for step in steps:
        layout.write(run, step, state_at(step, layout.family))
    if layout.write not in (llama_own, mistral_own):
        MODELS[layout.family].config.save_pretrained(run)


def plain(folder: Path, family: str = "llama") -> Path:
    """The same model as transformers saves it, at step 200."""
    model = build(FAMILIES[family], "CausalLM")
    model.load_state_dict(state_at(200, family))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_scan_reads_what_it_reads_of_the_plain_folder(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    written(layout, tmp_path / "run", (100, 200))
    there, here = scan(str(plain(tmp_path / "plain", layout.family))), scan(str(tmp_path / "run" / layout.name))
    assert json.loads(to_json(here))["stacks"] == json.loads(to_json(there))["stacks"]
    assert here.stacks[0].strongest_dims(1) == (DIM,)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_value_is_that_of_the_plain_folder_by_each_way_of_reading(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    written(layout, tmp_path / "run", (200,))
    with open_checkpoint(str(plain(tmp_path / "plain", layout.family))) as there:
        values = dict(there.read(there.tensors))
    with open_checkpoint(str(tmp_path / "run" / layout.name)) as here:
        assert set(here.tensors) - {"lm_head.weight"} == set(values) - {"lm_head.weight"}
        for one, value in values.items():
            assert here.tensors[one].shape == value.shape
            np.testing.assert_array_equal(dict(here.read([one]))[one], value)
            np.testing.assert_array_equal(np.concatenate(list(here.read_rows(one, 3))).reshape(value.shape), value)
            if value.ndim == 2:
                np.testing.assert_array_equal(here.take_rows(one, [7, 2, 3]), value[[7, 2, 3]])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_model_that_runs_has_these_values(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    written(layout, tmp_path / "run", (200,))
    loaded = load_model(str(tmp_path / "run" / layout.name)).model
    for one, value in state_at(200, layout.family).items():
        torch.testing.assert_close(loaded.state_dict()[one], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_track_orders_the_steps_of_a_run(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    written(layout, tmp_path / "run")
    found = track([tmp_path / "run"])
    assert found.steps.tolist() == [100, 200, 1000]
    assert [(one.dim, one.step) for one in found.emergences if one.step] == [(DIM, 200)]


def test_every_form_of_the_table_is_written_here(tmp_path: Path) -> None:
    found = set()
    for number, layout in enumerate(LAYOUTS.values()):
        written(layout, tmp_path / str(number), (200,))
        found |= {form_of(path) for path in (tmp_path / str(number)).rglob("*") if path.is_file()}
    assert found >= {form for form in TRAINERS if form.files and not form.refused}


# --- what is refused, and what is left out -----------------------------------------------------------------------


def test_ranks_of_megatron_with_groups_of_keys_are_joined(tmp_path: Path) -> None:
    """Two ranks of a Llama with two keys, each with its queries, its half of gate and up, and its rows of the table."""
    config = type(MODELS["llama"].config)(
        **{**MODELS["llama"].config.to_dict(), "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    )
    torch.manual_seed(1)
    model = type(MODELS["llama"])(config)
    state, run = dict(model.state_dict()), tmp_path / "run"
    for rank in range(2):
        content: dict[str, Any] = {"decoder.final_layernorm.weight": state["model.norm.weight"]}
        for theirs, ours in (("embedding.word_embeddings", "model.embed_tokens"), ("output_layer", "lm_head")):
            content[f"{theirs}.weight"] = cut(state[f"{ours}.weight"], 2, rank, 0)
        for layer in range(3):
            old, new = f"model.layers.{layer}.", f"decoder.layers.{layer}."
            q, k, v = (state[f"{old}self_attn.{one}_proj.weight"] for one in "qkv")
            one_group = [q[rank * 8 : rank * 8 + 8], k[rank * 4 : rank * 4 + 4], v[rank * 4 : rank * 4 + 4]]
            halves = [cut(state[f"{old}mlp.{one}_proj.weight"], 2, rank, 0) for one in ("gate", "up")]
            content |= {
                f"{new}self_attention.linear_qkv.weight": torch.cat(one_group),
                f"{new}mlp.linear_fc1.weight": torch.cat(halves),
                f"{new}self_attention.linear_proj.weight": cut(state[f"{old}self_attn.o_proj.weight"], 2, rank, 1),
                f"{new}mlp.linear_fc2.weight": cut(state[f"{old}mlp.down_proj.weight"], 2, rank, 1),
                f"{new}input_layernorm.weight": state[f"{old}input_layernorm.weight"],
                f"{new}pre_mlp_layernorm.weight": state[f"{old}post_attention_layernorm.weight"],
            }  # fmt: skip
        saved(
            run / "iter_0000100" / f"mp_rank_{rank:02}" / "model_optim_rng.pt",
            {"model": content, "checkpoint_version": 3.0},
        )
    config.save_pretrained(run)
    for named in ("iter_0000100", "iter_0000100/mp_rank_01", "iter_0000100/mp_rank_00/model_optim_rng.pt"):
        loaded = load_model(str(run / named)).model.state_dict()
        for name, value in state.items():
            torch.testing.assert_close(loaded[name], value, rtol=0, atol=0)
    shutil.rmtree(run / "iter_0000100" / "mp_rank_01")
    with pytest.raises(BadFile, match=r"linear_qkv\.weight: 16 rows for 8 heads of 4; a rank is missing"):
        scan(str(run / "iter_0000100"))


@pytest.mark.parametrize("table_axis", [0, 1])
def test_files_of_llama_s_own_are_joined(table_axis: int, tmp_path: Path) -> None:
    config = MODELS["llama"].config.to_dict() | {"num_key_value_heads": 2}
    torch.manual_seed(1)
    model = type(MODELS["llama"])(type(MODELS["llama"].config)(**config))
    run = tmp_path / "run"
    llama_own(run, 100, dict(model.state_dict()), 2, table_axis)
    told = json.loads((run / "step-100" / "params.json").read_text()) | {"n_kv_heads": 2}
    (run / "step-100" / "params.json").write_text(json.dumps(told))
    loaded = load_model(str(run / "step-100")).model
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)
    (run / "step-100" / "params.json").write_text(json.dumps(told | {"dim": 32}))
    with pytest.raises(
        BadFile, match=r"attention\.wq\.weight: 16 rows for 2 heads of 16; a rank is missing, or the config is"
    ):
        scan(str(run / "step-100"))
    (run / "step-100" / "params.json").write_text(json.dumps(told | {"sliding_window": 8, "vocab_size": 40}))
    with open_checkpoint(str(run / "step-100")) as checkpoint:
        assert (checkpoint.config["model_type"], checkpoint.config["sliding_window"]) == ("mistral", 8)
    (run / "step-100" / "params.json").write_text(json.dumps(told | {"use_scaled_rope": True}))
    assert scan(str(run / "step-100")).stacks
    with pytest.raises(UnknownModel, match=r"put beside it: config\.json"):
        load_model(str(run / "step-100"))
    (run / "step-100" / "params.json").unlink()
    with pytest.raises(BadFile, match=r"nothing says how many heads attention has; put params\.json or config\.json"):
        scan(str(run / "step-100"))
    (run / "step-100" / "params.json").write_text(json.dumps(told))
    (run / "step-100" / "consolidated.00.pth").unlink()
    with pytest.raises(
        BadFile, match=r"is one of several ranks, and that of rank 0 is missing; put it beside this one"
    ):
        scan(str(run / "step-100"))


def refusal(model: Path) -> str:
    """What scan and the model that runs say, which is the same."""
    said = []
    for ask in (scan, load_model):
        with pytest.raises(BadFile) as caught:
            ask(str(model))
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


def rank_of(folder: Path, name: str, content: Any) -> None:
    saved(folder / name, content)
    MODELS["llama"].config.save_pretrained(folder.parent)


def zero_3(folder: Path) -> None:
    rank_of(
        folder, "zero_pp_rank_0_mp_rank_00_model_states.pt", {"module": {name: torch.empty(0) for name in state_at(0)}}
    )


def pipeline(folder: Path) -> None:
    for stage in range(2):
        rank_of(
            folder, f"mp_rank_00_{stage:03}/model_optim_rng.pt", {"model": {"language_model": {"w": torch.ones(2)}}}
        )


def unknown_cuts(folder: Path) -> None:
    for rank in range(2):
        rank_of(folder, f"mp_rank_{rank:02}_model_states.pt", {"module": state_at(0)})


def one_of_two(folder: Path) -> None:
    rank_of(folder, "mp_rank_00_model_states.pt", {"module": state_at(0), "mp_world_size": 2})


def of_other_models(folder: Path) -> None:
    megatron_gpt2(folder.parent, 100, state_at(100, "gpt2"), 2, checkpoint_version=2.0)
    path = folder / "mp_rank_01" / "model_optim_rng.pt"
    content = torch.load(path)
    del content["model"]["language_model"]["encoder"]["layers.0.mlp.dense_4h_to_h.weight"]
    torch.save(content, path)
    MODELS["gpt2"].config.save_pretrained(folder.parent)


def without_metadata(folder: Path) -> None:
    distributed(folder.parent, 100, state_at(100))
    (folder.parent / "step-100").rename(folder)
    (folder / ".metadata").unlink()
    MODELS["llama"].config.save_pretrained(folder.parent)


def layers_apart(folder: Path) -> None:
    rank_of(folder, "mp_rank_00_model_states.pt", {"module": None, "rng": torch.get_rng_state()})
    rank_of(folder, "layer_00-model_00-model_states.pt", {"w": torch.ones(2)})


def changed_metadata(folder: Path, change: Callable[[Any], None]) -> None:
    sharded(folder.parent, 100, state_at(100))
    (folder.parent / "checkpoint-100").rename(folder)
    MODELS["llama"].config.save_pretrained(folder.parent)
    path = folder / "pytorch_model_fsdp_0" / ".metadata"
    told = pickle.loads(path.read_bytes())
    change(told)
    path.write_bytes(pickle.dumps(told))


def a_piece_less(folder: Path) -> None:
    changed_metadata(folder, lambda told: told.state_dict_metadata["model.lm_head.weight"].chunks.pop())


def a_piece_elsewhere(folder: Path) -> None:
    def change(told: Any) -> None:
        told.state_dict_metadata["model.lm_head.weight"].chunks[0].offsets = torch.Size([39, 0])
        (index,) = (one for one in told.storage_data if one.fqn == "model.lm_head.weight" and one.index == 0)
        told.storage_data[metadata.MetadataIndex(index.fqn, torch.Size([39, 0]), 0)] = told.storage_data.pop(index)

    changed_metadata(folder, change)


def a_file_elsewhere(folder: Path) -> None:
    def change(told: Any) -> None:
        for place in told.storage_data.values():
            place.relative_path = "../__0_0.distcp"

    changed_metadata(folder, change)


def without_a_file(folder: Path) -> None:
    sharded(folder.parent, 100, state_at(100))
    (folder.parent / "checkpoint-100").rename(folder)
    (folder / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    MODELS["llama"].config.save_pretrained(folder.parent)


REFUSED = {
    zero_3: r"holds no weights: ZeRO-3 .* run in \S+ `python zero_to_fp32\.py \. pytorch_model\.bin --tag iter_0000100`",
    pipeline: r"its layers or experts are cut over 2 ranks \(mp_rank_00_001\), which is not read; save the model with",
    unknown_cuts: "is one of 2 ranks, and its names are not those of a model whose cuts are known; save the model as one",
    one_of_two: "is of 2 ranks, and 1 of them are there; put the others beside it",
    of_other_models: r"encoder\.layers\.0\.mlp\.dense_4h_to_h\.weight' is not in every rank; they are not of one model",
    layers_apart: r"has its layers cut over files \(layer_\*\), which is not read; save the model as one",
    a_piece_less: r"'model\.lm_head\.weight': its 3 pieces do not fill \[40, 16\]; .* run `python -m torch\.distr",
    a_piece_elsewhere: r"'model\.lm_head\.weight': a piece \[20, 8\] at \[39, 0\] is not of \[40, 16\]",
    a_file_elsewhere: r"lies in '\.\./__0_0\.distcp', which is not a plain file beside it, or is packed",
    without_metadata: r"\.metadata: is missing, and is written last: the checkpoint is not whole; take another step",
    without_a_file: r"__1_0\.distcp: this file is named by \.metadata but missing",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_is_no_whole_model_is_refused_with_its_reason(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "run" / "iter_0000100")
    assert re.search(REFUSED[make], refusal(tmp_path / "run" / "iter_0000100"))


def test_one_step_that_is_not_whole_is_left_out_of_a_run_in_words(tmp_path: Path) -> None:
    written(LAYOUTS["torch DCP"], tmp_path / "run")
    (tmp_path / "run" / "step-200" / ".metadata").unlink()
    with pytest.raises(
        BadFile, match=r"step-200 \(step 200\): .* is missing, and is written last: .*; --skip-damaged leaves it out"
    ):
        track([tmp_path / "run"])
    found = track([tmp_path / "run"], TrackOptions(skip_damaged=True))
    assert found.steps.tolist() == [100, 1000]
    assert any(note.startswith("left out, step 200") for note in found.notes)


def test_the_remedy_for_a_distributed_checkpoint_works_as_printed(tmp_path: Path) -> None:
    written(LAYOUTS["torch DCP"], tmp_path / "a run", (200,))
    folder = tmp_path / "a run" / "step-200"
    told = pickle.loads((folder / ".metadata").read_bytes())
    told.storage_meta = argparse.Namespace(a=1)
    (folder / ".metadata").write_bytes(pickle.dumps(told))
    said = refusal(folder)
    command = re.search(r"asks for argparse\.Namespace; refused, .* run `python (.*)` and name that file", said)
    subprocess.run(f"{sys.executable} {command[1]}", shell=True, check=True, capture_output=True)
    folder.with_name("step-200.pt").rename(tmp_path / "a run" / "whole.pt")
    assert scan(str(tmp_path / "a run" / "whole.pt")).stacks[0].strongest_dims(1) == (DIM,)


def test_ranks_in_one_folder_are_one_step(tmp_path: Path) -> None:
    for step in (100, 200):
        composer(tmp_path, step, state_at(step))
        shutil.copy(tmp_path / f"ep0-ba{step}-rank0.pt", tmp_path / f"ep0-ba{step}-rank1.pt")
    with pytest.raises(BadFile, match=r"ep0-ba100-rank0\.pt \(step 100\): .* is one of 2 ranks, and its names are not"):
        track([tmp_path])
    for step in (100, 200):
        (tmp_path / f"ep0-ba{step}-rank1.pt").rename(tmp_path / f"ep0-ba{step}-rank2.pt")
    with pytest.raises(BadFile, match="that of rank 1 is missing"):
        track([tmp_path])


def test_a_folder_named_as_a_checkpoint_without_weights_is_said(tmp_path: Path) -> None:
    written(LAYOUTS["Megatron's core"], tmp_path / "run", (100, 200))
    rank = tmp_path / "run" / "iter_0000300" / "mp_rank_00"
    rank.mkdir(parents=True)
    (rank / "distrib_optim.pt").write_bytes(b"x")
    found = track([tmp_path / "run"])
    assert found.steps.tolist() == [100, 200]
    assert f"left out: {rank.parent} is named as a checkpoint, and holds no weight file" in found.notes


class Payload:
    """Unpickled without care, writes a file."""

    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def test_what_a_container_asks_for_is_said_and_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a.ckpt", {"state_dict": state_at(200), "callbacks": Payload()})
    MODELS["llama"].config.save_pretrained(tmp_path)
    found = scan(str(tmp_path / "a.ckpt"))
    assert found.stacks[0].strongest_dims(1) == (DIM,)
    assert any(re.match(r"a\.ckpt: asks for \w+\.system too, and nothing of it was made", note) for note in found.notes)
    saved(tmp_path / "b.ckpt", state_at(200) | {"callbacks": Payload()})
    with pytest.raises(BadFile, match=r"asks for \w+\.system; refused, and nothing in it was executed"):
        scan(str(tmp_path / "b.ckpt"))
    content: dict[str, Any] = {"model": {}}
    content["model"]["model"] = content["model"]["again"] = content["model"]
    saved(tmp_path / "c.ckpt", content)
    with pytest.raises(BadFile, match="hold one another without end"):
        scan(str(tmp_path / "c.ckpt"))
    assert not (tmp_path / "executed").exists()


def test_a_name_that_no_house_has_leaves_all_as_they_are(tmp_path: Path) -> None:
    """Megatron with a norm of queries: no name is changed, and a row of the user's own serves."""
    megatron_core(tmp_path, 200, state_at(200))
    path = tmp_path / "iter_0000200" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["model"]["decoder.layers.0.self_attention.q_layernorm.weight"] = torch.ones(8)
    torch.save(content, path)
    row = tmp_path / "row.toml"
    row.write_text(
        '[[stack]]\nblocks = "decoder.layers.{layer}"\nnorm_site = "read"\n'
        'last_linear = ["mlp.linear_fc2"]\nother_writes = ["self_attention.linear_proj"]\n'
    )
    found = scan(str(tmp_path / "iter_0000200"), ScanOptions(row=row))
    assert found.stacks[0].strongest_dims(1) == (DIM,)


# --- arrays ------------------------------------------------------------------------------------------------------


def test_arrays_that_are_no_plain_numbers_or_packed_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", w=np.ones(3))
    np.savez(tmp_path / "b.npz", w=np.array([{}], dtype=object))
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "d.msgpack").write_bytes(packed_arrays({"step": 3}))
    (tmp_path / "e.msgpack").write_bytes(b"\xdf\xff\xff\xff\xff")
    (tmp_path / "f.msgpack").write_bytes(packed_arrays({"w": np.ones(3)}).replace(b"float64", b"float16"))
    (tmp_path / "g.msgpack").write_bytes(packed_arrays({"w": np.ones(3)}).replace(b"\x91\x03", b"\x91\x7f"))
    (tmp_path / "h.msgpack").write_bytes(packed_arrays({"w": {"__msgpack_chunked_array__": True}}))
    expected = {
        "a.npz": r"'w\.npy' is compressed, which is not read; write it with np\.savez, not savez_compressed",
        "b.npz": "not plain numbers",
        "c.npz": "truncated", "d.msgpack": "holds no named arrays", "e.msgpack": "4,294,967,295 bytes or items are claimed",
        "g.msgpack": r"claims \[127\] but stores 24 bytes", "h.msgpack": "cut into chunks, which is not read",
    }  # fmt: skip
    for name, why in expected.items():
        with pytest.raises(BadFile, match=why):
            open_checkpoint(str(tmp_path / name))
    with open_checkpoint(str(tmp_path / "f.msgpack")) as checkpoint:  # fewer bytes than there are is no harm
        assert checkpoint.tensors["w"].shape == (3,)
