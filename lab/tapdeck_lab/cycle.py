"""The measurement cycle (Schneider, 3.4): one run, from nothing to a row of metrics.

Start samplers and capture, wait until both are ready, read the counters, generate, read the
counters, stop, collect. Every wait is for something that is seen; nothing sleeps for as long as it
hopefully takes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from . import cutoff, fleet, interrupt, methods, nodrop, readers, restart, samplers, slowdisk
from .build import Build
from .capture import Capture
from .methods import Context, Failed, Method, Missing, Refused
from .settings import RATE_UNITS, Settings
from .testbed import Bed, Nothing, Veth, Wire

MARK = "203.0.113.1"
"""The source address of marked packets."""

QUIET_S = 0.2
"""How long nothing comes in at the far end before nothing more is expected."""

Sent = dict[str, Any]
"""What the generator says of a run, as the JSON of `tapdeck gen`."""


@dataclass
class Lab:
    """Where runs take place."""

    build: Build
    work: Path
    """A directory on the disk that is measured."""
    sample_s: float = 0.5
    wire: Wire | None = None
    """The user's interfaces; None: veth pairs."""
    data: Path = methods.LAB / "scenarios"
    """Where distributions are."""
    disk_mb_per_s: float = 0.0
    """What the disk takes; 0: not known."""
    no_drop_pps: dict[str, float] = field(default_factory=dict)
    """Rates without a loss that were found, by the settings of the run."""
    tools: Path = field(default_factory=methods.build_tools)
    lake: Path = fleet.PROGRAM
    """The program that ships flow tables."""


@dataclass
class Measured:
    metrics: dict[str, float]
    capture_command: str
    generate_command: str
    samples: list[dict[str, float]]


def measure(lab: Lab, settings: Settings, seed: int) -> Measured:
    """Make one run.

    Parameters
    ----------
    lab : Lab
        Where it takes place.
    settings : Settings
        What it is.
    seed : int
        Of the generator, from 1 on.

    Returns
    -------
    Measured
        Metrics in their base units (`metrics.METRICS`), commands and samples.

    Raises
    ------
    Missing
        A program that the method needs is not installed.
    Refused
        The method, or the lab, cannot do what the settings ask.
    Failed
        A program failed during the run.
    TestbedError
        There is no wire to run on.
    """
    settings = settings | {"rate": resolve_rate(lab, settings, seed)}
    method = methods.ALL[settings["method"]]
    if why := method.refuses(settings) or _contradiction(settings):
        raise Refused(why)
    if missing := method.missing() or _missing(lab, settings):
        raise Missing(missing)
    _check_room(lab, settings)
    directory = Path(tempfile.mkdtemp(prefix="run", dir=lab.work))
    try:
        # What the last run left to write is not this one's.
        if settings["store"] == "disk":
            os.sync()
        pins = restart.bpf_file_system(directory) if settings["persist"] else nullcontext()
        with pins, _testbed(lab, settings, method) as bed:
            return _cycle(lab, settings, seed, method, bed, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _missing(lab: Lab, s: Settings) -> str:
    return fleet.missing(lab.lake) if s["query"] == "fleet" else ""


def _contradiction(s: Settings) -> str:
    asks = s["query"] != "none" or s["flow_query"]
    if (s["query"] not in ("none", "fleet") or s["flow_query"]) and not s["mark_every_s"]:
        return "queries ask for marked packets: set mark_every_s"
    if asks and s["store"] != "disk":
        return "queries ask for what is stored: set store to disk"
    if s["query"] == "readers" and not s["method"].startswith("tapdeck-"):
        return "the gateway reads tapdeck's stores: set query to own or scan"
    if s["query"] == "fleet" and not isinstance(methods.ALL[s["method"]], methods.Tapdeck):
        return "flow tables are made of tapdeck's stores: set query to own or scan"
    if s["disk_stop_s"] and not s["disk_limit_mib"]:
        return "only a limited disk can stop: set disk_limit_mib"
    if s["disk_limit_mib"] and (s["store"] != "disk" or s["load"] != "none" or s["apps"] > 1):
        return "a limited disk asks for one application that stores packets"
    if s["cutoff"] != "off" and (s["store"] != "disk" or s["load"] != "none" or s["apps"] > 1):
        return "flows are cut off for one application that stores packets"
    if s["interruption"] == "none":
        return ""
    if s["cutoff"] != "off":
        return "an interrupted capture keeps all of a flow: set cutoff to off"
    if s["disk_limit_mib"]:
        return "an interrupted capture has a disk as it is: set disk_limit_mib to 0"
    if asks:
        return "an interruption leaves nobody to ask: set query to none"
    if s["store"] != "disk" or s["apps"] > 1 or s["load"] != "none":
        return "an interruption asks for one application that stores packets"
    return ""


def _check_room(lab: Lab, s: Settings) -> None:
    """Refuses what might fill the disk: a run at twice the disk's speed, and a reserve."""
    if s["store"] != "disk":
        return
    speed = 2e6 * (lab.disk_mb_per_s or 1000)
    # Tapdeck sets room aside for the segment that it writes and for the next one.
    most = max(speed * (s["seconds"] + s["warmup_s"]), 2 * 2**20 * s["segment_mib"])
    needed, free = 2e9 + most, shutil.disk_usage(lab.work).free
    if free < needed:
        raise Refused(
            f"{lab.work} has {free / 1e9:.0f} GB free, and the run might need {needed / 1e9:.0f} GB"
        )


def resolve_rate(lab: Lab, s: Settings, seed: int) -> str:
    """Turn a rate of a scenario into one that the generator takes.

    `disk:0.8` is so much of what the disk takes, as a rate of the frames' bits. `no-drop:0.8` is so
    much of the highest rate at which the same run loses nothing while nobody asks; that rate is
    searched for once.

    Raises
    ------
    Refused
        What the rate is a share of is not known.
    """
    of, _, share = s["rate"].partition(":")
    if of == "disk" and s["disk_limit_mib"]:
        return f"{float(share) * s['disk_limit_mib'] * 2**20 * 8 / 1e6:.0f}mbit"
    if of == "disk":
        if not lab.disk_mb_per_s:
            raise Refused(
                "the disk was not measured, so nothing can be a share of its speed "
                "(apt-get install fio)"
            )
        return f"{float(share) * lab.disk_mb_per_s * 8:.0f}mbit"
    if of == "no-drop":
        alone = s | {"rate": "max", "query": "none", "flow_query": False}
        key = json.dumps(alone, sort_keys=True)
        if key not in lab.no_drop_pps:
            lab.no_drop_pps[key] = search(lab, alone, seed).metrics["no_drop_pps"]
        if not lab.no_drop_pps[key]:
            raise Refused("no rate without a loss was found, so nothing can be a share of it")
        return f"{float(share) * lab.no_drop_pps[key]:.0f}pps"
    return s["rate"]


def _testbed(lab: Lab, settings: Settings, method: Method) -> Bed:
    if isinstance(method, methods.Fake):
        return Nothing()
    if lab.wire:
        return Wire(lab.wire.sender, lab.wire.device, lab.wire.ssh, settings)
    return Veth(settings, method.native)


def _cycle(
    lab: Lab, settings: Settings, seed: int, method: Method, bed: Bed, directory: Path
) -> Measured:
    context = Context(settings, bed.device or "", directory, lab.build, lab.tools / "load")
    record = directory / "sent.json"
    command = _generator(lab, settings, seed, bed, directory, record)
    slow = slowdisk.SlowDisk(lab.work, settings) if slowdisk.is_wanted(settings) else nullcontext()
    with (
        slow as disk,
        Capture(method, bed, context) as capture,
        samplers.Sampler(lab.sample_s, bed.namespace, bed.device, lab.work) as sampler,
        ExitStack() as stack,
    ):
        sampler.pids = capture.pids
        before = bed.received()
        used_before = samplers.used(capture.pids)
        if disk:
            disk.take(capture)
            disk.stop_in_time(bed.received)
        asker = _asker(lab, settings, bed, capture)
        if isinstance(asker, fleet.Fleet):
            stack.callback(asker.stop)
        interruption = None
        if settings["interruption"] != "none":
            interruption = restart.Interruption(capture, settings, seed)
        sent = _generate(command, settings, record, asker, interruption)
        _wait_for_arrivals(bed, sent, before)
        used_after = samplers.used(capture.pids)
        capture.settle()
        arrived = sent["sent"] if isinstance(bed, Nothing) else bed.received() - before
        offered = arrived
        if isinstance(bed, Veth) and settings["napi"] != "softirq":
            # A receiver of its own that does not keep up drops what the sender has sent, as a
            # network card does.
            offered = sent["sent"] + sent["refused"]
        if not method.polls:
            # What it does after the packets is for them, too.
            used_after = samplers.used(capture.pids)
        capture.stop()
        judged: dict[str, float] = {}
        if interruption:
            captured, judged = restart.judge(capture, sent)
            counts = [captured]
        elif disk:
            counts = capture.counts()
            judged = slowdisk.judge(capture, sent)
        elif cutoff.is_wanted(settings):
            counts = capture.counts()
            judged = cutoff.judge(capture, sent)
        else:
            counts = capture.counts() or [methods.Counts(arrived, arrived)]
        if arrived == 0:
            raise Failed("nothing arrived at the far end")
        if isinstance(asker, fleet.Fleet):
            asker.deliver(offered - min(min(c.captured, arrived) for c in counts))
    begin, end = _begin_and_end(sent, bed, sampler)
    metrics = _metrics(sent, offered, arrived, counts)
    metrics |= _costs(settings, sent, arrived, used_before, used_after)
    metrics |= _sampled(settings, begin, end, sampler)
    if interruption:
        metrics |= interruption.metrics(metrics["sent_pps"], metrics["lost"])
        metrics["repeated"] = judged["repeated"]
        metrics["uncounted"] = metrics["lost"] - judged["told"]
        # What the samplers look at is the first process.
        for name in ("cpu_capture", "cpu_ms_per_mpkt", "switches_per_s", "rss_mib"):
            del metrics[name]
    else:
        metrics |= judged
    metrics |= _asked(settings, sent, begin, asker)
    metrics |= _ask_for_a_flow(lab, settings, capture) if settings["flow_query"] else {}
    metrics["index_share"] = counts[0].index_share
    metrics["ring_used"] = counts[0].ring_used
    metrics["unsynced_ms"] = counts[0].unsynced_ms
    if settings["warmup_s"] and not isinstance(bed, Nothing):
        _leave_warm_up_out(metrics, settings, begin, end, sampler)
    return Measured(
        metrics,
        _tidy(capture.command, bed, directory, lab),
        _tidy(shlex.join(command), bed, directory, lab),
        _table(sampler),
    )


def _generator(
    lab: Lab, s: Settings, seed: int, bed: Bed, directory: Path, record: Path
) -> list[str]:
    if isinstance(bed, Nothing):
        numbers = [str(s["packets"]), str(pps_of(s["rate"], 64))]
        return [
            sys.executable,
            "-m",
            "tapdeck_lab.fake",
            "generate",
            str(directory / "pipe"),
            *numbers,
            str(record),
        ]
    size = s["size"]
    if size.startswith("dist:"):
        size = f"dist:{bed.put(lab.data / size.removeprefix('dist:'))}"
    words = [
        "tapdeck" if bed.ssh else str(lab.build.tapdeck),
        "gen",
        "-i",
        bed.sender,
        "--size",
        size,
        "--seed",
        str(seed),
    ]
    words += (
        ["--ipg", s["rate"].removeprefix("ipg:")]
        if s["rate"].startswith("ipg:")
        else ["--rate", s["rate"]]
    )
    if s["packets"]:
        words += ["--count", str(s["packets"])]
    else:
        words += ["--duration", f"{round(1000 * (s['seconds'] + s['warmup_s']))}ms"]
    words += ["--flows", str(max(s["flows"], s["gen_threads"])), "--threads", str(s["gen_threads"])]
    if s["zipf"]:
        words += ["--zipf", str(s["zipf"])]
    # To the capturing host itself, since netfilter sees nothing else.
    words += ["--dst-mac", bed.mac, "--backend", s["backend"]]
    if s["signatures"]:
        words += ["--sport", "9", "--dport", "9"]
    if s["gen_cpu"]:
        words += ["--cpu", s["gen_cpu"]]
    if s["mark_every_s"]:
        words += ["--mark-every", f"{round(1000 * s['mark_every_s'])}ms", "--mark-src", MARK]
    return bed.generate_command([*words, "--json", "-" if bed.ssh else str(record)])


def _generate(
    command: list[str],
    s: Settings,
    record: Path,
    asker: Asking | None,
    interruption: restart.Interruption | None,
) -> Sent:
    seconds = 120 + 3 * (s["seconds"] + s["warmup_s"]) + s["packets"] / 1e3
    process: subprocess.Popen[str] | None = None
    try:
        with interrupt.held_back():
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=methods.LAB,
                start_new_session=True,
            )
        if asker:
            asker.start()
        if interruption:
            interruption.take_place(process)
        out, error = process.communicate(timeout=seconds)
        if isinstance(asker, fleet.Fleet):
            asker.note()
    except subprocess.TimeoutExpired as late:
        raise Failed(f"the generator took more than {seconds:.0f} s") from late
    finally:
        # Flow tables are still made and shipped of what was recorded.
        if asker and not isinstance(asker, fleet.Fleet):
            asker.stop()
        if process and process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise Failed(f"the generator failed: {error.strip().rpartition(chr(10))[2]}")
    return cast(Sent, json.loads(record.read_text() if record.exists() else out))


def _wait_for_arrivals(bed: Bed, sent: Sent, before: int) -> None:
    """Wait until all that was sent has come in or, where some was dropped, no more comes."""
    if isinstance(bed, Nothing):
        return
    last = -1
    came = begin = time.monotonic()
    while (now := bed.received()) < before + sent["sent"]:
        at = time.monotonic()
        came = at if now != last else came
        # The thread that receives may be kept from it for a while.
        if at - came > QUIET_S or at - begin > 10:
            return
        last = now
        time.sleep(0.02)


def _metrics(
    sent: Sent, offered: int, arrived: int, counts: list[methods.Counts]
) -> dict[str, float]:
    # Packets of others are in the output too, and in the counter; more than arrived cannot be
    # captured.
    captured = [min(c.captured, arrived) for c in counts]
    mean = sum(captured) / len(captured)
    detected = sum(min(c.detected, arrived) for c in counts) / len(counts)
    elapsed = sent["elapsed_s"]
    pps, mbit = (
        offered / elapsed,
        sent["bytes"] / max(sent["sent"], 1) * offered * 8 / elapsed / 1e6,
    )
    return {
        "asked": sent["sent"] + sent.get("refused", 0),
        "sent": offered,
        "undelivered": sent["sent"] + sent.get("refused", 0) - arrived,
        "detected": detected,
        "captured": mean,
        "not_detected": offered - detected,
        "dropped": detected - mean,
        "lost": offered - mean,
        "loss": (offered - mean) / offered,
        "capture_rate": mean / offered,
        "capture_rate_worst": min(captured) / offered,
        "capture_rate_best": max(captured) / offered,
        "sent_pps": pps,
        "sent_mbit": mbit,
        "captured_pps": pps * mean / offered,
        "captured_mbit": mbit * mean / offered,
        "seconds": elapsed,
    }


def _costs(
    s: Settings, sent: Sent, arrived: int, before: samplers.Used, after: samplers.Used
) -> dict[str, float]:
    if s["method"] in ("count", "drop"):
        return {}
    cpu_s = after.cpu_s - before.cpu_s
    return {
        "cpu_capture": 100 * cpu_s / sent["elapsed_s"],
        "cpu_ms_per_mpkt": 1e9 * cpu_s / arrived,
        "switches_per_s": (after.switches - before.switches) / sent["elapsed_s"],
    }


def _begin_and_end(sent: Sent, bed: Bed, sampler: samplers.Sampler) -> tuple[float, float]:
    """Returns when sending began and ended, as time.monotonic().

    The generator says both; where its clock is another machine's, they are when packets began and
    ceased to come in.
    """
    if bed.ssh:
        pairs = itertools.pairwise(sampler.samples)
        moving = [(x.at, y.at) for x, y in pairs if y.received > x.received]
        return (moving[0][0], moving[-1][1]) if moving else (math.nan, math.nan)
    offset = time.time() - time.monotonic()
    return sent["started_ns"] / 1e9 - offset, sent["ended_ns"] / 1e9 - offset


def _sampled(s: Settings, begin: float, end: float, sampler: samplers.Sampler) -> dict[str, float]:
    begin += s["warmup_s"]
    # An interval counts if most of it is in the run.
    half = sampler.interval_s / 2
    during = [
        i
        for i in samplers.intervals(sampler.samples)
        if i.end > begin + half and i.begin < end - half
    ]
    busy = samplers.trim(during)
    shares = samplers.mean_shares(busy)
    samples = [x for x in sampler.samples if x.at >= begin]
    metrics = {
        "cpu_busy": 100 - shares["idle"],
        "cpu_user": shares["user"] + shares["nice"],
        "cpu_system": shares["system"],
        "cpu_softirq": shares["softirq"] + shares["irq"],
        "cpu_steal": shares["steal"],
    }
    if s["method"] not in ("count", "drop"):
        metrics["rss_mib"] = max((x.used.rss_mib for x in samples), default=math.nan)
    # Looking through what was stored takes longer than storing it.
    sending = [x for x in samples if x.at <= end + sampler.interval_s]
    if s["store"] == "disk" and len(sending) > 1:
        took = sending[-1].at - sending[0].at
        metrics["disk_mib_per_s"] = (sending[-1].written - sending[0].written) / took / 2**20
    return metrics


def _leave_warm_up_out(
    metrics: dict[str, float], s: Settings, begin: float, end: float, sampler: samplers.Sampler
) -> None:
    """Make rates those of the time after the warm-up, by the samples of the far end's counter.

    Losses count from the first packet.
    """
    inside = [x for x in sampler.samples if begin + s["warmup_s"] <= x.at <= end]
    if len(inside) < 2 or not metrics["sent_pps"]:
        return
    pps = (inside[-1].received - inside[0].received) / (inside[-1].at - inside[0].at)
    factor = pps / metrics["sent_pps"]
    for name in ("sent_pps", "sent_mbit", "captured_pps", "captured_mbit"):
        metrics[name] *= factor
    metrics["seconds"] = s["seconds"]


class Asker(threading.Thread):
    """Asks for the marked packets, over and over, while packets come (PKAP's experiment 3)."""

    def __init__(self, command: list[str], delay_s: float) -> None:
        super().__init__(daemon=True)
        self.command, self.delay_s = command, delay_s
        self.answers: list[tuple[float, float, int]] = []
        """When each was asked (time.monotonic()), how long it took, and what it found."""
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        self._over.wait(self.delay_s)
        while not self._over.is_set():
            begin = time.monotonic()
            self._process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            out = self._process.communicate()[0]
            if self._process.returncode >= 0:
                counts = [
                    int(word)
                    for line in out.splitlines()
                    for word in line.split()[:1]
                    if word.isdigit()
                ]
                self.answers.append((begin, time.monotonic() - begin, sum(counts)))

    def stop(self) -> None:
        """End the questions; one that is still being answered does not count."""
        self._over.set()
        process = self._process
        if process and process.poll() is None:
            process.kill()
        if self.is_alive():
            self.join()


Asking = Asker | readers.Readers | fleet.Fleet
"""Who reads what is stored while packets come."""


def _asker(lab: Lab, s: Settings, bed: Bed, capture: Capture) -> Asking | None:
    if s["query"] == "none":
        return None
    directory = capture.contexts[0].directory
    if s["query"] == "readers":
        delay_s = 0.2 * s["seconds"]
        return readers.Readers(lab.build, directory / "store", s["capture_cpu"], delay_s)
    if s["query"] == "fleet":
        return fleet.Fleet(lab.build, lab.lake, directory / "store", s["capture_cpu"])
    if s["query"] == "own" and isinstance(capture.method, methods.Tapdeck):
        words = [
            str(lab.build.tapdeck),
            "query",
            "--dir",
            str(directory / "store"),
            "--count",
            "host",
            MARK,
        ]
    else:
        words = _scan(directory, "--count", f"host {MARK}")
    pin = ["taskset", "-c", s["capture_cpu"]] if s["capture_cpu"] else []
    return Asker(bed.capture_command([*pin, *words]), 0.2 * s["seconds"])


def _scan(directory: Path, how: str, expression: str) -> list[str]:
    """Each file from its beginning to its end, as it is at that moment."""
    find = f"find {shlex.quote(str(directory))} -name '*.pcap*' -o -name 'log.*' -o -name '*.live'"
    return ["sh", "-c", f"for f in $({find} | sort); do tcpdump -n -r $f {how} {expression}; done"]


def _ask_for_a_flow(lab: Lab, s: Settings, capture: Capture) -> dict[str, float]:
    """Measure how soon the marked conversation comes out of the store, and out of a scan.

    Each question begins with nothing of the store in the page cache. A method without a query of
    its own is scanned for its answer, too.
    """
    directory = capture.contexts[0].directory
    files = [f for f in directory.rglob("*") if f.is_file()]
    first_of_each = subprocess.run(
        _scan(directory, "-c 1", f"host {MARK}"), capture_output=True, text=True
    ).stdout
    found = re.search(r"IP (\S+)\.(\d+) > (\S+)\.(\d+):", first_of_each)
    if not found:
        raise Failed("no marked packet was stored")
    src, sport, dst, dport = found.groups()
    flow = f"src host {src} and src port {sport} and dst host {dst} and dst port {dport} and udp"
    own = scan = _scan(directory, "-l", flow)
    if isinstance(capture.method, methods.Tapdeck):
        own = [str(lab.build.tapdeck), "query", "--dir", str(directory / "store"), flow]
    # The scan is second, for whom a disk that remembers is faster.
    _forget(files)
    first_ms, all_ms, packets = _time(own)
    _forget(files)
    _, scan_ms, scanned = _time(scan)
    if packets != scanned:
        raise Failed(f"the answer has {packets} packets, and the scan {scanned}")
    return {
        "first_packet_ms": first_ms,
        "flow_ms": all_ms,
        "scan_ms": scan_ms,
        "first_packet_share": first_ms / scan_ms,
        "stored_mib": sum(f.stat().st_size for f in files) / 2**20,
    }


def _forget(files: list[Path]) -> None:
    """Takes files out of the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _time(command: list[str]) -> tuple[float, float, int]:
    """Run a command.

    Returns
    -------
    tuple of float, float, int
        When its first line came and when it ended, ms after it began, and how many lines there
        were.
    """
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        first, lines = math.nan, 0
        for _ in cast(IO[bytes], process.stdout):
            first = time.monotonic() - begin if lines == 0 else first
            lines += 1
    return 1e3 * first, 1e3 * (time.monotonic() - begin), lines


def _asked(s: Settings, sent: Sent, first_packet: float, asker: Asking | None) -> dict[str, float]:
    if not asker:
        return {}
    if isinstance(asker, readers.Readers | fleet.Fleet):
        return asker.metrics()
    done = asker.answers
    metrics = {
        "queries": len(done),
        "query_ms": math.nan,
        "marked_found": math.nan,
        "found_after_ms": math.nan,
    }
    if done:
        metrics["query_ms"] = 1e3 * sum(took for _, took, _ in done) / len(done)
        at, _, found = done[-1]
        marked = min(sent["streams"][-1], math.floor((at - first_packet) / s["mark_every_s"]))
        metrics["marked_found"] = min(1.0, found / marked) if marked > 0 else math.nan
        metrics["found_after_ms"] = 1e3 * _found_after(
            done, first_packet, s["mark_every_s"], sent["streams"][-1]
        )
    return metrics


def _found_after(
    answers: list[tuple[float, float, int]], first_packet: float, every_s: float, marked: int
) -> float:
    """Find the longest time from the sending of a marked packet to the first answer that has it.

    Of a packet that no answer has, it is the time until the last answer. Packets sent before the
    first question say nothing.

    Parameters
    ----------
    answers : list of (float, float, int)
        When each question was asked and how long its answer took, s, and how many packets it had.
    first_packet : float
        When the first packet was sent, s, by the clock of the questions.
    every_s : float
        Time between marked packets, s.
    marked : int
        How many marked packets were sent.

    Returns
    -------
    float
        Seconds; NaN where no marked packet was sent between the first question and the last answer.
    """
    longest = math.nan
    ends = [(at + took, found) for at, took, found in answers]
    for k in range(1, marked + 1):
        sent = first_packet + k * every_s
        if sent < answers[0][0] or sent > ends[-1][0]:
            continue
        seen = next((end for end, found in ends if found >= k), ends[-1][0])
        longest = max(seen - sent, 0.0 if math.isnan(longest) else longest)
    return longest


def _tidy(command: str, bed: Bed, directory: Path, lab: Lab) -> str:
    """Write a command as somebody else would, without the names of this run."""
    command = re.sub(r"ip netns exec \S+ |--dst-mac \S+ ", "", command)
    for old, new in [
        (str(directory), "DIR"),
        (f"{lab.build.directory}/", ""),
        (str(lab.tools), "lab/build"),
    ]:
        command = command.replace(old, new)
    command = command.replace(f"dist:{lab.data}/", "dist:")
    for name, new in [(bed.device, "CAPTURE"), (bed.sender, "SENDER")]:
        if name:
            command = command.replace(name, new)
    return command.replace("/app0", "")


def _table(sampler: samplers.Sampler) -> list[dict[str, float]]:
    """Turn samples into rows: shares of each core since the sample before, and use so far."""
    if not sampler.samples:
        return []
    begin = sampler.samples[0].at
    after = {i.end: i for i in samplers.intervals(sampler.samples)}
    rows = []
    for sample in sampler.samples:
        row = {"t_s": round(sample.at - begin, 4)}
        for core in sample.cpu:
            shares = after[sample.at].shares[core] if sample.at in after else {}
            row |= {
                f"{core}_{state}": round(shares.get(state, math.nan), 2)
                for state in samplers.STATES
            }
        row |= {
            "capture_cpu_s": round(sample.used.cpu_s, 4),
            "capture_switches": sample.used.switches,
        }
        row |= {
            "capture_rss_mib": round(sample.used.rss_mib, 2),
            "disk_bytes": sample.written,
            "received": sample.received,
        }
        rows.append(row)
    return rows


def search(lab: Lab, settings: Settings, seed: int) -> Measured:
    """Search for the highest rate without a loss, in the manner of RFC 2544; a trial is a run.

    The search begins with as fast as it goes; what counts as the rate of a trial is what arrived.

    Returns
    -------
    Measured
        Of the last trial or of the one flat out, with the metrics `no_drop_pps` (packets/s, 0 where
        each trial lost some) and `trials`.
    """
    trials: list[Measured] = []
    passed: dict[float, float] = {}

    def trial(pps: float | None) -> Measured:
        asked = "max" if pps is None else f"{pps:.0f}pps"
        trials.append(measure(lab, settings | {"rate": asked}, seed + len(trials)))
        return trials[-1]

    flat_out = trial(None)
    if flat_out.metrics["lost"] == 0:
        rate, best = flat_out.metrics["sent_pps"], flat_out
    else:
        top = flat_out.metrics["sent_pps"]

        def passes(pps: float) -> bool:
            # The one at the top has been made.
            if pps == top:
                return False
            done = trial(pps)
            if done.metrics["lost"] == 0:
                passed[pps] = done.metrics["sent_pps"]
            return done.metrics["lost"] == 0

        found = nodrop.search(passes, top / 32, top, settings["resolution"])
        rate, best = passed.get(found.rate, 0.0), trials[-1]
    metrics = best.metrics | {"no_drop_pps": rate, "trials": len(trials)}
    return Measured(metrics, best.capture_command, best.generate_command, best.samples)


def pps_of(rate: str, frame_bytes: float) -> float:
    """Convert a rate of a scenario into packets/s of frames of so many bytes; max is infinite."""
    if rate == "max":
        return math.inf
    if rate.startswith("ipg:"):
        number = float(rate[4:].rstrip("nums"))
        return (
            1 / (number * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[rate[-2:]]) if number else math.inf
        )
    unit = next(u for u in sorted(RATE_UNITS, key=len, reverse=True) if rate.endswith(u))
    value = float(rate.removesuffix(unit)) * RATE_UNITS[unit]
    return value if unit.endswith("pps") else value / 8 / frame_bytes
