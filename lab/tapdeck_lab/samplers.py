"""Samplers: what a run costs, read from /proc while it goes on.

A sampler is a thread that reads, every so often, the CPU states (user, nice, system, idle, iowait,
irq, softirq, steal) in total and of each core, the CPU time, context switches and resident memory
of the capture processes, what the disk has written and what has come in at the interface. From two
samples follow the shares between them. As in Schneider (5.2) the CPU of a run is that of the
longest period in which the machine was busy.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

IDLE_LIMIT = 95.0
"""A machine that is idle for less than this share is busy, %."""

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespace(name: str | None) -> None:
    """Put the calling thread, and no other, into a network namespace."""
    if name is None:
        return
    with open(f"/run/netns/{name}") as file:
        if _libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"network namespace {name}: {os.strerror(number)}")


def inside(name: str | None, function: Callable[[], T]) -> T:
    """Returns the value of a function that ran in a network namespace, or raises what it raised."""
    values: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter_namespace(name)
            values.append(function())
        except BaseException as error:  # the caller gets it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]


def received(device: str) -> int:
    """Packets that an interface of the thread's namespace has received."""
    with open("/proc/thread-self/net/dev") as file:
        for line in file:
            name, _, counters = line.partition(":")
            if name.strip() == device:
                return int(counters.split()[1])
    raise OSError(f"there is no interface {device}")


def cpu_ticks() -> dict[str, list[int]]:
    """Ticks in each state since the start, of `cpu` (all) and `cpu0`, `cpu1`..."""
    with open("/proc/stat") as file:
        rows = (line.split() for line in file if line.startswith("cpu"))
        return {name: [int(n) for n in numbers[: len(STATES)]] for name, *numbers in rows}


@dataclass(frozen=True)
class Used:
    """What processes have used so far; those that have ended count no more."""

    cpu_s: float = 0.0
    switches: int = 0
    rss_mib: float = 0.0


def used(pids: list[int]) -> Used:
    cpu_ns = switches = pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except (OSError, IndexError):
            continue
        for task in tasks:
            try:
                cpu_ns += int((task / "schedstat").read_text().split()[0])
                for line in (task / "status").read_text().splitlines():
                    if "ctxt_switches" in line:
                        switches += int(line.split()[1])
            except (OSError, IndexError):
                continue
    return Used(cpu_ns / 1e9, switches, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def is_at_work(pids: list[int]) -> bool:
    """Whether a thread of the processes runs, waits for a CPU or for the disk."""
    for pid in pids:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                # The state comes after the name, which may hold anything.
                if stat.read_text().rpartition(")")[2].split()[0] in "RD":
                    return True
            except OSError:
                continue
    return False


def disk_written(path: Path) -> int:
    """Bytes written so far to the device that holds a path; 0 where it is no disk."""
    device = path.stat().st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    with open("/proc/diskstats") as file:
        for line in file:
            words = line.split()
            if words[:2] == wanted:
                return int(words[9]) * 512
    return 0


@dataclass(frozen=True)
class Sample:
    at: float
    """time.monotonic()."""
    cpu: dict[str, list[int]]
    used: Used
    written: int
    received: int


class Sampler(threading.Thread):
    """Samples until it is stopped. A context manager; `pids` may be set later."""

    def __init__(
        self, interval_s: float, namespace: str | None, device: str | None, path: Path
    ) -> None:
        super().__init__(daemon=True)
        self.interval_s, self.namespace, self.device, self.path = (
            interval_s,
            namespace,
            device,
            path,
        )
        self.pids: list[int] = []
        self.samples: list[Sample] = []
        self.error: Exception | None = None
        self._ready = threading.Event()
        self._stop_now = threading.Event()

    def run(self) -> None:
        try:
            enter_namespace(self.namespace)
            due = time.monotonic()
            while not self._stop_now.is_set():
                self.samples.append(self._take())
                self._ready.set()
                due += self.interval_s
                self._stop_now.wait(max(0.0, due - time.monotonic()))
            self.samples.append(self._take())
        except Exception as error:  # told by whoever waits for it
            self.error = error
            self._ready.set()

    def _take(self) -> Sample:
        return Sample(
            at=time.monotonic(),
            cpu=cpu_ticks(),
            used=used(self.pids),
            written=disk_written(self.path),
            received=received(self.device) if self.device else 0,
        )

    def __enter__(self) -> Sampler:
        self.start()
        self._ready.wait()
        if self.error:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()


@dataclass(frozen=True)
class Interval:
    """What lies between two samples; shares of CPU in %, by core."""

    begin: float
    end: float
    shares: dict[str, dict[str, float]] = field(repr=False)

    def busy(self, core: str = "cpu") -> float:
        return 100.0 - self.shares[core]["idle"]


def intervals(samples: list[Sample]) -> list[Interval]:
    found = []
    for before, after in itertools.pairwise(samples):
        shares = {}
        for core, ticks in after.cpu.items():
            spent = [max(0, n - m) for m, n in zip(before.cpu.get(core, ticks), ticks, strict=True)]
            total = sum(spent)
            # Too short to have a tick in it: nothing can be said, so it is no interval.
            if total == 0:
                break
            named = zip(STATES, spent, strict=True)
            shares[core] = {state: 100.0 * n / total for state, n in named}
        else:
            found.append(Interval(before.at, after.at, shares))
    return found


def trim(all_of_them: list[Interval], idle_limit: float = IDLE_LIMIT) -> list[Interval]:
    """Find the longest period of intervals in each of which the machine was busy.

    Parameters
    ----------
    all_of_them : list of Interval
        One after the other.
    idle_limit : float
        A machine that is idle for less than this share is busy, %.

    Returns
    -------
    list of Interval
        Empty where the machine was never busy.
    """
    best: list[Interval] = []
    current: list[Interval] = []
    for interval in all_of_them:
        current = [*current, interval] if interval.shares["cpu"]["idle"] < idle_limit else []
        if not best or (
            current and current[-1].end - current[0].begin > best[-1].end - best[0].begin
        ):
            best = current or best
    return best


def mean_shares(of: list[Interval], core: str = "cpu") -> dict[str, float]:
    """Shares of each state over a period, weighted by time; NaN where there is none."""
    total = sum(i.end - i.begin for i in of)
    if total == 0:
        return dict.fromkeys(STATES, float("nan"))
    return {s: sum(i.shares[core][s] * (i.end - i.begin) for i in of) / total for s in STATES}
