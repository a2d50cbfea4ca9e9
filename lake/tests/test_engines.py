"""One Iceberg table and three engines: what DuckDB, Spark and PyIceberg answer is the same.

The catalog is in PostgreSQL, and the files are on S3 where a test does not say otherwise. Spark
runs on a master and two workers, and puts files together while the lake goes on.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from servers.postgres import Server
from servers.spark import Cluster
from tapdeck_lake import commit, compact, expire, jobs, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_lake
from tapdeck_lake.errors import LakeError
from tapdeck_lake.flow_files import SCHEMA
from tapdeck_lake.iceberg import sum_of
from tapdeck_lake.spark_settings import settings

from .conftest import Bucket
from .engines import Rows, answers, duckdb_over, plain, pyiceberg_over, session_over, spark_over
from .stores import SECOND, T0_NS, drawn_segment, run, write_store
from .synthetic import DAY_US, T0_US
from .test_lake import Fleet
from .workers import first_worker_killed

HOSTS = (
    "hour, sensor, host, host_num, flows, sent_packets, sent_bytes, received_packets, "
    "received_bytes, first, last"
)


def hosts_by_lake(fleet: Fleet) -> list[tuple[Any, ...]]:
    found = over_lake(fleet.lake).execute(f"select {HOSTS} from hosts").fetchall()
    return sorted(plain(found), key=repr)


def hosts_by_spark(spark: SparkSession) -> list[tuple[Any, ...]]:
    return sorted(plain(spark.sql(f"select {HOSTS} from {jobs.HOSTS}").collect()), key=repr)


def filled(fleet: Fleet, segments: int = 6, rows: int = 500) -> Fleet:
    for number in range(1, segments + 1):
        for sensor in ("berlin", "hamburg"):
            fleet.write(sensor, number, rows, begin_us=T0_US + number * DAY_US // 3)
    fleet.settle("berlin", "hamburg")
    return fleet


@pytest.fixture
def fleet(
    tmp_path: Path, postgres: Server, bucket: Bucket, request: pytest.FixtureRequest
) -> Fleet:
    """A lake whose catalog is in PostgreSQL, with segments of two sensors and three days."""
    server = postgres.make(f"lake_{uuid4().hex}")
    files = bucket.url if getattr(request, "param", "s3") == "s3" else ""
    return filled(Fleet(tmp_path, kind="iceberg", server=server, files=files))


on_disk_and_s3 = pytest.mark.parametrize("fleet", ["disk", "s3"], indirect=True)


@on_disk_and_s3
def test_three_engines_have_the_same_answers(fleet: Fleet, spark: SparkSession) -> None:
    wanted = answers(duckdb_over(fleet.lake))
    assert wanted["rows"][0][0] == 6000
    assert all(wanted.values()), "each question has an answer"
    assert answers(pyiceberg_over(fleet.lake)) == wanted
    assert answers(spark_over(spark, fleet.lake)) == wanted
    done = jobs.compact(session_over(spark, fleet.lake))
    assert (done.before, done.after) == (10, 4), "a file for each day and sensor, of several"
    assert answers(duckdb_over(fleet.lake)) == wanted
    assert answers(pyiceberg_over(fleet.lake)) == wanted
    assert answers(spark_over(spark, fleet.lake)) == wanted
    # The lake goes on from there, and its register with it.
    fleet.lake = Lake(fleet.lake.directory)
    fleet.write("berlin", 7, 300, begin_us=T0_US + 2 * DAY_US)
    fleet.settle("berlin")
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, 0)
    assert fleet.sound()["rows"] == 6300
    assert fleet.rows() == fleet.written("berlin", "hamburg")
    wanted = answers(duckdb_over(fleet.lake))
    assert answers(pyiceberg_over(fleet.lake)) == wanted
    assert answers(spark_over(spark, fleet.lake)) == wanted


def test_engines_have_the_values_that_the_program_writes(
    tapdeck: Path,
    tmp_path: Path,
    postgres: Server,
    bucket: Bucket,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(11)
    segments = {n: drawn_segment(rng, T0_NS + n * 60 * SECOND, 7500) for n in range(1, 5)}
    write_store(tmp_path / "store", segments, tapdeck)
    flows = tmp_path / "flows"
    run(tapdeck, "flows", "--dir", tmp_path / "store", "-o", flows, "--sensor", "berlin")
    files = sorted(flows.glob("*.parquet"))
    assert len(files) == 4
    group = pq.read_metadata(files[0]).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    encodings = {column.path_in_schema: column.encodings for column in columns}
    assert "DELTA_LENGTH_BYTE_ARRAY" in encodings["runs"]
    assert "DELTA_BINARY_PACKED" in encodings["src_num"]
    assert "DELTA_BINARY_PACKED" in encodings["src_port"]

    lake = Lake.init(tmp_path / "lake", "iceberg", postgres.make(f"lake_{uuid4().hex}"), bucket.url)
    ship.ship(flows, lake, None)
    assert commit.commit(lake).segments == 4
    assert caplog.text == "", "nothing is missing in the files"
    wanted = in_order(
        plain([tuple(row.values()) for row in pq.read_table(list(map(str, files))).to_pylist()])
    )
    assert {type(value) for row in wanted for value in row} == {int, str, bytes, datetime, NoneType}
    everything = "select " + ", ".join(f'"{field.name}"' for field in SCHEMA) + " from flows"
    for _ in range(2):
        assert in_order(duckdb_over(lake)(everything)) == wanted
        assert in_order(pyiceberg_over(lake)(everything)) == wanted
        assert in_order(spark_over(spark, lake)(everything)) == wanted
        if jobs.compact(session_over(spark, lake)).before:
            lake = Lake(lake.directory)
    assert len(lake.files("flows")) == 1


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=repr)


@on_disk_and_s3
def test_files_that_spark_made_are_removed_when_nobody_needs_them(
    fleet: Fleet, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = session_over(spark, fleet.lake)
    jobs.hosts(own)
    jobs.compact(own)
    fleet.lake = Lake(fleet.lake.directory)
    made = names(fleet, "data")
    assert sum(name.endswith(".parquet") for name in made) == 4
    rows = fleet.rows()
    monkeypatch.setattr("tapdeck_lake.iceberg.UNNAMED_S", -1.0)
    expire.expire(fleet.lake, 0)
    assert names(fleet, "data") == made and fleet.rows() == rows
    done = compact.compact(fleet.lake, 1 << 30)
    assert done.before == 0, "one file for each day and sensor is there"
    fleet.write("hamburg", 7, 50, begin_us=T0_US + DAY_US)
    fleet.settle("hamburg")
    compact.compact(fleet.lake, 1 << 30)
    expire.expire(fleet.lake, 0)
    gone = made - names(fleet, "data")
    # Hadoop's sums are on disks alone.
    sums = [] if fleet.lake.place.path("").startswith("s3://") else [".crc"]
    assert sorted(Path(name).suffix for name in gone) == [*sums, ".parquet"]
    assert fleet.rows() == fleet.written("berlin", "hamburg")
    assert hosts_by_spark(own) and jobs.hosts(own).days == ["2026-01-02"]
    assert hosts_by_spark(own) == hosts_by_lake(fleet)
    metadata = names(fleet, "metadata")
    for name in metadata:
        if name.endswith(".crc"):
            assert sum_of(name) in metadata


def names(fleet: Fleet, folder: str) -> set[str]:
    """Files of the table's own."""
    return {found.name for found in fleet.lake.place.files(f"iceberg/tapdeck/flows/{folder}")}


def test_hosts_of_spark_are_those_of_the_lake(fleet: Fleet, spark: SparkSession) -> None:
    own = session_over(spark, fleet.lake)
    # A day is one of UTC, wherever Spark is.
    own.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert jobs.hosts(own) == jobs.RolledUp(days, [])
    wanted = hosts_by_lake(fleet)
    assert len(wanted) > 1000 and hosts_by_spark(own) == wanted
    assert jobs.hosts(own) == jobs.RolledUp([], [])
    # What is put together is not new.
    jobs.compact(own)
    assert jobs.hosts(own) == jobs.RolledUp([], [])
    fleet.lake = Lake(fleet.lake.directory)
    fleet.write("berlin", 7, 300, begin_us=T0_US + DAY_US)
    fleet.write("hamburg", 7, 300, begin_us=T0_US + 4 * DAY_US)
    fleet.settle("berlin", "hamburg")
    assert jobs.hosts(own) == jobs.RolledUp(["2026-01-02", "2026-01-05"], [])
    assert hosts_by_spark(own) == hosts_by_lake(fleet)


@pytest.mark.parametrize("late", [20, 3000])
def test_hosts_of_days_whose_rows_are_expired_stay(
    fleet: Fleet, spark: SparkSession, late: int
) -> None:
    own = session_over(spark, fleet.lake)
    jobs.hosts(own)
    known = hosts_by_spark(own)
    expire.expire(fleet.lake, 0, keep_days=1, today="2026-01-03")
    assert jobs.hosts(own) == jobs.RolledUp([], [])
    # A segment is late, and what is there of its day is a part of it, however much that is.
    fleet.write("berlin", 7, late, begin_us=T0_US + DAY_US)
    fleet.settle("berlin")
    assert jobs.hosts(own) == jobs.RolledUp([], ["2026-01-02"])
    assert jobs.hosts(own) == jobs.RolledUp([], []), "it is told once"
    assert hosts_by_spark(own) == known
    fleet.write("berlin", 8, late, begin_us=T0_US + DAY_US)
    fleet.write("berlin", 9, late, begin_us=T0_US + 2 * DAY_US)
    fleet.settle("berlin")
    assert jobs.hosts(own) == jobs.RolledUp(["2026-01-03"], ["2026-01-02"])
    assert [row for row in hosts_by_spark(own) if row[0].day == 2] == [
        row for row in known if row[0].day == 2
    ]


def test_of_two_jobs_that_roll_up_the_same_days_one_fails(
    fleet: Fleet, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = session_over(spark, fleet.lake), session_over(spark, fleet.lake)
    jobs.hosts(other)
    fleet.write("berlin", 7, 100, begin_us=T0_US + DAY_US)
    fleet.settle("berlin")
    write = jobs.write

    def late(made: DataFrame, until: int, before: int | None) -> None:
        """Comes after a whole job that has seen more."""
        monkeypatch.setattr(jobs, "write", write)
        fleet.write("berlin", 8, 100, begin_us=T0_US + DAY_US)
        fleet.settle("berlin")
        assert jobs.hosts(other) == jobs.RolledUp(["2026-01-02"], [])
        write(made, until, before)

    monkeypatch.setattr(jobs, "write", late)
    with pytest.raises(Exception, match="conflicting files"):
        jobs.hosts(own)
    assert jobs.hosts(own) == jobs.RolledUp([], [])
    assert hosts_by_spark(own) == hosts_by_lake(fleet)


def test_the_lake_and_spark_commit_beside_each_other(fleet: Fleet, spark: SparkSession) -> None:
    """None of both loses what the other has done meanwhile."""
    own = session_over(spark, fleet.lake)
    rewritten: list[jobs.Compacted] = []
    failed: list[BaseException] = []

    def put_together() -> None:
        try:
            for _ in range(3):
                rewritten.append(jobs.compact(own))
        except BaseException as error:
            failed.append(error)

    beside = threading.Thread(target=put_together)
    beside.start()
    number = 6
    while beside.is_alive():
        number += 1
        fleet.write("berlin", number, 20, begin_us=T0_US + number * DAY_US // 30)
        assert fleet.settle("berlin").segments == 1
        time.sleep(0.5)
    beside.join()
    assert failed == [] and rewritten[0].before >= 10 and number > 6
    assert fleet.sound()["rows"] == 6000 + 20 * (number - 6)
    assert fleet.rows() == fleet.written("berlin", "hamburg")


def test_a_catalog_in_sqlite_is_read_and_changed_by_spark(
    tmp_path: Path, spark: SparkSession
) -> None:
    fleet = filled(Fleet(tmp_path, kind="iceberg"))
    own = session_over(spark, fleet.lake)
    assert own.table(jobs.FLOWS).count() == 6000
    assert jobs.compact(own).after == 4
    assert Fleet.sound(fleet)["rows"] == 6000
    assert fleet.rows() == fleet.written("berlin", "hamburg")


def test_a_server_that_is_away_is_told_and_asked_again(tmp_path: Path, postgres: Server) -> None:
    fleet = filled(Fleet(tmp_path, kind="iceberg", server=postgres.make("away")), segments=1)
    fleet.write("berlin", 2, 70)
    assert fleet.ship("berlin").faults == 0
    postgres.stop()
    try:
        with pytest.raises(LakeError, match=r"cannot be read or changed .*connection"):
            commit.commit(fleet.lake)
        # Whoever ships asks the server nothing.
        lake = Lake(fleet.lake.directory)
        fleet.write("berlin", 3, 30)
        assert ship.ship(fleet.flows("berlin"), lake, None).segments == 1
        with pytest.raises(LakeError, match="see whether its catalog"):
            lake.files("flows")
    finally:
        postgres.start()
    assert commit.commit(fleet.lake).rows == 100
    assert fleet.sound()["rows"] == 1100


def test_a_commit_that_the_server_is_still_about_is_waited_for(
    tmp_path: Path, postgres: Server
) -> None:
    """Whoever begins it may be killed before its end, and it may take effect all the same."""
    database = postgres.make("slow")
    fleet = filled(Fleet(tmp_path, kind="iceberg", server=database), segments=1)
    fleet.lake.db.execute("insert into changes values ('begun', '{}')")
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = 'slow'"
    settled = threading.Event()

    def settle() -> None:
        Lake(fleet.lake.directory).table.settle()
        settled.set()

    other = threading.Thread(target=settle)
    watcher, about = postgres.connect("slow"), postgres.connect("slow")
    with about, about.transaction():
        about.execute("update iceberg_tables set previous_metadata_location = null")
        other.start()
        while watcher.execute(waits).fetchone() is None:
            assert other.is_alive()
            time.sleep(0.05)
        assert not settled.is_set()
    watcher.close()
    other.join()
    assert settled.is_set()
    assert fleet.lake.db.execute("select count(*) from changes").fetchone() == (0,)


def test_two_lakes_do_not_share_a_database(tmp_path: Path, postgres: Server) -> None:
    uri = postgres.make("shared")
    Lake.init(tmp_path / "one", "iceberg", uri)
    with pytest.raises(LakeError, match=r"of another lake, at .*/one"):
        Lake.init(tmp_path / "two", "iceberg", uri)
    assert not (tmp_path / "two" / "catalog.db").exists()
    # An attempt that was killed is followed by another.
    (tmp_path / "one" / "catalog.db").rename(tmp_path / "one" / ".catalog.db.new")
    (tmp_path / "one" / ".begun").write_text("a word")
    assert Lake.init(tmp_path / "one", "iceberg", uri).files("flows") == []
    # The other may be on another machine.
    (tmp_path / "one").rename(tmp_path / "gone")
    with pytest.raises(LakeError, match="of another lake, at a place that is not here"):
        Lake.init(tmp_path / "three", "iceberg", uri)
    assert not (tmp_path / "three" / "catalog.db").exists()


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("postgresql://me:secret@db/lake", "with a password"),
        ("postgresql://me@db/lake?password=secret", "with a password"),
        ("postgresql://me:secret@db", "is to be named as"),
        ("postgresql+psycopg://me:secret@db/lake", "is to be named as"),
        ("mysql://me:secret@db/lake", "is to be named as"),
        ("secret", "is to be named as"),
        ("postgresql://db/lake?options=-csearch_path%3Dx", "options is not understood"),
    ],
)
def test_what_names_no_server_is_refused(tmp_path: Path, uri: str, told: str) -> None:
    with pytest.raises(LakeError, match=told) as refused:
        Lake.init(tmp_path / "lake", "iceberg", uri)
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "lake").exists()


def test_spark_is_told_what_the_server_is_told(tmp_path: Path) -> None:
    lake = Lake.init(tmp_path / "lake", "iceberg")
    lake.server = "postgresql://me@[2001:db8::1]/lake?sslmode=verify-full&sslrootcert=/etc/ca.pem"
    told = settings(lake)
    catalog = "spark.sql.catalog.tapdeck"
    options = "sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem"
    assert told[f"{catalog}.uri"] == f"jdbc:postgresql://[2001:db8::1]:5432/lake?{options}"
    assert told[f"{catalog}.jdbc.user"] == "me"
    lake.server = "postgresql:///lake"
    with pytest.raises(LakeError, match="names no host"):
        settings(lake)


def test_spark_is_told_of_no_plain_files(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="init --iceberg"):
        settings(Lake.init(tmp_path / "files"))


def test_a_worker_that_is_killed_costs_no_row(
    fleet: Fleet, spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    wanted = answers(duckdb_over(fleet.lake))
    own = session_over(spark, fleet.lake)
    with first_worker_killed(spark_cluster, tmp_path) as count:
        assert own.table(jobs.FLOWS).repartition(8).rdd.mapPartitions(count).sum() == 6000
    # What is left of the cluster answers as before, and puts files together.
    assert answers(spark_over(spark, fleet.lake)) == wanted
    assert jobs.compact(own).after == 4
    assert answers(spark_over(spark, fleet.lake)) == wanted
