"""Who waits for an answer holds nobody up, hears Ctrl-C, and needs little memory."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tapdeck
from conftest import PATIENCE_S, wait_for, write_pcap

READ = {
    "iterate": "list(answer)",
    "pyarrow": "answer.to_arrow()",
    "polars": "answer.to_polars()",
    "reader": "answer.to_reader().read_all()",
    "flows": "store.flows('arp').to_arrow()",
    "stat": "store.stat()",
}

CHILD = """
import sys, threading, time
import pyarrow, polars
import tapdeck

def tick():
    while True:
        print("tick", flush=True)
        time.sleep(0.01)

store = tapdeck.open(sys.argv[1])
answer = store.query("arp")
try:
    print("reads", flush=True)
    if sys.argv[2] == "ticks":
        threading.Thread(target=tick, daemon=True).start()
    {read}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(7)
except pyarrow.ArrowException as error:
    # A reader of pyarrow itself knows errors of a stream by their texts alone.
    assert sys.argv[3] == "reader" and "stopped by KeyboardInterrupt" in str(error)
    print("interrupted", flush=True)
    sys.exit(7)
print("done", flush=True)
"""


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capture files that nobody reads to their end: one, by a thousand names."""
    directory = tmp_path_factory.mktemp("endless")
    first = directory / "first.pcap"
    write_pcap(first, ((10**18 + n, bytes(100)) for n in range(1_000_000)))
    for number in range(1000):
        (directory / f"again-{number}.pcap").hardlink_to(first)
    return directory


@contextlib.contextmanager
def reader(place: Path, how: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Start a child that reads an answer, and wait until its threads are at work."""
    command = [sys.executable, "-c", CHILD.format(read=READ[how]), str(place), mode, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        # Who would wait for the end of the files fails in place of that.
        end = threading.Timer(PATIENCE_S, child.kill)
        end.start()
        try:
            assert child.stdout is not None and child.stdout.readline() == "reads\n"
            begun = worked(child.pid)
            wait_for(lambda: worked(child.pid) > begun + 20)
            yield child
        finally:
            end.cancel()
            child.kill()


def worked(process: int) -> int:
    """Return how long threads of the module have run, in clock ticks."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        # Behind the name, which stands in parentheses, user and system time are the 12th and 13th.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith("tapdeck"):
                total += sum(map(int, rest.split()[11:13]))
    return total


@pytest.mark.parametrize("how", READ)
def test_ctrl_c_ends_the_waiting(how: str, endless: Path) -> None:
    with reader(endless, how, "alone") as child:
        child.send_signal(signal.SIGINT)
        assert child.stdout is not None and child.stdout.readline() == "interrupted\n"
        assert child.wait(PATIENCE_S) == 7


@pytest.mark.parametrize("how", READ)
def test_other_threads_run_meanwhile(how: str, endless: Path) -> None:
    with reader(endless, how, "ticks") as child:
        assert child.stdout is not None
        for _ in range(200):
            assert child.stdout.readline() == "tick\n"
        at_work = worked(child.pid)
        wait_for(lambda: worked(child.pid) > at_work + 10)


MEASURE = """
import resource, sys
import pyarrow
import tapdeck

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

store = tapdeck.open(sys.argv[1])
list(store.query(limit=1))
before = peak()
answer = store.query()
packets = sum(1 for _ in answer) if sys.argv[2] == "iterate" else sum(
    batch.num_rows for batch in answer.to_reader()
)
print(packets, peak() - before)
"""


@pytest.mark.parametrize("how", ["iterate", "reader"])
def test_an_answer_needs_memory_for_a_few_batches(how: str, tmp_path: Path) -> None:
    place = tmp_path / "large.pcap"
    write_pcap(place, ((10**18 + n, bytes(1500)) for n in range(200_000)))
    assert place.stat().st_size > 300_000_000
    command = [sys.executable, "-c", MEASURE, str(place), how]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    packets, grown = map(int, done.stdout.split())
    assert packets == 200_000
    assert grown < 64 << 20


def threads() -> list[str]:
    """Return the names of the module's threads in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("tapdeck")]


def test_nothing_stays_of_an_answer_that_was_given_up(tmp_path: Path) -> None:
    place = tmp_path / "large.pcap"
    write_pcap(place, ((10**18 + n, bytes(100)) for n in range(500_000)))
    with tapdeck.open(place).query() as answer:
        packets = iter(answer)
        next(packets)
        assert threads()
    wait_for(lambda: not threads())
    with pytest.raises(tapdeck.TapdeckError, match="given up"):
        next(packets)


FORK = """
import os, signal, sys
import tapdeck

store = tapdeck.open(sys.argv[1])
answer = store.query()
reader = answer.to_reader()
first = next(iter(answer))
child = os.fork()
if child == 0:
    # Who waits for what never comes is ended by that.
    signal.alarm(60)
    for read in (lambda: next(answer), answer.to_arrow, answer.to_polars, reader.read_all):
        try:
            read()
        except Exception as error:
            assert "ask again in this one" in str(error), error
            print(isinstance(error, tapdeck.TapdeckError))
    answer.close()
    assert next(iter(store.query())).time_ns == first.time_ns
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(1 + sum(1 for _ in answer), flush=True)
"""


def test_a_forked_process_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "large.pcap"
    write_pcap(place, ((10**18 + n, bytes(100)) for n in range(300_000)))
    command = [sys.executable, "-c", FORK, str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True", "False", "300000"]
