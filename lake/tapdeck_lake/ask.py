"""`tapdeck-lake sql`: an answer as a table for people, or as CSV, JSON lines or Parquet."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import duckdb

from .engine import quoted
from .errors import LakeError

COPY_OPTIONS = {
    "csv": "format csv, header",
    "json": "format json",
    "parquet": "format parquet, compression zstd",
}
FORMATS = ("table", *COPY_OPTIONS)
NO_LIMIT = 1 << 31
"""More rows and columns than anybody prints."""


def ask(db: duckdb.DuckDBPyConnection, query: str, form: str, out: Path | None) -> None:
    """Writes the answer to a query to a file, or to standard output.

    Raises LakeError where the query cannot be answered.
    """
    query = query.strip().rstrip(";")
    try:
        if form == "table":
            if out is not None:
                raise LakeError("-o is for csv, json and parquet: add --format")
            show(db, query)
        elif out is not None:
            write(db, query, form, out)
        elif form == "parquet":
            raise LakeError("Parquet cannot be written to standard output: add -o FILE")
        else:
            # DuckDB empties a file that it writes to, and standard output may be one.
            with tempfile.TemporaryDirectory(prefix="tapdeck-lake-") as directory:
                answer = Path(directory) / "answer"
                write(db, query, form, answer)
                with answer.open("rb") as rows:
                    shutil.copyfileobj(rows, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except duckdb.Error as error:
        raise LakeError(f"the query cannot be answered: {error}") from None


def write(db: duckdb.DuckDBPyConnection, query: str, form: str, out: Path) -> None:
    """Writes an answer to a file."""
    db.execute(f"copy ({query}) to {quoted(out)} ({COPY_OPTIONS[form]})")


def show(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """Prints an answer as a table: all rows of it."""
    answer = db.sql(query)
    if answer is None:
        return
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        answer.show(max_width=width, max_rows=NO_LIMIT)
    else:
        answer.show(max_width=NO_LIMIT, max_rows=NO_LIMIT, max_col_width=NO_LIMIT)
