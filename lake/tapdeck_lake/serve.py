"""`tapdeck-lake serve`: ships, commits, rolls up, compacts and expires, in a loop, and counts it.

Each task has its interval, and one runs at a time, in the order of the list below. A task that
fails is told, counted, and tried again at its next time; whatever it had begun, the next one
settles. What is counted is given as OpenMetrics on a loopback address, with the time of each task's
last success, which is what an alert should look at. Whoever asks to stop waits for the task that
runs; who kills instead loses nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import commit, compact, expire, hosts
from .catalog import Lake
from .errors import FAILURES, LakeError, told
from .ship import Shipper

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass
class Task:
    """What is done again and again.

    `do` returns how many things it found wrong.
    """

    name: str
    every_s: float
    do: Callable[[], int]
    next_s: float = 0.0
    runs: int = 0
    faults: int = 0
    seconds: float = 0.0
    succeeded_s: float = 0.0


@dataclass
class Page:
    """What was last counted in the lake, for whoever asks meanwhile."""

    text: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, text: str) -> None:
        """Takes what is told from now on."""
        with self.lock:
            self.text = text

    def get(self) -> str:
        """Returns what is told."""
        with self.lock:
            return self.text


@dataclass
class Plan:
    """How often what is done, in seconds, and for how many days rows stay."""

    ship_s: float = 1.0
    commit_s: float = 60.0
    hosts_s: float = 3600.0
    compact_s: float = 86_400.0
    expire_s: float = 3600.0
    keep_days: int | None = None


def tasks_of(lake: Lake, shippers: list[Shipper], plan: Plan) -> list[Task]:
    """Returns what is to be done, in the order in which it is done where several are due."""

    def ship_all() -> int:
        faults = 0
        for shipper in shippers:
            try:
                faults += shipper.look().faults
            except FAILURES as error:
                shipper.tell(told(error))
                faults += 1
        return faults

    def roll_up() -> int:
        hosts.hosts(lake)
        return 0

    def put_together() -> int:
        compact.compact(lake)
        return 0

    def remove() -> int:
        return expire.expire(lake, keep_days=plan.keep_days).faults

    tasks = [
        Task("commit", plan.commit_s, lambda: commit.commit(lake).faults),
        Task("hosts", plan.hosts_s, roll_up),
        Task("compact", plan.compact_s, put_together),
        Task("expire", plan.expire_s, remove),
    ]
    return [Task("ship", plan.ship_s, ship_all), *tasks] if shippers else tasks


def run(task: Task) -> None:
    """Runs a task once. What goes wrong is told and counted."""
    began = time.monotonic()
    faults = 1
    try:
        faults = task.do()
    except FAILURES as error:
        print(f"tapdeck-lake: {task.name}: {told(error)}", file=sys.stderr, flush=True)
    task.runs += 1
    task.faults += faults
    task.seconds += time.monotonic() - began
    if not faults:
        task.succeeded_s = time.time()
    task.next_s = time.monotonic() + task.every_s


Values = list[tuple[str, float]]
"""Labels in braces, and the value of each."""


def family(name: str, kind: str, says: str, values: Values) -> list[str]:
    """Returns the lines of one metric."""
    end = "_total" if kind == "counter" else ""
    return [
        f"# TYPE tapdeck_lake_{name} {kind}",
        f"# HELP tapdeck_lake_{name} {says}",
        *(f"tapdeck_lake_{name}{end}{labels} {value}" for labels, value in values),
    ]


def task_metrics(tasks: list[Task]) -> list[str]:
    """Returns what is counted of tasks."""

    def of_tasks(value: Callable[[Task], float]) -> Values:
        return [(f'{{task="{task.name}"}}', value(task)) for task in tasks]

    faults = "Faults that tasks have found, each told on standard error."
    success = "When a task last ended without a fault, in seconds since 1970; 0 before."
    return [
        *family("runs", "counter", "Times that a task ran.", of_tasks(lambda task: task.runs)),
        *family("faults", "counter", faults, of_tasks(lambda task: task.faults)),
        *family(
            "task_seconds",
            "counter",
            "Time that tasks have taken.",
            of_tasks(lambda task: round(task.seconds, 3)),
        ),
        *family("success_time_seconds", "gauge", success, of_tasks(lambda task: task.succeeded_s)),
    ]


def lake_metrics(lake: Lake) -> list[str]:
    """Returns what is counted in a lake."""
    columns = "sensor, count(*), sum(rows - rows_expired), sum(packets_in_rows), sum(lost), "
    columns += "sum(unseen), max(number) - min(number) + 1 - count(distinct number)"
    with lake.table.reading():
        files = {kind: lake.files(kind) for kind in ("flows", "hosts")}
        found = lake.db.execute(f"select {columns} from segments group by sensor").fetchall()
    counts: Values = [(f'{{kind="{kind}"}}', len(there)) for kind, there in files.items()]
    sizes: Values = [
        (f'{{kind="{kind}"}}', sum(file.bytes for file in there)) for kind, there in files.items()
    ]
    lines = family("files", "gauge", "Files of the table and of its roll-up.", counts)
    lines += family("bytes", "gauge", "Length of these files.", sizes)
    for at, (name, says) in enumerate(
        [
            ("segments", "Segments in the table."),
            ("rows", "Rows in the table."),
            ("packets", "Packets that rows were made of, expired ones too."),
            ("lost_packets", "Packets that the sensor's recorder dropped, as segments tell."),
            ("unseen_packets", "Packets that went unseen, as segments tell."),
            ("missing_segments", "Numbers of segments between others that never came."),
        ],
        1,
    ):
        values = [(f"{{sensor={label(row[0])}}}", row[at]) for row in found]
        lines += family(name, "gauge", says, values)
    return lines


def label(text: str) -> str:
    """Returns a text as the value of a label."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'


def listen(address: str, page: Page) -> ThreadingHTTPServer:
    """Answers GET /metrics at a loopback address. Raises LakeError where that cannot be."""
    host, _, port = address.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
        number = int(port)
    except ValueError:
        raise LakeError(f"{address} is no ADDRESS:PORT, such as 127.0.0.1:9470") from None
    if not is_loopback:
        raise LakeError(
            f"{address} is no loopback address, and what is told is not encrypted: name one such "
            "as 127.0.0.1:9470, and put a proxy before it"
        )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/metrics"
            body = page.get().encode() if is_known else b"there is /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", OPEN_METRICS if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = Server((host.strip("[]"), number), Handler)
    except OSError as error:
        raise LakeError(f"cannot listen at {address}: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def whole(*parts: list[str]) -> str:
    """Returns lines as a text that OpenMetrics calls complete."""
    return "\n".join([*(line for part in parts for line in part), "# EOF", ""])


def serve(lake: Lake, tasks: list[Task], address: str, stop: threading.Event) -> None:
    """Runs tasks when they are due, until it is asked to stop."""
    page = Page()
    of_lake: list[str] = []

    def count() -> int:
        of_lake[:] = lake_metrics(lake)
        return 0

    metrics = Task("metrics", 0, count)
    run(metrics)
    page.set(whole(task_metrics([*tasks, metrics]), of_lake))
    server = listen(address, page) if address else None
    try:
        while not stop.is_set():
            due = [task for task in tasks if task.next_s <= time.monotonic()]
            for task in due:
                run(task)
                # What is shipped counts when it is committed.
                if task.name != "ship":
                    run(metrics)
                page.set(whole(task_metrics([*tasks, metrics]), of_lake))
                if stop.is_set():
                    break
            stop.wait(max(0.0, min(task.next_s for task in tasks) - time.monotonic()))
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
