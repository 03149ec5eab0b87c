"""Loading: what the head is, which files are refused and how, precision, no network, and the fingerprint."""

import contextlib
import json
import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from conftest import Words
from outlierlens.errors import BadFile, BadInput, MissingExtra, Offline, UnknownModel
from outlierlens.models import load as models
from outlierlens.models.devices import whole_float32
from outlierlens.models.inputs import max_positions
from outlierlens.models.load import LoadOptions, fingerprint, load_model

Change = Callable[[Path], object]
TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BertForMaskedLM with a word-level tokenizer."""
    path = tmp_path_factory.mktemp("models") / "bert"
    build(FAMILIES["bert"], "MaskedLM").save_pretrained(path)
    Words.build().save_pretrained(path)
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "bert"))


def configure(**values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def rewrite(file: str, content: str | bytes, *, instead_of: str = "") -> Change:
    def change(folder: Path) -> None:
        (folder / (instead_of or file)).unlink(missing_ok=True)
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def without(*parts: str) -> Change:
    """Leaves the tensors whose names hold one of `parts` out of the weights."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = folder / "model.safetensors"
        kept = {key: value for key, value in load_file(path).items() if not any(part in key for part in parts)}
        save_file(kept, path, metadata={"format": "pt"})

    return change


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


class NotATensor:
    """What a hostile pickle would hold: a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-a-pickle",)


BIN, STORED = "pytorch_model.bin", "model.safetensors"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (truncate, BadFile, "lies outside the file"),
        (rewrite(STORED, b"x" * 60), BadFile, "the header claims .* bytes in a file of 60; truncated or not safetensors"),
        (configure(intermediate_size=48), BadFile, r"another shape than config.json says .*\(24,\) for \(48,\)"),
        (configure(num_hidden_layers=4), BadFile, r"lack 16 parameters of BertModel \(encoder\.layer\.3\.attention.*, …\)"),
        (configure(num_hidden_layers="two"), BadFile, "StrictDataclassFieldValidationError: .*num_hidden_layers"),
        (configure(hidden_act="nosuch"), BadFile, "KeyError: 'nosuch'"),
        (configure(model_type="nosuch"), UnknownModel, "model type `nosuch`"),
        (rewrite("config.json", '{"a":'), BadFile, "config.json: not valid JSON"),
        (rewrite(BIN, b"", instead_of=STORED), BadFile, "is empty; truncated\\? fetch it again"),
        (rewrite(BIN, pickle.dumps(NotATensor()), instead_of=STORED), BadFile, "refused, and nothing in it was executed"),
        (without(".layer.1."), BadFile, r"lack 16 parameters of BertModel \(encoder\.layer\.1\..*, …\), which would be rand"),
        (without("word_embeddings"), BadFile, r"lack 1 parameters of BertModel \(embeddings\.word_embeddings\.weight\)"),
        (rewrite("tokenizer.json", '{"a":'), BadFile, r"its tokenizer cannot be read \(JSONDecodeError"),
        (rewrite("tokenizer.json", '{"a": 3}'), BadFile, r"its tokenizer cannot be read \(KeyError: 'added_tokens'\)"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_broken_folders_give_one_line(
    copy: Path, change: Change, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    change(copy)
    with pytest.raises(error, match=message) as caught:
        load_model(str(copy))
    assert str(caught.value).startswith((f"{copy}: ", f"{copy}/"))
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert not (copy / "made-by-a-pickle").exists()


def test_a_missing_library_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError("needs sentencepiece; pip install sentencepiece")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(MissingExtra, match=r"needs a library that is not installed: .*pip install sentencepiece"):
        load_model(str(copy))


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)])
def test_a_model_without_vocabulary_has_no_tokenizer(copy: Path, kept: tuple[str, ...]) -> None:
    for path in copy.glob("*token*"):
        if path.name not in kept:
            path.unlink()
    loaded = load_model(str(copy))
    assert loaded.tokenizer is None  # transformers would make one that reads every word as unknown
    assert loaded.head == "masked"


def test_the_bare_encoder_where_the_head_is_not_stored(copy: Path) -> None:
    without("cls.")(copy)
    first, second = load_model(str(copy)), load_model(str(copy))
    assert type(first.model).__name__ == "BertModel"
    assert first.head == "none"
    assert first.model.get_parameter("pooler.dense.weight").abs().max() == 0
    assert fingerprint(first.model) == fingerprint(second.model)


def test_odd_architectures_load_the_bare_encoder(copy: Path) -> None:
    for named in ([3], ["Trainer"], ["BertConfig"], ["NoSuchModel"]):
        configure(architectures=named)(copy)
        assert type(load_model(str(copy)).model).__name__ == "BertModel", named


def causal_class(name: str, **config: Any) -> Any:
    import transformers

    cls = getattr(transformers, name)
    torch.manual_seed(0)
    return cls(cls.config_class(**config)).eval()


GEMMA = TINY | {"num_key_value_heads": 1, "head_dim": 8}
HEADS = [
    ("BertLMHeadModel", TINY | {"is_decoder": False}, "other"),
    ("BertLMHeadModel", TINY | {"is_decoder": True}, "causal"),
    ("RobertaForCausalLM", TINY, "other"),
    ("RobertaForCausalLM", TINY | {"is_decoder": True}, "causal"),
    ("ElectraForCausalLM", TINY, "other"),
    ("CamembertForCausalLM", TINY, "other"),
    ("XLMRobertaForCausalLM", TINY, "other"),
    ("RoFormerForCausalLM", TINY, "other"),
    ("MegatronBertForCausalLM", TINY, "other"),
    ("XLNetLMHeadModel", {"vocab_size": 40, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}, "other"),
    ("XLMWithLMHeadModel", {"vocab_size": 40, "emb_dim": 16, "n_layers": 2, "n_heads": 2}, "other"),
    ("XLMWithLMHeadModel", {"vocab_size": 40, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "causal": True}, "causal"),
    ("GPT2LMHeadModel", {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}, "causal"),
    ("GPTNeoXForCausalLM", TINY, "causal"),
    ("BartForCausalLM", {"vocab_size": 40, "d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2}, "causal"),
    ("Gemma3ForCausalLM", GEMMA, "causal"),
    ("Gemma3ForCausalLM", GEMMA | {"use_bidirectional_attention": True}, "other"),
]


@pytest.mark.parametrize(("name", "config", "head"), HEADS)
def test_causal_means_that_later_tokens_change_nothing_before(name: str, config: dict[str, Any], head: str) -> None:
    model = causal_class(name, **config)
    assert models._head_of(model) == head
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 30]])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    unchanged = torch.allclose(logits[0, :-1], logits[1, :-1], atol=1e-6)
    assert unchanged == (head == "causal")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fingerprint_sees_every_single_value(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(768, 30), torch.nn.LayerNorm(768)).to(dtype)
    model[0].weight.data = model[0].weight.data.clone().t().contiguous().t()  # values need not lie in rows
    before = fingerprint(model)
    assert before == fingerprint(model)
    for parameter, place in ((model[1].weight, (308,)), (model[1].bias, (767,)), (model[0].weight, (17, 301))):
        kept = parameter.data[place].item()
        parameter.data[place] = 0.5 if kept == 0 else 0
        assert fingerprint(model) != before
        parameter.data[place] = kept
    assert fingerprint(model) == before
    swapped = model[0].weight.data[[1, 0], :].clone()
    model[0].weight.data[:2] = swapped
    assert fingerprint(model) != before


def test_fingerprint_of_shared_scalar_and_meta_parameters() -> None:
    torch.manual_seed(0)
    tied: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    tied.register_parameter("temperature", torch.nn.Parameter(torch.tensor(2.0)))
    before = fingerprint(tied)
    tied.temperature.data.fill_(2.5)
    assert fingerprint(tied) != before
    with pytest.raises(BadInput, match=r"^weight is on the meta device and has no values; load the whole model"):
        fingerprint(torch.nn.Linear(2, 2, bias=False, device="meta"))


def test_fingerprint_tells_a_model_with_one_dimension_off(copy: Path) -> None:
    loaded = load_model(str(copy))
    before = fingerprint(loaded.model)
    name = loaded.stack().scale[1][0].name
    loaded.model.get_parameter(name).data[9] = 0
    trained: Any = loaded.model
    trained.save_pretrained(copy)
    again = load_model(str(copy))
    assert fingerprint(again.model) == fingerprint(loaded.model) != before


def test_positions_without_padding_index() -> None:
    limits = {"max_position_embeddings": 514}
    assert max_positions(limits) == 514
    assert max_positions(limits | {"model_type": "roberta", "pad_token_id": None}) == 512
    assert max_positions(limits | {"model_type": "roberta"}) == 512
    assert max_positions(limits | {"model_type": "roberta", "pad_token_id": 0}) == 513
    assert max_positions({}) is None


def test_precision_is_float32_unless_another_is_asked_for(saved: Path) -> None:
    assert {p.dtype for p in load_model(str(saved), LoadOptions(device="cpu")).model.parameters()} == {torch.float32}
    named = load_model(str(saved), LoadOptions(device="cpu", dtype="float16"))
    assert {p.dtype for p in named.model.parameters()} == {torch.float16}
    norm = next(one for one in named.model.modules() if isinstance(one, torch.nn.LayerNorm))
    norm.float()
    assert named.dtype == "float16"  # norms held in float32 do not make it another format
    of = named.provenance(command="outlierlens scan", seed=3)
    assert (of.model, of.fingerprint) == (named.name, fingerprint(named.model))
    assert (of.command, of.seed, of.dtype) == ("outlierlens scan", 3, "float16")
    assert named.provenance(digest="known").fingerprint == "known"


def test_float32_is_no_less_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    whole_float32(torch.device("cpu"))
    assert torch.backends.cudnn.allow_tf32
    whole_float32(torch.device("cuda"))
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("said", [True, False])
def test_the_checkpoint_s_own_precision_when_asked(saved: Path, tmp_path: Path, dtype: torch.dtype, said: bool) -> None:
    copy = tmp_path / "copy"
    load_model(str(saved), LoadOptions(device="cpu")).model.to(dtype).save_pretrained(copy)
    if not said:
        config = json.loads((copy / "config.json").read_text())
        del config["dtype"]
        (copy / "config.json").write_text(json.dumps(config))
    assert load_model(str(copy), LoadOptions(device="cpu")).dtype == "float32"
    assert load_model(str(copy), LoadOptions(device="cpu", dtype="checkpoint")).dtype == str(dtype)[len("torch.") :]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Attempts to use the network, which all fail."""
    seen: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        seen.append(arguments)
        raise OSError("the network is closed")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return seen


@pytest.fixture
def hub_cache(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds `owner/tiny`, stored as a .bin (which makes transformers look for a converted one)."""
    from huggingface_hub import constants

    loaded = load_model(str(saved))
    repository = tmp_path / "hub" / "models--owner--tiny"
    snapshot = repository / "snapshots" / ("a" * 40)
    shutil.copytree(saved, snapshot)
    (snapshot / STORED).unlink()
    torch.save(loaded.model.state_dict(), snapshot / BIN)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


@pytest.mark.usefixtures("hub_cache")
def test_offline_tries_no_connection_and_changes_nothing_for_others(
    attempts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, get_session

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    environment = dict(os.environ)
    loaded = load_model("owner/tiny", LoadOptions(offline=True))
    assert loaded.head == "masked"
    assert loaded.tokenizer is not None
    with pytest.raises(Offline, match=r"^owner/none: not in the local cache, and offline mode is on; run once without"):
        load_model("owner/none", LoadOptions(offline=True))
    assert attempts == []
    assert dict(os.environ) == environment
    with contextlib.suppress(Exception):
        get_session().get(constants.ENDPOINT)
    assert attempts  # the switch is off again


@pytest.mark.real
def test_a_sentence_encoder_that_promises_a_head(sample: Any) -> None:
    loaded = load_model(sample("mpnet-base"), LoadOptions(offline=True))
    assert loaded.config["architectures"] == ["MPNetForMaskedLM"]
    assert type(loaded.model).__name__ == "MPNetModel"
    assert loaded.head == "none"
    assert loaded.tokenizer is not None
    norm = loaded.model.get_parameter("encoder.layer.5.output.LayerNorm.weight")
    before = fingerprint(loaded.model)
    norm.data[308] = 0
    assert fingerprint(loaded.model) != before


def test_names_of_unusable_things(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape("dtype is 'int4'; use one of float32, bfloat16, float16, checkpoint")):
        load_model(str(tmp_path), LoadOptions(dtype="int4"))
    with pytest.raises(UnknownModel, match=r"^\./nothing\.safetensors: no such file or directory$"):
        load_model("./nothing.safetensors")
