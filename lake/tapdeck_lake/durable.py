"""Files that get their names only when all of them is on disk.

Everything in a lake is written so: under a hidden name, synced, renamed, and then the directory is
synced. A process that is killed leaves a hidden file, which nobody reads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LakeError

DRAFT = ".new"


def draft_of(path: Path) -> Path:
    """Returns the name that a file has until it is whole."""
    return path.with_name(f".{path.name}{DRAFT}")


def is_draft(path: Path) -> bool:
    """Returns whether a name is one that a file has until it is whole."""
    return path.name.startswith(".") and path.name.endswith(DRAFT)


def sync(path: Path) -> None:
    """Makes a file's contents, or a directory's names, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, and makes their names durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def publish(path: Path) -> None:
    """Gives a draft that was written its name, when it is durable."""
    draft = draft_of(path)
    sync(draft)
    draft.rename(path)
    sync(path.parent)


def copy(source: Path, path: Path) -> None:
    """Copies a file to a name that it has when the copy is whole.

    Raises FileNotFoundError where the source is gone. A source that is deleted while it is copied
    is copied to its end.
    """
    with source.open("rb") as read:
        make_directory(path.parent)
        with draft_of(path).open("wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
    publish(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a lake, or of a directory that is shipped.

    Raises LakeError where another process holds it. The lock ends with its process.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeError(
                f"{path.parent} is being changed by another process: wait for its end, or stop it"
            ) from None
        yield
    finally:
        os.close(handle)
