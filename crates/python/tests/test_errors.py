"""What cannot be asked or read is an exception that says what to do."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tapdeck


def test_where_there_is_no_store_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(tapdeck.StoreNotFoundError, match="does not exist") as refused:
        tapdeck.open(tmp_path / "nowhere")
    assert isinstance(refused.value, FileNotFoundError)
    with pytest.raises(tapdeck.StoreError, match="no segments and no pcap or pcapng files"):
        tapdeck.open(tmp_path)
    (tmp_path / "letter").write_text("Dear Sir or Madam")
    with pytest.raises(tapdeck.StoreError, match="no pcap or pcapng file"):
        tapdeck.open(tmp_path / "letter")


def test_a_store_that_goes_away_is_missed(tmp_path: Path) -> None:
    place = tmp_path / "capture.pcap"
    place.write_bytes(bytes.fromhex("4d3cb2a1020004000000000000000000ffff000001000000"))
    store = tapdeck.open(place)
    assert list(store.query()) == []
    place.unlink()
    for ask in (store.query, store.flows, store.stat):
        with pytest.raises(tapdeck.StoreNotFoundError):
            ask()


def test_a_url_needs_the_program_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(tapdeck.UnsupportedError, match="tapdeck-remote, which is not in PATH"):
        tapdeck.open("s3://bucket/sensor-1")


def test_what_is_no_filter_is_refused_as_tcpdump_does(store: Path) -> None:
    for ask in (tapdeck.open(store).query, tapdeck.open(store).flows):
        with pytest.raises(tapdeck.FilterError, match="port abc") as refused:
            ask("port abc and")
        assert isinstance(refused.value, tapdeck.QuestionError | ValueError)


@pytest.mark.parametrize(
    ("time", "what"),
    [
        ("soon", "is no time"),
        ("2026-13-02", "is no time"),
        ("", "is no time"),
        (1767323045, "another unit"),
        (2**63, "64 bits"),
        (datetime(9999, 1, 1, tzinfo=UTC), "64 bits"),
        (1.5, "a time is a datetime"),
        (True, "a time is a datetime"),
    ],
)
def test_what_is_no_time_is_refused(time: tapdeck.Time, what: str, store: Path) -> None:
    opened = tapdeck.open(store)
    for ask in (opened.query, opened.flows, opened.stat):
        with pytest.raises(tapdeck.TimeError, match=f"^after: .*{what}"):
            ask(after=time)
        with pytest.raises(tapdeck.TimeError, match=f"^before: .*{what}"):
            ask(before=time)


def test_a_span_begins_before_its_end(store: Path) -> None:
    with pytest.raises(tapdeck.TimeError, match="is later than before"):
        tapdeck.open(store).query(after="2026-01-02T00:00:01Z", before="2026-01-02T00:00:00Z")


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ({"limit": 0}, "limit: 0"),
        ({"limit": 2**70}, "limit: 1180591620717411303424"),
        ({"community_id": "2:abc"}, "community_id: .* is no Community ID"),
        ({"direction": "up"}, 'write "in" or "out"'),
    ],
)
def test_what_makes_no_sense_is_refused(question: dict[str, Any], what: str, store: Path) -> None:
    with pytest.raises(tapdeck.QuestionError, match=what):
        tapdeck.open(store).query(**question)
    with pytest.raises(tapdeck.QuestionError, match="top"):
        tapdeck.open(store).stat(top=1001)


def test_no_permission_is_said(tmp_path: Path, store: Path) -> None:
    # Whoever records is root, and need not ask for permission: so a child asks who is not.
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            tapdeck.open(shut)
        except tapdeck.StoreError as error:
            os._exit(0 if "permission" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
