"""The last line of the pages by hand that have one: which terms of the glossary it uses, each a link."""

import re
from collections.abc import Iterator
from pathlib import Path

from _site.names import PAGES

LINE = re.compile(r"\n+\*Terms: [^\n]*\*\n\Z")
# By the heading of docs/concepts.md that explains it: what a page says where it uses the term.
TERMS = {
    "hidden vector": r"hidden (?:vector|state)s?",
    "stream": r"(?:residual )?streams?",
    "layer norm": r"(?:layer )?norms?",
    "standing out": r"z-scores?|\d σ",
    "switching off": r"switch(?:es|ed)? \S+ off|switched off",
    "nats": r"nats?",
    "perplexity": r"perplexity",
    "interval": r"intervals?",
    "random and matched sets": r"random (?:set|pair|triple|dimension|one)s?|matched|ordinary",
    "rank p": r"rank p",
    "massive activation": r"massive activations?",
    "attention sink": r"(?:attention )?sinks?",
    "scale of a format": r"(?:scale|step) (?:a|per) (?:tensor|channel|token)",
    "headroom": r"headroom",
    "anisotropy": r"anisotropy",
    "clipping": r"clip(?:s|ped|ping)?",
    "fingerprint": r"fingerprints?",
}
GUIDES = {f"{name}.md" for name in ["find", "matter", "rank", "trace", "sinks", "frequency", "embeddings", "fp16"]}
GENERATED = {*GUIDES, "cli.md", "architectures.md", "examples.md", "concepts.md", *PAGES}


def lines(docs: Path) -> Iterator[tuple[Path, str]]:
    """(page, its text with a fresh line of terms) of the pages that have one."""
    for path in sorted(docs.rglob("*.md")):
        page = path.relative_to(docs)
        text = path.read_text("utf-8")
        if page.parts[0] != "cli" and page.as_posix() not in GENERATED and LINE.search(text):
            yield path, line(text, "../" * (len(page.parts) - 1))


def line(text: str, up: str) -> str:
    """The text with its line of terms as it must be."""
    text = LINE.sub("\n", text)
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    used = [one for one, words in TERMS.items() if re.search(rf"\b(?:{words})\b", prose, re.IGNORECASE)]
    linked = " · ".join(f"[{one}]({up}concepts.md#{one.replace(' ', '-')})" for one in ("dimension", *used))
    return f"{text.rstrip()}\n\n*Terms: {linked}*\n"
