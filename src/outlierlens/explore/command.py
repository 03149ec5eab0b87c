"""`explore`: the live page of a model, or its views on the terminal."""

import sys

from outlierlens.cli.common import say, warn
from outlierlens.cli.experiment import tell
from outlierlens.errors import BadInput
from outlierlens.explore.state import ExploreOptions
from outlierlens.results.document import save
from outlierlens.session import Session


def run(session: Session, options: ExploreOptions) -> None:
    """Serve the page until it is interrupted, or print views.

    Raises:
        BadInput: options that do not go together, or a state that the model cannot be in.
    """
    output, model = session.output, session.subject.model
    if options.views is None and (output.json or output.output):
        raise BadInput("--json and --output belong to --show; a page prints no result")
    if options.views is None:
        from outlierlens.explore.page import gradio

        gradio()  # where it is missing, that is said before a model is loaded
    from outlierlens.explore.look import open_explorer

    explorer = open_explorer(model, session.load)
    state = options.looked_at(explorer.start())
    if options.views is not None:
        found = explorer.look(state, options.views)
        if output.output:
            save(found, output.output)
        tell(session, found)
        return
    from outlierlens.explore.serve import serve

    explorer.look(state, ())  # a wrong option is said here, not in the browser
    try:
        serve(explorer, state, options.place, (lambda _: None) if output.quiet else _say_at_once)
    except KeyboardInterrupt:
        warn("the page is closed")


def _say_at_once(text: str) -> None:
    """One line on stdout, seen by whoever waits for it behind a pipe too."""
    say(text)
    sys.stdout.flush()
