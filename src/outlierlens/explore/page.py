"""The page: gradio's controls around the views of an `Explorer`, which the report's templates draw.

blocks = page(explorer, explorer.start())
blocks.launch(**launch_options())

Controls hold a person's state in their browser; the server keeps none. Each change makes a state, the state makes the views.
"""

import asyncio
import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from outlierlens.ablation.fill import SIGNS
from outlierlens.errors import BadInput, OutlierlensError, need
from outlierlens.explore.look import Explorer
from outlierlens.explore.state import EXAMPLES, VIEWS, Selection, parse_dims
from outlierlens.view.charts.base import DARK, LIGHT, css
from outlierlens.view.page import fragment, runtime, style

HERE = Path(__file__).parent
MODES = {
    "weights": "weights: scale and bias of each block’s last operation are 0",
    "norms": "norms: scale and bias of every norm are 0",
    "zero": "zero: the activation after each block is 0",
    "mean": "mean: the activation is its mean over other texts",
    "resample": "resample: the activation of another token of the text",
    "writes": "writes: nothing writes to the dimension",
}
MEANING = {"same": "as intact", "other": "another word", "nonsense": "nonsense", "changed": "shown, and not repeated"}
AT_ONCE = ("passage", "loss", "guesses")  # what changes beside the hand; the other views follow
PIECES = ("head", "number", "said", "passage", "tables", "inside")
# The address always holds the state; what comes back is the whole link, for the box that shows it.
_ADDRESS = "(query) => { history.replaceState(null, '', query || location.pathname); return location.href; }"
_QUIETLY: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


def gradio() -> ModuleType:
    """The library, with all its outside connections disabled; raises MissingExtra."""
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
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    colours = f":root{{{css(LIGHT)}}} .dark{{{css(DARK)}}}"
    off = ("run_history", "enable_monitoring", "ssr_mode", "mcp_server", "pwa")
    return dict.fromkeys(off, False) | {
        "theme": gr.themes.Base(**fonts),
        "css": f"{colours}\n.ol {{ {style()} }}\n{(HERE / 'page.css').read_text('utf-8')}",
        "head": f"<script>{runtime()}</script>",
        "footer_links": [],
        "max_file_size": 1,
        "quiet": True,
        "_frontend": False,  # leaves out a request to itself, which gradio wants answered within three seconds
    }


def page(explorer: Explorer, start: Selection) -> Any:
    """The page of a model as gradio Blocks; `start` is what somebody sees who brings no link."""
    gr = gradio()
    with gr.Blocks(title=f"{explorer.loaded.name} · outlierlens", analytics_enabled=False) as blocks:
        _Page(gr, explorer, start).build(blocks)
    blocks.queue(default_concurrency_limit=1, max_size=64, api_open=False)
    return blocks


class _Page:
    """The controls, the pieces of HTML, and what a change of one does to the others."""

    def __init__(self, gr: Any, explorer: Explorer, start: Selection):
        self.gr, self.explorer, self.first = gr, explorer, start
        self.controls: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}

    def build(self, blocks: Any) -> None:
        """Lay out the page and wire it."""
        gr, put = self.gr, self.controls
        # Parts of the state that nobody sees.
        hidden: dict[str, Any] = {"value": 0, "precision": 0, "visible": "hidden"}
        most = max(stack.n_layers for stack in self.explorer.stacks) - 1
        layer: dict[str, Any] = {"precision": 0, "minimum": 0, "maximum": most, "min_width": 100}
        self._pieces("head")
        with gr.Row(elem_id="ol-hand"):
            with gr.Column(scale=1, min_width=280):
                self._pieces("number")
            with gr.Column(scale=1, min_width=280):
                put["left"] = gr.Slider(0, 1, 0, step=0.05, label="Factor of the set", elem_id="ol-left")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                with gr.Row():
                    self.examples = {name: gr.Button(name, size="sm", min_width=80) for name in EXAMPLES}
                put["text"] = gr.Textbox(label="Text (Ctrl+Enter shows it)", lines=4, max_lines=10, elem_id="ol-text")
                self.run = gr.Button("Show", variant="primary", elem_id="ol-run")
                stand_out = "The set: outlier dimensions"
                put["listed"] = gr.CheckboxGroup(self._choices(""), label=stand_out, elem_id="ol-listed")
                put["others"] = gr.Textbox(label="And others, such as 17, 78", max_lines=1, elem_id="ol-others")
                self.again = gr.Button("Another random set", size="sm", elem_id="ol-again")
                choices = [(text, mode) for mode, text in MODES.items()]
                put["mode"] = gr.Dropdown(choices, label="Ablation, at factor 0", elem_id="ol-mode")
                with gr.Row():
                    put["first"] = gr.Number(0, label="From layer", **layer)
                    put["last"] = gr.Number(most, label="to layer", **layer)
                names = [stack.name for stack in self.explorer.stacks]
                put["stack"] = gr.Dropdown(names, value=names[0], label="Stream", visible=len(names) > 1)
                shown: dict[str, Any] = {"interactive": False, "max_lines": 1, "buttons": ["copy"]}
                self.link = gr.Textbox(label="Link to what you see", elem_id="ol-link", **shown)
                self.query = gr.Textbox(visible="hidden", elem_id="ol-query")
                put |= {name: gr.Number(elem_id=f"ol-{name}", **hidden) for name in ("seed", "blank")}
                self.turn, put["wrong"] = gr.Number(elem_id="ol-turn", **hidden), gr.Textbox(visible="hidden")
            with gr.Column(scale=2, min_width=320, elem_id="ol-results"):
                self._pieces("said", "passage", "tables")
        self._pieces("inside")
        self._wire(blocks)

    def _pieces(self, *names: str) -> None:
        how = {"js_on_load": (HERE / "page.js").read_text("utf-8"), "apply_default_css": False, "container": False}
        self.pieces |= {name: self.gr.HTML(elem_id=f"ol-{name}", **how) for name in names}

    def _choices(self, stack: str) -> list[tuple[str, int]]:
        return [(self.explorer.label(dim, stack), dim) for dim in self.explorer.listed(stack)]

    def _wire(self, blocks: Any) -> None:
        """One function shows the page, and it takes every control as it then is.

        Gradio drops what happens while a function answers; asked to, it calls it once more after that (`always_last`). With
        several functions, or with one that knew what had been pressed, the last answer could be that of an earlier state.
        """
        gr, put, last = self.gr, self.controls, {"trigger_mode": "always_last"} | _QUIETLY
        every = list(put.values())
        # `input` is what a person does; what the page itself sets does not come back to it, but for the turn.
        typed, silent = ("text", "others"), ("seed", "stack", "wrong")
        chosen = [one.input for name, one in put.items() if name not in (*typed, *silent)]
        triggers = [self.run.click, *(put[name].submit for name in typed), *chosen, self.turn.change]

        done = gr.on(
            triggers, self._shown, every, [*(self.pieces[n] for n in PIECES), self.query, put["wrong"]], **last
        )
        done.then(None, self.query, self.link, js=_ADDRESS, **_QUIETLY)

        def then_show(first: Any) -> None:
            """Show the page once all that `first` sets is set: what one change sets off sees half of the others."""
            first.then(None, self.turn, self.turn, js="(turn) => turn + 1", **_QUIETLY)

        for name, button in self.examples.items():
            then_show(button.click(None, None, put["text"], js=f"() => {json.dumps(EXAMPLES[name])}", **_QUIETLY))
        then_show(self.again.click(None, put["seed"], put["seed"], js="(seed) => seed + 1", **_QUIETLY))

        def streamed(text: Any, stack: Any, seed: Any) -> list[Any]:
            name = self.explorer.stack(str(stack or "")).name
            return self._set(Selection(str(text or ""), self.explorer.listed(name), stack=name, seed=int(seed)))

        then_show(put["stack"].input(streamed, [put[name] for name in ("text", "stack", "seed")], every, **last))

        def opened(request: Any) -> list[Any]:
            """What somebody sees who opens the page: the state of their link, or the first one."""
            try:
                state = Selection.from_query(dict(request.query_params) if request else {})
                return self._set(self.first if state == Selection() else state)
            except OutlierlensError as error:
                return self._set(self.first, str(error))

        # gradio hands over what a function's annotations name; only here does it have names.
        opened.__annotations__["request"] = gr.Request
        then_show(blocks.load(opened, None, every, **_QUIETLY))

    def _set(self, state: Selection, wrong: str = "") -> list[Any]:
        """What the controls hold for `state`, in their order; `wrong` is said in place of the views."""
        stack = self.explorer.stack(state.stack)
        choices = self._choices(stack.name)
        listed = [dim for _, dim in choices]
        values = vars(state) | {
            "listed": self.gr.update(choices=choices, value=[dim for dim in listed if dim in state.dims]),
            "others": ", ".join(str(dim) for dim in state.dims if dim not in listed),
            "mode": state.mode if state.mode in MODES else "weights",
            "last": stack.n_layers - 1 if state.last is None else state.last,
            "stack": stack.name,
            "wrong": wrong,
        }
        return [values[name] for name in self.controls]

    def _shown(self, *values: Any) -> Iterator[list[Any]]:
        """`PIECES`, the link, and what is wrong, of what the controls hold; what is beside the hand comes first."""
        given = dict(zip(self.controls, values, strict=True))
        try:
            if given["wrong"]:
                raise BadInput(given["wrong"])
            state = _state(given)
            found = self.explorer.look(state, AT_ONCE)
            skip, stack, query = self.gr.skip(), found.state.stack, found.state.query()
            yield [*self._drawn(PIECES[:-1], skip, stack, found=found), skip, ""]
            rest = self.explorer.look(state, [view for view in VIEWS if view not in AT_ONCE])
            yield [*self._drawn(("inside",), skip, stack, found=rest), f"?{query}" if query else "", ""]
        except OutlierlensError as error:
            yield self._failed(str(error))
        # What ended the queue's only worker would end the page.
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            yield self._failed(f"this cannot be shown ({what}); the terminal that serves the page says where")

    def _failed(self, message: str) -> list[Any]:
        # Numbers of an earlier state beside the message would be taken for those of this one.
        said = f"{message[:1].upper()}{message[1:]}."
        return [*self._drawn(("head", "said"), "", "", message=said), self.gr.skip(), ""]

    def _drawn(self, names: Sequence[str], others: Any, stack: str, **values: Any) -> list[Any]:
        """`PIECES`: those of `names` drawn, `others` in place of the rest."""
        values |= {"model": self.explorer.loaded.name, "verdict": self.explorer.verdict(stack)}
        return [piece(name, **values) if name in names else others for name in PIECES]


def _state(given: dict[str, Any]) -> Selection:
    """The state that the controls hold; raises BadInput for what cannot be one."""
    dims = {*map(int, given["listed"] or ()), *parse_dims(str(given["others"] or ""))}
    words = {name: str("" if value is None else value) for name, value in given.items()}
    return Selection.from_query(words | {"dims": ",".join(map(str, sorted(dims)))})


# --- pieces of HTML --------------------------------------------------------------------------------------------------


def piece(name: str, **values: Any) -> str:
    """One of `PIECES`; characters that templates in the browser would read are written as codes."""
    template = "inside" if name == "tables" else name
    made = fragment(HERE, f"{template}.html.jinja", SIGNS=SIGNS, MEANING=MEANING, **values)
    for character in "{}$`\\":
        made = made.replace(character, f"&#{ord(character)};")
    return f'<div class="ol">{made}</div>'
