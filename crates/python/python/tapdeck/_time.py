"""Points in time, as questions have them."""

import operator
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

from tapdeck import _native
from tapdeck._errors import TimeError

Time = datetime | str | SupportsIndex
"""A point in time: a `datetime`, where one without a zone is local; a `str` as
`tapdeck query --after` takes it, as ``"2026-01-02T03:04:05Z"``, ``"14:02"``, ``"10m ago"``; or an
`int`, also one of numpy's, nanoseconds since 1970-01-01 (UTC)."""

EARLIEST = -(2**63)
LATEST = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# What is nearer to 1970 was meant in another unit: this many nanoseconds are eleven days.
_LEAST_NS = 10**15

_KINDS = "a time is a datetime, a str or an int of nanoseconds since 1970"


def nanoseconds(time: Time, name: str) -> int:
    """Resolve a point in time.

    Parameters
    ----------
    time : datetime, str or int
        The point in time.
    name : str
        What errors call it.

    Returns
    -------
    int
        Nanoseconds since 1970-01-01, UTC.

    Raises
    ------
    TimeError
        It is no time, or none that fits into 64 bits of nanoseconds.
    """
    if isinstance(time, str):
        try:
            return _native.parse_time(time)
        except TimeError as error:
            raise TimeError(f"{name}: {error}") from None
    if isinstance(time, datetime):
        aware = time.astimezone() if time.tzinfo is None else time
        # A Timestamp of pandas has more digits than a datetime.
        ns = (aware - _EPOCH) // _MICROSECOND * 1000 + getattr(time, "nanosecond", 0)
    elif isinstance(time, SupportsIndex) and not isinstance(time, bool):
        ns = operator.index(time)
        if is_doubtful(ns):
            raise TimeError(
                f"{name}: {ns} ns are within eleven days of 1970, so another unit was meant: "
                "write nanoseconds, a datetime, or seconds as a str"
            )
    else:
        raise TimeError(f"{name}: {time!r} is none: {_KINDS}")
    if not EARLIEST <= ns <= LATEST:
        raise TimeError(f"{name}: {time!r} is outside of what 64 bits of nanoseconds can say")
    return ns


def is_doubtful(ns: int) -> bool:
    """Tell whether a number is hardly one of nanoseconds since 1970."""
    return 0 < abs(ns) < _LEAST_NS


def span(after: Time | None, before: Time | None) -> tuple[int, int]:
    """Resolve the span between two points in time, each of which may be left open.

    Parameters
    ----------
    after, before : datetime, str or int, optional
        The first point in time inside of the span, and the first behind it.

    Returns
    -------
    tuple of int
        Both in nanoseconds since 1970-01-01, UTC.

    Raises
    ------
    TimeError
        One is no time, or `after` is later than `before`.
    """
    after_ns = EARLIEST if after is None else nanoseconds(after, "after")
    before_ns = LATEST if before is None else nanoseconds(before, "before")
    if after_ns > before_ns:
        raise TimeError(f"after ({after}) is later than before ({before})")
    return after_ns, before_ns
