"""The page: gradio's controls around the views of an `Explorer`. What is shown is worked out elsewhere; see `look`, `html`.

blocks = page(explorer, explorer.start())
blocks.launch(**launch_options())

Controls hold a person's state in their browser; the server keeps none. Each change makes a state, the state makes the views.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from outlierlens.errors import BadInput, OutlierlensError, need
from outlierlens.explore import html
from outlierlens.explore.look import Explorer
from outlierlens.explore.result import VIEWS, State, parse_dims
from outlierlens.view.charts.base import DARK, LIGHT, css

HERE = Path(__file__).parent
EXAMPLES = {
    "A review": (
        "I went into this movie with low expectations and came out smiling. The story is simple, but the actors are so good "
        "that you care about every one of them."
    ),
    "An article": (
        "The river rises in the mountains and flows south for two hundred miles before it reaches the sea. In the spring, when "
        "the snow melts, it floods the fields on both banks."
    ),
    "A list": "One day has one night, two days have two nights, three days have three nights, and four days have four nights.",
}
MODES = {
    "weights": "weights: scale and bias of each block’s last operation are 0",
    "norms": "norms: scale and bias of every norm are 0",
    "zero": "zero: the activation after each block is 0",
    "mean": "mean: the activation is its mean over other texts",
    "scale": "scale: the activation times a factor",
    "resample": "resample: the activation of another token of the text",
    "writes": "writes: nothing writes to the dimension",
}
AT_ONCE = ("passage", "loss")  # what changes beside the hand; the other views follow
PIECES = ("head", "number", "said", *VIEWS)
# The address always holds the state; what comes back is the whole link, for the box that shows it.
_ADDRESS = "(query) => { history.replaceState(null, '', query || location.pathname); return location.href; }"


def gradio() -> ModuleType:
    """The library, with everything of it that connects to the outside switched off; raises MissingExtra."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # Behind every answer it would sum up its own events, by means that pandas warns of; nobody reads them.
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(sys.maxsize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of tools for sound that the page does not use
        found: Any = need("gradio", "explore", "the live page")
    # For each of these it would make an event loop and never close it; since Python 3.10 they need none.
    found.utils.safe_get_lock = found.queueing.safe_get_lock = asyncio.Lock
    found.utils.safe_get_stop_event = asyncio.Event
    need("gradio.http_server", "explore", "the live page").Server.run_in_thread = _run_in_thread
    return cast(ModuleType, found)


def _run_in_thread(server: Any) -> None:
    """Start gradio's server, and wait until it listens or has ended: gradio itself gives up after five seconds, however busy
    the machine is."""
    from gradio.http_server import ServerFailedToStartError

    if server.reloader:
        server.watch_thread = threading.Thread(target=server.watch, daemon=True)
        server.watch_thread.start()
    server.thread = threading.Thread(target=server.run, daemon=True)
    server.thread.start()
    while not server.started:
        server.thread.join(0.001)
        if not server.thread.is_alive():
            raise ServerFailedToStartError(f"port {server.config.port} was taken while the page started")


def launch_options() -> dict[str, Any]:
    """How the page is launched wherever it runs: system fonts, no history of runs, no endpoint shown, no upload."""
    gr = gradio()
    style = f":root{{{css(LIGHT)}}} .dark{{{css(DARK)}}}\n{(HERE / 'page.css').read_text('utf-8')}"
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return {
        "theme": gr.themes.Base(**fonts),
        "css": style,
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "max_file_size": 1,
        "quiet": True,
        "_frontend": False,  # leaves out a request to itself, which gradio wants answered within three seconds
    }


def page(explorer: Explorer, start: State) -> Any:
    """The page of a model as gradio Blocks; `start` is what somebody sees who brings no link."""
    gr = gradio()
    with gr.Blocks(title=f"{explorer.loaded.name} · outlierlens", analytics_enabled=False) as blocks:
        _Page(gr, explorer, start).build(blocks)
    blocks.queue(default_concurrency_limit=1, max_size=64, api_open=False)
    return blocks


class _Page:
    """The controls, the pieces of HTML, and what a change of one does to the others."""

    def __init__(self, gr: Any, explorer: Explorer, start: State):
        self.gr, self.explorer, self.first = gr, explorer, start
        self.controls: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}

    def build(self, blocks: Any) -> None:
        """Lay out the page and wire it."""
        gr = self.gr
        self.pieces["head"] = self._piece("head")
        with gr.Row(elem_id="ol-hand"):
            with gr.Column(scale=1, min_width=280):
                self.pieces["number"] = self._piece("number")
            with gr.Column(scale=1, min_width=280):
                self.controls["left"] = gr.Slider(0, 1, 1, step=0.05, label=self._slider_label(""), elem_id="ol-left")
                with gr.Row():
                    self.all_on = gr.Button("All on", size="sm", min_width=100, elem_id="ol-all-on")
                    self.all_off = gr.Button("All off", size="sm", min_width=100, elem_id="ol-all-off")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                self._controls()
            with gr.Column(scale=2, min_width=320, elem_id="ol-results"):
                self.pieces["said"] = self._piece("said")
                for view in ("passage", "loss", "guesses"):
                    self.pieces[view] = self._piece(view)
        self.controls["dimension"] = gr.Number(0, label="Dimension by itself", precision=0, minimum=0, elem_id="ol-one")
        self.pieces["dimension"] = self._piece("dimension")
        self.pieces["life"] = self._piece("life")
        last = self.explorer.stack().n_layers - 1
        layers = ["embeddings", *map(str, range(max(stack.n_layers for stack in self.explorer.stacks)))]
        with gr.Row():
            self.controls["vector_layer"] = gr.Dropdown(
                layers, value=str(last), label="Vectors after layer", elem_id="ol-vector"
            )
            self.controls["vector_token"] = gr.Textbox(label="Token number (empty: mean of all)", max_lines=1)
        self.pieces["vectors"] = self._piece("vectors")
        with gr.Row():
            self.controls["attention_layer"] = gr.Dropdown(layers[1:], value=str(last), label="Attention of layer")
            self.controls["head"] = gr.Number(0, label="Head", precision=0, minimum=0)
        self.pieces["attention"] = self._piece("attention")
        self.pieces["anisotropy"] = self._piece("anisotropy")
        self._wire(blocks)

    def _piece(self, name: str) -> Any:
        script = (HERE / "page.js").read_text("utf-8")
        return self.gr.HTML(elem_id=f"ol-{name}", js_on_load=script, apply_default_css=False, container=False)

    def _controls(self) -> None:
        gr, put = self.gr, self.controls
        with gr.Row():
            self.examples = {name: gr.Button(name, size="sm", min_width=80) for name in EXAMPLES}
        put["text"] = gr.Textbox(label="Text (Ctrl+Enter shows it)", lines=4, max_lines=10, elem_id="ol-text")
        self.run = gr.Button("Show", variant="primary", elem_id="ol-run")
        choices = self._choices("")
        put["listed"] = gr.CheckboxGroup(
            choices,
            value=[dim for _, dim in choices],
            label="Dimensions that stand out, on or off",
            elem_id="ol-listed",
        )
        put["others"] = gr.Textbox(
            label="Other dimensions to switch off, such as 17, 78", max_lines=1, elem_id="ol-others"
        )
        with gr.Row():
            self.draw = gr.Button("A random one instead", size="sm", min_width=120, elem_id="ol-draw")
            self.again = gr.Button("Another random control", size="sm", min_width=120, elem_id="ol-again")
        put["mode"] = gr.Dropdown([(text, mode) for mode, text in MODES.items()], label="Mode", elem_id="ol-mode")
        put["factor"] = gr.Slider(
            -2, 2, 0.5, step=0.05, label="Factor of mode scale", visible=False, elem_id="ol-factor"
        )
        most = max(stack.n_layers for stack in self.explorer.stacks) - 1
        with gr.Row():
            put["first"] = gr.Number(0, label="From layer", precision=0, minimum=0, maximum=most, min_width=100)
            put["last"] = gr.Number(most, label="to layer", precision=0, minimum=0, maximum=most, min_width=100)
        names = [stack.name for stack in self.explorer.stacks]
        put["stack"] = gr.Dropdown(names, value=names[0], label="Stream", visible=len(names) > 1)
        self.link = gr.Textbox(
            label="Link to what you see", interactive=False, max_lines=1, buttons=["copy"], elem_id="ol-link"
        )
        self.query = gr.Textbox(visible="hidden", elem_id="ol-query")
        put["seed"], put["blank"] = (self._number(name) for name in ("seed", "blank"))
        put["wrong"] = gr.Textbox(visible="hidden")
        self.turn = self._number("turn")

    def _number(self, name: str) -> Any:
        """A number that is part of the state and that nobody sees."""
        return self.gr.Number(0, precision=0, visible="hidden", elem_id=f"ol-{name}")

    def _slider_label(self, stack: str) -> str:
        return f"What is left of dimension {self.explorer.strongest(stack)}, the strongest"

    def _choices(self, stack: str) -> list[tuple[str, int]]:
        return [(html.listed_label(one), one.dim) for one in self.explorer.listed(stack)]

    def _wire(self, blocks: Any) -> None:
        """One function shows the page, and it takes every control as it then is.

        Gradio drops what happens while a function answers; asked to, it calls it once more after that (`always_last`). With
        several functions, or with one that knew what had been pressed, the last answer could be that of an earlier state.
        """
        gr, put, last = self.gr, self.controls, {"trigger_mode": "always_last"} | _QUIETLY
        every = list(put.values())
        # `input` is what a person does; what the page itself sets does not come back to it, but for the turn.
        typed, silent = ("text", "others", "vector_token"), ("seed", "stack", "wrong", "left", "listed")
        chosen = [one.input for name, one in put.items() if name not in (*typed, *silent)]
        triggers = [self.run.click, *(put[name].submit for name in typed), *chosen, self.turn.change]
        shown = [*(self.pieces[name] for name in PIECES), self.query, put["wrong"]]

        def show(*values: Any) -> Iterator[list[Any]]:
            for pieces in self._shown(self._given(values)):
                yield [*pieces, ""]

        done = gr.on(triggers, show, every, shown, **last)
        done.then(None, self.query, self.link, js=_ADDRESS, **_QUIETLY)

        def then_show(first: Any) -> None:
            """Show the page once all that `first` sets is set: what one change sets off sees half of the others."""
            first.then(None, self.turn, self.turn, js="(turn) => turn + 1", **_QUIETLY)

        self._wire_switches(then_show)
        for name, button in self.examples.items():
            then_show(button.click(None, None, put["text"], js=f"() => {json.dumps(EXAMPLES[name])}", **_QUIETLY))
        put["mode"].change(lambda mode: gr.update(visible=mode == "scale"), put["mode"], put["factor"], **_QUIETLY)
        then_show(self.again.click(None, put["seed"], put["seed"], js="(seed) => seed + 1", **_QUIETLY))

        def drawn(*values: Any) -> list[Any]:
            given = self._given(values)
            seed = given["seed"] = given["seed"] + 1
            try:
                state = replace(_state(self.explorer, given | {"others": ""}), dims=())
                every_one = [one.dim for one in self.explorer.listed(state.stack)]
                return [every_one, 1, ", ".join(map(str, self.explorer.random_dims(state))), seed, ""]
            except OutlierlensError as error:
                return [given["listed"], given["left"], given["others"], seed, str(error)]

        set_by_draw = [put[name] for name in ("listed", "left", "others", "seed", "wrong")]
        then_show(self.draw.click(drawn, every, set_by_draw, **last))

        def streamed(*values: Any) -> list[Any]:
            given = self._given(values)
            mode, factor, seed = str(given["mode"]), float(given["factor"]), int(given["seed"])
            return self._set(
                State(str(given["text"] or ""), mode=mode, factor=factor, stack=str(given["stack"]), seed=seed)
            )

        then_show(put["stack"].input(streamed, every, every, **last))

        def opened(request: Any) -> list[Any]:
            """What somebody sees who opens the page: the state of their link, or the first one."""
            given = dict(request.query_params) if request else {}
            wanted = [name for name in given if name in State.__dataclass_fields__]
            try:
                return self._set(State.from_query(given) if wanted else self.first)
            except OutlierlensError as error:
                return self._set(self.first, str(error))

        # gradio hands over what a function's annotations name; only here does it have names.
        opened.__annotations__["request"] = gr.Request
        then_show(blocks.load(opened, None, every, **_QUIETLY))

    def _wire_switches(self, then_show: Callable[[Any], None]) -> None:
        """The slider and the strongest dimension's switch say one thing: off is 0, and whoever moves the slider switches it on.

        All of it happens in the browser, so that no answer of the server overtakes a hand.
        """
        put, explorer = self.controls, self.explorer
        names = [stack.name for stack in explorer.stacks]
        streams = {name: [explorer.strongest(name), *(one.dim for one in explorer.listed(name))] for name in names}
        knows = f"const [strongest, ...every] = ({json.dumps(streams)})[stack] || [];"
        both, stack = [put["listed"], put["left"]], put["stack"]
        on = "listed.includes(strongest)"
        slid = f"(listed, left, stack) => {{ {knows} return [{on} ? listed : [...listed, strongest], left]; }}"
        switched = f"(listed, left, stack) => {{ {knows} return [listed, {on} ? left || 1 : 0]; }}"
        then_show(put["left"].input(None, [*both, stack], both, js=slid, **_QUIETLY))
        then_show(put["listed"].input(None, [*both, stack], both, js=switched, **_QUIETLY))
        all_on, all_off = (
            f"(stack) => {{ {knows} return [every, 1, '']; }}",
            f"(stack) => {{ {knows} return [[], 0]; }}",
        )
        then_show(self.all_on.click(None, stack, [*both, put["others"]], js=all_on, **_QUIETLY))
        then_show(self.all_off.click(None, stack, both, js=all_off, **_QUIETLY))

    def _given(self, values: Sequence[Any]) -> dict[str, Any]:
        """{name of a control: what it holds}."""
        return dict(zip(self.controls, values, strict=True))

    def _set(self, state: State, wrong: str = "") -> list[Any]:
        """What the controls hold for `state`, in their order; `wrong` is said in place of the views."""
        gr, explorer = self.gr, self.explorer
        stack = explorer.stack(state.stack)
        choices = self._choices(stack.name)
        listed = [dim for _, dim in choices]
        last = str(stack.n_layers - 1)
        values = {
            "text": state.text,
            "listed": gr.update(choices=choices, value=[dim for dim in listed if dim not in state.dims]),
            "left": gr.update(
                value=0 if explorer.strongest(stack.name) in state.dims else state.left,
                label=self._slider_label(stack.name),
            ),
            "dimension": explorer.strongest(stack.name) if state.dimension is None else state.dimension,
            "others": ", ".join(str(dim) for dim in state.dims if dim not in listed),
            "mode": state.mode if state.mode in MODES else "weights",
            "factor": gr.update(value=state.factor, visible=state.mode == "scale"),
            "first": state.first,
            "last": stack.n_layers - 1 if state.last is None else state.last,
            "stack": stack.name,
            "vector_layer": state.vector_layer or last,
            "vector_token": "" if state.vector_token is None else str(state.vector_token),
            "attention_layer": last if state.attention_layer is None else str(state.attention_layer),
            "head": state.head,
            "seed": state.seed,
            "blank": state.blank,
            "wrong": wrong,
        }
        return [values[name] for name in self.controls]

    def _shown(self, given: dict[str, Any]) -> Iterator[list[Any]]:
        """`PIECES` and the link of what the controls hold, what is beside the hand first; or the message of what is wrong."""
        skip = self.gr.skip()
        try:
            if given["wrong"]:
                raise BadInput(given["wrong"])
            state = _state(self.explorer, given)
            found = self.explorer.look(state, AT_ONCE)
            first = {"head": html.head(self.explorer, found.state.stack), "said": html.said(found)}
            first |= {"number": html.number(found)} | html.drawn(self.explorer, found)
            yield [*(first.get(name, skip) for name in PIECES), skip]
            rest = html.drawn(self.explorer, self.explorer.look(state, [view for view in VIEWS if view not in AT_ONCE]))
            query = found.state.query()
            yield [*(rest.get(name, skip) for name in PIECES), f"?{query}" if query else ""]
        except OutlierlensError as error:
            yield self._failed(error)
        except (
            Exception,
            KeyboardInterrupt,
            SystemExit,
        ) as error:  # what ended the queue's only worker would end the page
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            yield self._failed(BadInput(f"this cannot be shown ({what}); the terminal that serves the page says where"))

    def _failed(self, error: OutlierlensError) -> list[Any]:
        # Numbers of an earlier state beside the message would be taken for those of this one.
        said = {"head": html.head(self.explorer, ""), "said": html.alert(str(error))}
        return [*(said.get(name, "") for name in PIECES), self.gr.skip()]


_QUIETLY: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


def _state(explorer: Explorer, given: dict[str, Any]) -> State:
    """The state that the controls hold; raises BadInput for what cannot be one."""
    stack = explorer.stack(str(given["stack"] or "")).name
    on = {int(dim) for dim in given["listed"] or ()}
    off = (one.dim for one in explorer.listed(stack) if one.dim not in on)
    dims = dict.fromkeys((*off, *parse_dims(str(given["others"] or ""))))
    token = str(given["vector_token"] or "").strip()
    whole = {"first": given["first"], "last": given["last"], "head": given["head"], "blank": given["blank"]}
    whole["dimension"] = given["dimension"]
    whole["attention_layer"] = given["attention_layer"]
    if token:
        whole["vector_token"] = token
    numbers: dict[str, int] = {}
    for name, value in whole.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = int(value)
        if numbers.get(name, -1) < 0:
            raise BadInput(f"{name.replace('_', ' ')} is {str(value)[:40]!r}; it must be a whole number from 0 on")
    last = numbers["last"]
    return State(
        text=str(given["text"] or ""),
        dims=tuple(sorted(dims)),
        mode=str(given["mode"]),
        factor=float(given["factor"]),
        left=float(given["left"]),
        stack=stack,
        seed=int(given["seed"]),
        vector_layer=str(given["vector_layer"] or ""),
        **{**numbers, "last": last},
    )
