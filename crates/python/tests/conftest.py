"""What all tests of the module share: the build, and stores that its program recorded.

Recording needs root, so these tests do, and a network namespace of their own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# What takes longer will not come.
PATIENCE_S = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--build", type=Path, metavar="DIR", help="the build of the program, as cargo left it"
    )


@dataclass(frozen=True)
class Program:
    """The program `tapdeck`, which answers the same questions."""

    path: Path

    def run(self, *arguments: str | Path) -> str:
        """Run it; returns its standard output. Fails where it fails."""
        done = subprocess.run(
            [self.path, *arguments], check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout

    def packets(self, store: Path, *arguments: str, to: Path) -> list[tuple[int, str, int, bytes]]:
        """Ask it for packets: of each its time, interface, length on the wire and bytes."""
        self.run("query", "--dir", store, "-w", to, *arguments)
        return read_pcapng(to.read_bytes())


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Program:
    """The program of the build that whoever started the tests has named."""
    directory = pytestconfig.getoption("--build")
    if directory is None:
        pytest.fail("no build is named: run `make test-python`, or give --build DIR", pytrace=False)
    path = directory.resolve() / "tapdeck"
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not there, or cannot be run", pytrace=False)
    return Program(path)


@pytest.fixture(scope="session")
def store(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a dozen segments with 60,000 packets of 200 flows, none lost."""
    directory = tmp_path_factory.mktemp("whole") / "store"
    gen = ["--size", "imix", "--flows", "200", "--proto", "udp,tcp,icmp", "--vlan", "7"]
    gen += ["--rate", "10kpps", "--count", "60000", "--seed", "5"]
    record = ["--hook", "tcx", "--ring-bytes", "64MiB", "--segment-time", "500ms"]
    final = record_generated(program, directory, record, gen)
    assert final["captured"] == 60000
    return directory


@pytest.fixture(scope="session")
def lossy(program: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store whose recorder had no room for all packets, and how many it dropped."""
    directory = tmp_path_factory.mktemp("lossy") / "store"
    gen = ["--size", "1514", "--rate", "20kpps", "--count", "5000", "--backend", "txring"]
    # What was dropped is told by the next packet of the same ring: that of the same CPU.
    gen += ["--cpu", str(min(os.sched_getaffinity(0)))]
    record = ["--hook", "tcx", "--ring-bytes", "512KiB", "--block-bytes", "64KiB"]
    record += ["--snaplen", "2000"]
    # It does not run while the second of three lots comes.
    final = record_generated(program, directory, record, gen, gen, gen)
    assert final["dropped_ring"] > 0
    return directory, final["dropped_ring"]


@pytest.fixture
def damaged(store: Path, tmp_path: Path) -> Path:
    """A copy of the store with a segment in the middle that somebody wrote into."""
    copy = tmp_path / "damaged"
    shutil.copytree(store, copy)
    segment = sorted(copy.glob("*.pcapng"))[5]
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    return copy


def record_generated(
    program: Program, directory: Path, record: list[str], *lots: list[str]
) -> dict[str, int]:
    """Record what the program sends over a cable; returns the recorder's last statistics.

    While every second lot is sent the recorder is stopped.
    """
    statistics, log = directory.with_suffix(".json"), directory.with_suffix(".log")
    with cable() as inside:
        name = str(program.path)
        command = [*inside, name, "record", "-i", "veth1", "--dir", str(directory), *record]
        with log.open("wb") as said:
            recorder = subprocess.Popen(
                [*command, "--stats-json", str(statistics)], stdout=said, stderr=said
            )
        try:
            wait_for(lambda: begins_or_ends(recorder, log), log)
            sent = 0
            for number, lot in enumerate(lots):
                if number % 2:
                    recorder.send_signal(signal.SIGSTOP)
                gen = [*inside, name, "gen", "-i", "veth0", "--json", "/dev/stdout", *lot]
                done = subprocess.run(gen, check=True, capture_output=True, timeout=PATIENCE_S)
                sent += json.loads(done.stdout)["sent"]
                recorder.send_signal(signal.SIGCONT)
                wait_for(functools.partial(has_seen, statistics, sent), log)
        finally:
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait(PATIENCE_S) == 0, log.read_text()
        return last_of(statistics)


@contextlib.contextmanager
def cable() -> Iterator[list[str]]:
    """Lay a cable from veth0 to veth1 in a network namespace; gives what runs a command there."""
    name = f"tapdeck-python-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    commands = [
        ["ip", "-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"],
        [*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"],
        ["ip", "-n", name, "link", "set", "veth0", "up"],
        ["ip", "-n", name, "link", "set", "veth1", "up"],
    ]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in commands:
            subprocess.run(command, check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def begins_or_ends(recorder: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether a recorder has begun; fails where it has ended in place of that."""
    assert recorder.poll() is None, log.read_text()
    return "recording veth1" in log.read_text()


def has_seen(statistics: Path, count: int) -> bool:
    """Whether a recorder has seen so many packets."""
    return last_of(statistics).get("seen") == count


def last_of(statistics: Path) -> dict[str, int]:
    """Return the last whole line of a recorder's statistics; nothing before there is one."""
    lines = statistics.read_text().split("\n")[:-1] if statistics.exists() else []
    last: dict[str, int] = json.loads(lines[-1]) if lines else {}
    return last


def wait_for(is_so: Callable[[], bool], log: Path | None = None) -> None:
    """Wait until something is so; fails where it does not come."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            pytest.fail(f"waited in vain: {log.read_text() if log else ''}")
        time.sleep(0.02)


def read_pcapng(data: bytes) -> list[tuple[int, str, int, bytes]]:
    """Read the packets of a file that `tapdeck query` wrote, which has times in nanoseconds."""
    names: list[str] = []
    packets = []
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        body = data[at + 8 : at + length - 4]
        if kind == 1:
            code, size = struct.unpack_from("<HH", body, 8)
            assert code == 2, "the first option is the name"
            names.append(body[12 : 12 + size].decode())
        elif kind == 6:
            interface, high, low, captured, original = struct.unpack_from("<5I", body)
            frame = body[20 : 20 + captured]
            packets.append((high << 32 | low, names[interface], original, frame))
        at += length
    return packets


def write_pcap(path: Path, packets: Iterator[tuple[int, bytes]]) -> None:
    """Write a pcap file of Ethernet frames with their times in nanoseconds."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for time_ns, frame in packets:
            seconds, rest = divmod(time_ns, 10**9)
            file.write(struct.pack("<IIII", seconds, rest, len(frame), len(frame)) + frame)
