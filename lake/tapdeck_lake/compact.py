"""`tapdeck-lake compact`: makes few files of many, sorted by hour and source.

Each segment brings a file, and an engine opens every file that a question may be about. Of each day
the files that are smaller than half of what is aimed at are put together, those whose times lie
next to each other first, up to that size. A part must have as many rows and packets as what it is
made of, or it is not taken; the exchange is one commit, and the old files stay for readers
until they expire.

The roll-up of hosts comes first, so it never needs rows of files that are put together.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from . import hosts, parts, views
from .catalog import Lake
from .engine import HOSTS_SCHEMA, listed, parquet
from .errors import LakeError, counted
from .flow_files import SCHEMA
from .lake_file import LakeFile

TARGET_BYTES = 512 << 20
"""The size of files that is aimed at."""

SORTED = "order by hour_of(start), src_num, src_ip, start"

SUMS = {
    "flows": "count(*), sum(fwd_packets + rev_packets)::bigint, sum(fwd_bytes + rev_bytes)::bigint",
    "hosts": "sum(flows)::bigint, sum(sent_packets)::bigint, sum(sent_bytes)::bigint",
}


@dataclass
class Compacted:
    """How many files were put together, and how many they became."""

    before: int = 0
    after: int = 0


def compact(lake: Lake, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Puts small files together, day by day."""
    done = Compacted()
    with lake.changed():
        lake.table.settle()
        hosts.roll_up(lake)
        with parts.maker(lake) as db:
            for kind in ("flows", "hosts"):
                for of, files in by_day(lake.files(kind)).items():
                    for group in groups(files, target_bytes):
                        put_together(lake, db, kind, of, group)
                        done.before += len(group)
                        done.after += 1
    return done


def by_day(files: list[LakeFile]) -> dict[tuple[str, str], list[LakeFile]]:
    """Returns files by their days and sensors, in order."""
    days: dict[tuple[str, str], list[LakeFile]] = {}
    for file in files:
        days.setdefault((file.day, file.sensor), []).append(file)
    return days


def groups(files: list[LakeFile], target_bytes: int) -> list[list[LakeFile]]:
    """Returns which files are to be put together: two or more each time."""
    found: list[list[LakeFile]] = [[]]
    size = 0
    for file in files:
        if file.bytes * 2 >= target_bytes:
            continue
        if size + file.bytes > target_bytes and found[-1]:
            found.append([])
            size = 0
        found[-1].append(file)
        size += file.bytes
    return [group for group in found if len(group) > 1]


def put_together(
    lake: Lake,
    db: duckdb.DuckDBPyConnection,
    kind: str,
    of: tuple[str, str],
    group: list[LakeFile],
) -> None:
    """Makes one file of several."""
    paths = [lake.path(file) for file in group]
    if kind == "flows":
        query = f"{parquet(paths, SCHEMA)} {SORTED}"
    else:
        together = views.HOSTS_TOGETHER.format(parts=parquet(paths, HOSTS_SCHEMA))
        query = f"{together} {hosts.SORTED}"
    part = parts.make(lake, db, kind, of, query)
    source = f"select {SUMS[kind]} from read_parquet({{}}, hive_partitioning = false)"
    before = db.execute(source.format(listed(paths))).fetchone()
    after = db.execute(source.format(listed([lake.path(part)]))).fetchone()
    if before != after:
        lake.place.remove(part.path)
        raise LakeError(
            f"{counted(len(group), 'file')} of {of[0]} have {before} rows, packets and bytes, and "
            f"the file made of them {after}: nothing was exchanged; see whether the disk is sound"
        )
    if kind == "flows":
        lake.table.exchange(group, part)
        return
    with lake.transaction():
        lake.insert(part)
        lake.replace(group)
