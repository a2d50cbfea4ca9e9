"""What a figure is worth nothing without: machine, kernel, versions, and how fast the disk is."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from .build import Build


def describe(build: Build) -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "kernel": platform.release(),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "versions": versions(build),
        "git": _git(),
    }


def versions(build: Build) -> dict[str, str]:
    """Returns the first line that each program says of its version, of those that are installed."""
    programs = {
        "tapdeck": [str(build.tapdeck), "--version"],
        "tcpdump": ["tcpdump", "--version"],
        "dumpcap": ["dumpcap", "--version"],
        "netsniff-ng": ["netsniff-ng", "--version"],
        "daemonlogger": ["dpkg-query", "-W", "daemonlogger"],
        "stenotype": ["dpkg-query", "-W", "stenographer"],
        "dpdk-testpmd": ["dpkg-query", "-W", "dpdk"],
        "fio": ["fio", "--version"],
        "clang": ["clang", "--version"],
        "python": ["python3", "--version"],
    }
    found = {}
    for name, command in programs.items():
        if not shutil.which(name) and name != "tapdeck":
            continue
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = [
            line.strip()
            for line in (out.stdout + out.stderr).splitlines()
            if any(c.isdigit() for c in line)
        ]
        found[name] = lines[0][:100] if lines else "unknown"
    return found


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _git() -> str:
    here = Path(__file__).parent
    try:
        out = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return ""
    return out.stdout.strip()


def measure_disk(directory: Path, gib: int) -> dict[str, Any]:
    """Measure sequential writing past the page cache, by fio.

    A file is written anew each time, as a recorder does: many a disk takes more where a file is
    written over.

    Parameters
    ----------
    directory : Path
        On the disk.
    gib : int
        How much each of three measurements writes, GiB.

    Returns
    -------
    dict
        `mb_per_s` (the median), `each` (all three, MB/s) and `command`; or `missing`, why the speed
        is not known.
    """
    if not shutil.which("fio"):
        return {"missing": "fio is not installed (apt-get install fio): the disk was not measured"}
    room = gib + 4
    if shutil.disk_usage(directory).free < room * 2**30:
        return {"missing": f"{directory} has less than {room} GiB free: the disk was not measured"}
    file = directory / "disk.fio"
    command = f"fio --name=disk --filename={file} --rw=write --bs=4M --direct=1 --ioengine=psync"
    command += f" --size={gib}G --fallocate=posix --end_fsync=1 --output-format=json"
    try:
        found = []
        for _ in range(3):
            file.unlink(missing_ok=True)
            out = subprocess.run(command.split(), capture_output=True, text=True, timeout=300)
            written = json.loads(out.stdout[out.stdout.index("{") :])["jobs"][0]["write"]
            found.append(round(written["bw_bytes"] / 1e6, 1))
        return {"command": command, "mb_per_s": statistics.median(found), "each": found}
    except (subprocess.TimeoutExpired, ValueError, KeyError, IndexError) as error:
        return {"missing": f"fio failed: {error}"}
    finally:
        file.unlink(missing_ok=True)
