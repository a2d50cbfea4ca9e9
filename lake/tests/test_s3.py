"""A lake whose files lie on S3 is as one on a disk, and says what S3 refuses."""

from __future__ import annotations

import os
import pickle
import random
import socket
from pathlib import Path

import pytest

from servers import s3 as of_s3
from tapdeck_lake import compact, durable, expire, hosts, ship
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
    assert not list(fleet.lake.directory.rglob("*.parquet")), "the register alone is here"


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


def test_a_place_for_one_lake_is_not_taken_by_another(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LakeError, match="is no lake: tapdeck-lake init --files"):
        S3.parse(bucket.url).must_be_lake()
    publish = durable.publish

    def killed(path: Path) -> None:
        if path.name == "catalog.db":
            raise KeyboardInterrupt
        publish(path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            Lake.init(tmp_path / "one", "iceberg", files=bucket.url)
    for _ in range(2):
        with pytest.raises(LakeError, match="is not empty"):
            Lake.init(tmp_path / "two", "iceberg", files=bucket.url)
    # An attempt that was killed is followed by another.
    assert Lake.init(tmp_path / "one", "iceberg", files=bucket.url).files("flows") == []
    S3.parse(bucket.url).must_be_lake()
    with pytest.raises(LakeError, match="is not empty"):
        Lake.init(tmp_path / "two", files=bucket.url)
    for mark, says in [
        ('{"version": 2}', "has version 2"),
        ("[]", "is no lake"),
        ("", "is no lake"),
    ]:
        (bucket.directory / "lake.json").write_text(mark)
        with pytest.raises(LakeError, match=says):
            S3.parse(bucket.url).must_be_lake()


def test_a_place_that_others_use_is_not_taken(tmp_path: Path, bucket: Bucket) -> None:
    bucket.directory.mkdir(parents=True)
    (bucket.directory / "theirs").touch()
    for _ in range(2):
        with pytest.raises(LakeError, match="is not empty"):
            Lake.init(tmp_path / "lake", files=bucket.url)


def test_large_files_come_in_parts(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapdeck_lake.place.PART_BYTES", 5 << 20)
    large = tmp_path / "large"
    large.write_bytes(random.Random(1).randbytes(12 << 20))
    place = S3.parse(bucket.url)
    place.put(large, "segments/berlin/large")
    assert (bucket.directory / "segments" / "berlin" / "large").read_bytes() == large.read_bytes()
    found = place.look("segments/berlin/large")
    assert found is not None and found.bytes == 12 << 20


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
    fleet = Fleet(tmp_path, kind="iceberg", files=bucket.url)
    for number in (1, 2, 3):
        fleet.write("berlin", number)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        shipper = ship.Shipper(fleet.flows("berlin"), S3.parse(bucket.url), None)
        done = shipper.run()
        assert (done.faults, done.segments) == (1, 0), "one thing is wrong, and not three"
        assert shipper.run().faults == 0, "it is told once"
        refused_by_commands(fleet, "see whether")
    assert ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None).segments == 3
    with monkeypatch.context() as other:
        other.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
        done = ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None)
        assert done.faults == 0, "there is nothing to be shipped"
        fleet.write("berlin", 4)
        assert ship.ship(fleet.flows("berlin"), S3.parse(bucket.url), None).faults == 1
        refused_by_commands(fleet, "see whether")
    assert fleet.settle("berlin").segments == 4
    assert fleet.sound()["rows"] == 200


def refused_by_commands(fleet: Fleet, says: str) -> None:
    """What a user sees is a line, whichever of the libraries has asked S3."""
    for command in (["commit"], ["check"], ["sql", "from flows"]):
        done = tapdeck_lake(*command, "--lake", fleet.lake.directory)
        assert done.returncode == 1 and says in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_packets_are_not_taken_for_deleted_when_the_bucket_is(
    tapdeck: Path, tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    store, flows = tmp_path / "store", tmp_path / "flows"
    write_store(store, {1: drawn_segment(random.Random(1), T0_NS, 30)}, tapdeck)
    run(tapdeck, "flows", "--dir", store, "-o", flows, "--sensor", "berlin")
    gone = S3.parse("s3://no-such-bucket/lake")
    done = ship.ship(flows, gone, store)
    assert (done.segments, done.faults, done.waiting) == (0, 1, 1)
    assert "the bucket is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("http://10.0.0.1:9000", "without TLS only this machine"),
        ("http://s3.example", "without TLS only this machine"),
        ("ftp://127.0.0.1", "is to be as https://"),
        ("https://", "is to be as https://"),
        ("https://[::1", "is to be as https://"),
        ("127.0.0.1:9000", "is to be as https://"),
        ("https://me:secret@s3.example", "is to be as https://"),
    ],
)
def test_what_cannot_be_asked_is_told(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, told: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(LakeError, match=told) as refused:
        Service.of_environment()
    assert "secret" not in str(refused.value)


def test_what_is_told_to_s3_alone_counts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://one.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://other.example/")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert Service.of_environment().endpoint == "https://other.example"
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(LakeError, match="AWS_SECRET_ACCESS_KEY are not set"):
        Service.of_environment()
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert Service.of_environment().keys == {}


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


def test_another_process_asks_whom_this_one_asks(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that reads ends of files may have been started before."""
    place = S3.parse(bucket.url)
    place.put(Path(__file__), "landed/here")
    told = pickle.dumps(place)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pickle.loads(told).open("landed/here") as file:
        assert file.read() == Path(__file__).read_bytes()
    assert of_s3.SECRET not in repr(place.service)
