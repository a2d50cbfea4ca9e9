"""The catalog: which files are the table, and which segments are in it.

A lake is a directory:

    catalog.db                       this catalog, SQLite
    landed/SENSOR/STEM.parquet       as sensors ship them
    flows/day=YYYY-MM-DD/*.parquet   made of those by compaction
    hosts/day=YYYY-MM-DD/*.parquet   the roll-up
    segments/SENSOR/STEM.pcapng      packets, where sensors ship these, too

A file counts when the catalog names it, and what changes the table is one transaction there. So a
process that is killed at any moment leaves the table as it was or as it was to become, and beside
it at most files that nobody names, which `expire` removes. The rows of a segment are in the table
if and only if the segment has a row in `segments`: that is the ledger which makes delivery exactly
once, however often a file is shipped.

One process at a time changes a lake (a lock on `.lock`). Readers take the list of files that is in
force, and need no lock: files that went out of the table stay for a while.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa

from . import durable
from .errors import LakeError
from .flow_files import Account, FlowFile

VERSION = 1
NAME = "catalog.db"
TABLES = """
create table lake (version integer not null);
create table segments (
    sensor text not null,
    segment text not null,
    number integer not null,
    began_ns integer,
    ended_ns integer,
    packets integer,
    packets_in_rows integer not null,
    rows integer not null,
    lost integer not null,
    unseen integer not null,
    cutoff integer not null,
    bytes_cutoff integer not null,
    shed_packets integer not null,
    shed_bytes integer not null,
    rows_expired integer not null default 0,
    packets_expired integer not null default 0,
    in_hosts integer not null default 0,
    committed_us integer not null,
    primary key (sensor, segment)
) without rowid;
create table files (
    path text primary key,
    kind text not null check (kind in ('flows', 'hosts')),
    day text not null,
    bytes integer not null,
    rows integer not null,
    first_us integer,
    last_us integer,
    replaced_us integer
) without rowid;
create index files_in_force on files (kind, day) where replaced_us is null;
"""


@dataclass(frozen=True)
class LakeFile:
    """A file of the table: its path from the lake's directory on, and what is in it."""

    path: str
    kind: str
    day: str
    bytes: int
    rows: int
    first_us: int | None
    last_us: int | None

    @property
    def is_as_landed(self) -> bool:
        """Whether it is a file that a sensor shipped."""
        return self.path.startswith("landed/")


COLUMNS = ", ".join(LakeFile.__annotations__)


def now_us() -> int:
    """Returns the time, UTC microseconds since 1970."""
    return time.time_ns() // 1000


def folder_of(sensor: str) -> str:
    """Returns the name of a sensor's folder. Raises LakeError where it cannot have one."""
    name = quote(sensor, safe=" ")
    if not name.strip(".") or len(name) > 200:
        raise LakeError(f"{sensor!r} cannot be the name of a sensor in a lake: name it otherwise")
    return name


def sensor_of(folder: str) -> str:
    """Returns the sensor that has a folder."""
    return unquote(folder)


class Lake:
    """A lake of plain files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / NAME
        if not path.is_file():
            raise LakeError(f"{directory} is no lake: tapdeck-lake init {directory}")
        # Whoever only reads needs no right to write, but for a journal that somebody left who was
        # killed: that is rolled back first.
        self.db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.db.execute("pragma synchronous = full")
        try:
            version = self.db.execute("select version from lake").fetchone()[0]
        except (sqlite3.DatabaseError, TypeError) as error:
            raise LakeError(f"{path} is no catalog of a lake: {error}") from None
        if version != VERSION:
            raise LakeError(f"{path} has version {version}, and {VERSION} is known here")

    @classmethod
    def init(cls, directory: Path) -> Lake:
        """Makes a lake. Raises LakeError where there is something else."""
        if (directory / NAME).exists():
            raise LakeError(f"{directory} is a lake already")
        durable.make_directory(directory)
        others = [entry for entry in directory.iterdir() if not durable.is_draft(entry)]
        if others:
            raise LakeError(f"{directory} is not empty: name a directory of its own for the lake")
        for name in ("landed", "flows", "hosts", "segments"):
            (directory / name).mkdir()
        draft = durable.draft_of(directory / NAME)
        draft.unlink(missing_ok=True)
        db = sqlite3.connect(draft)
        db.executescript(TABLES)
        db.execute("insert into lake values (?)", (VERSION,))
        db.commit()
        db.close()
        durable.publish(directory / NAME)
        return cls(directory)

    @property
    def landed(self) -> Path:
        """Where sensors' files arrive."""
        return self.directory / "landed"

    @property
    def segments(self) -> Path:
        """Where sensors' segments arrive."""
        return self.directory / "segments"

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Holds the lock of whoever changes the table."""
        with durable.locked(self.directory / ".lock"):
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Makes all that is done inside take effect at once, or nothing of it."""
        self.db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self.db.execute("rollback")
            raise
        self.db.execute("commit")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Makes all that is read inside be of one moment."""
        self.db.execute("begin")
        try:
            yield
        finally:
            self.db.execute("rollback")

    def files(self, kind: str, day: str | None = None) -> list[LakeFile]:
        """Returns the files in force, in the order of their rows' times."""
        query = f"select {COLUMNS} from files where kind = ? and replaced_us is null"
        order = " order by first_us, path"
        if day is None:
            found = self.db.execute(query + order, (kind,))
        else:
            found = self.db.execute(f"{query} and day = ?{order}", (kind, day))
        return [LakeFile(*row) for row in found]

    def known(self, path: str) -> bool:
        """Returns whether the catalog names a file, in force or replaced."""
        return self.db.execute("select 1 from files where path = ?", (path,)).fetchone() is not None

    def is_committed(self, sensor: str, segment: str) -> bool:
        """Returns whether a segment's rows are in the table, or were until they expired."""
        query = "select 1 from segments where sensor = ? and segment = ?"
        return self.db.execute(query, (sensor, segment)).fetchone() is not None

    def add_segment(self, account: Account) -> None:
        """Enters a segment into the ledger. Raises sqlite3.IntegrityError where it is there."""
        told = {name: getattr(account, name) for name in Account.__annotations__ if name != "files"}
        told |= {"number": account.number, "committed_us": now_us()}
        names = ", ".join(told)
        marks = ", ".join("?" * len(told))
        self.db.execute(f"insert into segments ({names}) values ({marks})", list(told.values()))

    def add_file(self, kind: str, file: FlowFile) -> None:
        """Takes a file with rows into the table."""
        path = file.path.relative_to(self.directory).as_posix()
        if file.day is None:
            raise LakeError(f"{file.path} has no rows")
        told = LakeFile(path, kind, file.day, file.bytes, file.rows, file.first_us, file.last_us)
        self.insert(told)

    def insert(self, file: LakeFile) -> None:
        """Takes a file into the table."""
        marks = ", ".join("?" * len(LakeFile.__annotations__))
        self.db.execute(
            f"insert into files ({COLUMNS}) values ({marks})", list(vars(file).values())
        )

    def replace(self, files: Iterable[LakeFile]) -> None:
        """Takes files out of the table. They stay on disk until they expire."""
        at = now_us()
        self.db.executemany(
            "update files set replaced_us = ? where path = ?", [(at, file.path) for file in files]
        )

    def segments_table(self) -> pa.Table:
        """Returns the accounts of all segments in the table."""
        found = self.db.execute("select * from segments order by sensor, number")
        names = [column[0] for column in found.description]
        texts = ("sensor", "segment")
        types = [pa.string() if name in texts else pa.int64() for name in names]
        columns = list(zip(*found, strict=True)) or [()] * len(names)
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)]
        return pa.Table.from_arrays(arrays, names)

    def pending_hosts(self) -> list[tuple[str, str]]:
        """Returns the segments that the roll-up does not have yet, by sensor and name."""
        query = "select sensor, segment from segments where in_hosts = 0"
        return self.db.execute(query).fetchall()

    def path(self, file: LakeFile) -> Path:
        """Returns where a file lies."""
        return self.directory / file.path
