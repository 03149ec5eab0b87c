"""`outlierlens.NAME` as people call it: settings as keywords, dimensions as words, token ids as texts; the model comes back."""

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outlierlens as ol
from architectures import FAMILIES, build
from outlierlens import commands
from outlierlens.analyses.ablate import AblateOptions
from outlierlens.analyses.repair import RepairOptions
from outlierlens.commands import given_texts, in_python
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.experiments import EXPERIMENTS
from outlierlens.options import settings_of
from planted import some_texts, tiny

SOURCE = Path(ol.__file__).parent
FUNCTIONS = sorted({row.python.rpartition(":")[2] for row in EXPERIMENTS if row.python})
QUICK = {"n_random": 1, "n_matched": 0}
TEXTS = some_texts(4, shortest=4)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_setting_is_a_keyword_and_an_unknown_one_is_named(name: str) -> None:
    function = getattr(commands, name)
    shown = inspect.signature(function).parameters
    annotation = inspect.signature(inspect.unwrap(function)).parameters.get("options")
    kinds = getattr(annotation and annotation.annotation, "__args__", ()) or (annotation and annotation.annotation,)
    for kind in filter(dataclasses.is_dataclass, kinds):
        groups = {name for name, (one, *_) in settings_of(kind).items() if dataclasses.is_dataclass(one.kind)}
        assert set(settings_of(kind)) - groups <= set(shown)
        assert "Settings, as keywords" in function.__doc__
    with pytest.raises(BadInput, match=f"^{function.__name__} has no setting 'n_randon'") as refused:
        function(n_randon=3)
    assert ("near: 'n_random'" in str(refused.value)) == ("n_random" in shown)


def test_keywords_are_what_options_are() -> None:
    loaded = tiny("gpt2", "CausalLM", "causal")
    options = AblateOptions(n_random=2, n_matched=0, modes=("zero",), seed=3)
    one = ol.ablate(loaded, TEXTS, (3, 5), options)
    two = ol.ablate(loaded, TEXTS, "3,5", n_random=2, n_matched=0, modes="zero", seed=3)
    three = ol.ablate(loaded, TEXTS, "3,5", AblateOptions(n_random=9, n_matched=0, modes=("zero",)), n_random=2, seed=3)
    for other in (two, three):
        assert (other.chosen.mode, other.dims, other.chosen.change) == (one.chosen.mode, (3, 5), one.chosen.change)
        assert [c.median for c in other.families] == [c.median for c in one.families]


def test_a_keyword_sets_nested_options_and_a_group_goes_by_its_name() -> None:
    loaded = tiny("gpt2", "CausalLM", "causal")
    assert ol.ablate(loaded, TEXTS, [3], task="output change", **QUICK).about.task == "output change"
    seeds = settings_of(AblateOptions)["seed"]
    assert {one.path for one in seeds} == {("seed",), ("task", "seed")}
    assert ol.ablate(loaded, TEXTS, [3], blocks=True, max_length=100, **QUICK).about.n_texts == 1
    assert ol.ablate(loaded, TEXTS, [3], **QUICK).about.n_texts == 4
    assert ol.scan("mini-planted", rule="puccetti", view="last").rule.name == "puccetti"
    assert ol.load_model("mini-planted", dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(BadInput, match="n_random is -1; it must be at least 0"):
        ol.ablate(loaded, TEXTS, [3], n_random=-1)


def test_words_of_the_command_line_are_read_as_there() -> None:
    loaded = tiny("gpt2", "CausalLM", "causal")
    found = ol.ablate(loaded, TEXTS, "0-1:3;2:4,5", layers=None, **QUICK)
    assert found.chosen.plan == {0: (3,), 1: (3,), 2: (4, 5)}
    assert ol.ablate(loaded, TEXTS, [3], layers="0-1", **QUICK).about.layers == (0, 1)
    space = ol.geometry(loaded, TEXTS, fixes="raw", layers="embeddings,1", n_words=0)
    assert [(one.layer, one.fix) for one in space.by_layer] == [("embeddings", "raw"), ("1", "raw")]
    with ol.zeroed_weights(loaded, "3,5") as n:
        assert n
    with pytest.raises(BadInput, match="names layers"):
        ol.quantize(loaded, TEXTS, dims="0:3")
    with pytest.raises(BadInput, match="dims is 'find'; give dimensions"), ol.zeroed_weights(loaded, "find"):
        pass


def test_find_is_what_the_weights_name() -> None:
    named = ol.scan("mini-planted").stacks[0].dims
    assert ol.ablate("mini-planted", ["A film worth seeing."], **QUICK).dims == named
    flat = tiny("gpt2", "CausalLM", "causal")
    said = ol.ablate(flat, TEXTS, "find", **QUICK)
    if not ol.scan(flat).stacks[0].dims:
        assert "on activations" in said.about.named_by


# --- texts ---------------------------------------------------------------------------------------------------------


def test_texts_iterate_and_index() -> None:
    texts = some_texts(5)
    assert list(texts) == list(texts.texts)
    assert texts[1] == texts.texts[1]
    assert texts[-1] == texts.texts[-1]
    part = texts[1:3]
    assert (part.texts, part.source, part.digest) == (texts.texts[1:3], texts.source, texts.some([1, 2]).digest)
    with pytest.raises(IndexError):
        texts[5]


IDS = [[3, 4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    "given",
    [
        IDS,
        [torch.tensor(row) for row in IDS],
        [np.array(row) for row in IDS],
        {"input_ids": torch.tensor([IDS[0], [*IDS[1], 0]]), "attention_mask": torch.tensor([[1] * 4, [1, 1, 1, 0]])},
        {"input_ids": IDS},
    ],
    ids=["lists", "tensors", "arrays", "padded", "mapping"],
)
def test_token_ids_as_people_have_them(given: Any) -> None:
    assert [list(text.ids) for text in given_texts("texts", given)] == IDS


def test_one_row_of_ids_and_what_are_none() -> None:
    assert [text.ids for text in given_texts("texts", torch.tensor([3, 4]))] == [(3, 4)]
    assert [text.ids for text in given_texts("texts", torch.tensor([[3, 4], [5, 6]]))] == [(3, 4), (5, 6)]
    assert given_texts("texts", [[3, 4]]).digest != given_texts("texts", [[3, 5]]).digest
    for wrong in ([1.5], [[-100, 3]], [True], [], [[]], ["a", 3], torch.tensor([0.5]), {"labels": [1]}):
        with pytest.raises(BadInput, match="texts is neither sentences nor token ids"):
            given_texts("texts", wrong)


def test_token_ids_are_read_as_the_texts_that_they_are_of() -> None:
    loaded = tiny("bert", "MaskedLM")
    ids = loaded.tokenizer(list(TEXTS.texts), padding=True, return_tensors="pt")
    one, two = (ol.observe(loaded, texts).stacks[0] for texts in (TEXTS, ids))
    assert one.views.keys() == two.views.keys() == {"all", "without_special"}
    for view in one.views:
        np.testing.assert_array_equal(one.views[view].abs_max, two.views[view].abs_max)


def test_a_model_without_a_tokenizer_is_measured_on_token_ids() -> None:
    model = build(FAMILIES["gpt2"], "CausalLM")
    rows = [[3, 4, 5, 6, 7, 8], [9, 3, 4, 11]]
    seen = ol.observe(model, rows)
    assert (seen.about.n_tokens, seen.n_special) == (10, 0)
    assert {"id 3", "id 9"} & set(str(seen).split(",")) or "id " in str(seen)
    off = ol.ablate(model, rows, [3], **QUICK)
    losses = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])))
    assert off.intact.per_text == pytest.approx(losses, rel=1e-5)
    assert (off.about.task, off.replies, off.about.n_tokens) == ("causal loss", (), 8)
    assert ol.range_of(model, rows).about.n_texts == 2
    blocks = ol.ablate(model, rows, [3], blocks=True, max_length=5, **QUICK)
    assert (blocks.about.n_texts, blocks.about.n_tokens) == (2, 8)
    masked = build(FAMILIES["bert"], "MaskedLM")
    for refused in (lambda: ol.ablate(masked, rows, [3], **QUICK), lambda: ol.observe(model, ["w1 w2"])):
        with pytest.raises(BadInput, match=r"no tokenizer beside it.*load_model\(tokenizer=FOLDER\)"):
            refused()
    assert ol.ablate(masked, rows, [3], task="output change", **QUICK).about.task == "output change"
    with pytest.raises(BadInput, match="token id 4000 has no row"):
        ol.ablate(model, [[3, 4000]], [3], **QUICK)


WORDLESS = {
    "observe": {}, "range_of": {}, "trace": {"dim": 3, "n_random": 1}, "definitions": {"nulls": (), "trial_texts": 2},
    "quantize": {"recipes": "int8-tensor/none", "n_random": 1, "n_calibrate": 0, "dims": "3"},
    "prune_test": {"dims": 3, "n_random": 1, "n_scattered": 0, "n_matched": 0},
    "sweep": {"dims": "3,4", "n_random": 1, "n_matched": 0, "gradients": 0}, "attention": {"dims": 3}, "mask": {},
    "geometry": {"n_words": 0}, "attack": {"dims": 3}, "plan": {"n_random": 1},
}  # fmt: skip
WITH_WORDS = ("attention", "attack")


@pytest.mark.parametrize("name", WORDLESS)
def test_without_a_tokenizer_there_is_a_result_or_one_line(name: str) -> None:
    rows = [[3, 4, 5, 6, 7, 8], [9, 3, 4, 11], [12, 13, 14], [7, 7, 8, 3], [5, 6, 7], [8, 9, 10, 3]]
    said = ""
    try:
        found = getattr(commands, name)(build(FAMILIES["gpt2"], "CausalLM"), rows, **WORDLESS[name])
    except BadInput as error:
        said = str(error)
    assert "\n" not in said
    assert ("has no tokenizer" in said) == (name in WITH_WORDS), said
    assert said or str(found)


# --- the model comes back ------------------------------------------------------------------------------------------

MEASURES = {
    "observe": lambda model: ol.observe(model, TEXTS).stacks[0].views["all"].abs_max.tolist(),
    "ablate": lambda model: ol.ablate(model, TEXTS, [3], **QUICK).chosen.change.value,
    "range_of": lambda model: ol.range_of(model, TEXTS).top("stream").largest,
    "attention": lambda model: ol.attention(model, TEXTS, n_random=1, n_bootstrap=20).heads[0].tolist(),
    "trace": lambda model: ol.trace(model, TEXTS, dim=3, n_random=1).lift,
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_model_in_training_is_measured_in_evaluation_and_trains_on(name: str) -> None:
    plain = tiny("llama", "CausalLM", "causal")
    plain.model.config.attention_dropout = 0.5
    for block in plain.model.model.layers:
        block.self_attn.attention_dropout = 0.5
    right = MEASURES[name](plain)
    plain.model.train()
    still = plain.model.model.layers[1].mlp.eval()  # one part was told to stay in evaluation mode
    next(plain.model.parameters()).requires_grad_(False)
    before = [
        (one.training, getattr(one, "config", None) and one.config._attn_implementation)
        for one in plain.model.modules()
    ]
    wants = [one.requires_grad for one in plain.model.parameters()]
    given = ol.from_objects(plain.model, plain.tokenizer, name=plain.name)
    assert MEASURES[name](given) == right
    assert MEASURES[name]((plain.model, plain.tokenizer)) == right
    with pytest.raises(BadInput):
        ol.observe(given, TEXTS, stack="none")
    after = [
        (one.training, getattr(one, "config", None) and one.config._attn_implementation)
        for one in plain.model.modules()
    ]
    assert after == before
    assert plain.model.training
    assert not still.training
    assert [one.requires_grad for one in plain.model.parameters()] == wants


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "python"),
    [
        ("lower --random; or use --each", "lower n_random; or use each=True"),
        ("write --dims 11:1229", 'write dims="11:1229"'),
        ("use --tokens rest", 'use tokens="rest"'),
        ("use --dtype float32; where", 'use load_model(dtype="float32"); where'),
        ("pass one (--model-args tokenizer=FOLDER)", "pass one (load_model(tokenizer=FOLDER))"),
        ("built like (--model-args family=bert)", 'built like (load_model(row="bert"))'),
        ("load it whole (--no-by-block)", "load it whole (load_model(by_block=False))"),
        ("--model-args arch=row.toml (`outlierlens scan`)", 'load_model(row=Path("row.toml")) (`outlierlens scan`)'),
        ("read fewer texts (--limit)", "read fewer texts (read_texts(limit=…))"),
        ("name another folder with -o, or use --overwrite", "name another folder, or use overwrite=True"),
    ],
)  # fmt: skip
def test_errors_name_what_python_has(said: str, python: str) -> None:
    assert in_python(said, settings_of(AblateOptions)) == python


def test_a_flag_that_is_a_keyword_of_the_function_is_plain() -> None:
    assert in_python("use --dtype float32", settings_of(ol.load_model.__wrapped__.__globals__["LoadOptions"])) == (
        'use dtype="float32"'
    )
    assert in_python("use --rule view=reading, which", settings_of(ScanOptions)) == 'use view="reading", which'
    assert in_python("use a larger --margin 4", settings_of(RepairOptions)) == "use a larger margin=4"
    assert in_python("lower --sigma", settings_of(ObserveOptions)).startswith("lower ")


def test_no_message_of_the_library_reaches_python_with_a_flag() -> None:
    """Every string behind a raise, as Python hears it."""
    known = settings_of(AblateOptions)
    seen = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and " --" in f" {part.value}":
                    seen += 1
                    heard = in_python(part.value, known)
                    allowed = ("`", "outlierlens ", "hf ", "pip ", "ray start")
                    assert "--" not in heard or any(word in heard for word in allowed), f"{path}: {heard}"
    assert seen > 100


def test_an_error_of_a_call_names_keywords() -> None:
    loaded = tiny("gpt2", "CausalLM", "causal")
    with pytest.raises(BadInput, match="which stream\\? stack must be one of model, not 'x'"):
        ol.observe(loaded, TEXTS, stack="x")
    with pytest.raises(BadInput, match='stack mlp: a neuron is named with its block; write dims="11:1229"'):
        ol.ablate(loaded, TEXTS, stack="mlp", **QUICK)


# --- the report ----------------------------------------------------------------------------------------------------


def test_a_report_in_one_call(tmp_path: Path) -> None:
    import outlierlens.report.job  # the package is the function too, whoever came first

    sentences = ["A film worth seeing.", "The story is simple, but the actors are good."]
    found = ol.report("mini-planted", sentences, folder=tmp_path / "one", dims="8,24", **QUICK)
    assert (tmp_path / "one" / "report.html").is_file()
    assert found.damages[0].dims == (8, 24)
    loaded = ol.load_model("mini-planted")
    loaded.model.train()
    again = ol.report(loaded, sentences, folder=tmp_path / "two", dims=[8, 24], **QUICK)
    assert again.damages[0].chosen.change.value == found.damages[0].chosen.change.value
    assert loaded.model.training
    with pytest.raises(BadInput, match="holds a report already; name another directory, or use overwrite=True"):
        ol.report(loaded, sentences, folder=tmp_path / "two", **QUICK)
    with pytest.raises(BadInput, match="are made by the command, `outlierlens report`"):
        ol.report(loaded, sentences, compare=("a", "b"))
    with pytest.raises(BadInput, match="report has no setting 'random'; near: 'n_random'"):
        ol.report(loaded, sentences, random=1)
    assert outlierlens.report.job.Job is not None
