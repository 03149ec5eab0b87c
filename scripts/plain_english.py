"""Find turns of phrase that readers stumble over, in all that a user reads: help, messages, reports, docs.

    python scripts/plain_english.py          # one line per finding; exit code 1 if there is any

Texts are those of `src` (messages, sentences of reports, templates, and what stands below fields: help and heads of columns),
of `docs`, README, CONTRIBUTING and the pages of examples and benchmarks, without code and quotations. CONTRIBUTING.md has the
rules.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNIT = (
    "layer|token|text|tensor|channel|batch|set|dimension|split|task|run|row|line|seed|figure|table|paper|page|model|block|neuron"
    "|head|second|minute|hour|pass|file|folder|sentence|command|example|experiment|process|machine|worker|value|position|corpus"
    "|name|answer|question|kind|format|tool|recipe|checkpoint|step|pair|word|data set|result|test|group|part|section|report"
)
THING = (
    "script|scale|step|row|file|folder|probe|line|text|command|bar|point|panel|chart|table|page|value|number|dot|column|pass|set"
    "|model|class|picture|run|report|test|mean|vector|weight|draw|entry|load|evaluation|parameters|dimension|line|token|sentence"
)
# What is wrong, what to write instead.
PATTERNS = {
    rf"\b(?:[Aa]n?|[Oo]ne|[Tt]wo|three|four|five|ten|twelve|\d+) (?:[\w-]+ )?(?:{THING})s? an? (?:{UNIT})\b": (
        'write "per": one scale per tensor'
    ),
    r"(?<!, )\bso (?:many|few)\b(?! (?:that|as)\b)": 'write the number, or "N"',
    r"\b(?:is|are|was|were) sought\b": "write who finds it: `attack` finds",
    r"\b(?:multipl\w+|chang\w+|los\w+|fall\w*) (?:\w+ ){0,3}so(?=[.;:]|$)": 'say by how much, or "by that factor"',
    r"^Say (?:whether|which|how|what|where|when)\b": "begin a description with what it does: Compare, Find, Measure",
    r"\bas many (?:\w+ )?at random\b": 'write "random sets of the same size"',
    r"\brank p of the chosen\b": 'write "rank p = 0.05"',
    r"\bstands? beside(?=[.;:,]|$)": 'write "is given beside it"',
    r"\bsays? nothing (?:about|of|on)\b": 'write "does not tell", or "does not predict"',
    r"\b[Ii]t depends on who\b": "name what decides",
    r"\bto touch it all\b": "say what it does",
    r"\bwhat (?:is|was) there already\b": 'write "what exists"',
    r"\bwho(?:ever)? shares a\b": "name what is shared",
    r"\bTell so\b": 'write "The N strongest"',
    r"\bgo(?:es)? (?:on|further) where it (?:was|stopped|ended)\b": 'write "continues where it stopped"',
    r"\bthat (?:it|they) (?:is|are|was|were) (?:able|possible)\b": "say it in fewer words",
}
COMPILED = {re.compile(one, re.MULTILINE): better for one, better in PATTERNS.items()}


def texts() -> Iterator[tuple[str, str]]:
    """(file and line, text) of all that a user reads."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield from of_code(path)
    for path in sorted((ROOT / "src").rglob("*.html*")):
        yield (
            path.relative_to(ROOT).as_posix(),
            re.sub(r"<(style|script).*?</\1>|<[^>]*>|\{[%{].*?[%}]\}", " ", path.read_text("utf-8"), flags=re.DOTALL),
        )
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")]
    for path in [*pages, *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, part in paragraphs(path.read_text("utf-8")):
            yield f"{path.relative_to(ROOT).as_posix()}:{number}", part


def of_code(path: Path) -> Iterator[tuple[str, str]]:
    """The texts of a module: all but docstrings, and in options the help below a field too."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            first = [one for one in body[:1] if isinstance(one, ast.Expr)]
            docstrings.update(id(one.value) for one in first)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", node.value
        elif isinstance(node, ast.JoinedStr):
            said = "".join(str(one.value) if isinstance(one, ast.Constant) else "N" for one in node.values)
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", said


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of the paragraphs, rows of tables and items of a page, without code."""
    number, gathered, code = 1, [], False
    for place, line in enumerate([*page.splitlines(), ""], 1):
        code ^= line.startswith("```")
        if code or line.startswith("```"):
            continue
        if gathered and re.match(r"\s*(?:$|[-*|>#]|\d+\.)", line):
            yield number, " ".join(gathered)
            gathered = []
        if line.strip():
            number = number if gathered else place
            gathered.append(re.sub(r"`[^`]*`|“[^”]*”", "`x`", line.strip()))


def findings() -> list[str]:
    """A line per finding: where, what, what to write instead."""
    return [
        f"{where}: {found[0]!r}: {better}"
        for where, text in texts()
        for pattern, better in COMPILED.items()
        for found in pattern.finditer(text)
    ]


def main() -> int:
    found = findings()
    print(*found, sep="\n", end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
