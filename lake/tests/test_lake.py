"""A lake of plain files: what is shipped is in the table once, whatever else happens to it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapdeck_lake import check, commit, compact, expire, hosts, ship
from tapdeck_lake.catalog import Lake, folder_of, sensor_of
from tapdeck_lake.engine import over_directories, over_lake
from tapdeck_lake.errors import LakeError
from tapdeck_lake.place import Disk
from tapdeck_lake.reader import READER

from .synthetic import DAY_US, T0_US, write_flows


class Fleet:
    """A lake, and sensors' directories of flow tables."""

    def __init__(
        self,
        directory: Path,
        seed: int = 1,
        kind: str = "files",
        server: str = "",
        files: str = "",
    ) -> None:
        self.directory = directory
        self.rng = np.random.default_rng(seed)
        self.kind = kind
        self.lake = Lake.init(directory / "lake", kind, server, files)

    @property
    def landed(self) -> Path:
        """Where files arrive, of a lake on a disk."""
        return self.lake.directory / "landed"

    def flows(self, sensor: str) -> Path:
        return self.directory / sensor

    def write(self, sensor: str, number: int, rows: int = 50, **others: int) -> str:
        begin_us = others.get("begin_us", T0_US + number * 60_000_000)
        length_us = others.get("length_us", 60_000_000)
        return write_flows(self.flows(sensor), sensor, number, self.rng, rows, begin_us, length_us)

    def ship(self, sensor: str) -> ship.Shipped:
        return ship.ship(self.flows(sensor), self.lake, None)

    def settle(self, *sensors: str) -> commit.Committed:
        for sensor in sensors:
            assert self.ship(sensor).faults == 0
        return commit.commit(self.lake)

    def rows(self) -> list[tuple[object, ...]]:
        """All rows of the table, in an order of their own."""
        return sorted_rows(over_lake(self.lake).execute("select * from flows").fetchall())

    def written(self, *sensors: str) -> list[tuple[object, ...]]:
        """All rows that the sensors have."""
        db = over_directories([self.flows(sensor) for sensor in sensors])
        return sorted_rows(db.execute("select * from flows").fetchall())

    def sound(self) -> dict[str, int]:
        checked = check.check(self.lake)
        assert checked.faults == []
        return checked.totals


def sorted_rows(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=repr)


@pytest.fixture(params=["files", "iceberg"])
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Fleet:
    """A fleet with a lake of either kind."""
    return Fleet(tmp_path, kind=request.param)


def test_what_sensors_have_is_in_the_table(fleet: Fleet) -> None:
    for number in range(1, 6):
        fleet.write("berlin", number)
        fleet.write("ham/burg", number, rows=number * 10)
    fleet.write("berlin", 6, rows=0)
    done = fleet.settle("berlin", "ham/burg")
    assert (done.segments, done.rows, done.faults) == (11, 5 * 50 + 150, 0)
    assert fleet.rows() == fleet.written("berlin", "ham/burg")
    totals = fleet.sound()
    assert (totals["segments"], totals["rows"]) == (11, 400)
    again = fleet.settle("berlin", "ham/burg")
    assert (again.segments, again.rows) == (0, 0)
    assert fleet.ship("berlin").files == 0
    assert fleet.sound() == totals


def test_a_segment_over_midnight_is_in_two_days(fleet: Fleet) -> None:
    fleet.write("berlin", 1, begin_us=T0_US - 30_000_000)
    fleet.settle("berlin")
    assert {file.day for file in fleet.lake.files("flows")} == {"2025-12-31", "2026-01-01"}
    assert fleet.sound()["rows"] == 50
    assert fleet.rows() == fleet.written("berlin")


def test_what_is_delivered_again_counts_once(fleet: Fleet) -> None:
    for number in (1, 2, 3):
        fleet.write("berlin", number, begin_us=T0_US - 30_000_000 + number)
    fleet.settle("berlin")
    rows = fleet.rows()
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, grace_s=0)
    assert list(fleet.landed.glob("berlin/*.parquet")) == []
    # Its list of what was delivered is lost.
    for record in fleet.flows("berlin").glob(".tapdeck-lake-*"):
        record.unlink()
    assert fleet.ship("berlin").files == 6
    assert fleet.rows() == rows, "what was not committed does not count"
    assert commit.commit(fleet.lake).segments == 0
    assert fleet.rows() == rows
    assert expire.expire(fleet.lake).files == 6
    assert list(fleet.landed.glob("berlin/*.parquet")) == []
    assert fleet.rows() == rows
    fleet.sound()


def test_compaction_keeps_every_row_and_every_host(fleet: Fleet) -> None:
    for number in range(1, 9):
        fleet.write("berlin", number, begin_us=T0_US + number * DAY_US // 4, length_us=DAY_US // 8)
        fleet.write("hamburg", number)
    fleet.settle("berlin", "hamburg")
    rows, of_hosts = fleet.rows(), known_hosts(fleet)
    hosts.hosts(fleet.lake)
    assert known_hosts(fleet) == of_hosts
    fleet.write("berlin", 9)
    fleet.settle("berlin")
    rows, of_hosts = fleet.rows(), known_hosts(fleet)
    before = len(fleet.lake.files("flows"))
    done = compact.compact(fleet.lake)
    days = {file.day for file in fleet.lake.files("flows")}
    # An Iceberg table has partitions of a day and a sensor; hamburg was there on the first day.
    parts = len(days) + (fleet.kind == "iceberg")
    assert (done.before > before, len(fleet.lake.files("flows"))) == (True, parts)
    assert len(fleet.lake.files("hosts")) == len(days)
    assert fleet.rows() == rows and known_hosts(fleet) == of_hosts
    fleet.sound()
    removed = expire.expire(fleet.lake, grace_s=3600)
    assert removed.files == 0, "a question may still read them"
    removed = expire.expire(fleet.lake, grace_s=0)
    assert removed.files == done.before
    assert fleet.rows() == rows and known_hosts(fleet) == of_hosts
    assert compact.compact(fleet.lake).before == 0


def known_hosts(fleet: Fleet) -> list[tuple[object, ...]]:
    """The table of hosts, which is what the flows say, however much of it is rolled up."""
    db = over_lake(fleet.lake)
    columns = "hour, sensor, host, flows, sent_bytes, received_packets, first, last"
    found = db.execute(f"select {columns} from hosts order by all").fetchall()
    packets, twice = db.execute(
        "select (select sum(sent_packets + received_packets) from hosts), "
        "(select 2 * sum(fwd_packets + rev_packets) from flows)"
    ).fetchall()[0]
    assert packets == twice
    sums = db.execute(
        "select date_trunc('hour', start), sensor, src_ip, sum(fwd_bytes) from flows group by all"
    )
    sent: dict[object, int] = {}
    for hour, sensor, host, size in sums.fetchall():
        sent[hour, sensor, host] = size
    sums = db.execute(
        "select date_trunc('hour', start), sensor, dst_ip, sum(rev_bytes) from flows group by all"
    )
    for hour, sensor, host, size in sums.fetchall():
        sent[hour, sensor, host] = sent.get((hour, sensor, host), 0) + size
    assert {tuple(row[:3]): row[4] for row in found} == sent
    return found


def test_files_become_as_large_as_was_aimed_at_and_no_larger(fleet: Fleet) -> None:
    for number in range(1, 13):
        fleet.write("berlin", number, rows=300)
    fleet.settle("berlin")
    size = max(file.bytes for file in fleet.lake.files("flows"))
    compact.compact(fleet.lake, target_bytes=size * 4)
    files = fleet.lake.files("flows")
    assert 3 <= len(files) <= 4
    assert sum(file.rows for file in files) == 12 * 300
    fleet.sound()


def test_rows_that_expire_are_told_and_hosts_stay(fleet: Fleet) -> None:
    for number in range(1, 5):
        fleet.write("berlin", number, begin_us=T0_US + number * DAY_US - 30_000_000)
    fleet.settle("berlin")
    of_hosts = known_hosts_alone(fleet)
    days = sorted(file.day for file in fleet.lake.files("flows"))
    assert len(days) == 8, "each segment goes over midnight"
    done = expire.expire(fleet.lake, 0, keep_days=2, today=days[-1])
    left = sorted({file.day for file in fleet.lake.files("flows")})
    assert left == sorted(set(days))[-2:]
    assert 0 < done.rows < 200
    totals = fleet.sound()
    assert totals["rows"] == 200 - done.rows == len(fleet.rows())
    assert known_hosts_alone(fleet) == of_hosts
    # What was expired does not come back.
    for record in fleet.flows("berlin").glob(".tapdeck-lake-*"):
        record.unlink()
    assert fleet.settle("berlin").segments == 0
    assert fleet.sound() == totals


def known_hosts_alone(fleet: Fleet) -> list[tuple[object, ...]]:
    return over_lake(fleet.lake).execute("select * from hosts order by all").fetchall()


def test_what_never_came_is_told(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (3, 4, 7, 9):
        fleet.write("berlin", number)
    fleet.settle("berlin")
    said = capsys.readouterr().err
    assert "segments 5 to 6 of" in said and "segment 8 of" in said
    checked = check.check(fleet.lake)
    assert checked.notes == [
        "berlin: segments 5 to 6 never came",
        "berlin: segment 8 never came",
    ]
    assert checked.faults == []


@pytest.mark.parametrize("harm", ["a file less", "rows twice", "a file cut short", "other rows"])
def test_check_finds_what_is_wrong(fleet: Fleet, harm: str) -> None:
    for number in (1, 2, 3):
        fleet.write("berlin", number)
    fleet.settle("berlin")
    fleet.sound()
    file = fleet.lake.files("flows")[1]
    if harm == "a file less":
        fleet.lake.table.drop([file], [])
    elif harm == "rows twice":
        path = file.path.replace("tapdeck-", "twice-")
        fleet.lake.place.put(Path(fleet.lake.path(file)), path)
        fleet.lake.table.exchange([], replace(file, path=path))
    elif harm == "a file cut short":
        os.truncate(fleet.lake.path(file), file.bytes - 1)
    else:
        query = "update segments set packets_in_rows = packets_in_rows + 1 where number = 2"
        fleet.lake.db.execute(query)
    checked = check.check(fleet.lake)
    assert len(checked.faults) == 1, checked.faults


def test_files_that_are_not_whole_are_refused_and_named(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    flows = fleet.flows("berlin")
    good = fleet.write("berlin", 1)
    short = fleet.write("berlin", 2)
    os.truncate(flows / f"{short}.parquet", 200)
    day = fleet.write("berlin", 3, begin_us=T0_US - 30_000_000)
    (flows / f"{day}-2026-01-01.parquet").unlink()
    done = fleet.ship("berlin")
    assert (done.segments, done.faults) == (1, 2)
    said = capsys.readouterr().err
    assert short in said and f"{day}.parquet: its segment has 50 rows in 2 files" in said
    # Also where the lake gets them from somebody else.
    folder = fleet.landed / "berlin"
    for stem in (short, day):
        (folder / f"{stem}.parquet").write_bytes((flows / f"{stem}.parquet").read_bytes())
    moved = folder.with_name("hamburg")
    moved.mkdir()
    (moved / f"{good}.parquet").write_bytes((flows / f"{good}.parquet").read_bytes())
    committed = commit.commit(fleet.lake)
    assert (committed.segments, committed.faults) == (1, 3)
    assert "is of the sensor berlin" in capsys.readouterr().err
    assert fleet.sound()["rows"] == 50


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_keeps_the_others_from_being_committed(
    fleet: Fleet, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(seed)
    folder = fleet.landed / "berlin"
    damaged = 0
    for number in range(1, 31):
        fleet.write("berlin", number, 20)
    fleet.ship("berlin")
    for path in sorted(folder.iterdir())[::2]:
        data = bytearray(path.read_bytes())
        # What stands at the end, where a file says what is in it.
        for at in rng.integers(len(data) - 3000, len(data), rng.integers(1, 4)):
            data[at] ^= 1 << int(rng.integers(8))
        if rng.random() < 0.3:
            del data[int(rng.integers(len(data))) :]
        path.write_bytes(data)
        damaged += 1
    done = commit.commit(fleet.lake)
    assert done.segments + done.faults == 30
    assert done.segments >= 30 - damaged and done.faults > damaged // 3
    said = capsys.readouterr().err
    assert said.count("\n") >= done.faults and "Traceback" not in said
    # The others are there.
    whole = over_lake(fleet.lake).execute("select count(*) from segments where number % 2 = 0")
    assert whole.fetchall() == [(15,)]


def test_two_stores_with_one_name_are_told_apart(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.write("berlin", 1, rows=50)
    fleet.settle("berlin")
    other = fleet.directory / "other"
    write_flows(other, "berlin", 1, fleet.rng, 60, T0_US + 60_000_000)
    assert ship.ship(other, fleet.lake, None).faults == 1
    assert "name sensors differently" in capsys.readouterr().err
    assert fleet.sound()["rows"] == 50


def test_other_rows_by_a_known_name_are_told_and_kept(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = fleet.write("berlin", 1)
    fleet.write("berlin", 2)
    fleet.settle("berlin")
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, grace_s=0)
    rows = fleet.rows()
    other = fleet.directory / "other"
    assert write_flows(other, "berlin", 1, fleet.rng, 50, T0_US + 60_000_000) == stem
    assert ship.ship(other, fleet.lake, None).faults == 1
    assert "name sensors differently" in capsys.readouterr().err
    # Also where it was brought by other means.
    path = fleet.landed / "berlin" / f"{stem}.parquet"
    assert not path.exists()
    path.write_bytes((other / path.name).read_bytes())
    committed = commit.commit(fleet.lake)
    assert (committed.segments, committed.faults) == (0, 1)
    assert "name sensors differently" in capsys.readouterr().err
    done = expire.expire(fleet.lake, grace_s=0)
    assert (done.files, done.faults, path.exists()) == (0, 1, True)
    assert "name sensors differently" in capsys.readouterr().err
    assert fleet.rows() == rows


def test_one_process_at_a_time_changes_a_lake(fleet: Fleet) -> None:
    with fleet.lake.changed():
        with pytest.raises(LakeError, match="is being changed by another process"):
            commit.commit(Lake(fleet.lake.directory))
        # Questions go on.
        over_lake(Lake(fleet.lake.directory)).execute("select * from flows")


def test_what_others_have_put_together_meanwhile_is_no_fault(fleet: Fleet) -> None:
    fleet.write("berlin", 1)
    fleet.write("berlin", 2)
    fleet.settle("berlin")
    rows = fleet.sound()["rows"]
    other = Lake(fleet.lake.directory)
    assert compact.compact(other).before == 2
    # What both were is removed at once, so whoever goes by what it knew looks for them in vain.
    assert expire.expire(other, grace_s=0).files >= 2
    assert fleet.sound()["rows"] == rows


def test_what_killed_processes_left_is_removed_and_nothing_else(fleet: Fleet) -> None:
    fleet.write("berlin", 1)
    fleet.write("berlin", 2)
    fleet.settle("berlin")
    compact.compact(fleet.lake)
    rows = fleet.rows()
    part = fleet.lake.files("flows")[0]
    orphan = Path(fleet.lake.path(part)).with_name("part-0123.parquet")
    orphan.write_bytes(b"not named")
    new, old = (fleet.landed / "berlin" / f".{age}.parquet.new" for age in ("new", "old"))
    for draft in (new, old):
        draft.write_bytes(b"half")
    yesterday = time.time() - 2 * 86_400
    os.utime(old, (yesterday, yesterday))
    done = expire.expire(fleet.lake)
    assert done.files == 2
    assert not orphan.exists() and not old.exists() and new.exists()
    assert fleet.rows() == rows


@pytest.mark.parametrize("sensor", ["berlin", "a/b", "Zürich 3", ".hidden", "50%", "*", "a'b"])
def test_any_sensor_has_a_folder(fleet: Fleet, sensor: str) -> None:
    assert sensor_of(folder_of(sensor)) == sensor
    assert "/" not in folder_of(sensor)
    flows = fleet.directory / "of-sensor"
    write_flows(flows, sensor, 1, fleet.rng, 10)
    ship.ship(flows, fleet.lake, None)
    assert commit.commit(fleet.lake).segments == 1
    found = over_lake(fleet.lake).execute("select distinct sensor from flows").fetchall()
    assert found == [(sensor,)]
    fleet.sound()


@pytest.mark.parametrize("sensor", ["", ".", "..", "x" * 300])
def test_names_that_no_folder_can_have_are_refused(sensor: str) -> None:
    with pytest.raises(LakeError, match="cannot be the name of a sensor"):
        folder_of(sensor)


def test_a_sensors_folder_may_lie_elsewhere(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    (fleet.landed / "berlin").symlink_to(tmp_path / "mounted")
    fleet.write("berlin", 1)
    assert fleet.settle("berlin").segments == 1
    assert len(list((tmp_path / "mounted").glob("*.parquet"))) == 1
    fleet.landed.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match="landed"):
        commit.commit(fleet.lake)


def test_links_that_are_rings_keep_nobody_out(fleet: Fleet) -> None:
    fleet.write("berlin", 1)
    fleet.ship("berlin")
    (fleet.landed / "ring").symlink_to("ring")
    (fleet.landed / "berlin" / "ring").symlink_to("ring")
    (fleet.landed / "berlin" / "above").symlink_to(fleet.landed)
    assert fleet.settle().segments == 1
    fleet.sound()
    expire.expire(fleet.lake, 0)
    names = [found.name for found in fleet.lake.place.files("landed")]
    assert len(names) == 1, "each file once, however deep is looked"


def test_a_list_that_was_made_while_files_came_is_made_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    stem = write_flows(tmp_path, "berlin", 1, rng, 50, T0_US + DAY_US - 60_000_000, 120_000_000)
    first = f"{stem}.parquet"
    account, files = READER.read_listed(Disk(tmp_path), "", stem, [first])
    assert (account.files, len(files), files[-1].name) == (2, 2, first)
    next(tmp_path.glob(f"{stem}-*")).unlink()
    with pytest.raises(LakeError, match="copy them again"):
        READER.read_listed(Disk(tmp_path), "", stem, [first])


def test_a_lake_is_made_once_and_nowhere_else(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="is a lake already"):
        Lake.init(fleet.lake.directory)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(LakeError, match="is not empty"):
        Lake.init(tmp_path / "other")
    with pytest.raises(LakeError, match="is no lake"):
        Lake(tmp_path / "other")
    # Whoever was killed while a lake was made left no lake, and is followed by others.
    (tmp_path / "begun" / "landed").mkdir(parents=True)
    (tmp_path / "begun" / ".catalog.db.new").write_bytes(b"half")
    (tmp_path / "begun" / ".begun").write_text("a word")
    Lake.init(tmp_path / "begun", fleet.kind)
    assert over_lake(Lake(tmp_path / "begun")).execute("from flows").fetchall() == []


def test_an_empty_lake_answers(fleet: Fleet) -> None:
    db = over_lake(fleet.lake)
    for name in ("flows", "segments", "hosts", "missing", "zeek_conn", "ecs"):
        assert db.execute(f"select * from {name}").fetchall() == []
    assert fleet.sound()["rows"] == 0
