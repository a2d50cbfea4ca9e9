"""`tapdeck-lake commit`: takes what sensors have shipped into the table, each segment once.

A segment is taken when its first file has landed, since that comes last, and when its rows, counted
by the engine that will read them, have the packets that its account tells. Its rows and its account
enter the table at once, with those of up to a thousand others. What lands again is known by sensor
and segment, and left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from .catalog import LANDED, Lake, folder_of, sensor_of
from .engine import engine, listed
from .errors import AwayError, LakeError, told
from .flow_files import Account, FlowFile, segments_in
from .place import Found
from .reader import READER

BATCH = 1000
"""Segments of one transaction."""


@dataclass
class Committed:
    """What was taken into the table, and how many segments could not be."""

    segments: int = 0
    rows: int = 0
    faults: int = 0


def commit(lake: Lake) -> Committed:
    """Takes all that has landed. What cannot be taken is told on standard error, and counted."""
    done = Committed()
    db = engine(lake.place)
    with lake.changed():
        lake.table.settle()
        batch: list[tuple[Account, list[FlowFile]]] = []
        for folder, stem, names, first in landed(lake):
            try:
                if is_taken(lake, folder, stem, first):
                    continue
                inside = f"{LANDED}/{folder}"
                account, files = READER.read_listed(lake.place, inside, stem, names)
                # A sensor has one folder, whatever else its name could be written like.
                of_sensor = folder_of(account.sensor)
                if folder != of_sensor:
                    raise LakeError(
                        f"{files[-1].path} is of the sensor {account.sensor}, and does not lie in "
                        f"its folder: move it to {lake.place.path(f'{LANDED}/{of_sensor}')}"
                    )
                count(db, account, files)
                lake.table.look_at(account, files)
            except AwayError:
                raise
            except (LakeError, OSError) as error:
                print(f"tapdeck-lake: {told(error)}", file=sys.stderr)
                done.faults += 1
                continue
            batch.append((account, files))
            if len(batch) == BATCH:
                take(lake, batch, done)
        if batch:
            take(lake, batch, done)
    return done


def landed(lake: Lake) -> Iterator[tuple[str, str, list[str], Found]]:
    """Gives the segments whose files have landed: folder, stem, names of files, and the first."""
    there = {found.name: found for found in lake.place.files(LANDED, 1)}
    for (inside, stem), names in segments_in(there).items():
        _, _, folder = inside.partition("/")
        if folder:
            yield folder, stem, names, there[names[-1]]


def is_taken(lake: Lake, folder: str, stem: str, first: Found) -> bool:
    """Returns whether a segment that has landed is in the table, or was.

    Raises LakeError where it landed again with other rows.
    """
    at_us = lake.committed_us(sensor_of(folder), stem)
    if at_us is None:
        return False
    if first.changed_us > at_us and not lake.table.needs(first.name):
        path = lake.place.path(first.name)
        lake.compare(path, READER.read_account(lake.place, first.name))
    return True


COUNT = """
select count(*), coalesce(sum(fwd_packets + rev_packets), 0)::bigint,
    coalesce(bool_and(sensor = $sensor and segment = $segment), true)
from read_parquet({files}, hive_partitioning = false)
"""


def count(db: duckdb.DuckDBPyConnection, account: Account, files: list[FlowFile]) -> None:
    """Counts the rows of a segment. Raises LakeError where they are not what its account tells."""
    query = COUNT.format(files=listed(file.path for file in files))
    whose = {"sensor": account.sensor, "segment": account.segment}
    first = files[-1].path
    try:
        found = db.execute(query, whose).fetchone()
    except duckdb.Error as error:
        raise LakeError(f"{first} cannot be read: {error}") from None
    if found != (account.rows, account.packets_in_rows, True):
        raise LakeError(
            f"{first} is damaged: its rows are not those that its account tells; copy it again"
        )


def take(lake: Lake, batch: list[tuple[Account, list[FlowFile]]], done: Committed) -> None:
    """Takes segments into the table, all at once, and empties the batch."""
    lake.table.append(batch)
    done.segments += len(batch)
    done.rows += sum(account.rows for account, _ in batch)
    batch.clear()
