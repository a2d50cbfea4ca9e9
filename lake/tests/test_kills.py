"""Processes that are killed at any moment leave the table whole, and the next one goes on.

Each round starts one command in a process of its own and kills it after a time that is drawn from
how long such commands take. After each kill the table is what its register says; in the end it has
every row that the sensors have, once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tapdeck_lake import check, commit, compact, expire, hosts, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.place import S3

from .conftest import Bucket
from .synthetic import DAY_US, T0_US
from .test_lake import Fleet, known_hosts

KILLS = int(os.environ.get("TAPDECK_LAKE_KILLS", "20"))
SEED = int(os.environ.get("TAPDECK_SEED", "7"))
SENSORS = ("berlin", "hamburg")

# Each process begins as a copy of one that has read all modules and has no threads.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.test_kills"])


def work(name: str, directory: Path, environment: dict[str, str]) -> None:
    os.environ |= environment
    lake = Lake(directory / "lake")
    if name == "ship":
        for sensor in SENSORS:
            # Sensors have no way to the register of a lake on S3.
            to = lake.place if isinstance(lake.place, S3) else lake
            ship.ship(directory / sensor, to, directory / f"{sensor}-store")
    elif name == "expire":
        expire.expire(lake, grace_s=0)
    else:
        commands: dict[str, Callable[[Lake], object]] = {
            "commit": commit.commit,
            "hosts": hosts.hosts,
            "compact": compact.compact,
        }
        commands[name](lake)


def killed_after(name: str, directory: Path, seconds: float) -> tuple[bool, float]:
    """Runs a command, and kills it after a time.

    Returns whether it was killed, and how long it ran.
    """
    process = CONTEXT.Process(target=work, args=(name, directory, dict(os.environ)))
    process.start()
    began = time.monotonic()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"{name}: {process.exitcode}"
    return process.exitcode != 0, time.monotonic() - began


def add(fleet: Fleet, rng: random.Random, number: int) -> None:
    """Writes what a sensor has next: a segment, with a file or two of flows."""
    for sensor in SENSORS:
        begin_us = T0_US + number * DAY_US // 10 - rng.randrange(120_000_000)
        stem = fleet.write(sensor, number, rng.randrange(200), begin_us=begin_us)
        store = fleet.directory / f"{sensor}-store"
        store.mkdir(exist_ok=True)
        for ending in ("index", "pcapng"):
            (store / f"{stem}.{ending}").write_bytes(rng.randbytes(50_000))


@pytest.mark.parametrize(
    ("kind", "is_on_s3"), [("files", False), ("iceberg", False), ("iceberg", True)]
)
def test_killed_at_any_moment_no_row_is_missing_or_double(
    tmp_path: Path, kind: str, is_on_s3: bool, bucket: Bucket
) -> None:
    files = bucket.url if is_on_s3 else ""
    fleet, rng = Fleet(tmp_path, SEED, kind, files=files), random.Random(SEED)
    root = bucket.directory if is_on_s3 else fleet.lake.directory
    names = ["ship", "commit", "hosts", "compact", "expire"]
    kills = dict.fromkeys(names, 0)
    lasts = dict.fromkeys(names, 1.0)
    number = rounds = 0
    while sum(kills.values()) < KILLS:
        rounds += 1
        assert rounds < KILLS * 10, f"too few of them were killed: {kills}"
        number += 1
        add(fleet, rng, number)
        name = min(names, key=lambda name: kills[name])
        # Most of the time there is something to do for whoever is killed.
        for before in names[: names.index(name)]:
            if rng.random() < 0.7:
                killed_after(before, tmp_path, 60.0)
        was_killed, took_s = killed_after(name, tmp_path, rng.random() * lasts[name])
        kills[name] += was_killed
        # What was not killed tells how long it takes.
        lasts[name] = lasts[name] * 1.2 if was_killed else max(took_s, 0.02)
        fleet.sound()
    assert min(kills.values()) > 0, kills
    for name in names:
        killed_after(name, tmp_path, 600.0)
    assert fleet.rows() == fleet.written(*SENSORS)
    checked = check.check(fleet.lake)
    assert (checked.faults, checked.notes) == ([], [])
    assert checked.totals["segments"] == number * len(SENSORS)
    known_hosts(fleet)
    for sensor in SENSORS:
        store, there = tmp_path / f"{sensor}-store", root / "segments" / sensor
        assert contents(there) == contents(store)
    named = {file.path for kind in ("flows", "hosts") for file in fleet.lake.files(kind)}
    for kind in ("landed", "flows", "hosts"):
        for path in (root / kind).rglob("*.parquet"):
            is_named = path.relative_to(root).as_posix() in named
            assert is_named or path.name.startswith("."), path


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if not path.name.startswith(".")
    }
