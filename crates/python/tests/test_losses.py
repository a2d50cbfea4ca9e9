"""An answer says when it is not whole: packets dropped, damage, segments that are gone."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

import tapdeck
from conftest import Program


def test_a_whole_answer_warns_of_nothing(store: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = tapdeck.open(store).query()
        assert sum(1 for _ in answer) == 60000
        flows = tapdeck.open(store).flows()
        flows.to_arrow()
        tapdeck.open(store).stat()
    for whole in (answer, flows):
        assert whole.complete
        assert whole.losses == tapdeck.Losses(0, 0, 0, 0, (), ())


def test_packets_that_the_recorder_dropped_are_told(lossy: tuple[Path, int]) -> None:
    directory, dropped = lossy
    store = tapdeck.open(directory)
    answer = store.query()
    with pytest.warns(tapdeck.IncompleteWarning, match="dropped by the recorder"):
        packets = list(answer)
    assert answer.complete is False
    assert answer.losses is not None and answer.losses.dropped == dropped
    assert answer.losses.faults == ()
    # The last of them may have no packet behind them that could tell.
    assert 0 < sum(packet.dropped for packet in packets) <= dropped
    flows = store.flows()
    with pytest.warns(tapdeck.IncompleteWarning):
        table = flows.to_arrow()
    assert flows.losses is not None and flows.losses.dropped == dropped
    assert sum(table["fwd_packets"].to_pylist()) == len(packets)
    assert store.stat()["lost"] == dropped


def test_an_answer_up_to_a_limit_tells_what_is_missing_up_to_there(
    lossy: tuple[Path, int],
) -> None:
    store = tapdeck.open(lossy[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = store.query(limit=10)
        assert len(list(answer)) == 10
    assert answer.complete


def test_damage_is_told(damaged: Path, program: Program) -> None:
    store = tapdeck.open(damaged)
    answer = store.query()
    with pytest.warns(tapdeck.IncompleteWarning, match="is damaged at byte"):
        packets = answer.to_arrow()
    assert answer.complete is False and answer.losses
    assert 0 < packets.num_rows < 60000
    assert "is damaged at byte" in answer.losses.faults[0]
    flows = store.flows()
    with pytest.warns(tapdeck.IncompleteWarning, match="is damaged at byte"):
        flows.to_pandas()
    assert flows.complete is False
    # Who wants no answer that is not whole makes the warning an error, whoever reads.
    for read in (tapdeck.Packets.to_arrow, tapdeck.Packets.to_polars, list):
        with warnings.catch_warnings():
            warnings.simplefilter("error", tapdeck.IncompleteWarning)
            with pytest.raises(tapdeck.IncompleteWarning, match="is damaged at byte"):
                read(store.query())


def test_a_segment_that_is_gone_is_told(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "holed"
    shutil.copytree(store, copy)
    gone = sorted(copy.glob("*.pcapng"))[3]
    for file in copy.glob(f"{gone.stem}*"):
        file.unlink()
    answer = tapdeck.open(copy).query()
    with pytest.warns(tapdeck.IncompleteWarning, match="missing before"):
        list(answer)
    assert answer.complete is False
    with pytest.warns(tapdeck.IncompleteWarning, match="missing before"):
        tapdeck.open(copy).stat()


def test_an_interface_that_is_not_there_is_noted(store: Path) -> None:
    answer = tapdeck.open(store).query(interface="eth9")
    assert list(answer) == [] and answer.complete
    assert answer.losses is not None
    assert answer.losses.notes == ("no interface is named eth9 here; there are veth1",)


def test_what_is_in_a_store_is_told_as_the_program_tells_it(
    store: Path, lossy: tuple[Path, int], program: Program
) -> None:
    for place in (store, lossy[0]):
        for flags, keywords in (
            ([], {}),
            (["--top", "3"], {"top": 3}),
            (["--top", "0"], {"top": 0}),
        ):
            told = json.loads(program.run("stat", "--dir", place, "--json", *flags))
            assert tapdeck.open(place).stat(**keywords) == told
    stat = tapdeck.open(store).stat()
    assert stat["packets"] == 60000 and len(stat["top_hosts"]) == 10
    middle = stat["gaps"] == [] and tapdeck.open(store).stat(after=stat["last"])
    assert middle and middle["packets"] == 1


def test_capture_files_are_told_of_as_the_program_does(
    store: Path, program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "answer.pcapng"
    program.run("query", "--dir", store, "-w", file, "-c", "500")
    told = json.loads(program.run("stat", "--dir", file, "--json"))
    assert tapdeck.open(file).stat() == told and told["packets"] == 500
