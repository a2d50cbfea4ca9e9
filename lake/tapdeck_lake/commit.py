"""`tapdeck-lake commit`: takes what sensors have shipped into the table, each segment once.

A segment is taken when its first file has landed, since that comes last, and when its rows, counted
by the engine that will read them, have the packets that its account tells. Its rows and its account
enter the table at once, with those of up to a thousand others. What lands again is known by sensor
and segment, and left alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import duckdb

from .catalog import Lake, folder_of, sensor_of
from .engine import engine, listed
from .errors import LakeError, told
from .flow_files import Account, FlowFile, stems
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
    db = engine()
    with lake.changed():
        lake.table.settle()
        batch: list[tuple[Account, list[FlowFile]]] = []
        for directory, stem in landed(lake):
            try:
                if is_taken(lake, directory, stem):
                    continue
                account, files = READER.read_segment(directory, stem)
                # A sensor has one folder, whatever else its name could be written like.
                folder = folder_of(account.sensor)
                if folder != directory.name:
                    raise LakeError(
                        f"{directory / stem}.parquet is of the sensor {account.sensor}, and does "
                        f"not lie in its folder: move it to {directory.with_name(folder)}"
                    )
                count(db, account, files)
                lake.table.look_at(account, files)
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


def landed(lake: Lake) -> list[tuple[Path, str]]:
    """Returns the segments whose files have landed, by folder and stem."""
    folders = sorted(entry for entry in lake.landed.iterdir() if entry.is_dir())
    return [(folder, stem) for folder in folders for stem in stems(folder)]


def is_taken(lake: Lake, directory: Path, stem: str) -> bool:
    """Returns whether a segment that has landed is in the table, or was.

    Raises LakeError where it landed again with other rows.
    """
    at_us = lake.committed_us(sensor_of(directory.name), stem)
    if at_us is None:
        return False
    path = directory / f"{stem}.parquet"
    if path.stat().st_ctime_ns // 1000 > at_us and not lake.table.needs(path):
        lake.compare(path, READER.read_account(path))
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
