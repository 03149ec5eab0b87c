"""Commands in the documentation: their options, and the program that has them."""

from pathlib import Path

from gold.commands import spelt
from outlierlens.cli.app import _spelt
from outlierlens.experiments import BY_NAME

ROOT = Path(__file__).parents[1]


def command_of(words: list[str]) -> tuple[str, list[str]]:
    """The command that a line calls, and its arguments."""
    words = [words[0], *_spelt(words[1:])]
    for n in (3, 2):
        name = " ".join(word.strip(",") for word in words[1:n])
        if name in {*BY_NAME, "replicate"}:
            return name, words[n:]
    assert len(words) == 1 or words[1].startswith("-"), " ".join(words)
    return "", words[1:]


def options_in(words: list[str]) -> set[str]:
    """The options among the words of a line."""
    return {word.partition("=")[0] for word in words if word.startswith("-")}


def options_of(name: str) -> set[str]:
    """The options that a command has; of the program, and of the group of papers, those that it has itself."""
    return {"--help", "-h"} | (
        spelt(name) if name in BY_NAME else {"--version", "--install-completion", "--show-completion"}
    )
