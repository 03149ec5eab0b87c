"""Processes of their own that need not import what trains: all are forked from one server, which has done so.

process = context().Process(target=train, args=(folder,))
status(train, folder)                           # run to its end
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

from moments import finish

# The server is one to a test process: whoever starts it first loads this for all who come later.
PRELOADED = [
    "outlierlens.training.finetune",
    "outlierlens.training.pretrain.loop",
    "outlierlens.training.pretrain.build",
    "outlierlens.training.callback",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "torch._dynamo",  # which the first step of an optimizer imports
]


def context() -> ForkServerContext:
    """The context whose processes are forked from the server that has everything loaded."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def status(target: Callable[..., Any], *arguments: Any) -> int:
    """The exit status of `target(*arguments)` in a process of its own, negative for a signal."""
    process = context().Process(target=target, args=arguments)
    process.start()
    return finish(process)
