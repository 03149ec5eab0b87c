"""GPUs are hidden from tests, so that what passes is the same everywhere; test_gpu.py shows them to processes of its own."""

import os

NAME = "CUDA_VISIBLE_DEVICES"
BEFORE = (
    "OUTLIERLENS_GPUS"  # what it was, for pytest's workers, which start with what is hidden; "all" where it was not set
)


def hide() -> None:
    """Let this process and those that it starts see none."""
    os.environ.setdefault(BEFORE, os.environ.get(NAME, "all"))
    os.environ[NAME] = ""


def shown() -> dict[str, str]:
    """The environment of a process that sees them."""
    found = {key: value for key, value in os.environ.items() if key != NAME}
    return found if found[BEFORE] == "all" else found | {NAME: found[BEFORE]}
