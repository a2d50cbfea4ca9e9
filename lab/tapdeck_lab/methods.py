"""Capture methods: who captures, with which command, when it is ready, and how many packets it got.

Each method is a class with a few answers; `capture.Capture` does the rest alike for all. What was
captured is counted in the output, not taken from what the program says, wherever there is an
output.

The settings of the peers are those that their own documentation recommends for speed (`advice`).
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import rules, stenotype
from .build import Build
from .settings import METHODS, SETTINGS, Settings

LAB = Path(__file__).parents[1]
PERSIST = "lab"
"""The name of tapdeck's recordings that outlive their process."""


class Missing(Exception):
    """A program that is not here, and how to get it."""


class Refused(Exception):
    """What a method, or the lab, cannot do, and why."""


class Failed(Exception):
    """What went wrong in a run, as far as the programs said."""


@dataclass(frozen=True)
class Context:
    """What a command is made from."""

    settings: Settings
    device: str
    directory: Path
    build: Build
    load: Path
    turn: int = 0
    """How many processes of the same application have ended before this one."""

    def for_app(self, i: int) -> Context:
        directory = self.directory / f"app{i}"
        directory.mkdir(exist_ok=True)
        return replace(self, directory=directory)

    def after(self) -> Context:
        """Returns what the next process of the same application is made from."""
        return replace(self, turn=self.turn + 1)

    def file(self, name: str) -> Path:
        """Returns where this process has a file of its own; what was before it stays."""
        path = self.directory / name
        return path.with_stem(f"{path.stem}-{self.turn}") if self.turn else path


@dataclass(frozen=True)
class Counts:
    captured: int
    detected: float = math.nan
    """Packets that the method says it has seen, captured or not."""
    index_share: float = math.nan
    """Bytes of the method's index for each byte that it stored."""
    ring_used: float = math.nan
    """The most that a ring was filled, as a share of it."""
    unsynced_ms: float = math.nan
    """The longest time for which something that was written was not durable."""


class Method:
    program = ""
    package = ""
    native = False
    """Whether the method takes frames in the driver, where live frames need no GRO."""
    advice = ""
    holds_back_s = 0.2
    """How long a packet may wait in the program before the program does something about it, s."""
    stays = False
    """Whether the program stays for ever when it is asked to end, and must be killed."""
    polls = False
    """Whether the program uses all of a CPU, whatever comes."""
    can: frozenset[str] = frozenset()
    """What the method can do of load, filter, snaplen, no-store, apps, gzip, rules, interruption,
    persist, shed, cutoff and disk-limit.
    """

    def __init__(self, name: str) -> None:
        self.name, self.means = name, METHODS[name]

    def missing(self) -> str:
        """Returns what must be installed first, or nothing."""
        if self.program and not shutil.which(self.program):
            return (
                f"{self.program} is not installed (apt-get install {self.package or self.program})"
            )
        return ""

    def refuses(self, s: Settings) -> str:
        """Returns what of the settings this method cannot do, or nothing."""
        asked = {
            "load": s["load"].startswith(("copy", "zlib")),
            "gzip": s["load"].startswith("gzip"),
            "filter": bool(s["filter"]),
            "snaplen": bool(s["snaplen"]),
            "no-store": s["store"] == "none",
            "apps": s["apps"] > 1,
            "rules": bool(s["signatures"]),
            "interruption": s["interruption"] != "none",
            "persist": s["persist"],
            "shed": s["on_overload"] == "shed",
            "cutoff": s["cutoff"] != "off",
            "disk-limit": bool(s["disk_limit_mib"]),
        }
        cannot = [what for what, wanted in asked.items() if wanted and what not in self.can]
        return f"{self.name} cannot do {', '.join(cannot)} here" if cannot else ""

    def service(self, c: Context) -> list[str]:
        """Returns the command that must run before the first application, or nothing."""
        return []

    def pipeline(self, c: Context) -> list[list[str]]:
        """Returns the commands of one application, which are joined by pipes."""
        raise NotImplementedError

    def is_ready(self, pid: int, log: str) -> bool:
        return has_packet_socket(pid)

    def is_done(self, log: str) -> bool:
        return True

    def count(self, c: Context, log: str) -> Counts:
        raise NotImplementedError

    def environment(self, c: Context) -> dict[str, str]:
        """Returns the variables that the processes have beside the lab's own."""
        return {}

    def recording(self, c: Context) -> list[Path]:
        """Returns what all processes of an application have stored, for `check-traffic`."""
        raise NotImplementedError

    def ring_used(self, c: Context, logs: list[str]) -> float:
        """Returns the most that a ring was filled, as a share of it, where the method tells.

        The parameters are those of `told_lost`.
        """
        return math.nan

    def told_lost(self, c: Context, logs: list[str]) -> float:
        """Returns how many packets the processes of an application say that they lost.

        Parameters
        ----------
        c : Context
            That of the last process.
        logs : list of str
            What each process has said.
        """
        raise NotImplementedError


def has_packet_socket(pid: int) -> bool:
    """Tell by /proc/net/packet whether a process has a packet socket that is bound and receives."""
    try:
        rows = [
            line.split() for line in Path(f"/proc/{pid}/net/packet").read_text().splitlines()[1:]
        ]
        running = {row[8] for row in rows if row[5] == "1" and row[4] != "0"}
        held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False
    return any(f"socket:[{inode}]" in held for inode in running)


def count_file(path: Path) -> int:
    """Count the packets of a capture file by reading it, or of one in .gz by unpacking it."""
    if path.suffix == ".gz":
        with subprocess.Popen(["gzip", "-dc", path], stdout=subprocess.PIPE) as unpack:
            return _count(
                subprocess.run(
                    ["tcpdump", "-r", "-", "--count"], stdin=unpack.stdout, capture_output=True
                )
            )
    return _count(subprocess.run(["tcpdump", "-r", path, "--count"], capture_output=True))


def _count(out: subprocess.CompletedProcess[bytes]) -> int:
    said = re.match(rb"(\d+) packet", out.stdout)
    if not said:
        raise Failed(f"tcpdump cannot count: {out.stderr.decode(errors='replace').strip()}")
    return int(said[1])


def first_number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else math.nan


def sum_of_numbers(pattern: str, texts: list[str]) -> float:
    return sum(float(number) for text in texts for number in re.findall(pattern, text))


def load_words(s: Settings) -> list[str]:
    """Returns the options of `load/load.c` for the work that it does with each packet."""
    kind, _, number = s["load"].partition(":")
    return [] if kind == "none" else [{"copy": "-c", "zlib": "-z"}[kind], number]


def behind_pipe(c: Context) -> list[str]:
    """Returns the command that reads the stream of a method that writes to standard output."""
    kind, _, number = c.settings["load"].partition(":")
    if kind == "gzip":
        return ["sh", "-c", f"exec gzip -{number} > {shlex.quote(str(c.directory / 'out.gz'))}"]
    return [str(c.load), "-r", "-", *load_words(c.settings)]


def count_behind_pipe(c: Context) -> int:
    if c.settings["load"].startswith("gzip"):
        return count_file(c.directory / "out.gz")
    return int(json.loads((c.directory / "stdout").read_text())["packets"])


@dataclass(frozen=True)
class Hook:
    """What the lab has to know of a hook of tapdeck."""

    native: bool
    """It needs XDP in the driver."""

    shared: bool
    """Several applications can each take every packet there, without passing it on."""

    delivers: bool
    """It takes `--deliver`. Packet sockets see copies, so they have no choice."""

    lasts: bool
    """It takes `--persist`."""


TAPDECK_HOOKS = {
    "xdp": Hook(native=True, shared=False, delivers=True, lasts=True),
    "xdp-generic": Hook(native=False, shared=False, delivers=True, lasts=True),
    "tcx": Hook(native=False, shared=True, delivers=True, lasts=True),
    "netfilter": Hook(native=False, shared=False, delivers=True, lasts=True),
    "tpacket": Hook(native=False, shared=True, delivers=False, lasts=False),
    "recv": Hook(native=False, shared=True, delivers=False, lasts=False),
    "afxdp": Hook(native=True, shared=False, delivers=True, lasts=False),
}
"""One row for each hook of the program, in the order in which `tapdeck probe` lists them."""


LOSSES = ("dropped_ring", "dropped_other", "unseen", "nic_dropped")
"""The counters of tapdeck that tell of packets that are not in the output."""


UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Tapdeck(Method):
    advice = "defaults; consume at the hooks that can"
    can = frozenset(
        {"load", "gzip", "filter", "snaplen", "no-store", "rules", "interruption", "disk-limit"}
    )

    def __init__(self, hook: str) -> None:
        super().__init__(f"tapdeck-{hook}")
        self.hook = hook
        self.native = TAPDECK_HOOKS[hook].native
        if TAPDECK_HOOKS[hook].lasts:
            # Where programs write into rings, these outlive the process, and can keep less.
            self.can = self.can | {"persist", "shed", "cutoff"}
        if TAPDECK_HOOKS[hook].shared:
            self.can = self.can | {"apps"}

    def pipeline(self, c: Context) -> list[list[str]]:
        s = c.settings
        words = [str(c.build.tapdeck), "record", "-i", c.device, "--hook", self.hook]
        # Several at once see a packet only if each lets it pass.
        if TAPDECK_HOOKS[self.hook].delivers and s["apps"] == 1:
            words += ["--deliver", s["deliver"]]
        words += [
            "--ring-bytes",
            f"{s['ring_mib']}MiB",
            "--stats-json",
            str(c.file("stats.json")),
        ]
        if s["persist"]:
            # Nothing is to wait for a flush when the last process ends.
            words += ["--persist", PERSIST, "--flush", "100ms"]
        if s["segment_mib"] != SETTINGS["segment_mib"].default:
            words += ["--segment-size", f"{s['segment_mib']}MiB"]
        if s["segment_time"] != SETTINGS["segment_time"].default:
            words += ["--segment-time", s["segment_time"]]
        if s["sync_interval"] != SETTINGS["sync_interval"].default:
            words += ["--sync-interval", s["sync_interval"]]
        if s["on_overload"] != SETTINGS["on_overload"].default:
            words += ["--on-overload", s["on_overload"]]
        if s["cutoff"] != SETTINGS["cutoff"].default:
            words += ["--cutoff", s["cutoff"]]
        if s["snaplen"]:
            words += ["--snaplen", str(s["snaplen"])]
        if s["filter"]:
            words += ["--filter", s["filter"]]
        if s["signatures"]:
            file = c.directory / "rules"
            file.write_text(rules.text(s["signatures"], s["match"]))
            words += ["--rules", str(file)]
            if s["engine"] != "candidates":
                words += ["--rules-engine", s["engine"]]
        if s["load"] != "none":
            return [[*words, "-w", "-"], behind_pipe(c)]
        if s["store"] == "none":
            return [[*words, "--no-store"]]
        return [
            [*words, "--dir", str(c.directory / "store"), *([] if s["index"] else ["--no-index"])]
        ]

    def is_ready(self, pid: int, log: str) -> bool:
        return "recording" in log

    def count(self, c: Context, log: str) -> Counts:
        last = self.last_statistics(c)[-1]
        if not last["final"]:
            raise Failed("tapdeck did not end well: " + log.strip().rpartition("\n")[2])
        index_share = (
            last["index_bytes"] / last["bytes_written"] if last["bytes_written"] else math.nan
        )
        if c.settings["load"] != "none":
            captured = count_behind_pipe(c)
        elif c.settings["store"] == "none":
            captured = last["captured"]
        else:
            captured = sum(count_file(file) for file in (c.directory / "store").rglob("*.pcapng"))
        # Where nothing is made durable there is no longest time until it was.
        syncs = c.settings["sync_interval"] != "off"
        unsynced_ms = last["unsynced_us_max"] / 1e3 if syncs else math.nan
        return Counts(captured, last["seen"], index_share, self.ring_used(c, [log]), unsynced_ms)

    def ring_used(self, c: Context, logs: list[str]) -> float:
        most = max(s["ring_used_max"] for s in self.last_statistics(c))
        # One ring: that of another CPU or queue may be empty meanwhile.
        said = re.search(r" rings? of ([\d.]+) (KiB|MiB|GiB)", logs[-1])
        return most / float(said[1]) / UNITS[said[2]] if said else math.nan

    def environment(self, c: Context) -> dict[str, str]:
        if not c.settings["persist"]:
            return {}
        # A command in a network namespace does not see the machine's BPF file system.
        return {"TAPDECK_PERSIST": str(c.directory.parent / "bpf" / "tapdeck")}

    def recording(self, c: Context) -> list[Path]:
        return [c.directory / "store"]

    def told_lost(self, c: Context, logs: list[str]) -> float:
        each = [float(sum(last[key] for key in LOSSES)) for last in self.last_statistics(c)]
        # The next owner goes on counting where the one before has stopped.
        return each[-1] if c.settings["persist"] else sum(each)

    def last_statistics(self, c: Context) -> list[dict[str, Any]]:
        """Returns the last line of statistics of each process that wrote one."""
        files = [replace(c, turn=turn).file("stats.json") for turn in range(c.turn + 1)]
        texts = [file.read_text() for file in files if file.exists()]
        # A process that was killed may have left half a line.
        return [
            json.loads(text[: text.rfind("\n")].splitlines()[-1]) for text in texts if "\n" in text
        ]


class Serve(Method):
    """One capture for all applications: `tapdeck serve`, with a group that copies packets to each.

    An application that only reads packets is that of the method `libpcap`, unchanged, on the device
    `deck:lab`.
    """

    advice = "defaults; consume; libtapdeck_pcap.so in the place of libpcap"
    native = True
    can = frozenset({"load", "gzip", "filter", "snaplen", "no-store", "apps"})

    def missing(self) -> str:
        return ALL["libpcap"].missing()

    def service(self, c: Context) -> list[str]:
        s = c.settings
        lines = [
            "[serve]",
            f'ring-bytes = "{s["ring_mib"]}MiB"',
            "[[group]]",
            'name = "lab"',
            f'interfaces = ["{c.device}"]',
        ]
        lines += ['hook = "xdp"', f'deliver = "{s["deliver"]}"', 'steering = "copy"']
        lines += [f"snaplen = {s['snaplen']}"] if s["snaplen"] else []
        lines += [f'filter = "{s["filter"]}"'] if s["filter"] else []
        (c.directory / "groups.toml").write_text("\n".join(lines) + "\n")
        words = [str(c.build.tapdeck), "serve", "--config", str(c.directory / "groups.toml")]
        return [
            *words,
            "--socket",
            str(c.directory / "serve.sock"),
            "--stats-json",
            str(c.directory / "serve.json"),
        ]

    def pipeline(self, c: Context) -> list[list[str]]:
        s, socket = c.settings, str(c.directory.parent / "serve.sock")
        words = [str(c.build.tapdeck), "attach", "--group", "lab", "--socket", socket, "-w"]
        if s["load"].startswith("gzip"):
            return [[*words, "-"], behind_pipe(c)]
        if s["store"] == "disk":
            return [[*words, str(c.directory / "out.pcapng")]]
        environment = ["env", f"LD_PRELOAD={c.build.pcap_library}", f"TAPDECK_SOCKET={socket}"]
        return [
            [*environment, str(c.load), "-i", "deck:lab", "-B", str(s["ring_mib"]), *load_words(s)]
        ]

    def is_ready(self, pid: int, log: str) -> bool:
        return "serving at" in log or "of group lab" in log or "ready" in log

    def count(self, c: Context, log: str) -> Counts:
        seen = json.loads((c.directory.parent / "serve.json").read_text().splitlines()[-1])[
            "groups"
        ][0]["seen"]
        if (c.directory / "out.pcapng").exists():
            return Counts(count_file(c.directory / "out.pcapng"), seen)
        # The application says how many it counted, as one behind a pipe does.
        return Counts(count_behind_pipe(c), seen)


class Tcpdump(Method):
    program = "tcpdump"
    advice = "tcpdump(8): -n, a larger buffer (-B), -w instead of printing"
    # A block of its buffer that is not full is given up after a second (pcap(3PCAP), packet buffer
    # timeout).
    holds_back_s = 1.3
    can = frozenset({"gzip", "filter", "snaplen", "no-store", "apps", "interruption"})

    def pipeline(self, c: Context) -> list[list[str]]:
        s = c.settings
        words = ["tcpdump", "-i", c.device, "-n", "-Z", "root", "-B", str(s["ring_mib"] * 1024)]
        if s["snaplen"]:
            words += ["-s", str(s["snaplen"])]
        if s["load"] != "none":
            return [[*words, "-w", "-", *filter_words(s)], behind_pipe(c)]
        to = "/dev/null" if s["store"] == "none" else str(c.file("out.pcap"))
        return [[*words, "-w", to, *filter_words(s)]]

    def count(self, c: Context, log: str) -> Counts:
        detected = first_number(r"(\d+) packets? received by filter", log)
        if c.settings["load"] != "none":
            return Counts(count_behind_pipe(c), detected)
        if c.settings["store"] == "none":
            return Counts(int(first_number(r"(\d+) packets? captured", log)), detected)
        return Counts(count_file(c.directory / "out.pcap"), detected)

    def recording(self, c: Context) -> list[Path]:
        return sorted(c.directory.glob("out*.pcap"))

    def told_lost(self, c: Context, logs: list[str]) -> float:
        return sum_of_numbers(r"(\d+) packets? dropped by", logs)


def filter_words(s: Settings) -> list[str]:
    return [s["filter"]] if s["filter"] else []


class Dumpcap(Method):
    program, package = "dumpcap", "wireshark-common"
    advice = "dumpcap(1): -q, a larger buffer (-B)"
    can = frozenset({"filter", "snaplen", "apps", "interruption"})

    def pipeline(self, c: Context) -> list[list[str]]:
        s = c.settings
        words = [
            "dumpcap",
            "-q",
            "-i",
            c.device,
            "-B",
            str(s["ring_mib"]),
            "-w",
            str(c.file("out.pcapng")),
        ]
        if s["snaplen"]:
            words += ["-s", str(s["snaplen"])]
        return [words + (["-f", s["filter"]] if s["filter"] else [])]

    def count(self, c: Context, log: str) -> Counts:
        received = first_number(r"received/dropped on interface [^:]*: (\d+)/", log)
        dropped = first_number(r"received/dropped on interface [^:]*: \d+/(\d+)", log)
        return Counts(count_file(c.directory / "out.pcapng"), received + dropped)

    def recording(self, c: Context) -> list[Path]:
        return sorted(c.directory.glob("out*.pcapng"))

    def told_lost(self, c: Context, logs: list[str]) -> float:
        return sum_of_numbers(r"received/dropped on interface [^:]*: \d+/(\d+)", logs)


class NetsniffNg(Method):
    program = "netsniff-ng"
    advice = (
        "netsniff-ng(8): --silent, a larger ring (--ring-size), scatter/gather writing as is its "
        "default"
    )
    can = frozenset({"filter", "apps"})

    def pipeline(self, c: Context) -> list[list[str]]:
        s = c.settings
        words = [
            "netsniff-ng",
            "--in",
            c.device,
            "--out",
            str(c.directory / "out.pcap"),
            "--silent",
        ]
        words += ["--ring-size", f"{s['ring_mib']}MiB"]
        if s["capture_cpu"]:
            words += ["--bind-cpu", s["capture_cpu"].split(",")[0]]
        return [words + filter_words(s)]

    def count(self, c: Context, log: str) -> Counts:
        return Counts(
            count_file(c.directory / "out.pcap"), first_number(r"(\d+)\s+packets incoming", log)
        )


class Daemonlogger(Method):
    program = "daemonlogger"
    advice = "its README has nothing on speed: defaults, by libpcap's mapped ring"
    holds_back_s = 1.3
    can = frozenset({"filter", "apps"})

    def pipeline(self, c: Context) -> list[list[str]]:
        return [
            [
                "daemonlogger",
                "-i",
                c.device,
                "-l",
                str(c.directory),
                "-n",
                "log",
                *filter_words(c.settings),
            ]
        ]

    def count(self, c: Context, log: str) -> Counts:
        return Counts(sum(count_file(file) for file in c.directory.glob("log.*")))


class Stenotype(Method):
    program, package = "stenotype", "stenographer"
    advice = (
        "stenographer's INSTALL.md: one thread a core, more blocks and AIOs; 64 blocks are 64 MiB"
    )
    holds_back_s = 1.6
    stays = True
    can = frozenset({"interruption"})

    def pipeline(self, c: Context) -> list[list[str]]:
        for part in ("PKT0", "IDX0"):
            (c.directory / part).mkdir(exist_ok=True)
        words = f"stenotype --iface={c.device} --threads=1 --blocks={c.settings['ring_mib']}"
        words += " --aiops=32 --blockage_sec=1 --uid=root --gid=root --seccomp=none -v -v"
        words += f" --dir={c.directory}"
        if c.settings["interruption"] != "none":
            # So that what it says of its losses is not too old when it is killed.
            words += " --stats_sec=1"
        return [words.split()]

    def is_ready(self, pid: int, log: str) -> bool:
        return "starting to process packets" in log

    def is_done(self, log: str) -> bool:
        return "Finishing thread" in log and log.count("] Wrote index") >= log.count(
            "Opening packet file"
        )

    def count(self, c: Context, log: str) -> Counts:
        stored, index = (
            sum(f.stat().st_size for f in (c.directory / part).iterdir())
            for part in ("PKT0", "IDX0")
        )
        packets = sum(int(n) for n in re.findall(r"Stored (\d+) with ", log))
        return Counts(packets, index_share=index / stored if stored else math.nan)

    def recording(self, c: Context) -> list[Path]:
        # One that was killed leaves the file that it had not finished hidden; what is in it was
        # stored all the same.
        files = sorted((c.directory / "PKT0").iterdir())
        return [stenotype.to_pcap(file, c.directory / f"{i}.pcap") for i, file in enumerate(files)]

    def told_lost(self, c: Context, logs: list[str]) -> float:
        # Each process tells again and again what it has lost since its start.
        each = [re.findall(r" drops=(\d+)", log) for log in logs]
        return sum(float(told[-1]) for told in each if told)


class Libpcap(Method):
    advice = "pcap(3PCAP): a larger buffer"
    can = frozenset({"load", "filter", "snaplen", "no-store", "apps"})

    def missing(self) -> str:
        return (
            ""
            if shutil.which("cc")
            else "there is no C compiler (apt-get install gcc libpcap-dev zlib1g-dev)"
        )

    def refuses(self, s: Settings) -> str:
        if s["store"] != "none":
            return "libpcap, an application of its own, only reads: set store to none"
        return super().refuses(s)

    def pipeline(self, c: Context) -> list[list[str]]:
        s = c.settings
        words = [str(c.load), "-i", c.device, "-B", str(s["ring_mib"]), *load_words(s)]
        if s["snaplen"]:
            words += ["-s", str(s["snaplen"])]
        return [words + (["-f", s["filter"]] if s["filter"] else [])]

    def is_ready(self, pid: int, log: str) -> bool:
        return "ready" in log

    def count(self, c: Context, log: str) -> Counts:
        said = json.loads((c.directory / "stdout").read_text())
        return Counts(said["packets"], said["received"] + said["dropped"])


class Testpmd(Method):
    program, package = (
        "dpdk-testpmd",
        "dpdk-dev librte-net-pcap23 librte-net-af-packet23 librte-net-af-xdp23",
    )
    advice = (
        "DPDK's pcap driver writes what testpmd forwards; "
        "no huge pages, since a veth pair has no use of them"
    )
    holds_back_s = 0.5
    polls = True

    def __init__(self, name: str, driver: str) -> None:
        super().__init__(name)
        self.driver = driver

    def pipeline(self, c: Context) -> list[list[str]]:
        # It needs a core for its commands beside the one that forwards.
        cores = ",".join(sorted({"0", c.settings["capture_cpu"].split(",")[0] or "1"}))
        words = [
            "dpdk-testpmd",
            "-l",
            cores,
            "--no-huge",
            "-m",
            "512",
            "--no-pci",
            "--file-prefix",
            c.device,
        ]
        words += ["--vdev", f"net_{self.driver}0,iface={c.device}"]
        words += ["--vdev", f"net_pcap0,tx_pcap={c.directory / 'out.pcap'}"]
        words += ["--", "--forward-mode=io", "--auto-start", "--no-flush-rx", "--stats-period=1"]
        return [[*words, "--total-num-mbufs=32768"]]

    def is_ready(self, pid: int, log: str) -> bool:
        return "start packet forwarding" in log

    def count(self, c: Context, log: str) -> Counts:
        return Counts(count_file(c.directory / "out.pcap"))


class CountOnly(Method):
    """Nobody captures: the interface counts and the kernel throws away."""

    can = frozenset({"no-store"})

    def pipeline(self, c: Context) -> list[list[str]]:
        return []


class Drop(CountOnly):
    """An XDP program drops every packet: nothing that looks at packets there can be faster."""

    native = True

    def missing(self) -> str:
        return "" if shutil.which("clang") else "clang is not installed (apt-get install clang)"


class Fake(Method):
    can = frozenset({"no-store"})

    def pipeline(self, c: Context) -> list[list[str]]:
        pipe = c.directory.parent / "pipe"
        os.mkfifo(pipe)
        share = c.settings["planted_loss"]
        return [
            [
                sys.executable,
                "-m",
                "tapdeck_lab.fake",
                "capture",
                str(pipe),
                str(share),
                str(c.directory / "kept"),
            ]
        ]

    def is_ready(self, pid: int, log: str) -> bool:
        return "ready" in log

    def count(self, c: Context, log: str) -> Counts:
        said = json.loads((c.directory / "kept").read_text())
        return Counts(said["kept"], said["received"])


ALL: dict[str, Method] = {
    method.name: method
    for method in [
        *(Tapdeck(hook) for hook in TAPDECK_HOOKS),
        Serve("tapdeck-serve"),
        Tcpdump("tcpdump"),
        Dumpcap("dumpcap"),
        NetsniffNg("netsniff-ng"),
        Daemonlogger("daemonlogger"),
        Stenotype("stenotype"),
        Libpcap("libpcap"),
        Testpmd("testpmd-afpacket", "af_packet"),
        Testpmd("testpmd-afxdp", "af_xdp"),
        CountOnly("count"),
        Drop("drop"),
        Fake("fake"),
    ]
}


def build_tools() -> Path:
    """Compile what is written in C, where it has changed, and return the directory."""
    built = LAB / "build"
    built.mkdir(exist_ok=True)
    jobs = [
        ("cc", ["-O2", "-o", "load", "../load/load.c", "-lpcap", "-lz"]),
        ("clang", ["-O2", "-target", "bpf", "-c", "../load/drop.bpf.c", "-o", "drop.o"]),
    ]
    for compiler, words in jobs:
        made, source = (
            built / words[words.index("-o") + 1],
            built / next(w for w in words if w.endswith(".c")),
        )
        if not shutil.which(compiler) or (
            made.exists() and made.stat().st_mtime > source.stat().st_mtime
        ):
            continue
        out = subprocess.run([compiler, *words], cwd=built, capture_output=True, text=True)
        if out.returncode:
            raise Missing(
                f"{compiler} {' '.join(words)}: {out.stderr.strip().partition(chr(10))[0]}"
            )
    return built
