"""Start the page on this machine alone: 127.0.0.1, no other host's name, no analytics, nothing loaded from anywhere.

serve(explorer, explorer.start(), Place(port=7860))        # blocks until it is interrupted

With `share`, gradio opens a tunnel through gradio's servers, and anyone who has its address can use the page for a week.
"""

import contextlib
import socket
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.explore.door import Door
from outlierlens.explore.look import Explorer
from outlierlens.explore.options import PORT, Place
from outlierlens.explore.page import launch_options, page
from outlierlens.explore.result import State

LOOPBACK = "127.0.0.1"
TUNNEL = ".gradio.live"
TRIED = 100


def free_port(asked: int | None) -> int:
    """The port asked for, or the first free one; raises BadInput where it is taken."""
    for port in (asked,) if asked is not None else range(PORT, PORT + TRIED):
        with contextlib.closing(socket.socket()) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    what = f"port {asked} is" if asked is not None else f"ports {PORT} to {PORT + TRIED - 1} are"
    raise BadInput(f"{what} taken or not allowed; name another with --port")


@contextlib.contextmanager
def served(explorer: Explorer, start: State, place: Place) -> Iterator[tuple[str, str | None]]:
    """Serve the page inside the block; yields its address and, where it is shared, the public one."""
    port = free_port(place.port)
    blocks: Any = page(explorer, start)
    hosts = (LOOPBACK, "localhost", *((TUNNEL,) if place.share else ()))
    _, address, public = blocks.launch(
        server_name=LOOPBACK,
        server_port=port,
        share=place.share,
        prevent_thread_lock=True,
        app_kwargs={"middleware": [(Door, (), {"hosts": hosts})]},
        **launch_options(),
    )
    try:
        yield address, public
    finally:
        blocks.close(verbose=False)


def serve(explorer: Explorer, start: State, place: Place, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM; its address is said first."""
    import threading

    with served(explorer, start, place) as (address, public):
        say(f"exploring {explorer.loaded.name} at {address} (this machine only; Ctrl-C ends it)")
        if public:
            say(f"shared at {public}: anyone with this address can use the page, through gradio's servers")
        elif place.share:
            say("not shared: gradio's tunnel could not be opened; the page runs on this machine alone")
        if place.browser:
            webbrowser.open(address)
        threading.Event().wait()
