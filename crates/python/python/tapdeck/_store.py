"""Stores, and what they are asked."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

from tapdeck import _native
from tapdeck._answer import Flows, Packets
from tapdeck._errors import IncompleteWarning, QuestionError
from tapdeck._stat import Stat
from tapdeck._time import Time, is_doubtful, span


def open(path: str | os.PathLike[str]) -> Store:
    """Open a store, or capture files of other programs.

    Parameters
    ----------
    path : str or path-like
        A directory that `tapdeck record --dir` wrote or is writing; or a pcap or pcapng file, also
        compressed by gzip, zstd or lz4; or a directory of such files; or the URL of a store,
        ``s3://BUCKET[/PREFIX]`` or ``https://HOST[:PORT][/PATH/]``, which the program
        `tapdeck-remote` reads, as for `tapdeck query`: S3's keys are in the environment,
        certificates in ``~/.config/tapdeck/remote.toml``.

    Returns
    -------
    Store
        What can be asked. It holds no file open: each question is of what is there then.

    Raises
    ------
    StoreNotFoundError
        There is nothing at the path.
    StoreError
        There is neither a store nor a capture file, or no permission to read it.
    QuestionError
        The URL is none of a store, or the environment does not say how it is asked.
    UnsupportedError
        The path is a URL, and `tapdeck-remote` is not in ``PATH``.
    """
    text = os.fspath(path)
    _native.check(text)
    return Store(text if "://" in text else Path(text))


class Store:
    """A store, or capture files of other programs: see `tapdeck.open`.

    Parameters
    ----------
    path : Path or str
        Where it lies: a path, or a URL.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path

    @property
    def path(self) -> Path | str:
        """Where it lies: a path, or the text of a URL."""
        return self._path

    def __repr__(self) -> str:
        return f"tapdeck.open({str(self._path)!r})"

    def query(
        self,
        expression: str = "",
        *,
        after: Time | None = None,
        before: Time | None = None,
        community_id: str | None = None,
        interface: str | Iterable[str] | None = None,
        direction: Literal["in", "out"] | None = None,
        inner: bool = False,
        limit: int | None = None,
    ) -> Packets:
        """Ask for packets, in time order.

        Parameters
        ----------
        expression : str, optional
            Only packets that match, as in pcap-filter(7) and for `tcpdump -r`. By default all.
        after : datetime, str or int, optional
            Only packets from this time on: a datetime, where one without a zone is local; a str as
            `tapdeck query --after` takes it; or nanoseconds since 1970-01-01 (UTC).
        before : datetime, str or int, optional
            Only packets from before this time.
        community_id : str, optional
            Only packets of this flow: Community ID, version 1, seed 0.
        interface : str or iterable of str, optional
            Only packets of these interfaces, by their names in the recording; ``*`` stands for any
            characters, ``?`` for one. What fits none is told in `Losses.notes`.
        direction : {"in", "out"}, optional
            Only packets that their interface received or sent, as far as the recording tells.
        inner : bool, optional
            Also packets with a matching packet inside a tunnel.
        limit : int, optional
            At most so many packets, the earliest.

        Returns
        -------
        Packets
            An iterator of packets, which also goes to pyarrow, pandas and polars as a whole.

        Raises
        ------
        FilterError
            The expression is no filter.
        TimeError
            `after` or `before` is no time, or `after` is the later one.
        QuestionError
            Something else of the question makes no sense.
        StoreError
            The store cannot be read.
        """
        after_ns, before_ns = span(after, before)
        if limit is not None and not 1 <= limit < 2**64:
            raise QuestionError(
                f"limit: {limit} is none; write 1 or more, up to 2**64 - 1, or leave it out"
            )
        interfaces = [interface] if isinstance(interface, str) else list(interface or [])
        stream = _native.query(
            self._path,
            expression,
            after=after_ns,
            before=before_ns,
            community_id=community_id,
            interfaces=interfaces,
            direction=direction,
            inner=inner,
            limit=limit,
        )
        return Packets(stream)

    def split(
        self,
        expression: str = "",
        *,
        after: Time | None = None,
        before: Time | None = None,
        community_id: str | None = None,
        interface: str | Iterable[str] | None = None,
        direction: Literal["in", "out"] | None = None,
        inner: bool = False,
        size: int = 32 << 20,
    ) -> list[tuple[int, int]]:
        """Cut an answer of packets into spans of time, so that several can make it at once.

        The spans lie one behind the other, and each packet of the answer is in one of them. Only
        indexes are read for that.

        Parameters
        ----------
        expression, after, before, community_id, interface, direction, inner
            What is asked for, as for `query`.
        size : int, optional
            About how many bytes are to be read for each, from 1 MiB on. A segment that is not
            wholly indexed, as the one that is being written may be, is not cut.

        Returns
        -------
        list of tuple of int
            Of each span `after` and `before` for `query`, in nanoseconds since 1970-01-01 (UTC).

        Raises
        ------
        FilterError, TimeError, QuestionError, StoreError
            As for `query`.
        """
        after_ns, before_ns = span(after, before)
        if not 1 << 20 <= size < 2**63:
            raise QuestionError(f"size: {size} is none; write a number of bytes, from 1 MiB on")
        interfaces = [interface] if isinstance(interface, str) else list(interface or [])
        spans = _native.split(
            self._path,
            expression,
            after=after_ns,
            before=before_ns,
            community_id=community_id,
            interfaces=interfaces,
            direction=direction,
            inner=inner,
            bytes=size,
        )
        # Numbers that are no times to `query` (`tapdeck._time`) would be no use.
        cuts = [cut for _, cut in spans[:-1] if not is_doubtful(cut)]
        return list(pairwise([after_ns, *cuts, before_ns]))

    def flows(
        self,
        expression: str = "",
        *,
        after: Time | None = None,
        before: Time | None = None,
        sensor: str | None = None,
    ) -> Flows:
        """Ask for flows: the rows that `tapdeck flows` makes of each closed segment.

        A row is a slice of a flow, both ways: the packets between two ends in one segment and on
        one day. Each packet is in exactly one row. Names, types and meaning of columns are those of
        the Parquet files (`docs/FLEET.md`). Of capture files of other programs `segment` is their
        path, and `offset` and `span` are 0.

        Parameters
        ----------
        expression : str, optional
            Only packets that match, as in pcap-filter(7). By default all.
        after, before : datetime, str or int, optional
            Only packets from the first time on, and from before the second, as for `query`.
        sensor : str, optional
            What the column `sensor` says. By default the name of this machine.

        Returns
        -------
        Flows
            The rows, for pyarrow, pandas, polars and others that read streams of Arrow.

        Raises
        ------
        FilterError
            The expression is no filter.
        TimeError
            `after` or `before` is no time, or `after` is the later one.
        StoreError
            The store cannot be read.
        """
        after_ns, before_ns = span(after, before)
        stream = _native.flows(
            self._path, expression, after=after_ns, before=before_ns, sensor=sensor
        )
        return Flows(stream)

    def segments(self) -> list[str]:
        """Tell which segments are in the store now.

        Returns
        -------
        list of str
            Their names, oldest first, as flows have them in the column `segment`:
            ``tapdeck-NUMBER-YYYYMMDDTHHMMSSZ``, where the time is that of its beginning, UTC. Of
            capture files of other programs there are none.

        Raises
        ------
        StoreError
            The store cannot be read.
        """
        return _native.segments(self._path)

    def stat(self, *, after: Time | None = None, before: Time | None = None, top: int = 10) -> Stat:
        """Tell what is in the store: read from its indexes, not from its packets.

        Of capture files of other programs all packets are read.

        Parameters
        ----------
        after, before : datetime, str or int, optional
            Only what was recorded from the first time on, and before the second, as for `query`.
        top : int, optional
            So many hosts and ports, of those that appear most, up to 1,000. None is faster.

        Returns
        -------
        Stat
            A dict with the keys of `tapdeck stat --json`.

        Raises
        ------
        TimeError
            `after` or `before` is no time, or `after` is the later one.
        QuestionError
            `top` is not between 0 and 1,000.
        StoreError
            The store cannot be read.

        Warns
        -----
        IncompleteWarning
            Not all that the store should have could be told.
        """
        after_ns, before_ns = span(after, before)
        if not 0 <= top <= 1000:
            raise QuestionError(f"top: {top} is not between 0 and 1000")
        report, lacks = _native.stat(self._path, after=after_ns, before=before_ns, top=top)
        if lacks:
            text = f"not all is told: {'; '.join(lacks)}"
            warnings.warn(text, IncompleteWarning, stacklevel=2)
        return cast(Stat, json.loads(report))
