"""The live page without a browser: states and links, what is measured, what reproduces it, and what is refused."""

import asyncio
import contextlib
import copy
import http.client
import itertools
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import explore_models
from explore_models import PLANTED, TEXT
from outlierlens.ablation.fill import Blank, FilledPassage
from outlierlens.errors import BadInput
from outlierlens.explore import page as pages
from outlierlens.explore.look import Exploration, Explorer, TurnedDims, open_explorer
from outlierlens.explore.state import Selection
from outlierlens.models.load import LoadOptions, fingerprint
from outlierlens.results.document import from_json

SHORT = Selection(text="The story is simple, but the actors are so good that I would watch it again.", dims=PLANTED)
STATES = st.builds(
    Selection,
    text=st.text(max_size=40),
    dims=st.lists(st.integers(0, 99_999), unique=True, max_size=5).map(tuple),
    left=st.floats(0, 1),
    mode=st.sampled_from(["weights", "zero", "mean"]),
    first=st.integers(0, 99),
    last=st.none() | st.integers(0, 99),
    stack=st.sampled_from(["", "encoder"]),
    seed=st.integers(0, 999),
    blank=st.integers(0, 9),
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
def test_a_link_restores_the_state(state: Selection) -> None:
    assert Selection.from_query(state.query()) == state
    assert re.fullmatch(r"[\w.~*&=%+-]*", state.query(), re.ASCII)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("dims=1,x", "cannot read dimensions '1,x'; write whole numbers"),
        ("dims=99999999999", "cannot read dimensions"),
        ("first=-1", "first is -1; it must be at least 0"),
        ("blank=²", "blank is '²'; it must be a whole number"),
        ("seed=9999999999", "seed is '9999999999'; it must be a whole number"),
        ("left=x", "left is 'x'; it must be a number"),
        ("left=nan", "left is nan; it must be at least 0 and at most 1"),
        ("left=2", "left is 2"),
    ],
)
def test_a_link_that_cannot_be_read_says_what(query: str, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        Selection.from_query(query)


def drawn(name: str, found: Exploration) -> str:
    """A piece of the page."""
    return pages.piece(name, found=found, model="mini", verdict="None stands out.")


# What is measured.


def test_the_page_lists_what_the_scan_finds(planted: Explorer) -> None:
    assert sorted(planted.listed()) == list(PLANTED)
    label = planted.label(8)
    assert re.fullmatch(r"8 · layers 0–3 of 4 · \|z\| up to \d\.\d", label)
    strongest = planted.scan.stacks[0].z_scale[:, planted.scan.stacks[0].map_dims.index(8)]
    assert label.endswith(f"up to {np.abs(strongest).max():.1f}")
    assert planted.verdict().startswith("mini-planted has 8 outlier dimensions: 8, 24, ")
    assert (planted.start().dims, planted.start().left) == (PLANTED, 0)  # a new page begins with all of them off


def test_without_outliers_the_strongest_are_listed_and_it_says_so(causal: Explorer) -> None:
    assert not any(stack.outliers for stack in causal.scan.stacks)
    assert list(causal.listed()) == list(causal.scan.stacks[0].strongest_dims(3))
    assert causal.start().dims == causal.listed()[:1]
    assert " has no outlier dimension in its weights: none " in causal.verdict()
    assert causal.verdict().endswith("Listed are the 3 strongest.")


def test_outliers_break_the_text_and_random_dimensions_do_not(planted: Explorer) -> None:
    found = planted.look(SHORT, ("passage", "loss", "anisotropy"))
    assert [one.label for one in found.conditions] == ["intact", "random", "chosen"]
    assert not set(found.conditions[1].dims) & set(PLANTED)
    assert len(found.conditions[1].dims) == 8
    intact, random, chosen = found.losses
    assert (intact.change.value, intact.change.low, intact.change.high) == (0, 0, 0)
    assert chosen.change.low > 1 > 3 * abs(random.change.value)
    assert chosen.loss.value - intact.loss.value == pytest.approx(chosen.change.value)
    assert intact.loss.low < intact.loss.value < intact.loss.high
    assert intact.perplexity == pytest.approx(np.exp(intact.loss.value))
    kinds = [[blank.kind for blank in one.fill.blanks] for one in found.replies if one.fill]
    assert set(kinds[0]) == {"same"}
    assert set(kinds[2]) - {"same"}
    # Behind a block the chosen dimensions are 0, so they add nothing to a cosine.
    share = {(row.condition, row.layer): row.share for row in found.cosines}
    assert all(value == 0 for (label, layer), value in share.items() if label == "chosen" and layer != "embeddings")
    assert all(value > 0.01 for (label, layer), value in share.items() if label == "intact" and layer != "embeddings")


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


def test_values_attention_and_cosines_are_the_model_s_own(planted: Explorer) -> None:
    import torch

    found = planted.look(replace(SHORT, dims=()), ("dimensions", "attention", "anisotropy"))
    encoded = planted.loaded.tokenizer(SHORT.text, return_tensors="pt")
    with torch.inference_mode():
        output = planted.loaded.model(**encoded, output_hidden_states=True, output_attentions=True)
    tokens = planted.loaded.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    names = ["embeddings", "0", "1", "2", "3"]
    for row in found.largest:
        states = output.hidden_states[names.index(row.layer)][0].numpy()  # [token, dim]
        at = int(np.abs(states[:, row.dim]).argmax())
        assert row.value == pytest.approx(states[at, row.dim], abs=1e-5)
        assert row.size == abs(row.value)
        assert row.token == f"{at} {tokens[at]}"
        assert row.share == pytest.approx(row.size / np.linalg.norm(states[at]), rel=1e-5)
    for row in found.sinks:
        weights = output.attentions[int(row.layer)][0].numpy()  # [head, query, key]
        assert row.first == pytest.approx(weights[:, :, 0].mean(), abs=1e-6)
        assert row.special == pytest.approx((weights[:, :, 0] + weights[:, :, -1]).mean(), abs=1e-6)
    for row in found.cosines:
        states = output.hidden_states[names.index(row.layer)][0, 1:-1].numpy()
        units = states / np.linalg.norm(states, axis=1, keepdims=True)
        pairs = (units @ units.T)[np.triu_indices(len(units), 1)]
        assert row.cosine == pytest.approx(pairs.mean(), abs=1e-5)


def test_guesses_are_the_head_s_and_belong_to_the_blank(planted: Explorer) -> None:
    found = planted.look(replace(SHORT, blank=1), ("guesses", "passage"))
    fills = [one.fill for one in found.replies if one.fill]
    assert found.blank == fills[0].blanks[1].original
    for filled in fills:
        guesses = [one for one in found.guesses if one.condition == filled.label]
        asked = [blank for blank in filled.blanks if blank.kind != "changed"]
        assert guesses[0].word.lstrip("#") == asked[1].filled.lstrip("#")
        chances = [one.probability for one in guesses]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
        assert [one.rank for one in guesses] == list(range(1, 9))
    last = planted.look(replace(SHORT, blank=99), ("guesses",))
    assert last.blank == fills[0].blanks[-1].original


def test_nothing_chosen_shows_the_intact_model_alone(planted: Explorer) -> None:
    for state in (replace(SHORT, dims=()), replace(SHORT, left=1.0)):
        found = planted.look(state)
        assert [one.label for one in found.conditions] == ["intact"]
        assert len(found.losses) == 1
        assert "Everything is on" in drawn("said", found)


def test_the_set_is_turned_down_between_off_and_on(planted: Explorer) -> None:
    def loss(**change: Any) -> float:
        return planted.look(replace(SHORT, **change), ("loss",)).losses[-1].loss.value

    half = planted.look(replace(SHORT, left=0.5), ("loss",))
    assert half.conditions[2] == TurnedDims("chosen", PLANTED, (0, 1, 2, 3), 0.5)
    assert half.conditions[1].left == 0.5
    assert not set(half.conditions[1].dims) & set(PLANTED)
    assert "× 0.5 in layers 0–3" in drawn("said", half)
    intact, off = loss(left=1.0), loss(mode="zero")
    assert intact < half.losses[2].loss.value < off
    # Where nearly nothing is left it is nearly off.
    assert loss(left=1e-6) == pytest.approx(off, abs=1e-3)
    assert fingerprint(planted.loaded.model) == planted.fingerprint


def test_another_seed_draws_another_set_and_the_same_gives_the_same(planted: Explorer) -> None:
    one, same, other = (planted.look(replace(SHORT, seed=seed), ("loss",)) for seed in (0, 0, 1))
    assert one.conditions == same.conditions
    assert one.losses == same.losses
    assert one.conditions[1].dims != other.conditions[1].dims
    assert one.losses[2] == other.losses[2]


def test_the_command_of_all_views_prints_them(planted: Explorer, run: Any) -> None:
    found = planted.look(replace(SHORT, dims=(8, 120), left=0.25, blank=1, seed=7))
    code, out, err = run(*shlex.split(found.provenance.command)[1:], "--json")
    assert (code, err) == (0, "")
    again = from_json(out)
    assert isinstance(again, Exploration)
    assert again.state == found.state
    assert again.replies == found.replies
    for table in ("losses", "guesses", "largest", "sinks", "cosines"):
        for ours, theirs in zip(found.records(table), again.records(table), strict=True):
            for name, value in ours.items():
                near = isinstance(value, float)
                assert (
                    pytest.approx(theirs[name], rel=1e-6, abs=1e-9, nan_ok=True) == value
                    if near
                    else theirs[name] == value
                )


def test_commands_quote_texts_and_hide_tokens(planted: Explorer) -> None:
    given = {"token": "hf_secret", "revision": "v1", "adapter": "runs/a b", "offline": True, "trust_remote_code": True}
    planted = replace_options(planted, LoadOptions(**given))
    line = planted.look(Selection(text="-x 'y' $(z)\n good", dims=(3,), last=1), ("loss",)).provenance.command
    assert "secret" not in line
    # What holds a line break stands in $'…', which shells read and shlex does not.
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    words = shown.stdout.split("\0")[:-1]
    assert words[:4] == ["outlierlens", "explore", "mini-planted", "--text=-x 'y' $(z)\n good"]
    assert words[-3:] == ["model", "--model-args", "adapter=runs/a b,revision=v1,trust-remote-code,offline"]


def replace_options(explorer: Explorer, options: LoadOptions) -> Explorer:
    """The same model, as if it had been loaded so."""
    made = copy.copy(explorer)
    made.options = options
    return made


# What is refused, politely.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": ""}, "there is no text to read; write a sentence"),
        ({"text": " \n "}, "there is no text to read"),
        ({"text": "w " * 10_000}, "this text has 20,000 letters, and the page reads 2,000 at most"),
        ({"dims": (128,)}, "dimension 128 does not exist; stream 'model': dimensions 0 to 127"),
        ({"dims": tuple(range(65))}, "65 dimensions are chosen; this page ablates at most 64"),
        ({"first": 3, "last": 2}, "layers 3 to 2 cannot be; model has layers 0 to 3"),
        ({"last": 4}, "layers 0 to 4 cannot be"),
        ({"mode": "melt"}, "mode is 'melt'; it must be one of weights"),
        ({"mode": "scale"}, "mode is 'scale'; it must be one of weights"),
        ({"stack": "decoder"}, "mini-planted has no stream 'decoder'; there are model"),
    ],
)
def test_what_cannot_be_shown_is_said(planted: Explorer, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        planted.look(replace(SHORT, **change))
    assert fingerprint(planted.loaded.model) == planted.fingerprint


@pytest.mark.parametrize(
    "text", ["A 🦜 said \U0001f468‍\U0001f469‍\U0001f467 héllo 世界 to us all.", "half \ud83d a pair of it", "{{x}} ${1}"]
)
def test_odd_texts_are_read(planted: Explorer, text: str) -> None:
    found = planted.look(Selection(text=text, dims=(8,)))
    assert found.losses
    assert drawn("tables", found)
    assert drawn("passage", found)


def test_a_long_text_is_cut_and_that_is_said(planted: Explorer, causal: Explorer) -> None:
    found = planted.look(Selection(text="good film " * 190, dims=(8,)), ("passage", "dimensions"))
    (limit,) = re.findall(r"the text has 382 tokens; the first (\d+) are read", found.notes[0])
    assert {len(one.filled.split()) for one in found.replies if one.filled} == {int(limit) - 2}
    assert max(int(row.token.split()[0]) for row in found.largest) < int(limit)
    assert f"first {limit} are read" in drawn("said", found)
    found = causal.look(Selection(text="w1 w2 " * 90, dims=(2,)))
    assert max(len(one.filled.split()) for one in found.replies if one.filled) <= 96
    assert found.notes[0].startswith("the text has 180 tokens")


# Several people, one model.


def test_people_at_once_get_what_each_gets_alone(planted: Explorer) -> None:
    states = [
        replace(SHORT, dims=(dim,), mode=mode) for dim in (8, 17) for mode in ("weights", "zero", "mean", "writes")
    ]
    alone = [planted.look(state, ("loss",)).losses for state in states]
    planted._measured.cache_clear()
    found: dict[int, Any] = {}
    wrong: list[int] = []

    def ask(number: int) -> None:
        if number % 3 == 0:
            with pytest.raises(BadInput):
                planted.look(replace(SHORT, dims=(8, 999)))
            wrong.append(number)
        found[number] = planted.look(states[number], ("loss",)).losses

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
    monkeypatch.setattr("outlierlens.ablation.fill.continuation", fail)
    with pytest.raises(RuntimeError):
        planted.look(replace(SHORT, dims=(9,)), ("passage",))
    monkeypatch.undo()
    assert fingerprint(planted.loaded.model) == planted.fingerprint
    assert hooks() == before
    assert planted.look(replace(SHORT, dims=(9,)), ("passage",)).replies


# Models of other kinds.


def test_a_headless_model_says_what_it_cannot_show(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words, "bert", "", "masked")
    found = explorer.look(Selection(text=TEXT, dims=(3,)))
    assert [note for note in found.notes if "has no head that says words" in note]
    assert (found.replies, found.guesses) == ((), ())
    assert found.about.task == "output change"
    assert found.losses[0].change.value == 0
    assert found.losses[2].loss.value > 0
    assert found.losses[2].perplexity is None
    assert "has no head that says words" in drawn("said", found)
    assert {row.condition for row in found.sinks} == {"intact", "random", "chosen"}


def test_an_encoder_decoder_has_two_streams_to_look_at(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words, "bart", "Seq2SeqLM", "masked")
    assert [stack.name for stack in explorer.stacks] == ["encoder", "decoder"]
    for stack in ("", "decoder"):
        found = explorer.look(Selection(text=TEXT, dims=(3,), stack=stack))
        assert found.state.stack == (stack or "encoder")
        assert found.losses[2].loss.value > 0
        assert len(found.largest) == (explorer.stack(stack).n_layers + 1) * len({3, *explorer.listed(stack)})


def test_a_model_that_makes_no_weights_says_so(words: Callable[..., Any]) -> None:
    explorer = explore_models.tiny(words)
    explorer.loaded.model.set_attn_implementation("sdpa")
    found = explorer.look(Selection(text=TEXT, dims=(3,)), ("attention",))
    assert "computes no attention weights" in found.notes[0]


# What is drawn.


def test_what_is_typed_never_becomes_markup_or_code(planted: Explorer) -> None:
    text = '<img src=x onerror=alert(1)> "the" film {{value}} ${value} `x` \\n was the best of the year'
    found = planted.look(Selection(text=text, dims=(8,)))
    for piece in (drawn("said", found), drawn("number", found), drawn("passage", found), drawn("tables", found)):
        assert "<img" not in piece
        assert not re.search(r"[{}`\\]|\$", piece)
        assert 'src="http' not in piece
        assert piece.count("<details") == piece.count("</details>")
    assert "&lt;img" in drawn("passage", found)
    assert "<b" not in pages.piece("said", message="<b>")


def test_blanks_are_buttons_with_their_number_and_sign(planted: Explorer) -> None:
    blanks = (Blank(2, "x", "y", "z", "other"), Blank(4, "v", "v", "w", "changed"), Blank(5, "<", "<", "<", "nonsense"))
    found = planted.look(SHORT, ("loss",))
    filled = FilledPassage("chosen", (1,), ("a ", " b", "", ""), blanks)
    (reply,) = [one for one in explore_models.explored().replies if one.off == "chosen"]
    piece = drawn("passage", replace(found, replies=(replace(reply, fill=filled, begins=None),)))
    buttons = re.findall(r'<button type="button" class="(\w+)" data-blank="(\d)"[^>]*><i>(.)</i><bdi>([^<]*)<', piece)
    assert buttons == [("other", "0", "≠", "x"), ("nonsense", "1", "✗", "&lt;")]
    assert 'aria-label="blank 1: x, another word; the text says z"' in piece


# The command.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json"], "--json and --output belong to --show"),
        (["--layers", "0,2", "--show", "loss"], "--layers '0,2' is not a range"),
        (["--show", "loss", "--dims", "999"], "dimension 999 does not exist"),
        (["--show", "taste"], "unknown view 'taste'"),
    ],
)
def test_the_command_refuses(run: Any, words: list[str], message: str) -> None:
    code, out, err = run("explore", "mini-planted", *words)
    assert (code, out) == (1 if "does not exist" in message or "belong" in message else 2, "")
    assert err.startswith("error: ")
    assert message in err


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


def test_what_keeps_the_page_from_starting_is_not_tried_again(
    planted: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlierlens.explore import serve

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gradio.Blocks.launch", full)
    with pytest.raises(OSError, match="No space left"), serve.served(planted, SHORT, serve.Place()):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gradio leaves its probe's socket open
def test_a_port_that_is_taken_while_the_page_starts_gives_way_to_the_next(
    planted: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlierlens.explore import serve

    with contextlib.closing(socket.create_server((serve.LOOPBACK, 0))) as other:
        free, taken = serve.free_port, iter([other.getsockname()[1]] * 2)
        monkeypatch.setattr(serve, "free_port", lambda asked: next(taken, None) or free(asked))
        with serve.served(planted, SHORT, serve.Place()) as address:
            assert not address.rstrip("/").endswith(str(other.getsockname()[1]))
            assert next(taken, None) is None


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
    from outlierlens.explore.page import gradio
    from outlierlens.explore.serve import served
    from outlierlens.explore.state import Place

    gradio()
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr("gradio.http_server.time", SimpleNamespace(time=lambda: next(hours), sleep=lambda _: None))
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)  # as where no answer comes within three seconds
    explorer = explore_models.tiny(words)
    with served(explorer, explorer.start(), Place()) as address:
        assert address.startswith("http://127.0.0.1:")


# Who is let in.


def answered(
    *chunks: bytes, host: str = "127.0.0.1:7860", path: str = "/gradio_api/queue/join", **headers: str
) -> tuple[int, bytes]:
    """(status, what the application read) of one request through the door, which says its length as browsers do."""
    from outlierlens.explore.serve import Door

    read, status = b"", 0
    left = list(chunks)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal read
        more = True
        while more:
            message = await receive()
            read, more = read + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        body = left.pop(0) if left else b""
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    if chunks and "transfer_encoding" not in headers:
        headers = {"content_length": str(sum(map(len, chunks)))} | headers
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": host, **headers}.items()]
    asyncio.run(
        Door(application)({"type": "http", "path": path, "headers": [one for one in named if one[1]]}, receive, send)
    )
    return status, read


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:7860",
        "127.0.0.1@evil.example",
        "a.gradio.live",
        "",
        "[::1",
        "192.168.0.2",
    ],
)
def test_a_foreign_host_is_refused_before_anything_is_read(host: str) -> None:
    assert answered(b"x", host=host) == (403, b"")


LOCAL = ("http://127.0.0.1:9999", "http://localhost", "http://127.0.0.1:x")  # other ports, or none that is one


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://", *LOCAL])
def test_a_page_elsewhere_is_refused(origin: str) -> None:
    assert answered(b"x", origin=origin) == (403, b"")


def test_this_machine_is_let_in() -> None:
    for host in ("127.0.0.1:7860", "localhost"):
        assert answered(b"x", b"y", host=host, origin="http://localhost:7860") == (200, b"xy")
    assert answered(b"x", host="LOCALHOST:80", origin="http://localhost")[0] == 200


def test_a_large_body_is_refused_and_one_of_unsaid_length() -> None:
    from outlierlens.explore.serve import MOST_BYTES

    assert answered(b"x", content_length=str(MOST_BYTES + 1)) == (413, b"")
    assert answered(b"x", content_length="-1") == (413, b"")
    assert answered(*[b"x" * 2**18] * 5) == (413, b"")
    assert answered(*[b"x" * 2**18] * 4)[0] == 200
    assert answered(b"x", transfer_encoding="chunked") == (411, b"")


@pytest.mark.parametrize("path", ["/", "/gradio_api/upload", "/gradio_api/upload/", "/gradio_api/run/show", "/join/x"])
def test_what_needs_no_body_has_none(path: str) -> None:
    assert answered(b"x", path=path)[0] == 413
    assert answered(b"x", path=path, content_length="1") == (413, b"")
    assert answered(b"", path=path, content_length="0") == (200, b"")
    assert answered(b"x" * 2**12, path="/gradio_api/cancel")[0] == 200
    assert answered(b"x" * 2**12, b"x", path="/gradio_api/cancel")[0] == 413


@pytest.mark.parametrize("site", ["cross-site", "same-site", "else"])
def test_what_a_page_of_another_site_asks_for_is_refused(site: str) -> None:
    for path, body in (("/", b""), ("/config", b""), ("/gradio_api/queue/join", b"x")):
        assert answered(body, path=path, sec_fetch_site=site) == (403, b"")
        assert answered(body, path=path, sec_fetch_site=site, sec_fetch_mode="navigate") == (403, b"")
        assert answered(body, path=path, sec_fetch_site=site, sec_fetch_mode="cors") == (403, b"")
        assert answered(body, path=path, sec_fetch_site="same-origin")[0] == 200
        assert answered(body, path=path, sec_fetch_site="none")[0] == 200
        assert answered(body, path=path)[0] == 200  # curl


def test_the_server_has_the_door(planted: Explorer) -> None:
    from outlierlens.explore.serve import served
    from outlierlens.explore.state import Place

    with served(planted, SHORT, Place()) as address:
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
    asked = {"wrong": "", "listed": [8], "others": "", "text": "A film.", "mode": "weights", "stack": "", "left": 0}
    asked |= {"first": 0, "last": 3, "blank": 0, "seed": 0}
    shown.controls = dict.fromkeys(asked)

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(planted, "look", fail)
    alert = str(list(shown._shown(*asked.values())))
    assert "This cannot be shown" in alert
    assert type(failure).__name__ in alert
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.undo()
    first, rest = shown._shown(*asked.values())
    assert "This cannot be shown" not in str([first, rest])
    assert "ablated in layers" in str(first)
    assert Selection.from_query(rest[-2][1:]).dims == (8,)
