"""`make bench-lake`: what a lake on this machine takes to be filled, compacted and asked.

Rows are drawn (tests/synthetic.py): four sensors, five days, segments of a quarter of a million
rows, hosts by Zipf's law. Everything is timed by the clock on the wall, questions three times in
one process; the table that is printed has the first time and the median of all three.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tapdeck_lake import check, commit, compact, hosts, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_lake
from tests.synthetic import DAY_US, T0_US, write_flows

SENSORS, DAYS, SEGMENT_ROWS = 4, 5, 250_000
HOST, HOUR = "10.0.3.7", "timestamptz '2026-01-03 10:00:00Z'"

QUESTIONS = {
    "count by hour": "select hour_of(start), count(*) from flows group by 1 order by 1",
    "top ten hosts": "select src_ip, sum(fwd_bytes) as n from flows group by 1 "
    "order by n desc limit 10",
    "one host, one hour": "select count(*), sum(fwd_bytes) from flows "
    f"where src_ip = '{HOST}' and start >= {HOUR} and start < {HOUR} + interval 1 hour",
    "was a host ever seen (hosts)": "select min(first), max(last), sum(flows) from hosts "
    f"where host = '{HOST}'",
    "community_id of a million": "select count(distinct community_id) "
    "from (from zeek_conn limit 1000000)",
}


def timed(name: str, do: Callable[[], object]) -> None:
    """Does something once, and prints how long it took."""
    began = time.perf_counter()
    told = do()
    print(f"| {name} | {time.perf_counter() - began:.2f} s | {told} |", flush=True)


def ask(lake: Lake, when: str) -> None:
    """Asks all questions three times, and prints the first time and the median."""
    db = over_lake(lake)
    for name, question in QUESTIONS.items():
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            rows = db.execute(question).fetchall()
            seconds.append(time.perf_counter() - began)
        first, median = seconds[0], statistics.median(seconds)
        print(f"| {name}, {when} | {first:.3f} s | {median:.3f} s | {len(rows)} rows |", flush=True)


def fill(directory: Path, rows: int) -> str:
    """Writes flow tables of so many rows, as sensors would."""
    rng = np.random.default_rng(1)
    segments = max(rows // (SEGMENT_ROWS * SENSORS * DAYS), 2)
    of_each = rows // (segments * SENSORS * DAYS)
    length_us = DAY_US // segments
    for sensor in range(SENSORS):
        for number in range(segments * DAYS):
            begin_us = T0_US + number * length_us
            name = f"sensor{sensor}"
            flows = directory / name
            write_flows(flows, name, number + 1, rng, of_each, begin_us, length_us)
    size = sum(path.stat().st_size for path in directory.rglob("*.parquet"))
    return f"{size:,} bytes, {size / (of_each * segments * DAYS * SENSORS):.1f} a row"


def run(directory: Path, sensors: Path, rows: int, kind: str) -> None:
    """Fills a lake, and prints what everything took."""
    if not sensors.exists():
        timed("write (not the lake's)", lambda: fill(sensors, rows))
    lake = Lake.init(directory / "lake", kind)
    for flows in sorted(sensors.iterdir()):
        timed(f"ship {flows.name}", partial(ship.ship, flows, lake, None))
    timed("commit", lambda: commit.commit(lake))
    timed("hosts", lambda: hosts.hosts(lake))
    ask(lake, "as it landed")
    timed("compact", lambda: compact.compact(lake))
    size = sum(file.bytes for file in lake.files("flows"))
    print(f"| compacted | {size:,} bytes | {len(lake.files('flows'))} files |")
    ask(lake, "compacted")
    timed("check", lambda: check.check(lake).totals)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"| peak of memory | {peak / 1024:.0f} MiB |")


def main() -> None:
    """Reads the flags, and runs."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--rows", type=int, default=100_000_000)
    flags.add_argument("--iceberg", action="store_true")
    flags.add_argument("--dir", type=Path, help="where the lake is made [a temporary directory]")
    flags.add_argument(
        "--sensors", type=Path, help="where flow tables are written, unless they are there already"
    )
    options = flags.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        sensors = options.sensors or Path(directory) / "sensors"
        run(Path(directory), sensors, options.rows, "iceberg" if options.iceberg else "files")


if __name__ == "__main__":
    main()
