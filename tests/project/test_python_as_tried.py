"""Python as people try it: names, models, sentences, one number and arrays, wherever a function of the library takes what is
made of them; what `print` shows; charts as files; a bar in notebooks; refusals in one line."""

import dataclasses
import inspect
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import outlierlens as ol
from explore_models import planted
from outlierlens import commands
from outlierlens.commands import accepting, given_model, given_texts
from outlierlens.errors import BadInput
from outlierlens.experiments import EXPERIMENTS
from outlierlens.options import AblateOptions, ObserveOptions, given_dims
from outlierlens.view.charts.base import chart

FUNCTIONS = sorted({row.python.rpartition(":")[2] for row in EXPERIMENTS if row.python})
SENTENCES = ["A film worth seeing.", "The story is simple, but the actors are so good that I would watch it again."]


def options_of(name: str) -> Any:
    """The class of options that a function takes; None where it takes none with `dims`."""
    one = inspect.signature(getattr(commands, name)).parameters.get("options")
    kinds = typing.get_args(one.annotation) or (one.annotation,) if one else ()
    own = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
    return own if own and any(field.name == "dims" for field in dataclasses.fields(own)) else None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_refuses_what_is_no_model_in_one_line(name: str) -> None:
    function = getattr(commands, name)
    assert function is getattr(commands, name)
    first = next(iter(inspect.signature(function).parameters.values()))
    if first.name not in ("loaded", "model", "base", "before", "name") or first.annotation is Any:
        return
    others = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty][1:]
    with pytest.raises(BadInput) as refused:
        function(3.5, *(None for _ in others))
    assert "\n" not in str(refused.value)
    assert "float" in str(refused.value)


DIMS = {name: own for name in FUNCTIONS if (own := options_of(name))}


@pytest.mark.parametrize("name", DIMS)
def test_options_take_dimensions_as_people_have_them(name: str) -> None:
    own = DIMS[name]
    assert len(DIMS) > 8
    for given in (507, [507], np.array([507]), np.int64(507), {507}, (np.int32(507),)):
        made = own(dims=given)
        assert made.dims == (507,)
        assert type(made.dims[0]) is int
        assert (made.dims == "find") is False
    assert own(dims="find").dims == "find"
    with pytest.raises(BadInput, match="give whole numbers such as 507"):
        own(dims=[0.5])


def test_dimensions_by_layer_and_words_stay() -> None:
    assert given_dims({3: np.array([1, 2]), 4: 5}) == {3: (1, 2), 4: (5,)}
    assert given_dims("all") == "all"
    assert given_dims(range(3)) == (0, 1, 2)
    for wrong in (True, 1.5, np.array([1.0]), [[1]], [None]):
        with pytest.raises(BadInput, match="dims is"):
            given_dims(wrong)


def test_a_scan_of_a_name_a_folder_and_a_live_model_agree(tmp_path: Path) -> None:
    loaded = planted().loaded
    loaded.model.save_pretrained(tmp_path)
    stored = ol.scan("mini-planted").stacks[0].dims
    for model in (loaded, loaded.model, (loaded.model, loaded.tokenizer), tmp_path):
        assert ol.scan(model).stacks[0].dims == stored
    twice = ol.compare(ol.scan("mini-planted"), ol.scan("mini-planted"))
    for other in ("mini-planted", loaded.model):
        assert ol.compare("mini-planted", other).streams[0].stayed == twice.streams[0].stayed == stored
        assert [one.z_after for one in ol.compare("mini-planted", [other]).changes] == [
            one.z_after for one in twice.changes
        ]


def test_names_sentences_and_one_number_measure_what_objects_measure() -> None:
    loaded = planted().loaded
    options = AblateOptions(n_random=1, n_matched=0)
    texts = given_texts("texts", SENTENCES)
    plain = ol.ablate(loaded, texts, (40,), options)
    for model in ("mini-planted", (loaded.model, loaded.tokenizer)):
        again = ol.ablate(model, SENTENCES, np.int64(40), options)
        assert again.dims == (40,)
        assert again.chosen.change.value == pytest.approx(plain.chosen.change.value, abs=1e-5)  # two ways to attend
    with ol.zeroed_weights(loaded, 40) as n:
        assert n > 0
    assert ol.observe("mini-planted", "excerpt", ObserveOptions(passage_tokens=0)).about.data == "excerpt"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ol.observe(3, SENTENCES),
            "an object of type int is not a model; give its name or folder, the model itself",
        ),
        (lambda: ol.observe("mini-planted", []), "texts is neither sentences nor token ids"),
        (lambda: ol.observe("mini-planted", [1.5]), "texts is neither sentences nor token ids"),
        (lambda: ol.ablate("mini-planted", SENTENCES, 0.5), "dims is 0.5; give whole numbers"),
        (lambda: ol.origin(planted().loaded), "model is a LoadedModel; this reads stored weights: save the model"),
    ],
)
def test_what_is_given_wrongly_is_said_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_print_shows_what_the_command_shows(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "scan.json"
    code, shown, _ = run("scan", "mini-planted", "-o", str(file))
    assert code == 0
    for line in filter(None, map(str.strip, shown.splitlines())):
        if str(file) not in line:
            assert line in str(ol.load(file)) or line.startswith(("note", "to ", "what "))


def test_a_chart_is_saved_as_its_ending_says(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    made = chart(
        name="x", title="x", reading="x.", height=50, columns=("a",), rows=[(1,)],
        layers=[{"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a", "type": "quantitative"}}}],
    )  # fmt: skip
    assert made.save(tmp_path / "x.png") == tmp_path / "x.png"
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in made.save(str(tmp_path / "x.svg")).read_bytes()
    assert json.loads(made.save(tmp_path / "x.json").read_text("utf-8"))["mark" if "mark" in made.spec else "layer"]
    with pytest.raises(BadInput, match=r"the ending sets the format; use \.png, \.svg, \.json"):
        made.save(tmp_path / "x.gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.png", "x.svg"]


def test_a_notebook_sees_a_bar_and_then_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    kernel = SimpleNamespace(kernel=object())
    display = SimpleNamespace(HTML=str, display=lambda *_, **__: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    from collections.abc import Callable

    def work(loaded: Any, *, progress: Callable[[str, int, int], None] | None = None) -> int:
        assert progress is not None
        progress("a <b>", 1, 2)
        return 7

    assert accepting(work)(planted().loaded) == 7
    assert shown[0].startswith('<progress max="2" value="1" aria-label="a &lt;b&gt; (1 of 2)">')
    assert shown[-1] == ""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    with pytest.raises(AssertionError):
        accepting(work)(planted().loaded)


def test_a_live_model_finds_the_tokenizer_in_the_folder_it_came_from(tmp_path: Path) -> None:
    import transformers

    loaded = planted().loaded
    loaded.model.save_pretrained(tmp_path)
    assert given_model(loaded) is loaded
    assert given_model(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)).tokenizer is None
    loaded.tokenizer.save_pretrained(tmp_path)
    assert given_model(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)).tokenizer is not None
