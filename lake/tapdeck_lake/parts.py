"""Files that the lake itself makes of rows: by DuckDB, sorted, under a name that nothing has yet.

A part is whole and durable before the catalog hears of it. One that the catalog never hears of,
because its maker was killed, is removed by `expire`.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from .catalog import Lake
from .engine import engine, quoted, scratch_of
from .errors import LakeError
from .flow_files import microseconds
from .lake_file import LakeFile

GROUP_ROWS = 250_000
"""Rows of a row group: what a question reads at least."""
MEMORY = "2GB"
"""Memory for sorting; what does not fit lies on disk meanwhile."""

FIRST_COLUMN = {"flows": "start", "hosts": "hour"}


@contextmanager
def maker(lake: Lake) -> Iterator[duckdb.DuckDBPyConnection]:
    """Gives DuckDB to make parts with, and removes its files afterwards."""
    scratch = scratch_of(lake)
    db = engine(lake.place, scratch, MEMORY)
    try:
        yield db
    finally:
        db.close()
        shutil.rmtree(scratch, ignore_errors=True)


def make(
    lake: Lake, db: duckdb.DuckDBPyConnection, kind: str, of: tuple[str, str], query: str
) -> LakeFile:
    """Writes the rows of a query as a part, which is no part of the table yet.

    `of` has its day, and its sensor; that is empty if there may be several.
    """
    name = f"{kind}/day={of[0]}/part-{uuid.uuid4().hex}.parquet"
    with lake.place.draft(name, scratch_of(lake)) as draft:
        db.execute(
            f"copy ({query}) to {quoted(draft)} "
            f"(format parquet, compression zstd, row_group_size {GROUP_ROWS})"
        )
        return described(draft, kind, of, name)


def described(path: Path, kind: str, of: tuple[str, str], name: str) -> LakeFile:
    """Returns what is in a part, which gets a name."""
    metadata = pq.read_metadata(path)
    first_us = last_us = None
    if metadata.num_rows:
        names = metadata.schema.names
        column = names.index(FIRST_COLUMN[kind])
        groups = [metadata.row_group(i).column(column) for i in range(metadata.num_row_groups)]
        if not all(group.is_stats_set and group.statistics.has_min_max for group in groups):
            raise LakeError(f"{path} does not tell the times of its rows")
        first_us = min(microseconds(group.statistics.min) for group in groups)
        last_us = max(microseconds(group.statistics.max) for group in groups)
    size = path.stat().st_size
    return LakeFile(name, kind, *of, size, metadata.num_rows, first_us, last_us)
