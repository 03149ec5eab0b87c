"""What the docs say is so: commands exist, links lead somewhere, code runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import plain_english
import pytest

import outlierlens
from documented import ROOT, command_of, options_in, options_of
from outlierlens.cli.app import read

OTHERS = ("README", "CONTRIBUTING", "AGENTS", "SECURITY", "examples/README", "benchmarks/README")
PAGES = [*(ROOT / f"{name}.md" for name in OTHERS), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    """Commands in blocks with all that the command line checks before it runs; those within the text by their options."""
    text = page.read_text("utf-8")
    lines = [line[2:] for block in blocks(text, "console") for line in block.splitlines() if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "outlierlens":
            command, left = command_of(words)
            acting = {
                "-h",
                "--help",
                "--version",
                "--install-completion",
                "--show-completion",
            }  # would do what they say
            if acting & set(left):
                assert options_in(left) <= options_of(command), line
            else:
                read(words[1:])
    for line in re.findall(r"`(outlierlens [a-z][^`]*)`", text):
        command, left = command_of(shlex.split(line, comments=True))
        assert options_in(left) <= options_of(command), line
        if page in (
            ROOT / "README.md",
            ROOT / "docs" / "which-command.md",
        ):  # to be typed with a name in place of MODEL
            read(shlex.split(line)[1:])


def test_what_users_read_has_no_phrase_that_trips_them() -> None:
    assert plain_english.findings() == []


# habit: (what it finds, what it leaves alone)
LINES = {
    "a for per": ("a script a figure", "one scale per tensor, as a row"),
    "of a for per": ("Tokens of a text at most.", "Tokens per text, or those of every text"),
    "as many": ("random sets of as many dimensions", "at least as much damage, as many as before"),
    "is no": ("F1 is no mean over texts", "there is no token, and it is no longer than that"),
    "beside": ("the tables say where a number of the paper stands beside", "no file beside the weights"),
    "off": ("How dimensions go off in all layers", "labels of words that were cut off"),
    "stands out": ("What stood out at the first recorded step", "read the standing order out loud"),
    "participle as a noun": ("What is kept stays in 16 bits", "what is the share of it?"),
    "clause as a noun": ("a mean of what goes into the first block", "shows what breaks, and what to do"),
    "predicate in front": ("Drawn are the 40 largest.", "Seed is 3. It was drawn once."),
    "told of": ("a progress that is told of training", "Tell the top from the rest of them"),
    "things that speak": ("the rule wants both lists", "the files say 12 layers"),
    "sink or swim": ("It depends on who shares a step", "It depends on the seed"),
    "rounded": ("all rounded, or a spare one", "values rounded to three digits"),
    "at most behind": ("Texts in the folder at most.", "At most N texts"),
    "semicolons": ("it reads one; it writes two; it turns three; it ends", "it reads one; it ends"),
    "sought": ("The fewest edits are sought", "those that seek edits"),
    "so": ("edits that multiply a loss so.", "edits that multiply it so that it doubles"),
    "say whether": ("Say whether a word means the same", "They say whether a word means it"),
    "goes on": ("it goes on where it stopped", "training goes on for an epoch"),
}


def test_every_habit_has_its_lines() -> None:
    assert list(LINES) == list(plain_english.COMPILED)


@pytest.mark.parametrize("habit", LINES)
def test_a_habit_is_found_and_plain_sentences_are_not(habit: str) -> None:
    pattern, _ = plain_english.COMPILED[habit]
    found, left = LINES[habit]
    assert pattern.search(found), found
    assert not pattern.search(left), left


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page in PAGES:
        for target in re.findall(
            r"^\$ make ([a-z]+)\b", "".join(blocks(page.read_text("utf-8"), "console")), re.MULTILINE
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_names_in_the_readme_s_python_exist() -> None:
    (code,) = blocks((ROOT / "README.md").read_text("utf-8"), "python")
    compile(code, "README.md", "exec")
    names = set(re.findall(r"\bol\.(\w+)", code))
    assert len(names) >= 5
    assert names <= set(outlierlens.__all__)


@pytest.mark.real
def test_one_dimension_of_smollm2_breaks_it_and_a_random_one_does_not(sample: Any) -> None:
    from outlierlens import ablate, load_model, read_texts
    from outlierlens.options import AblateOptions

    loaded = load_model(sample("smollm2-135m"))
    texts = read_texts("excerpt", limit=2)
    options = AblateOptions(modes=("zero",), n_random=1, n_matched=0)
    damage = ablate(loaded, texts, [507], options)
    assert damage.chosen.change.value > 6.9  # perplexity × 1,000
    assert damage.families[0].median < 0.05
    verdicts = {reply.off: [blank.kind for blank in reply.fill.blanks] for reply in damage.replies if reply.fill}
    assert verdicts["chosen"].count("same") < verdicts["random"].count("same")
