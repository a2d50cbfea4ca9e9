"""The table of flows as an Iceberg table, which Spark, Trino, ClickHouse and others read as well.

The table is `tapdeck.flows`, version 2, by day and sensor. Files are adopted as they land, not
copied: from then on they belong to the table, and whoever expires snapshots of it deletes them with
its other files.

Its catalog, which says which state of the table is the newest, is SQLite beside it, or a database
of PostgreSQL, which engines on other machines can ask.

Two things change here, the Iceberg table and the register in `catalog.db`, and a process can be
killed between. So what is about to happen is written down first (`changes`), the Iceberg commit
carries the number of that, and the register follows. Whoever comes next and finds something written
down looks whether the table has a snapshot with that number: then the register follows now, else
nothing has happened, and what is written down is dropped. So Iceberg's commit alone decides.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as OfIceberg
from pyiceberg.table import Transaction
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from .errors import LakeError
from .flow_files import SCHEMA, UTC_US, Account, FlowFile
from .lake_file import LakeFile
from .place import S3, SCHEME, Disk, Found, Place
from .table import Counts

if TYPE_CHECKING:
    from .catalog import Lake

CATALOG = "tapdeck"
"""The catalog's name, which stands in its tables: other engines must use it, too."""
NAMESPACE = "tapdeck"
TABLE = "tapdeck.flows"
HOSTS = "tapdeck.hosts"
"""What a job of Spark makes (jobs.py)."""
CHANGE = "tapdeck.change"
"""The property of a snapshot that has the number of a change."""
LOCK = """select metadata_location from iceberg_tables where catalog_name = :catalog
    and table_namespace = :namespace and table_name = :name for update"""
TRIES = 5
"""How often a commit is tried while others commit, too."""
UNNAMED_S = 7 * 86_400
"""How old a file beside the table is that nobody is about to name: no job takes that long."""

OPTIONS = {"sslmode", "sslrootcert"}
"""What may stand behind the ? of a server's URI; Java's driver has the same."""

TYPES: dict[pa.DataType, IcebergType] = {
    pa.string(): StringType(),
    UTC_US: TimestamptzType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int8(): IntegerType(),
    pa.binary(): BinaryType(),
}

PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


OF_ICEBERG: tuple[type[Exception], ...] = (
    SQLAlchemyError,
    OSError,
    # Of damaged manifests.
    ValueError,
    EOFError,
    *(
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
"""What PyIceberg raises over a catalog or a table, beside what disks do."""


@contextmanager
def told_as_ours() -> Iterator[None]:
    """Makes failures of PyIceberg's to failures of the lake."""
    try:
        yield
    except OF_ICEBERG as error:
        # What a disk says has a name for it, and says enough.
        if isinstance(error, OSError) and error.strerror:
            raise
        why = str(error).split("\n", 1)[0]
        raise LakeError(
            f"{TABLE} cannot be read or changed ({why}): see whether its catalog (iceberg.db, or "
            "the server of PostgreSQL) answers, S3 does, and iceberg/ is whole and free to be read"
        ) from None


def catalog_of(directory: Path, place: Place, server: str) -> SqlCatalog:
    """Returns the Iceberg catalog of a lake in a directory, which has its files at a place.

    `server` is the URI of a database of PostgreSQL; where it is empty, SQLite has the catalog.
    """
    # A server may have been started anew since it was asked last.
    told = {"uri": server, "pool_pre_ping": "true"}
    if not server:
        told = {"uri": f"sqlite:///{directory / 'iceberg.db'}"}
    if isinstance(place, S3):
        names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
        told |= dict(zip(names, place.service.keys.values(), strict=False))
        told["s3.region"] = place.service.region
        told["s3.anonymous"] = str(not place.service.keys).lower()
        if place.service.endpoint:
            told["s3.endpoint"] = place.service.endpoint
    return SqlCatalog(CATALOG, **told, warehouse=place.uri("iceberg"))


def server_at(uri: str) -> URL:
    """Returns what a URI of a database of PostgreSQL says.

    Raises LakeError where it is none, has a password, or says what not all engines understand.
    """
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        url = URL.create("")
    if url.drivername != "postgresql" or not url.database:
        raise LakeError("the server is to be named as postgresql://USER@HOST:PORT/DATABASE")
    if url.password is not None or "password" in url.query:
        raise LakeError(
            "the server is named with a password, which would stand in the lake for others to "
            "read: write it into ~/.pgpass, and name the server without it"
        )
    others = sorted(set(url.query) - OPTIONS)
    if others:
        raise LakeError(
            f"of a server, {others[0]} is not understood: there are sslmode, sslrootcert"
        )
    return url


def is_inside(name: str) -> bool:
    """Returns whether a file, or a folder, is among a lake's own by its name."""
    return not name.startswith(("/", SCHEME))


@told_as_ours()
def create(directory: Path, place: Place, server: str) -> None:
    """Makes the table of a lake, unless an attempt that was killed has made it.

    Raises LakeError where the catalog has such a table of something else.
    """
    if any(c in str(directory) for c in "?#%"):
        raise LakeError(f"{directory} has a ?, # or %, which URIs have another use for: rename it")
    if isinstance(place, Disk):
        (directory / "iceberg").mkdir(exist_ok=True)
    catalog = catalog_of(directory, place, server)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    # Engines that write files anew need not say that a column has no null.
    schema = Schema(
        *(NestedField(number_of(field.name), field.name, TYPES[field.type]) for field in SCHEMA)
    )
    spec = PartitionSpec(
        PartitionField(number_of("start"), 1000, DayTransform(), "day"),
        PartitionField(number_of("sensor"), 1001, IdentityTransform(), "of_sensor"),
    )
    try:
        table = catalog.create_table_if_not_exists(
            TABLE, schema, partition_spec=spec, properties=PROPERTIES
        )
        where = table.location()
        is_own = is_inside(place.name_of(where))
    except FileNotFoundError as error:
        where, is_own = str(error.filename or "a place that is not here"), False
    except LakeError:
        is_own = False
    if not is_own:
        raise LakeError(
            f"{server or directory} has the table {TABLE} of another lake, at {where}: give each "
            "lake a database of its own"
        )


def number_of(column: str) -> int:
    """Returns the number of a column, which is the same in each lake."""
    return int(SCHEMA.names.index(column)) + 1


class IcebergTable:
    """An Iceberg table, and the register that follows it."""

    grace_s = 86_400.0

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.place = lake.place
        self.needed: set[str] | None = None

    # Whoever ships asks neither, and may have no way to a server.
    @cached_property
    @told_as_ours()
    def catalog(self) -> SqlCatalog:
        """The catalog."""
        return catalog_of(self.lake.directory, self.place, self.lake.server)

    @cached_property
    @told_as_ours()
    def of_iceberg(self) -> OfIceberg:
        """The table, as it was when it was refreshed last. Raises LakeError where it is gone."""
        directory = self.lake.directory
        try:
            table = self.catalog.load_table(TABLE)
        except NoSuchTableError:
            where = self.lake.server or directory / "iceberg.db"
            raise LakeError(f"{directory} has lost its table {TABLE}: see {where}") from None
        # Files are known by where they lie, so what lies elsewhere would be needed by nobody.
        if not is_inside(self.place.name_of(table.location())):
            raise LakeError(
                f"the files of {TABLE} are named as they lay when the lake was made, in "
                f"{table.location()}, and it is in {self.place.path('')} now: move it back there"
            )
        return table

    @told_as_ours()
    def files(self) -> list[LakeFile]:
        """Returns the files of the table, in the order of their rows' times."""
        tasks = self.of_iceberg.scan().plan_files()
        for task in tasks:
            if task.delete_files:
                raise LakeError(
                    f"{TABLE} has rows that were deleted one by one, which is not read here: "
                    "rewrite its files by the engine that did it"
                )
        found = [self.lake_file(task.file) for task in tasks]
        return sorted(found, key=lambda file: (file.first_us or 0, file.path))

    def lake_file(self, file: DataFile) -> LakeFile:
        """Returns a file of Iceberg's as the lake knows files."""
        name = self.place.name_of(file.file_path)
        day, sensor = file.partition[0], file.partition[1]
        day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y-%m-%d")
        start = number_of("start")
        first_us, last_us = (
            int.from_bytes(bounds[start], "little", signed=True) if start in bounds else None
            for bounds in (file.lower_bounds or {}, file.upper_bounds or {})
        )
        size, rows = file.file_size_in_bytes, file.record_count
        return LakeFile(name, "flows", day, sensor, size, rows, first_us, last_us)

    def files_of(self, segments: Sequence[tuple[str, str]]) -> list[LakeFile]:
        """Returns files that have all rows of segments which the roll-up does not have.

        Others may have put files together meanwhile, so these are all files of the sensors.
        """
        sensors = {sensor for sensor, _ in segments}
        return [file for file in self.files() if file.sensor in sensors]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Makes all that is read inside be of one moment."""
        register = self.lake.db
        while True:
            before = self.refreshed()
            with self.lake.reading():
                there = register.execute("select id, what from changes").fetchall()
                # The register is of a moment between these two looks at the table.
                if self.newest() != before:
                    continue
                behind = [json.loads(what) for change, what in there if self.has(change)]
                if not behind:
                    yield
                    return
                # Whoever reads may have no right to write: a copy of the register follows.
                copy = sqlite3.connect(":memory:")
                register.backup(copy)
            self.lake.db = copy
            try:
                for what in behind:
                    self.to_register(what)
                yield
            finally:
                self.lake.db = register
                copy.close()
            return

    @told_as_ours()
    def refreshed(self) -> int | None:
        """Takes up the table as it is now. Returns the number of its snapshot."""
        self.of_iceberg.refresh()
        return self.of_iceberg.metadata.current_snapshot_id

    @told_as_ours()
    def newest(self) -> int | None:
        """Returns the number of the snapshot that the table has now."""
        return self.catalog.load_table(TABLE).metadata.current_snapshot_id

    def has(self, change: str) -> bool:
        """Returns whether the table has a snapshot of a change."""
        snapshots = self.of_iceberg.metadata.snapshots
        return any(s.summary is not None and s.summary[CHANGE] == change for s in snapshots)

    @told_as_ours()
    def settle(self) -> None:
        """Lets the register follow what a process that was killed has done to the table."""
        self.needed = None
        begun = self.lake.db.execute("select id, what from changes").fetchall()
        if begun and self.lake.server:
            self.await_server()
        self.of_iceberg.refresh()
        for change, what in begun:
            self.follow(change, json.loads(what) if self.has(change) else None)

    def await_server(self) -> None:
        """Waits for the end of a commit that a server may still be about."""
        row = {"catalog": CATALOG, "namespace": NAMESPACE, "name": TABLE.split(".")[1]}
        with self.catalog.engine.begin() as connection:
            connection.execute(text("set local lock_timeout = '60s'"))
            connection.execute(text(LOCK), row)

    def follow(self, change: str, what: dict[str, Any] | None) -> None:
        """Does to the register what a change has done to the table; nothing where it has not."""
        with self.lake.transaction():
            if what is not None:
                self.to_register(what)
            self.lake.db.execute("delete from changes where id = ?", (change,))

    def to_register(self, what: dict[str, Any]) -> None:
        """Enters a change into the register."""
        for account in what.get("segments", []):
            self.lake.add_segment(Account(**account))
        self.lake.expire_rows(what.get("expired", []))

    def change(
        self, what: dict[str, Any], do: Callable[[Transaction, dict[str, str]], None]
    ) -> None:
        """Changes the table and then the register."""
        change = uuid.uuid4().hex
        self.lake.db.execute("insert into changes values (?, ?)", (change, json.dumps(what)))
        for tried in range(1, TRIES + 1):
            try:
                with self.of_iceberg.transaction() as transaction:
                    do(transaction, {CHANGE: change})
                break
            except CommitFailedException as error:
                self.of_iceberg.refresh()
                # Whether a commit failed whose answer was lost is what the table says.
                if self.has(change):
                    break
                if tried == TRIES:
                    self.follow(change, None)
                    raise LakeError(
                        f"{TABLE} is being changed by others all the time: {error}"
                    ) from None
        self.follow(change, what)
        self.needed = None

    def look_at(self, account: Account, files: Sequence[FlowFile]) -> None:
        """Raises LakeError where a file does not tell its partition by what it says of columns."""
        io, metadata = self.of_iceberg.io, self.of_iceberg.metadata
        for file in (file for file in files if file.rows):
            uri = self.place.uri(file.name)
            try:
                found = next(parquet_files_to_data_files(io, metadata, iter([uri])))
                told = found.partition[1]
            except (ValueError, TypeError, KeyError) as error:
                told = str(error)
            if told != account.sensor:
                raise LakeError(
                    f"{file.path} is of the sensor {account.sensor}, and what it tells of its "
                    f"columns does not say so ({told}): make it anew by `tapdeck flows`"
                )

    @told_as_ours()
    def append(self, batch: Sequence[tuple[Account, Sequence[FlowFile]]]) -> None:
        """Takes in segments that have landed: their files become the table's own."""
        rows = [file for _, files in batch for file in files if file.rows]
        paths = [self.place.uri(file.name) for file in rows]

        def do(transaction: Transaction, properties: dict[str, str]) -> None:
            if paths:
                # The register knows what is there. Iceberg would read all of its metadata for that.
                transaction.add_files(paths, properties, check_duplicate_files=False)

        told = {"segments": [vars(account) for account, _ in batch]}
        if paths:
            self.change(told, do)
            return
        # Segments without rows change nothing but the register.
        with self.lake.transaction():
            for account, _ in batch:
                self.lake.add_segment(account)

    @told_as_ours()
    def exchange(self, before: Sequence[LakeFile], after: LakeFile) -> None:
        """Puts a file in the place of others that have the same rows."""
        self.overwrite({}, before, [self.place.uri(after.path)])

    @told_as_ours()
    def drop(self, files: Sequence[LakeFile], counts: Counts) -> None:
        """Takes files out for good, and says so in the accounts of their segments."""
        self.overwrite({"expired": list(counts)}, files, [])

    def overwrite(
        self, what: dict[str, Any], before: Sequence[LakeFile], after: Sequence[str]
    ) -> None:
        """Takes files out of the table and others in, at once."""
        wanted = {file.path for file in before}

        def do(transaction: Transaction, properties: dict[str, str]) -> None:
            tasks = self.of_iceberg.scan().plan_files()
            found = [task.file for task in tasks]
            there = [file for file in found if self.place.name_of(file.file_path) in wanted]
            if len(there) != len(wanted):
                raise LakeError(
                    f"others have changed {TABLE} meanwhile, nothing was exchanged: run it again"
                )
            metadata = transaction.table_metadata
            new = parquet_files_to_data_files(self.of_iceberg.io, metadata, iter(after))
            with transaction.update_snapshot(snapshot_properties=properties).overwrite() as update:
                for file in there:
                    update.delete_data_file(file)
                for file in new:
                    update.append_data_file(file)

        try:
            self.change(what, do)
        except LakeError:
            self.settle()
            raise

    @told_as_ours()
    def needs(self, path: str) -> bool:
        """Returns whether a file is named by a snapshot that is kept."""
        if self.needed is None:
            self.needed = self.named_files(self.of_iceberg)
        return path in self.needed

    def named_files(self, table: OfIceberg) -> set[str]:
        """Returns all files of rows and of metadata that snapshots of a table name."""
        metadata, name_of = table.metadata, self.place.name_of
        told = [*metadata.statistics, *metadata.partition_statistics]
        named = {name_of(file.statistics_path) for file in told}
        for snapshot in metadata.snapshots:
            named.add(name_of(snapshot.manifest_list))
            for manifest in snapshot.manifests(table.io):
                name = name_of(manifest.manifest_path)
                if name in named:
                    continue
                named.add(name)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                named.update(name_of(entry.data_file.file_path) for entry in entries)
        return named

    @told_as_ours()
    def forget(self, grace_s: float) -> None:
        """Expires snapshots that were replaced longer ago."""
        before_ms = int((time.time() - grace_s) * 1000)
        times = [snapshot.timestamp_ms for snapshot in self.of_iceberg.metadata.snapshots]
        # What was in force at that time was replaced since, or is in force.
        kept = max((made for made in times if made <= before_ms), default=None)
        if kept is not None:
            kept_from = datetime.fromtimestamp(kept / 1000, UTC)
            self.of_iceberg.maintenance.expire_snapshots().older_than(kept_from).commit()
        self.of_iceberg.refresh()
        self.needed = None

    @told_as_ours()
    def orphans(self) -> list[Found]:
        """Returns files that nobody needs: of metadata, and of rows that other engines made."""
        found: list[Found] = []
        for name in (TABLE, HOSTS):
            # What is there is looked at first, and then what is named: that may be more by now.
            folder = f"iceberg/{name.replace('.', '/')}"
            there: dict[str, Found] = {}
            with suppress(FileNotFoundError):
                there = {file.name: file for file in self.place.files(folder)}
            before_us = (time.time() - UNNAMED_S) * 1e6
            old = {name for name, file in there.items() if file.written_us < before_us}
            if not old or not self.catalog.table_exists(name):
                continue
            named = self.named_files(self.catalog.load_table(name))
            files = {name for name in old if name.endswith((".avro", ".parquet"))} - named
            # Hadoop's file system writes a sum beside each file, which others know nothing of.
            left = there.keys() - files
            sums = {name for name in old if name.endswith(".crc") and sum_of(name) not in left}
            found += [there[name] for name in files | sums]
        return found


def sum_of(name: str) -> str:
    """Returns the name of the file that a sum is of."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last[1 : -len('.crc')]}"
