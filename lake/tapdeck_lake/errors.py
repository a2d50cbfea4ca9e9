"""What can go wrong, as the user is told it."""

from __future__ import annotations

import sqlite3

import duckdb
import pyarrow as pa


class LakeError(Exception):
    """Why something cannot be done: the thing, the cause, and what to do."""


class AwayError(LakeError):
    """Where a lake has its files cannot be asked: what comes next would fail as well."""


FAILURES = (LakeError, OSError, duckdb.Error, sqlite3.Error, pa.ArrowException)
"""All that disks, databases and files can raise: no fault of the program's."""


def told(error: BaseException) -> str:
    """Returns a failure in words."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, duckdb.Error):
        # What comes behind shows a query, which is none of the user's.
        return str(error).split("\n", 1)[0]
    return str(error)


def counted(n: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: `1 row`, `1,234 rows`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
