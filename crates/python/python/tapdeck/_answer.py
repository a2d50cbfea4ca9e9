"""Answers: packets and rows of flows, and how whole they are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeVar

from tapdeck._errors import AlreadyReadError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from tapdeck._native import Packet, Stream

_T = TypeVar("_T")


@dataclass(frozen=True)
class Losses:
    """What an answer lacks.

    Attributes
    ----------
    dropped : int
        Packets that the recorder dropped inside the span.
    unseen : int
        Packets that interfaces received inside the span while the recorder was not shown them.
    shed_packets, shed_bytes : int
        Packets of the answer that were cut short when a ring was nearly full, and the bytes that
        they lack.
    faults : tuple of str
        What the recording had and the answer has not, or not in order, a sentence each: damage,
        segments that are gone.
    notes : tuple of str
        What else there is to know, a sentence each. No packet is missing by it.
    """

    dropped: int
    unseen: int
    shed_packets: int
    shed_bytes: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything is missing."""
        return bool(self.dropped or self.unseen or self.shed_packets or self.faults)


class Answer:
    """What packets and rows of flows have in common.

    An answer is made while it is read, and holds a few batches in memory at most; the methods that
    return all of it hold all of it. Each row is given once: who reads an answer to its end and
    wants it again asks again.

    An answer that is not whole says so at its end by an `IncompleteWarning`, where the thread that
    reads it is the one that asked for it. `complete` and `losses` say so always.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the answer as a stream of batches, by the Arrow PyCapsule interface."""
        return self._stream.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Give the schema of the batches, by the Arrow PyCapsule interface."""
        return self._stream.__arrow_c_schema__()

    @property
    def losses(self) -> Losses | None:
        """What the answer lacks; None before its end."""
        end = self._stream.end()
        if end is None:
            return None
        _, _, dropped, unseen, packets, shed, faults, notes = end
        return Losses(dropped, unseen, packets, shed, tuple(faults), tuple(notes))

    @property
    def complete(self) -> bool | None:
        """Whether nothing is missing; None before the answer's end.

        An answer that a limit ended is complete if nothing is missing up to its last packet.
        """
        losses = self.losses
        return None if losses is None else not losses

    def to_arrow(self) -> pyarrow.Table:
        """Read all of it into a table of pyarrow.

        Returns
        -------
        pyarrow.Table
            One row for each packet or row of flows, in the memory that it was read into.

        Raises
        ------
        ImportError
            There is no pyarrow.
        AlreadyReadError
            The answer was read to its end.
        StoreError
            The store cannot be read any more.
        """
        table: pyarrow.Table = self._whole(lambda: self.to_reader().read_all())
        return table

    def to_reader(self) -> pyarrow.RecordBatchReader:
        """Begin to read it batch by batch.

        Returns
        -------
        pyarrow.RecordBatchReader
            Batches of at most 65,536 rows, one at a time in memory.

        Raises
        ------
        ImportError
            There is no pyarrow.
        AlreadyReadError
            The answer was read to its end.
        """
        self._refuse_what_was_read()
        reader: pyarrow.RecordBatchReader = _needed("pyarrow").RecordBatchReader.from_stream(self)
        return reader

    def to_pandas(self) -> pandas.DataFrame:
        """Read all of it into a data frame of pandas.

        Returns
        -------
        pandas.DataFrame
            One row for each packet or row of flows. Times are `datetime64` of UTC, and numbers that
            may be missing are of pandas' nullable types. Bytes stay where they were read to, as
            Arrow has them (`pandas.ArrowDtype`).

        Raises
        ------
        ImportError
            There is no pandas, or no pyarrow.
        AlreadyReadError
            The answer was read to its end.
        StoreError
            The store cannot be read any more.
        """
        of_pandas, of_arrow = _needed("pandas"), _needed("pyarrow")
        types = {
            of_arrow.binary(): of_pandas.ArrowDtype(of_arrow.binary()),
            of_arrow.int8(): of_pandas.Int8Dtype(),
            of_arrow.int16(): of_pandas.Int16Dtype(),
            of_arrow.int32(): of_pandas.Int32Dtype(),
            of_arrow.int64(): of_pandas.Int64Dtype(),
        }
        frame: pandas.DataFrame = self.to_arrow().to_pandas(types_mapper=types.get)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Read all of it into a data frame of polars.

        Returns
        -------
        polars.DataFrame
            One row for each packet or row of flows.

        Raises
        ------
        ImportError
            There is no polars.
        AlreadyReadError
            The answer was read to its end.
        StoreError
            The store cannot be read any more.
        """
        of_polars = _needed("polars")
        self._refuse_what_was_read()
        frame: polars.DataFrame = self._whole(lambda: of_polars.DataFrame(self))
        return frame

    def close(self) -> None:
        """Give the answer up: what was not given will not be read."""
        self._stream.close()

    def __enter__(self) -> Self:
        """Return the answer, which the end of the block gives up."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the answer up."""
        self.close()

    def _refuse_what_was_read(self) -> None:
        if self._stream.is_over():
            raise AlreadyReadError(
                "the answer was read to its end, and gives each packet once: ask again for another"
            )

    def _whole(self, read: Callable[[], _T]) -> _T:
        """Read by a library that knows errors of the stream by their texts alone."""
        try:
            return read()
        except Exception as error:
            own = self._stream.failure()
            if own is None:
                raise
            raise own from error


class Packets(Answer):
    """The packets of an answer, in time order: see `Store.query`.

    An iterator of `Packet`. As a table it has these columns:

    ===================  =====================================================================
    ``time``             timestamp, nanoseconds, UTC
    ``interface``        dictionary of strings
    ``link_type``        uint16: what the data begin with, a LINKTYPE of tcpdump.org
    ``direction``        dictionary of "in" and "out"; null where the recording does not tell
    ``original_length``  uint32: bytes on the wire
    ``dropped``          uint64: packets dropped since the one before of the same interface
    ``shed``             uint32: bytes that were given up when a ring was nearly full
    ``data``             binary: what was recorded of the packet
    ===================  =====================================================================
    """

    def __iter__(self) -> Stream:
        """Return the iterator, of which there is one for each answer.

        Raises
        ------
        AlreadyReadError
            The answer was read to its end.
        """
        self._refuse_what_was_read()
        return self._stream

    def __next__(self) -> Packet:
        """Return the next packet."""
        return next(self._stream)


class Flows(Answer):
    """Rows of flows: see `Store.flows`."""


def _needed(name: str) -> ModuleType:
    """Import a library that the module can do without."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install {name}", name=name) from error
