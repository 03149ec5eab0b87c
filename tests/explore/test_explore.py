"""The live page without a browser: states and links, what is measured, what reproduces it, and what is refused."""

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import re
import shlex
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import explore_models
from explore_models import PLANTED, TEXT
from outlierlens.ablation.fill import Blank, Filled
from outlierlens.errors import BadInput
from outlierlens.explore import html, snippets
from outlierlens.explore.look import Explorer, open_explorer
from outlierlens.explore.result import VIEWS, Explored, Off, Passage, State, parse_dims, spans
from outlierlens.explore.serve import write_space
from outlierlens.models.load import LoadOptions, fingerprint
from outlierlens.results.document import from_json

SHORT = State(text="The story is simple, but the actors are so good that I would watch it again.", dims=PLANTED)
STATES = st.builds(
    State,
    text=st.text(max_size=40),
    dims=st.lists(st.integers(0, 99_999), unique=True, max_size=5).map(tuple),
    first=st.integers(0, 99),
    last=st.none() | st.integers(0, 99),
    mode=st.sampled_from(["weights", "scale", "mean"]),
    factor=st.floats(-3, 3),
    left=st.floats(0, 1),
    stack=st.sampled_from(["", "encoder"]),
    seed=st.integers(0, 999),
    blank=st.integers(0, 9),
    dimension=st.none() | st.integers(0, 99),
    vector_layer=st.sampled_from(["", "embeddings", "3"]),
    vector_token=st.none() | st.integers(0, 9),
    attention_layer=st.none() | st.integers(0, 9),
    head=st.integers(0, 9),
)


@pytest.fixture(scope="module")
def planted() -> Explorer:
    return explore_models.planted()


@pytest.fixture(scope="module")
def causal(words: Any, tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """A tiny decoder that is read from a folder, as commands read it."""
    folder = tmp_path_factory.mktemp("tiny")
    made = explore_models.tiny(words).loaded
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return open_explorer(str(folder), LoadOptions(dtype="float32", device="cpu"))


# Links.


@given(STATES)
@settings(max_examples=60)
def test_a_link_restores_the_state(state: State) -> None:
    assert State.from_query(state.query()) == state
    assert re.fullmatch(r"[\w.~*&=%+-]*", state.query(), re.ASCII)


def test_a_new_page_has_no_query_and_other_names_are_passed_over() -> None:
    assert State().query() == ""
    assert State.from_query("__theme=dark&utm=1") == State()
    assert State(text="a b", dims=(3, 1), last=2).query() == "text=a+b&dims=3%2C1&last=2"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("dims=1,x", "cannot read dimensions '1,x'; write whole numbers"),
        ("dims=99999999999", "cannot read dimensions"),
        ("first=-1", "first is '-1' in this link; it must be a whole number from 0 on"),
        ("head=²", "head is '²'"),
        ("factor=nan", "factor is 'nan' in this link; it must be a number"),
        ("factor=" + "9" * 99, "x"),
    ],
)
def test_a_link_that_cannot_be_read_says_what(query: str, message: str) -> None:
    if message == "x":
        assert State.from_query(query).factor == pytest.approx(1e99)
        return
    with pytest.raises(BadInput, match=re.escape(message)):
        State.from_query(query)


def test_dimensions_are_read_once_each_in_their_order() -> None:
    assert parse_dims(" 5, 3;5,, ") == (5, 3)
    assert parse_dims("") == ()
    assert spans((0, 1, 2, 5, 7, 8)) == "0–2, 5, 7–8"


# What is measured.


def test_the_page_lists_what_the_scan_finds(planted: Explorer) -> None:
    listed = planted.listed()
    assert sorted(one.dim for one in listed) == list(PLANTED)
    assert all(one.found and one.layers == (0, 1, 2, 3) and abs(one.strongest) > 3 for one in listed)
    assert re.fullmatch(r"\d+ · layers 0–3 of 4 · \|z\| up to \d\.\d", listed[0].label)
    assert planted.verdict().startswith("8 outlier dimensions of 128: past 3 sigma in at least 2 of 4 layers")
    assert planted.start().dims == ()
    assert planted.standing_out() == PLANTED
    assert abs(next(one.strongest for one in listed if one.dim == planted.strongest())) == max(
        abs(one.strongest) for one in listed
    )


def test_without_outliers_the_strongest_are_listed_and_it_says_so(causal: Explorer) -> None:
    assert not any(stack.outliers for stack in causal.scan.stacks)
    listed = causal.listed()
    assert [one.dim for one in listed] == list(causal.scan.stacks[0].strongest_dims(3))
    assert not any(one.found for one in listed)
    assert causal.verdict().startswith("No outlier dimension: none of ")
    assert causal.verdict().endswith("Listed are the 3 strongest.")


def test_outliers_break_the_text_and_random_dimensions_do_not(planted: Explorer) -> None:
    found = planted.look(SHORT, ("passage", "loss", "anisotropy"))
    assert [one.label for one in found.conditions] == ["intact", "random", "chosen"]
    assert not set(found.conditions[1].dims) & set(PLANTED)
    assert len(found.conditions[1].dims) == 8
    intact, random, chosen = found.loss.rows
    assert (intact.change, intact.change_low, intact.change_high) == (0, 0, 0)
    assert chosen.change_low > 1 > 3 * abs(random.change)
    assert chosen.value - intact.value == pytest.approx(chosen.change)
    assert intact.low < intact.value < intact.high
    kinds = [[blank.kind for blank in one.blanks] for one in found.passage.fills]
    assert set(kinds[0]) == {"same"}
    assert set(kinds[2]) - {"same"}
    # Behind a block the chosen dimensions are 0, so they add nothing to a cosine.
    assert (found.anisotropy.share[2, 1:] == 0).all()
    assert (found.anisotropy.share[0, 1:] > 0.01).all()


def test_the_life_of_the_first_dimension_adds_up(planted: Explorer) -> None:
    seen = planted.look(replace(SHORT, dimension=SHORT.dims[0]), ("life",)).life
    assert seen.dim == SHORT.dims[0]
    values = seen.values[:, seen.at]
    assert np.abs(seen.values).max() == np.abs(values).max()
    # The embeddings carry nothing over: their parts are the whole value.
    assert seen.added[0].sum() == pytest.approx(values[0], abs=1e-5)


def test_losses_by_token_are_those_by_text(planted: Explorer, causal: Explorer) -> None:
    from outlierlens.tasks.base import TaskOptions
    from outlierlens.tasks.choice import make_task

    for explorer, texts in ((planted, ["A film worth seeing.", "Not one."]), (causal, [TEXT, "w3 w4 w5"])):
        task: Any = make_task(explorer.loaded, texts, TaskOptions(max_length=8, batch_size=1))
        nats, numbers = task.per_token()
        values, weights = task.per_text()
        sums = np.bincount(numbers, nats)
        assert np.bincount(numbers).tolist() == weights.tolist()
        np.testing.assert_allclose(sums / weights, values, rtol=1e-12)


def test_vectors_and_attention_are_the_model_s_own(planted: Explorer) -> None:
    import torch

    state = replace(SHORT, vector_layer="1", vector_token=2, attention_layer=2, head=1, dims=())
    found = planted.look(state, ("vectors", "attention"))
    encoded = planted.loaded.tokenizer(SHORT.text, return_tensors="pt")
    with torch.inference_mode():
        output = planted.loaded.model(**encoded, output_hidden_states=True, output_attentions=True)
    np.testing.assert_allclose(found.vectors.values[0], output.hidden_states[2][0, 2].numpy(), atol=1e-5)
    np.testing.assert_allclose(found.attention.weights[0], output.attentions[2][0, 1].numpy(), atol=1e-6)
    assert found.vectors.tokens[:3] == ("[CLS]", "the", "story")
    assert found.vectors.named == tuple(one.dim for one in planted.listed())
    assert found.attention.special[0]
    assert not found.attention.special[1]


def test_guesses_are_the_head_s_and_belong_to_the_blank(planted: Explorer) -> None:
    found = planted.look(replace(SHORT, blank=1), ("guesses", "passage"))
    assert found.guesses.original == found.passage.fills[0].blanks[1].original
    for filled, guessed in zip(found.passage.fills, found.guesses.lists, strict=True):
        asked = [blank for blank in filled.blanks if blank.kind != "changed"]
        assert guessed.guesses[0].word.lstrip("#") == asked[1].filled.lstrip("#")
        chances = [guess.probability for guess in guessed.guesses]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
    last = planted.look(replace(SHORT, blank=99), ("guesses",)).guesses
    assert last.number == len(found.passage.fills[0].blanks) - 1


def test_nothing_chosen_shows_the_intact_model_alone(planted: Explorer) -> None:
    found = planted.look(replace(SHORT, dims=()))
    assert [one.label for one in found.conditions] == ["intact"]
    assert len(found.loss.rows) == 1
    assert "Everything is on" in html.said(found)


def test_the_strongest_dimension_is_turned_down_and_nothing_is_left_of_what_is_off(planted: Explorer) -> None:
    strongest, on = planted.strongest(), replace(SHORT, dims=())

    def loss(state: State) -> list[float]:
        return [row.value for row in planted.look(state, ("loss",)).loss.rows]

    half, none = planted.look(replace(on, left=0.5), ("loss",)), planted.look(replace(on, left=0.0), ("loss",))
    assert half.conditions[2] == Off("chosen", (), (0, 1, 2, 3), (strongest,), 0.5)
    assert half.conditions[1].turned[0] not in PLANTED
    assert f"{strongest} × 0.5" in html.said(half)
    assert loss(on)[0] < half.loss.rows[2].value < none.loss.rows[2].value
    assert none.loss.rows[2].value == loss(replace(on, dims=(strongest,), mode="zero"))[2]
    assert loss(replace(on, left=1.0)) == loss(on)
    both = planted.look(replace(on, dims=(strongest,), left=0.3), ("loss",))
    assert both.state.left == 1
    assert both.conditions[2].names == (str(strongest),)
    other = next(dim for dim in PLANTED if dim != strongest)
    assert loss(replace(on, dims=(other,), left=0.5))[2] > half.loss.rows[2].value
    assert fingerprint(planted.loaded.model) == planted.fingerprint


def test_one_dimension_says_where_it_fires_and_what_it_breaks(planted: Explorer) -> None:
    import torch

    one = planted.look(replace(SHORT, dims=(), dimension=24), ("dimension",)).dimension
    encoded = planted.loaded.tokenizer(SHORT.text, return_tensors="pt")
    with torch.inference_mode():
        states = torch.stack(planted.loaded.model(**encoded, output_hidden_states=True).hidden_states)[:, 0].numpy()
    np.testing.assert_allclose(one.values, states[..., 24], atol=1e-5)
    np.testing.assert_allclose(one.shares, np.abs(states[..., 24]) / np.linalg.norm(states, axis=-1), atol=1e-5)
    assert one.peak == np.unravel_index(np.abs(states[..., 24]).argmax(), states.shape[:2])
    off = planted.look(replace(SHORT, dims=(24,), dimension=24))
    assert [row.value for row in one.loss.rows] == [row.value for row in off.loss.rows if row.label != "random"]
    changed = [blank for blank in off.passage.fills[2].blanks if blank.kind != "same"]
    assert list(one.words) == changed
    with pytest.raises(BadInput, match="dimension 128 does not exist"):
        planted.look(replace(SHORT, dimension=128))


def test_scale_by_one_changes_nothing_and_another_seed_draws_another_set(planted: Explorer) -> None:
    found = planted.look(replace(SHORT, mode="scale", factor=1.0), ("loss",))
    assert [row.change for row in found.loss.rows] == [0, 0, 0]
    other = planted.look(replace(SHORT, seed=1), ("loss",))
    assert other.conditions[1].dims != found.conditions[1].dims
    assert planted.random_dims(SHORT, 1)[0] not in PLANTED


# What reproduces a view.


def outcome(found: Explored, view: str) -> dict[str, Any]:
    """A view's numbers as its Python leaves them in `result`."""
    labels = [one.label for one in found.conditions]
    if view == "passage":
        said = found.passage.continuations or (None,) * len(labels)
        more = [None if one is None else (one.prompt, one.text) for one in said]
        return {label: (one, two) for label, one, two in zip(labels, found.passage.fills, more, strict=True)}
    if view == "loss":
        return {
            row.label: (row.value, (row.low, row.high), row.change, (row.change_low, row.change_high))
            for row in found.loss.rows
        }
    if view == "guesses":
        return {one.label: one.guesses for one in found.guesses.lists}
    if view == "dimension":
        one = found.dimension
        return {row.label: (row.value, row.change) for row in one.loss.rows} | {"intact values": one.values}
    if view == "anisotropy":
        seen = found.anisotropy
        pairs = zip(labels, seen.cosine, seen.share, strict=True)
        return {label: dict(zip(seen.layers, zip(*both, strict=True), strict=True)) for label, *both in pairs}
    if view == "life":
        return {"intact": found.life.values}
    values = found.vectors.values if view == "vectors" else found.attention.weights
    return dict(zip(labels, values, strict=True))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    return one == other


MODES = ("weights", "norms", "zero", "mean", "scale", "resample", "writes", "zero")


@pytest.mark.parametrize(("view", "mode"), list(zip(VIEWS, MODES, strict=True)))
def test_the_python_of_a_view_gives_its_numbers(planted: Explorer, view: str, mode: str) -> None:
    state = replace(
        SHORT,
        dims=(8, 120),
        first=1,
        last=2,
        mode=mode,
        factor=0.25,
        blank=1,
        vector_layer="embeddings",
        head=1,
        left=0.4,
    )
    found = planted.look(state, (view,))
    known: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(snippets.python(planted, found, view), view, "exec"), known)
    result = known["result"]
    if view == "dimension":
        result = {label: said[1:] for label, said in result.items()} | {"intact values": result["intact"][0]}
    assert same(outcome(found, view), result)


@pytest.mark.parametrize("view", ["passage", "loss", "attention"])
def test_the_python_of_a_decoder_gives_its_numbers(causal: Explorer, view: str) -> None:
    found = causal.look(State(text=TEXT, dims=(5,)), (view,))
    known: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(snippets.python(causal, found, view), view, "exec"), known)
    assert same(outcome(found, view), known["result"])
    if view == "passage":
        assert found.passage.continuations[0].prompt == TEXT


def test_the_command_of_all_views_prints_them(planted: Explorer, run: Any) -> None:
    state = replace(SHORT, dims=(8, 120), mode="scale", factor=0.25, blank=1, vector_token=3, attention_layer=0, seed=7)
    found = planted.look(state)
    line = found.provenance.command
    assert line == snippets.command("mini-planted", planted.options, found.state, VIEWS)
    code, out, err = run(*shlex.split(line)[1:])
    assert (code, err) == (0, "")
    again = from_json(out)
    assert again.state == found.state
    for view in VIEWS:
        ours, theirs = outcome(found, view), outcome(again, view)
        # Arrays are written with seven digits.
        flat = (
            [(np.asarray(ours[key]), np.asarray(theirs[key])) for key in ours]
            if view in ("vectors", "attention", "life")
            else []
        )
        assert same(ours, theirs) or flat or view in ("anisotropy", "dimension")
        for one, other in flat:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.anisotropy.cosine, again.anisotropy.cosine, rtol=1e-6)
    np.testing.assert_allclose(found.dimension.values, again.dimension.values, rtol=1e-6)
    assert (found.dimension.loss, found.dimension.words) == (again.dimension.loss, again.dimension.words)


def test_commands_quote_texts_and_hide_tokens() -> None:
    options = LoadOptions(token="hf_secret", revision="v1", offline=True, trust_remote_code=True)
    state = State(text="-x 'y' $(z)\n", dims=(3,), last=1)
    line = snippets.command("a/b", options, state, ("loss",))
    assert "secret" not in line
    # What holds a line break stands in $'…', which shells read and shlex does not.
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    words = shown.stdout.split("\0")[:-1]
    assert words[:4] == ["outlierlens", "explore", "a/b", "--text=-x 'y' $(z)\n"]
    assert words[-6:] == ["loss", "--revision", "v1", "--trust-remote-code", "--offline", "--json"]


# What is refused, politely.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": ""}, "there is no text to read; write a sentence"),
        ({"text": " \n "}, "there is no text to read"),
        ({"text": "w " * 10_000}, "this text has 20,000 letters, and the page reads 2,000 at most"),
        ({"dims": (128,)}, "dimension 128 does not exist; stream 'model': dimensions 0 to 127"),
        ({"dims": tuple(range(65))}, "65 dimensions are chosen; this page switches off 64 at most"),
        ({"first": 3, "last": 2}, "layers 3 to 2 cannot be; model has layers 0 to 3"),
        ({"last": 4}, "layers 0 to 4 cannot be"),
        ({"mode": "melt"}, "unknown mode 'melt'; modes are weights"),
        ({"stack": "decoder"}, "there is no stream 'decoder'; mini-planted has model"),
        ({"vector_layer": "4"}, "layer '4' does not exist; there are embeddings and 0 to 3"),
        ({"attention_layer": 4}, "layer 4 does not exist; model has layers 0 to 3"),
        ({"vector_token": 500}, "token 500 does not exist; the text has tokens 0 to"),
    ],
)
def test_what_cannot_be_shown_is_said(planted: Explorer, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        planted.look(replace(SHORT, **change))
    assert fingerprint(planted.loaded.model) == planted.fingerprint


def test_an_unknown_view_names_the_views(planted: Explorer) -> None:
    with pytest.raises(BadInput, match=re.escape(f"unknown view 'taste'; views are {', '.join(VIEWS)}")):
        planted.look(SHORT, ("taste",))


@pytest.mark.parametrize(
    "text", ["A 🦜 said \U0001f468‍\U0001f469‍\U0001f467 héllo 世界 to us all.", "half \ud83d a pair of it", "{{x}} ${1}"]
)
def test_odd_texts_are_read(planted: Explorer, text: str) -> None:
    found = planted.look(State(text=text, dims=(8,)))
    assert found.loss.rows
    assert html.drawn(planted, found)


def test_a_long_text_is_cut_and_that_is_said(planted: Explorer, causal: Explorer) -> None:
    found = planted.look(State(text="good film " * 190, dims=(8,)), ("vectors", "loss"))
    limit = len(found.vectors.tokens)
    assert found.notes == (f"the text has 382 tokens; the first {limit} are read",)
    assert len(found.read.split()) == limit - 2
    assert f"first {limit} are read" in html.said(found)
    found = causal.look(State(text="w1 w2 " * 90, dims=(2,)))
    assert len(found.vectors.tokens) <= 96
    assert found.notes[0].startswith("the text has 180 tokens")


# Several people, one model.


def test_people_at_once_get_what_each_gets_alone(planted: Explorer) -> None:
    states = [
        replace(SHORT, dims=(dim,), mode=mode) for dim in (8, 17) for mode in ("weights", "zero", "mean", "writes")
    ]
    alone = [planted.look(state, ("loss",)).loss for state in states]
    planted._kept.clear()
    found: dict[int, Any] = {}
    wrong: list[int] = []

    def ask(number: int) -> None:
        if number % 3 == 0:
            with pytest.raises(BadInput):
                planted.look(replace(SHORT, dims=(8, 999)))
            wrong.append(number)
        found[number] = planted.look(states[number], ("loss",)).loss

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 3
    assert [found[number] for number in range(len(states))] == alone
    assert fingerprint(planted.loaded.model) == planted.fingerprint


def test_a_failure_while_something_is_off_leaves_the_model_whole(
    planted: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    def hooks() -> int:
        return sum(len(module._forward_hooks) for module in planted.loaded.model.modules())

    before = hooks()
    monkeypatch.setattr("outlierlens.explore.inside.continuation", fail)
    with pytest.raises(RuntimeError):
        planted.look(replace(SHORT, dims=(9,)), ("passage",))
    monkeypatch.undo()
    assert fingerprint(planted.loaded.model) == planted.fingerprint
    assert hooks() == before
    assert planted.look(replace(SHORT, dims=(9,)), ("passage",)).passage.fills


# Models of other kinds.


def test_a_headless_model_says_what_it_cannot_show(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words, "bert", "", "masked")
    found = explorer.look(State(text=TEXT, dims=(3,)))
    assert "has no head that says words" in found.passage.missing
    assert found.guesses.missing == found.passage.missing
    assert found.loss.task == "output change"
    assert found.loss.rows[0].change == 0
    assert found.loss.rows[2].value > 0
    assert found.vectors.values.shape[0] == found.attention.weights.shape[0] == 3
    pieces = html.drawn(explorer, found)
    assert "has no head that says words" in pieces["passage"]
    assert "how far its outputs move" in pieces["loss"]


def test_an_encoder_decoder_has_two_streams_to_look_at(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words, "bart", "Seq2SeqLM", "masked")
    assert [stack.name for stack in explorer.stacks] == ["encoder", "decoder"]
    for stack in ("", "decoder"):
        found = explorer.look(State(text=TEXT, dims=(3,), stack=stack))
        assert found.state.stack == (stack or "encoder")
        assert found.loss.rows[2].value > 0
        assert html.drawn(explorer, found).keys() == set(VIEWS)


def test_a_model_that_makes_no_weights_says_so(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words)
    explorer.loaded.model.set_attn_implementation("sdpa")
    found = explorer.look(State(text=TEXT, dims=(3,)), ("attention",))
    assert "computes no attention weights" in found.attention.missing


# What is drawn.


def test_what_is_typed_never_becomes_markup_or_code(planted: Explorer) -> None:
    text = '<img src=x onerror=alert(1)> "the" film {{value}} ${value} `x` \\n was the best of the year'
    found = planted.look(State(text=text, dims=(8,)))
    for piece in html.drawn(planted, found).values():
        assert "<img" not in piece
        assert not re.search(r"[{}`\\]|\$", piece)
        assert "http" not in piece
        assert piece.count("data-copy=") == 2
        assert piece.count("<details") == piece.count("</details>")
    assert html.escaped("a<b>&{}") == "a&lt;b&gt;&amp;&#123;&#125;"
    assert "<b" not in html.alert("<b>")


def test_blanks_are_buttons_with_their_number_and_sign() -> None:
    blanks = (Blank(2, "x", "y", "z", "other"), Blank(5, "<", "<", "<", "nonsense"))
    piece = html.passage(Passage((Filled("chosen", (1,), ("a ", " b", ""), blanks),)), (Off("chosen", (1,), (0,)),))
    buttons = re.findall(r'<button type="button" class="(\w+)" data-blank="(\d)"[^>]*><i>(.)</i>([^<]*)<', piece)
    assert buttons == [("other", "0", "≠", "x"), ("nonsense", "1", "✗", "&lt;")]
    assert 'aria-label="blank 1: x, another word; the text says z"' in piece
    assert "<small>1 off</small>" in piece


def test_pictures_show_the_numbers() -> None:
    import base64
    import struct
    import zlib

    content = base64.b64decode(html.png(np.array([[0.0, 1.0], [0.5, 0.25]]), "#ffffff", "#102030"))
    assert content.startswith(b"\x89PNG")
    palette = content[content.index(b"PLTE") + 4 :]
    assert (palette[:3], palette[765:768]) == (b"\xff\xff\xff", b"\x10\x20\x30")
    at = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[at - 4 : at])
    assert zlib.decompress(content[at + 4 : at + 4 + length]) == bytes([0, 0, 255, 0, 128, 64])
    shares = np.array([[1.0, 0.0, 0.0], [0.25, 0.7504, 0.0]])
    drawn = html.heat(shares, ["a", "<b>"], ["x", "y", "z"], "m", ("from", "to"))
    cells = json.loads(unescape(re.findall(r'data-cells="([^"]*)"', drawn)[0]))
    assert cells["parts"] == [[1000, 0, 0], [250, 750, 0]]
    assert (cells["rows"], cells["columns"], cells["units"]) == (["a", "<b>"], ["x", "y", "z"], ["from", "to"])
    assert "<b>" not in drawn
    assert drawn.count("<image") == 2
    legend = html.heat_legend("share")
    assert re.findall(r"left:([\d.]+)%\">(\d+)%", legend) == [
        ("0.0", "0"), ("10.0", "1"), ("31.6", "10"), ("50.0", "25"), ("70.7", "50"), ("100.0", "100"),
    ]  # fmt: skip
    values = np.zeros(5000)
    values[[7, 4321]] = 9, -9
    drawn = html.spikes(values, -9, 9, (7, 4321), "v")
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", re.findall(r'points="([^"]*)"', drawn)[0])]
    assert (min(heights), max(heights)) == (24.0, 166.0)  # no extreme is lost where dimensions share a column
    assert re.findall(r"<title>([^<]*)", drawn) == ["dimension 7: 9.000", "dimension 4321: -9.000"]


# The command and the Space.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json"], "--json and --output belong to --show"),
        (["--layers", "0,2", "--show", "loss"], "--layers '0,2' is no range"),
        (["--show", "loss", "--dims", "999"], "dimension 999 does not exist"),
        (["--show", "taste"], "unknown view 'taste'"),
        (["--space", "x", "--port", "1"], "--space writes a folder and starts nothing"),
    ],
)
def test_the_command_refuses(run: Any, words: list[str], message: str) -> None:
    code, out, err = run("explore", "mini-planted", *words)
    assert (code, out) == (2 if "is no range" in message else 1, "")
    assert err.startswith("error: ")
    assert message in err


def test_the_command_prints_views_for_people(run: Any) -> None:
    code, out, err = run(
        "explore", "mini-planted", "--text", SHORT.text, "--show", "all", "--layers", "0-3", "--dtype", "float32"
    )
    assert (code, err) == (0, "")
    assert "chosen: 8, 24, 40, 56, 72, 88, 104, 120 off in layers 0–3, mode weights" in out
    assert re.search(r"chosen\s+\d\.\d{3}", out)
    for said in (
        "Masked loss",
        "alone off",
        "is largest after layer",
        "in the text:",
        "Vectors after layer 3",
        "Layer 3, head 0",
        "Mean cosine",
    ):
        assert said in out


def test_a_space_holds_all_that_it_needs(tmp_path: Path, run: Any) -> None:
    folder = tmp_path / "space"
    code, out, _ = run("explore", "mini-planted", "--space", str(folder))
    assert code == 0
    assert "hf upload OWNER/NAME" in out
    front = (folder / "README.md").read_text("utf-8").split("---")[1]
    fields = dict(re.findall(r"^(\w+): (.*)$", front, re.MULTILINE))
    assert (fields["sdk"], fields["app_file"]) == ("gradio", "app.py")
    assert re.fullmatch(r"6\.\d+\.\d+", fields["sdk_version"])
    assert json.loads(fields["title"]) == "Outlier dimensions of mini-planted"
    assert len(fields["short_description"]) <= 60
    needed = (folder / "requirements.txt").read_text("utf-8").split()
    assert {re.split(r"[<>=]", line)[0] for line in needed} >= {"torch", "transformers", "numpy", "cyclopts", "jinja2"}
    assert not any(line.startswith(("gradio", "pytest", "outlierlens")) for line in needed)
    compile((folder / "app.py").read_text("utf-8"), "app.py", "exec")
    assert (folder / "outlierlens" / "data_files" / "mini-planted" / "model.safetensors").is_file()
    assert not (folder / "outlierlens" / "data_files" / "mini-bert").exists()
    assert not list(folder.rglob("__pycache__"))
    code, _, err = run("explore", "mini-planted", "--space", str(folder))
    assert code == 1
    assert "is not empty; name a new folder" in err
    code, _, err = run("explore", str(tmp_path), "--space", str(tmp_path / "other"))
    assert "is on this machine, where a Space cannot read it" in err


def test_a_space_of_a_hub_model_names_it_and_of_a_sample_fetches_it(tmp_path: Path) -> None:
    write_space(tmp_path / "hub", "owner/model-1.0", LoadOptions(revision="v2", token="hf_secret"))
    assert 'models:\n- "owner/model-1.0"\n' in (tmp_path / "hub" / "README.md").read_text("utf-8")
    app = (tmp_path / "hub" / "app.py").read_text("utf-8")
    assert "open_explorer('owner/model-1.0', LoadOptions(revision='v2'))" in app
    assert "fetch" not in app
    write_space(tmp_path / "sample", "smollm2-135m", LoadOptions())
    assert "fetch('smollm2-135m')" in (tmp_path / "sample" / "app.py").read_text("utf-8")
    assert "gguf" in (tmp_path / "sample" / "requirements.txt").read_text("utf-8")
    for model, options in (("../x", LoadOptions()), ("owner/model", LoadOptions(tokenizer=str(tmp_path)))):
        with pytest.raises(BadInput, match="push it to the hub and give its id"):
            write_space(tmp_path / "bad", model, options)


def test_a_space_reads_the_model_as_it_was_told_to(tmp_path: Path, run: Any) -> None:
    folder = tmp_path / "space"
    asked = ("--family", "bert", "--tokenizer", "mini-bert", "--space", str(folder))
    assert run("explore", "owner/model", *asked)[0] == 0
    app = (folder / "app.py").read_text("utf-8")
    assert "open_explorer('owner/model', LoadOptions(row='bert', tokenizer='mini-bert'))" in app
    assert (folder / "outlierlens" / "data_files" / "mini-bert").is_dir()
    assert not (folder / "outlierlens" / "data_files" / "mini-planted").exists()
    assert 'models:\n- "owner/model"\n' in (folder / "README.md").read_text("utf-8")
    write_space(tmp_path / "other", "owner/model", LoadOptions(tokenizer="minilm-l6"))
    assert "fetch('minilm-l6')" in (tmp_path / "other" / "app.py").read_text("utf-8")


def test_a_taken_port_is_said() -> None:
    import socket

    from outlierlens.explore.serve import LOOPBACK, free_port

    with contextlib.closing(socket.socket()) as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} is taken or not allowed; name another with --port"):
            free_port(port)
        assert free_port(None) != port


def test_a_server_that_starts_late_is_waited_for_and_one_that_ends_is_not() -> None:
    from gradio.http_server import ServerFailedToStartError

    from outlierlens.explore.page import _run_in_thread

    late: Any = SimpleNamespace(started=False, reloader=None, config=SimpleNamespace(port=7860))
    ready = threading.Event()

    def run() -> None:
        ready.wait()
        late.started = True

    late.run = run
    threading.Timer(0, ready.set).start()
    _run_in_thread(late)
    assert late.started
    late.started, late.run = False, lambda: None
    with pytest.raises(ServerFailedToStartError, match="port 7860 was taken"):
        _run_in_thread(late)


def test_a_busy_machine_may_take_its_time_to_start_the_page(monkeypatch: pytest.MonkeyPatch, words: Any) -> None:
    from outlierlens.explore.options import Place
    from outlierlens.explore.page import gradio
    from outlierlens.explore.serve import served

    gradio()
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr("gradio.http_server.time", SimpleNamespace(time=lambda: next(hours), sleep=lambda _: None))
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)  # as where no answer comes within three seconds
    explorer = explore_models.tiny(words)
    with served(explorer, explorer.start(), Place(0)) as (address, _):
        assert address.startswith("http://127.0.0.1:")


# Who is let in.


SHARED = ("127.0.0.1", "localhost", ".gradio.live")


def answered(
    *chunks: bytes, host: str = "127.0.0.1:7860", patient: bool = False, path: str = "/gradio_api/queue/join",
    hosts: tuple[str, ...] = SHARED, **headers: str,
) -> tuple[int, bytes]:  # fmt: skip
    """(status, what the application read) of one request through the door; a `patient` one answers 400 itself."""
    from outlierlens.explore.serve import Door

    read, status = b"", 0
    left = list(chunks)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal read
        more = True
        while more:
            try:
                message = await receive()
            except Exception:
                if not patient:
                    raise
                await send({"type": "http.response.start", "status": 400, "headers": []})
                return
            read, more = read + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        body = left.pop(0) if left else b""
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": host, **headers}.items()]
    asyncio.run(
        Door(application, hosts)(
            {"type": "http", "path": path, "headers": [one for one in named if one[1]]}, receive, send
        )
    )
    return status, read


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:7860", "127.0.0.1@evil.example", "gradio.live", "", "[::1", "192.168.0.2"],
)
def test_a_foreign_host_is_refused_before_anything_is_read(host: str) -> None:
    assert answered(b"x", host=host) == (403, b"")


LOCAL = ("http://127.0.0.1:9999", "http://localhost", "http://127.0.0.1:x")  # other ports, or none that is one


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://", *LOCAL])
def test_a_page_elsewhere_is_refused(origin: str) -> None:
    assert answered(b"x", origin=origin) == (403, b"")


def test_this_machine_and_the_tunnel_are_let_in() -> None:
    for host in ("127.0.0.1:7860", "localhost", "abc.gradio.live"):
        assert answered(b"x", b"y", host=host, origin="http://localhost:7860") == (200, b"xy")
    assert answered(b"x", host="LOCALHOST:80", origin="http://localhost")[0] == 200


def test_a_large_body_is_refused_said_or_unsaid() -> None:
    from outlierlens.explore.serve import MOST_BYTES

    assert answered(b"x", content_length=str(MOST_BYTES + 1)) == (413, b"")
    assert answered(b"x", content_length="-1") == (413, b"")
    assert answered(*[b"x" * 2**18] * 5)[0] == 413
    assert answered(*[b"x" * 2**18] * 4)[0] == 200
    assert answered(*[b"x" * 2**18] * 5, patient=True)[0] == 413


@pytest.mark.parametrize("path", ["/", "/gradio_api/upload", "/gradio_api/upload/", "/gradio_api/run/show", "/join/x"])
def test_what_needs_no_body_has_none(path: str) -> None:
    assert answered(b"x", path=path)[0] == 413
    assert answered(b"x", path=path, content_length="1") == (413, b"")
    assert answered(b"", path=path, content_length="0") == (200, b"")
    assert answered(b"x" * 2**12, path="/gradio_api/cancel")[0] == 200
    assert answered(b"x" * 2**12, b"x", path="/gradio_api/cancel")[0] == 413


@pytest.mark.parametrize("site", ["cross-site", "same-site", "else"])
def test_what_a_page_of_another_site_asks_for_is_refused(site: str) -> None:
    local = ("127.0.0.1", "localhost")
    for path, body in (("/", b""), ("/config", b""), ("/gradio_api/queue/join", b"x")):
        assert answered(body, path=path, hosts=local, sec_fetch_site=site) == (403, b"")
        assert answered(body, path=path, hosts=local, sec_fetch_site=site, sec_fetch_mode="navigate") == (403, b"")
        assert answered(body, path=path, sec_fetch_site=site, sec_fetch_mode="cors") == (403, b"")
        assert answered(body, path=path, sec_fetch_site="same-origin")[0] == 200
        assert answered(body, path=path, sec_fetch_site="none")[0] == 200
        assert answered(body, path=path)[0] == 200  # curl
    # A link to a shared page stands on a page of another site.
    assert answered(b"", path="/", sec_fetch_site=site, sec_fetch_mode="navigate", host="a.gradio.live")[0] == 200


def test_the_server_has_the_door(planted: Explorer) -> None:
    from outlierlens.explore.options import Place
    from outlierlens.explore.serve import served

    with served(planted, SHORT, Place()) as (address, _):
        port = int(address.rstrip("/").rpartition(":")[2])
        for host, status in ((f"127.0.0.1:{port}", 200), (f"evil.example:{port}", 403)):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
                connection.request("GET", "/", headers={"Host": host})
                assert connection.getresponse().status == status


@pytest.mark.parametrize("failure", [RuntimeError("no memory"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_is_said_and_the_next_request_is_answered(
    planted: Explorer, monkeypatch: pytest.MonkeyPatch, capsys: Any, failure: BaseException
) -> None:
    from outlierlens.explore.page import _Page, gradio

    shown = _Page(gradio(), planted, SHORT)
    asked = {"wrong": "", "listed": [8], "others": "", "text": "A film.", "mode": "weights", "factor": 0.5, "stack": ""}
    asked |= {"left": 1, "dimension": 8}
    asked |= {"vector_token": "", "vector_layer": "3", "first": 0, "last": 3, "head": 0, "blank": 0, "seed": 0}
    asked["attention_layer"] = "3"

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(planted, "look", fail)
    alert = str(list(shown._shown(dict(asked))))
    assert "This cannot be shown" in alert
    assert type(failure).__name__ in alert
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.undo()
    first, rest = shown._shown(dict(asked))
    assert "This cannot be shown" not in str([first, rest])
    assert "off in layers" in str(first)
    assert State.from_query(rest[-1][1:]).dims == (24, 40, 56, 72, 88, 104, 120)
