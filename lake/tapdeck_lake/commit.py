"""`tapdeck-lake commit`: takes what sensors have shipped into the table, each segment once.

A segment is taken when its first file has landed, since that comes last. Its rows and its account
enter the table at once, with those of up to a thousand others. What lands again is
known by sensor and segment, and left alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .catalog import Lake, sensor_of
from .errors import LakeError
from .flow_files import Account, FlowFile, read_segment, stems

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
    with lake.changed():
        lake.table.settle()
        batch: list[tuple[Account, list[FlowFile]]] = []
        for directory, stem in landed(lake):
            sensor = sensor_of(directory.name)
            if lake.is_committed(sensor, stem):
                continue
            try:
                account, files = read_segment(directory, stem)
                if account.sensor != sensor:
                    raise LakeError(
                        f"{directory / stem}.parquet is of the sensor {account.sensor}, and lies "
                        f"in the folder of {sensor}: move it to where it belongs"
                    )
            except LakeError as error:
                print(f"tapdeck-lake: {error}", file=sys.stderr)
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


def take(lake: Lake, batch: list[tuple[Account, list[FlowFile]]], done: Committed) -> None:
    """Takes segments into the table, all at once, and empties the batch."""
    lake.table.append(batch)
    done.segments += len(batch)
    done.rows += sum(account.rows for account, _ in batch)
    batch.clear()
