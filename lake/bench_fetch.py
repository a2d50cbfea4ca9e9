"""`make bench-fetch`: how long one row's packets take to come, from a directory and from S3.

    bench_fetch.py --build DIR --s3-server FILE [--rows N]

Each question is a process of its own, `tapdeck fetch` of one row of at most four granules, timed by
the clock on the wall from its start to its end. Places are asked in turns: the directory, a server
of S3 on this machine, and the same server behind a line on which each packet of a connection takes
15 ms each way, which a forwarder stands for. Beside them is what starting the program takes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from servers import s3
from tapdeck_lake.engine import quoted
from tests.stores import SECOND, T0_NS, Segment, run, udp, write_store

SEGMENTS, PACKETS, FLOWS = 4, 100_000, 20_000
ONE_WAY_S = 0.015
GRANULES = 4


def drawn(rng: random.Random, begin_ns: int) -> Segment:
    """A segment of many flows, most of which are short."""
    times = sorted(begin_ns + rng.randrange(60 * SECOND) for _ in range(PACKETS))

    def frame() -> bytes:
        flow = min(int(rng.paretovariate(0.6)), FLOWS)
        host = f"10.{flow >> 12}.{flow >> 4 & 255}.{flow & 15}"
        return udp(host, "192.0.2.53", (1024 + flow % 50_000, 53), rng.randrange(60, 600))

    return Segment([(time, frame()) for time in times])


@contextmanager
def slow_line(endpoint: str) -> Iterator[str]:
    """Gives an address behind which a server is far away."""
    host, port = endpoint.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, sink: socket.socket) -> None:
        waiting: list[tuple[float, bytes]] = []
        is_new = threading.Condition()

        def deliver() -> None:
            while True:
                with is_new:
                    while not waiting:
                        is_new.wait()
                    due, data = waiting.pop(0)
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

        threading.Thread(target=deliver, daemon=True).start()
        while True:
            data = source.recv(1 << 16)
            with is_new:
                waiting.append((time.monotonic() + ONE_WAY_S, data))
                is_new.notify()
            if not data:
                return

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            # A connection is there when the server has been asked, and has answered.
            time.sleep(2 * ONE_WAY_S)
            far = socket.create_connection((host, int(port)))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Runs a program, which must succeed. Returns how many milliseconds it took."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return 1000 * took


def main() -> None:
    """Measures, and prints a table."""
    options = argparse.ArgumentParser(prog="bench_fetch.py")
    options.add_argument("--build", type=Path, required=True, metavar="DIR")
    options.add_argument("--s3-server", type=Path, required=True, metavar="FILE")
    options.add_argument("--rows", type=int, default=100, metavar="N")
    asked = options.parse_args()
    tapdeck = asked.build.resolve() / "tapdeck"
    with tempfile.TemporaryDirectory(prefix="tapdeck-bench-") as directory:
        work = Path(directory)
        rng = random.Random(7)
        store = work / "store"
        segments = {n: drawn(rng, T0_NS + n * 60 * SECOND) for n in range(1, SEGMENTS + 1)}
        write_store(store, segments, tapdeck)
        run(tapdeck, "flows", "--dir", store, "-o", work / "flows")
        files = quoted(work / "flows" / "*.parquet")
        chosen = (
            f"select * from read_parquet({files}) where granules <= {GRANULES} "
            f"order by hash(src_ip, segment) limit {asked.rows}"
        )
        db = duckdb.connect()
        db.execute("set TimeZone = 'UTC'")
        db.execute(f"create table rows as {chosen}")
        rows = []
        for number in range(db.execute("select count(*) from rows").fetchall()[0][0]):
            rows.append(work / f"{number}.json")
            one = f"(from rows limit 1 offset {number})"
            db.execute(f"copy {one} to {quoted(rows[-1])} (format json)")
        with s3.server(asked.s3_server, work) as server, slow_line(server.endpoint) as far:
            shutil.copytree(store, server.make_bucket("tape") / "sensor")
            near = {**os.environ, **server.environment}
            places = {
                "a directory": (str(store), near),
                "S3 on this machine": ("s3://tape/sensor", near),
                f"S3, {ONE_WAY_S * 2000:.0f} ms away": (
                    "s3://tape/sensor",
                    {**near, "AWS_ENDPOINT_URL": far},
                ),
            }
            took: dict[str, list[float]] = {name: [] for name in (*places, "starting alone")}
            for row in rows:
                for name, (place, environment) in places.items():
                    fetch = [str(tapdeck), "fetch", "--flows", str(row), "--store", place]
                    took[name].append(timed([*fetch, "-w", str(work / "out")], environment))
                took["starting alone"].append(timed([str(tapdeck), "--version"], near))
    print(f"{len(rows)} rows of at most {GRANULES} granules, milliseconds")
    print("| from | p50 | p90 | longest |\n| --- | --- | --- | --- |")
    for name, all_of in took.items():
        p90 = statistics.quantiles(all_of, n=10, method="inclusive")[-1]
        print(f"| {name} | {statistics.median(all_of):.1f} | {p90:.1f} | {max(all_of):.1f} |")


if __name__ == "__main__":
    main()
