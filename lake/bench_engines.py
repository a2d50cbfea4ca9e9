"""`make bench-engines`: one Iceberg table on S3, and what three engines take to answer questions.

Rows are drawn as `make bench-lake` draws them. The catalog is in PostgreSQL, the files are on
versitygw, and Spark has a master and two workers of one core. The twelve questions of
tests/engines.py are asked of DuckDB, PyIceberg and Spark, each once, by the clock on the wall:
before Spark has put the files together, and after. A worker is killed while Spark is at that.
Ends with 1 where the engines do not agree.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import fill, timed
from servers import postgres, s3, spark
from tapdeck_lake import check, commit, jobs, ship
from tapdeck_lake.catalog import Lake
from tests.engines import QUESTIONS, Rows, duckdb_over, pyiceberg_over, session_over, spark_over

FILES = "s3://lake/bench"
WORKER_MIB = 5120
EXECUTOR = "4g"


def asked(lake: Lake, session: SparkSession, spill: Path, when: str) -> dict[str, Rows]:
    """Asks all questions of each engine, and prints how long each took. Returns the answers.

    Ends the program where two engines differ.
    """
    engines = {
        "DuckDB": duckdb_over(lake),
        "PyIceberg": pyiceberg_over(lake, spill),
        "Spark": spark_over(session, lake),
    }
    answers = {}
    for name, question in QUESTIONS.items():
        took, found = [], {}
        for engine, ask in engines.items():
            began = time.perf_counter()
            found[engine] = ask(question)
            took.append(time.perf_counter() - began)
        answers[name] = found["DuckDB"]
        seconds = " | ".join(f"{one:.2f} s" for one in took)
        print(f"| {name}, {when} | {seconds} | {len(answers[name])} rows |", flush=True)
        for engine, rows in found.items():
            if rows != answers[name]:
                sys.exit(f"bench-engines: {engine} answers otherwise than DuckDB: {name}")
    return answers


@contextmanager
def first_worker_killed(cluster: spark.Cluster, session: SparkSession) -> Iterator[None]:
    """Kills the first worker as soon as both are busy with what Spark is asked meanwhile."""
    is_over, is_killed = threading.Event(), threading.Event()

    def kill() -> None:
        tracker = session.sparkContext.statusTracker()
        while not is_over.wait(0.05):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            if sum(one.numActiveTasks for one in stages if one) >= 2:
                cluster.workers[0].kill()
                is_killed.set()
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()
    if not is_killed.is_set():
        sys.exit("bench-engines: it was done before a worker could be killed: take more rows")


def run(work: Path, sensors: Path, rows: int, jars: str, program: Path, stack: ExitStack) -> None:
    """Fills a table, has it put together, and asks before and after."""
    if not sensors.exists():
        timed("write (not the lake's)", lambda: fill(sensors, rows))
    of_s3 = stack.enter_context(s3.server(program, work))
    os.environ |= of_s3.environment
    of_s3.make_bucket("lake")
    catalog = stack.enter_context(postgres.server())
    cluster = stack.enter_context(spark.cluster(work, WORKER_MIB))
    session = spark.session(cluster.address, work, jars, EXECUTOR)
    stack.callback(session.stop)

    lake = Lake.init(work / "lake", "iceberg", catalog.make("lake"), FILES)
    for flows in sorted(sensors.iterdir()):
        timed(f"ship {flows.name}", partial(ship.ship, flows, lake, None))
    timed("commit", lambda: commit.commit(lake))
    own = session_over(session, lake)
    print("| question | DuckDB | PyIceberg | Spark | |")
    before = asked(lake, session, work / "spill.duckdb", "as it landed")
    timed("hosts, by Spark", lambda: jobs.hosts(own))
    with first_worker_killed(cluster, session):
        timed("compact, by Spark, a worker killed", lambda: jobs.compact(own))
    cluster.start_worker()
    lake = Lake(lake.directory)
    after = asked(lake, session, work / "spill.duckdb", "compacted")
    if after != before:
        changed = ", ".join(name for name in QUESTIONS if after[name] != before[name])
        sys.exit(f"bench-engines: answered otherwise once the table was compacted: {changed}")
    timed("check", lambda: check.check(lake).totals)


def main() -> None:
    """Reads the flags, and runs."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--rows", type=int, default=100_000_000)
    flags.add_argument("--jars", type=Path, required=True, help="what setup-spark.sh has fetched")
    flags.add_argument("--s3-server", type=Path, required=True, help="what setup-s3.sh has built")
    flags.add_argument("--dir", type=Path, help="where most files are made [a temporary directory]")
    flags.add_argument(
        "--sensors", type=Path, help="where flow tables are written, unless they are there already"
    )
    options = flags.parse_args()
    jars = ":".join(str(jar.resolve()) for jar in sorted(options.jars.glob("*.jar")))
    for by in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(by, signal.default_int_handler)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir)))
        sensors = options.sensors or work / "sensors"
        run(work, sensors, options.rows, jars, options.s3_server.resolve(), stack)


if __name__ == "__main__":
    main()
