"""`serve` does everything in a loop, goes on after faults and kills, and counts."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tapdeck_lake import serve, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_lake
from tapdeck_lake.errors import LakeError

from .synthetic import DAY_US, T0_US
from .test_lake import Fleet, known_hosts

LAKE = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(fleet: Fleet, port: int) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, "-m", "tapdeck_lake", "serve"]
    command += ["--lake", fleet.lake.directory, "--listen", f"127.0.0.1:{port}"]
    for sensor in ("berlin", "hamburg"):
        command += ["--flows", fleet.flows(sensor)]
    for task in ("commit", "hosts", "compact", "expire"):
        command += [f"--{task}-every", "0.2"]
    return subprocess.Popen(command, cwd=LAKE, stderr=subprocess.PIPE, text=True)


def counted(port: int) -> dict[str, float]:
    """The metrics by their names and labels; nothing while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"] == serve.OPEN_METRICS
            text: str = answer.read().decode()
    except urllib.error.URLError:
        return {}
    assert text.endswith("\n# EOF\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"tapdeck_lake_\w+\{\w+=\".*\"\} [0-9.e+]+", line) for line in lines)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def awaited(port: int, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    until = time.monotonic() + 120
    while True:
        metrics = counted(port)
        if metrics and condition(metrics):
            return metrics
        assert time.monotonic() < until, metrics
        time.sleep(0.05)


def test_all_of_it_in_a_loop_and_again_after_a_kill(tmp_path: Path) -> None:
    fleet, port = Fleet(tmp_path), free_port()
    for number in (1, 2, 4):
        for sensor in ("berlin", "hamburg"):
            fleet.write(sensor, number, 50, begin_us=T0_US + number * DAY_US // 3)
    rows = 'tapdeck_lake_rows{sensor="berlin"}'
    with started(fleet, port) as process:
        metrics = awaited(port, lambda metrics: metrics.get(rows) == 150)
        assert metrics['tapdeck_lake_segments{sensor="hamburg"}'] == 3
        assert metrics['tapdeck_lake_missing_segments{sensor="hamburg"}'] == 1
        process.kill()
    fleet.write("berlin", 5, 70, begin_us=T0_US + DAY_US)
    with started(fleet, port) as process:
        awaited(port, lambda metrics: metrics.get(rows) == 220)
        # Rows of two days are two files, when all is put together.
        flows = 'tapdeck_lake_files{kind="flows"}'
        metrics = awaited(port, lambda metrics: metrics.get(flows) == 2)
        for task in ("ship", "commit", "hosts", "compact", "expire"):
            assert metrics[f'tapdeck_lake_faults_total{{task="{task}"}}'] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert fleet.rows() == fleet.written("berlin", "hamburg")
    fleet.sound()
    known_hosts(fleet)


def test_a_fault_is_counted_and_does_not_end_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("berlin", 1, 50)
    fleet.ship("berlin")
    task = serve.tasks_of(fleet.lake, [], serve.Plan())[0]
    with Lake(fleet.lake.directory).changed():
        serve.run(task)
    assert (task.name, task.runs, task.faults, task.succeeded_s) == ("commit", 1, 1, 0)
    assert "commit: " in capsys.readouterr().err
    serve.run(task)
    assert (task.runs, task.faults) == (2, 1)
    assert task.succeeded_s > 0
    assert fleet.sound()["rows"] == 50


def test_a_directory_that_is_not_there_keeps_no_other_sensor_from_shipping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("hamburg", 1)
    flows = [fleet.flows("berlin"), fleet.flows("hamburg")]
    shippers = [ship.Shipper(directory, fleet.lake, None) for directory in flows]
    task = serve.tasks_of(fleet.lake, shippers, serve.Plan())[0]
    serve.run(task)
    serve.run(task)
    assert (task.name, task.runs, task.succeeded_s) == ("ship", 2, 0)
    said = capsys.readouterr().err
    assert said.count("tapdeck flows -o makes it") == 1, said
    assert len(list((fleet.landed / "hamburg").iterdir())) == 1
    fleet.write("berlin", 1)
    serve.run(task)
    assert task.succeeded_s > 0


def test_what_cannot_be_counted_does_not_end_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path)
    fleet.lake.db.execute("alter table segments rename to elsewhere")
    stop = threading.Event()

    def mend() -> int:
        if stops.runs == 1:
            fleet.lake.db.execute("alter table elsewhere rename to segments")
            stop.set()
        return 0

    stops = serve.Task("stops", 0, mend)
    serve.serve(fleet.lake, [stops], "", stop)
    assert stops.runs == 2
    assert "metrics: no such table" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["no database", "no tables", "no metadata", "no manifests"])
def test_what_iceberg_cannot_read_is_told(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, kind="iceberg")
    fleet.write("berlin", 1)
    fleet.settle("berlin")
    fleet.write("berlin", 2)
    fleet.ship("berlin")
    database = fleet.lake.directory / "iceberg.db"
    if harm == "no database":
        database.write_bytes(b"no database at all" * 1000)
    elif harm == "no tables":
        sqlite3.connect(database).execute("drop table iceberg_tables")
    else:
        ending = "metadata.json" if harm == "no metadata" else "avro"
        for path in fleet.lake.directory.glob(f"iceberg/**/*.{ending}"):
            path.write_text("{}")
    for task in serve.tasks_of(fleet.lake, [], serve.Plan()):
        serve.run(task)
        assert (task.runs, task.faults) == (1, 1), task.name
    assert capsys.readouterr().err.count("tapdeck-lake: ") == 4
    with pytest.raises(LakeError):
        serve.lake_metrics(fleet.lake)
    with pytest.raises(LakeError):
        over_lake(Lake(fleet.lake.directory))


def test_labels_are_escaped() -> None:
    assert serve.label('a"b\\c\nd') == r'"a\"b\\c\nd"'


@pytest.mark.parametrize("address", ["0.0.0.0:1", "192.0.2.1:80", "9470", "host:80", "[::]:1"])
def test_nobody_listens_elsewhere(address: str) -> None:
    with pytest.raises(LakeError):
        serve.listen(address, serve.Page())
