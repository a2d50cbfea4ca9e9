"""`tapdeck-lake fetch` gives the packets behind an answer, of one sensor and of several."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tapdeck_lake import commit, ship
from tapdeck_lake.catalog import Lake

from .stores import SECOND, T0_NS, drawn_segment, run, write_store
from .test_flows import tapdeck_lake

PORT = "53 in (src_port, dst_port) and proto = 17"


@pytest.fixture(scope="module")
def fleet(tapdeck: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with stores and flow tables of two sensors, and a lake with their segments."""
    directory = tmp_path_factory.mktemp("fleet")
    lake = Lake.init(directory / "lake")
    for seed, sensor in enumerate(["berlin", "hamburg"]):
        rng = random.Random(seed)
        segments = {n: drawn_segment(rng, T0_NS + n * 60 * SECOND, 300) for n in range(1, 4)}
        store, flows = directory / sensor, directory / f"{sensor}-flows"
        write_store(store, segments, tapdeck)
        run(tapdeck, "flows", "--dir", store, "-o", flows, "--sensor", sensor)
        assert ship.ship(flows, lake, store).faults == 0
    assert commit.commit(lake).segments == 6
    return directory


def fetched(tapdeck: Path, out: Path, *arguments: str | Path) -> list[str]:
    done = tapdeck_lake("fetch", "--tapdeck", tapdeck, "-w", out, *arguments)
    assert done.returncode == 0, done.stderr
    return run(tapdeck, "query", "--dir", out).splitlines()


def test_the_packets_of_an_answer_are_those_of_a_query(
    fleet: Path, tapdeck: Path, tmp_path: Path
) -> None:
    wanted = run(tapdeck, "query", "--dir", fleet / "berlin", "udp port 53").splitlines()
    assert len(wanted) > 50
    query = f"from flows where {PORT}"
    source: list[str | Path] = ["--flows", fleet / "berlin-flows", "--store", fleet / "berlin"]
    assert fetched(tapdeck, tmp_path / "one.pcapng", *source, query) == wanted
    of_lake: list[str | Path] = ["--lake", fleet / "lake", f"{query} and sensor = 'berlin'"]
    assert fetched(tapdeck, tmp_path / "two.pcapng", *of_lake) == wanted


def test_the_packets_of_several_sensors_are_one_answer(
    fleet: Path, tapdeck: Path, tmp_path: Path
) -> None:
    both = [
        line
        for sensor in ("berlin", "hamburg")
        for line in run(tapdeck, "query", "--dir", fleet / sensor, "udp port 53").splitlines()
    ]
    source: list[str | Path] = ["--lake", fleet / "lake", f"from flows where {PORT}"]
    found = fetched(tapdeck, tmp_path / "all.pcapng", *source)
    assert sorted(found) == sorted(both)


def test_what_is_gone_is_named(fleet: Path, tapdeck: Path, tmp_path: Path) -> None:
    gone = sorted((fleet / "lake/segments/hamburg").glob("*.pcapng"))[1]
    kept = gone.read_bytes()
    gone.unlink()
    try:
        out = tmp_path / "out.pcapng"
        arguments: list[str | Path] = ["--lake", fleet / "lake", f"from flows where {PORT}"]
        done = tapdeck_lake("fetch", "--tapdeck", tapdeck, "-w", out, *arguments)
        assert done.returncode == 1
        assert gone.stem in done.stderr
    finally:
        gone.write_bytes(kept)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select 1 as n", "the answer has no column sensor"),
        ("select nothing", "the query cannot be answered"),
    ],
)
def test_what_is_no_row_is_refused(fleet: Path, tmp_path: Path, query: str, says: str) -> None:
    done = tapdeck_lake("fetch", "--lake", fleet / "lake", "-w", tmp_path / "out", query)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr


def test_a_directory_for_what_passes_may_have_any_name(
    fleet: Path, tapdeck: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = tmp_path / "it's"
    between.mkdir()
    monkeypatch.setenv("TMPDIR", str(between))
    source: list[str | Path] = ["--lake", fleet / "lake", f"from flows where {PORT}"]
    assert len(fetched(tapdeck, tmp_path / "all.pcapng", *source)) > 50
