"""A recorder in a network of its own, a gateway beside it, and frames that each test knows."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# How long anything may take that is waited for.
PATIENCE_S = 60

# The name of an interface may be anything without spaces, slashes and colons: markup, a terminal's
# escapes, and a mark that turns the direction of writing.
INTERFACE = "<b>\x1b[1m\u202ex"
PEER = "peer0"
# What a hostile packet says.
PAYLOAD = "<script>owned=1</script><img src=x onerror=owned=1>\x1b[2J\u202eexe.txt"
# Frames that are dropped or lose payload while the recorder stands still, and those that come
# while its hook is away.
FLOOD = 4000
MISSED = 120

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T]) -> T:
    """Wait until a condition holds, and return what it is."""
    end = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def checksum(header: bytes) -> int:
    """Return the checksum of an IPv4 header in which it is zero."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def ipv4(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    """Put Ethernet's header and that of IPv4 before a payload."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    begin = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol)
    seal = struct.pack("!H", checksum(begin + b"\0\0" + addresses))
    ethernet = bytes.fromhex("02000000000202000000000108 00")
    return ethernet + begin + seal + addresses + payload


def udp(source: str, destination: str, ports: tuple[int, int], text: bytes) -> bytes:
    """Return a frame with a datagram of UDP, without a checksum."""
    header = struct.pack("!HHHH", *ports, 8 + len(text), 0)
    return ipv4(source, destination, socket.IPPROTO_UDP, header + text)


def tcp(source: str, destination: str, ports: tuple[int, int], flags: int) -> bytes:
    """Return a frame with a segment of TCP, without a checksum."""
    header = struct.pack("!HHIIBBHHH", *ports, 1000, 0, 0x50, flags, 64240, 0, 0)
    return ipv4(source, destination, socket.IPPROTO_TCP, header)


# Of each kind of frame, how many are sent: the tests count on it.
DNS = 1500
WEB = 700
FRAMES = (
    [udp("192.0.2.1", "198.51.100.53", (40000 + i % 50, 53), b"q" * (i % 90)) for i in range(DNS)]
    + [tcp("192.0.2.7", "198.51.100.80", (50000 + i, 443), 0x02) for i in range(WEB // 2)]
    + [tcp("198.51.100.80", "192.0.2.7", (443, 50000 + i), 0x12) for i in range(WEB // 2)]
    + [udp("192.0.2.66", "198.51.100.66", (6666, 6667), PAYLOAD.encode())]
)

# Sends the frames that stand on standard input, each on a line in hexadecimal digits.
SENDER = f"""
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("{PEER}", 0))
for line in sys.stdin:
    s.send(bytes.fromhex(line))
"""


class Bed:
    """A network namespace with a cable, a store that is recorded from it, and gateways."""

    def __init__(self, build: Path, directory: Path) -> None:
        """Make the namespace; a recorder and gateways are started later."""
        self.build = build
        self.directory = directory
        self.net = f"console{os.getpid()}"
        self.store = directory / "store"
        self.processes: list[subprocess.Popen[str]] = []
        self._run("ip", "netns", "add", self.net)
        self._inside("ip", "link", "set", "lo", "up")
        self.plug_in()

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True)

    def _inside(self, *words: str) -> None:
        self._run("ip", "netns", "exec", self.net, *words)

    def plug_in(self) -> None:
        """Make the cable."""
        quiet = "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"
        self._inside("sysctl", "-q", "-w", *quiet)
        self._inside("ip", "link", "add", PEER, "type", "veth", "peer", "name", INTERFACE)
        for name in (PEER, INTERFACE):
            self._inside("ip", "link", "set", name, "up")

    def pull(self) -> None:
        """Take the cable away."""
        self._inside("ip", "link", "del", PEER)

    def send(self, frames: list[bytes]) -> None:
        """Send frames towards the recorder."""
        lines = "\n".join(frame.hex() for frame in frames)
        command = ["ip", "netns", "exec", self.net, "python3", "-c", SENDER]
        subprocess.run(command, input=lines, text=True, check=True)

    def start(self, said: str, *words: str) -> tuple[subprocess.Popen[str], str]:
        """Start a program, and wait until it says something; return that line, too."""
        log = self.directory / f"log{len(self.processes)}"
        with log.open("w") as errors:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, text=True)
        self.processes.append(process)

        def line() -> str:
            assert process.poll() is None, log.read_text()
            return next((line for line in log.read_text().splitlines() if said in line), "")

        return process, wait_for(said, line)

    def record(self) -> subprocess.Popen[str]:
        """Start a recorder with rings so small that they can be filled."""
        command = ["ip", "netns", "exec", self.net, str(self.build / "tapdeck"), "record"]
        store = ["-i", INTERFACE, "--dir", str(self.store)]
        rings = ["--ring-bytes", "2MiB", "--block-bytes", "64KiB", "--snaplen", "2000"]
        overload = ["--on-overload", "shed"]
        return self.start("recording ", *command, *store, *rings, *overload)[0]

    def statistics(self) -> dict[str, Any]:
        """Return what the recorder counts."""
        command = [str(self.build / "tapdeck"), "ctl", "--dir", str(self.store), "--json", "stats"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        told: dict[str, Any] = json.loads(text)
        return told

    def trouble(self, recorder: subprocess.Popen[str]) -> None:
        """Let packets lose payload, be dropped and go unseen."""
        big = [udp("192.0.2.9", "198.51.100.9", (9, 9), b"x" * 1200)]
        recorder.send_signal(signal.SIGSTOP)
        self.send(big * FLOOD)
        recorder.send_signal(signal.SIGCONT)
        wait_for("the flood", lambda: self.statistics()["seen"] == len(FRAMES) + FLOOD)
        recorder.send_signal(signal.SIGSTOP)
        self.pull()
        self.plug_in()
        self.send(big * MISSED)
        recorder.send_signal(signal.SIGCONT)
        wait_for("what went unseen", lambda: self.statistics()["unseen"] >= MISSED)
        self.send(big * 2)
        seen = len(FRAMES) + FLOOD + 2
        wait_for("the last packets", lambda: self.statistics()["seen"] == seen)

    def gateway(self, more: str, of_store: str = "") -> str:
        """Start a gateway with the store and more lines of configuration; return its address."""
        config = self.directory / f"gateway{len(self.processes)}.toml"
        audit = self.directory / "audit.jsonl"
        store = f'[[store]]\nname = "edge"\ndirectory = "{self.store}"\n{of_store}\n'
        config.write_text(f'audit = "{audit}"\n{more}\n{store}')
        program = str(self.build / "tapdeck-gateway")
        _, line = self.start("listening at http://", program, "--config", str(config))
        return line.split("listening at ")[1]

    def end(self) -> None:
        """End what was started, and take the network away."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_S)
        self._run("ip", "netns", "del", self.net)


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def get(url: str) -> dict[str, Any]:
    """Return the JSON of an answer."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        told: dict[str, Any] = json.load(answer)
    return told
