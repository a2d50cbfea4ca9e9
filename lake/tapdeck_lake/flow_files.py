"""What `tapdeck flows` leaves in a directory: files of rows, and what they tell of their segments.

A segment `STEM` has the file `STEM.parquet`, and `STEM-YYYY-MM-DD.parquet` for each later day that
it has packets of. `STEM.parquet` gets its name last, so where that is, all are. Its metadata has an
account under the key `tapdeck.segment`: how many rows and packets the files have, how many packets
the segment has, and what it lacks. Files of chosen packets (`tapdeck flows` with an expression or
times) have none: they can be asked, but are no part of a lake.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import LakeError, counted
from .place import Place

ACCOUNT_KEY = b"tapdeck.segment"
VERSION_KEY = b"tapdeck.flows"
VERSION = b"1"

STEM = re.compile(r"tapdeck-(\d{8,19})-\d{8}T\d{6}Z")
FILE = re.compile(rf"({STEM.pattern})(?P<day>-\d{{4,}}-\d\d-\d\d)?\.parquet")

MOST = 1 << 53
"""More of anything than a segment has; the sum of a thousand such is a number for databases."""
LARGEST = (1 << 63) - 1
"""The largest number that databases have."""

UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)
"""What pyarrow raises over a file whose end is damaged."""

UTC_US = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        pa.field("sensor", pa.string(), nullable=False),
        pa.field("segment", pa.string(), nullable=False),
        pa.field("start", UTC_US, nullable=False),
        pa.field("end", UTC_US, nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("ip_version", pa.int32()),
        pa.field("proto", pa.int32()),
        pa.field("ether_type", pa.int32()),
        pa.field("vlan", pa.int32()),
        pa.field("tunnel", pa.int32()),
        pa.field("src_ip", pa.string()),
        pa.field("dst_ip", pa.string()),
        pa.field("src_num", pa.int64()),
        pa.field("dst_num", pa.int64()),
        pa.field("src_port", pa.int32()),
        pa.field("dst_port", pa.int32()),
        pa.field("icmp_type_code", pa.int32()),
        pa.field("fwd_packets", pa.int64(), nullable=False),
        pa.field("rev_packets", pa.int64(), nullable=False),
        pa.field("fwd_bytes", pa.int64(), nullable=False),
        pa.field("rev_bytes", pa.int64(), nullable=False),
        pa.field("fwd_tcp_flags", pa.int16()),
        pa.field("rev_tcp_flags", pa.int16()),
        pa.field("end_reason", pa.int8(), nullable=False),
        pa.field("lost_near", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("span", pa.int64(), nullable=False),
        pa.field("granules", pa.int32()),
        pa.field("runs", pa.binary()),
    ]
)
"""The columns of a flow table, as docs/FLEET.md has them."""


@dataclass(frozen=True)
class Account:
    """What a segment's first file tells of the segment.

    Times are UTC nanoseconds since 1970, None of a segment without statistics, and so is `packets`.
    """

    sensor: str
    segment: str
    files: int
    rows: int
    packets_in_rows: int
    packets: int | None
    began_ns: int | None
    ended_ns: int | None
    lost: int
    unseen: int
    cutoff: int
    bytes_cutoff: int
    shed_packets: int
    shed_bytes: int

    @classmethod
    def parse(cls, text: bytes) -> Account:
        """Returns the account that a text is. Raises ValueError where the text is none."""
        told: Any = json.loads(text)
        if not isinstance(told, dict):
            raise ValueError("no JSON object")
        values: dict[str, Any] = {}
        for name in cls.__annotations__:
            value = told.get(name)
            if name in ("sensor", "segment"):
                # What JSON can say and UTF-8 cannot is refused by `encode`.
                is_right = isinstance(value, str) and value.encode() is not None
            elif value is None:
                is_right = name in ("packets", "began_ns", "ended_ns")
            else:
                least = -LARGEST if name.endswith("_ns") else 0
                most = LARGEST if name.endswith("_ns") else MOST
                # A truth value is an int, too.
                is_right = type(value) is int and least <= value <= most
            if not is_right:
                raise ValueError(f"no {name}")
            values[name] = value
        if number_of(values["segment"]) > LARGEST:
            raise ValueError("no segment")
        return cls(**values)

    @property
    def number(self) -> int:
        """The segment's number in its store."""
        return number_of(self.segment)


@dataclass(frozen=True)
class FlowFile:
    """One file of flow rows, with its name and its path at the place where it lies.

    `first_us` and `last_us` are when the earliest and the latest row begin, UTC microseconds since
    1970; None where there are no rows.
    """

    name: str
    path: str
    bytes: int
    rows: int
    first_us: int | None
    last_us: int | None
    account: Account | None

    @classmethod
    def read(cls, place: Place, name: str) -> FlowFile:
        """Reads a file's end.

        Raises LakeError where the file is no flow table, and FileNotFoundError where it is gone.
        """
        try:
            return cls.read_end(place, name)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            path = place.path(name)
            raise LakeError(f"{path} cannot be read as a flow table: {error}") from None

    @classmethod
    def read_end(cls, place: Place, name: str) -> FlowFile:
        """Reads a file's end. Raises one of `UNREADABLE` where that is damaged in some ways."""
        path = place.path(name)
        with place.open(name) as data, pq.ParquetFile(data) as file:
            metadata, schema = file.metadata, file.schema_arrow
            size = data.seek(0, os.SEEK_END)
        told = metadata.metadata or {}
        if told.get(VERSION_KEY) != VERSION:
            raise LakeError(f"{path} is no flow table that is known here: see docs/FLEET.md")
        if not schema.equals(SCHEMA):
            raise LakeError(f"{path} has other columns than a flow table has")
        account = told.get(ACCOUNT_KEY)
        try:
            parsed = Account.parse(account) if account is not None else None
        except (ValueError, RecursionError) as error:
            raise LakeError(f"{path} tells nothing of its segment: {error}") from None
        first_us, last_us = times(path, metadata)
        if first_us is not None and last_us is not None and day_of(first_us) != day_of(last_us):
            raise LakeError(
                f"{path} has rows of {day_of(first_us)} and of {day_of(last_us)}: a flow table has "
                "those of one day; make it by `tapdeck flows`"
            )
        return cls(name, path, size, metadata.num_rows, first_us, last_us, parsed)

    @property
    def day(self) -> str | None:
        """The day of all its rows (UTC), as `2026-01-02`."""
        return None if self.first_us is None else day_of(self.first_us)


def times(path: str, metadata: pq.FileMetaData) -> tuple[int | None, int | None]:
    """Returns when the earliest and the latest row of a file begin; None where there are no rows.

    Raises LakeError where the file does not tell.
    """
    starts, lasts = [], []
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        columns = [group.column(i) for i in range(group.num_columns)]
        if [column.path_in_schema for column in columns] != SCHEMA.names:
            raise LakeError(f"{path} is damaged: its columns have other names in places")
        # Those of all columns are read, because PyIceberg reads them, too.
        values = [extremes(column) for column in columns]
        if group.num_rows:
            of_start = values[SCHEMA.names.index("start")]
            if of_start is None:
                raise LakeError(f"{path} does not tell the times of its rows")
            starts.append(microseconds(of_start[0]))
            lasts.append(microseconds(of_start[1]))
    return min(starts, default=None), max(lasts, default=None)


def extremes(column: pq.ColumnChunkMetaData) -> tuple[Any, Any] | None:
    """Returns the least and the greatest value of a column; None where it does not tell."""
    if not column.is_stats_set or not column.statistics.has_min_max:
        return None
    return column.statistics.min, column.statistics.max


def microseconds(time: datetime) -> int:
    """Returns a time as UTC microseconds since 1970."""
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def day_of(time_us: int) -> str:
    """Returns the day (UTC) of a time, as `2026-01-02`."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d")


def number_of(stem: str) -> int:
    """Returns the number of a segment in its store. Raises ValueError where that is no segment."""
    match = STEM.fullmatch(stem)
    if match is None:
        raise ValueError(f"{stem} is no segment's name")
    return int(match[1])


def segments_in(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Returns the segments that have their first file among some, by folder and stem, with these.

    Segments are in the order of folders and numbers, and of a segment's files the first is last.
    """
    firsts: dict[tuple[str, str], str] = {}
    days: dict[tuple[str, str], list[str]] = {}
    for file in names:
        folder, _, name = file.rpartition("/")
        match = FILE.fullmatch(name)
        if match is None:
            continue
        whose = folder, match[1]
        if match["day"]:
            days.setdefault(whose, []).append(file)
        else:
            firsts[whose] = file
    ordered = sorted(firsts, key=lambda whose: (whose[0], number_of(whose[1]), whose[1]))
    return {whose: [*sorted(days.get(whose, [])), firsts[whose]] for whose in ordered}


def read_account(place: Place, name: str) -> Account:
    """Reads what a segment's first file tells. Raises LakeError where it tells nothing."""
    return account_of(FlowFile.read(place, name))


def account_of(first: FlowFile) -> Account:
    """Returns what a segment's first file tells. Raises LakeError where it tells nothing."""
    if first.account is None:
        raise LakeError(
            f"{first.path} does not tell what its segment has, so nobody could say whether all is "
            "there: make it by `tapdeck flows` without an expression or times"
        )
    return first.account


def read_segment(place: Place, stem: str, names: Sequence[str]) -> tuple[Account, list[FlowFile]]:
    """Reads the ends of a segment's files, the first of which is named last.

    Raises LakeError where they are not those of one whole segment.
    """
    files = [FlowFile.read(place, name) for name in names]
    first = files[-1]
    account = account_of(first)
    if account.segment != stem:
        raise LakeError(f"{first.path} is of {account.segment}: names have been changed")
    rows = sum(file.rows for file in files)
    if len(files) != account.files or rows != account.rows:
        raise LakeError(
            f"{first.path}: its segment has {counted(account.rows, 'row')} in "
            f"{counted(account.files, 'file')}, and there are {counted(rows, 'row')} in "
            f"{counted(len(files), 'file')}: copy them again"
        )
    return account, files


def missing(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the ranges of numbers that are missing between others, first and last of each."""
    ordered = sorted(numbers)
    pairs = itertools.pairwise(ordered)
    return [(one + 1, other - 1) for one, other in pairs if other > one + 1]
