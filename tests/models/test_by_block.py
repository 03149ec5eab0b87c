"""A model that is read block by block gives bit for bit what the whole model gives, and reads its file once."""

import hashlib
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, RwkvConfig, RwkvForCausalLM

from architectures import FAMILIES, Family, batch, build
from block_equality import CONDITIONS, DIM, equal, outputs, under
from outlierlens.ablation.switches import edited_hidden, removed_writes, zeroed_weights
from outlierlens.checkpoints import open_checkpoint
from outlierlens.errors import BadFile, BadInput, RemoteError
from outlierlens.models import blocks
from outlierlens.models.block_weights import BlockReader, BlockWeights
from outlierlens.models.blocks import ByBlock, tensors_now
from outlierlens.models.changes import EVERYWHERE
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.models.model_class import NewHead

pytest_plugins = ["hub_fixtures"]
# A tokenizer is made for it that reads nothing: its folder has no vocabulary.
LOADED = [name for name in FAMILIES if name != "mpnet"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def folder(name: str) -> Path:
        family, place = FAMILIES[name], tmp_path_factory.mktemp(name)
        build(family, family.heads[0] if family.heads else "").save_pretrained(place, max_shard_size="20KB")
        return place

    return folder


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load_model(str(folder), LoadOptions(attention="eager", **options))


def by_block(folder: Path, **options: Any) -> LoadedModel:
    return loaded(folder, by_block=True, **options)


def batches(family: Family) -> list[dict[str, Any]]:
    """Three lengths; where the model takes a mask, the last tokens of a text are padding."""
    found = [batch(family, seed) for seed in (1, 2, 3)]
    if family.inputs == "text":
        found = [{key: one[:, : 7 - cut] for key, one in each.items()} for cut, each in enumerate(found)]
        for each in found:
            each["attention_mask"] = each["attention_mask"].index_fill(
                1, torch.tensor([each["input_ids"].shape[1] - 1]), 0
            )
            each["attention_mask"][0] = 1
    return found


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", LOADED)
def test_every_family_is_equal_under_every_condition_in_one_read(name: str, saved: Callable[[str], Path]) -> None:
    whole, split, inputs = loaded(saved(name)), by_block(saved(name)), batches(FAMILIES[name])
    theirs = [under(whole, condition, inputs) for condition in CONDITIONS]
    assert split.blocks
    split.blocks.weights.reads.clear()  # of a model that reads pictures too, loading tries whether its words look left
    before = split.blocks.weights.reader.checkpoint.bytes_read
    ours = split.run([partial(under, split, condition, inputs) for condition in CONDITIONS])
    assert equal(ours, theirs)
    assert all(not equal(theirs[0], other) for other in theirs[1:])  # the conditions change something
    assert len(set(split.blocks.weights.reads)) == len(split.blocks.weights.reads)  # each door once
    assert split.blocks.weights.reader.checkpoint.bytes_read - before <= file_bytes(saved(name))
    assert equal(split.run([partial(under, split, "intact", inputs)]), theirs[:1])  # and nothing is left changed
    assert not EVERYWHERE.edits


def test_one_weight_off_by_a_ten_thousandth_is_seen(saved: Callable[[str], Path], tmp_path: Path) -> None:
    whole, inputs = loaded(saved("llama")), batches(FAMILIES["llama"])
    theirs = [under(whole, "intact", inputs)]
    with torch.no_grad():
        whole.model.get_parameter("model.layers.1.mlp.down_proj.weight")[3, 2] += 1e-4
    whole.model.save_pretrained(tmp_path)
    assert not equal([under(by_block(tmp_path), "intact", inputs)], theirs)


def test_weights_of_embeddings_final_norms_and_tied_heads_are_off_in_their_condition_alone(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    for name in ("llama", "gpt2"):
        whole, split, inputs = loaded(saved(name)), by_block(saved(name)), batches(FAMILIES[name])

        def off(one: LoadedModel, dims: list[int], each: list[dict[str, Any]] = inputs) -> list[torch.Tensor]:
            with removed_writes(one, dims, embeddings=True) as n_values:
                return [*one.run([partial(outputs, one, some) for some in each]), torch.tensor(n_values)]

        theirs = [off(whole, dims) for dims in ([DIM], [1, 2])]
        assert equal(split.run([partial(off, split, dims) for dims in ([DIM], [1, 2])]), theirs)


def test_outside_of_a_run_each_pass_reads_the_doors_that_it_comes_to(saved: Callable[[str], Path]) -> None:
    whole, split, inputs = loaded(saved("gpt2")), by_block(saved("gpt2")), batches(FAMILIES["gpt2"])
    found = []
    for one in (whole, split):
        with zeroed_weights(one, [DIM]):
            found.append(outputs(one, inputs[0]))
    assert equal(*found)


def test_weights_of_a_door_that_was_left_open_are_off(saved: Callable[[str], Path]) -> None:
    whole, split, inputs = loaded(saved("llama")), by_block(saved("llama")), batches(FAMILIES["llama"])
    theirs = [under(whole, condition, inputs) for condition in CONDITIONS]
    for condition, wanted in zip(CONDITIONS, theirs, strict=True):
        with split.weights_of(split.model.get_submodule("model.layers.1")):
            pass
        assert equal(under(split, condition, inputs), wanted)
        outputs(split, inputs[0])
    assert equal(split.run([partial(under, split, condition, inputs) for condition in CONDITIONS]), theirs)


def test_a_weight_that_is_used_outside_its_block_is_refused_by_name(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 24}
    model = RwkvForCausalLM(RwkvConfig(**sizes, num_hidden_layers=8, context_length=32, use_cache=False))
    model.save_pretrained(tmp_path)
    split = by_block(tmp_path)
    with pytest.raises(BadInput, match=r"blocks\.\d+\..*weight is not in memory: .* load the model whole"):
        split.run([partial(outputs, split, {"input_ids": torch.arange(6)[None]})])


def test_what_cannot_be_read_block_by_block_is_refused_in_a_sentence(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    split, inputs = by_block(saved("llama")), batches(FAMILIES["llama"])
    split.model.train()
    with pytest.raises(BadInput, match="training mode"):
        split.run([partial(outputs, split, inputs[0])])
    split.model.eval()
    with pytest.raises(BadInput, match="resample draws pass by pass"), edited_hidden(split, [DIM], "resample"):
        pass
    with pytest.raises(BadInput, match="new head needs the model whole"):
        load_model(str(saved("llama")), LoadOptions(by_block=True), NewHead(("a", "b")))

    model = build(FAMILIES["llama"], "CausalLM")
    model.save_pretrained(tmp_path / "lacking")
    tensors = load_file(tmp_path / "lacking" / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, tmp_path / "lacking" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"lack 1 parameters .*layers\.1\.mlp\.down_proj"):
        by_block(tmp_path / "lacking")

    tensors["model.layers.1.mlp.down_proj.weight"] = torch.full((16, 24), torch.nan)
    save_file(tensors, tmp_path / "lacking" / "model.safetensors", metadata={"format": "pt"})
    damaged = by_block(tmp_path / "lacking")
    with pytest.raises(BadFile, match=r"model\.layers\.1: mlp\.down_proj\.weight holds NaN"):
        damaged.run([partial(outputs, damaged, inputs[0])])

    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    model.config.save_pretrained(tmp_path / "lacking")
    with pytest.raises(BadInput, match=r"quantized \(gptq\)"):
        by_block(tmp_path / "lacking")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    build(FAMILIES["llama"], "CausalLM").config.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="its weights are bin, and only safetensors"):
        by_block(tmp_path)


def test_in_a_file_states_take_no_memory_and_what_passes_share_stays(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SMALLEST", 1)
    split, random = by_block(saved("llama")), torch.Generator().manual_seed(0)
    assert split.blocks
    embeddings = torch.randn(4, 7, 16, generator=random)  # one tensor for all passes
    kept = dict[int, Any]()
    rotary = split.model.model.rotary_emb
    turned = rotary.forward

    def once(states: torch.Tensor, position_ids: torch.Tensor) -> Any:  # as models do that keep a table of positions
        return kept.setdefault(states.shape[1], turned(states, position_ids))

    monkeypatch.setattr(rotary, "forward", once)

    def read(n: int) -> list[torch.Tensor]:
        own = embeddings if n % 2 == 0 else embeddings[:, :6] + 1
        return outputs(split, {"inputs_embeds": own, "use_cache": False})

    calls = [partial(read, n) for n in range(40)]
    theirs = [call() for call in calls[:2]] * 20
    n_bytes, fill = list[int](), split.blocks.weights.fill

    def filled(door: str) -> None:
        storages = {
            one.untyped_storage() for one in (ref() for ref in chain(*tensors_now().values())) if one is not None
        }
        n_bytes.append(sum({one._cdata: one.nbytes() for one in storages if one.device.type == "cpu"}.values()))
        fill(door)

    monkeypatch.setattr(split.blocks.weights, "fill", filled)
    most = []
    for memory in (None, split.blocks.bytes_for(0, 0)):
        kept.clear()
        n_bytes.clear()
        split.blocks.memory = memory
        assert equal(split.run(calls), theirs)
        most.append(max(n_bytes[:-1]) - n_bytes[0])  # but for what the head gives
    assert most[0] > 30 * 4 * 6 * 16 * 4  # most of the states of forty passes
    assert most[1] < most[0] / 4


def _interrupt(*_: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _leave(*_: Any) -> None:
    raise SystemExit(3)


def _fail(*_: Any) -> None:
    raise ValueError("in a pass")


@pytest.mark.parametrize(("stop", "kind"), [(_interrupt, KeyboardInterrupt), (_leave, SystemExit), (_fail, ValueError)])
@pytest.mark.parametrize("path", ["model.layers.1.mlp", "model.norm", "lm_head"])
def test_a_run_that_is_stopped_leaves_nothing_and_the_next_is_equal(
    stop: Callable[..., None], kind: type[BaseException], path: str, saved: Callable[[str], Path]
) -> None:
    whole, split, inputs = loaded(saved("llama")), by_block(saved("llama")), batches(FAMILIES["llama"])
    theirs, blocks = [under(whole, "weights off", inputs)], split.blocks
    assert blocks
    stopped = split.model.get_submodule(path).register_forward_hook(stop)
    with pytest.raises(kind):
        split.run([partial(under, split, condition, inputs) for condition in CONDITIONS[:3]])
    stopped.remove()
    assert not [one for one in threading.enumerate() if one.name.startswith("outlierlens-block")]
    assert blocks.hub is None
    assert not blocks.passes
    assert all(one.is_meta for store in blocks.weights.away.values() for *_, one in store)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in split.model.modules())
    assert equal(split.run([partial(under, split, "weights off", inputs)]), theirs)


def test_passes_keep_their_own_modes_of_torch(saved: Callable[[str], Path]) -> None:
    split, inputs = by_block(saved("llama")), batches(FAMILIES["llama"])
    seen: dict[str, tuple[bool, bool]] = {}

    def one(name: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
        with context():
            split.model(**inputs[0])
            seen[name] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "inference": torch.inference_mode, "no_grad": torch.no_grad, "plain": nullcontext
    }  # fmt: skip
    split.run([partial(one, *mode) for mode in modes.items()])
    assert seen == {"inference": (False, True), "no_grad": (False, False), "plain": (True, False)}
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_the_next_block_is_read_ahead(saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    split, inputs = by_block(saved("llama")), batches(FAMILIES["llama"])
    assert split.blocks
    weights, asked = split.blocks.weights, list[tuple[str, str]]()
    read = weights._read

    def seen(door: str) -> Any:
        asked.append((door, threading.current_thread().name))
        return read(door)

    monkeypatch.setattr(weights, "_read", seen)
    for _ in range(2):
        asked.clear()
        split.run([partial(outputs, split, each) for each in inputs])
        assert [door for door, _ in asked] == weights.order  # never one for nothing
    here = threading.current_thread().name
    assert [door for door, thread in asked if thread == here] == weights.order[:1]


# --- from a hub ------------------------------------------------------------------------------------------------------


def broken(handler: Any, seen: Any) -> bool:
    """Half of what a range asks for, once for each range; then the connection breaks."""
    fake, asked = handler.server.fake, [one for one in handler.server.fake.seen if one.span and one.path == seen.path]
    if handler.server.name != "cdn" or sum(one.span[1] == seen.span[1] for one in asked) > 2:
        return False
    whole = fake.models["org/model"][seen.path.rpartition("/")[2]].read_bytes()
    content, first = whole[slice(*seen.span)], seen.span[0]
    half = len(content) // 2
    sizes = {"Content-Length": str(len(content)), "ETag": fake.headers["ETag"]}
    where = {"Content-Range": f"bytes {first}-{first + len(content) - 1}/{len(whole)}"}
    handler.reply(206, content[:half], sizes | where)
    handler.close_connection = True
    return True


@pytest.fixture
def served(saved: Callable[[str], Path], hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    hub.add("org/model", {path.name: path for path in saved("llama").iterdir()})
    address = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    where = {"ENDPOINT": hub.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": address, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in where.items():
        monkeypatch.setattr(constants, name, value)  # transformers fetches what is small: config and tokenizer
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # it keeps the address of the first hub that it asked
    hub.headers = {"ETag": '"of-the-file"'}
    return hub


def test_a_model_is_read_from_the_hub_without_a_copy_by_one_request_for_each_block_and_file(
    served: Any, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    whole, inputs = loaded(saved("llama")), batches(FAMILIES["llama"])
    theirs = [under(whole, condition, inputs) for condition in CONDITIONS[:3]]
    split = load_model("org/model", LoadOptions(by_block=True, attention="eager"))
    assert split.blocks
    before = [one.path for one in served.seen if one.path.endswith(".safetensors")]
    ours = split.run([partial(under, split, condition, inputs) for condition in CONDITIONS[:3]])
    assert equal(ours, theirs)
    weights = split.blocks.weights
    files = {door: {weights.reader.checkpoint._file(key)[0] for key in weights.keys[door]} for door in weights.order}
    asked = [one for one in served.seen if one.path.endswith(".safetensors")][len(before) :]
    assert len(asked) == sum(map(len, files.values()))
    assert sum(one.sent for one in asked) <= file_bytes(saved("llama"))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("damaged", [False, True])
def test_what_is_kept_of_the_hub_is_read_from_this_disk(
    damaged: bool, served: Any, saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [under(loaded(saved("llama")), "weights off", batches(FAMILIES["llama"]))]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    served.headers = {}
    real = {path.name: path for path in saved("llama").iterdir()}
    for name, path in real.items():
        if path.suffix == ".safetensors":
            content = path.read_bytes()
            served.models["org/model"][name] = content[:-1] + b"x" if damaged else content
            served.sha256[name] = hashlib.sha256(content).hexdigest()
    options = LoadOptions(by_block=True, keep_weights=True, attention="eager")
    if damaged:
        with pytest.raises(BadFile, match="not the file that the hub names"):
            load_model("org/model", options)
        return
    load_model("org/model", options)
    before = len(served.requests(".safetensors"))
    split = load_model("org/model", LoadOptions(by_block=True, attention="eager", offline=True))
    assert equal([under(split, "weights off", batches(FAMILIES["llama"]))], theirs)
    assert len(served.requests(".safetensors")) == before


def remote(folder: Path) -> LoadedModel:
    """The model whose weights are on the hub, without what transformers asks the hub for."""
    reader = BlockReader(open_checkpoint("org/model", as_stored=True), torch.device("cpu"))
    config = LlamaConfig.from_pretrained(folder)
    model, _ = reader(LlamaForCausalLM, config, torch.float32, {"attn_implementation": "eager"})
    ByBlock(model, BlockWeights(model, reader, "org/model"))
    return from_objects(model.eval())


def test_weights_lie_in_memory_as_in_a_map_of_their_file(served: Any, saved: Callable[[str], Path]) -> None:
    for split in (by_block(saved("llama")), remote(saved("llama"))):
        assert split.blocks
        reader = split.blocks.weights.reader
        read = dict(reader.tensors(reader.checkpoint.tensors))
        # Products of experts depend in the last bit on where in a line of the cache their weights begin.
        assert all(one.data_ptr() % 64 == reader.checkpoint._file(key)[2].start % 64 for key, one in read.items())


def test_broken_connections_lose_nothing(served: Any, saved: Callable[[str], Path]) -> None:
    theirs = [under(loaded(saved("llama")), "weights off", batches(FAMILIES["llama"]))]
    split = remote(saved("llama"))
    before = served.sent
    served.tamper[".safetensors"] = broken
    assert equal([under(split, "weights off", batches(FAMILIES["llama"]))], theirs)
    assert served.sent - before <= 1.02 * file_bytes(saved("llama"))


def test_a_file_that_changes_between_two_parts_of_a_range_is_refused(served: Any, saved: Callable[[str], Path]) -> None:
    split = remote(saved("llama"))

    def changes(handler: Any, seen: Any) -> bool:
        served.headers = {"ETag": '"of another file"'}
        return broken(handler, seen)

    served.tamper[".safetensors"] = changes
    with pytest.raises(RemoteError, match="the file changed while it was read"):
        split.run([partial(outputs, split, batches(FAMILIES["llama"])[0])])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "checkpoint"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "bert"])
def test_weights_are_cast_as_in_an_ordinary_load(dtype: str, name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    build(family, family.heads[0]).to(torch.bfloat16).save_pretrained(tmp_path)
    whole, split, inputs = loaded(tmp_path, dtype=dtype), by_block(tmp_path, dtype=dtype), batches(family)
    assert equal([under(split, "weights off", inputs)], [under(whole, "weights off", inputs)])
    assert split.dtype == whole.dtype == ("float32" if dtype == "float32" else "bfloat16")
