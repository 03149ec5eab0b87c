"""Files that are there whole or not at all, nothing written through a link; JSON and TOML of others, read or refused.

    check_file(path, replace=overwrite)                  # before any work: whether a file can be written there
    write_text(folder / "result.json", text)             # a file beside it, which then takes its name; write_together: several
    with new_folder(target) as making: ...               # a folder beside it, which takes its name at the end
    value = read_json(path, "start again with --overwrite")

A folder that somebody names may be a link itself, as `runs` that lies on another disk; what lies in it may not. Refused is also
what Python's readers end on: text nested too deeply, whole numbers of thousands of digits.
"""

import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from outlierlens.errors import REMEDIES, BadFile, BadInput, OutlierlensError, of_the_disk

# Errors of file systems that cannot force a folder to the disk, or do not let this user open it.
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
# What a killed process leaves of a name: a new file or folder, its lock, an old folder that was to be replaced.
_LEFT = re.compile(r"\.(.+)\.(?:[0-9a-f]{16}\.part|lock)|(.+)\.before-[0-9a-f]{16}")
_HELD: set[Path] = set()  # locks that this process holds


def check_file(path: Path | None, *, replace: bool) -> None:
    """Raise BadInput before any work where a result could not be written to `path`, which may be replaced only if `replace`."""
    if path is None:
        return
    _refuse_other(path)
    if path.exists() and not replace:
        raise BadInput(f"{path} exists; give another name or --overwrite")
    folder = next((p for p in path.absolute().parents if p.exists()), None)
    if folder and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise BadInput(f"{path} cannot be written: {folder} is no folder one may write in")


def check_folder(folder: Path, kind: str, *names: str, replace: bool) -> None:
    """Raise BadInput before any work where `folder` is there; one with files of these names goes if `replace`."""
    if not os.path.lexists(folder):
        return
    if not replace:
        raise BadInput(f"{folder} exists; name another folder, or use --overwrite")
    if folder.is_symlink() or not all((folder / name).is_file() for name in names):
        raise BadInput(f"{folder} holds no {kind}, so it is not replaced; name another folder")


def _refuse_other(path: Path) -> None:
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "pipe or device"
        raise BadInput(f"{path}: a {kind}, which no file replaces; name a file")


def write_text(path: Path, text: str) -> Path:
    """`write_bytes` of `text` as UTF-8, with escapes for what has none: a file name that is no UTF-8."""
    write_together({path: text})
    return path


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` to `path` so that a reader sees the old content or the new, never half of it."""
    write_together({path: content})
    return path


def write_together(files: Mapping[Path, str | bytes]) -> None:
    """Write the content of every path, text as UTF-8: all of it is on the disk before the first file takes its name.

    The last file says that the others are whole, so an earlier one of that name goes before them.
    """
    with ExitStack() as inside:
        parts: dict[Path, Path] = {}
        for path, content in files.items():
            file = inside.enter_context(_beside(path))
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            parts[path] = _settled(file)
        if len(parts) > 1:
            path.unlink(missing_ok=True)
        for path, part in parts.items():
            rename(part, path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file next to `path`, which takes its name if the block ends well and vanishes if not.

    A link at `path` is replaced itself; the file that it leads to stays as it is.

    Raises:
        BadInput: a folder, pipe or device has the name, which a file in its place would break for whoever uses it.
    """
    with _beside(path) as file:
        yield file
        rename(_settled(file), path)


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """A new file in the folder of `path`, gone after the block unless it was renamed."""
    _refuse_other(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with naming(path, part), part.open("xb") as file:  # "x": neither what is there already nor through a link
        try:
            yield file
        finally:
            part.unlink(missing_ok=True)


def _settled(file: BinaryIO) -> Path:
    """Where the file lies, once all of it is on the disk."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    return Path(file.name)


def rename(made: Path, target: Path) -> None:
    """Give `made` the name `target`, replacing its owner, and force that name to the disk."""
    made.replace(target)
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            error.filename = error.filename or str(target.parent)
            raise


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A fresh folder next to `target`, which takes its place if the block ends well and vanishes if not.

    What has the name until then keeps it until the new one is whole. No other process may write `target` meanwhile.

    Raises:
        BadInput: no folder can be made there, or another process writes it.
    """
    target, token = target.absolute(), secrets.token_hex(8)
    making, old = target.with_name(f".{target.name}.{token}.part"), target.with_name(f"{target.name}.before-{token}")
    with ExitStack() as inside:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.with_name(f".{target.name}.lock").resolve() not in _HELD:
                inside.enter_context(alone(target))
            making.mkdir(0o700)
        except OSError as error:
            raise BadInput(f"{target} cannot be written ({error.strerror}); name another folder") from None
        try:
            with naming(target, making):
                yield making
                for path in (making, *making.rglob("*")):  # what libraries write is born private; a cache may be shared
                    if not path.is_symlink():  # it would change the file that it leads to
                        path.chmod(0o755 if path.is_dir() else 0o644)
                if os.path.lexists(target):
                    target.replace(old)
                rename(making, target)
        finally:
            if os.path.lexists(old) and not os.path.lexists(target):
                old.replace(target)
            for left in (making, old):
                remove(left)


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed processes left of `name`, for who holds the right to it; by default of all that nobody holds.

    An old folder that was to be replaced gets its name back.
    """
    for path in list(folder.iterdir()):
        if (match := _LEFT.fullmatch(path.name)) is None:
            continue
        if not name:
            with suppress(BadInput), alone(folder / (match[1] or match[2])):
                pass
        elif match[2] == name and not os.path.lexists(folder / name):
            path.replace(folder / name)
        elif name in match.groups() and path.suffix != ".lock":
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link itself, or a folder with its contents; nothing where there is none or it cannot be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def refuse_links(folder: Path, *names: str) -> None:
    """Raise BadInput where something in `folder` is a link or holds one; `names` are patterns of names to look at."""
    if not folder.is_dir():
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not names or any(name == entry.name or fnmatch(entry.name, name) for name in names):
            link = _link_in(Path(entry.path))
            if link is not None:
                raise BadInput(
                    f"{link} is a link, and nothing is written through one; remove it or name another folder"
                )


def _link_in(path: Path) -> Path | None:
    if path.is_symlink():
        return path
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            if (found := Path(place, name)).is_symlink():
                return found
    return None


@contextmanager
def alone(target: Path, lock: Path | None = None, *, what: str = "run", wait: bool = False) -> Iterator[None]:
    """Hold the only right to write `target`, by a lock beside it or at `lock`; it goes with the process, however that ends.

    With the lock beside it, what killed processes left of it goes, or comes back. The lock's file goes at the end, and so
    do folders that were made for it and are empty.

    Raises:
        BadInput: another process holds it (with `wait` this one waits, and the file stays), or the lock is a link.
    """
    from filelock import FileLock, Timeout  # comes with huggingface_hub

    place = lock or target.absolute().with_name(f".{target.name}.lock")
    refuse_links(place.parent, place.name)
    made = [folder for folder in place.absolute().parents if not folder.exists()]
    try:
        with ExitStack() as inside:
            with naming(target, place):
                place.parent.mkdir(parents=True, exist_ok=True)
                inside.enter_context(FileLock(place, timeout=-1 if wait else 0))
                _HELD.add(place.resolve())
                inside.callback(_HELD.discard, place.resolve())
                if lock is None:
                    sweep(place.parent, target.name)
            if not wait:
                inside.callback(remove, place)
            yield
    except Timeout:
        if not place.exists():  # no file can be made there
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target)) from None
        another = "directory" if lock else "file"
        raise BadInput(f"{target}: another {what} is writing to it; wait for it or name another {another}") from None
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def naming(path: Path, part: Path) -> Iterator[None]:
    """What the system refuses names `path`: errors of `part`, of what lies in it, and of writes that name no file."""
    try:
        yield
    except Exception as error:
        refused = of_the_disk(error)
        named = refused and refused.filename is not None
        if not refused or not (str(refused.filename).startswith(str(part)) if named else refused.errno in REMEDIES):
            raise
        refused.filename = str(path)
        raise refused from None


# --- JSON and TOML ---------------------------------------------------------------------------------------------------

MAX_DOTS = 10_000  # of a TOML file: Python's reader takes the square of the dots of a key, 6 GB for 40,000


def _refuse_pipe(path: Path, error: type[OutlierlensError]) -> None:
    """Raise `error` where something is there that is no file: a pipe may never end, or never begin."""
    if path.exists() and not path.is_file():
        raise error(f"{path}: a pipe, a device or a folder; name a file")


def read_json(
    path: Path, remedy: str = "was it written completely?", error: type[OutlierlensError] = BadFile, *, a: type = object
) -> Any:
    """The value in a file; `error`, with `remedy`, where it is not JSON or the value is not `a` (dict, list).

    Raises:
        OSError: the file cannot be read.
    """
    _refuse_pipe(path, error)
    value = parse_json(path.read_bytes(), str(path), remedy, error)
    if not isinstance(value, a):
        wanted = "an object" if a is dict else "a list"
        raise error(f"{path}: holds a {type(value).__name__}, not {wanted}; {remedy}")
    return value


def parse_json(
    text: str | bytes, where: str, remedy: str = "was it written completely?", error: type[OutlierlensError] = BadFile
) -> Any:
    """The value that `text` spells; `error`, with `where` and `remedy`, where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not valid JSON ({type(problem).__name__}); {remedy}") from None


def read_toml(path: Path, error: type[OutlierlensError] = BadInput) -> dict[str, Any]:
    """The table in a file; `error` where it cannot be read as TOML."""
    import tomllib

    _refuse_pipe(path, error)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if text.count(".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS:,} dots")
        found = tomllib.loads(text)
        repr(found)  # whole numbers of thousands of hexadecimal digits are read, and cannot be said later
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"{path}: cannot be read as TOML: {' '.join(str(problem).split())[:200]}") from None
    return found


PACKAGED = Path(__file__).parents[1] / "data_files"  # not importlib.resources: weights are mapped from a real file


def packaged_table(name: str) -> dict[str, Any]:
    """A TOML table that comes with the package, its lists as tuples."""

    def fixed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fixed(one) for key, one in value.items()}
        return tuple(map(fixed, value)) if isinstance(value, list) else value

    return {key: fixed(value) for key, value in read_toml(PACKAGED / name).items()}


def cache_root() -> Path:
    """The folder under which outlierlens keeps what it fetched or made; it may not exist yet."""
    chosen = os.environ.get("OUTLIERLENS_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "outlierlens"
