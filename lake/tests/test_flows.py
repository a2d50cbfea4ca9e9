"""What `tapdeck flows` makes of stores is what the lake takes, names and gives back."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tapdeck_lake import check, commit, ship
from tapdeck_lake.catalog import Lake
from tapdeck_lake.engine import over_directories, over_lake
from tapdeck_lake.flow_files import read_segment, segments_in
from tapdeck_lake.place import Disk

from .stores import SECOND, T0_NS, Segment, drawn_segment, run, udp, write_store

LAKE = Path(__file__).parents[1]


def flows(tapdeck: Path, store: Path, out: Path, *others: str) -> Path:
    run(tapdeck, "flows", "--dir", store, "-o", out, "--sensor", "berlin", *others)
    return out


@pytest.fixture(scope="module")
def tables(tapdeck: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `store` and `flows`, of drawn traffic."""
    directory = tmp_path_factory.mktemp("drawn")
    rng = random.Random(3)
    segments = {n: drawn_segment(rng, T0_NS + n * 60 * SECOND, 400) for n in range(1, 5)}
    write_store(directory / "store", segments, tapdeck)
    flows(tapdeck, directory / "store", directory / "flows")
    return directory


def test_a_segments_account_is_what_the_recorder_wrote(tapdeck: Path, tmp_path: Path) -> None:
    frames = [(T0_NS + n * SECOND, udp("10.0.0.1", "10.0.0.2", (1000 + n, 53))) for n in range(7)]
    later = [(time + 600 * SECOND, frame) for time, frame in frames]
    segments = {
        1: Segment(frames, lost=3, cutoff=(11, 2200), shed={2: 100, 4: 50}),
        2: Segment(later, unseen=5),
        3: Segment([]),
    }
    names = write_store(tmp_path / "store", segments, tapdeck)
    out = flows(tapdeck, tmp_path / "store", tmp_path / "flows")
    found = {stem: files for (_, stem), files in segments_in(names_in(out)).items()}
    assert list(found) == names
    accounts = [read_segment(Disk(out), stem, files)[0] for stem, files in found.items()]
    told = [
        (a.sensor, a.packets, a.packets_in_rows, a.lost, a.unseen, a.cutoff, a.bytes_cutoff,
         a.shed_packets, a.shed_bytes)
        for a in accounts
    ]  # fmt: skip
    assert told == [
        ("berlin", 7, 7, 3, 0, 11, 2200, 2, 150),
        ("berlin", 7, 7, 0, 5, 0, 0, 0, 0),
        ("berlin", 0, 0, 0, 0, 0, 0, 0, 0),
    ]
    assert (accounts[0].began_ns, accounts[0].ended_ns) == (frames[0][0], frames[-1][0])
    columns = "number, packets, lost, unseen, cutoff, shed_bytes, epoch_ns(began)"
    query = f"select {columns} from segments order by number"
    expected = [
        (1, 7, 3, 0, 11, 150, frames[0][0]),
        (2, 7, 0, 5, 0, 0, later[0][0]),
        (3, 0, 0, 0, 0, 0, T0_NS),
    ]
    assert over_directories([out]).execute(query).fetchall() == expected
    lake = Lake.init(tmp_path / "lake")
    ship.ship(out, lake, tmp_path / "store")
    assert commit.commit(lake).faults == 0
    db = over_lake(lake)
    assert db.execute(query).fetchall() == expected
    assert db.execute("select * from missing").fetchall() == []
    checked = check.check(lake)
    assert checked.faults == []
    assert (checked.totals["packets"], checked.totals["lost"]) == (14, 3)
    # Segments and indexes came along, and answer as the store does.
    there = lake.directory / "segments" / "berlin"
    wanted = ("query", "--count", "--dir")
    assert run(tapdeck, *wanted, there, "udp") == run(tapdeck, *wanted, tmp_path / "store", "udp")


def test_every_packet_of_a_store_is_in_the_table(tables: Path, tapdeck: Path) -> None:
    db = over_directories([tables / "flows"])
    packets = "select sum(fwd_packets + rev_packets)::bigint from flows"
    counted = int(run(tapdeck, "query", "--count", "--dir", tables / "store"))
    assert db.execute(packets).fetchall() == [(counted,)] == [(1600,)]
    assert db.execute("select sum(packets)::bigint from segments").fetchall() == [(1600,)]
    for expression, condition in [
        ("udp", "proto = 17 and src_ip is not null"),
        ("host 10.0.1.3", "'10.0.1.3' in (src_ip, dst_ip)"),
        ("icmp6", "proto = 58"),
    ]:
        counted = int(run(tapdeck, "query", "--count", "--dir", tables / "store", expression))
        assert db.execute(f"{packets} where {condition}").fetchall() == [(counted,)], expression
        assert counted > 0


def test_zeeks_names_have_what_zeeks_lines_have(tables: Path, tapdeck: Path) -> None:
    flows(tapdeck, tables / "store", tables / "zeek", "--format", "zeek-json")
    lines = [
        json.loads(line)
        for path in (tables / "zeek").iterdir()
        for line in path.read_text().splitlines()
    ]
    names = [
        "id.orig_h", "id.orig_p", "id.resp_h", "id.resp_p", "proto", "conn_state", "orig_pkts",
        "resp_pkts", "ip_proto", "community_id", "segment", "offset", "span",
    ]  # fmt: skip
    columns = ", ".join(f'"{name}"' for name in names)
    query = f"select epoch_us(ts), epoch_us(ts) + duration * 1e6, {columns} from zeek_conn"
    found = over_directories([tables / "flows"]).execute(query).fetchall()
    assert len(lines) == len(found) > 500
    assert len({line.get("community_id") for line in lines}) > 50

    def key(values: list[Any]) -> str:
        return repr(values)

    wanted = [[line.get(name) for name in names] for line in lines]
    assert sorted((list(row[2:]) for row in found), key=key) == sorted(wanted, key=key)
    times = sorted(round(line["ts"] * 1e6) for line in lines)
    assert sorted(row[0] for row in found) == times


def test_ecs_and_ocsf_have_the_same_numbers(tables: Path) -> None:
    db = over_directories([tables / "flows"])
    sums = "select count(*), sum({})::bigint, sum({})::bigint, count(distinct {}) from {}"
    zeek = db.execute(sums.format("orig_pkts", "resp_pkts", "community_id", "zeek_conn"))
    wanted = zeek.fetchall()
    ecs = sums.format('"source.packets"', '"destination.packets"', '"network.community_id"', "ecs")
    assert db.execute(ecs).fetchall() == wanted
    ocsf = sums.format(
        "traffic.packets_out", "traffic.packets_in", "connection_info.community_uid",
        "ocsf_network_activity",
    )  # fmt: skip
    assert db.execute(ocsf).fetchall() == wanted


def test_tables_of_some_packets_are_asked_and_not_shipped(
    tables: Path, tapdeck: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = flows(tapdeck, tables / "store", tmp_path / "some", "udp")
    db = over_directories([out])
    assert db.execute("select count(*) > 0, min(proto), max(proto) from flows").fetchall() == [
        (True, 17, 17)
    ]
    lake = Lake.init(tmp_path / "lake")
    done = ship.ship(out, lake, None)
    assert (done.segments, done.faults) == (0, 4)
    assert "make it by `tapdeck flows` without an expression" in capsys.readouterr().err


def names_in(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir()]


def tapdeck_lake(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tapdeck_lake", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=LAKE
    )


def test_the_commands_do_what_they_say(tables: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    said = {}
    commands: list[tuple[str, list[str | Path]]] = [
        ("init", [lake]),
        ("ship", ["--flows", tables / "flows", "--lake", lake]),
        ("commit", ["--lake", lake]),
        ("hosts", ["--lake", lake]),
        ("compact", ["--lake", lake]),
        ("expire", ["--lake", lake, "--grace", "0"]),
        ("check", ["--lake", lake]),
    ]
    for name, arguments in commands:
        done = tapdeck_lake(name, *arguments)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        said[name] = done.stderr + done.stdout
    assert "4 segments shipped: 4 files" in said["ship"]
    assert all(path.stat().st_mode & 0o007 == 0 for path in lake.rglob("*"))
    assert "4 segments committed" in said["commit"]
    assert "became 1" in said["compact"]
    assert "4 segments," in said["check"] and "1,600 packets" in said["check"]

    def sql(*arguments: str | Path) -> str:
        done = tapdeck_lake("sql", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    packets = "sum(fwd_packets + rev_packets)::bigint"
    query = f"select proto, {packets} as n from flows group by 1 order by 1;"
    answer = sql("--lake", lake, "--format", "csv", query)
    assert answer == sql("--flows", tables / "flows", "--format", "csv", query)
    assert answer == sql("--flows", f"{tables}/*ws", "--format", "csv", query)
    lines = answer.splitlines()
    assert lines[0] == "proto,n"
    assert sum(int(line.split(",")[1]) for line in lines[1:]) == 1600
    rows = [json.loads(row) for row in sql("--lake", lake, "--format", "json", query).splitlines()]
    assert [f"{row['proto']},{row['n']}" for row in rows] == lines[1:]
    table = sql("--lake", lake, "select * from flows order by start")
    assert table.count("berlin") == over_lake(Lake(lake)).sql("from flows").shape[0]
    out = tmp_path / "answer.parquet"
    sql("--lake", lake, "--format", "parquet", "-o", out, query)
    assert over_lake(Lake(lake)).sql(f"from '{out}'").shape == (len(rows), 2)


def test_watching_ships_what_comes_and_ends_when_it_is_asked_to(
    tables: Path, tmp_path: Path
) -> None:
    lake, flows = Lake.init(tmp_path / "lake"), tmp_path / "flows"
    flows.mkdir()
    store = tmp_path / "store"
    store.mkdir()
    command: list[str | Path] = [sys.executable, "-m", "tapdeck_lake", "ship", "--watch"]
    command += ["--flows", flows, "--lake", lake.directory, "--segments", store]
    with subprocess.Popen(command, cwd=LAKE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        landed = []
        for number, (_, stem) in enumerate(segments_in(names_in(tables / "flows"))):
            for ending in ("index", "pcapng"):
                copy = (tables / "store" / f"{stem}.{ending}").read_bytes()
                (store / f"{stem}.{ending}").write_bytes(copy)
            name = f"{stem}.parquet"
            if number == 1:
                # What is not whole is told once, and tried again.
                (flows / name).write_bytes(b"PAR1, but no more")
                assert stem in process.stderr.readline()
            (flows / ".draft").write_bytes((tables / "flows" / name).read_bytes())
            (flows / ".draft").rename(flows / name)
            landed.append(lake.directory / "landed" / "berlin" / name)
            awaited(landed[-1].exists)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    assert process.returncode == 1, "something was wrong for a while"
    assert commit.commit(lake).rows == len(over_directories([tables / "flows"]).sql("from flows"))
    assert len(list((lake.directory / "segments" / "berlin").glob("*.pcapng"))) == 4


def awaited(condition: Callable[[], bool]) -> None:
    """Waits until something is so."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it did not come about in a minute"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["files", "iceberg"])
def test_a_sensors_name_may_be_long(tapdeck: Path, tmp_path: Path, kind: str) -> None:
    name = "a sensor with a long name " * 4
    write_store(tmp_path / "store", {1: drawn_segment(random.Random(1), T0_NS, 50)}, tapdeck)
    run(tapdeck, "flows", "--dir", tmp_path / "store", "-o", tmp_path / "flows", "--sensor", name)
    lake = Lake.init(tmp_path / "lake", kind)
    assert ship.ship(tmp_path / "flows", lake, None).faults == 0
    done = commit.commit(lake)
    assert (done.segments, done.faults) == (1, 0)
    assert over_lake(lake).sql("select distinct sensor from flows").fetchall() == [(name,)]
    assert {file.sensor for file in lake.files("flows")} <= {name, ""}
    assert check.check(lake).faults == []


@pytest.mark.parametrize(("form", "line"), [("csv", "n\n42\n"), ("json", '{"n":42}\n')])
def test_an_answer_stands_behind_what_standard_output_has(
    tmp_path: Path, form: str, line: str
) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    command: list[str | Path] = [sys.executable, "-m", "tapdeck_lake", "sql", "--flows", tmp_path]
    command += ["--format", form, "select 42 as n"]
    with log.open("a") as out:
        subprocess.run(command, check=True, stdout=out, cwd=LAKE)
    assert log.read_text() == f"before\n{line}"


def test_whoever_reads_no_more_of_an_answer_is_no_fault(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "tapdeck_lake", "sql", "--flows", tmp_path]
    command += ["--format", "csv", "from range(1000000)"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=LAKE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sql", "--flows", "/nowhere", "select 1"], "/nowhere is not there"),
        (["sql", "--lake", "/tmp", "select 1"], "/tmp is no lake"),
        (["sql", "--flows", "/tmp", "select nothing"], "the query cannot be answered"),
        (["ship", "--flows", "/nowhere", "--lake", "/nowhere"], "/nowhere is no lake"),
        (["commit", "--lake", "/proc/none"], "is no lake"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], says: str) -> None:
    done = tapdeck_lake(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("tapdeck-lake: ") and says in done.stderr
    assert "Traceback" not in done.stderr
