"""A standalone cluster of Spark: one master and two workers, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Cluster:
    """Where the master is, and the workers, to be killed."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def cluster(work: Path) -> Iterator[Cluster]:
    """Starts a cluster whose files go into a directory, and ends it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, *arguments: str) -> Path:
        log = work / f"{name}.log"
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += [*arguments, "--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    command,
                    cwd=work,
                    env={**os.environ, **ENVIRONMENT},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    try:
        log = start("master", "master.Master", "--port", "0")
        address = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for name in ("worker1", "worker2"):
            limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(work / name)]
            worker = start(name, "worker.Worker", *limits, address)
            wait_for(worker, "Successfully registered with master")
        yield Cluster(address, started[1:])
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def wait_for(log: Path, what: str) -> str:
    """Waits until a log has a line; returns its first group, or all of it."""
    patience = time.monotonic() + PATIENCE_S
    while True:
        found = re.search(what, log.read_text(errors="replace"))
        if found:
            return found.group(found.lastindex or 0)
        assert time.monotonic() < patience, f"{what!r} is not in {log.read_text(errors='replace')}"
        time.sleep(0.1)


def session(address: str, work: Path, jars: str) -> SparkSession:
    """Begins a session at a master.

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
        "spark.executor.memory": "768m",
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
