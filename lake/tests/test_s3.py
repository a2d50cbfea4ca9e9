"""A lake whose files lie on S3 is as one on a disk, and says what S3 refuses."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from servers import s3 as of_s3
from tapdeck_lake import compact, expire, hosts, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.errors import LakeError
from tapdeck_lake.place import S3, Service

from .conftest import Bucket
from .stores import SECOND, T0_NS, drawn_segment, run, write_store
from .synthetic import DAY_US, T0_US
from .test_flows import tapdeck_lake
from .test_lake import Fleet, known_hosts

SENSORS = ("berlin", "ham/burg", "a b")


def names_in(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("kind", ["files", "iceberg"])
def test_a_lake_on_s3_is_as_one_on_a_disk(tmp_path: Path, bucket: Bucket, kind: str) -> None:
    fleet = Fleet(tmp_path, kind=kind, files=bucket.url)
    for number in range(1, 5):
        for sensor in SENSORS:
            fleet.write(sensor, number, 100, begin_us=T0_US + number * DAY_US // 3)
    # Sensors know the place alone.
    place = S3.parse(bucket.url)
    for sensor in SENSORS:
        done = ship.ship(fleet.flows(sensor), place, None)
        assert (done.segments, done.faults, done.waiting) == (4, 0, 0)
        assert ship.ship(fleet.flows(sensor), place, None).segments == 0
    assert fleet.settle().segments == 12
    assert fleet.settle().segments == 0
    assert fleet.rows() == fleet.written(*SENSORS)
    fleet.sound()
    hosts.hosts(fleet.lake)
    fleet.write("berlin", 5, 70, begin_us=T0_US)
    fleet.settle("berlin")
    rows, of_hosts = fleet.rows(), known_hosts(fleet)
    assert compact.compact(fleet.lake).before > 13
    assert fleet.rows() == rows == fleet.written(*SENSORS)
    assert known_hosts(fleet) == of_hosts
    landed = {name for name in names_in(bucket.directory) if name.startswith("landed/")}
    assert len(landed) >= 13
    assert expire.expire(fleet.lake, 3600).files == 0
    assert names_in(bucket.directory) >= landed
    # What the table no longer needs goes, what it needs stays, also of what landed.
    expire.expire(fleet.lake, 0)
    named = {file.path for kind in ("flows", "hosts") for file in fleet.lake.files(kind)}
    left = {name for name in names_in(bucket.directory) if name.endswith(".parquet")}
    assert left == named and named & landed != landed
    assert fleet.rows() == rows and known_hosts(fleet) == of_hosts
    expire.expire(fleet.lake, 0, keep_days=1, today="2026-01-02")
    assert 0 < fleet.sound()["rows"] < len(rows)
    assert known_hosts_days(fleet) == {"2026-01-01", "2026-01-02"}
    assert not list(fleet.lake.directory.glob("*/*.parquet")), "the register alone is here"


def known_hosts_days(fleet: Fleet) -> set[str]:
    return {file.day for file in fleet.lake.files("hosts")}


@pytest.mark.parametrize("kind", ["files", "iceberg"])
def test_what_is_wrong_on_s3_is_told(tmp_path: Path, bucket: Bucket, kind: str) -> None:
    fleet = Fleet(tmp_path, kind=kind, files=bucket.url)
    good, other = (fleet.write("berlin", number) for number in (1, 2))
    assert ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None).segments == 2
    short = bucket.directory / "landed" / "berlin" / f"{other}.parquet"
    os.truncate(short, 300)
    done = fleet.settle()
    assert (done.segments, done.faults) == (1, 1)
    # A file of the same name and another length is not taken for the same.
    (fleet.flows("berlin") / f"{good}.parquet").write_bytes(b"PAR1")
    fleet.write("berlin", 1, 500)
    for record in fleet.flows("berlin").glob(".tapdeck-lake-*.shipped"):
        record.unlink()
    assert ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None).faults == 2
    fleet.sound()
    (bucket.directory / "landed" / "berlin" / f"{good}.parquet").unlink()
    with pytest.raises(AssertionError, match="is missing"):
        fleet.sound()


def test_a_place_for_one_lake_is_not_taken_by_another(tmp_path: Path, bucket: Bucket) -> None:
    with pytest.raises(LakeError, match="is no lake: tapdeck-lake init --files"):
        S3.parse(bucket.url).must_be_lake()
    lake = Lake.init(tmp_path / "one", files=bucket.url)
    S3.parse(bucket.url).must_be_lake()
    with pytest.raises(LakeError, match="is not empty"):
        Lake.init(tmp_path / "two", "iceberg", files=bucket.url)
    # An attempt that was killed is followed by another.
    (lake.directory / "catalog.db").rename(lake.directory / ".catalog.db.new")
    assert Lake.init(tmp_path / "one", "iceberg", files=bucket.url).files("flows") == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://", "no place for a lake"),
        ("s3:///x", "no place for a lake"),
        ("https://bucket/x", "no place for a lake"),
        ("s3://bucket/../x", "no place for a lake"),
        ("s3://bucket/a//b", "no place for a lake"),
        ("s3://bucket/a?b", "another use"),
        ("s3://bucket/a b", "another use"),
        ("s3://bucket/100%", "another use"),
    ],
)
def test_what_names_no_place_is_refused(tmp_path: Path, url: str, told: str) -> None:
    with pytest.raises(LakeError, match=told):
        Lake.init(tmp_path / "lake", files=url)
    assert not (tmp_path / "lake").exists()


def test_a_server_that_is_away_is_told(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, files=bucket.url)
    fleet.write("berlin", 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        done = ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None)
        assert (done.faults, done.segments) == (1, 0)
        with pytest.raises(LakeError, match="see whether the server answers"):
            list(Lake(fleet.lake.directory).place.files("landed"))
    assert ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None).segments == 1
    assert fleet.settle().segments == 1


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("http://10.0.0.1:9000", "without TLS only this machine"),
        ("http://s3.example", "without TLS only this machine"),
        ("ftp://127.0.0.1", "is to be as https://"),
        ("https://", "is to be as https://"),
        ("https://[::1", "is to be as https://"),
        ("127.0.0.1:9000", "is to be as https://"),
    ],
)
def test_what_cannot_be_asked_is_told(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, told: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(LakeError, match=told):
        Service.of_environment()


def test_packets_behind_an_answer_come_from_s3(
    tapdeck: Path, tmp_path: Path, bucket: Bucket
) -> None:
    """All by commands, as a sensor, a committer and an analyst give them."""
    rng = random.Random(1)
    segments = {n: drawn_segment(rng, T0_NS + n * 60 * SECOND, 300) for n in range(1, 4)}
    store, flows, lake = tmp_path / "store", tmp_path / "flows", tmp_path / "lake"
    write_store(store, segments, tapdeck)
    run(tapdeck, "flows", "--dir", store, "-o", flows, "--sensor", "berlin")
    shipping: list[str | Path] = ["--flows", flows, "--lake", bucket.url, "--segments", store]
    refused = tapdeck_lake("ship", *shipping)
    assert (refused.returncode, "is no lake" in refused.stderr) == (1, True)
    commands: list[tuple[str, list[str | Path]]] = [
        ("init", ["--iceberg", "--files", bucket.url, lake]),
        ("ship", shipping),
        ("commit", ["--lake", lake]),
        ("check", ["--lake", lake]),
    ]
    for name, arguments in commands:
        done = tapdeck_lake(name, *arguments)
        assert done.returncode == 0, done.stderr
    wanted = run(tapdeck, "query", "--dir", store, "udp port 53")
    out = tmp_path / "out.pcapng"
    question = "from flows where 53 in (src_port, dst_port) and proto = 17"
    done = tapdeck_lake("fetch", "--tapdeck", tapdeck, "-w", out, "--lake", lake, question)
    assert done.returncode == 0, done.stderr
    assert run(tapdeck, "query", "--dir", out) == wanted and wanted
    told = tapdeck_lake("spark-settings", "--lake", lake).stdout
    assert f"warehouse {bucket.url}/iceberg" in told
    assert "key" not in told and of_s3.SECRET not in told
