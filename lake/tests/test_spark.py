"""Stores as tables of Spark, on a cluster of processes: every packet once, whatever is asked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tapdeck
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from servers.s3 import Server
from servers.spark import Cluster
from tapdeck_lake.spark import register
from tests.stores import SECOND, T0_NS, drawn_segment, write_store
from tests.workers import first_worker_killed

PACKETS = 30_000
SEGMENTS = 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    """The program `tapdeck`; here that is the name of the module."""
    built: Path = request.getfixturevalue("tapdeck")
    return built


@pytest.fixture(scope="module")
def fleet(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two stores, of which the second is small."""
    directory = tmp_path_factory.mktemp("fleet")
    rng = random.Random(11)
    for name, packets in (("sensor-1", PACKETS), ("sensor-2", 50)):
        segments = {
            number: drawn_segment(rng, T0_NS + number * 60 * SECOND, packets // SEGMENTS)
            for number in range(1, SEGMENTS + 1)
        }
        write_store(directory / name, segments, program)
    return directory


@pytest.fixture(scope="module")
def store(fleet: Path) -> Path:
    return fleet / "sensor-1"


def table(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    read = spark.read.format("tapdeck").options(**options)
    loaded: DataFrame = read.load(str(path))
    return loaded


def microseconds(time: datetime) -> int:
    return int((time.astimezone(UTC) - EPOCH) / timedelta(microseconds=1))


def test_each_packet_is_in_the_table_once(spark: SparkSession, store: Path) -> None:
    packets = table(spark, store, split="1")
    assert packets.rdd.getNumPartitions() > 2
    found = sorted(
        (microseconds(row.time), bytes(row.data), row.interface, row.original_length)
        for row in packets.collect()
    )
    expected = sorted(
        (packet.time_ns // 1000, packet.data, packet.interface, packet.original_length)
        for packet in tapdeck.open(store).query()
    )
    assert len(expected) == PACKETS and found == expected


def test_both_workers_read(spark: SparkSession, store: Path) -> None:
    def parent(_: object) -> Iterator[int]:
        import os

        yield os.getppid()

    packets = table(spark, store, split="1", columns="time")
    assert packets.rdd.mapPartitions(parent).distinct().count() == 2


def test_several_stores_are_one_table(spark: SparkSession, fleet: Path) -> None:
    packets = table(spark, fleet / "sensor-*", columns="original_length")
    found = packets.agg(F.count("*"), F.sum("original_length")).first()
    expected = [
        packet.original_length
        for name in ("sensor-1", "sensor-2")
        for packet in tapdeck.open(fleet / name).query()
    ]
    assert found is not None and tuple(found) == (len(expected), sum(expected))


def test_stores_on_s3_are_one_table(spark: SparkSession, fleet: Path, s3: Server) -> None:
    bucket = s3.make_bucket("tape")
    shutil.copytree(fleet, bucket, dirs_exist_ok=True)
    packets = table(spark, "s3://tape/sensor-1, s3://tape/sensor-2", split="1", columns="data")
    assert packets.rdd.getNumPartitions() > 3
    found = sorted(bytes(row.data) for row in packets.collect())
    wanted = table(spark, fleet / "sensor-*", columns="data").collect()
    assert found == sorted(bytes(row.data) for row in wanted) and len(found) == PACKETS + 48
    flows = table(spark, "s3://tape/sensor-2", table="flows", sensor="x").collect()
    here = table(spark, fleet / "sensor-2", table="flows", sensor="x").collect()
    assert sorted(map(str, flows)) == sorted(map(str, here)) and flows
    for file in (bucket / "sensor-1").iterdir():
        file.unlink()
    with pytest.raises(PySparkException, match="s3://tape/sensor-1"):
        packets.collect()


def time_at(seconds: float) -> datetime:
    return EPOCH + timedelta(microseconds=T0_NS // 1000 + int(seconds * 1e6))


def text(seconds: float) -> str:
    return f"{time_at(seconds):%Y-%m-%dT%H:%M:%S.%fZ}"


ASKED: dict[str, dict[str, str]] = {
    "from a time on": {"after": text(150)},
    "before a time": {"before": text(80)},
    "a second": {"after": text(110), "before": text(111)},
    "no time": {"after": text(200), "before": text(200)},
    "a filter": {"filter": "udp port 53 and net 10.0.0.0/16"},
    "a filter in a span": {"filter": "icmp", "after": text(100), "before": text(200)},
    "an interface": {"interface": "eth*"},
    "another interface": {"interface": "eth1, eth2"},
}


@pytest.mark.parametrize("name", ASKED)
def test_packets_are_those_of_the_same_question_to_the_module(
    spark: SparkSession, store: Path, name: str
) -> None:
    asked: dict[str, Any] = dict(ASKED[name])
    packets = table(spark, store, split="1", columns="data", **asked)
    expression = asked.pop("filter", "")
    if "interface" in asked:
        asked["interface"] = asked["interface"].split(", ")
    expected = [packet.data for packet in tapdeck.open(store).query(expression, **asked)]
    assert sorted(bytes(row.data) for row in packets.collect()) == sorted(expected)
    assert (not expected) == (name in ("no time", "another interface"))


def test_what_is_not_asked_for_is_not_read(spark: SparkSession, store: Path) -> None:
    whole = table(spark, store, split="1", columns="time")
    second = table(spark, store, split="1", columns="time", after=text(110), before=text(111))
    nobody = table(spark, store, split="1", columns="time", filter="host 203.0.113.9")
    numbers = [packets.rdd.getNumPartitions() for packets in (whole, second, nobody)]
    assert numbers[0] > 2 and numbers[1:] == [1, 1]


def test_questions_to_one_data_frame_do_not_touch_each_other(
    spark: SparkSession, store: Path
) -> None:
    packets = table(spark, store, split="1", columns="time")
    early = packets.where(F.col("time") < time_at(80))
    late = packets.where(F.col("time") >= time_at(250))
    times = [packet.time_ns // 1000 for packet in tapdeck.open(store).query()]
    at = [microseconds(time_at(seconds)) for seconds in (80, 250)]
    ends = [sum(time < at[0] for time in times), sum(time >= at[1] for time in times)]
    assert min(ends) > 0
    assert early.union(late).count() == sum(ends)
    assert [early.count(), packets.count(), late.count()] == [ends[0], PACKETS, ends[1]]


def test_flows_are_those_of_the_module(spark: SparkSession, fleet: Path) -> None:
    flows = table(spark, fleet / "sensor-*", table="flows", sensor="lab")
    found = flows.orderBy("start", "src_ip", "src_port", "dst_port", "proto").collect()
    expected = [
        row
        for name in ("sensor-1", "sensor-2")
        for row in tapdeck.open(fleet / name).flows(sensor="lab").to_arrow().to_pylist()
    ]
    key = lambda row: sorted((name, str(value)) for name, value in row.items())  # noqa: E731

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: bytes(value)
            if isinstance(value, bytes | bytearray)
            else microseconds(value)
            if isinstance(value, datetime)
            else value
            for name, value in row.items()
        }

    rows = sorted((plain(row.asDict()) for row in found), key=key)
    assert rows == sorted(map(plain, expected), key=key)
    assert sum(row["fwd_packets"] + row["rev_packets"] for row in rows) > PACKETS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"table": "packet"}, "table: 'packet' is none; there are packets, flows"),
        ({"columns": "time,src"}, "packets have no column src; there are time,"),
        ({"split": "0"}, "split: '0' is none"),
        ({"fitler": "udp"}, "there is no option fitler"),
        ({"filter": "prot tcp"}, "prot"),
        ({"after": "soon"}, "is no time"),
        ({"direction": "up"}, 'write "in" or "out"'),
        ({"table": "flows", "interface": "eth0"}, "interface: this is no option of flows"),
        ({"path": "ftp://bucket/sensor"}, "is no store: write s3://BUCKET"),
        ({"path": "/nowhere/*"}, "there is nothing at /nowhere/*"),
    ],
)
def test_what_makes_no_sense_is_refused(
    spark: SparkSession, store: Path, options: dict[str, str], told: str
) -> None:
    path = options.pop("path", str(store))
    with pytest.raises(PySparkException) as refused:
        table(spark, path, **options).collect()
    assert told in str(refused.value)


def test_an_answer_that_is_not_whole_fails_unless_that_is_asked_for(
    spark: SparkSession, program: Path, tmp_path: Path
) -> None:
    store = tmp_path / "damaged"
    rng = random.Random(3)
    stems = write_store(store, {1: drawn_segment(rng, T0_NS, 4000)}, program)
    segment = store / f"{stems[0]}.pcapng"
    image = bytearray(segment.read_bytes())
    image[len(image) // 2 : len(image) // 2 + 64] = b"\xff" * 64
    segment.write_bytes(image)
    with pytest.raises(PySparkException, match="the answer is not whole"):
        table(spark, store, split="1").collect()
    assert 0 < table(spark, store, split="1", faults="ignore").count() < 4000


def test_segments_that_are_deleted_before_a_task_reads_them_are_told(
    spark: SparkSession, program: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    rng = random.Random(4)
    segments = {n: drawn_segment(rng, T0_NS + n * 60 * SECOND, 8000) for n in (1, 2)}
    stems = write_store(store, segments, program)
    whole = table(spark, store, split="1", columns="time")
    late = table(spark, store, split="1", columns="time", after=text(120))
    ignoring = table(spark, store, split="1", columns="time", faults="ignore")
    # Tasks are made when they are counted.
    assert all(frame.rdd.getNumPartitions() > 1 for frame in (whole, late, ignoring))
    for file in store.glob(f"{stems[0]}*"):
        file.unlink()
    with pytest.raises(PySparkException, match=f"segments from {stems[0]}"):
        whole.collect()
    assert late.count() == ignoring.count() == 8000


def test_a_worker_that_is_killed_costs_no_packet(
    spark: SparkSession, spark_cluster: Cluster, store: Path, tmp_path: Path
) -> None:
    packets = table(spark, store, split="1", columns="data")
    with first_worker_killed(spark_cluster, tmp_path) as count:
        assert packets.rdd.mapPartitions(count).sum() == PACKETS
