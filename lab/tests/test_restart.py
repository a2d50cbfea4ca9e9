"""Capture processes that end while packets come, and what is made of what they stored."""

import struct
import subprocess
from pathlib import Path
from typing import cast

import pytest

from tapdeck_lab import cycle, methods, restart, settings, stenotype
from tapdeck_lab.build import Build
from tapdeck_lab.capture import Capture
from tapdeck_lab.cycle import Lab
from tapdeck_lab.methods import Refused
from tapdeck_lab.settings import Settings

UNREAD = 1000
"""Packets that come while a test keeps the next process from starting."""


@pytest.fixture
def lab(tmp_path: Path, build: Build) -> Lab:
    work = tmp_path / "work"
    work.mkdir()
    return Lab(build, work, 0.05)


def interrupted(method: str, how: str, **others: object) -> Settings:
    values = {"method": method, "interruption": how, "gro": "on", "size": "imix", "flows": 10}
    # A build for development, on a busy machine, takes its time to begin.
    values |= {"rate": "10kpps", "seconds": 6.0}
    return cast(Settings, {**settings.defaults(), **values, **others})


@pytest.mark.parametrize("how", ["restart", "kill", "upgrade"])
def test_a_recording_that_lasts_loses_nothing(
    lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_the_next_waiting(monkeypatch)
    metrics = cycle.measure(lab, interrupted("tapdeck-xdp", how, persist=True), 1).metrics
    assert metrics["captured"] == metrics["sent"]
    assert metrics["lost"] == metrics["lost_ms"] == metrics["uncounted"] == metrics["repeated"] == 0
    assert metrics["unread_ms"] > 0 and 0 < metrics["ring_used"] < 1
    # Only a process that was killed leaves something to mend.
    assert (metrics["mended_ms"] > 0) == (how == "kill")
    assert "cpu_capture" not in metrics
    assert not list(lab.work.iterdir())


@pytest.mark.parametrize("method", ["tapdeck-tcx", "tcpdump"])
def test_what_comes_while_nobody_captures_is_lost(
    lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_the_next_waiting(monkeypatch)
    metrics = cycle.measure(lab, interrupted(method, "kill"), 1).metrics
    assert UNREAD <= metrics["uncounted"] <= metrics["lost"] < metrics["sent"]
    assert metrics["repeated"] == 0


def keep_the_next_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Capture.start_next

    def start_later(self: Capture, program: Path | None) -> float:
        before = self.bed.received()
        self._wait("sent packets", 60, lambda: self.bed.received() >= before + UNREAD)
        return start(self, program)

    monkeypatch.setattr(Capture, "start_next", start_later)


def test_what_cannot_be_interrupted_is_refused(lab: Lab) -> None:
    with pytest.raises(Refused, match="tapdeck-tpacket cannot do persist"):
        cycle.measure(lab, interrupted("tapdeck-tpacket", "kill", persist=True), 1)
    with pytest.raises(Refused, match="netsniff-ng cannot do interruption"):
        cycle.measure(lab, interrupted("netsniff-ng", "kill"), 1)
    with pytest.raises(Refused, match="one application that stores packets"):
        cycle.measure(lab, interrupted("tcpdump", "kill", store="none"), 1)
    with pytest.raises(Refused, match="set query to none"):
        cycle.measure(lab, interrupted("tcpdump", "kill", query="scan", mark_every_s=0.1), 1)


def test_losses_that_processes_tell_are_added_up() -> None:
    dumpcap = methods.ALL["dumpcap"]
    logs = [
        "Packets received/dropped on interface 'vb': 40/2 (pcap:1/dumpcap:1)\n",
        "Packets received/dropped on interface 'vb': 50/3 (pcap:3/dumpcap:0)\n",
    ]
    context = methods.Context(settings.defaults(), "vb", Path(), Build(Path()), Path())
    assert dumpcap.told_lost(context, logs) == 5
    # Stenotype tells the sum so far, again and again.
    logs = [
        "x packets=9 drops=1 drop%=0\nx packets=99 drops=7 drop%=0\n",
        "",
        "x drops=2 drop%=0\n",
    ]
    assert methods.ALL["stenotype"].told_lost(context, logs) == 9


def test_each_process_has_files_of_its_own(tmp_path: Path) -> None:
    context = methods.Context(settings.defaults(), "vb", tmp_path, Build(Path()), Path())
    names = [c.file("out.pcap").name for c in (context, context.after(), context.after().after())]
    assert names == ["out.pcap", "out-1.pcap", "out-2.pcap"]


def test_the_packets_of_stenotype_are_read_from_its_blocks(tmp_path: Path) -> None:
    frames = [b"\x01" * 60, b"\x02" * 61]
    block = bytearray(stenotype.BLOCK_BYTES)
    struct.pack_into("<IIIII", block, 0, 1, 48, 1, len(frames), 48)
    at = 48
    for second, frame in enumerate(frames):
        struct.pack_into(
            "<IIIIIIHH", block, at, 256, second, 5, len(frame), 2 * len(frame), 0, 82, 96
        )
        block[at + 82 : at + 82 + len(frame)] = frame
        at += 256
    file = tmp_path / "packets"
    # What was set aside and not written is empty; a block that was cut off is none.
    file.write_bytes(block + bytes(stenotype.BLOCK_BYTES) + block[:1000])
    made = stenotype.to_pcap(file, tmp_path / "out.pcap").read_bytes()
    assert methods.count_file(tmp_path / "out.pcap") == 2
    assert made[24:40] == struct.pack("<IIII", 0, 5, 60, 120)
    assert made.endswith(struct.pack("<IIII", 1, 5, 61, 122) + frames[1])


def test_a_file_system_that_a_lab_left_is_unmounted(tmp_path: Path) -> None:
    place = tmp_path / "bpf"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", place], check=True)
    restart.unmount_stale(tmp_path)
    assert not place.is_mount()
