"""How fast is the module beside `tapdeck query`? Both read the same stores, by turns.

The program writes pcapng to /dev/null, in a process of its own whose start counts. The module makes
batches of Arrow, a whole table, or packets one by one. Told are medians of the time that passed and
of processor time, and what these are of the program's. Records its stores over a cable, as root.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tapdeck

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from conftest import Program, record_generated

# What is recorded: a name, and what `tapdeck gen` is told of it for so many packets.
LOADS = {
    "64 bytes": (["--size", "64", "--rate", "200kpps"], 10),
    "1514 bytes": (["--size", "1514", "--rate", "50kpps"], 1),
}


def main() -> None:
    """Measure, and print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="where cargo left the program")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--packets", type=int, default=200_000, help="of 1514 bytes")
    flags = parser.parse_args()
    program = Program(flags.build.resolve() / "tapdeck")
    for name, (gen, factor) in LOADS.items():
        with tempfile.TemporaryDirectory() as directory:
            store = Path(directory) / "store"
            count = str(flags.packets * factor)
            record = ["--hook", "tcx", "--ring-bytes", "256MiB"]
            record_generated(program, store, record, [*gen, "--flows", "1000", "--count", count])
            measure(name, program, store, flags.runs)


def measure(name: str, program: Program, store: Path, runs: int) -> None:
    """Measure the ways to read a store by turns, and print what came of it."""
    opened = tapdeck.open(store)

    def ask() -> int:
        command = [program.path, "query", "--dir", store, "-w", "-"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return 0

    ways: dict[str, Callable[[], int]] = {
        "tapdeck query -w -": ask,
        "to_reader()": lambda: sum(batch.num_rows for batch in opened.query().to_reader()),
        "to_arrow()": lambda: opened.query().to_arrow().num_rows,
        "for packet in": lambda: sum(1 for _ in opened.query()),
    }
    passed: dict[str, list[float]] = {way: [] for way in ways}
    used: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        for way, read in ways.items():
            began, before = time.perf_counter(), processor_s()
            read()
            # In the first turn the store comes into memory.
            if turn > 0:
                passed[way].append(time.perf_counter() - began)
                used[way].append(processor_s() - before)
    base_s, base_used = (statistics.median(of["tapdeck query -w -"]) for of in (passed, used))
    print(f"\n{name}, medians of {runs}\n\n| | s | of query | processor, s | of query |")
    print("| --- | --- | --- | --- | --- |")
    for way in ways:
        seconds, cpu = statistics.median(passed[way]), statistics.median(used[way])
        ratios = (seconds / base_s, cpu / base_used)
        print(f"| {way} | {seconds:.2f} | {ratios[0]:.2f} | {cpu:.2f} | {ratios[1]:.2f} |")


def processor_s() -> float:
    """Return how long this process, all of its threads, and its children have run."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
