"""Names of models, files and words inside code, YAML and Markdown that others read: none of them leaves its place."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from markdown_it import MarkdownIt

import embed_results
import explore_models
import finetune_runs
import hostile
import mask_results
import outlierlens
import repair_results
import synthetic_report
from browser import Page
from outlierlens.analyses import finetune
from outlierlens.analyses.embed_export import card as embed_card
from outlierlens.analyses.mask_exports import TOOLS as MASK_TOOLS
from outlierlens.analyses.mask_exports import export as export_mask
from outlierlens.analyses.plan import Reader
from outlierlens.analyses.plan_exports import Target, export
from outlierlens.analyses.prune_lists import ProtectOptions, protect
from outlierlens.analyses.prune_lists import Tool as ProtectTool
from outlierlens.analyses.quantize_rounding import KeptLinear
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.repair import card as repair_card
from outlierlens.architectures.experiment.derive import Derivation
from outlierlens.architectures.stack import Stack, load_toml, to_toml
from outlierlens.checkpoints.samples import directory
from outlierlens.cli.app import read
from outlierlens.errors import BadInput, command, comment, literal, markdown, shell
from outlierlens.explore import look
from outlierlens.models.load import LoadOptions
from outlierlens.report.both import ReportPair
from outlierlens.report.files import card as report_card
from outlierlens.report.files import write
from outlierlens.training.pretrain.recipe import read_recipe

SOURCE = Path(outlierlens.__file__).parent
RUNS = "__import__('os').system('touch canary')"
HOSTILE = (
    f"model\n{RUNS}  #",
    f"model\r{RUNS}\u2028{RUNS}\u2029{RUNS}\x85{RUNS}\x0b{RUNS}\x0c{RUNS}",
    f'"""\n{RUNS}\n"""',
    f"'\"\\\n{RUNS}\n\\",
    f"x coding: unicode_escape \\n{RUNS} #",
    f"x vim: set fileencoding=utf-7 : +AAo-{RUNS}",
    "!!python/object/apply:os.system ['touch canary']\n---\nkey: value\n- item",
    "a\x1b[31mb\x9b31m\x07 {{ 7 * 7 }} {% raw %} ${HOME} `id` $(id)",
    "# head\n\n# head\n<script>alert(1)</script> [l](http://e.com) ![i](http://e.com/i.png) <http://e.com> | a | `b`",
    "caf\udce9 \ud800 \u202e \U0001f600 é",
    "org/" + "a" * 10_000,
)
NAMES = (*HOSTILE, *(hostile.text(chance) for chance in hostile.chances("NAMES", 4)))
NAMED = pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))


def without_surrogates(text: str) -> str:
    """`text` without what has no UTF-8."""
    return text.encode("utf-8", "ignore").decode("utf-8")


def words_of(line: str) -> list[str]:
    """The words that a shell reads in a command."""
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}".encode()], capture_output=True, check=True)
    return [os.fsdecode(word) for word in said.stdout.split(b"\0")[:-1]]


def tags(page: str) -> list[Any]:
    """The elements of a page with the names of their attributes."""
    return [(tag, sorted(given)) for tag, given in Page(page).elements]


def shape(text: str) -> str:
    """Code as Python reads the file, without what its texts say."""
    tree = ast.parse(text.encode("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def keys(value: Any) -> Any:
    """A document without what its texts say."""
    if isinstance(value, dict):
        return {key: keys(one) for key, one in value.items()}
    return [keys(one) for one in value] if isinstance(value, list) else type(value)


def assert_alike(kind: str, hostile: str, tame: str) -> None:
    """Both texts say the same but for words; what could be run is run where a canary would be seen."""
    assert all(one.isprintable() or one == "\n" for one in hostile)
    if kind == "python":
        assert shape(hostile) == shape(tame)
    elif kind == "toml":
        assert keys(tomllib.loads(hostile)) == keys(tomllib.loads(tame))
    elif kind == "yaml":
        assert keys(yaml.safe_load(hostile)) == keys(yaml.safe_load(tame))
    elif kind == "json":
        assert keys(json.loads(hostile)) == keys(json.loads(tame))
    else:
        assert hostile.count("\n") == tame.count("\n")


@NAMED
@pytest.mark.parametrize("tool", MASK_TOOLS)
def test_masks(tool: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str) -> str:
        found = mask_results.found()
        origin, about = replace(found.provenance, model=name), replace(found.about, data=name)
        return export_mask(tool, replace(found, provenance=origin, about=about, words=(name,), path=name))

    assert_alike("toml" if tool == "heretic" else "python", made(name), made("mini"))
    if tool != "heretic":
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "dictionary_learning", SimpleNamespace(ActivationBuffer=object))
        (tmp_path / "written.py").write_bytes(made(name).encode("utf-8"))
        exec(compile((tmp_path / "written.py").read_bytes(), "written.py", "exec"), {})
        assert not (tmp_path / "canary").exists()


SCHEMES = {"auto-round": "int4-group64/none", "gguf": "int4-group32/none", "mlx": "int4-group64-asym/none"}
SCHEMES |= {"modelopt": "int8-channel/int8-tensor", "bitsandbytes": "int8-channel/int8-token"}


@NAMED
@pytest.mark.parametrize("tool", get_args(Reader))
def test_plans(tool: str, name: str) -> None:
    def made(name: str) -> str:
        linears = "model.layers.0.a", f"model.layers.0.{name}", f"model.layers.1.{name}"
        target = Target(model=name, config={}, linears=linears, outside=(f"head {name}",))
        kept = (KeptLinear(path=linears[2], weights=True, inputs=True),)
        scheme = parse(SCHEMES.get(tool, "int8-tensor/int8-tensor"))
        with suppress(BadInput):  # GGUF has no name for such a linear
            return export(tool, kept, scheme=scheme, target=target)[0]
        return export(tool, (), scheme=scheme, target=target)[0]

    kinds = {"llm-compressor": "yaml", "bitsandbytes": "json", "gguf": "text"}
    kind = kinds.get(tool, "python")
    assert_alike(kind, made(name), made("mini"))


@pytest.mark.parametrize("tool", get_args(ProtectTool))
def test_lists_to_protect(tool: Any, tmp_path: Path) -> None:
    folders = tmp_path / "mini", tmp_path / f"m\n{RUNS.replace('/', '')} #\x1b[31m coding: utf-7"
    for folder in folders:
        shutil.copytree(directory("mini-planted"), folder)
    tame, hostile = (protect(str(folder), tool, ProtectOptions(dims=(3, 7))).text for folder in folders)
    assert_alike("yaml" if tool == "sparsegpt" else "python", hostile, tame)


@NAMED
def test_rows_of_architectures(name: str, tmp_path: Path) -> None:
    stack = Stack(blocks=f"{name}.{{layer}}", last_linear=(name,), name=name)
    made = Derivation(name, (stack,), ({"blocks": name, "name": name},), (name,), name)
    text = made.toml
    assert all(one.isprintable() or one == "\n" for one in text)
    if name != without_surrogates(name):  # which no TOML holds
        return
    (tmp_path / "row.toml").write_text(text, "utf-8")
    (read,) = load_toml(tmp_path / "row.toml")
    assert (read.blocks, read.last_linear, read.name) == (stack.blocks, (name,), name)
    assert tomllib.loads(to_toml((stack,)))


def tuned(name: str) -> str:
    made = finetune_runs.tuned(task=f"classify {name}", base=name)
    provenance, about = replace(made.provenance, command=name), replace(made.about, data=name)
    made = replace(made, train=name, about=about, settings={"off": name}, provenance=provenance)
    return finetune.card(made, made.seeds[0])


def exported(name: str) -> str:
    made = embed_results.exported()
    provenance = replace(made.provenance, model=name, command=name)
    return embed_card(replace(made, provenance=provenance, folder=name, fit=name, notes=(name,)))


def reported(name: str) -> str:
    data = synthetic_report.report_data()
    return report_card(replace(data, provenance=replace(data.provenance, model=name, command=name), notes=(name,)))


def repaired(name: str) -> str:
    return repair_card(repair_results.repaired(), name)


CARDS: tuple[Callable[[str], str], ...] = (tuned, exported, reported, repaired)


def blocks(text: str) -> list[str]:
    """What a reader of Markdown sees of a card but for words, behind its front matter."""
    body = text.split("\n---\n", 1)[1] if text.startswith("---\n") else text
    tokens = MarkdownIt("commonmark", {"linkify": False}).enable("table").parse(body)
    inside = [child for token in tokens for child in token.children or ()]
    assert not {child.type for child in inside} & {"link_open", "image", "html_inline"}
    assert not [token for token in tokens if token.type == "html_block"]
    return [token.type for token in tokens]


@NAMED
@pytest.mark.parametrize("card", CARDS)
def test_cards(card: Callable[[str], str], name: str) -> None:
    tame, hostile = card("mini"), card(name)
    assert all(one.isprintable() or one == "\n" for one in hostile)
    assert blocks(hostile) == blocks(tame)
    if card is exported:
        (code,) = re.findall(r"(?m)^    model = (.*)$", hostile)
        assert eval(code, {"SentenceTransformer": lambda folder: folder}) == Path(name).name
    if tame.startswith("---\n"):
        front = [yaml.safe_load(text[4:].split("\n---\n")[0]) for text in (hostile, tame)]
        assert keys(front[0]) == keys(front[1])


def test_every_comment_and_heading_with_a_name_in_it_is_made_in_one_place() -> None:
    """In the source no text that begins a line with "# " puts a value behind it but by `comment` or `markdown`."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            said = "".join(one.value if isinstance(one, ast.Constant) else "\0" for one in node.values)
            if any(line.startswith("# ") and "\0" in line for line in said.split("\n")):
                found.append(path.relative_to(SOURCE).as_posix())
    # A number of dimensions; headings whose names were escaped before.
    allowed = {"analyses/mask.py", "analyses/embed_export.py", "analyses/finetune.py"}
    assert set(found) <= allowed | {"report/files.py"}


def test_a_comment_is_one_line_and_names_no_encoding() -> None:
    assert comment("a\nb\u2028c", "d") == "# a b c d"
    assert comment("-*- coding: utf-7 -*-") == "# -*- coding : utf-7 -*-"
    assert comment("coding=latin-1") == "# coding =latin-1"


@NAMED
def test_a_literal_is_read_back_by_every_language(name: str) -> None:
    assert ast.literal_eval(literal(name)) == json.loads(literal(name)) == name
    assert json.loads(literal({name: [name, 1]}, indent=2)) == {name: [name, 1]}
    if name == without_surrogates(name):
        assert yaml.safe_load(literal(name)) == name
        assert tomllib.loads(f"a = {literal(name)}") == {"a": name}


def test_markdown_by_hand() -> None:
    assert markdown("a|b_c\n[x](http://e.com) www.e.com") == r"a\|b\_c \[x\](http\://e.com) www\.e.com"


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the command")


@needs_bash
@NAMED
def test_a_shell_gets_the_words_back(name: str) -> None:
    held = without_surrogates(name.replace("\0", ""))[:5000] + "caf\udce9" * (
        "\udce9" in name
    )  # a file may be named so
    words = [held, "a  b", " c", "it's", "", "--x=é", "$HOME"]
    line = shell(*words)
    assert line.isprintable()
    assert words_of(line) == words


@needs_bash
@NAMED
def test_commands_of_a_report_are_about_that_model(name: str) -> None:
    """What a report tells to run is read by its command, and a model called --overwrite is no option."""
    held = without_surrogates(name.replace("\0", ""))[:5000] or "model"
    data = synthetic_report.report_data()
    (stack,) = data.scan.stacks
    damage = replace(data.damages[0], about=replace(data.damages[0].about, stack=held))
    scanned = replace(data.scan, stacks=(stack, replace(stack, stack=held)))
    data = synthetic_report.changed(data, scan=scanned, damages=(damage,))
    for model in (held, "-x", "--overwrite", "--"):
        where = replace(data.provenance, model=model)
        scan, seen, off = (replace(one, provenance=where) for one in (data.scan, data.observation, damage))
        found = synthetic_report.changed(data, provenance=where, scan=scan, observation=seen, damages=(off,))
        lines = [line for step in found.advice() for line in step.commands]
        lines += [line for step in ReportPair((found, found)).advice() for line in step.commands]
        lines.append(look.command(model, LoadOptions(), explore_models.explored().state, ("loss",)))
        assert len(lines) > 4
        for line in lines:
            _, *words = words_of(line)
            read(words)
            assert f"./{model}" * model.startswith("-") or model in words
    assert command("report", Path("-x")) == "outlierlens report ./-x"


def test_a_command_without_control_characters_is_quoted_as_ever() -> None:
    assert command("scan", "a b", Path("it's/x")) == "outlierlens scan 'a b' 'it'\"'\"'s/x'"
    assert command("scan", "a\nb") == r"outlierlens scan $'a\012b'"


@NAMED
def test_a_report_and_its_files(name: str, tmp_path: Path, no_picture_files: None) -> None:
    def made(name: str, folder: Path) -> dict[str, Any]:
        data = synthetic_report.report_data(
            observed=synthetic_report.observation(columns=4, tokens=(name, " the", "\n"))
        )
        (stack,) = data.scan.stacks
        stacks = replace(stack, stack=name), replace(stack, stack="model")
        scan = replace(data.scan, stacks=stacks, provenance=replace(data.scan.provenance, model=name), model_type=name)
        about = replace(data.provenance, model=name, command=name, libraries={"python": name})
        write(synthetic_report.changed(data, provenance=about, scan=scan, notes=(name,)), folder)
        texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.*")}
        return {path: tags(text) if path.endswith("html") else keys(json.loads(text)) for path, text in texts.items()}

    theirs = tmp_path / "theirs.html"
    theirs.write_text("theirs")
    assert made(name, tmp_path / "one") == made("mini", tmp_path / "other")
    assert theirs.read_text() == "theirs"
    assert {path.name for path in tmp_path.iterdir()} == {"theirs.html", "one", "other"}


@needs_bash
@NAMED
def test_what_the_live_page_gives_to_copy(name: str) -> None:
    found = explore_models.explored()

    held = without_surrogates(name.replace("\0", ""))[:2000]
    state = replace(found.state, text=held, stack=held or "model")
    words = words_of(look.command("mini", LoadOptions(revision=held or None, offline=True), state, ("loss",)))
    assert f"--text={held}" in words
    read(words[1:])


@NAMED
def test_recipes(name: str) -> None:
    recipe = read_recipe("mini-short")
    tame, made = (replace(recipe, name=one, about=one) for one in ("mini", name))
    assert_alike("toml", made.to_toml(), tame.to_toml()) if name == without_surrogates(name) else None
