"""`explore`: the live page of a model, its views on the terminal, or a hub Space of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.common import Show, print_table, say, warn
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.explored import Explored, State
    from outlierlens.models import LoadOptions

MODEL = "mini-planted"


@common.loads_a_model
def explore(
    model: Annotated[str, typer.Argument(help="Sample, directory or hub id; mini-* need no download.")] = MODEL,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1. Default: the first free from 7860."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser tab.")] = False,
    share: Annotated[
        bool,
        typer.Option("--share", help="Let anyone in who has a link, by a tunnel through gradio's servers. Off."),
    ] = False,
    space: Annotated[
        Path | None, typer.Option("--space", help="Write a folder to push as a hub Space, and start nothing.")
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            "--show", help="Print views and start no page: passage, loss, guesses, vectors, attention, anisotropy, all."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Text to look at. Default: a shipped one.")] = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381, or '' for none. Default: what scan finds, or the strongest.")
    ] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers to switch off in: 0-3. Default: all.")] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="weights, norms, zero, mean, scale, resample or writes.")
    ] = "weights",
    factor: Annotated[float, typer.Option("--factor", help="Factor of mode scale.")] = 0.5,
    stack: Annotated[
        str, typer.Option("--stack", help="Which stream, where there are several: encoder, decoder.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random control.")] = 0,
    blank: Annotated[int, typer.Option("--blank", min=0, help="Blank whose guesses are shown, from 0.")] = 0,
    vector_layer: Annotated[
        str, typer.Option("--vector-layer", help="embeddings, 0, 1, …: vectors after it. Default: the last.")
    ] = "",
    vector_token: Annotated[
        int | None, typer.Option("--vector-token", min=0, help="Token whose vector is shown. Default: the mean.")
    ] = None,
    attention_layer: Annotated[
        int | None, typer.Option("--attention-layer", min=0, help="Layer of the attention map. Default: the last.")
    ] = None,
    head: Annotated[int, typer.Option("--head", min=0, help="Head of the attention map.")] = 0,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    *,
    load: "LoadOptions",
) -> None:
    """Open a live page, on this machine alone: switch dimensions off and see the model with random ones off beside it."""
    from outlierlens.explored import VIEWS, State, parse_dims

    if views is None and (json or output or format != "auto"):
        raise BadInput("--json, --format and --output belong to --show; a page prints no result")
    if space is not None:
        if views is not None or share or port is not None:
            raise BadInput("--space writes a folder and starts nothing; leave out --show, --share and --port")
        from outlierlens.explore.space import write_space

        say(f"{write_space(space, model, load)}: push it with: hf upload OWNER/NAME {space} --repo-type space")
        return
    wanted = VIEWS if views == "all" else tuple(part.strip() for part in (views or "").split(","))
    show = Show.choose(format, json, quiet, output, overwrite) if views is not None else None
    if show is None:
        from outlierlens.explore.page import gradio

        gradio()  # where it is missing, that is said before a model is loaded
    first, last = _range(layers)
    chosen = parse_dims(dims) if dims is not None else None
    from outlierlens.explore.look import open_explorer

    explorer = open_explorer(model, load)
    start = explorer.start()
    state = State(
        text=start.text if text is None else text,
        dims=start.dims if chosen is None else chosen,
        first=first,
        last=last,
        mode=mode,
        factor=factor,
        stack=stack,
        seed=seed,
        blank=blank,
        vector_layer=vector_layer,
        vector_token=vector_token,
        attention_layer=attention_layer,
        head=head,
    )
    if show is not None:
        show.result(explorer.look(state, wanted), print_explored)
        return
    from outlierlens.explore.serve import Place, serve

    explorer.settled(state)  # a wrong option is said here, not in the browser
    try:
        serve(explorer, state, Place(port, share, browser), (lambda _: None) if quiet else _say_at_once)
    except KeyboardInterrupt:
        warn("the page is closed")


def _say_at_once(text: str) -> None:
    """One line on stdout, seen by whoever waits for it behind a pipe too."""
    say(text)
    sys.stdout.flush()


def _range(layers: str | None) -> tuple[int, int | None]:
    """(first, last) of "0-3"; raises BadInput for layers that are no range."""
    if layers is None:
        return 0, None
    found = spelling.parse_layers(layers)
    if list(found) != list(range(found[0], found[-1] + 1) if found else []) or not found:
        raise BadInput(f"--layers {layers!r} is no range; explore switches off in a range such as 0-3")
    return found[0], found[-1]


def print_explored(found: "Explored") -> None:
    """The views as text: tables in place of pictures."""
    state: State = found.state
    for one in found.conditions[1:]:
        say(f"{one.label}: {', '.join(map(str, one.dims))} off in layers {state.first}-{state.last}, mode {state.mode}")
    if found.passage:
        for filled in found.passage.fills:
            say(f"{filled.label:>7}: {filled.line}")
        for said in found.passage.continuations:
            say(f"{said.label:>7}: {said.prompt} → {said.text}")
    if found.loss and not found.loss.missing:
        columns = ("condition", found.loss.unit, "95 %", "change", "95 % of it")
        print_table(
            f"{found.loss.task}, {found.loss.n_tokens} predictions",
            columns,
            [
                (row.label, f"{row.value:.3f}", f"{row.low:.3f} to {row.high:.3f}", f"{row.change:+.3f}",
                 f"{row.change_low:+.3f} to {row.change_high:+.3f}")
                for row in found.loss.rows
            ],
        )  # fmt: skip
    if found.guesses and not found.guesses.missing:
        say(f"blank {found.guesses.number}, in the text: {found.guesses.original}")
        for one_list in found.guesses.lists:
            words = (f"{guess.word} {guess.probability:.1%}" for guess in one_list.guesses)
            say(f"{one_list.label:>7}: {', '.join(words)}")
    _print_inside(found)
    for view in (found.passage, found.loss, found.guesses, found.vectors, found.attention, found.anisotropy):
        if view is not None and view.missing:
            say(f"note: {view.missing}")
    for note in found.notes:
        say(f"note: {note}")


def _print_inside(found: "Explored") -> None:
    labels = [one.label for one in found.conditions]
    if found.vectors and not found.vectors.missing:
        seen = found.vectors
        rows = [
            (label, *(f"{values[dim]:.3f}" for dim in seen.named))
            for label, values in zip(labels, seen.values, strict=True)
        ]
        print_table(f"vectors after layer {seen.layer}: {seen.drawn}", ("condition", *map(str, seen.named)), rows)
    if found.attention and not found.attention.missing:
        maps = found.attention
        special = [i for i, is_special in enumerate(maps.special) if is_special]
        rows = [
            (label, f"{one[:, 0].mean():.1%}", f"{one[:, special].sum(1).mean():.1%}")
            for label, one in zip(labels, maps.weights, strict=True)
        ]
        print_table(
            f"attention, layer {maps.layer}, head {maps.head}", ("condition", "first token", "special tokens"), rows
        )
    if found.anisotropy and not found.anisotropy.missing:
        cosines = found.anisotropy
        rows = [
            (label, *(f"{value:.3f}" for value in values)) for label, values in zip(labels, cosines.cosine, strict=True)
        ]
        print_table(f"mean cosine of {cosines.n_tokens} tokens by layer", ("condition", *cosines.layers), rows)
