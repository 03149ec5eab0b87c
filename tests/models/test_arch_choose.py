"""A model without a model_type: by the only row that its tensors fit, or by the family that the user names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from architectures import FAMILIES, build
from onnx_files import ONE_NODE, initializer, save
from outlierlens import architectures as arch
from outlierlens.analyses.scan import scan
from outlierlens.architectures.rows import of_weights
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.onnx import OnnxCheckpoint
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput, UnknownArchitecture, UnknownModel
from outlierlens.models.load import LoadOptions, load_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(34)), "the")
BERTS = {
    "bert",
    "camembert",
    "outlierlens-bert",
    "roberta",
    "xlm-roberta",
}  # DeBERTa's queries and keys have other names


def old_folder(place: Path, *, prefix: bool = True, head: bool = True, words: bool = True) -> Path:
    """As BERT was saved in 2018: gamma and beta, no model_type, no architectures, a vocab.txt; dimension 3 stands out."""
    model: Any = build(FAMILIES["bert"], "MaskedLM")
    with torch.no_grad():
        for block in model.bert.encoder.layer:
            block.output.LayerNorm.weight[3] = 12.0
            block.output.LayerNorm.bias[3] = -7.0
    tensors = {}
    for name, values in model.state_dict().items():
        if head or name.startswith("bert."):
            was = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[was if prefix else was.removeprefix("bert.")] = values
    place.mkdir(parents=True)
    torch.save(tensors, place / "pytorch_model.bin")
    left_out = ("model_type", "architectures", "transformers_version", "dtype")
    config = {key: value for key, value in model.config.to_dict().items() if key not in left_out}
    (place / "config.json").write_text(json.dumps(config))
    if words:
        (place / "vocab.txt").write_text("\n".join(WORDS))
    return place


@pytest.mark.parametrize("family", sorted(arch.ARCHITECTURES))
def test_the_row_of_every_family_fits_its_own_tensors(family: str) -> None:
    """Where several rows fit, the message names the right one among them."""
    if family not in FAMILIES:
        pytest.skip("no tiny config of this name")
    model = build(FAMILIES[family])
    config = {key: value for key, value in model.config.to_dict().items() if key != "model_type"}
    try:
        found = arch.families(arch.live_parameters(model), config)
    except UnknownArchitecture as error:
        assert family in str(error).replace(",", "").replace(";", "").split()  # noqa: PT017 - either way is right
        return
    own, *others = (
        [of_weights(stack) for stack in arch.stacks_of({**config, "model_type": name})] for name in (family, *found)
    )
    assert family in found
    assert all(other == own for other in others)


def test_an_old_folder_is_read_by_the_row_that_fits(tmp_path: Path) -> None:
    folder = str(old_folder(tmp_path / "old"))
    found = scan(folder)
    assert (found.stacks[0].dims, found.model_type) == ((3,), "bert")
    assert found.notes == (
        "no model_type in the config: taken for bert, whose row alone fits the names of the tensors; "
        "--model-args family says otherwise",
    )
    bare = scan(str(old_folder(tmp_path / "bare", prefix=False, head=False)))
    assert (bare.stacks[0].dims, bare.model_type) == ((3,), "")
    assert all(name in bare.notes[0] for name in BERTS)
    assert "deberta" not in bare.notes[0]
    asked = scan(str(tmp_path / "bare"), ScanOptions(row="roberta"))
    assert (asked.stacks[0].dims, asked.model_type, asked.notes) == ((3,), "roberta", ())


def test_a_stored_head_counts_without_architectures(tmp_path: Path) -> None:
    told: list[str] = []
    loaded = load_model(str(old_folder(tmp_path / "old")), LoadOptions(notice=told.append))
    assert (loaded.head, type(loaded.model).__name__) == ("masked", "BertForMaskedLM")
    assert len(told) == 1
    assert "taken for bert" in told[0]
    whole: Any = build(FAMILIES["bert"], "MaskedLM")
    wanted = whole.cls.predictions.transform.dense.weight
    assert torch.equal(loaded.model.cls.predictions.transform.dense.weight, wanted)  # type: ignore[union-attr, arg-type]
    tokenizer: Any = loaded.tokenizer
    assert tokenizer("the w1")["input_ids"] == [2, 39, 6, 3]  # by vocab.txt alone
    bare = load_model(str(old_folder(tmp_path / "bare", prefix=False, head=False)), LoadOptions(notice=told.append))
    assert (bare.head, type(bare.model).__name__) == ("none", "BertModel")


def test_families_that_share_a_row_must_be_told_apart_to_run(tmp_path: Path, run: Any) -> None:
    folder = old_folder(tmp_path / "bare", prefix=False, head=False, words=False)
    with pytest.raises(UnknownArchitecture, match=r"could be of bert, .*; say which, such as --model-args family=bert"):
        load_model(str(folder))
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "vocab.txt").write_text("\n".join(WORDS))
    options = ("--model-args", "family=bert", "--model-args", f"tokenizer={tmp_path / 'tokens'}", "--limit", "2")
    code, _, err = run("observe", str(folder), *options)
    assert code == 0, err
    code, _, err = run("observe", str(folder), "--model-args", "family=bert", "--limit", "2")
    assert code == 1
    assert "no tokenizer beside it, so texts cannot be read; pass one (--model-args tokenizer=FOLDER)" in err
    (tmp_path / "tokens" / "vocab.txt").write_text("\n".join((*WORDS, "more", "tokens")))
    code, _, err = run("observe", str(folder), *options)
    assert code == 1
    assert "has tokens up to number 41, and the model rows for 40" in err


def test_what_no_row_fits_is_said_with_a_remedy_that_works(tmp_path: Path, run: Any) -> None:
    save_file({"blocks.0.mlp.weight": torch.zeros(4, 4)}, tmp_path / "other.safetensors")
    for arguments in ((), ("--propose",)):
        code, _, err = run("scan", str(tmp_path / "other.safetensors"), *arguments)
        assert code == 1
        assert (
            "no row of the table fits its tensors; name the family that it is built like (--model-args family=bert)"
            in err
        )
        assert "--propose" not in err
    code, _, err = run(
        "scan", str(tmp_path / "other.safetensors"), "--model-args", "family=bert", "--model-args", "arch=row.toml"
    )
    assert (code, "give one of them" in err) == (1, True)


def test_rows_that_differ_are_not_guessed_between() -> None:
    names = arch.live_parameters(build(FAMILIES["llama"]))  # Gemma's names, whose norms multiply by 1 + weight
    with pytest.raises(
        UnknownArchitecture, match=r"fit the rows of gemma, .*llama.*; say which, such as --model-args family=gemma"
    ):
        arch.families(names)


def test_a_draft_is_written_to_a_file_and_serves(tmp_path: Path, run: Any) -> None:
    folder, row = old_folder(tmp_path / "old"), tmp_path / "row.toml"
    code, out, err = run("scan", str(folder), "--propose", "-o", str(row))
    assert (code, out) == (0, ""), err
    assert scan(str(folder), ScanOptions(row=row)).stacks[0].dims == (3,)
    code, _, err = run("scan", str(folder), "--propose", "-o", str(row))
    assert (code, "exists" in err) == (1, True)
    code, _, err = run("scan", str(folder), str(folder), "--propose", "-o", str(tmp_path / "two.toml"))
    assert (code, "the row of one model" in err) == (1, True)


ALONE = {"bert", "electra", "distilbert", "albert", "mpnet", "wav2vec2", "gpt_neox"}


@pytest.mark.parametrize(("family", "found"), [("deberta", {"deberta"}), ("deberta-v2", {"deberta-v2"}),
                                               ("camembert", {"roberta", "camembert", "xlm-roberta"})])  # fmt: skip
@pytest.mark.parametrize("head", ["", "MaskedLM"])
def test_families_that_share_a_prefix_are_told_by_their_heads(family: str, found: set[str], head: str) -> None:
    names = arch.live_parameters(build(FAMILIES[family], head))
    assert (
        set(arch.families([name if head else f"{arch.ARCHITECTURES[family].prefix}.{name}" for name in names])) == found
    )


@pytest.mark.parametrize("family", sorted(ALONE))
def test_names_that_begin_with_a_family_say_which(family: str) -> None:
    assert arch.families([f"{arch.ARCHITECTURES[family].prefix}.a.weight", "classifier.bias"]) == (family,)
    with pytest.raises(UnknownArchitecture):
        arch.families([f"{family}.a.weight", f"{'bert' if family != 'bert' else 'mpnet'}.a.weight"])


def test_an_onnx_file_without_a_config(tmp_path: Path) -> None:
    model = build(FAMILIES["distilbert"])
    tensors = [initializer(f"distilbert.{name}", p.detach().numpy()) for name, p in model.named_parameters()]
    path = save(tmp_path / "m.onnx", ONE_NODE, tensors)
    assert OnnxCheckpoint(path, name="m", config={}).config == {}
    with open_checkpoint(str(path)) as checkpoint:
        (bound,) = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors)
        assert bound.n_layers == model.config.n_layers
        assert "taken for distilbert" in checkpoint.notes[-1]


def test_the_row_by_hand_of_the_docs_is_berts(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    (tmp_path / "row.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    (derived,) = arch.stacks_of({"model_type": "bert"})
    (row,) = arch.load_toml(tmp_path / "row.toml")
    assert of_weights(row) == of_weights(derived)


def test_the_file_of_a_row_and_a_family_exclude_each_other() -> None:
    from outlierlens.session import row_of

    assert (row_of(None, None), row_of(None, "bert"), row_of(Path("a"), None)) == (None, "bert", Path("a"))
    with pytest.raises(BadInput, match="--model-args arch and family both say"):
        row_of(Path("a"), "bert")


def test_a_remedy_that_names_a_family_works(tmp_path: Path, words: Any) -> None:
    build(FAMILIES["roberta"], "MaskedLM").save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "model_type"}))
    with pytest.raises(
        UnknownArchitecture, match=r"could be of roberta, camembert, xlm-roberta; .* --model-args family=roberta$"
    ):
        load_model(str(tmp_path))
    assert load_model(str(tmp_path), LoadOptions(row="roberta")).head == "masked"
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(BadInput, match=r"vocab\.txt: is a file; name the folder that holds it"):
        load_model(str(tmp_path), LoadOptions(row="roberta", tokenizer=str(tmp_path / "vocab.txt")))
    (tmp_path / "config.json").unlink()
    with pytest.raises(UnknownModel, match=r"takes more than its weights; put beside them: config\.json$"):
        load_model(str(tmp_path), LoadOptions(row="roberta"))


def saved(place: Path, family: str, head: str = "CausalLM", **changes: Any) -> Path:
    model: Any = build(FAMILIES[family], head)
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))
    return place


def test_a_row_of_another_family_leaves_the_class_to_the_config(tmp_path: Path) -> None:
    """Mistral's blocks are named as Llama's; what runs is Mistral, with its window."""
    folder = saved(tmp_path, "mistral")
    said: list[str] = []
    loaded = load_model(str(folder), LoadOptions(row="llama", notice=said.append))
    assert type(loaded.model).__name__ == "MistralForCausalLM"
    assert loaded.stacks[0].blocks[0] == "model.layers.0"
    (line,) = said
    assert line.endswith("its config says mistral; the row of llama says where streams are, and what runs is mistral")
    found = scan(str(folder), ScanOptions(row="llama"))
    assert any("its config says mistral; the streams are those of the row of llama" in note for note in found.notes)
    assert not any("its config says" in note for note in scan(str(folder), ScanOptions(row="mistral")).notes)


def test_a_model_of_pictures_and_words_is_read_by_the_row_of_its_text_model(tmp_path: Path) -> None:
    import transformers

    text = transformers.LlamaConfig(**FAMILIES["llama"].config)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_id=38)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), LoadOptions(row="llama", notice=lambda _: None))
    assert type(loaded.model).__name__ == "LlavaForConditionalGeneration"
    assert loaded.stacks[0].n_layers == text.num_hidden_layers
    assert loaded.model.config.text_config.hidden_size == text.hidden_size


def test_settings_that_the_family_does_not_have_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama", model_type="my_llama", residual_multiplier=0.5, vision_config={"hidden_size": 8})
    said: list[str] = []
    loaded = load_model(str(folder), LoadOptions(row="llama", notice=said.append))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert any(
        line.endswith("its config says my_llama; what runs is the model of llama in transformers") for line in said
    )
    (left,) = [line for line in said if "has no setting" in line]
    assert "llama has no setting residual_multiplier, vision_config, so what config.json says there is not" in left
    assert not hasattr(loaded.model.config, "residual_multiplier")


CODE = """from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel


class MyConfig(LlamaConfig):
    model_type = "my_lm"


class MyModel(LlamaModel):
    config_class = MyConfig


class MyForCausalLM(LlamaForCausalLM):
    config_class = MyConfig
"""
ROW = """[[stack]]
blocks = "layers.{layer}"
norm_site = "read"
last_linear = ["mlp.down_proj"]
other_writes = ["self_attn.o_proj"]
reading_norms = ["input_layernorm", "post_attention_layernorm"]
embeddings = ["embed_tokens"]
final_norm = "norm"
"""


@pytest.mark.parametrize("named", [["MyForCausalLM"], None])
def test_a_model_with_its_own_code_keeps_its_head_and_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str] | None
) -> None:
    places = {"AutoConfig": "modeling_my.MyConfig", "AutoModel": "modeling_my.MyModel"}
    places["AutoModelForCausalLM"] = "modeling_my.MyForCausalLM"
    folder = saved(tmp_path / "my", "llama", model_type="my_lm", auto_map=places, architectures=named)
    (folder / "modeling_my.py").write_text(CODE)
    row = tmp_path / "row.toml"
    row.write_text(ROW)

    def asked(*_: Any) -> str:
        raise AssertionError("a question")

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    loaded = load_model(str(folder), LoadOptions(row=row, trust_remote_code=True))
    assert (type(loaded.model).__name__, loaded.head) == ("MyForCausalLM", "causal")
    plain = build(FAMILIES["llama"], "CausalLM")
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=0, atol=1e-5)
    with pytest.raises(
        UnknownModel, match="runs by code that comes with it; read that, and pass --model-args trust-remote-code"
    ):
        load_model(str(folder), LoadOptions(row=row))
