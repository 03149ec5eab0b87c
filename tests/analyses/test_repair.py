"""The command: what it writes, how plain transformers reads it, what it refuses, and what a kill leaves."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import range_results
from architectures import FAMILIES, build
from forked import status
from media_models import pictures, save_speech, save_vit, sounds, write_wav
from outlierlens.analyses import repair_files
from outlierlens.analyses.repair import RepairOptions, repair
from outlierlens.analyses.repair_factors import Sizes, check_of, outputs, pairs_of, sizes_of
from outlierlens.analyses.repair_rewriting import TOLERANCE, RewritingPlan, repaired
from outlierlens.architectures.pairs import Pair
from outlierlens.data.texts import Texts
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import load_model
from planted import some_texts, wrap
from repair_families import load
from repair_results import repaired as repaired_by_hand

FP16 = RepairOptions(fit="fp16", max_length=16)


def write_logits(folder: Path, target: Path) -> None:
    """The logits that plain transformers gives, in a process of its own."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        torch.save(model(**tokenizer("w1 w2 w3 w5", return_tensors="pt", return_token_type_ids=False)).logits, target)


def logits_of(folder: Path, target: Path) -> torch.Tensor:
    """What `write_logits` has written."""
    assert status(write_logits, folder, target) == 0
    logits: torch.Tensor = torch.load(target)
    return logits


@pytest.fixture
def texts() -> Texts:
    return some_texts(6, seed=3)


@pytest.fixture
def write(tmp_path: Path, words: Any) -> Callable[..., Path]:
    """Writes a tiny causal model whose first block writes far beyond float16."""

    def make(family: str = "qwen3", dtype: torch.dtype = torch.float32, *, times: float = 2.0**17) -> Path:
        model = build(FAMILIES[family], "CausalLM")
        with torch.no_grad():
            for name, values in model.named_parameters():
                if name.endswith(("layers.0.mlp.down_proj.weight", "h.0.mlp.c_proj.weight", "layers.0.fc2.weight")):
                    values[5] *= times
                if name.endswith("layers.0.mlp.experts.down_proj"):
                    values[:, 5] *= times
        folder = tmp_path / family
        model.to(dtype).save_pretrained(folder, max_shard_size="6KB" if family == "qwen3" else "1GB")
        words(kind="causal").save_pretrained(folder)
        (folder / "README.md").write_text("# A card\n")
        return folder

    return make


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3", torch.float32),
        ("qwen3", torch.bfloat16),
        ("gpt2", torch.float32),
        ("gemma", torch.float32),
        ("mixtral", torch.float32),
    ],
)
def test_plain_transformers_gives_the_same(
    family: str, dtype: torch.dtype, write: Callable[..., Path], texts: Texts, tmp_path: Path
) -> None:
    source, target = write(family, dtype), tmp_path / "fits"
    found = repair(str(source), target, FP16, texts=texts)
    assert found.exact
    assert found.before.largest > 65504
    assert found.before.finite < 1
    assert found.after.largest == found.before.largest * 2.0**found.exponent <= 65504 / 4
    assert found.after.finite == 1
    logits = [logits_of(folder, tmp_path / "logits") for folder in (source, target)]
    assert torch.equal(*logits)


def test_nothing_else_is_changed(write: Callable[..., Path], texts: Texts, tmp_path: Path) -> None:
    source, target = write(), tmp_path / "fits"
    found = repair(str(source), target, FP16, texts=texts)
    config = json.loads((source / "config.json").read_text())
    config["rms_norm_eps"] *= 4.0**found.exponent
    assert json.loads((target / "config.json").read_text()) == config
    assert len(list(target.glob("model-*.safetensors"))) > 1
    manifest = json.loads((target / "repair.json").read_text())
    factors = manifest["exponents of two"]
    before, after = (
        {k: v for f in one.glob("*.safetensors") for k, v in load_file(f).items()} for one in (source, target)
    )
    assert before.keys() == after.keys()
    for name, values in before.items():
        wanted = values
        for exponents in factors.get(name, [0]):
            wanted = wanted * torch.tensor(exponents).float().exp2()
        assert torch.equal(after[name], wanted), name
    assert (target / "README.md").read_text().startswith("# A card\n\n## Repaired")
    same = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} & {
        one.name for one in source.iterdir()
    }
    assert all((target / name).read_bytes() == (source / name).read_bytes() for name in same)


@pytest.mark.parametrize("stored", ["without a prefix", "the head too", "in another type"])
def test_however_the_source_names_its_weights(
    stored: str, write: Callable[..., Path], texts: Texts, tmp_path: Path
) -> None:
    source, target = write("gpt2"), tmp_path / "fits"
    values = load_file(source / "model.safetensors")
    if stored == "without a prefix":
        values = {name.removeprefix("transformer."): one for name, one in values.items()}
    elif stored == "the head too":
        values["lm_head.weight"] = values["transformer.wte.weight"].clone()
    else:
        values["transformer.h.1.ln_1.weight"] = values["transformer.h.1.ln_1.weight"].half()
    save_file(values, source / "model.safetensors", {"format": "pt", "made": "by hand"})
    found = repair(str(source), target, FP16, texts=texts)
    assert found.exact
    after = load_file(target / "model.safetensors")
    assert after.keys() == values.keys()
    assert all(after[name].dtype == one.dtype for name, one in values.items())
    with safe_open(target / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "by hand"}
    if stored == "the head too":
        assert torch.equal(after["lm_head.weight"], after["transformer.wte.weight"])


def test_rows_that_are_read_one_by_one_give_the_same(
    write: Callable[..., Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made = write("qwen3"), []
    for size in (2**20, 1, 100):
        monkeypatch.setattr(repair_files, "CHUNK", size)
        repair(str(source), tmp_path / str(size), FP16, texts=texts)
        made.append({file.name: file.read_bytes() for file in (tmp_path / str(size)).glob("*.safetensors")})
    assert made[0] == made[1] == made[2]


def _save_pictures(folder: Path, data: Path) -> dict[str, int]:
    """A ViT whose stream overflows, and three pictures; by what it is repaired."""
    from PIL import Image

    values = load_file(save_vit(folder) / "model.safetensors")
    values["vit.encoder.layer.0.output.dense.bias"][3] = 300000.0
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    data.mkdir()
    for number, picture in enumerate(pictures(3, seed=1)[0]):
        Image.fromarray(np.asarray(picture, dtype=np.uint8)).save(data / f"{number}.png")
    return {}


def _save_recordings(folder: Path, data: Path) -> dict[str, int]:
    """A pre-norm wav2vec2 of which one value overflows, and three recordings."""
    values = load_file(save_speech(folder, stable=True) / "model.safetensors")
    block = "wav2vec2.encoder.layers.0.attention"
    for name in ("weight", "bias"):
        values[f"{block}.v_proj.{name}"][3] *= 2.0**40
    values[f"{block}.out_proj.weight"][:, 3] *= 2.0**-40
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    for number, recording in enumerate(sounds(3, seed=1)[0]):
        write_wav(data / f"{number}.wav", recording)
    return {"values": 1}


@pytest.mark.parametrize(
    ("save", "inputs", "exponent"), [(_save_pictures, "images", -5), (_save_recordings, "recordings", 0)]
)
def test_pictures_and_recordings_are_read_too(
    save: Callable[..., dict[str, int]], inputs: str, exponent: int, tmp_path: Path, run: Any
) -> None:
    model, data, target = tmp_path / "model", tmp_path / "data", tmp_path / "fits"
    channels = save(model, data)
    asked = ("--data", str(data), "--fit", "fp16", "-o", str(target), "--device", "cpu", "--json")
    code, out, err = run("repair", str(model), *asked)
    assert code == 0, err
    found = json.loads(out)
    assert found["exact"]
    assert (found["about"]["inputs"], found["exponent"], found["channels"]) == (inputs, exponent, channels)
    before, after = found["models"]["finite"]
    assert before < after == 1
    assert (target / "preprocessor_config.json").is_file()


def test_what_no_factor_reaches_is_said() -> None:
    found = repaired_by_hand()
    sizes = {"stream": 11875.0, "gate/up": 70000.0, "q·k": 1e6}
    kinds = tuple(replace(found.kinds[0], tensor=kind, after=size) for kind, size in sizes.items())
    assert "Still beyond fp16: gate/up. No factor passes there." in list(replace(found, kinds=kinds).sentences())
    assert not [line for line in found.sentences() if "Still beyond" in line]


def test_neurons_lose_their_spikes(write: Callable[..., Path], texts: Texts, tmp_path: Path) -> None:
    source = write("llama", times=1.0)
    name = "model.layers.1.mlp.up_proj.weight"
    values = load_file(source / "model.safetensors")
    values[name][3] *= 512
    values["model.layers.1.mlp.down_proj.weight"][:, 3] /= 512
    save_file(values, source / "model.safetensors", {"format": "pt"})
    found = repair(str(source), tmp_path / "fits", RepairOptions(fit="int8", max_length=16), texts=texts)
    assert found.exact
    assert found.exponent == 0
    assert found.channels.keys() == {"neurons"}
    assert found.before.spikes > 100
    assert found.after.spikes <= 2
    assert found.after.distance < found.before.distance / 4
    after = load_file(tmp_path / "fits" / "model.safetensors")
    assert torch.equal(after["model.embed_tokens.weight"], values["model.embed_tokens.weight"])


@pytest.mark.parametrize("family", ["llama-biases", "gemma", "opt", "t5-gated", "mixtral"])
def test_neurons_are_balanced(family: str, words: Any) -> None:
    loaded = wrap(FAMILIES[family], words(), double=False)
    check = check_of(loaded, some_texts(3), max_length=8, seed=0)
    factors = sizes_of(loaded, check).balanced_exponents(1.0, 1.0)
    assert factors
    wanted = outputs(loaded.model, check.arguments)
    with repaired(loaded, RewritingPlan().pairs(factors)):
        assert all(map(torch.equal, wanted, outputs(loaded.model, check.arguments)))
        assert (
            family == "mixtral" or sizes_of(loaded, check).spikes <= 2
        )  # of which each expert has a median of its own


def test_exponents_by_hand() -> None:
    at = torch.arange(5)
    pair = Pair("neurons", (("up", at[:, None]),), (("down", at[None]),), (("down", "reads", at),), at)
    peaks = {("down", "reads"): torch.tensor([1.0, 2.0, 2.0, 9.0, 70000.0])}
    rows = [
        range_results.row(kind, layer, size)
        for kind, layer, size in (("stream", "0", 100.0), ("stream", "1", 20000.0), ("MLP output", "0", 7.0))
    ]
    seen = Sizes(tuple(rows), peaks, (pair,))
    assert seen.layers == (100.0, 20000.0)
    assert seen.stream_exponent("fp16", 1) == 0
    assert seen.stream_exponent("fp16", 4) == -1
    assert seen.stream_exponent("fp8", 1) == -6
    assert seen.stream_exponent("int8", 4) == 0
    (balanced,) = seen.balanced_exponents(1.0, 1.0)
    assert balanced[1].tolist() == [0, 0, 0, -2, -15]
    assert seen.balanced_exponents(1.0, 0.5)[0][1].tolist() == [0, 0, 0, -1, -7]
    assert seen.balanced_exponents(64.0, 1.0)[0][1].tolist() == [0, 0, 0, 0, -9]
    assert seen.pair_exponents("int8", 4) == []
    assert seen.pair_exponents("fp16", 1)[0][1].tolist() == [0, 0, 0, 0, -1]
    # Keys of two dimensions that are turned into each other: √(3² + 4²) = 5; queries may come down too.
    seen_keys, seen_queries = ("k", "gives", at), ("q", "gives", at)
    keys = Pair("keys", (), (), (seen_keys,), torch.tensor([0, 0, 2, 2, 4]), (seen_queries,))
    sizes = {("k", "gives"): torch.tensor([3.0, 4.0, 0.1, 0.1, 1.0]), ("q", "gives"): torch.tensor([1.0, 0, 0, 9, 0])}
    assert keys.room(sizes, 4.0).tolist() == [-1, -1, 2, 2, 0]


def test_what_is_fused_or_shared_lies_where_it_is_said() -> None:
    """Bloom's rows by head; GPT-2's thirds; two queries that share a key."""
    width = 8
    (bloom, *_), (gpt2, *_) = (pairs_of(load(FAMILIES[name]), ("values",)) for name in ("bloom", "gpt2"))
    rows = bloom.gives[0][1].flatten()
    assert rows[: 2 * width].tolist() == [-1] * 2 * width
    assert rows[2 * width : 3 * width].tolist() == list(range(width))
    assert rows[5 * width :].tolist() == list(range(width, 2 * width))
    assert gpt2.gives[0][1].flatten().tolist() == [-1] * 32 + list(range(16))
    (llama, *_) = pairs_of(load(FAMILIES["llama"]), ("values",))
    assert llama.takes[0][1].flatten().tolist() == [*range(width), *range(width)]
    (keys, *_) = pairs_of(load(FAMILIES["llama"]), ("keys",))
    assert keys.shared.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(("family", "part"), [("bert", "value"), ("llama", "norm"), ("phi3", "key")])
def test_a_pair_that_lacks_room_is_scaled_and_nothing_else(
    family: str, part: str, write: Callable[..., Path], texts: Texts, tmp_path: Path, words: Any
) -> None:
    source = tmp_path / "source"
    loaded = load(FAMILIES[family])
    kind: Any = {"value": "values", "norm": "norms", "key": "keys"}[part]
    (pair, *_) = pairs_of(loaded, (kind,))
    with repaired(loaded, RewritingPlan().pairs([(pair, torch.where(pair.shared == 0, 24, 0))])):
        loaded.model.save_pretrained(source)  # type: ignore[operator]
    words(kind="masked" if family == "bert" else "causal").save_pretrained(source)
    found = repair(str(source), tmp_path / "fits", FP16, texts=texts)
    assert found.exact
    assert found.exponent == 0
    assert found.channels.keys() == {kind}
    assert found.before.finite < 1
    assert found.after.finite == 1


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        ("fp16", r"No repair needed: .*llama fits fp16 with a margin of 4 ×\."),
        ("int8", r"No repair helps: .* bring .*llama's outputs in int8 nearer to float32\."),
    ],
)
def test_nothing_to_repair_is_a_result_and_writes_nothing(
    fit: Any, says: str, write: Callable[..., Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fit == "int8":  # whether factors help a random model is chance
        monkeypatch.setattr("outlierlens.analyses.repair.best_balance", lambda *_: [])
    found = repair(
        str(write("llama", times=1.0)), tmp_path / "fits", RepairOptions(fit=fit, max_length=16), texts=texts
    )
    assert (found.folder, found.n_changed, found.exact) == ("", 0, True)
    assert replace(found.before, model="after") == found.after
    first, *_, last = found.sentences()
    assert re.match(says, first)
    assert last == "Nothing was written."
    assert not (tmp_path / "fits").exists()


def test_an_epsilon_that_cannot_follow_is_said_and_nothing_is_written(
    write: Callable[..., Path], texts: Texts, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"at most 1e-05\), so nothing is kept: the epsilon of 7 norms") as refused:
        repair(str(write("opt")), tmp_path / "fits", FP16, texts=texts)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "fits").exists()


def test_sources_that_cannot_be_repaired(
    write: Callable[..., Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write("llama"), tmp_path / "fits"
    values = load_file(source / "model.safetensors")

    def refused(kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match) as error:
            repair(str(source), target, FP16, texts=texts)
        assert "\n" not in str(error.value)
        assert not target.exists()

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))  # type: ignore[attr-defined]
    refused(BadInput, "free; make room or name a folder with -o on another disk")
    monkeypatch.undo()
    save_file(values | {"model.norm.weight": values["model.norm.weight"] * float("nan")}, source / "model.safetensors")
    refused(BadFile, "model.norm.weight")
    save_file(values | {"model.norm.weight": torch.ones(16, dtype=torch.int8)}, source / "model.safetensors")
    refused(BadFile, "model.norm.weight is packed by a quantizer that its config does not name, which is not read")
    target.mkdir()
    with pytest.raises(BadInput, match="fits exists; name another folder"):
        repair(str(source), target, FP16)
    with pytest.raises(BadInput, match="holds no repaired model"):
        repair(str(source), target, FP16, overwrite=True)


def test_a_copy_that_reads_back_otherwise_is_not_kept(
    write: Callable[..., Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RewritingPlan, "settings", {"rms_norm_eps": 1e-3})  # a config that says another epsilon
    with pytest.raises(BadFile, match=r"read back, its outputs differ by .* where they must be equal"):
        repair(str(write("llama")), tmp_path / "fits", FP16, texts=texts)
    assert {one.name for one in tmp_path.iterdir()} == {"llama"}


@pytest.mark.parametrize("name", ["_copy", "check_unchanged"])
def test_a_kill_leaves_no_folder(name: str, write: Callable[..., Path], texts: Texts, tmp_path: Path) -> None:
    """In the midst of a weight file, and when all are written."""
    source, target = write("llama"), tmp_path / "fits"
    child = os.fork()
    if not child:
        setattr(repair_files, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            repair(str(source), target, FP16, texts=texts)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not target.exists()
    assert repair(str(source), target, FP16, texts=texts).exact
    assert load_model(str(target)).head == "causal"


# Streams that are turned.


@pytest.fixture
def planted(tmp_path: Path, words: Any) -> Callable[..., Path]:
    """Writes a tiny model with an outlier dimension in every block."""

    def make(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
        import transformers

        one = FAMILIES[family]
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(one.model_type, **(one.config | changes))
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, values in model.named_parameters():
                if name.endswith("mlp.down_proj.weight"):
                    values[7] *= 40
        folder = tmp_path / family
        model.to(dtype).save_pretrained(folder)
        words(kind="causal").save_pretrained(folder)
        return folder

    return make


WIDE = {"hidden_size": 64, "head_dim": 16}


@pytest.mark.parametrize(
    ("family", "dtype", "tied"),
    [("llama", torch.float32, True), ("qwen3", torch.float32, False), ("gemma", torch.bfloat16, True)],
)
def test_a_turned_copy_gives_the_same_and_has_no_outlier(
    family: str, dtype: torch.dtype, tied: bool, planted: Callable[..., Path], texts: Texts, tmp_path: Path
) -> None:
    source, target = planted(family, dtype, tie_word_embeddings=tied, **WIDE), tmp_path / "turned"
    found = repair(str(source), target, RepairOptions(rotate=True, max_length=16), texts=texts)
    assert found.rotated
    assert found.untied == tied
    assert not found.exact
    assert 0 < found.difference <= TOLERANCE
    assert 7 in found.before.named
    assert found.after.named == ()
    config = json.loads((target / "config.json").read_text())
    assert (config.get("dtype") or config["torch_dtype"]) == "float32"
    assert config["tie_word_embeddings"] is False
    manifest = json.loads((target / "repair.json").read_text())
    assert manifest["rotation"]["seed"] == 0
    logits = [logits_of(folder, tmp_path / "logits") for folder in (source, target)]
    assert torch.allclose(*logits, atol=float(TOLERANCE * logits[0].abs().max()))


def test_another_seed_turns_otherwise(planted: Callable[..., Path], texts: Texts, tmp_path: Path) -> None:
    source, tables = planted(**WIDE), []
    for seed in (0, 1):
        folder = tmp_path / f"turned-{seed}"
        repair(str(source), folder, RepairOptions(rotate=True, seed=seed, max_length=16), texts=texts)
        tables.append(load_file(folder / "model.safetensors")["model.embed_tokens.weight"])
    assert not torch.allclose(*tables)


def test_turned_and_then_made_to_fit(planted: Callable[..., Path], texts: Texts, tmp_path: Path) -> None:
    source = planted(**WIDE)
    name = "model.layers.1.mlp.up_proj.weight"
    values = load_file(source / "model.safetensors")
    values[name][3] *= 512
    values["model.layers.1.mlp.down_proj.weight"][:, 3] /= 512
    save_file(values, source / "model.safetensors", {"format": "pt"})
    found = repair(str(source), tmp_path / "both", RepairOptions(fit="int8", rotate=True, max_length=16), texts=texts)
    assert found.channels["neurons"] > 0
    assert found.after.spikes <= 2
    assert found.after.named == ()
    assert "stream is turned" in (tmp_path / "both" / "README.md").read_text()


def test_something_must_be_asked() -> None:
    with pytest.raises(BadInput, match="nothing is asked: name a format"):
        RepairOptions()
