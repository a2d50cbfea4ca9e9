"""The catalog: which files are the table, and which segments are in it.

A lake is a directory:

    catalog.db                       this catalog, SQLite
    iceberg.db, iceberg/             of a lake with an Iceberg table (iceberg.py); its catalog
                                     may be on a server instead of in iceberg.db
    landed/SENSOR/STEM.parquet       as sensors ship them
    flows/day=YYYY-MM-DD/*.parquet   made of those by compaction
    hosts/day=YYYY-MM-DD/*.parquet   the roll-up
    segments/SENSOR/STEM.pcapng      packets, where sensors ship these, too

The rows of a segment are in the table if and only if the segment has a row in `segments`: that is
the register which makes delivery exactly once, however often a file is shipped. Which files are the
table says `files` in a lake of plain files (table.py), and Iceberg's own metadata in the other kind
(iceberg.py). A process that is killed at any moment leaves the table as it was or as it was to
become, and beside it at most files that nobody names, which `expire` removes.

One process at a time changes a lake (a lock on `.lock`). Readers take the list of files that is in
force, and need no lock: files that went out of the table stay for a while.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa

from . import durable
from .errors import LakeError
from .flow_files import Account
from .lake_file import LakeFile
from .place import place_of
from .table import PlainTable, Table

VERSION = 1
NAME = "catalog.db"
TABLES = """
create table lake (
    version integer not null, kind text not null, server text not null, files text not null);
create table changes (id text primary key, what text not null) without rowid;
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
    sensor text not null,
    bytes integer not null,
    rows integer not null,
    first_us integer,
    last_us integer,
    replaced_us integer
) without rowid;
create index files_in_force on files (kind, day) where replaced_us is null;
"""


LANDED = "landed"
"""The folder in which sensors' files arrive, and those of each sensor in a folder of it."""
SEGMENTS = "segments"
"""The same of packets."""
FOLDERS = (LANDED, "flows", "hosts", SEGMENTS)
BEGUN = ".begun"
"""What a lake has while it is made: a word that no other has."""
DRAFTS = {durable.draft_of(Path(name)).name for name in (NAME, BEGUN)}
MADE = {*FOLDERS, *DRAFTS, "iceberg.db", "iceberg", BEGUN}
"""What `Lake.init` makes before the catalog has its name."""

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
    """Returns the sensor that has a folder, in place of bytes that are no text with a mark."""
    return unquote(os.fsencode(folder).decode(errors="replace"))


class Lake:
    """A lake: its register, in a directory, and its files, there or elsewhere."""

    table: Table

    def __init__(self, directory: Path) -> None:
        self.directory = directory = directory.resolve()
        path = directory / NAME
        if not path.is_file():
            raise LakeError(f"{directory} is no lake: tapdeck-lake init {directory}")
        # Whoever only reads needs no right to write, but for a journal that somebody left who was
        # killed: that is rolled back first.
        self.db = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.db.execute("pragma synchronous = full")
        try:
            version, kind, *others = self.db.execute("select * from lake").fetchone()
        except (sqlite3.DatabaseError, TypeError) as error:
            raise LakeError(f"{path} is no catalog of a lake: {error}") from None
        if version != VERSION:
            raise LakeError(f"{path} has version {version}, and {VERSION} is known here")
        # A lake that was made before there was a choice has all in itself.
        self.server, files = [*others, "", ""][:2]
        self.place = place_of(files, directory)
        self.table = table_of(self, kind)

    @classmethod
    def init(cls, directory: Path, kind: str = "files", server: str = "", files: str = "") -> Lake:
        """Makes a lake. Raises LakeError where there is something else.

        `kind` is `files` or `iceberg`. `server` is the URI of a database of PostgreSQL that is to
        have the Iceberg table's catalog, and `files` the URL of a prefix on S3 that is to have the
        files; where they are empty, the lake's directory has these.
        """
        if (directory / NAME).exists():
            raise LakeError(f"{directory} is a lake already")
        if server:
            from . import iceberg

            iceberg.server_at(server)
        directory = directory.resolve()
        place = place_of(files, directory)
        durable.make_directory(directory)
        draft, begun = durable.draft_of(directory / NAME), directory / BEGUN
        # An attempt that was killed is followed by another.
        may_be = MADE if begun.exists() else DRAFTS
        if any(entry.name not in may_be for entry in directory.iterdir()):
            raise LakeError(f"{directory} is not empty: name a directory of its own for the lake")
        if not begun.exists():
            durable.draft_of(begun).write_text(uuid.uuid4().hex)
            durable.publish(begun)
        place.begin(FOLDERS, begun.read_text())
        if kind == "iceberg":
            from . import iceberg

            iceberg.create(directory, place, server)
        draft.unlink(missing_ok=True)
        db = sqlite3.connect(draft)
        db.executescript(TABLES)
        db.execute("insert into lake values (?, ?, ?, ?)", (VERSION, kind, server, files))
        db.commit()
        db.close()
        durable.publish(directory / NAME)
        begun.unlink()
        return cls(directory)

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

    def files(self, kind: str) -> list[LakeFile]:
        """Returns the files of a kind that are in force, in the order of their rows' times."""
        if kind == "flows":
            return self.table.files()
        return self.named(kind)

    def named(self, kind: str) -> list[LakeFile]:
        """Returns the files of a kind that `files` has in force."""
        query = f"select {COLUMNS} from files where kind = ? and replaced_us is null"
        found = self.db.execute(f"{query} order by first_us, path", (kind,))
        return [LakeFile(*row) for row in found]

    def names(self, path: str) -> bool:
        """Returns whether `files` has a file, in force or replaced."""
        return self.db.execute("select 1 from files where path = ?", (path,)).fetchone() is not None

    def committed_us(self, sensor: str, segment: str) -> int | None:
        """Returns when a segment was committed; None where it was not."""
        query = "select committed_us from segments where sensor = ? and segment = ?"
        found = self.db.execute(query, (sensor, segment)).fetchone()
        return None if found is None else int(found[0])

    def compare(self, path: str, account: Account) -> None:
        """Raises LakeError where the register has a segment of the same name and other rows.

        `path` is the file that tells the account.
        """
        query = """select rows, packets_in_rows, began_ns from segments
            where sensor = ? and segment = ?"""
        found = self.db.execute(query, (account.sensor, account.segment)).fetchone()
        if found not in (None, (account.rows, account.packets_in_rows, account.began_ns)):
            raise LakeError(
                f"{path} has other rows than the lake has of a segment of that name: another store "
                "has the same name of a sensor, or the table was made anew; name sensors "
                "differently"
            )

    def add_segment(self, account: Account) -> None:
        """Enters a segment into the register. Raises sqlite3.IntegrityError where it is there."""
        told = {name: getattr(account, name) for name in Account.__annotations__ if name != "files"}
        told |= {"number": account.number, "committed_us": now_us()}
        names = ", ".join(told)
        marks = ", ".join("?" * len(told))
        self.db.execute(f"insert into segments ({names}) values ({marks})", list(told.values()))

    def insert(self, file: LakeFile) -> None:
        """Names a file."""
        marks = ", ".join("?" * len(LakeFile.__annotations__))
        self.db.execute(
            f"insert into files ({COLUMNS}) values ({marks})", list(vars(file).values())
        )

    def replace(self, files: Iterable[LakeFile]) -> None:
        """Names files no more. They stay on disk until they expire."""
        at = now_us()
        self.db.executemany(
            "update files set replaced_us = ? where path = ?", [(at, file.path) for file in files]
        )

    def expire_rows(self, counts: Iterable[tuple[int, int, str, str]]) -> None:
        """Says of segments how many rows and packets went out of the table for good.

        `counts` has rows, packets, sensor and segment of each.
        """
        self.db.executemany(
            "update segments set rows_expired = rows_expired + ?, "
            "packets_expired = packets_expired + ? where sensor = ? and segment = ?",
            counts,
        )

    def segments_table(self) -> pa.Table:
        """Returns the accounts of all segments in the register."""
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

    def path(self, file: LakeFile) -> str:
        """Returns where a file lies, as DuckDB has it."""
        return self.place.path(file.path)


def table_of(lake: Lake, kind: str) -> Table:
    """Returns the table of a lake of a kind. Raises LakeError where the kind is not known."""
    if kind == "files":
        return PlainTable(lake)
    if kind == "iceberg":
        # What it needs takes a while to be read.
        from .iceberg import IcebergTable

        return IcebergTable(lake)
    raise LakeError(f"{lake.directory} is a lake of the kind {kind}, which is not known here")
