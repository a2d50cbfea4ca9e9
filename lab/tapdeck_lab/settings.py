"""Settings of a run: everything that may be held or varied, each a name, a kind and a default.

A run is nothing but one value for each setting, so any of them can be a factor of an experiment. A
value is checked when a scenario is read; what it means is up to the part of the lab that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

METHODS = {
    "tapdeck-xdp": "tapdeck, XDP program in the driver",
    "tapdeck-xdp-generic": "tapdeck, XDP program behind the driver",
    "tapdeck-tcx": "tapdeck, traffic control, where lwpcap has the protocol handler",
    "tapdeck-netfilter": "tapdeck, netfilter prerouting",
    "tapdeck-tpacket": "tapdeck, mapped packet socket",
    "tapdeck-recv": "tapdeck, packet socket, one call a packet",
    "tapdeck-afxdp": "tapdeck, AF_XDP socket",
    "tapdeck-serve": "tapdeck serve at XDP, whose members all get every packet",
    "tcpdump": "tcpdump",
    "dumpcap": "Wireshark's dumpcap",
    "netsniff-ng": "netsniff-ng",
    "daemonlogger": "DaemonLogger",
    "stenotype": "stenographer's stenotype",
    "libpcap": "an application on libpcap that only counts, as Schneider's createDist",
    "testpmd-afpacket": "DPDK's testpmd on a packet socket",
    "testpmd-afxdp": "DPDK's testpmd on an AF_XDP socket",
    "count": "nobody captures; the interface counts",
    "drop": "XDP_DROP alone: the ceiling",
    "fake": "loses a planted share; tests the lab",
}
"""What each method is; how each works stands in `methods`."""

RATE = re.compile(
    r"max|\d+(\.\d+)?(pps|kpps|mpps|kbit|mbit|gbit)|ipg:\d+(\.\d+)?(ns|us|ms)|(disk|no-drop):\d\.\d+"
)
SIZE = re.compile(r"\d+|\d+-\d+|normal:\d+-\d+|imix|dist:[\w.-]+")
LOAD = re.compile(r"none|copy:\d+|zlib:\d|gzip:\d")
SYNC = re.compile(r"off|\d+(ms|s)")
TIME = re.compile(r"\d+(ms|s)")
CUTOFF = re.compile(r"off|\d+((K|M|G)iB)?")
CPUS = re.compile(r"(\d+(,\d+)*)?")


Check = Callable[[object], str | None]
"""Says what is wrong with a value, or None."""


class Settings(TypedDict):
    """A value for each setting; `SETTINGS` says what each means and which values it takes."""

    method: str
    size: str
    rate: str
    packets: int
    seconds: float
    warmup_s: float
    flows: int
    zipf: float
    backend: str
    gen_threads: int
    mark_every_s: float
    queues: int
    napi: str
    napi_cpu: str
    gro: str
    nic_ring: int
    gen_cpu: str
    capture_cpu: str
    deliver: str
    ring_mib: int
    snaplen: int
    filter: str
    store: str
    index: bool
    segment_mib: int
    segment_time: str
    sync_interval: str
    on_overload: str
    cutoff: str
    disk_limit_mib: int
    disk_stop_s: float
    persist: bool
    interruption: str
    load: str
    apps: int
    signatures: int
    match: str
    engine: str
    query: str
    flow_query: bool
    resolution: float
    planted_loss: float


@dataclass(frozen=True)
class Setting:
    """What is known of a setting."""

    default: object
    check: Check
    means: str


def _pattern(pattern: re.Pattern[str], shape: str) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, str) and pattern.fullmatch(value):
            return None
        return f"must be {shape}, not {value!r}"

    return check


def _one_of(*choices: str | bool) -> Check:
    def check(value: object) -> str | None:
        if any(value == c and type(value) is type(c) for c in choices):
            return None
        return f"must be one of {', '.join(map(repr, choices))}, not {value!r}"

    return check


def _number(low: float, high: float, *, whole: bool = False) -> Check:
    def check(value: object) -> str | None:
        # A bool is an int to Python, and is no number here.
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if is_number and low <= cast(float, value) <= high:
            return None
        return f"must be a number from {low} to {high}, not {value!r}"

    return check


def _text(value: object) -> str | None:
    return None if isinstance(value, str) else f"must be text, not {value!r}"


def _method(value: object) -> str | None:
    if isinstance(value, str) and value in METHODS:
        return None
    return f"must be one of {', '.join(sorted(METHODS))}; not {value!r}"


SETTINGS: dict[str, Setting] = {
    "method": Setting("tapdeck-xdp", _method, "who captures"),
    # Traffic.
    "size": Setting("64", _pattern(SIZE, "as --size of `tapdeck gen`"), "frame size, bytes"),
    "rate": Setting(
        "max",
        _pattern(RATE, "a rate like 700mbit, 1.2mpps, ipg:3us, disk:0.8, no-drop:0.8 or max"),
        "rate asked for",
    ),
    # 0: as many as fit into `seconds`.
    "packets": Setting(0, _number(0, 10**12, whole=True), "packets of a run"),
    "seconds": Setting(2.0, _number(0.05, 86400), "length of a run without its warm-up, s"),
    "warmup_s": Setting(
        0.0, _number(0, 3600), "time at the beginning left out of rates and CPU, s"
    ),
    "flows": Setting(1, _number(1, 10**7, whole=True), "flows"),
    "zipf": Setting(
        0.0, _number(0, 10), "exponent of the flows' shares after Zipf; 0: all have the same"
    ),
    "backend": Setting("auto", _one_of("auto", "xdp", "txring", "afxdp"), "how packets are sent"),
    "gen_threads": Setting(
        1, _number(1, 64, whole=True), "threads of the generator, each with flows of its own"
    ),
    "mark_every_s": Setting(0.0, _number(0, 3600), "a marked packet so often, s; 0: none"),
    # The wire and the machine.
    "queues": Setting(1, _number(1, 64, whole=True), "receive queues"),
    # On the sender's core; by a thread; by a thread that goes before all others, as a network
    # card's interrupts do.
    "napi": Setting("softirq", _one_of("softirq", "thread", "first"), "where the kernel receives"),
    "napi_cpu": Setting("", _pattern(CPUS, "CPUs like 1 or 0,1"), "CPUs of the receiving thread"),
    "gro": Setting(
        "auto",
        _one_of("auto", "on", "off"),
        "generic receive offload; auto: where live frames need it",
    ),
    "nic_ring": Setting(
        0, _number(0, 65536, whole=True), "descriptors of the receive ring; 0: as it is"
    ),
    "gen_cpu": Setting("0", _pattern(CPUS, "CPUs like 1 or 0,1"), "CPU of the generator"),
    "capture_cpu": Setting(
        "1", _pattern(CPUS, "CPUs like 1 or 0,1"), "CPUs of the capture process; empty: any"
    ),
    # The capture.
    "deliver": Setting(
        "consume",
        _one_of("consume", "pass"),
        "what becomes of a packet after a hook that may end it",
    ),
    "ring_mib": Setting(
        64, _number(1, 16384, whole=True), "memory between kernel and process, MiB"
    ),
    "snaplen": Setting(0, _number(0, 262144, whole=True), "bytes kept of a packet; 0: all"),
    "filter": Setting("", _text, "filter expression, as in pcap-filter(7)"),
    "store": Setting("disk", _one_of("disk", "none"), "where packets go"),
    "index": Setting(True, _one_of(True, False), "whether tapdeck indexes what it stores"),
    "segment_mib": Setting(1024, _number(64, 2**20, whole=True), "size of tapdeck's segments, MiB"),
    "segment_time": Setting(
        "60s", _pattern(TIME, "a time like 5s"), "age at which tapdeck closes a segment"
    ),
    "sync_interval": Setting(
        "5s", _pattern(SYNC, "a time like 5s, or off"), "how soon what tapdeck wrote is durable"
    ),
    "on_overload": Setting(
        "drop", _one_of("drop", "shed"), "what goes first where tapdeck's rings are full"
    ),
    "cutoff": Setting(
        "off", _pattern(CUTOFF, "a size like 16KiB, or off"), "bytes that tapdeck keeps of a flow"
    ),
    "disk_limit_mib": Setting(
        0, _number(0, 2**20, whole=True), "what the disk takes at most, MiB/s; 0: what it can"
    ),
    "disk_stop_s": Setting(
        0.0, _number(0, 3600), "time for which a limited disk takes nothing, once, s"
    ),
    "persist": Setting(
        False, _one_of(True, False), "whether tapdeck's hooks and rings outlive its process"
    ),
    "interruption": Setting(
        "none",
        _one_of("none", "restart", "kill", "upgrade"),
        "how the capture is interrupted",
    ),
    "load": Setting(
        "none", _pattern(LOAD, "none, copy:N, zlib:LEVEL or gzip:LEVEL"), "work for each packet"
    ),
    "apps": Setting(1, _number(1, 64, whole=True), "capture processes at once"),
    "signatures": Setting(0, _number(0, 100000, whole=True), "signatures of the rules"),
    "match": Setting(
        "last",
        _one_of("last", "middle"),
        "which rules packets match: the least specific, or one in the middle",
    ),
    "engine": Setting("candidates", _one_of("candidates", "walk"), "how rules are looked up"),
    # By tapdeck's index, where there is one; otherwise by a scan.
    "query": Setting(
        "none",
        _one_of("none", "own", "scan", "readers", "fleet"),
        "what reads meanwhile: who asks for marked packets over and over, 50 readers at the "
        "gateway, or who makes flow tables and ships them",
    ),
    "flow_query": Setting(
        False, _one_of(True, False), "whether the marked conversation is asked for afterwards, too"
    ),
    "resolution": Setting(
        0.05, _number(0.001, 0.5), "resolution of the search for a rate without a loss"
    ),
    "planted_loss": Setting(0.0, _number(0, 1), "share that the method `fake` loses, exactly"),
}


def check(name: str, value: object) -> str | None:
    """Says what is wrong with a setting, or None."""
    if name not in SETTINGS:
        return f"no such setting: {name}; there are {', '.join(SETTINGS)}"
    wrong = SETTINGS[name].check(value)
    return wrong and f"{name} {wrong}"


def defaults() -> Settings:
    """Returns the default of every setting."""
    return cast(Settings, {name: setting.default for name, setting in SETTINGS.items()})


RATE_UNITS = {"pps": 1, "kpps": 1e3, "mpps": 1e6, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
