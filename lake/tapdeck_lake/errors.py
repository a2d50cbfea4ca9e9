"""What can go wrong, as the user is told it."""

from __future__ import annotations


class LakeError(Exception):
    """Why something cannot be done: the thing, the cause, and what to do."""


def counted(n: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: `1 row`, `1,234 rows`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
