"""A disk that takes no more than so much, and one that stops for a while.

The kernel's own throttle does it: the capture processes are in a cgroup whose writes to the disk of
the lab's directory are limited. What goes past the page cache (O_DIRECT) is held up as by a slow
disk; a cgroup of version 1 does not limit what others write back for a process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import restart
from .capture import Capture
from .methods import Failed, Refused, Tapdeck
from .settings import Settings

CGROUPS = Path("/sys/fs/cgroup")
STOPPED = 1
"""Bytes a second of a disk that stops: 0 would be no limit."""


def is_wanted(s: Settings) -> bool:
    return bool(s["disk_limit_mib"])


class SlowDisk:
    """The limit on what capture processes write, from its entry to its exit."""

    def __init__(self, work: Path, settings: Settings) -> None:
        self.bytes_per_s = settings["disk_limit_mib"] * 2**20
        self.stop_s = settings["disk_stop_s"]
        self.delay_s = (settings["seconds"] - self.stop_s) / 3
        self.device = _disk_of(work)
        self.group, self._file, self._line = self._make()
        self._thread: threading.Thread | None = None

    def _make(self) -> tuple[Path, str, str]:
        """Makes the cgroup. Returns it, the file of its limit, and the form of a line there."""
        name = f"tapdeck-lab-{os.getpid()}"
        controllers = CGROUPS / "cgroup.controllers"
        if controllers.exists() and "io" in controllers.read_text().split():
            (CGROUPS / "cgroup.subtree_control").write_text("+io")
            group, file, line = CGROUPS / name, "io.max", "{} wbps={}"
        elif (CGROUPS / "blkio").is_dir():
            group, file, line = CGROUPS / "blkio" / name, "blkio.throttle.write_bps_device", "{} {}"
        else:
            raise Refused("no cgroup here limits what a disk takes (neither io nor blkio)")
        group.mkdir(exist_ok=True)
        return group, file, line

    def _limit(self, bytes_per_s: int) -> None:
        (self.group / self._file).write_text(self._line.format(self.device, bytes_per_s))

    def __enter__(self) -> SlowDisk:
        self._limit(self.bytes_per_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._thread.join()
        # A group goes when the last of its processes has gone.
        for _attempt in range(100):
            try:
                self.group.rmdir()
                return
            except OSError:
                time.sleep(0.05)

    def take(self, capture: Capture) -> None:
        """Limit the processes of a capture, with all their threads."""
        for pid in capture.pids:
            (self.group / "cgroup.procs").write_text(str(pid))

    def stop_in_time(self, received: Callable[[], int]) -> None:
        """Have the disk stop once, after a third of the rest of the run.

        Parameters
        ----------
        received : callable
            Returns how many packets the far end has received.
        """
        if self.stop_s:
            self._thread = threading.Thread(target=self._stop, args=(received, received()))
            self._thread.start()

    def _stop(self, received: Callable[[], int], before: int) -> None:
        end = time.monotonic() + 60
        while received() == before and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self.delay_s)
        self._limit(STOPPED)
        time.sleep(self.stop_s)
        self._limit(self.bytes_per_s)


def _disk_of(directory: Path) -> str:
    """Returns the numbers of the disk that a directory is on, as MAJOR:MINOR."""
    device = directory.stat().st_dev
    known = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not known.exists():
        raise Refused(f"{directory} is on no disk whose speed can be limited")
    place = known.resolve()
    if (place / "partition").exists():
        place = place.parent
    return (place / "dev").read_text().strip()


def judge(capture: Capture, sent: dict[str, Any]) -> dict[str, float]:
    """Returns what is there of all that was sent, once the capture was stopped: shares."""
    method = capture.method
    if not isinstance(method, Tapdeck):
        raise Failed(f"{method.name} does not tell what it kept")
    last = method.last_statistics(capture.contexts[0])[-1]
    return {
        "flows_seen": flows_seen(restart.check(capture, sent), sent["streams"]),
        "bytes_kept": last["bytes_captured"] / sent["bytes"],
        "cut_short": last["shed_packets"] / last["captured"] if last["captured"] else 0.0,
    }


def flows_seen(report: dict[str, Any], streams: list[int]) -> float:
    """Returns the share of the flows of which a packet is stored.

    Parameters
    ----------
    report : dict
        What `check-traffic` says; of flows of which something was lost it says how many packets.
    streams : list of int
        Packets sent of each flow.
    """
    sent = sum(packets > 0 for packets in streams)
    gone = sum(1 for flow in report["by_stream"] if 0 < flow["made"] <= flow["lost"])
    return (sent - gone) / sent if sent else 0.0
