"""Testbeds: a wire with a generator at one end and whoever captures at the other.

`Veth` is made for each run and removed after it: two network namespaces and a veth pair between
them, with queues, threaded NAPI and GRO as the run's settings say. `Wire` is two interfaces of the
user, the generator's possibly on another machine that ssh reaches. `Nothing` is no wire at all, for
the method `fake`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import samplers
from .settings import Settings


class TestbedError(Exception):
    """Why there is no testbed."""

    __test__ = False


def run(command: list[str] | str) -> str:
    """Run a command and return what it prints.

    Raises
    ------
    TestbedError
        The command failed.
    """
    words = shlex.split(command) if isinstance(command, str) else command
    try:
        out = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"{shlex.join(words)}: {error}") from error
    if out.returncode:
        raise TestbedError(f"{shlex.join(words)}: {out.stderr.strip() or out.stdout.strip()}")
    return out.stdout


class Veth:
    """A veth pair between two namespaces; a context manager.

    Devices have names of their own, by which the kernel's threads for them are found.
    """

    numbers = itertools.count()

    ssh = ""

    def __init__(self, settings: Settings, native: bool) -> None:
        self.settings, self.native = settings, native
        number = next(self.numbers)
        self.sender_ns, self.namespace = (
            f"lab-{os.getpid()}-{number}-a",
            f"lab-{os.getpid()}-{number}-b",
        )
        # Names of devices are short.
        self.sender, self.device = f"a{os.getpid()}{number % 10}", f"b{os.getpid()}{number % 10}"

    def __enter__(self) -> Veth:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (self.sender_ns, self.namespace):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)

    def _make(self) -> None:
        if os.geteuid() != 0:
            raise TestbedError("network namespaces need root")
        s = self.settings
        if s["nic_ring"]:
            raise TestbedError(
                "nic_ring is for real interfaces (--cap-if): "
                "a veth pair's ring has 256 places, always"
            )
        for namespace in (self.sender_ns, self.namespace):
            run(f"ip netns add {namespace}")
        queues = f"numtxqueues {s['queues']} numrxqueues {s['queues']}"
        run(
            f"ip link add {self.sender} netns {self.sender_ns} {queues} type veth "
            f"peer name {self.device} netns {self.namespace} {queues}"
        )
        # Live frames reach a stack through GRO, and an XDP program without it.
        thread = s["napi"] != "softirq"
        gro = s["gro"] == "on" or (s["gro"] == "auto" and (thread or not self.native))
        for namespace, device, on in [
            (self.sender_ns, self.sender, False),
            (self.namespace, self.device, gro),
        ]:
            # No neighbour discovery or multicast reports between the packets of a run.
            inside = f"ip netns exec {namespace}"
            run(f"{inside} sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1")
            run(f"{inside} ethtool -K {device} tx off tso off gso off gro {'on' if on else 'off'}")
            run(f"ip -n {namespace} link set lo up")
            run(f"ip -n {namespace} link set {device} up")
        if thread:
            self._receive_in_threads()
        self.mac = json.loads(run(f"ip -n {self.namespace} -j link show {self.device}"))[0][
            "address"
        ]

    def _receive_in_threads(self) -> None:
        write = f"echo 1 > /sys/class/net/{self.device}/threaded"
        run(["ip", "netns", "exec", self.namespace, "sh", "-c", write])
        cpus = {int(n) for n in self.settings["napi_cpu"].split(",") if n}
        for comm in Path("/proc").glob("[0-9]*/comm"):
            try:
                if not comm.read_text().startswith(f"napi/{self.device}-"):
                    continue
                thread = int(comm.parent.name)
                if cpus:
                    os.sched_setaffinity(thread, cpus)
                if self.settings["napi"] == "first":
                    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
            except (OSError, ValueError):
                continue

    def capture_command(self, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *words]

    def generate_command(self, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.sender_ns, *words]

    def put(self, file: Path) -> str:
        return str(file)

    def received(self) -> int:
        return samplers.inside(self.namespace, lambda: samplers.received(self.device))


def remove_stale() -> None:
    """Remove the namespaces of a lab that was killed."""
    for namespace in Path("/run/netns").glob("lab-*-*-[ab]"):
        if not Path(f"/proc/{namespace.name.split('-')[1]}").exists():
            subprocess.run(["ip", "netns", "del", namespace.name], capture_output=True)


@dataclass
class Wire:
    """Two interfaces of the user."""

    sender: str
    device: str
    ssh: str = ""
    """user@host of the generator's machine; empty: this one."""
    settings: Settings | None = None
    namespace: str | None = None
    """The capture's; here it is the lab's own."""

    def __enter__(self) -> Wire:
        self.undo: list[list[str]] = []
        """Commands that make the machines as they were, the last first."""
        self.mac = json.loads(run(f"ip -j link show dev {self.device}"))[0]["address"]
        try:
            if self.settings:
                self._set(self.settings)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set(self, s: Settings) -> None:
        if places := s["nic_ring"]:
            before = self._now("-g", r"(?s)Current hardware settings:.*?RX:\s*(\d+)")
            self._change(["ethtool", "-G", self.device, "rx"], str(places), before)
        if s["gro"] != "auto":
            before = self._now("-k", r"generic-receive-offload: (on|off)")
            self._change(["ethtool", "-K", self.device, "gro"], s["gro"], before)
        if s["napi"] != "softirq":
            file = f"/sys/class/net/{self.device}/threaded"
            self._change(["sh", "-c", f"echo $0 > {file}"], "1", Path(file).read_text().strip())

    def _now(self, what: str, pattern: str) -> str:
        found = re.search(pattern, run(["ethtool", what, self.device]))
        if not found:
            raise TestbedError(f"ethtool {what} {self.device} does not say how it is set")
        return found[1]

    def _change(self, command: list[str], to: str, before: str) -> None:
        if to != before:
            run([*command, to])
            self.undo.append([*command, before])

    def __exit__(self, *_: object) -> None:
        for command in reversed(self.undo):
            subprocess.run(command, capture_output=True)

    def put(self, file: Path) -> str:
        """Copy a file to the generator's machine for a run, and return its path there."""
        if not self.ssh:
            return str(file)
        with open(file, "rb") as source:
            copy = subprocess.run(
                self.generate_command(
                    ["sh", "-c", 'd=$(mktemp -d) && cat > "$d/$0" && echo "$d/$0"', file.name]
                ),
                stdin=source,
                capture_output=True,
                text=True,
            )
        if copy.returncode:
            raise TestbedError(f"{file} cannot be copied to {self.ssh}: {copy.stderr.strip()}")
        there = copy.stdout.strip()
        self.undo.append(self.generate_command(["rm", "-r", str(Path(there).parent)]))
        return there

    def capture_command(self, words: list[str]) -> list[str]:
        return words

    def generate_command(self, words: list[str]) -> list[str]:
        return ["ssh", "-o", "BatchMode=yes", self.ssh, shlex.join(words)] if self.ssh else words

    def received(self) -> int:
        return samplers.received(self.device)


class Nothing:
    """No wire: the fake generator writes into a pipe."""

    namespace: str | None = None
    device: str | None = None
    sender = mac = ssh = ""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def capture_command(self, words: list[str]) -> list[str]:
        return words

    generate_command = capture_command

    def received(self) -> int:
        return 0


Bed = Veth | Wire | Nothing
