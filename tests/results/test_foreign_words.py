"""Names of models, files and words inside code, YAML and Markdown that others read: none of them leaves its place."""

import ast
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from markdown_it import MarkdownIt

import attack_results
import exported_results
import finetune_runs
import mask_results
import outlierlens
import repair_results
import synthetic_report
from outlierlens.analyses.prune_lists import ProtectOptions, protect
from outlierlens.analyses.prune_lists import Tool as ProtectTool
from outlierlens.architectures.stack import Stack, load_toml, to_toml
from outlierlens.checkpoints.samples import directory
from outlierlens.errors import command, comment, literal, markdown, shell
from outlierlens.experiments.attack import saving
from outlierlens.experiments.embedder import view as embedder
from outlierlens.experiments.mask.exports import WRITERS
from outlierlens.experiments.mask.exports import export as export_mask
from outlierlens.experiments.plan.exports import TOOLS, Target, export
from outlierlens.experiments.quantization.schemes import parse
from outlierlens.experiments.repair import measure as repair
from outlierlens.models.proposal.propose import Proposal
from outlierlens.report.card import card as report_card
from outlierlens.training.finetune import folder as finetune

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
)
NAMED = pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))


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
@pytest.mark.parametrize("tool", WRITERS)
def test_masks(tool: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str) -> str:
        found = mask_results.found()
        return export_mask(
            tool, replace(found, provenance=replace(found.provenance, model=name), data=name, layer=name, words=(name,))
        )

    assert_alike("toml" if tool == "heretic" else "python", made(name), made("mini"))
    if tool != "heretic":
        monkeypatch.chdir(tmp_path)
        (tmp_path / "written.py").write_bytes(made(name).encode("utf-8"))
        exec(compile((tmp_path / "written.py").read_bytes(), "written.py", "exec"), {})
        assert not (tmp_path / "canary").exists()


SCHEMES = {"auto-round": "int4-group64/none", "gguf": "int4-group32/none", "mlx": "int4-group64-asym/none"}
SCHEMES |= {"modelopt": "int8-channel/int8-tensor", "bitsandbytes": "int8-channel/int8-token"}


@NAMED
@pytest.mark.parametrize("tool", TOOLS)
def test_plans(tool: str, name: str) -> None:
    def made(name: str) -> str:
        target = Target(model=name, config={}, linears=("model.layers.0.a",), outside=(f"head {name}",))
        return export(tool, (), scheme=parse(SCHEMES.get(tool, "int8-tensor/int8-tensor")), target=target)

    kind = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(TOOLS[tool].suffix, "text")
    assert_alike(kind, made(name), made("mini"))


@pytest.mark.parametrize("tool", get_args(ProtectTool))
def test_lists_to_protect(tool: Any, tmp_path: Path) -> None:
    folders = tmp_path / "mini", tmp_path / f"m\n{RUNS.replace('/', '')} #\x1b[31m coding: utf-7"
    for folder in folders:
        shutil.copytree(directory("mini-planted"), folder)
    tame, hostile = (protect(str(folder), tool, ProtectOptions(dims=(3, 7))).text for folder in folders)
    assert_alike("yaml" if tool in ("sparsegpt", "llm-compressor") else "python", hostile, tame)


@NAMED
def test_rows_of_architectures(name: str, tmp_path: Path) -> None:
    stack = Stack(blocks=f"{name}.{{layer}}", last_linear=(name,), name=name)
    made = Proposal(name, (stack,), ({"blocks": name, "name": name},), (name,), name)
    text = made.toml
    assert all(one.isprintable() or one == "\n" for one in text)
    if "\udce9" in name:  # which no TOML holds
        return
    (tmp_path / "row.toml").write_text(text, "utf-8")
    (read,) = load_toml(tmp_path / "row.toml")
    assert (read.blocks, read.last_linear, read.name) == (stack.blocks, (name,), name)
    assert tomllib.loads(to_toml((stack,)))


def attacked(name: str) -> str:
    found = attack_results.attack()
    one = found.kinds[0]
    point = replace(one.points[1], edits=tuple(replace(edit, tensor=name) for edit in one.points[1].edits))
    hostile: Any = type("Loaded", (), {"name": name})
    return saving._card(hostile, found, replace(one, strongest=point) if hasattr(one, "strongest") else one)


def tuned(name: str) -> str:
    made = finetune_runs.tuned(task=f"classify {name}", base=name)
    made = replace(
        made, train=name, dev=name, settings={"off": name}, provenance=replace(made.provenance, command=name)
    )
    return finetune.card(made, made.seeds[0])


def exported(name: str) -> str:
    made = exported_results.exported()
    provenance = replace(made.provenance, model=name, command=name)
    return embedder.card(replace(made, provenance=provenance, folder=name, fit=name, notes=(name,)))


def reported(name: str) -> str:
    data = synthetic_report.report_data()
    return report_card(replace(data, provenance=replace(data.provenance, model=name, command=name), notes=(name,)))


def repaired(name: str) -> str:
    return repair._card(repair_results.repaired(), name)


CARDS: tuple[Callable[[str], str], ...] = (attacked, tuned, exported, reported, repaired)


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
    allowed = {"experiments/mask/exports.py", "experiments/embedder/view.py", "training/finetune/folder.py"}
    assert set(found) <= allowed | {"experiments/attack/saving.py", "report/card.py", "explore/space.py"}


def test_a_comment_is_one_line_and_names_no_encoding() -> None:
    assert comment("a\nb\u2028c", "d") == "# a b c d"
    assert comment("-*- coding: utf-7 -*-") == "# -*- coding : utf-7 -*-"
    assert comment("coding=latin-1") == "# coding =latin-1"


@NAMED
def test_a_literal_is_read_back_by_every_language(name: str) -> None:
    assert ast.literal_eval(literal(name)) == json.loads(literal(name)) == name
    assert json.loads(literal({name: [name, 1]}, indent=2)) == {name: [name, 1]}
    if "\ud800" not in name:
        assert yaml.safe_load(literal(name)) == name
        assert tomllib.loads(f"a = {literal(name)}") == {"a": name}


def test_markdown_by_hand() -> None:
    assert markdown("a|b_c\n[x](http://e.com) www.e.com") == r"a\|b\_c \[x\](http\://e.com) www\.e.com"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the command")
@NAMED
def test_a_shell_gets_the_words_back(name: str) -> None:
    words = [name.replace("\ud800", ""), "a  b", " c", "it's", "", "--x=é", "$HOME"]
    line = shell("printf", r"%s\0", *words)
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", line.encode("utf-8")], capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def test_a_command_without_control_characters_is_quoted_as_ever() -> None:
    assert command("scan", "a b", Path("it's/x")) == "outlierlens scan 'a b' 'it'\"'\"'s/x'"
    assert command("scan", "a\nb") == r"outlierlens scan $'a\012b'"
