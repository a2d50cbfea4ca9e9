"""`tapdeck-lake fetch`: the packets behind the rows of an answer.

The rows go to `tapdeck fetch` as a file, with the columns that say where packets lie; it reads the
segments, wherever they are, and says what is gone. Its exit code is this one's.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import duckdb

from . import ask
from .catalog import SEGMENTS, Lake, folder_of
from .engine import listed
from .errors import LakeError

SENSOR = "{sensor}"
"""What stands for each row's sensor in the place of a store, as `tapdeck fetch` has it."""


def store_of(lake: Lake, sensors: list[str]) -> str:
    """Returns where a lake has the segments of sensors, for `tapdeck fetch`."""
    where = lake.place.path(SEGMENTS)
    for sensor in sensors:
        if folder_of(sensor) != sensor:
            raise LakeError(
                f"the segments of {sensor} lie in {where}/{folder_of(sensor)}, which has another "
                "name: give it as --store, and ask for one sensor"
            )
    return f"{where}/{SENSOR}"


def fetch(
    db: duckdb.DuckDBPyConnection, query: str, store: str | Lake, out: Path, tapdeck: str
) -> int:
    """Writes the packets behind an answer to a pcapng file. Returns the exit code of the fetch.

    Parameters
    ----------
    db
        What is asked.
    query
        A question that gives whole rows of `flows`.
    store
        Where the packets are: a place that `tapdeck fetch` knows, or a lake that has them.
    out
        The file of packets.
    tapdeck
        The program.
    """
    with tempfile.TemporaryDirectory(prefix="tapdeck-lake-") as directory:
        rows = Path(directory) / "rows.parquet"
        ask.ask(db, query, "parquet", rows)
        if isinstance(store, Lake):
            try:
                of_rows = f"select distinct sensor from read_parquet({listed([rows])})"
                found = db.execute(of_rows).fetchall()
            except duckdb.Error:
                raise LakeError(
                    "the answer has no column sensor: ask for whole rows, select * from flows ..."
                ) from None
            store = store_of(store, [sensor for (sensor,) in found])
        command = [tapdeck, "fetch", "--flows", str(rows), "--store", store, "-w", str(out)]
        try:
            return subprocess.run(command, check=False).returncode
        except FileNotFoundError:
            raise LakeError(f"{tapdeck} is not there: name the program by --tapdeck") from None
