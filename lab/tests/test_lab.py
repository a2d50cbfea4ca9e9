"""The instrument as a whole: with a method that is known exactly, and once on a real wire."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pandas as pd
import pytest
from invent import MACHINE

from tapdeck_lab import __main__ as command_line
from tapdeck_lab import analysis, cycle, fleet, readers, results, scenario, settings
from tapdeck_lab.build import Build, BuildError
from tapdeck_lab.cycle import Lab
from tapdeck_lab.methods import TAPDECK_HOOKS, Failed, Missing, Refused
from tapdeck_lab.settings import Settings

LAB = Path(__file__).parents[1]

FAKE = """\
title = "planted losses"
asks = "Are they found?"

[settings]
method = "fake"
store = "none"
packets = {packets}
rate = "{rate}"

[factors]
planted_loss = [0.0, 0.05, 0.25]

[runs]
repetitions = 2
metrics = ["loss", "captured"]

[[plot]]
kind = "bars"
y = ["loss"]
x = "planted_loss"
by = "planted_loss"
"""


def fake_file(directory: Path, packets: int = 2000, rate: str = "max") -> Path:
    file = directory / "planted.toml"
    file.write_text(FAKE.format(packets=packets, rate=rate))
    return file


@pytest.fixture
def lab(tmp_path: Path, build: Build) -> Lab:
    work = tmp_path / "work"
    work.mkdir()
    return Lab(build, work, 0.05)


def test_there_is_a_method_for_each_hook_of_the_program(build: Build) -> None:
    probe = subprocess.run(
        [build.tapdeck, "probe", "-i", "lo"], capture_output=True, text=True, check=True
    )
    lines = probe.stdout.partition("\nhooks\n")[2].partition("\n\n")[0].splitlines()
    hooks = tuple(line.split()[0] for line in lines)
    assert hooks == tuple(TAPDECK_HOOKS), "as in crates/capture/src/hook.rs"
    assert {f"tapdeck-{hook}" for hook in TAPDECK_HOOKS} <= settings.METHODS.keys()


def rows(out: Path, name: str) -> list[dict[str, str]]:
    with open(out / name / "runs.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 1.0])
def test_a_planted_loss_is_measured_exactly(lab: Lab, share: float) -> None:
    values = settings.defaults() | {
        "method": "fake",
        "store": "none",
        "packets": 5000,
        "planted_loss": share,
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["sent"] == 5000
    assert metrics["lost"] == int(5000 * share)
    assert metrics["loss"] == metrics["lost"] / 5000
    assert metrics["capture_rate"] == 1 - metrics["loss"]
    assert not list(lab.work.iterdir())


def test_the_no_drop_rate_of_what_always_loses_is_nothing(lab: Lab) -> None:
    values = settings.defaults() | {
        "method": "fake",
        "store": "none",
        "packets": 200,
        "planted_loss": 0.05,
    }
    found = cycle.search(lab, values, 1)
    assert found.metrics["no_drop_pps"] == 0
    assert found.metrics["trials"] == 2
    values["planted_loss"] = 0.0
    found = cycle.search(lab, values, 1)
    assert found.metrics["trials"] == 1
    assert found.metrics["no_drop_pps"] == found.metrics["sent_pps"]


def test_a_run_leaves_rows_and_a_report(tmp_path: Path, build: Build) -> None:
    out = tmp_path / "out"
    file = fake_file(tmp_path)
    words = [
        "run",
        "--out",
        str(out),
        "--scenario",
        str(file),
        "--build",
        str(build.directory),
        "--quick",
    ]
    assert command_line.main(words) == 0
    made = rows(out, "planted")
    assert [row["status"] for row in made] == ["ok"] * 6
    assert {(row["f.planted_loss"], float(row["m.loss"])) for row in made} == {
        ("0.0", 0),
        ("0.05", 0.05),
        ("0.25", 0.25),
    }
    machine = json.loads((out / "machine.json").read_text())
    assert machine["kernel"] and machine["versions"] and machine["disk"]
    page = (out / "report.html").read_text()
    assert "planted losses" in page and "<svg" in page
    # A second run over the first is refused; with --resume it goes on, and nothing is left to do.
    assert command_line.main(words) == 1
    assert command_line.main([*words, "--resume"]) == 0
    assert rows(out, "planted") == made


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(tmp_path: Path, build: Build) -> None:
    out = tmp_path / "out"
    results.write_machine(out, MACHINE)
    file = fake_file(tmp_path, 10_000, "20kpps")
    words = [
        str(LAB / "lab"),
        "run",
        "--out",
        str(out),
        "--scenario",
        str(file),
        "--build",
        str(build.directory),
        "--quick",
        "--resume",
    ]
    # A shell that starts something in the background has it ignore Ctrl-C.
    foreground = ["env", "--default-signal=INT"]
    process = subprocess.Popen([*foreground, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        for line in process.stderr:
            if line.startswith("[2/6]"):
                assert "left" in line
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130, said
    finally:
        process.kill()
    assert "--resume" in said
    kept = rows(out, "planted")
    assert 2 <= len(kept) < 6
    assert (out / "report.html").exists() and not (out / "work").exists()
    # A line that a crash cut off is made again.
    with open(out / "planted" / "runs.csv", "a") as torn:
        torn.write("5,1,77")
    subprocess.run([*words, "--no-report"], check=True, stderr=subprocess.DEVNULL)
    after = rows(out, "planted")
    assert after[: len(kept)] == kept
    assert sorted(int(row["order"]) for row in after) == list(range(6))


def test_half_a_build_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, half = fake_file(tmp_path), tmp_path / "half"
    half.mkdir()
    (half / "tapdeck").touch(mode=0o755)
    with pytest.raises(BuildError, match=r"half/libtapdeck_pcap\.so is not there"):
        Build.at(half)
    words = ["run", "--out", str(tmp_path / "out"), "--scenario", str(file), "--build"]
    assert command_line.main([*words, str(half)]) == 1
    assert "libtapdeck_pcap.so is not there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="2"):
        command_line.main(words[:-1])
    assert "--build" in capsys.readouterr().err


def test_results_of_another_scenario_are_not_resumed(tmp_path: Path) -> None:
    one = scenario.parse(FAKE.format(packets=10, rate="max"), "s")
    other = scenario.parse(FAKE.format(packets=20, rate="max"), "s")
    results.Results.create(tmp_path, one, resume=True)
    with pytest.raises(results.ResultsError, match="another scenario"):
        results.Results.create(tmp_path, other, resume=True)


def test_what_cannot_be_is_refused_by_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    values = settings.defaults() | {"packets": 10}
    with pytest.raises(Refused, match="daemonlogger cannot do no-store"):
        cycle.measure(lab, values | {"method": "daemonlogger", "store": "none"}, 1)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(Missing, match="apt-get install wireshark-common"):
        cycle.measure(lab, values | {"method": "dumpcap"}, 1)


def test_wrong_usage_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('title = "t"\nnonsense = 1\n')
    assert command_line.main(["check", str(file)]) == 2
    assert f"{file}:2: unknown key nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method", ["tapdeck-xdp", "tapdeck-netfilter", "tapdeck-tpacket", "tcpdump", "count", "drop"]
)
def test_a_slow_trickle_is_captured_whole(lab: Lab, method: str) -> None:
    """On a veth pair: as many packets as were sent arrive, and each is in the output."""
    values = settings.defaults() | {
        "method": method,
        "packets": 2000,
        "rate": "20kpps",
        "flows": 10,
    }
    measured = cycle.measure(lab, values, 1)
    metrics = measured.metrics
    assert metrics["asked"] == metrics["sent"] == metrics["captured"] == 2000
    assert metrics["sent_mbit"] == pytest.approx(64 * 8 * metrics["sent_pps"] / 1e6)
    if method not in ("count", "drop"):
        assert metrics["rss_mib"] > 1
        assert metrics["cpu_capture"] > 0
        assert "CAPTURE" in measured.capture_command
    assert measured.samples[-1]["received"] >= 2000
    assert not list(Path("/run/netns").glob(f"lab-{os.getpid()}*"))


def test_several_applications_queues_and_threads(lab: Lab) -> None:
    values = settings.defaults() | {
        "method": "tcpdump",
        "apps": 2,
        "packets": 2000,
        "rate": "20kpps",
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["capture_rate_worst"] == metrics["capture_rate_best"] == 1
    values |= {"apps": 1, "queues": 2, "napi": "thread", "napi_cpu": "0", "gen_threads": 2}
    assert cycle.measure(lab, values, 1).metrics["lost"] == 0


def test_a_receiver_of_its_own_answers_for_what_it_drops(lab: Lab) -> None:
    values = settings.defaults() | {
        "method": "libpcap",
        "store": "none",
        "seconds": 0.3,
        "napi": "first",
        "napi_cpu": "1",
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["sent"] == metrics["asked"]
    assert metrics["lost"] == metrics["sent"] - metrics["captured"] >= metrics["undelivered"] >= 0


@pytest.mark.parametrize("store", ["none", "disk"])
def test_applications_share_a_group(lab: Lab, store: str) -> None:
    values = settings.defaults() | {
        "method": "tapdeck-serve",
        "store": store,
        "apps": 2,
        "packets": 2000,
        "rate": "20kpps",
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["capture_rate_worst"] == metrics["capture_rate_best"] == 1


@pytest.mark.parametrize("load", ["copy:3", "zlib:1", "gzip:1"])
def test_an_application_with_a_load_counts_all(lab: Lab, load: str) -> None:
    values = settings.defaults() | {
        "method": "tapdeck-xdp",
        "load": load,
        "packets": 2000,
        "rate": "20kpps",
    }
    assert cycle.measure(lab, values, 1).metrics["captured"] == 2000


def test_the_warm_up_is_left_out_of_rates_but_not_of_losses(lab: Lab) -> None:
    values = settings.defaults() | {
        "method": "count",
        "store": "none",
        "rate": "20kpps",
        "packets": 16_000,
        "seconds": 0.5,
        "warmup_s": 0.3,
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["sent"] == 16_000
    assert metrics["seconds"] == 0.5
    assert metrics["sent_pps"] == pytest.approx(20_000, rel=0.2)


def test_marked_packets_are_asked_for_meanwhile(lab: Lab) -> None:
    values = settings.defaults() | {
        "method": "tapdeck-xdp",
        "rate": "5kpps",
        "seconds": 3.0,
        "mark_every_s": 0.05,
        "query": "own",
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["queries"] >= 1
    assert metrics["query_ms"] > 0
    assert 0 <= metrics["marked_found"] <= 1


def test_readers_ask_the_gateway_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # A build for tests, on a machine that does other things as well, is to end an answer in time.
    monkeypatch.setattr(readers, "READERS", 3)
    monkeypatch.setattr(readers, "PACKETS", 100)
    values = settings.defaults() | {
        "method": "tapdeck-xdp",
        "rate": "5kpps",
        "seconds": 4.0,
        "mark_every_s": 0.05,
        "query": "readers",
    }
    metrics = cycle.measure(lab, values, 1).metrics
    assert metrics["queries"] >= 1
    assert metrics["query_ms"] > 0
    assert metrics["answered_mib"] > 0
    with pytest.raises(Refused, match="the gateway reads tapdeck's stores"):
        cycle.measure(lab, values | {"method": "tcpdump"}, 1)


SHIP = """\
trap 'exit 0' INT
while sleep 0.1; do
    cp "$flows"/*.parquet "$lake/landed/here/" 2>/dev/null
done
"""
"""Brings to a lake whatever is there, until it is asked to end."""


def stand_in(directory: Path, ship: str) -> Path:
    """Put a script where the lake's program is, which needs an environment of its own.

    It takes the words of `tapdeck-lake init DIR` and `ship --flows DIR --lake DIR --watch`.
    """
    venv = directory / ".venv"
    venv.mkdir(parents=True)
    for place in (directory, venv):
        (place / "requirements.txt").write_text("nothing\n")
    program = directory / "tapdeck-lake"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = init ] && exec mkdir -p "$2/landed/here"\n'
        '[ "$1 $2 $4 $6" = "ship --flows --lake --watch" ] || exit 2\n'
        f"flows=$3 lake=$5\n{ship}"
    )
    program.chmod(0o755)
    return program


def beside_a_fleet(**others: object) -> Settings:
    values = {"method": "tapdeck-xdp", "rate": "5kpps", "query": "fleet", "segment_time": "500ms"}
    return cast(Settings, settings.defaults() | values | others)


def test_flow_tables_are_made_and_shipped_meanwhile(lab: Lab, tmp_path: Path) -> None:
    lab.lake = stand_in(tmp_path / "lake", SHIP)
    metrics = cycle.measure(lab, beside_a_fleet(seconds=6.0), 1).metrics
    assert metrics["lost"] == 0
    assert 1 <= metrics["shipped"] <= metrics["tables"] <= metrics["segments"]
    assert metrics["segments"] >= 3
    with pytest.raises(Refused, match="flow tables are made of tapdeck's stores"):
        cycle.measure(lab, beside_a_fleet(method="tcpdump"), 1)


def test_a_run_that_is_shorter_than_a_segment_waits_for_the_first_one(
    lab: Lab, tmp_path: Path
) -> None:
    lab.lake = stand_in(tmp_path / "lake", SHIP)
    metrics = cycle.measure(lab, beside_a_fleet(seconds=0.1), 1).metrics
    assert metrics["shipped"] == 0 and metrics["lost"] == 0


@pytest.mark.parametrize(
    ("ship", "why"),
    [
        ("echo no room >&2; exit 1", "tapdeck-lake ship ended with 1: no room"),
        ("exit 0", "tapdeck-lake ship ended with 0: it said nothing"),
        ("exec sleep 1000", "tapdeck-lake ship shipped nothing"),
        # What it could not ship it tells when it ends.
        (SHIP.replace("exit 0", "exit 1"), "tapdeck-lake ship ended with 1"),
    ],
)
def test_a_run_fails_with_what_was_to_go_on_beside_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ship: str, why: str
) -> None:
    monkeypatch.setattr(fleet, "PATIENCE_S", 10.0)
    lab.lake = stand_in(tmp_path / "lake", ship)
    with pytest.raises(Failed, match=why):
        cycle.measure(lab, beside_a_fleet(seconds=1.0), 1)


def test_a_lake_without_its_environment_is_named_with_what_makes_it(
    lab: Lab, tmp_path: Path
) -> None:
    lab.lake = stand_in(tmp_path / "lake", SHIP)
    (tmp_path / "lake" / "requirements.txt").write_text("of another day\n")
    with pytest.raises(Missing, match=r"scripts/setup.sh --fleet"):
        cycle.measure(lab, beside_a_fleet(), 1)


@pytest.mark.parametrize("method", ["tapdeck-xdp", "tcpdump"])
def test_a_conversation_is_asked_for_afterwards(lab: Lab, method: str) -> None:
    values = settings.defaults() | {
        "method": method,
        "rate": "20kpps",
        "seconds": 1.0,
        "flows": 10,
        "size": "imix",
    }
    metrics = cycle.measure(lab, values | {"mark_every_s": 0.05, "flow_query": True}, 1).metrics
    assert 0 < metrics["first_packet_ms"] <= metrics["flow_ms"]
    assert metrics["first_packet_share"] == metrics["first_packet_ms"] / metrics["scan_ms"]
    assert metrics["stored_mib"] > 20_000 * 300 / 2**20
    with pytest.raises(Refused, match="set mark_every_s"):
        cycle.measure(lab, values | {"flow_query": True}, 1)
    with pytest.raises(Refused, match="set store to disk"):
        cycle.measure(lab, values | {"flow_query": True, "mark_every_s": 0.05, "store": "none"}, 1)


def test_a_share_of_the_rate_without_a_loss_is_searched_for_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Settings] = []

    def search(_: Lab, alone: Settings, seed: int) -> cycle.Measured:
        searched.append(alone)
        return cycle.Measured(
            {"no_drop_pps": 1000.0 if alone["planted_loss"] == 0 else 0.0}, "", "", []
        )

    monkeypatch.setattr(cycle, "search", search)
    values = settings.defaults() | {"method": "fake", "rate": "no-drop:0.8", "mark_every_s": 0.1}
    assert cycle.resolve_rate(lab, values | {"query": "own"}, 1) == "800pps"
    assert cycle.resolve_rate(lab, values | {"flow_query": True}, 2) == "800pps"
    (alone,) = searched
    assert alone["rate"] == "max" and alone["query"] == "none" and not alone["flow_query"]
    with pytest.raises(Refused, match="no rate without a loss"):
        cycle.resolve_rate(lab, values | {"planted_loss": 0.5}, 1)


def test_what_answers_to_queries_say() -> None:
    """The first packet is sent at 100 s, and a marked one every half second.

    The last question, at 102 s, finds three of four.
    """
    asker = cycle.Asker([], 0)
    asker.answers = [(101.0, 0.5, 1), (102.0, 1.5, 3)]
    values = settings.defaults() | {"mark_every_s": 0.5}
    assert cycle._asked(values, {"streams": [90, 10]}, 100.0, asker) == {
        "queries": 2,
        "query_ms": 1000.0,
        "marked_found": 0.75,
        # The second is sent with the first question, and is in the last answer.
        "found_after_ms": 2500.0,
    }
    asker.answers = []
    nothing = cycle._asked(values, {"streams": [90, 10]}, 100.0, asker)
    assert nothing["queries"] == 0 and math.isnan(nothing["query_ms"])
    assert cycle._asked(values, {}, 100.0, None) == {}


@pytest.fixture
def wire() -> Iterator[str]:
    """A veth pair of which both ends are in one namespace, as two interfaces of a machine are."""
    name = f"labw-{os.getpid()}"
    for line in (
        f"ip netns add {name}",
        f"ip -n {name} link add gen type veth peer name cap",
        f"ip netns exec {name} sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
        f"ip -n {name} link set gen up",
        f"ip -n {name} link set cap up",
    ):
        subprocess.run(line.split(), check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def how_it_is_set(wire: str) -> str:
    show = "ethtool -k cap | grep generic-receive; cat /sys/class/net/cap/threaded"
    return subprocess.run(
        ["ip", "netns", "exec", wire, "sh", "-c", show], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("remote", [False, True])
def test_interfaces_of_the_user_and_a_generator_behind_ssh(
    tmp_path: Path, build: Build, wire: str, remote: bool
) -> None:
    """What stands for ssh here runs the command on this machine."""
    file = tmp_path / "wire.toml"
    file.write_text(
        'title = "wire"\n[settings]\npackets = 3000\nrate = "20kpps"\nsize = "dist:mwn.dist"\n'
        'gro = "on"\nnapi = "thread"\n'
        '[factors]\nmethod = ["tcpdump"]\n[runs]\nrepetitions = 1\nmetrics = ["loss"]\n'
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(
        '#!/bin/sh\necho "$3" >> "$(dirname "$0")/asked"\nexec sh -c "$4"\n'
    )
    (programs / "ssh").chmod(0o755)
    (programs / "tapdeck").symlink_to(build.tapdeck)
    out = tmp_path / "out"
    results.write_machine(out, MACHINE)
    words = [
        "ip",
        "netns",
        "exec",
        wire,
        str(LAB / "lab"),
        "run",
        "--out",
        str(out),
        "--scenario",
        str(file),
        "--quick",
        "--resume",
    ]
    words += ["--build", str(build.directory), "--gen-if", "gen", "--cap-if", "cap", "--no-report"]
    words += ["--gen-ssh", "user@elsewhere"] if remote else []
    path = f"{programs}:{os.environ['PATH']}"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {"PATH": path, "TMPDIR": str(temporary)}
    before = how_it_is_set(wire)
    subprocess.run(words, check=True, env=environment, stderr=subprocess.DEVNULL)
    assert how_it_is_set(wire) == before and not list(temporary.iterdir())
    (row,) = rows(out, "wire")
    assert row["status"] == "ok", row["why"]
    assert float(row["m.sent"]) == float(row["m.captured"]) == 3000
    assert float(row["m.cpu_busy"]) > 0
    assert (programs / "asked").exists() == remote


def test_rates_are_understood() -> None:
    assert cycle.pps_of("100mbit", 125) == 100_000
    assert cycle.pps_of("1.2mpps", 64) == 1_200_000
    assert cycle.pps_of("ipg:3us", 64) == pytest.approx(1e6 / 3)
    assert cycle.pps_of("max", 64) == math.inf
    lab, asked = (
        Lab(Build(Path()), Path(), tools=Path()),
        settings.defaults() | {"rate": "disk:0.8"},
    )
    with pytest.raises(Refused, match="fio"):
        cycle.resolve_rate(lab, asked, 1)
    lab.disk_mb_per_s = 1000
    assert cycle.resolve_rate(lab, asked, 1) == "6400mbit"


def test_conditions_of_an_experiment() -> None:
    s = scenario.parse(FAKE.format(packets=10, rate="max"), "s")
    loaded = results.Loaded(s, pd.DataFrame(), 0)
    assert analysis.conditions(loaded) == [
        {"planted_loss": "0.0"},
        {"planted_loss": "0.05"},
        {"planted_loss": "0.25"},
    ]
    assert analysis.conditions(loaded, {"planted_loss"}) == [{}]


def test_a_packet_is_found_by_the_first_answer_that_has_it() -> None:
    # Marked packets at 1.1, 1.2, 1.3 and 1.4; answers are there at 1.15, 1.45 and 1.7.
    answers = [(1.05, 0.10, 0), (1.16, 0.29, 2), (1.46, 0.24, 3)]
    assert cycle._found_after(answers, 1.0, 0.1, 3) == pytest.approx(1.7 - 1.3)
    # The fourth is in no answer.
    assert cycle._found_after(answers, 1.0, 0.1, 4) == pytest.approx(1.7 - 1.3)
    assert cycle._found_after([(1.05, 0.65, 0)], 1.0, 0.1, 4) == pytest.approx(1.7 - 1.1)
    # Those of before the first question, or after the last answer, say nothing.
    assert math.isnan(cycle._found_after([(2.0, 0.1, 3)], 1.0, 0.1, 9))
