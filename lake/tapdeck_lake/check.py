"""`tapdeck-lake check`: whether every row of every segment is in the table, and there once.

Each segment's account says how many rows and packets its flow table has. The table is counted by
segment and held against that. What a recording lacks (losses, damage, segments that retention took
first) is no fault of the lake's and is told apart.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import duckdb

from .catalog import LANDED, Lake
from .engine import over_lake
from .errors import counted

OF_ROWS = (LANDED, "flows", "hosts", "iceberg")
"""Folders of files that have rows."""

COUNTS = """
select sensor, segment, coalesce(told.rows - told.rows_expired, 0) as wanted,
    coalesce(there.rows, 0) as found,
    coalesce(told.packets_in_rows - told.packets_expired, 0) as packets_wanted,
    coalesce(there.packets, 0) as packets_found, told.segment is null as is_unknown
from segments told full join (
    select sensor, segment, count(*) as rows, sum(fwd_packets + rev_packets)::bigint as packets
    from flows group by sensor, segment) there using (sensor, segment)
where wanted != found or packets_wanted != packets_found
order by sensor, segment
"""

TOTALS = """
select count(*), coalesce(sum(rows - rows_expired), 0)::bigint,
    coalesce(sum(packets_in_rows - packets_expired), 0)::bigint, coalesce(sum(lost), 0)::bigint,
    coalesce(sum(unseen), 0)::bigint, coalesce(sum(cutoff), 0)::bigint,
    coalesce(sum(shed_packets), 0)::bigint
from segments
"""

DAMAGED = """
select sensor, segment, packets, packets_in_rows from segments
where packets != packets_in_rows order by sensor, number
"""


@dataclass
class Checked:
    """What the table has, and what is wrong.

    `faults` are the lake's; `notes` tell what recordings lack.
    """

    totals: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


TOTAL_NAMES = ("segments", "rows", "packets", "lost", "unseen", "cutoff", "shed")


def check(lake: Lake) -> Checked:
    """Counts the table and holds it against the segments' accounts."""
    done = Checked()
    with lake.table.reading():
        files = [*lake.files("flows"), *lake.files("hosts")]
    # One list of all is quicker to be had than word of each.
    wanted = {file.path for file in files}
    sizes: dict[str, int] = {}
    for folder in OF_ROWS:
        with suppress(FileNotFoundError):
            there = lake.place.files(folder)
            sizes |= {found.name: found.bytes for found in there if found.name in wanted}
    for file in files:
        if file.path not in sizes and (found := lake.place.look(file.path)):
            sizes[file.path] = found.bytes
        if sizes.get(file.path) != file.bytes:
            path = lake.path(file)
            done.faults.append(f"{path} is missing, or has another length than it had")
    if done.faults:
        return done
    db = over_lake(lake)
    try:
        count_rows(db, done)
    except duckdb.Error as error:
        done.faults.append(f"the table cannot be read: {error}")
        return done
    for sensor, segment, packets, in_rows in db.execute(DAMAGED).fetchall():
        done.notes.append(
            f"{sensor}: {segment} has {counted(packets, 'packet')}, and {in_rows:,} of them could "
            "be read when its rows were made"
        )
    for sensor, first, last in db.execute("select * from missing order by 1, 2").fetchall():
        which = f"segment {first}" if first == last else f"segments {first} to {last}"
        done.notes.append(f"{sensor}: {which} never came")
    return done


def count_rows(db: duckdb.DuckDBPyConnection, done: Checked) -> None:
    """Counts rows and packets by segment."""
    found = db.execute(TOTALS).fetchone() or (0,) * len(TOTAL_NAMES)
    done.totals = dict(zip(TOTAL_NAMES, found, strict=True))
    for sensor, segment, wanted, found_rows, packets, there, is_unknown in db.execute(
        COUNTS
    ).fetchall():
        if is_unknown:
            done.faults.append(
                f"{sensor}: {segment} has {counted(found_rows, 'row')} and was never committed"
            )
        else:
            done.faults.append(
                f"{sensor}: {segment} has {counted(found_rows, 'row')} of {wanted:,}, with "
                f"{counted(there, 'packet')} of {packets:,}"
            )
