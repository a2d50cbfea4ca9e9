"""A standalone cluster of Spark: one master and two workers, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
PATIENCE_S = 180.0
LAKE = Path(__file__).parent.parent


# What Spark's processes are told: they hear on this machine alone, and have the lake's modules.
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_NO_DAEMONIZE": "1",
    "SPARK_DAEMON_MEMORY": "256m",
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(LAKE),
}


class Cluster:
    """A master and its workers, which may be killed, and others started."""

    def __init__(self, work: Path, worker_mib: int) -> None:
        self.work, self.worker_mib = work, worker_mib
        self.started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def begin(self) -> None:
        """Starts the master and two workers."""
        _, log = self.start("master", "master.Master", "--port", "0")
        self.address = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for _ in range(2):
            self.start_worker()

    def start_worker(self) -> None:
        """Starts a worker of one core."""
        name = f"worker{len(self.workers) + 1}"
        limits = ["--cores", "1", "--memory", f"{self.worker_mib}m"]
        limits += ["--work-dir", str(self.work / name)]
        process, log = self.start(name, "worker.Worker", *limits, self.address)
        wait_for(log, "Successfully registered with master")
        self.workers.append(process)

    def start(self, name: str, kind: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a process of Spark's. Returns it, and its log."""
        log = self.work / f"{name}.log"
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += [*arguments, "--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env={**os.environ, **ENVIRONMENT, "SPARK_LOCAL_DIRS": str(self.work / "local")},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process, log

    def end(self) -> None:
        """Ends all of it."""
        for process in reversed(self.started):
            process.kill()
            process.wait()


@contextmanager
def cluster(work: Path, worker_mib: int = 1024) -> Iterator[Cluster]:
    """Starts a cluster whose files go into a directory, and ends it."""
    begun = Cluster(work, worker_mib)
    try:
        begun.begin()
        yield begun
    finally:
        begun.end()


def wait_for(log: Path, what: str) -> str:
    """Waits until a log has a line; returns its first group, or all of it."""
    patience = time.monotonic() + PATIENCE_S
    while True:
        found = re.search(what, log.read_text(errors="replace"))
        if found:
            return found.group(found.lastindex or 0)
        assert time.monotonic() < patience, f"{what!r} is not in {log.read_text(errors='replace')}"
        time.sleep(0.1)


def session(address: str, work: Path, jars: str, executor: str = "768m") -> SparkSession:
    """Begins a session at a master, whose executors have some memory.

    `jars` is the class path of what Spark does not bring along. All sessions of a process have the
    same, since Spark's Java is started once.
    """
    # Spark's Java is started by this process, and starts Python for the driver.
    os.environ.update(ENVIRONMENT)
    builder = SparkSession.builder.master(address).appName("tapdeck")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": executor,
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    begun: SparkSession = builder.getOrCreate()
    begun.sparkContext.setLogLevel("ERROR")
    return begun
