"""ONNX, safetensors and PyTorch files run with the config beside them; what is missing is named."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from conftest import Words
from outlierlens.errors import BadFile, UnknownModel
from outlierlens.models.load import LoadOptions, fingerprint, load_model, load_tokenizer

QUIET = LoadOptions(notice=lambda _: None)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- ONNX: encoders with their config beside them ----------------------------------------------------------------


class Wrapped(torch.nn.Module):
    """As exporters of sentence encoders wrap them: every parameter's name begins with another word."""

    def __init__(self, model: Any):
        super().__init__()
        self.auto_model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.auto_model(input_ids=ids, attention_mask=mask)[0]


SHORT = torch.tensor([[1, 5, 6, 7, 9, 2]])


def onnx(folder: Path, name: str, head: str, *, at: str = "model.onnx", wrapped: bool = True) -> Any:
    """Export a tiny encoder beside its config and tokenizer; the model."""
    pytest.importorskip("onnx")
    model = build(FAMILIES[name], head)
    model.config.save_pretrained(folder)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    Words.build().save_pretrained(folder)
    (folder / at).parent.mkdir(exist_ok=True)
    module, given = (
        (Wrapped(model).eval(), (SHORT, torch.ones_like(SHORT)))
        if wrapped
        else (model, (SHORT, torch.ones_like(SHORT)))
    )
    torch.onnx.export(module, given, str(folder / at), input_names=["ids", "mask"], dynamo=False, opset_version=17)
    return model


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=SHORT, attention_mask=torch.ones_like(SHORT))[0]


ENCODERS = [
    ("bert", ""), ("bert", "MaskedLM"), ("distilbert", ""), ("distilbert", "SequenceClassification"), ("roberta", "MaskedLM"),
    ("mpnet", ""), ("electra-discriminator", ""),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "head"), ENCODERS)
def test_an_encoder_s_onnx_file_computes_what_the_model_computes(name: str, head: str, tmp_path: Path) -> None:
    model = onnx(tmp_path, name, head)
    loaded = load_model(str(tmp_path / "model.onnx"), QUIET)
    torch.testing.assert_close(outputs(loaded.model), outputs(model), atol=1e-5, rtol=1e-5)
    assert type(loaded.model) is type(model)
    assert loaded.tokenizer is not None
    by_folder = load_model(str(tmp_path), QUIET)
    assert fingerprint(by_folder.model) == fingerprint(loaded.model)


@pytest.mark.filterwarnings("ignore")
def test_a_config_in_the_folder_above_serves_an_onnx_folder(tmp_path: Path) -> None:
    model = onnx(tmp_path, "mpnet", "", at="onnx/model.onnx", wrapped=False)
    for name in (tmp_path / "onnx" / "model.onnx", tmp_path):
        torch.testing.assert_close(outputs(load_model(str(name), QUIET).model), outputs(model), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_with_another_config_or_lost_names_is_refused(tmp_path: Path) -> None:
    import onnx as library

    onnx(tmp_path, "bert", "")
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"num_hidden_layers": 4}, {"intermediate_size": 48}, {"model_type": "distilbert"}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(
            BadFile, match=r"model\.onnx: lacks \d+ parameters of \w+ as config\.json has it \(.*export"
        ):
            load_model(str(tmp_path / "model.onnx"), QUIET)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    with pytest.raises(BadFile, match="claims more layers than there are tensors"):
        load_model(str(tmp_path / "model.onnx"), QUIET)
    (tmp_path / "config.json").write_text(json.dumps(config))
    changed = library.load(tmp_path / "model.onnx")
    for number, tensor in enumerate(changed.graph.initializer):  # what optimizers of graphs do
        for node in changed.graph.node:
            for place, given in enumerate(node.input):
                node.input[place] = f"fused_{number}" if given == tensor.name else given
        tensor.name = f"fused_{number}"
    library.save(changed, tmp_path / "model.onnx")
    with pytest.raises(BadFile, match=r"lacks \d+ parameters of BertModel .*without graph optimization"):
        load_model(str(tmp_path / "model.onnx"), QUIET)


class Pictures(torch.nn.Module):
    """A model of pictures as exporters wrap it, with something behind it."""

    def __init__(self, model: Any):
        super().__init__()
        self.backbone, self.decoder = model, torch.nn.Linear(16, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.backbone(pixels)[0])


def _rename(graph: Any, said: str, was: str) -> None:
    """Another name of a module, in tensors and in the paths of nodes."""
    for tensor in graph.initializer:
        tensor.name = tensor.name.replace(said, was)
    for node in graph.node:
        node.name = node.name.replace(said.replace(".", "/"), was.replace(".", "/"))
        node.input[:] = [name.replace(said, was) for name in node.input]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("older", [False, True])
def test_dinov2_s_position_table_is_joined_and_older_names_are_read(older: bool, tmp_path: Path) -> None:
    """The exporter cuts the table in two, and leaves out the token that only training uses."""
    library = pytest.importorskip("onnx")
    model = build(FAMILIES["dinov2"])
    path = tmp_path / "model.onnx"
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(Pictures(model).eval(), (pixels,), str(path), dynamo=False, opset_version=17)
    if older:  # as transformers named attention before it had q_proj and o_proj
        exported = library.load(path)
        for said, was in (("k_proj", "attention.key"), ("q_proj", "attention.query"), ("v_proj", "attention.value")):
            _rename(exported.graph, f"attention.{said}", f"attention.{was}")
        _rename(exported.graph, "attention.o_proj", "attention.output.dense")
        library.save(exported, path)
    model.config.save_pretrained(tmp_path)
    loaded = load_model(str(path), QUIET)
    table = "embeddings.position_embeddings"
    assert torch.equal(loaded.model.state_dict()[table], model.state_dict()[table])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(pixels)[0], model(pixels)[0], atol=1e-5, rtol=1e-5)


# --- other files --------------------------------------------------------------------------------------------------


def saved(folder: Path) -> Any:
    model = build(FAMILIES["bert"], "MaskedLM")
    model.save_pretrained(folder)
    Words.build().save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "weights.safetensors",
        "fp32/model.safetensors",
        "pytorch_model.bin",
        "step-500.bin",
        "a.pt",
        "b.ckpt",
    ],
)
def test_a_weight_file_runs_with_its_config_beside_it_or_above(name: str, tmp_path: Path, cache: Path) -> None:
    model = saved(tmp_path)
    plain = tmp_path / "model.safetensors"
    target = tmp_path / name
    target.parent.mkdir(exist_ok=True)
    if target.suffix == ".safetensors":
        plain.rename(target)
    else:
        torch.save(model.state_dict(), target)
        plain.unlink()
    target.chmod(0o600)
    loaded = load_model(str(target), QUIET)
    assert fingerprint(loaded.model) == fingerprint(model)
    assert (loaded.head, loaded.name) == ("masked", str(target))
    assert loaded.tokenizer is not None
    assert target.stat().st_mode & 0o777 == 0o600  # what is linked to is not touched
    assert (
        sum(path.stat().st_size for path in cache.rglob("*") if not path.is_symlink()) < 40_000
    )  # no copy of the weights


@pytest.mark.parametrize("before", ["", "model.", "module."])
@pytest.mark.parametrize("nested", [False, True])
def test_a_trainer_s_checkpoint_runs_as_the_model_that_it_holds(before: str, nested: bool, tmp_path: Path) -> None:
    model = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"lr": 0.1}, tmp_path / "optimizer.pt")
    state: dict[str, Any] = {f"{before}{name}": values for name, values in model.state_dict().items()}
    if nested:
        state = {"epoch": 3, "state_dict": {**state, "metric.total": torch.ones(2)}, "optimizer_states": []}
    torch.save(state, tmp_path / "last.ckpt")
    if before == "model." and not nested:  # not a trainer's: the names are wrong, and nothing says why
        with pytest.raises(BadFile, match="its weights lack"):
            load_model(str(tmp_path), QUIET)
        return
    loaded = load_model(str(tmp_path), QUIET)
    assert fingerprint(loaded.model) == fingerprint(model)
    assert loaded.head == "masked"


def test_a_trainer_s_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"state_dict": {f"w.{n}": torch.ones(2) for n in range(40)}}, tmp_path / "last.ckpt")
    with pytest.raises(BadFile, match=r"last\.ckpt: lacks \d+ parameters of BertModel.*save the model alone"):
        load_model(str(tmp_path), QUIET)


def test_the_file_that_is_named_is_the_one_that_runs(tmp_path: Path) -> None:
    saved(tmp_path)
    other = build(FAMILIES["bert"], "MaskedLM", seed=1)
    torch.save(other.state_dict(), tmp_path / "pytorch_model.bin")
    assert fingerprint(load_model(str(tmp_path / "pytorch_model.bin"), QUIET).model) == fingerprint(other)
    assert fingerprint(load_model(str(tmp_path), QUIET).model) != fingerprint(other)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "full")
    alone = tmp_path / "far" / "away" / "model.safetensors"
    alone.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "full" / "model.safetensors", alone)
    wanted = "to run the model takes more than this file; put beside it: config.json, its tokenizer (tokenizer.json and"
    for path in (
        alone,
        alone.rename(alone.with_name("w.bin")),
        alone.with_name("w.bin").rename(alone.with_name("w.onnx")),
    ):
        if path.exists() or (path := path.with_name(path.name)).exists():
            with pytest.raises(UnknownModel, match=re.escape(f"{path}: {wanted}")):
                load_model(str(path), QUIET)
    (alone.parent / "tokenizer.json").write_text("{}")
    with pytest.raises(UnknownModel, match=r"put beside it: config\.json$"):
        load_model(str(alone.with_name("w.onnx")), QUIET)
    (tmp_path / "full" / "model.safetensors").unlink()
    with pytest.raises(BadFile, match=r"full: holds no weight file \(\.safetensors, \.bin, .*\.msgpack\)"):
        load_model(str(tmp_path / "full"), QUIET)
    assert load_tokenizer(str(tmp_path / "full"), QUIET) is not None
    with pytest.raises(UnknownModel, match=r"nothing\.gguf: no such file or directory"):
        load_model("nothing.gguf", QUIET)
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(
        UnknownModel, match=r"notes\.txt: no weight file; a model is named by its folder, a weight file"
    ):
        load_model(str(tmp_path / "notes.txt"), QUIET)


def test_one_part_of_several_names_the_folder(tmp_path: Path) -> None:
    model = build(FAMILIES["bert"], "MaskedLM")
    model.save_pretrained(tmp_path, max_shard_size="20kB")
    parts = sorted(tmp_path.glob("*.safetensors"))
    assert len(parts) > 1
    with pytest.raises(
        UnknownModel, match=re.escape(f"{parts[0]}: is a part of the model in {tmp_path}; name that folder")
    ):
        load_model(str(parts[0]), QUIET)
    assert fingerprint(load_model(str(tmp_path / "model.safetensors.index.json"), QUIET).model) == fingerprint(model)
