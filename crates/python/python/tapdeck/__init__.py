"""Packets and flows of tapdeck's stores, and of capture files of other programs.

>>> import tapdeck
>>> store = tapdeck.open("/var/tape")
>>> for packet in store.query("tcp port 443", after="10m ago", limit=10):
...     print(packet.time, packet.interface, packet.original_length)

An answer is an iterator of packets. As a whole it goes to pyarrow (`to_arrow`), pandas
(`to_pandas`) or polars (`to_polars`), or as a stream of batches to whoever takes those
(`__arrow_c_stream__`). An answer says whether it is whole (`complete`, `losses`), and
`IncompleteWarning` tells where it is not.
"""

from tapdeck._answer import Answer, Flows, Losses, Packets
from tapdeck._errors import (
    AlreadyReadError,
    FilterError,
    IncompleteWarning,
    QuestionError,
    StoreError,
    StoreNotFoundError,
    TapdeckError,
    TimeError,
    UnsupportedError,
)
from tapdeck._native import Packet
from tapdeck._stat import Stat
from tapdeck._store import Store, open
from tapdeck._time import Time

__all__ = [
    "AlreadyReadError",
    "Answer",
    "FilterError",
    "Flows",
    "IncompleteWarning",
    "Losses",
    "Packet",
    "Packets",
    "QuestionError",
    "Stat",
    "Store",
    "StoreError",
    "StoreNotFoundError",
    "TapdeckError",
    "Time",
    "TimeError",
    "UnsupportedError",
    "open",
]
