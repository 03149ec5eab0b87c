"""What is wrong with a file is said: separators, missing labels, weights that hold NaN, one bad model among good ones."""

from pathlib import Path
from typing import Any

import pytest
import torch

from architectures import FAMILIES, build
from conftest import Words
from outlierlens.data.labelled import read_examples
from outlierlens.data.labelled.labels import plain_task
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.view.section import these

CLASSIFY = plain_task("classify", "text", "label")


def saved(folder: Path, value: float | None = None) -> str:
    model = build(FAMILIES["bert"], "MaskedLM")
    if value is not None:
        with torch.no_grad():
            dict(model.named_parameters())["bert.encoder.layer.1.attention.self.query.weight"][0, 0] = value
    model.save_pretrained(folder)
    Words.build().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "mark", "says"),
    [
        ("a.csv", ";", "commas separate the columns of such a file"),
        ("a.csv", "\t", "commas separate the columns of such a file"),
        ("a.tsv", ",", "tabs separate the columns of such a file"),
    ],
)
def test_another_separator_is_told(name: str, mark: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"text{mark}label\na b{mark}x\n")
    for read in (lambda: read_texts(path), lambda: read_examples(CLASSIFY, path)):
        with pytest.raises(BadInput, match=says):
            read()


@pytest.mark.parametrize("missing", ["", " ", "NaN", "nan"])
def test_a_missing_label_is_refused_with_its_row(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\na,x\nb,{missing}\nc,y\n")
    with pytest.raises(BadInput, match=r"row 2: the label is missing \('.*'\); give one, or remove the row"):
        read_examples(CLASSIFY, path)


def test_weights_that_hold_nan_are_refused_by_name(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        model = saved(tmp_path / str(value), value)
        with pytest.raises(
            BadFile, match=r"layer\.1\.attention\.self\.query\.weight holds NaN or infinity: the weights are"
        ):
            load_model(model)
    large = saved(tmp_path / "large", 1e6)
    load_model(large)
    with pytest.raises(BadFile, match="try --dtype float32"):
        load_model(large, LoadOptions(dtype="float16"))


def test_a_scan_shows_the_good_models_and_fails_with_the_bad_one(tmp_path: Path, run: Any) -> None:
    good, other = saved(tmp_path / "good"), saved(tmp_path / "other")
    bad = str(tmp_path / "nothing-here")
    code, out, err = run("scan", good, bad, other)
    assert code == 1
    assert f"{good}, model" in out
    assert f"{other}, model" in out
    assert bad in err


def test_a_model_of_ctranslate2_is_named(tmp_path: Path, run: Any) -> None:
    name = b"TransformerDecoderSpec\0"
    (tmp_path / "model.bin").write_bytes(b"\6\0\0\0" + len(name).to_bytes(2, "little") + name + bytes(64))
    (tmp_path / "config.json").write_text('{"bos_token": "<s>", "layer_norm_epsilon": 1e-6}')
    for model in (tmp_path, tmp_path / "model.bin"):
        for command in (("scan", str(model)), ("observe", str(model))):
            code, _, err = run(*command)
            assert code == 1
            assert "a model of CTranslate2, which is not read; name the model that it was converted from" in err


def test_dimensions_are_named_as_in_a_sentence() -> None:
    assert these((507,)) == "dimension 507"
    assert these((1, 2, 3)) == "dimensions 1, 2 and 3"
    assert these(tuple(range(15))) == "dimensions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more"
