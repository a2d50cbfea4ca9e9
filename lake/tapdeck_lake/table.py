"""The table of flows: what a lake does to it, and how plain files do that.

In a lake of plain files a file is a part of the table when the catalog names it. Segments and files
are in one database, so each change is one transaction, and there is nothing to settle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from .flow_files import Account, FlowFile
from .lake_file import LakeFile
from .place import Found

if TYPE_CHECKING:
    from .catalog import Lake

Counts = Sequence[tuple[int, int, str, str]]
"""Rows and packets of segments, with sensor and name of each."""


class Table(Protocol):
    """What a lake does to its table. Whoever changes it holds the lake's lock and settles first."""

    grace_s: float
    """How long what was replaced stays, where nobody says otherwise: questions may still be at it,
    and jobs of other engines that began with it."""

    def files(self) -> list[LakeFile]:
        """Returns the files of the table, in the order of their rows' times."""
        ...

    def files_of(self, segments: Sequence[tuple[str, str]]) -> list[LakeFile]:
        """Returns files that have all rows of segments which the roll-up does not have."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Makes all that is read inside, register and table, be of one moment."""
        ...

    def settle(self) -> None:
        """Ends what a process that was killed has begun."""
        ...

    def look_at(self, account: Account, files: Sequence[FlowFile]) -> None:
        """Raises LakeError where a segment that has landed cannot be taken in."""
        ...

    def append(self, batch: Sequence[tuple[Account, Sequence[FlowFile]]]) -> None:
        """Takes in segments that have landed: rows and accounts at once."""
        ...

    def exchange(self, before: Sequence[LakeFile], after: LakeFile) -> None:
        """Puts a file in the place of others that have the same rows."""
        ...

    def drop(self, files: Sequence[LakeFile], counts: Counts) -> None:
        """Takes files out for good, and says so in the accounts of their segments."""
        ...

    def needs(self, path: str) -> bool:
        """Returns whether a file is a part of the table, or was a short time ago."""
        ...

    def forget(self, grace_s: float) -> None:
        """Makes files that were replaced longer ago be needed no more."""
        ...

    def orphans(self) -> list[Found]:
        """Returns files of the table's own that nobody needs, beside those made of rows."""
        ...


class PlainTable:
    """A table of plain files."""

    grace_s = 3600.0

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def files(self) -> list[LakeFile]:
        """Returns the files of the table, in the order of their rows' times."""
        return self.lake.named("flows")

    def files_of(self, segments: Sequence[tuple[str, str]]) -> list[LakeFile]:
        """Returns files that have all rows of segments which the roll-up does not have.

        They are as they landed, since compaction comes after the roll-up.
        """
        return [file for file in self.files() if file.is_as_landed] if segments else []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Makes all that is read inside be of one moment."""
        with self.lake.reading():
            yield

    def settle(self) -> None:
        """Has nothing to do: a change is one transaction."""

    def look_at(self, account: Account, files: Sequence[FlowFile]) -> None:
        """Has nothing to say: any segment can be taken in."""

    def append(self, batch: Sequence[tuple[Account, Sequence[FlowFile]]]) -> None:
        """Takes in segments that have landed."""
        with self.lake.transaction():
            for account, files in batch:
                self.lake.add_segment(account)
                for file in files:
                    if file.rows:
                        self.lake.insert(landed_file(file))

    def exchange(self, before: Sequence[LakeFile], after: LakeFile) -> None:
        """Puts a file in the place of others that have the same rows."""
        with self.lake.transaction():
            self.lake.insert(after)
            self.lake.replace(before)

    def drop(self, files: Sequence[LakeFile], counts: Counts) -> None:
        """Takes files out for good, and says so in the accounts of their segments."""
        with self.lake.transaction():
            self.lake.expire_rows(counts)
            self.lake.replace(files)

    def needs(self, path: str) -> bool:
        """Returns whether the catalog names a file."""
        return self.lake.names(path)

    def forget(self, _grace_s: float) -> None:
        """Has nothing to do: the catalog says when a file was replaced."""

    def orphans(self) -> list[Found]:
        """Returns nothing: there are no files but those of rows."""
        return []


def landed_file(file: FlowFile) -> LakeFile:
    """Returns what the catalog is told of a file that has landed and has rows."""
    day = file.day or ""
    return LakeFile(file.name, "flows", day, "", file.bytes, file.rows, file.first_us, file.last_us)
