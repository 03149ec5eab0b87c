"""Every error that a user can cause, in one tree; each message says what, where and the remedy.

OutlierlensError
├── BadFile                 a malformed, truncated or hostile file
│   └── NoSafetensors       a model on a hub in other formats alone, which ranges do not serve
├── BadInput                an argument that cannot be used
├── MissingExtra            an optional library is not installed
├── UnknownArchitecture     no row of `arch.ARCHITECTURES` fits
├── UnknownModel            no such file, directory, sample or hub id
├── TooMuchToRead           a rule would read more bytes than `max_read` allows
├── Offline                 the network would be needed and is switched off
└── RemoteError             a server answered with an error
    └── Gated               it answered that the user has no right to the model
"""

import errno
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

# The remedy for NaN and infinite values of a running model.
USE_FLOAT32 = "use --dtype float32; where that is in use, weights are damaged or too large"


class OutlierlensError(Exception):
    """Base of all errors that outlierlens raises on purpose; the command line prints them as one line."""

    def __str__(self) -> str:
        return printable(super().__str__())  # a traceback is shown in a terminal, and names are a stranger's


class BadFile(OutlierlensError):
    """A file that is malformed, truncated or hostile."""


class NoSafetensors(BadFile):
    """A model on a hub whose weights lie in pickled or other files, of which no part can be had."""


class BadInput(OutlierlensError):
    """An argument, configuration or data value that cannot be used."""


class MissingExtra(OutlierlensError):
    """An optional library that this operation needs is not installed."""


class UnknownArchitecture(OutlierlensError):
    """A model whose blocks no row of the architecture table describes."""


class UnknownModel(OutlierlensError):
    """A model name that is not a file, directory, sample or hub id."""


class TooMuchToRead(OutlierlensError):
    """A rule needs more bytes than the limit allows."""


class Offline(OutlierlensError):
    """The network would be needed, and offline mode is on."""


class RemoteError(OutlierlensError):
    """A server could not be reached or answered with an error."""


class GatedModel(RemoteError):
    """A server that knows the model does not give it to this user."""


# What files, disks, memory and encodings do to a program that is right: the command line says them in one line too.
OF_THE_MACHINE = (OSError, MemoryError, RecursionError, UnicodeError)


def takes_a_line(error: BaseException) -> bool:
    """Whether the command line tells this error in one line; any other is a bug, and keeps its traceback."""
    return isinstance(error, (OutlierlensError, *OF_THE_MACHINE)) or bool(of_the_disk(error) or of_a_library(error))


def of_the_disk(error: BaseException) -> OSError | None:
    """The system's own error behind `error`: itself, or what a library says of a write in words; None for any other."""
    if isinstance(error, OSError) and error.errno:
        return error
    said, kind = str(error), type(error).__name__
    # Of tokenizers, of safetensors, and of a folder that shutil copies.
    if kind in ("Exception", "SafetensorError", "Error") and (
        found := re.search(r"(?:\(os error |\[Errno )(\d+)", said)
    ):
        return OSError(int(found[1]), os.strerror(int(found[1])))
    if (kind == "RuntimeError" and "inline_container.cc" in said) or (kind == "OSError" and " requested and " in said):
        return OSError(errno.EIO, "a file could not be written whole")  # torch.save, numpy: they do not say why
    return None


def of_a_library(error: BaseException) -> str:
    """Message for an error that a stranger's files cause, "" for any other.

    Of the tokenizers library: a bare Exception, from a line of transformers that calls it. Of a model's own code in
    transformers: what its config.json asks for and it cannot do.
    """
    if type(error) is not Exception and not isinstance(
        error, (ValueError, TypeError, RuntimeError, LookupError, AttributeError)
    ):
        return ""
    from pathlib import PurePath  # not on the way to --help
    from traceback import walk_tb

    frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    # A product of torch, and what watches it, stand behind the line that asks for it.
    places = [one.co_filename for one in frames if one.co_name != "__torch_function__"]
    while places and "torch" in PurePath(places[-1]).parts:
        places.pop()
    file = PurePath(places[-1]) if places else PurePath()
    if type(error) is Exception:
        said = "the tokenizer cannot read these texts ({}); give others, or another --model-args tokenizer=FOLDER"
        return said.format(error) if file.name.startswith("tokenization_") else ""
    missing = isinstance(error, TypeError) and ".forward() missing" in str(error)
    code = file.name.startswith("modeling_") or file.name == "pytorch_utils.py"
    if missing or (code and "transformers" in file.parts):
        said = (
            "the model's code in transformers fails ({}: {}); use the config.json that belongs to its weights, and data of the "
            "kind that it reads"
        )
        return said.format(type(error).__name__, error)
    return ""


LONGEST = 1500  # characters of a line that is told; a file may hold names of any length


def told(error: BaseException, again: str = "") -> str:
    """One line on an error that `takes_a_line`: what, where, and what can be done; `again` is the command that goes on.

    Of a very long one the middle is left out: what and where stand in front, and the remedy at the end.
    """
    text = _told(error, again)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 500]} … {text[-497:]}"


def _told(error: BaseException, again: str) -> str:
    if said := of_a_library(error):
        return one_line(said)
    if isinstance(error, MemoryError):
        return "there is not enough memory; take fewer or shorter texts, or a larger machine"
    if isinstance(error, RecursionError):
        return "something that was read is nested too deeply; name another file"
    if isinstance(error, UnicodeError):
        return one_line(
            f"text that cannot be read or written here ({error}); run with PYTHONIOENCODING=utf-8, or convert it to UTF-8"
        )
    if (refused := of_the_disk(error)) is not None:
        where = "" if refused.filename is None else f"{refused.filename}: "
        notes = "".join(f": {note}" for note in getattr(error, "__notes__", ()))
        remedy = REMEDIES.get(refused.errno or 0, "")
        go_on = f": {again}" if again and remedy.endswith("again") else ""
        return one_line(f"{where}{refused.strerror}{_room(refused)}{remedy}{notes}{go_on}")
    return one_line(str(error)) or type(error).__name__


# By number of an error of the system.
REMEDIES = {
    errno.ENOSPC: "; make room and run it again",
    errno.EDQUOT: "; make room and run it again",
    errno.EFBIG: "; lift the limit on the size of files (ulimit -f) and run it again",
    errno.EIO: "; make room, or look at the disk, and run it again",
    errno.EACCES: "; change its permissions or name another place",
    errno.EPERM: "; change its permissions or name another place",
    errno.EROFS: "; name another place",
}


def _room(error: OSError) -> str:
    """How much is free where a disk is full: " (1.2 MB are free)"."""
    from pathlib import Path  # not on the way to --help
    from shutil import disk_usage

    if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is None:
        return ""
    place = next(folder for folder in Path(error.filename, "x").absolute().parents if folder.is_dir())
    return f" ({disk_usage(place).free / 1e6:,.1f} MB are free)"


def near(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown `name`: "; near: 'scan'", or "" where no known name resembles it."""
    import difflib  # not on the way to --help

    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; near: {found[0]!r}" if found else ""


def pick(things: Iterable[T], message: str, **wanted: object) -> T:
    """The first of `things` with the attributes `wanted`; raises BadInput, `message` and those there are, for none."""
    things = tuple(things)
    for one in things:
        if all(getattr(one, name) == value for name, value in wanted.items()):
            return one
    there = ", ".join(" / ".join(str(getattr(one, name)) for name in wanted) for one in things)
    raise BadInput(f"{message}; there are {there or 'none'}")


def printable(text: str) -> str:
    """`text` with blanks for control characters: what files and models say never steers a terminal or ends a line."""
    return "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str) -> str:
    """`text` as one line, control characters and runs of blanks as one blank."""
    return " ".join(printable(text).split())


def comment(*words: str) -> str:
    """A comment of Python, YAML or TOML. It names no encoding, in which Python would read the file (PEP 263)."""
    return "# " + re.sub(r"coding(?=[:=])", "coding ", one_line(" ".join(words)))


def literal(value: Any, *, indent: int | None = None) -> str:
    """Text, or a list or dictionary of texts and numbers, as JSON that Python, YAML and TOML read alike."""
    import json  # not on the way to --help

    return seen(json.dumps(value, indent=indent, ensure_ascii=False))


def seen(text: str) -> str:
    """JSON with terminal controls, other line ends and lone surrogates escaped, but for pairs, which TOML lacks."""
    return re.sub(
        r"[^ -~\n\U00010000-\U0010ffff]", lambda one: one[0] if one[0].isprintable() else f"\\u{ord(one[0]):04x}", text
    )


def markdown(text: str) -> str:
    """`text` on one line with what Markdown or HTML would read escaped, and addresses that would become links."""
    return re.sub(
        r"(?i)(https?|ftp)(?=://)|www(?=\.)", r"\g<0>\\", re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", one_line(text))
    )


def command(*words: "str | Path") -> str:
    """A command line of ours in one line, as bash and zsh read it; words that `one_line` would change as $'…'."""
    return shell("outlierlens", *(word if isinstance(word, str) else operand(word) for word in words))


def operand(name: "str | Path") -> str:
    """The name of a model or file as a word of a command: one that begins with "-" would be read as an option."""
    return f"./{name}" if str(name).startswith("-") else str(name)


def option(name: str, value: object) -> list[str]:
    """An option with its value as words of a command: one word where the value would be read as an option itself."""
    return [f"{name}={value}"] if str(value).startswith("-") else [name, str(value)]


def shell(*words: "str | Path") -> str:
    """`command` of another program."""
    import shlex  # not on the way to --help

    return " ".join(shlex.quote(word) if word == one_line(word) else f"$'{_octal(word)}'" for word in map(str, words))


def _octal(word: str) -> str:
    def octal(one: str) -> str:  # of bytes, which in file names may be no UTF-8
        raw = one.encode("utf-8", "surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass")
        return "".join(f"\\{byte:03o}" for byte in raw)

    return "".join(one if one.isprintable() and one not in " '\\" else octal(one) for one in word)


@contextmanager
def showing(found: Any, *given: Any) -> Iterator[None]:
    """Raise BadInput for foreign errors: values of a file may be well typed each and not fit together.

    With arguments that the user has `given`, which may be wrong themselves, errors stay as they are.
    """
    try:
        yield
    except (OutlierlensError, OSError):
        raise
    except Exception as error:
        if given:
            raise
        said = f"its values do not fit together ({type(error).__name__}: {error!s:.200}); make it again"
        raise BadInput(one_line(f"{type(found).__name__} cannot be shown: {said}")) from error


def install(extra: str = "") -> str:
    """The remedy that installs outlierlens with `extra`. No package index has it yet, so that a clone is named."""
    place = f"'.[{extra}]'" if extra else "."
    return f"run in a clone of outlierlens: pip install {place}"


def need(library: str, extra: str, purpose: str) -> ModuleType:
    """Import and return `library`, or raise `MissingExtra` with the line that installs it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        package = library.split(".", maxsplit=1)[0]
        raise MissingExtra(f"{purpose} needs {package}, which is not installed; {install(extra)}") from error
