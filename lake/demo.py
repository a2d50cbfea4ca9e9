"""Shows a fleet: eight sensors, one lake, and the packets behind an answer, in about two minutes.

    demo.py --build DIR --jars DIR --s3-server FILE        as `make demo-fleet` runs it

Eight sensors are network namespaces, each a bridge between that of the hosts and a network. On each
`tapdeck record` records, `tapdeck flows --watch` makes flow tables, and `tapdeck-lake ship`
brings these and the packets to a lake on S3, whose Iceberg table has its catalog in PostgreSQL. One
host speaks with three of the sensors' networks among much other
traffic. Spark and DuckDB find it by SQL, its packets are fetched from S3, and each is held against
what tcpdump saw at the host's end of the cables. Exits with 1 if a single one differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from servers import postgres, s3, spark
from tapdeck_lake import jobs
from tapdeck_lake.catalog import Lake
from tapdeck_lake.spark_settings import add_to

SENSORS = range(1, 9)
SPEAKS_WITH = (2, 5, 7)
HOST = "192.0.2.7"
FILES = "s3://lake/fleet"
PATIENCE_S = 180.0
HERE = Path(__file__).parent
OFFLOADS = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"]
"""What the kernel is not to leave to cables: frames are cut and summed before they are sent."""
OTHERS = 6000
"""Packets of other hosts at each sensor."""

TOTALS = f"""select sensor, count(*) as flows, sum(fwd_packets + rev_packets) as packets,
    sum(fwd_bytes + rev_bytes) as bytes from flows
    where src_ip = '{HOST}' or dst_ip = '{HOST}' group by sensor order by sensor"""


def title(text: str) -> None:
    """Says what comes."""
    print(f"\n== {text}\n", flush=True)


def fail(text: str) -> None:
    """Ends the demonstration."""
    print(f"demo-fleet: {text}", file=sys.stderr)
    sys.exit(1)


class Fleet:
    """Namespaces, and programs in them; all of it goes in the end."""

    def __init__(self, tapdeck: Path, work: Path, stack: ExitStack) -> None:
        self.tapdeck, self.work, self.stack = tapdeck, work, stack
        self.hosts = self.namespace("hosts")
        ip("-n", self.hosts, "addr", "add", f"{HOST}/32", "dev", "lo")
        self.networks: dict[int, str] = {}
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def namespace(self, name: str) -> str:
        """Makes a network namespace. Returns its name."""
        whole = f"tapdeck-fleet-{os.getpid()}-{name}"
        ip("netns", "add", whole)
        self.stack.callback(ip, "netns", "del", whole)
        ip("-n", whole, "link", "set", "lo", "up")
        return whole

    def start(self, name: str, *command: str, namespace: str = "") -> None:
        """Starts a program, in a namespace if one is named. What it says goes to a file."""
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        with (self.work / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*prefix, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.started[name] = process
        self.stack.callback(end, process, signal.SIGKILL)

    def until_says(self, name: str, text: str) -> None:
        """Waits until a program has said something."""
        log = self.work / f"{name}.log"
        self.until(f"{name} says {text!r}", lambda: text in log.read_text(errors="replace"))

    def stop(self, name: str) -> None:
        """Ends a program in good order."""
        end(self.started[name], signal.SIGTERM)
        self.finish(name)

    def finish(self, name: str) -> None:
        """Waits for a program's end."""
        process = self.started.pop(name)
        if process.wait(PATIENCE_S) not in (0, -signal.SIGTERM):
            print((self.work / f"{name}.log").read_text(errors="replace"), file=sys.stderr)
            fail(f"{name} ended with {process.returncode}")

    def lay_cables(self, sensor: int) -> tuple[str, str]:
        """Puts a sensor between the hosts and a network: a bridge, through which all frames go.

        Returns the namespaces of the sensor and of the network.
        """
        name, network = self.namespace(str(sensor)), self.namespace(f"network-{sensor}")
        ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        cables = [(self.hosts, f"to{sensor}", "outside"), (network, "eth0", "inside")]
        for where, its_end, port in cables:
            mac = mac_of(sensor, where == network)
            cable = ["link", "add", its_end, "address", mac, "type", "veth"]
            ip("-n", where, *cable, "peer", port, "netns", name)
            ip("-n", name, "link", "set", port, "master", "bridge0")
            for namespace, link in ((where, its_end), (name, port)):
                within(namespace, "ethtool", "-K", link, *OFFLOADS)
                within(namespace, "sysctl", "-qw", f"net.ipv6.conf.{link}.disable_ipv6=1")
                ip("-n", namespace, "link", "set", link, "up")
        within(name, "sysctl", "-qw", "net.ipv6.conf.bridge0.disable_ipv6=1")
        ip("-n", name, "link", "set", "bridge0", "up")
        ip("-n", network, "addr", "add", f"10.0.{sensor}.1/24", "dev", "eth0")
        ip("-n", network, "route", "add", f"{HOST}/32", "dev", "eth0")
        route = [f"10.0.{sensor}.0/24", "dev", f"to{sensor}", "src", HOST]
        ip("-n", self.hosts, "route", "add", *route)
        # Nobody has to ask for the other's, at a time when only one of two looks.
        for where, address, link, is_network in (
            (self.hosts, f"10.0.{sensor}.1", f"to{sensor}", True),
            (network, HOST, "eth0", False),
        ):
            known = ["lladdr", mac_of(sensor, is_network), "dev", link, "nud", "permanent"]
            ip("-n", where, "neigh", "add", address, *known)
        return name, network

    def begin(self, sensor: int) -> None:
        """Lets a sensor record, and ship what it has recorded."""
        name, self.networks[sensor] = self.lay_cables(sensor)
        own = self.work / f"sensor-{sensor}"
        own.mkdir()
        tape, flows = str(own / "tape"), str(own / "flows")
        record = [str(self.tapdeck), "record", "-i", "outside,inside", "--hook", "xdp"]
        record += ["--dir", tape, "--ring-bytes", "32MiB", "--segment-time", "5s"]
        self.start(f"record-{sensor}", *record, namespace=name)
        self.until_says(f"record-{sensor}", "recording")
        for port in ("outside", "inside"):
            # A program at the hook turns it on, and frames would be joined behind it.
            within(name, "ethtool", "-K", port, "gro", "off")
        make = [str(self.tapdeck), "flows", "--dir", tape, "-o", flows, "--watch"]
        self.start(f"flows-{sensor}", *make, "--sensor", f"sensor-{sensor}")
        self.until(f"{flows} is there", Path(flows).is_dir)
        bring = [sys.executable, "-m", "tapdeck_lake", "ship", "--flows", flows, "--watch"]
        self.start(f"ship-{sensor}", *bring, "--lake", FILES, "--segments", tape)

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Waits for something."""
        patience = time.monotonic() + PATIENCE_S
        while not is_so():
            for name, process in self.started.items():
                if process.poll() is not None:
                    print((self.work / f"{name}.log").read_text(errors="replace"), file=sys.stderr)
                    fail(f"{name} ended with {process.returncode}")
            if time.monotonic() > patience:
                fail(f"waited in vain until {what}")
            time.sleep(0.1)


def run(*command: str) -> str:
    """Runs a program to its end. Returns what it writes; what it says is seen where it failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def within(namespace: str, *command: str) -> str:
    """Runs a program in a namespace."""
    return run("ip", "netns", "exec", namespace, *command)


def mac_of(sensor: int, is_network: bool) -> str:
    """Returns the address of an end of the cables of a sensor."""
    return f"02:00:00:00:{sensor:02x}:{1 if is_network else 2:02x}"


def ip(*words: str) -> None:
    """Runs `ip`."""
    run("ip", *words)


def end(process: subprocess.Popen[bytes], by: signal.Signals) -> None:
    """Ends a program, and waits for that."""
    if process.poll() is None:
        process.send_signal(by)
    process.wait()


def frames_of(file: Path) -> Counter[bytes]:
    """Returns the frames of a capture that have the host's address, as tcpdump reads them."""
    command = ["tcpdump", "-r", str(file), "-w", "-", f"host {HOST}"]
    read = subprocess.run(command, capture_output=True, check=False)
    if read.returncode != 0:
        fail(f"tcpdump cannot read {file}: {read.stderr.decode()}")
    found: Counter[bytes] = Counter()
    at = 24
    while at < len(read.stdout):
        captured, original = struct.unpack_from("=II", read.stdout, at + 8)
        if captured != original:
            fail(f"{file} has a frame that was cut")
        found[read.stdout[at + 16 : at + 16 + captured]] += 1
        at += 16 + captured
    return found


def talk(fleet: Fleet) -> None:
    """Lets the host speak with some sensors' networks, while others speak with all of them."""
    film = fleet.work / "www" / "film"
    film.parent.mkdir()
    film.write_bytes(os.urandom(300_000))
    for sensor in SENSORS:
        others = ["-i", f"to{sensor}", "--rate", "500pps", "--count", str(OTHERS), "--flows", "300"]
        others += ["--src", f"172.16.{sensor}.0/24", "--dst", f"10.0.{sensor}.0/24"]
        others += ["--proto", "udp,tcp", "--size", "60-600", "--seed", str(sensor)]
        fleet.start(f"gen-{sensor}", str(fleet.tapdeck), "gen", *others, namespace=fleet.hosts)
    print(f"at each of {len(SENSORS)} sensors, {OTHERS:,} packets of 254 hosts go by", flush=True)
    for sensor in SPEAKS_WITH:
        serve = ["python3", "-m", "http.server", "--bind", f"10.0.{sensor}.1", "8000"]
        serve += ["--directory", str(film.parent)]
        fleet.start(f"www-{sensor}", *serve, namespace=fleet.networks[sensor])
        url = f"http://10.0.{sensor}.1:8000/film"
        fetch = ["curl", "-sSf", "--retry", "50", "--retry-connrefused", "--retry-delay", "1"]
        fetch += ["--max-time", "100", "-o", str(fleet.work / "fetched"), url]
        within(fleet.hosts, *fetch)
        within(fleet.hosts, "ping", "-q", "-c", "5", "-i", "0.2", "-W", "5", f"10.0.{sensor}.1")
        print(f"{HOST} fetched {url} and was answered 5 pings", flush=True)
    for sensor in SENSORS:
        fleet.finish(f"gen-{sensor}")


def main() -> None:
    """Runs the demonstration."""
    options = argparse.ArgumentParser(prog="demo.py")
    options.add_argument("--build", type=Path, required=True, metavar="DIR")
    options.add_argument("--jars", type=Path, required=True, metavar="DIR")
    options.add_argument("--s3-server", type=Path, required=True, metavar="FILE")
    asked = options.parse_args()
    if os.geteuid() != 0:
        fail("recording needs root")
    tapdeck = asked.build.resolve() / "tapdeck"
    os.environ["PYTHONPATH"] = str(HERE)
    for by in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(by, signal.default_int_handler)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tapdeck-fleet-")))
        show(tapdeck, asked.jars, asked.s3_server, work, stack)


def show(tapdeck: Path, jars: Path, s3_server: Path, work: Path, stack: ExitStack) -> None:
    """Runs the demonstration in a directory."""
    title("A lake: its table's catalog in PostgreSQL, its files on S3")
    bucket_server = stack.enter_context(s3.server(s3_server, work))
    bucket_server.make_bucket("lake")
    os.environ |= bucket_server.environment
    database = stack.enter_context(postgres.server()).make("lake")
    directory = work / "lake"
    lake = Lake.init(directory, "iceberg", database, FILES)
    print(f"tapdeck-lake init --iceberg --server {database} --files {FILES} {directory}")

    title(f"{len(SENSORS)} sensors record, make flow tables, and ship")
    fleet = Fleet(tapdeck, work, stack)
    for sensor in SENSORS:
        fleet.begin(sensor)
    serve = [sys.executable, "-m", "tapdeck_lake", "serve", "--lake", str(directory)]
    fleet.start("serve", *serve, "--commit-every", "1", "--hosts-every", "5")
    for sensor in SPEAKS_WITH:
        see = ["tcpdump", "-i", f"to{sensor}", "--immediate-mode", "-U"]
        see += ["-w", str(work / f"sent-{sensor}.pcap")]
        fleet.start(f"tcpdump-{sensor}", *see, f"host {HOST}", namespace=fleet.hosts)
        fleet.until_says(f"tcpdump-{sensor}", "listening on")
    talk(fleet)

    title("The recorders end; what they closed comes to the lake")
    for sensor in SENSORS:
        fleet.stop(f"record-{sensor}")
    # Each frame that a recorder saw has passed the host's end of the cable by now.
    for sensor in SPEAKS_WITH:
        fleet.stop(f"www-{sensor}")
        fleet.stop(f"tcpdump-{sensor}")
    segments = {
        (f"sensor-{sensor}", path.stem)
        for sensor in SENSORS
        for path in (work / f"sensor-{sensor}" / "tape").glob("tapdeck-*.pcapng")
    }
    fleet.until(
        f"{len(segments)} segments are in the lake",
        lambda: all(lake.committed_us(*segment) is not None for segment in segments),
    )
    for name in [name for name in fleet.started if name.startswith(("flows", "ship", "serve"))]:
        fleet.stop(name)
    check = [sys.executable, "-m", "tapdeck_lake", "check", "--lake", str(directory)]
    print(f"tapdeck-lake check: {run(*check)}", end="")

    title(f"Where was {HOST}? Asked of Spark, on a master and two workers, and of DuckDB")
    (work / "spark").mkdir()
    cluster = stack.enter_context(spark.cluster(work / "spark"))
    session = spark.session(cluster.address, work / "spark", ":".join(map(str, jars.glob("*.jar"))))
    stack.callback(session.stop)
    add_to(session, lake)
    session.table(jobs.FLOWS).createOrReplaceTempView("flows")
    answer = [tuple(row) for row in session.sql(TOTALS).collect()]
    print("sensor        flows  packets    bytes")
    for sensor_name, flows, packets, size in answer:
        print(f"{sensor_name:12}{flows:>7,}{packets:>9,}{size:>9,}", flush=True)
    sql = [sys.executable, "-m", "tapdeck_lake", "sql", "--lake", str(directory), "--format", "csv"]
    of_duckdb = run(*sql, TOTALS).splitlines()[1:]
    same = of_duckdb == [",".join(map(str, row)) for row in answer]
    print("DuckDB gives the same answer" if same else f"DuckDB gives another: {of_duckdb}")
    if [row[0] for row in answer] != [f"sensor-{sensor}" for sensor in SPEAKS_WITH]:
        fail(f"{HOST} spoke with others than the sensors {SPEAKS_WITH}")

    title("Its packets, from S3")
    found = work / "found.pcapng"
    fetch = [sys.executable, "-m", "tapdeck_lake", "fetch", "--lake", str(directory)]
    fetch += ["--tapdeck", str(tapdeck), "-w", str(found)]
    run(*fetch, f"from flows where src_ip = '{HOST}' or dst_ip = '{HOST}'")
    sent: Counter[bytes] = Counter()
    for sensor in SPEAKS_WITH:
        sent += frames_of(work / f"sent-{sensor}.pcap")
    have = frames_of(found)
    print(f"tcpdump saw {sent.total():,} frames of {HOST}, and {have.total():,} came from S3")
    if not same or have != sent:
        fail(f"{(sent - have).total()} are missing, {(have - sent).total()} are others")
    print("each is, byte for byte, what was sent")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
