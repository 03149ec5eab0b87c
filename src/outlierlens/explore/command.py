"""`explore`: the live page of a model, or its views on the terminal."""

from typing import TYPE_CHECKING

from outlierlens.errors import BadInput, printable
from outlierlens.explore.state import ExploreOptions
from outlierlens.session import Session

if TYPE_CHECKING:
    from outlierlens.explore.look import Exploration


def run(session: Session, options: ExploreOptions) -> "Exploration | None":
    """Measure views, or serve the page until it is interrupted.

    Raises:
        BadInput: options that do not go together, or a state that the model cannot be in.
    """
    output = session.output
    if options.views is None:
        if output.json or output.output:
            raise BadInput("--json and --output belong to --show; a page prints no result")
        from outlierlens.explore.page import gradio

        gradio()  # where it is missing, that is said before a model is loaded
    from outlierlens.explore.look import open_explorer

    explorer = open_explorer(session.subject.model, session.load)
    state = options.looked_at(explorer.start())
    found = explorer.look(state, options.views or ())  # a wrong option is said here, not in the browser
    if options.views is not None:
        return found
    from outlierlens.explore.serve import serve

    def say(text: str) -> None:
        if not output.quiet:
            print(printable(text), flush=True)  # seen by whoever waits for it behind a pipe too

    try:
        serve(explorer, state, options.place, say)
    except KeyboardInterrupt:
        session.notice("the page is closed")
    return None
