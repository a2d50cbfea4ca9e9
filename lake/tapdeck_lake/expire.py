"""`tapdeck-lake expire`: removes files that are no part of the table any more, and old rows.

Files that compaction replaced stay for an hour, so that a question that began before ends well; of
an Iceberg table for a day, since a job of Spark that began before commits upon what it read.
Files that nobody names are what a killed process left, or came a second time. With a number of
days, whole days go: the account of each segment then says how many of its rows went, and `hosts`
stays. Sensors are asked nothing and told nothing.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from . import durable, hosts, parts
from .catalog import LANDED, SEGMENTS, Lake, now_us, sensor_of
from .engine import listed
from .errors import LakeError, told
from .flow_files import STEM
from .lake_file import LakeFile
from .place import Found
from .reader import READER

OF_LANDED = re.compile(rf"{LANDED}/([^/]+)/({STEM.pattern})[^/]*\.parquet")
"""The name of a file that has landed: the folder and the segment in it."""

DRAFT_US = 86_400_000_000
"""How old a draft of a sensor's is that nobody goes on with."""


@dataclass
class Expired:
    """What was removed, and how many segments were not, though the table has their names."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    faults: int = 0


def expire(
    lake: Lake, grace_s: float | None = None, keep_days: int | None = None, today: str = ""
) -> Expired:
    """Removes what is not needed.

    Parameters
    ----------
    lake
        The lake.
    grace_s
        Seconds that a file stays after it was replaced; None is what fits the lake's kind.
    keep_days
        Rows of how many days stay, this one included; None keeps all.
    today
        The day (UTC) that counts as this one, as `2026-01-02`; the clock's if it is empty.
    """
    done = Expired()
    if keep_days is not None and keep_days < 1:
        raise LakeError("keep at least one day")
    if grace_s is None:
        grace_s = lake.table.grace_s
    with lake.changed():
        lake.table.settle()
        if keep_days is not None:
            now = datetime.strptime(today, "%Y-%m-%d") if today else datetime.now(UTC)
            # A host that was seen stays known.
            hosts.roll_up(lake)
            oldest = (now - timedelta(days=keep_days - 1)).strftime("%Y-%m-%d")
            files = [file for file in lake.files("flows") if file.day < oldest]
            if files:
                lake.table.drop(files, counts_of(lake, files))
            done.rows = sum(file.rows for file in files)
        lake.table.forget(grace_s)
        remove_replaced(lake, grace_s, done)
        remove_orphans(lake, done)
    return done


def counts_of(lake: Lake, files: list[LakeFile]) -> list[tuple[int, int, str, str]]:
    """Returns rows and packets of each segment in files, with its sensor and its name."""
    with parts.maker(lake) as db:
        query = f"""select count(*), sum(fwd_packets + rev_packets)::bigint, sensor, segment
            from read_parquet({listed([lake.path(f) for f in files])}, hive_partitioning = false)
            group by sensor, segment"""
        return db.execute(query).fetchall()


def remove_replaced(lake: Lake, grace_s: float, done: Expired) -> None:
    """Removes files that were replaced long enough ago: from disk first, then from the catalog."""
    before = now_us() - int(grace_s * 1e6)
    query = "select path, bytes from files where replaced_us <= ?"
    for path, size in lake.db.execute(query, (before,)).fetchall():
        lake.place.remove(path)
        lake.db.execute("delete from files where path = ?", (path,))
        done.files += 1
        done.bytes += size


def remove_orphans(lake: Lake, done: Expired) -> None:
    """Removes what killed processes left. Nobody else changes the table meanwhile."""
    for kind in ("flows", "hosts"):
        is_part = lake.names if kind == "hosts" else lake.table.needs
        for found in list(lake.place.files(kind, 1)):
            if found.name.startswith(f"{kind}/day=") and not is_part(found.name):
                remove(lake, found, done)
    landed = list(lake.place.files(LANDED, 1))
    for found in [*lake.table.orphans(), *repeated(lake, landed, done)]:
        remove(lake, found, done)
    for scratch in lake.directory.glob(".scratch-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    old_us = now_us() - DRAFT_US
    for folder in (LANDED, SEGMENTS):
        for found in lake.place.files(folder, 1):
            # A sensor may be about to give one its name.
            if durable.is_draft(Path(found.name)) and found.written_us < old_us:
                remove(lake, found, done)


def repeated(lake: Lake, landed: list[Found], done: Expired) -> list[Found]:
    """Returns files that have landed and whose rows the table has from elsewhere, or had.

    What has other rows than those is told and counted, and stays.
    """
    again = []
    are_same: dict[str, bool] = {}
    # A segment's first file is the last to go, because it tells what the others are.
    for found in sorted(landed, key=lambda found: found.name):
        match = OF_LANDED.fullmatch(found.name)
        if match is None or lake.committed_us(sensor_of(match[1]), match[2]) is None:
            continue
        if lake.table.needs(found.name):
            continue
        first = f"{LANDED}/{match[1]}/{match[2]}.parquet"
        if first not in are_same:
            are_same[first] = is_same(lake, first)
            done.faults += not are_same[first]
        if are_same[first]:
            again.append(found)
    return again


def is_same(lake: Lake, first: str) -> bool:
    """Returns whether a segment's first file has what the register has; tells where it has not."""
    try:
        if lake.place.look(first) is not None:
            lake.compare(lake.place.path(first), READER.read_account(lake.place, first))
    except (LakeError, OSError) as error:
        print(f"tapdeck-lake: {told(error)}", file=sys.stderr)
        return False
    return True


def remove(lake: Lake, found: Found, done: Expired) -> None:
    """Removes a file and counts it."""
    lake.place.remove(found.name)
    done.files += 1
    done.bytes += found.bytes
