"""No flow table keeps others from the table, whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tapdeck_lake import commit
from tapdeck_lake.errors import LakeError
from tapdeck_lake.flow_files import SCHEMA
from tapdeck_lake.place import Disk
from tapdeck_lake.reader import Reader

from .synthetic import DAY_US, T0_US, write_flows
from .test_flows import tapdeck_lake
from .test_lake import Fleet, fleet

__all__ = ["fleet"]


def good_and(fleet: Fleet, directory: Path) -> commit.Committed:
    """What comes of a commit of a good file behind what a directory has."""
    write_flows(fleet.landed / "zz", "zz", 1, fleet.rng, 10)
    done = commit.commit(fleet.lake)
    assert fleet.sound()["rows"] == 10, directory
    return done


def test_any_bit_of_a_files_end_may_be_wrong(tmp_path: Path) -> None:
    stem = write_flows(tmp_path, "berlin", 1, np.random.default_rng(1), 20)
    path = tmp_path / f"{stem}.parquet"
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    reader, refused = Reader(), 0
    whole = Disk(tmp_path), stem, [path.name]
    for at in range(begin, len(data), 3):
        for bit in (5, 7):
            harmed = bytearray(data)
            harmed[at] ^= 1 << bit
            path.write_bytes(harmed)
            try:
                reader.read_segment(*whole)
            except LakeError:
                refused += 1
    assert refused > (len(data) - begin) // 3
    path.write_bytes(data)
    assert reader.read_segment(*whole)[0].rows == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"lost": True},
        {"lost": -1},
        {"cutoff": 1 << 60},
        {"began_ns": 1 << 63},
        {"ended_ns": 1e18},
        {"packets": "7"},
        {"sensor": "\ud800"},
        {"segment": "tapdeck-9999999999999999999-20260101T000000Z"},
    ],
)
def test_an_account_that_no_table_could_have_is_refused(
    fleet: Fleet, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fleet.landed / "berlin"
    stem = write_flows(folder, "berlin", 1, fleet.rng, 20, changes=changes)
    if "segment" in changes:
        (folder / f"{stem}.parquet").rename(folder / f"{changes['segment']}.parquet")
    done = good_and(fleet, folder)
    assert (done.segments, done.faults) == (1, 1)
    assert "tells nothing of its segment" in capsys.readouterr().err


def write_whole(
    folder: Path, rng: np.random.Generator, length_us: int, statistics: bool | list[str] = True
) -> Path:
    """Writes a segment without a second file, whatever its days are."""
    stem = write_flows(folder, "berlin", 1, rng, 20)
    path = folder / f"{stem}.parquet"
    told = pq.read_metadata(path).metadata
    table = pq.read_table(path)
    start = pa.array(T0_US + np.arange(20) * length_us // 20).cast(SCHEMA.field("start").type)
    table = table.set_column(2, SCHEMA.field("start"), start)
    with pq.ParquetWriter(path, SCHEMA, store_schema=False, write_statistics=statistics) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({k.decode(): v.decode() for k, v in told.items()})
    return path


def test_rows_of_two_days_are_refused(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_whole(fleet.landed / "berlin", fleet.rng, 2 * DAY_US)
    assert good_and(fleet, path).faults == 1
    assert "has rows of 2026-01-01 and of 2026-01-02" in capsys.readouterr().err


def test_a_file_without_times_is_refused(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in SCHEMA.names if name != "start"]
    path = write_whole(fleet.landed / "berlin", fleet.rng, 20, names)
    assert good_and(fleet, path).faults == 1
    assert "does not tell the times of its rows" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "says"), [(b"%62erlin", "%62erlin"), (b"b\xff", "b\\udcff")])
def test_a_sensor_has_one_folder(fleet: Fleet, name: bytes, says: str) -> None:
    stem = fleet.write("berlin", 1)
    fleet.ship("berlin")
    other = fleet.landed / os.fsdecode(name)
    other.mkdir()
    data = (fleet.landed / "berlin" / f"{stem}.parquet").read_bytes()
    (other / f"{stem}.parquet").write_bytes(data)
    done = tapdeck_lake("commit", "--lake", fleet.lake.directory)
    assert done.returncode == 1
    assert f"{fleet.landed}/{says}" in done.stderr
    assert "1 segment committed" in done.stderr
    assert fleet.sound()["rows"] == 50


def test_a_file_without_its_sensor_keeps_no_other_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, kind="iceberg")
    names = [name for name in SCHEMA.names if name != "sensor"]
    path = write_whole(fleet.landed / "berlin", fleet.rng, 20, names)
    assert good_and(fleet, path).faults == 1
    assert "what it tells of its columns does not say so" in capsys.readouterr().err
