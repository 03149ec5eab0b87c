"""Find turns of phrase that readers stumble over, in all that a user reads: help, messages, reports, docs.

    python scripts/plain_english.py          # one line per finding; exit code 1 if there is any
    python scripts/plain_english.py --count  # the number of findings per habit

Texts are those of `src` (messages, sentences of reports, templates, and what stands below fields: help and heads of columns),
of `docs`, README, CONTRIBUTING and the pages of examples, benchmarks and skills, without code and quotations. A pattern is
built from classes of words, so that it finds a habit and not a phrase. CONTRIBUTING.md has the rules.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNIT = (
    "layer|token|text|tensor|channel|batch|set|dimension|split|task|run|row|line|seed|figure|table|paper|page|model|block|neuron"
    "|head|second|minute|hour|pass|file|folder|sentence|command|example|experiment|process|machine|worker|value|position|corpus"
    "|name|answer|question|kind|format|tool|recipe|checkpoint|step|pair|word|data set|result|test|group|part|section|report"
    "|class|record|image|window"
)
THING = (
    "script|scale|step|row|file|folder|probe|line|text|command|bar|point|panel|chart|table|page|value|number|dot|column|pass|set"
    "|model|class|picture|run|report|test|mean|vector|weight|draw|entry|load|evaluation|parameters|dimension|line|token|sentence"
    "|label|request|byte|bit|sample|sub-folder|object|exponent|position"
)
COUNTED = "[Tt]okens|[Tt]exts|[Rr]ows|[Ee]xamples|CPUs|GPUs|[Rr]equests|[Mm]odels|[Bb]ytes|[Ss]econds|[Ss]teps|[Ss]ets|[Dd]raws"
PARTICIPLE = (  # words in -ed, and the irregular ones that this project uses
    r"(?:\w+ed|kept|said|read|told|left|given|held|chosen|made|seen|written|found|lost|drawn|taken|known|asked|shown|put|fed|set)"
)
BE = r"(?:is|are|was|were)"
START = r"(?:^|(?<=[.;:] )|(?<=[.;:]\n))"
PLACE = (  # what something can lie beside
    r"(?:it|them|itself|N|`x`|this (?:one|page|file)|(?:the|a|an|its|their|each|that|one) (?:[\w.-]+ )?"
    r"(?:file|weights|folder|table|checkpoint|report|page|model|script|config|tokenizer)s?)\b"
)
# {habit: (pattern, what to write instead)}
HABITS = {
    "a for per": (
        rf"\b(?:[Aa]n?|[Oo]ne|[Tt]wo|three|four|five|ten|twelve|\d+|N) (?:[\w-]+ )?(?:{THING})s? an? (?:{UNIT})\b"
        rf"|\b(?:{THING})s an? (?:second|class|token|text|word|channel)\b|\b(?:than|by|at) N an? (?:{UNIT})\b",
        'write "per": one scale per tensor',
    ),
    "of a for per": (
        rf"^(?:{COUNTED})(?: \([^)]*\))? (?:of|in) (?:an?|one|each) (?:[a-z]+ )?(?:{UNIT})s?\b(?! of)",
        'write "per": Maximum number of tokens per text',
    ),
    "as many": (
        r"(?<!at least )\b(?:[Aa]s|so) (?:many|much|few)\b(?! (?:that|as)\b)",
        'write the number, "N", or "the same number of"',
    ),
    "is no": (
        rf"(?<!there )(?<!There )\b{BE} no (?!longer|more|less|better|worse|other|one\b|\w+er\b)(?=[a-z`])",
        'write "is not a"',
    ),
    "beside": (rf"\b[Bb]eside\b(?! {PLACE})", 'write "against", "compared with", "next to" or "as well as"'),
    "off": (
        r"\b[Ss]witch\w*(?: [\w'-]+){0,3} off\b|\bgo(?:es)?(?: \w+)? off\b|\b[Oo]ff in\b"
        r"|\b(?:dimensions?|outliers|ones|neurons?|sets?|layers?|each|it|them|these|those|this|all|N|parameters|size) "
        r"(?:are |is |each )?off\b"
        r"|\b(?:found|median|percentile|nothing|held at zero), ?off\b|\bset off\b",
        'write "ablate", "ablated"',
    ),
    "stands out": (r"\b(?:stand(?:s|ing)?|stood) out\b", 'write "is an outlier"'),
    "participle as a noun": (
        rf"\b[Ww]hat (?:it |they )?(?:{BE}|has been|can be|must be)(?: \w+ly)? {PARTICIPLE}\b(?! to\b)"
        r"|\b[Tt]he (?:listed|named|kept|asked)\b(?=[.;:,]|$| (?:is|are)\b)",
        "name the thing: the weights in high precision",
    ),
    "clause as a noun": (
        r"\b[Ww]ho(?:ever|se child)\b|\bwho(?: \w+ly)? (?:reads|shares|asks|knows|measures)\b"
        rf"|\b(?:of|from|with|against|than|beside|among|by) what (?!to\b|follows\b)(?:{BE}|it|they|a|an|the|each|one|N|\w+s)\b",
        "name the thing or the person",
    ),
    "predicate in front": (
        rf"{START}(?=[A-Z])(?!Seed|Speed|Need|Feed)(?i:next|{PARTICIPLE}) {BE} (?!not\b)"
        rf"|{START}(?:Of|From) (?:each|every|these|those|two|hidden|several|images|texts|recordings|an?|one|the)\b",
        "put the subject first: Only the norm vectors are read",
    ),
    "told of": (
        r"\b(?:[Tt]old|tells?|[Ss]aid|says? (?:nothing|anything)|known|asked) of\b",
        'write "about", or name who says it',
    ),
    "things that speak": (
        r"\b(?:rules?|files?|definitions?|padding|tensors?|entries|scripts?|measures?) (?:asks?|wants?|knows?|tells?)\b"
        r"|\bsays? nothing (?:about|of|on)\b|\bis told of\b",
        'write what it requires or contains; "does not predict"',
    ),
    "sink or swim": (  # aphorisms and riddles
        r"\b(?:nobody's|another question|not mattering|to touch it all|is not your reason)\b|\b[Ii]t depends on who\b"
        r"|\bdoes without its\b|\bTell so\b|\bwhat (?:is|was) there already\b",
        "say the fact",
    ),
    "rounded": (
        r"\b(?:all|else|weights?|inputs?|linears?|model|keys and values|cannot be|not) (?:is |are |be )?rounded\b"
        r"|\b[Ss]pared?\b",
        'one word per concept: "quantized", "keep"',
    ),
    "at most behind": (r"^[A-Z][^.:;]*[a-z] at most(?=[.;]|$)", 'begin with "Maximum number of" or "At most N"'),
    "semicolons": (r";[^;.:|'\n]{4,};[^;.:|'\n]{4,};", "one thought per sentence: full stops"),
    "sought": (rf"\b{BE} sought\b", "write who finds it: `attack` finds"),
    "so": (
        r"\b(?:multipl\w+|chang\w+|los\w+|fall\w*) (?:\w+ ){0,3}so(?=[.;:]|$)",
        'say by how much, or "by that factor"',
    ),
    "say whether": (r"^Say (?:whether|which|how|what|where|when)\b", "begin with what it does: Compare, Find, Measure"),
    "goes on": (r"\b(?:go(?:es)?|went) (?:on|further) where\b|: the same command goes on\b", 'write "continues"'),
}
COMPILED = {habit: (re.compile(pattern, re.MULTILINE), better) for habit, (pattern, better) in HABITS.items()}


def texts() -> Iterator[tuple[str, str]]:
    """(file and line, text) of all that a user reads."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield from of_code(path)
    for path in sorted((ROOT / "src").rglob("*.html*")):
        yield (
            path.relative_to(ROOT).as_posix(),
            re.sub(r"<(style|script).*?</\1>|<[^>]*>|\{[%{#].*?[%}#]\}", " ", path.read_text("utf-8"), flags=re.DOTALL),
        )
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")]
    for path in [*pages, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "skills").rglob("*.md"))]:
        for number, part in paragraphs(path.read_text("utf-8")):
            yield f"{path.relative_to(ROOT).as_posix()}:{number}", part


def of_code(path: Path) -> Iterator[tuple[str, str]]:
    """The texts of a module: of docstrings the first sentence of public ones, and the help and heads below fields."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        docstrings.add(id(body[0].value))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node in tree.body and not node.name.startswith("_"):
            sentence = re.match(r".*?(?:[.:?](?=\s)|$)", ast.get_docstring(node) or "", re.DOTALL)
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", sentence[0] if sentence else ""
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


def findings() -> list[tuple[str, str, str, str]]:
    """(habit, place, words found, what to write instead) of every finding."""
    return [
        (habit, where, found[0], better)
        for where, text in texts()
        for habit, (pattern, better) in COMPILED.items()
        for found in pattern.finditer(text)
    ]


def main() -> int:
    found = findings()
    if "--count" in sys.argv:
        print(*(f"{number:5} {habit}" for habit, number in Counter(one[0] for one in found).most_common()), sep="\n")
    else:
        print(*(f"{where}: {words!r} ({habit}): {better}" for habit, where, words, better in found), sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
