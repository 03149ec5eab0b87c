"""The page: gradio's controls around the views of an `Explorer`. What is shown is worked out elsewhere; see `look`, `html`.

blocks = page(explorer, explorer.start())
blocks.launch(**launch_options())

Controls hold a person's state in their browser; the server keeps none. Each change makes a state, the state makes the views.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from outlierlens.charts.palette import DARK, LIGHT, css
from outlierlens.errors import BadInput, OutlierlensError, need
from outlierlens.explore import html
from outlierlens.explore.look import Explorer
from outlierlens.explored import VIEWS, State, parse_dims

HERE = Path(__file__).parent
MODES = {
    "weights": "weights: scale and bias of each block’s last operation are 0",
    "norms": "norms: scale and bias of every norm are 0",
    "zero": "zero: the activation after each block is 0",
    "mean": "mean: the activation is its mean over other texts",
    "scale": "scale: the activation times a factor",
    "resample": "resample: the activation of another token of the text",
    "writes": "writes: nothing writes to the dimension",
}
# The address always holds the state; what comes back is the whole link, for the box that shows it.
_ADDRESS = "(query) => { history.replaceState(null, '', query || location.pathname); return location.href; }"


def gradio() -> ModuleType:
    """The library, with everything of it that connects to the outside switched off; raises MissingExtra."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of tools for sound that the page does not use
        return need("gradio", "explore", "the live page")


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
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                self._controls()
            with gr.Column(scale=2, min_width=320):
                self.pieces["said"] = self._piece("said")
                for view in ("passage", "loss", "guesses"):
                    self.pieces[view] = self._piece(view)
        last = self.explorer.stack().n_layers - 1
        layers = ["embeddings", *map(str, range(max(stack.n_layers for stack in self.explorer.stacks)))]
        with gr.Row():
            self.controls["vector_layer"] = gr.Dropdown(layers, value=str(last), label="Vectors after layer")
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
        put["text"] = gr.Textbox(label="Text", lines=4, max_lines=10, elem_id="ol-text")
        put["listed"] = gr.CheckboxGroup(self._choices(""), label="Dimensions that stand out", elem_id="ol-listed")
        put["others"] = gr.Textbox(label="Other dimensions, such as 17, 78", max_lines=1, elem_id="ol-others")
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
        self.run = gr.Button("Show", variant="primary", elem_id="ol-run")
        self.link = gr.Textbox(
            label="Link to what you see", interactive=False, max_lines=1, buttons=["copy"], elem_id="ol-link"
        )
        self.query = gr.Textbox(visible="hidden", elem_id="ol-query")
        put["seed"], put["blank"] = gr.State(0), gr.State(0)

    def _choices(self, stack: str) -> list[tuple[str, int]]:
        return [(html.listed_label(one), one.dim) for one in self.explorer.listed(stack)]

    def _wire(self, blocks: Any) -> None:
        gr, put = self.gr, self.controls
        names = list(put)
        every = [put[name] for name in names]

        def state_of(values: Sequence[Any]) -> State:
            return _state(self.explorer, dict(zip(names, values, strict=True)))

        def show(views: Sequence[str]) -> Callable[..., list[Any]]:
            return lambda *values: self._shown(lambda: state_of(values), views)

        def listen(triggers: list[Any], views: Sequence[str]) -> None:
            outputs = [*(self.pieces[name] for name in ("head", "said", *views)), self.query]
            self._then(gr.on(triggers, show(views), every, outputs, **_QUIETLY))

        # `input` is what a person does; what the page itself sets does not come back to it.
        boxes = [put[name].input for name in ("listed", "mode", "factor", "first", "last")]
        listen([self.run.click, *boxes, *(put[name].submit for name in ("text", "others"))], VIEWS)
        listen([put["vector_layer"].input, put["vector_token"].submit], ["vectors"])
        listen([put["attention_layer"].input, put["head"].input], ["attention"])
        put["mode"].change(lambda mode: gr.update(visible=mode == "scale"), put["mode"], put["factor"], **_QUIETLY)

        everything = [*(self.pieces[name] for name in ("head", "said", *VIEWS)), self.query]

        def pressed(event: Any, *values: Any) -> list[Any]:
            given = dict(zip(names, values, strict=True))
            # The number comes from a browser: whatever it is, `_state` holds it against what a blank can be.
            pressed_blank = (event._data or {}).get("blank")
            given["blank"] = given["blank"] if pressed_blank is None else pressed_blank
            return [given["blank"], *self._shown(lambda: _state(self.explorer, given), ["guesses"])]

        # gradio hands over what a function's annotations name; only here does it have names.
        pressed.__annotations__["event"] = gr.EventData
        guesses = [self.pieces[name] for name in ("head", "said", "guesses")]
        press = self.pieces["passage"].click(pressed, every, [put["blank"], *guesses, self.query], **_QUIETLY)
        self._then(press)

        def another(*values: Any) -> list[Any]:
            given = dict(zip(names, values, strict=True))
            given["seed"] += 1
            return [given["seed"], *self._shown(lambda: _state(self.explorer, given), VIEWS)]

        self._then(self.again.click(another, every, [put["seed"], *everything], **_QUIETLY))

        def drawn(*values: Any) -> list[Any]:
            given = dict(zip(names, values, strict=True))
            given["seed"] += 1
            try:
                state = replace(_state(self.explorer, given | {"listed": [], "others": ""}), dims=())
                text = ", ".join(map(str, self.explorer.random_dims(state)))
            except OutlierlensError as error:
                return [given["seed"], [], given["others"], *self._failed(error, VIEWS)]
            given |= {"listed": [], "others": text}
            return [given["seed"], [], text, *self._shown(lambda: _state(self.explorer, given), VIEWS)]

        outputs = [put["seed"], put["listed"], put["others"], *everything]
        self._then(self.draw.click(drawn, every, outputs, **_QUIETLY))

        def streamed(*values: Any) -> list[Any]:
            given = dict(zip(names, values, strict=True))
            last = self.explorer.stack(given["stack"]).n_layers - 1
            given |= {"listed": [], "others": "", "first": 0, "last": last, "vector_layer": str(last)}
            given["attention_layer"] = str(last)
            state = _state(self.explorer, given)
            return [*self._set(state), *self._shown(lambda: state, VIEWS)]

        self._then(put["stack"].input(streamed, every, [*every, *everything], **_QUIETLY))

        self._open(blocks, [*every, *everything])

    def _open(self, blocks: Any, outputs: list[Any]) -> None:
        """What somebody sees who opens the page: the state of their link, or the first one."""

        def opened(request: Any) -> list[Any]:
            given = dict(request.query_params) if request else {}
            wanted = [name for name in given if name in State.__dataclass_fields__]
            try:
                state = State.from_query(given) if wanted else self.first
                controls = self._set(state)
            except OutlierlensError as error:
                return [*self._set(self.first), *self._failed(error, VIEWS)]
            return [*controls, *self._shown(lambda: state, VIEWS)]

        opened.__annotations__["request"] = self.gr.Request
        self._then(blocks.load(opened, None, outputs, **_QUIETLY))

    def _then(self, done: Any) -> None:
        done.then(None, self.query, self.link, js=_ADDRESS, **_QUIETLY)

    def _set(self, state: State) -> list[Any]:
        """What the controls show for `state`, in their order."""
        gr, explorer = self.gr, self.explorer
        stack = explorer.stack(state.stack)
        choices = self._choices(stack.name)
        listed = [dim for _, dim in choices]
        last = str(stack.n_layers - 1)
        values = {
            "text": state.text,
            "listed": gr.update(choices=choices, value=[dim for dim in state.dims if dim in listed]),
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
        }
        return [values[name] for name in self.controls]

    def _shown(self, state: Callable[[], State], views: Sequence[str]) -> list[Any]:
        """The head, what is said, the views and the link of a state; or the message that says what is wrong with it."""
        try:
            given = state()
            found = self.explorer.look(given, views)
        except OutlierlensError as error:
            return self._failed(error, views)
        pieces = html.drawn(self.explorer, found)
        query = found.state.query()
        head = html.head(self.explorer, found.state.stack)
        return [head, html.said(found), *(pieces[view] for view in views), f"?{query}" if query else ""]

    def _failed(self, error: OutlierlensError, views: Sequence[str]) -> list[Any]:
        # Numbers of an earlier state beside the message would be taken for those of this one.
        return [html.head(self.explorer, ""), html.alert(str(error)), *("" for _ in views), self.gr.skip()]


_QUIETLY: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


def _state(explorer: Explorer, given: dict[str, Any]) -> State:
    """The state that the controls hold; raises BadInput for what cannot be one."""
    dims = tuple(dict.fromkeys((*(int(dim) for dim in given["listed"] or ()), *parse_dims(str(given["others"] or "")))))
    token = str(given["vector_token"] or "").strip()
    whole = {"first": given["first"], "last": given["last"], "head": given["head"], "blank": given["blank"]}
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
        stack=explorer.stack(str(given["stack"] or "")).name,
        seed=int(given["seed"]),
        vector_layer=str(given["vector_layer"] or ""),
        **{**numbers, "last": last},
    )
