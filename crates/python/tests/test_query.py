"""Packets are those of `tapdeck query`: the same bytes, times, interfaces and order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tapdeck
from conftest import Program, write_pcap

# Each is a question in the words of Python and of the program.
QUESTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"expression": "vlan and tcp"}, ["vlan and tcp"]),
    ({"expression": "vlan 7 and udp port 9"}, ["vlan 7 and udp port 9"]),
    ({"expression": "vlan and host 198.18.0.65"}, ["vlan and host 198.18.0.65"]),
    (
        {"expression": "vlan and net 198.18.0.16/28 and greater 500"},
        ["vlan and net 198.18.0.16/28 and greater 500"],
    ),
    ({"expression": "arp"}, ["arp"]),
    ({"expression": "vlan and icmp", "limit": 17}, ["vlan and icmp", "-c", "17"]),
    ({"limit": 1}, ["-c", "1"]),
    ({"interface": "veth?", "direction": "in"}, ["-i", "veth?", "--direction", "in"]),
    ({"direction": "out"}, ["--direction", "out"]),
    ({"interface": ["eth0", "v*"]}, ["-i", "eth0,v*"]),
    ({"interface": "eth0"}, ["-i", "eth0"]),
    ({"expression": "host 198.18.0.65", "inner": True}, ["host 198.18.0.65", "--inner"]),
]


def seen(answer: tapdeck.Packets) -> list[tuple[int, str, int, bytes]]:
    """Return what the program's file has of each packet, too."""
    return [(p.time_ns, p.interface, p.original_length, p.data) for p in answer]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: " ".join(question[1]) or "all")
def test_packets_are_those_of_the_program(
    question: tuple[dict[str, Any], list[str]], store: Path, program: Program, tmp_path: Path
) -> None:
    keywords, flags = question
    expected = program.packets(store, *flags, to=tmp_path / "answer.pcapng")
    answer = tapdeck.open(store).query(**keywords)
    assert seen(answer) == expected
    assert answer.complete and answer.losses is not None
    table = tapdeck.open(store).query(**keywords).to_arrow()
    columns = [table[name].to_pylist() for name in ("interface", "original_length", "data")]
    times = table["time"].cast("int64").to_pylist()
    assert list(zip(times, *columns, strict=True)) == expected


def test_times_may_be_written_in_three_ways(store: Path, program: Program, tmp_path: Path) -> None:
    everything = seen(tapdeck.open(store).query())
    after, before = everything[20000][0] // 1000 * 1000, everything[30000][0] // 1000 * 1000
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    east = timezone(timedelta(hours=9))
    moments = [epoch + timedelta(microseconds=ns // 1000) for ns in (after, before)]
    texts = [moment.isoformat().replace("+00:00", "Z") for moment in moments]
    flags = ["--after", texts[0], "--before", texts[1]]
    expected = program.packets(store, *flags, to=tmp_path / "answer.pcapng")
    assert expected == [packet for packet in everything if after <= packet[0] < before]
    forms: list[tuple[tapdeck.Time, tapdeck.Time]] = [
        (after, before),
        (np.int64(after), np.int64(before)),
        (moments[0], moments[1]),
        (moments[0].astimezone(east), moments[1].astimezone().replace(tzinfo=None)),
        (texts[0], texts[1]),
    ]
    for first, last in forms:
        assert seen(tapdeck.open(store).query(after=first, before=last)) == expected


def test_a_flow_is_found_by_its_community_id(store: Path, program: Program, tmp_path: Path) -> None:
    first = json.loads(program.run("query", "--dir", store, "-c", "1", "--json"))
    flags = ["--community-id", first["community_id"]]
    expected = program.packets(store, *flags, to=tmp_path / "answer.pcapng")
    assert len(expected) > 10
    answer = tapdeck.open(store).query(community_id=first["community_id"])
    assert seen(answer) == expected


def test_a_packet_says_what_there_is_to_know_of_it(store: Path, program: Program) -> None:
    told = json.loads(program.run("query", "--dir", store, "-c", "1", "--json"))
    packet = next(tapdeck.open(store).query())
    assert isinstance(packet, tapdeck.Packet)
    assert packet.time == datetime.fromisoformat(told["time"][:26] + "+00:00")
    assert packet.time_ns % 1000 == int(told["time"][26:29])
    assert (packet.interface, packet.direction) == (told["interface"], told["direction"])
    assert (packet.link_type, packet.dropped, packet.shed) == (1, 0, 0)
    assert len(packet.data) == packet.original_length == told["length"]
    assert repr(packet) == (
        f"<Packet {told['time']} veth1 in, {told['length']} of {told['length']} bytes>"
    )


def test_capture_files_are_read_as_stores_are(tmp_path: Path) -> None:
    frames = [(10**18 + n * 1001, bytes([n]) * (60 + n)) for n in range(100)]
    write_pcap(tmp_path / "capture.pcap", iter(frames))
    for place in (tmp_path, tmp_path / "capture.pcap"):
        packets = list(tapdeck.open(place).query())
        assert [(p.time_ns, p.data) for p in packets] == frames
        assert {p.interface for p in packets} == {"-"} and {p.direction for p in packets} == {None}
    table = tapdeck.open(tmp_path).query().to_arrow()
    assert table["direction"].null_count == len(frames)


def test_what_was_given_is_not_given_again(store: Path) -> None:
    everything = seen(tapdeck.open(store).query())
    answer = tapdeck.open(store).query()
    some = [next(answer) for _ in range(1000)]
    assert answer.complete is None and answer.losses is None
    rest = answer.to_arrow()
    assert len(some) + rest.num_rows == len(everything)
    assert rest["data"][0].as_py() == everything[1000][3]
    assert answer.complete
    for read in (answer.to_arrow, answer.to_pandas, answer.to_polars, answer.to_reader):
        with pytest.raises(tapdeck.AlreadyReadError, match="ask again"):
            read()
    with pytest.raises(tapdeck.AlreadyReadError, match="ask again"):
        iter(answer)
    # An empty answer has an end, too.
    nothing = tapdeck.open(store).query("arp")
    assert list(nothing) == [] and nothing.complete
    with pytest.raises(tapdeck.AlreadyReadError):
        list(nothing)


def test_an_answer_that_is_given_up_ends(store: Path) -> None:
    with tapdeck.open(store).query() as answer:
        assert next(answer).interface == "veth1"
    with pytest.raises(tapdeck.TapdeckError, match="given up"):
        list(answer)
