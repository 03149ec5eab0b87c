"""What messages tell a user to do can be done as printed: commands parse, options exist, extras bring what is missing."""

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import every_command
import outlierlens
from documented import ROOT, command_of, options_in, options_of
from gold.commands import spelt
from outlierlens import errors
from outlierlens.cli.app import read
from outlierlens.cli.experiment import resumable
from outlierlens.experiments import BY_NAME

SOURCE = Path(outlierlens.__file__).parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
NOT_FOR_USERS = {"all", "dev", "docs", "crosscheck"}
HOLE = "…"  # for what a message fills in
# Where a message tells to type a command of ours, rather than talks about the program.
TYPED = re.compile(r"(?:\brun: |\bwith: |\bwith |\bor run |`|\()(outlierlens [^`;,()]*)")


def said(node: ast.AST) -> str | None:
    """The text of a literal, with a mark where a value is put in; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) or HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = said(node.left), said(node.right)
        return None if left is None and right is None else (left or HOLE) + (right or HOLE)
    return None


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def messages(inside: type[ast.AST] | None = None) -> Iterator[tuple[str, str]]:
    """(file and line, text) of every text in the source but docstrings; only those in nodes of a kind, where one is named."""
    for name, tree in trees().items():
        seen: set[int] = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                seen.update(map(id, ast.walk(body[0])))  # a docstring
        for root in [tree] if inside is None else [node for node in ast.walk(tree) if isinstance(node, inside)]:
            for node in ast.walk(root):
                text = None if id(node) in seen else said(node)
                if text is not None:
                    seen.update(map(id, ast.walk(node)))
                    yield f"{name}:{node.lineno}", text  # type: ignore[attr-defined]


def tables() -> Iterator[tuple[str, str]]:
    """(name, text) of every table of data."""
    return ((path.name, path.read_text("utf-8")) for path in sorted((SOURCE / "data_files").glob("*.toml")))


def typed_commands() -> list[tuple[str, str]]:
    return [(where, line) for where, text in (*messages(), *tables()) for line in TYPED.findall(text)]


def test_every_command_that_a_message_names_parses() -> None:
    found, texts = typed_commands(), dict((*messages(), *tables()))
    assert len(found) >= 20
    for where, line in found:
        words = shlex.split(line.partition(" on the ")[0])
        if words[1].strip(":") == HOLE:  # a page's own title
            continue
        command, left = command_of(words)
        assert options_in(left) <= options_of(command), f"{where}: {line}"
        if f"run: {line}" in texts[where]:  # to be pasted: with all its arguments
            read(words[1:])


def test_a_value_in_a_command_is_quoted() -> None:
    """Where a command that a message names holds a value, `command` has put it there."""
    found = {
        line.strip() for _, line in typed_commands() if HOLE in line and not line.startswith(f"outlierlens {HOLE}:")
    }
    assert found == {f"outlierlens fetch {HOLE}"}  # names of samples


@pytest.mark.parametrize("name", every_command.RUNS)
def test_the_command_that_an_interrupted_run_prints_is_the_one_that_ran(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "it's  my\nrows.jsonl"
    rows.touch()
    words = [*name.split(), *every_command.RUNS[name]]
    monkeypatch.setattr("sys.argv", ["outlierlens", *words, "--overwrite"])
    with pytest.raises(SystemExit), resumable(rows):
        raise KeyboardInterrupt
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    line = told.rstrip("\n").partition("continue with: ")[2]
    assert shlex.split(line) == ["outlierlens", *words]
    read(shlex.split(line)[1:])


def test_a_printed_command_holds_paths_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["frequency", "my model", "--data", "it's  a --overwrite.txt", "--tokens", "-o", '$(x)"`.parquet']
    monkeypatch.setattr("sys.argv", ["outlierlens", *words])
    with pytest.raises(SystemExit), resumable(tmp_path):
        raise KeyboardInterrupt
    line = capsys.readouterr().err.rstrip("\n").partition("continue with: ")[2]
    said = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["outlierlens", *words]


def test_every_option_that_an_error_names_exists() -> None:
    known = set().union(*map(spelt, BY_NAME))
    theirs = {
        "--install-completion",
        "--head",
        "--local-dir",
        "--merge",
        "--upgrade",
        "--help",
    }  # of `ray start`, hf, llama-gguf-split, pip and every command
    named = {
        (where, one) for where, text in messages(ast.Raise) for one in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
    }
    assert len(named) > 50
    assert {(where, one) for where, one in named if one not in known | theirs} == set()


def calls(function: str) -> Iterator[tuple[str, ast.Call]]:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                yield f"{name}:{node.lineno}", node


@cache
def brings(extra: str) -> frozenset[str]:
    """Distributions that the base install and `extra` bring, by pyproject.toml and by what these packages require."""
    found: set[str] = set()
    todo = [("outlierlens", extra)]
    base = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    done = set()
    while todo:
        name, asked = todo.pop()
        if (name, asked) in done:
            continue
        done.add((name, asked))
        found.add(name)
        if name == "outlierlens":
            lines = [*base, *(EXTRAS[asked] if asked else ())]
        else:
            lines = metadata.requires(name) or []
        for line in lines:
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"extra": asked}):
                todo += [(canonical(one.name), more) for more in ("", *one.extras)]
    return frozenset(found)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_library_that_is_asked_for_comes_with_the_extra_that_is_named() -> None:
    packages = metadata.packages_distributions()
    found = 0
    for where, call in calls("need"):
        library, extra = (said(one) for one in call.args[:2])
        assert extra is not None, where
        assert extra == "" or extra in EXTRAS.keys() - NOT_FOR_USERS, f"{where}: {extra}"
        if not library or HOLE in library or where.startswith("analyses/ray_pool"):  # ours; or the remedy is its own
            continue
        module = library.split(".")[0]
        have = {canonical(one) for one in packages.get(module, [])}
        assert have & brings(extra), f"{where}: {module} does not come with {extra or 'the base install'}"
        found += 1
    assert found > 50
    for where, call in calls("install"):
        (extra,) = (said(one) for one in call.args) if call.args else ("",)
        assert extra is None or extra == "" or extra in EXTRAS, where


def test_the_remedy_is_said_in_one_place_and_names_no_index() -> None:
    assert errors.install("models") == "run in a clone of outlierlens: pip install '.[models]'"
    assert errors.install() == "run in a clone of outlierlens: pip install ."
    for where, text in messages():
        assert where.startswith("errors.py") or not re.search(r"pip install '?(\.|outlierlens)", text), where


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.[my][da]*"))],
    ids=lambda path: path.name,
)
def test_what_a_page_tells_to_install_exists(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "outlierlens[" not in text.replace("/outlierlens[", "")  # no index has it
    assert not re.search(r"pip install outlierlens\b", text)
    for asked in re.findall(r"'(?:\.|/\S*outlierlens)\[([\w,]+)\]'", text):
        assert set(asked.split(",")) <= EXTRAS.keys(), asked


def test_what_a_user_installs_is_used() -> None:
    base = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    asked = [*base, *(line for name in EXTRAS.keys() - NOT_FOR_USERS for line in EXTRAS[name])]
    wanted = {canonical(Requirement(line).name) for line in asked} - {"outlierlens"}
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    named = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    named |= {
        said.partition(".")[0] for node in nodes if (said := getattr(node, "value", None)) and isinstance(said, str)
    }
    packages = metadata.packages_distributions().items()
    used = {canonical(one) for module, homes in packages if module in named for one in homes}
    assert wanted - used == {"accelerate"}  # which transformers asks for, where it trains or spreads a model
    assert {"scikit-learn", "pytest", "sphinx"} & wanted == set()


def test_all_is_all_that_a_user_can_use_and_nothing_for_developers() -> None:
    everything = brings("all")
    for extra in EXTRAS.keys() - NOT_FOR_USERS:
        assert brings(extra) <= everything, extra
    assert {"gradio", "torch", "onnx", "gguf", "pillow", "soundfile", "ray"} <= everything
    assert not {"pytest", "mypy", "sphinx", "torchao", "playwright"} & everything


def test_the_base_install_reads_gguf_and_stays_light() -> None:
    base = brings("")
    assert "gguf" in base
    assert not {"torch", "transformers", "scipy", "pandas", "onnx", "gradio"} & base


def test_the_quickstart_installs_what_its_steps_need() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    (extras,) = re.findall(r"\$ pip install '\.\[([\w,]+)\]'", text)
    have = frozenset().union(*map(brings, extras.split(",")))
    for need in ("torch", "transformers", "gguf", "vl-convert-python"):
        assert need in have
    assert ("gradio" in have) == ("outlierlens explore" in text)
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert f"pip install '.[{extras}]'" in page.read_text("utf-8"), page.name
