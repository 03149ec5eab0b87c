"""Commands say of a model that is read block by block what they say of the whole model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlierlens as ol
from outlierlens.analyses.quantize_schemes import parse_all
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.results.document import save
from planted import some_texts

TEXTS = some_texts(7, shortest=4)
WHOLE, BY_BLOCK = LoadOptions(by_block=False, attention="eager"), LoadOptions(by_block=True, attention="eager")
FAMILIES = {"llama": "CausalLM", "bert": "MaskedLM", "albert": "MaskedLM", "t5": ""}


def quantized(loaded: LoadedModel, **more: Any) -> Any:
    """Weights and inputs rounded, with noise, errors, a threshold and SmoothQuant's scales."""
    recipes = parse_all("int8-channel/none,int8-tensor/int8-tensor")
    how: dict[str, Any] = {"n_random": 2, "noise_draws": 1, "threshold": 1.0, "n_calibrate": 0}
    return ol.quantize(loaded, TEXTS, recipes=recipes, dims=(3, 5), **how, **more)


# Each with the readings of all weights that it takes: what decides what is measured is a reading of its own.
COMMANDS: dict[str, tuple[Callable[..., Any], int]] = {
    "ablate": (lambda loaded, **more: ol.ablate(loaded, TEXTS, (3, 5), n_random=3, **more), 2),
    "ablate neurons": (lambda loaded, **more: ol.ablate(loaded, TEXTS, {1: (3,)}, stack="mlp", n_random=3, **more), 2),
    "modes": (
        lambda loaded, **more: ol.ablate(loaded, TEXTS, (3, 5), modes=("zero", "mean", "scale-once:2"), **more),
        4,
    ),
    "quantize": (quantized, 5),
    "attention": (lambda loaded, **more: ol.attention(loaded, TEXTS, dims=(3, 5), **more), 1),
    "geometry": (lambda loaded, **more: ol.geometry(loaded, TEXTS, **more), 5),
    "observe": (lambda loaded, **more: ol.observe(loaded, TEXTS, batch_size=2, **more), 2),
    "range": (lambda loaded, **more: ol.range_of(loaded, TEXTS, batch_size=2, cache=True, **more), 2),
}


def content(finding: Any, place: Path) -> dict[str, Any]:
    """As JSON, without what tells how and when it was made."""
    save(finding, place)
    found = json.loads(place.read_text())
    found.pop("provenance")
    return found


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_findings_are_equal(name: str, family: str, model_folder: Callable[..., str], tmp_path: Path) -> None:
    command, most = COMMANDS[name]
    folder = model_folder(family, FAMILIES[family], "masked" if family == "bert" else "causal")
    whole, split = load_model(folder, WHOLE), load_model(folder, BY_BLOCK)
    found = content(command(split), tmp_path / "split.json")
    wanted = content(command(whole), tmp_path / "whole.json")
    for replies in (each["replies"] for each in (found, wanted) if each.get("replies")):
        replies["begins"] = replies["continued"] = None  # what a decoder goes on to say reads all weights for each word
    assert found == wanted
    assert split.blocks
    reads = split.blocks.weights.reads
    assert max(map(reads.count, reads)) <= most
