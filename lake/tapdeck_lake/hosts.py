"""`tapdeck-lake hosts`: who was seen, by hour, sensor and host.

"Was this address ever seen" over months is a question to a table that is a thousand times smaller
than the flows. Each run adds what the segments have that were committed since the last, as one part
for each day; a reader adds up the parts, and `compact` makes one of many. A segment is marked in
the transaction that adds its rows, so it counts once.

A row counts in the hour in which its slice begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import parts, views
from .catalog import Lake
from .engine import named, parquet
from .flow_files import SCHEMA
from .lake_file import LakeFile

SORTED = "order by host_num, host, hour, sensor"


@dataclass
class RolledUp:
    """What was added: segments, and rows of hosts."""

    segments: int = 0
    rows: int = 0


def hosts(lake: Lake) -> RolledUp:
    """Adds what was committed since the last time."""
    with lake.changed():
        lake.table.settle()
        return roll_up(lake)


def roll_up(lake: Lake) -> RolledUp:
    """Adds what was committed since the last time, under the lake's lock."""
    pending = lake.pending_hosts()
    if not pending:
        return RolledUp()
    by_day: dict[str, list[LakeFile]] = {}
    for file in lake.table.files_of(pending):
        by_day.setdefault(file.day, []).append(file)
    made = []
    with parts.maker(lake) as db:
        db.register("pending", named(pending))
        for day, files in by_day.items():
            rows = parquet([lake.path(file) for file in files], SCHEMA)
            flows = f"(select * from ({rows}) semi join pending using (sensor, segment))"
            several = views.HOSTS.format(flows=flows)
            query = f"{views.HOSTS_TOGETHER.format(parts=several)} {SORTED}"
            part = parts.make(lake, db, "hosts", (day, ""), query)
            if part.rows:
                made.append(part)
            else:
                lake.place.remove(part.path)
    with lake.transaction():
        for part in made:
            lake.insert(part)
        lake.db.executemany(
            "update segments set in_hosts = 1 where sensor = ? and segment = ?", pending
        )
    return RolledUp(len(pending), sum(part.rows for part in made))
