"""Stores as a recorder leaves them, written here, so that no test of the lake needs root.

Segments are what docs/FORMAT.md says, of one ring each; their indexes are made by
`tapdeck recover`.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

PAGE = 4096
SECOND = 1_000_000_000
T0_NS = 1_767_323_045 * SECOND
"""2026-01-02T03:04:05Z"""

SECTION, INTERFACE, STATISTICS, PACKET, FILL = 0x0A0D0D0A, 1, 5, 6, 0x80007464
IPV4, IPV6 = 0x0800, 0x86DD


@dataclass
class Segment:
    """A segment's packets, by times in nanoseconds, and what its statistics tell is missing."""

    packets: list[tuple[int, bytes]]
    lost: int = 0
    unseen: int = 0
    cutoff: tuple[int, int] = (0, 0)
    shed: dict[int, int] = field(default_factory=dict)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + padded(value)


def block(kind: int, body: bytes) -> bytes:
    length = len(body) + 12
    return struct.pack("=II", kind, length) + body + struct.pack("=I", length)


def fill(length: int) -> bytes:
    """A block without contents up to a multiple of a page."""
    room = -length % PAGE
    room += PAGE if 0 < room < 12 else 0
    return block(FILL, bytes(room - 12)) if room else b""


def statistics(start_ns: int, end_ns: int, counts: dict[int, int], comment: str = "") -> bytes:
    def time(ns: int) -> bytes:
        return struct.pack("=II", ns >> 32, ns & 0xFFFFFFFF)

    options = option(1, comment.encode()) if comment else b""
    options += option(2, time(start_ns)) + option(3, time(end_ns))
    options += b"".join(option(code, struct.pack("=Q", n)) for code, n in counts.items())
    return block(STATISTICS, struct.pack("=I", 0) + time(end_ns) + options + option(0, b""))


def segment_bytes(segment: Segment) -> bytes:
    head = struct.pack("=IHHq", 0x1A2B3C4D, 1, 0, -1)
    out = bytearray(block(SECTION, head + option(4, b"tapdeck 0.1.0") + option(0, b"")))
    described = option(2, b"eth0") + option(9, b"\x09") + option(0, b"")
    if segment.cutoff[0]:
        described = option(3, b"hook xdp, flows cut off") + described
    out += block(INTERFACE, struct.pack("=HHI", 1, 0, 262_144) + described)
    out += fill(len(out))
    times = [time for time, _ in segment.packets] or [T0_NS]
    if segment.unseen:
        comment = f"unseen: {segment.unseen} packets, the hook was detached"
        counts = {4: segment.unseen, 5: segment.unseen, 6: 0, 7: 0, 8: 0}
        out += statistics(min(times) - SECOND, min(times), counts, comment)
        out += fill(len(out))
    for number, (time, frame) in enumerate(segment.packets):
        shed = segment.shed.get(number, 0)
        lengths = (len(frame), len(frame) + shed)
        head = struct.pack("=IIIII", 0, time >> 32, time & 0xFFFFFFFF, *lengths)
        options = option(0xF464, struct.pack("=I", shed)) + option(0, b"") if shed else b""
        out += block(PACKET, head + padded(frame) + options)
    out += fill(len(out))
    delivered, cut = len(segment.packets), segment.cutoff[0]
    accepted = delivered + segment.lost
    counts = {4: accepted + cut, 6: accepted, 7: segment.lost, 8: delivered}
    comment = f"cutoff: {cut} packets of {segment.cutoff[1]} bytes" if cut else ""
    out += statistics(min(times), max(times), counts, comment)
    return bytes(out + fill(len(out)))


def name_of(number: int, began_ns: int = T0_NS) -> str:
    began = datetime.fromtimestamp(began_ns // SECOND, UTC)
    return f"tapdeck-{number:08d}-{began:%Y%m%dT%H%M%SZ}"


def write_store(store: Path, segments: dict[int, Segment], tapdeck: Path) -> list[str]:
    """Writes segments by their numbers, with indexes. Returns their stems."""
    store.mkdir(exist_ok=True)
    stems = []
    for number, segment in segments.items():
        began_ns = segment.packets[0][0] if segment.packets else T0_NS
        stems.append(name_of(number, began_ns))
        (store / f"{stems[-1]}.pcapng").write_bytes(segment_bytes(segment))
    run(tapdeck, "recover", "--dir", store)
    return stems


def run(tapdeck: Path, *arguments: str | Path) -> str:
    """Runs tapdeck, which must succeed. Returns what it wrote to standard output."""
    command = [tapdeck, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def ethernet(kind: int, payload: bytes) -> bytes:
    return bytes([2] * 6) + bytes([4] * 6) + struct.pack(">H", kind) + payload


def ip(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    if ":" in source:
        ends = b"".join(socket.inet_pton(socket.AF_INET6, end) for end in (source, destination))
        head = struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64)
        return ethernet(IPV6, head + ends + payload)
    ends = b"".join(socket.inet_aton(end) for end in (source, destination))
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 7, 0x4000, 64, protocol, 0)
    return ethernet(IPV4, head + ends + payload)


def udp(source: str, destination: str, ports: tuple[int, int], size: int = 20) -> bytes:
    head = struct.pack(">HHHH", *ports, 8 + size, 0)
    return ip(source, destination, 17, head + bytes(size))


def tcp(source: str, destination: str, ports: tuple[int, int], flags: int) -> bytes:
    head = struct.pack(">HHIIBBHHH", *ports, 1, 2, 5 << 4, flags, 1000, 0, 0)
    return ip(source, destination, 6, head)


def icmp(source: str, destination: str, kind: int, code: int) -> bytes:
    protocol = 58 if ":" in source else 1
    return ip(source, destination, protocol, struct.pack(">BBHHH", kind, code, 0, 5, 6) + bytes(8))


def drawn_frame(rng: random.Random) -> bytes:
    """A frame of one of many kinds, between few hosts."""
    is_ipv6 = rng.random() < 0.3
    hosts = [f"2001:db8::{n:x}" if is_ipv6 else f"10.0.{n % 2}.{n}" for n in range(1, 9)]
    source, destination = rng.sample(hosts, 2)
    ports = (rng.choice([40_000, 40_001, 443]), rng.choice([53, 443, 50_000]))
    kind = rng.randrange(6)
    if kind < 2:
        return tcp(source, destination, ports, rng.choice([2, 16, 17, 18, 24, 4, 20]))
    if kind < 4:
        return udp(source, destination, ports, rng.randrange(400))
    if kind == 4:
        asks = [(128, 0), (129, 0), (1, 4)] if is_ipv6 else [(8, 0), (0, 0), (3, 1), (13, 0)]
        return icmp(source, destination, *rng.choice(asks))
    protocol = rng.choice([47, 50, 132])
    return ip(source, destination, protocol, struct.pack(">HH", *ports) + bytes(16))


def drawn_segment(rng: random.Random, begin_ns: int, packets: int) -> Segment:
    times = sorted(begin_ns + rng.randrange(60 * SECOND) for _ in range(packets))
    return Segment([(time, drawn_frame(rng)) for time in times])
