"""The Iceberg table is what other engines read, and its register follows it, whoever is killed."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from tapdeck_lake import commit, compact, expire
from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_lake
from tapdeck_lake.errors import LakeError
from tapdeck_lake.iceberg import CATALOG, TABLE, IcebergTable

from .synthetic import DAY_US, T0_US
from .test_lake import Fleet, known_hosts

NOON = "2026-01-02 12:00:00+00"


class Killed(BaseException):
    """What ends a process at a place that a test has chosen."""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, kind="iceberg")
    for number in range(1, 7):
        for sensor in ("berlin", "hamburg"):
            fleet.write(sensor, number, 200, begin_us=T0_US + number * DAY_US // 3)
    fleet.settle("berlin", "hamburg")
    return fleet


QUESTIONS = {
    "rows": "select count(*) from flows",
    "sums": "select sum(fwd_packets)::bigint, sum(rev_bytes)::bigint, min(start) from flows",
    "by hour": "select date_trunc('hour', start), count(*) from flows group by 1 order by 1",
    "top hosts": "select src_ip, sum(fwd_bytes)::bigint as n from flows group by 1 "
    "order by n desc, 1 limit 10",
    "by sensor": "select sensor, proto, count(*) from flows group by all order by all",
    "one day": f"select count(*) from flows where start >= '{NOON}' and sensor = 'berlin'",
    "flags": "select fwd_tcp_flags, count(*) from flows group by 1 order by 1 nulls first",
}


def answers(db: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[object, ...]]]:
    return {name: db.execute(question).fetchall() for name, question in QUESTIONS.items()}


def by_pyiceberg(lake: Lake) -> duckdb.DuckDBPyConnection:
    """The table as PyIceberg reads it, found by its catalog alone."""
    uri = f"sqlite:///{lake.directory / 'iceberg.db'}"
    table = load_catalog(CATALOG, type="sql", uri=uri).load_table(TABLE)
    db = duckdb.connect()
    db.execute("set TimeZone = 'UTC'")
    db.register("flows", table.scan().to_arrow())
    return db


def by_extension(lake: Lake) -> duckdb.DuckDBPyConnection:
    """The table as DuckDB's own reader of Iceberg reads it."""
    assert isinstance(lake.table, IcebergTable)
    lake.table.of_iceberg.refresh()
    db = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    db.execute("set TimeZone = 'UTC'")
    for name in ("avro", "iceberg"):
        where = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        db.load_extension(str(where / f"{name}.duckdb_extension"))
    place = lake.table.of_iceberg.metadata_location.removeprefix("file://")
    db.execute(f"create view flows as from iceberg_scan('{place}')")
    return db


def test_other_engines_have_the_same_answers(fleet: Fleet) -> None:
    wanted = answers(over_lake(fleet.lake))
    assert wanted["rows"] == [(2400,)] and len(wanted["by sensor"]) == 4
    assert answers(by_pyiceberg(fleet.lake)) == wanted
    assert answers(by_extension(fleet.lake)) == wanted
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, 0)
    assert answers(over_lake(fleet.lake)) == wanted
    assert answers(by_pyiceberg(fleet.lake)) == wanted
    assert answers(by_extension(fleet.lake)) == wanted


def test_a_question_about_a_day_and_a_sensor_opens_their_files_alone(fleet: Fleet) -> None:
    assert isinstance(fleet.lake.table, IcebergTable)
    scan = fleet.lake.table.of_iceberg.scan(
        "sensor = 'berlin' and start >= '2026-01-02T00:00:00+00:00' "
        "and start < '2026-01-03T00:00:00+00:00'"
    )
    planned = sorted(task.file.file_path for task in scan.plan_files())
    of_day = [file for file in fleet.lake.files("flows") if file.day == "2026-01-02"]
    assert planned == [
        f"file://{fleet.lake.path(file)}" for file in of_day if file.sensor == "berlin"
    ]
    assert len(planned) == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["commit", "expire"])
def test_whoever_is_killed_beside_a_commit_is_followed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    before = fleet.sound()
    fleet.write("berlin", 7, 300, begin_us=T0_US + 3 * DAY_US)
    fleet.ship("berlin")

    def killed(*_arguments: object) -> None:
        raise Killed

    def do(lake: Lake) -> None:
        if what == "commit":
            commit.commit(lake)
        else:
            expire.expire(lake, 0, keep_days=1, today="2026-01-02")

    places = {
        "before": "pyiceberg.table.Transaction.commit_transaction",
        "after": "tapdeck_lake.iceberg.IcebergTable.follow",
    }
    with monkeypatch.context() as patch:
        patch.setattr(places[when], killed)
        with pytest.raises(Killed):
            do(Lake(fleet.lake.directory))

    pending = "select count(*) from changes"
    fleet.lake = Lake(fleet.lake.directory)
    assert fleet.lake.db.execute(pending).fetchall() == [(1,)]
    # Whoever asks now sees all of it, or nothing.
    totals = fleet.sound()
    assert (totals == before) == (when == "before")
    assert fleet.lake.db.execute(pending).fetchall() == [(1,)], "a reader changes nothing"
    do(fleet.lake)
    assert fleet.lake.db.execute(pending).fetchall() == [(0,)]
    after = fleet.sound()
    if what == "commit":
        assert after["rows"] == before["rows"] + 300
        assert fleet.rows() == fleet.written("berlin", "hamburg")
    else:
        assert 0 < after["rows"] < before["rows"]
        assert {file.day for file in fleet.lake.files("flows")} == {"2026-01-02", "2026-01-03"}


def test_what_others_commit_meanwhile_stays(fleet: Fleet, tmp_path: Path) -> None:
    """Another engine puts files together; what the lake does next is upon that."""
    assert isinstance(fleet.lake.table, IcebergTable)
    files = [file for file in fleet.lake.files("flows") if file.sensor == "hamburg"]
    of_day = [fleet.lake.path(file) for file in files if file.day == "2026-01-02"]
    assert len(of_day) == 3
    together = tmp_path / "together.parquet"
    pq.write_table(pa.concat_tables(pq.read_table(path) for path in of_day), together)
    other = load_catalog(CATALOG, type="sql", uri=f"sqlite:///{fleet.lake.directory}/iceberg.db")
    table = other.load_table(TABLE)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for task in table.scan().plan_files():
            if task.file.file_path.removeprefix("file://") in of_day:
                update.delete_data_file(task.file)
        metadata = transaction.table_metadata
        for file in parquet_files_to_data_files(table.io, metadata, iter([f"file://{together}"])):
            update.append_data_file(file)
    fleet.write("berlin", 7, 300, begin_us=T0_US + 3 * DAY_US)
    # The lake knows an older state of the table.
    fleet.settle("berlin")
    assert fleet.sound()["rows"] == 2400 + 300
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, 0)
    assert fleet.sound()["rows"] == 2400 + 300
    assert fleet.rows() == fleet.written("berlin", "hamburg")
    known_hosts(fleet)
    # A file that lies elsewhere is left to its owner.
    assert together.exists()


def test_what_was_replaced_a_short_time_ago_stays(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago that was made: a question may have begun with it just before."""
    landed = {Path(fleet.lake.path(file)) for file in fleet.lake.files("flows")}
    clock = time.time
    monkeypatch.setattr("tapdeck_lake.iceberg.time.time", lambda: clock() + 3600)
    compact.compact(fleet.lake)
    expire.expire(fleet.lake, 3590)
    assert all(path.exists() for path in landed)
    expire.expire(fleet.lake, 0)
    gone = [path for path in landed if not path.exists()]
    assert len(gone) >= 8 and fleet.sound()["rows"] == 2400


def test_a_lake_that_was_moved_is_not_taken_for_another(tmp_path: Path) -> None:
    """Its files lie elsewhere than its table says, so `expire` would find that nobody needs any."""
    fleet = Fleet(tmp_path / "old", kind="iceberg")
    fleet.write("berlin", 1)
    fleet.settle("berlin")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "old").symlink_to(tmp_path / "new")
    for directory in (tmp_path / "old" / "lake", tmp_path / "new" / "lake"):
        with pytest.raises(LakeError, match="move it back"):
            expire.expire(Lake(directory), 0)
    assert len(list((tmp_path / "new" / "lake" / "landed").glob("*/*.parquet"))) == 1
