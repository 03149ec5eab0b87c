"""Files and folders that are there whole or not at all, and nothing written or removed through a link.

    check_file(path, replace=overwrite)                  # before any work: whether a file can be written there
    write_text(folder / "result.json", text)             # a file beside it, which then takes its name
    with replacing(path) as file: ...                    # the same, for what comes piece by piece
    with new_folder(target) as making: ...               # a folder beside it, which takes its name at the end
    refuse_links(folder, "charts", "rows*.jsonl")        # before anything is written below a folder that somebody named
    with held(folder / ".lock", "it is in use"): ...     # no other process meanwhile

A folder that somebody names may be a link itself, as `runs` that lies on another disk; what lies in it may not.
"""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from outlierlens.errors import BadInput

# Errors of file systems that cannot force a folder to the disk, or do not let this user open it.
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


def check_file(path: Path | None, *, replace: bool) -> None:
    """Raise BadInput before any work where a result could not be written to `path`, which may be replaced only if `replace`."""
    if path is None:
        return
    if path.exists() and not replace:
        raise BadInput(f"{path} exists; give another name or --overwrite")
    folder = next((p for p in path.absolute().parents if p.exists()), None)
    if folder and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise BadInput(f"{path} cannot be written: {folder} is no folder one may write in")


def write_text(path: Path, text: str) -> Path:
    """`write_bytes` of `text` as UTF-8, with escapes for what has none: a file name that is no UTF-8."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` to `path` so that a reader sees the old content or the new, never half of it."""
    with replacing(path) as file:
        file.write(content)
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file beside `path`, which takes its name if the block ends well and vanishes if not.

    A link at `path` is replaced itself; the file that it leads to stays as it is.

    Raises:
        BadInput: a pipe or device has the name, which a file in its place would break for whoever uses it.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInput(f"{path}: a pipe or device, which no file replaces; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        file = part.open("xb")  # "x": neither what somebody else has put there nor through a link
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            rename(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename = str(path)
        raise


def rename(made: Path, target: Path) -> None:
    """Give `made` the name `target`, in place of what has it, and force that name to the disk."""
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
    """A fresh folder beside `target`, which takes its place if the block ends well and vanishes if not.

    What has the name until then keeps it until the new one is whole.

    Raises:
        BadInput: no folder can be made there.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=_being_made(target), dir=target.parent))
    except OSError as error:
        raise BadInput(f"{target} cannot be written ({error.strerror}); name another folder") from None
    old = making.with_name(f"{making.name}.old")
    try:
        yield making
        for path in (making, *making.rglob("*")):  # temporary folders are born private; a cache may be shared
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


def sweep_orphans(target: Path) -> None:
    """Remove what killed processes left of `new_folder(target)`; only for the process that holds a lock on it."""
    for orphan in list(os.scandir(target.parent)):
        if orphan.name.startswith(_being_made(target)):
            remove(Path(orphan.path))


def _being_made(target: Path) -> str:
    return f".making-{target.name}-"


def remove(path: Path) -> None:
    """Remove a file, a link itself, or a folder with what it holds; nothing where there is none or it cannot be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def refuse_links(folder: Path, *names: str) -> None:
    """Raise BadInput where something in `folder` is a link or holds one, of what fits a pattern of `names` if any is given."""
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
def held(lock: Path, otherwise: str | None = None) -> Iterator[None]:
    """Hold the only right to what `lock` stands for; it goes with the process, however that ends.

    Raises:
        BadInput: another process holds it, where `otherwise` says so (without it, this one waits); or `lock` is a link.
    """
    from filelock import FileLock, Timeout  # comes with huggingface_hub

    refuse_links(lock.parent, lock.name)
    try:
        with FileLock(lock, timeout=-1 if otherwise is None else 0):
            yield
    except Timeout:
        raise BadInput(str(otherwise)) from None
