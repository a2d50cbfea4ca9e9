"""What `Store.stat` returns: the keys are those of `tapdeck stat --json`."""

from typing import TypedDict


class Gap(TypedDict):
    """A time in which packets were lost; `interface` is None at the end of a recording."""

    interface: str | None
    first: str
    last: str
    lost: int


class ShedTime(TypedDict):
    """A time in which packets were cut short because a ring was nearly full."""

    interface: str | None
    first: str
    last: str
    packets: int
    bytes: int


class UnseenTime(TypedDict):
    """A time in which an interface received packets that its hook was not shown."""

    interface: str
    first: str
    last: str
    packets: int
    why: str


class Rate(TypedDict):
    """Rates in equal parts of the time from `first` to `last`, each `part_s` seconds."""

    part_s: float
    packets_per_s: list[float]
    bytes_per_s: list[float]


class Host(TypedDict):
    """An address, and the share of the recording's pieces that it appears in."""

    host: str
    share: float


class Port(TypedDict):
    """A port, and the share of the recording's pieces that it appears in."""

    port: int
    share: float


class Stat(TypedDict):
    """What is in a store.

    Times are text as RFC 3339 has it, with nanoseconds, UTC. Numbers count packets, or bytes where
    the name says so.
    """

    dir: str
    segments: int
    segments_live: int
    segments_not_indexed: int
    packets: int
    bytes_stored: int
    index_bytes: int
    first: str | None
    last: str | None
    lost: int
    gaps: list[Gap]
    gaps_omitted: int
    shed_packets: int
    shed_bytes: int
    shed_times: list[ShedTime]
    shed_times_omitted: int
    unseen: int
    unseen_times: list[UnseenTime]
    cutoff: int
    bytes_cutoff: int
    cutoff_lasts: float
    rate: Rate | None
    top_hosts: list[Host]
    top_ports: list[Port]
    hosts_unlisted: float
    ports_unlisted: float
