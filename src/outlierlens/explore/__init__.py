"""The live page: type a sentence, switch dimensions off, and see the model with random ones off beside it.

    explorer = open_explorer("mini-planted")                          # explore.look
    found = explorer.look(State(text="A film worth seeing.", dims=(8, 24)))
    found.loss.rows[2].change
    serve(explorer, State())                                          # explore.serve: the page, on loopback only

`look` checks a state and measures its views by `inside` and `language`; `snippets` writes the Python and the command that
reproduce a view; `drawing` and `html` draw; `page` wires gradio around them, `serve` starts it and `space` packs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlierlens.explore.look import Explorer, open_explorer
    from outlierlens.explore.result import State

_HOME = {"Explorer": "explore.look", "open_explorer": "explore.look", "State": "explore.result"}

__all__ = ["Explorer", "State", "open_explorer"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'outlierlens.explore' has no attribute {name!r}")
    return getattr(importlib.import_module(f"outlierlens.{_HOME[name]}"), name)
