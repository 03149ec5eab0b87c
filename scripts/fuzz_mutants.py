"""Changed copies of a file: bits, lengths, numbers, names and nesting, drawn by a seeded generator.

    mutant(seeds, random.Random(7))          # (content, the seed that it came of)

A seed is what is inside a file and how the file is made of it, so that checksums and lengths around a change can be right.
"""

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any


def same(content: bytes) -> bytes:
    """What it is given."""
    return content


@dataclass(frozen=True)
class Seed:
    """`wrap` makes a file of `content`."""

    content: bytes
    wrap: Callable[[bytes], bytes] = same


WHOLE = (
    0, 1, 2, 3, 7, 8, 63, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**62, 2**63 - 1, 2**64 - 1,
)  # fmt: skip
NUMBERS = (
    "0", "-1", "1", "-0.0", "1e308", "1e999", "-1e999", "1e-320", "NaN", "Infinity", "-Infinity", "nan", "inf", "true", "null",
    "", "9" * 30, "9" * 400, "9" * 5000, "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "1_000",
    "0x10", "1000000000", "10000000000000",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**53 + 1, 2**63, 2**64, 10**30,
    10**400, "", "x", "0", "-1", "../x", "/etc/passwd", "\ud800", "\0", "a\nb", "x" * 100_000, "é" * 300, [], {}, [[]], [{}],
    {"": {}}, [1, [2]], [None], ["x"], {"a": 1}, [0] * 1000, [[0] * 10] * 10,
)  # fmt: skip
DEEP = 100_000
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb'"[^"\n]*"|\w+')


def mutant(seeds: Sequence[Seed], random: Random) -> tuple[bytes, int]:
    """A changed content, and the number of the seed whose `wrap` makes a file of it."""
    number = random.randrange(len(seeds))
    return changed(seeds[number].content, random, seeds), number


def changed(content: bytes, random: Random, seeds: Sequence[Seed]) -> bytes:
    """`content` after one to four changes, most often one."""
    ways = [_in_bytes]
    if (text := _is_text(content)) is not None:
        ways += [_in_text, _in_text]
        if _is_json(text):
            ways += [_in_json, _in_json, _in_json]
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        way = random.choice(ways)
        content = _spliced(content, random, seeds) if random.random() < 0.05 else way(content, random)
    return content


def _is_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text.split("\n", 1)[0] or text)
    except (ValueError, RecursionError):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
    return True


# --- bytes -------------------------------------------------------------------------------------------------------


def _in_bytes(content: bytes, random: Random) -> bytes:
    return random.choice(
        (_flipped, _flipped, _extreme, _extreme, _integer, _integer, _cut, _doubled, _without, _put_in)
    )(bytearray(content or b"\0"), random)


def _flipped(raw: bytearray, random: Random) -> bytes:
    raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return bytes(raw)


def _extreme(raw: bytearray, random: Random) -> bytes:
    raw[random.randrange(len(raw))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return bytes(raw)


def _integer(raw: bytearray, random: Random) -> bytes:
    """A whole number of 2, 4 or 8 bytes set to an extreme, where lengths and counts often stand."""
    width = random.choice((2, 4, 8))
    value = random.choice(WHOLE) & (2 ** (8 * width) - 1)
    place = random.randrange(max(1, min(len(raw), random.choice((64, 512, len(raw)))) - width + 1))
    raw[place : place + width] = value.to_bytes(width, random.choice(("little", "big")))
    return bytes(raw)


def _cut(raw: bytearray, random: Random) -> bytes:
    return bytes(raw[: random.randrange(len(raw))])


def _span(raw: bytearray, random: Random) -> tuple[int, int]:
    start = random.randrange(len(raw))
    return start, min(len(raw), start + random.choice((1, 2, 4, 8, 16, 100, len(raw))))


def _doubled(raw: bytearray, random: Random) -> bytes:
    start, end = _span(raw, random)
    return bytes(raw[:end] + raw[start:end] * random.choice((1, 1, 3, 50)) + raw[end:])


def _without(raw: bytearray, random: Random) -> bytes:
    start, end = _span(raw, random)
    return bytes(raw[:start] + raw[end:])


def _put_in(raw: bytearray, random: Random) -> bytes:
    place = random.randrange(len(raw) + 1)
    more = random.choice(
        (random.randbytes(random.randrange(1, 9)), b"\0" * 8, b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n")
    )
    return bytes(raw[:place] + more + raw[place:])


def _spliced(content: bytes, random: Random, seeds: Sequence[Seed]) -> bytes:
    """The beginning of one and the end of another."""
    other = random.choice(seeds).content
    return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]


# --- text --------------------------------------------------------------------------------------------------------


def _in_text(content: bytes, random: Random) -> bytes:
    return random.choice((_number, _number, _word, _words, _line, _nested))(content, random)


def _replaced(content: bytes, found: re.Match[bytes], by: bytes) -> bytes:
    return content[: found.start()] + by + content[found.end() :]


def _number(content: bytes, random: Random) -> bytes:
    places = list(_NUMBER.finditer(content))
    return _replaced(content, random.choice(places), random.choice(NUMBERS).encode()) if places else content


def _word(content: bytes, random: Random) -> bytes:
    """A word or a string in quotes becomes something else."""
    places = list(_WORD.finditer(content))
    value = random.choice(VALUES)
    by = random.choice((json.dumps(value), str(value))).encode("utf-8", "surrogatepass")
    return _replaced(content, random.choice(places), by) if places else content


def _words(content: bytes, random: Random) -> bytes:
    """One word takes the place of another: names stand twice, kinds change."""
    places = list(_WORD.finditer(content))
    return _replaced(content, random.choice(places), random.choice(places)[0]) if places else content


def _line(content: bytes, random: Random) -> bytes:
    """A line goes, comes twice, or moves."""
    lines = content.split(b"\n")
    taken = lines.pop(random.randrange(len(lines)))
    for _ in range(random.randrange(3)):
        lines.insert(random.randrange(len(lines) + 1), taken)
    return b"\n".join(lines)


def _nested(content: bytes, random: Random) -> bytes:
    place = random.choice([0, len(content), *(found.start() for found in _WORD.finditer(content))])
    depth = random.choice((2, 100, DEEP))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b'"', b'"')))
    return content[:place] + opening * depth + content[place:] + closing * random.choice((0, depth))


# --- JSON --------------------------------------------------------------------------------------------------------


def _in_json(content: bytes, random: Random) -> bytes:
    """A change of one value of a document, or of one of its lines, where these are documents."""
    try:
        return _dumped(_in_document(json.loads(content), random))
    except (ValueError, RecursionError):
        lines = content.split(b"\n")
        number = random.randrange(len(lines))
        try:
            lines[number] = _dumped(_in_document(json.loads(lines[number]), random))
        except (ValueError, RecursionError):
            return _in_text(content, random)
        return b"\n".join(lines)


def _dumped(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=True).encode()


def _in_document(document: Any, random: Random) -> Any:
    """`document` with a value replaced, removed, moved to another name, or put into another place."""
    places = list(_places(document))
    if not places:
        return random.choice(VALUES)
    holder, key = random.choice(places)
    act = random.random()
    if act < 0.15:
        del holder[key]
    elif act < 0.3:
        other, there = random.choice(places)
        holder[key] = other[there]
        if _is_cyclic(document):
            holder[key] = None
    elif act < 0.4 and isinstance(holder, dict):
        holder[random.choice(("", "x", "__metadata__", "\ud800", f"{key}.{key}", key.upper()))] = holder.pop(key)
    elif act < 0.5 and isinstance(holder, list):
        holder.extend([holder[key]] * random.choice((1, 10, 1000)))
    else:
        holder[key] = random.choice(VALUES)
    return document


def _is_cyclic(document: Any) -> bool:
    try:
        json.dumps(document)
    except (ValueError, RecursionError):
        return True
    return False


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(object or list, key or number) of everything in a document."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


# --- checksums ---------------------------------------------------------------------------------------------------


def length_first(content: bytes, behind: bytes) -> bytes:
    """As safetensors has it: 8 bytes say how long a header is, and values follow."""
    return struct.pack("<Q", len(content)) + content + behind
