#!/usr/bin/env python3
"""Run the workspace's test programs, and other commands, several at a time.

    scripts/run-tests.py PROGRAMS TIMEOUT_S [COMMAND...]

`cargo test` runs one program after the other, and most tests wait for other processes for most of
their time. What a program prints is printed as a whole when the program has ended. One that takes
longer than TIMEOUT_S seconds is ended, and fails. As with `cargo test`, a program runs in the
directory of its package. A COMMAND, which is one argument each, runs where this does.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Program:
    """What runs tests: its name, the command, and the directory that it runs in."""

    name: str
    command: list[str]
    directory: Path


@dataclass
class Ended:
    """How a program ended: its exit status, what it printed, and how long it took."""

    program: Program
    status: int
    output: str
    seconds: float


def build() -> list[Program]:
    """Builds the test programs and returns them. Exits as cargo does where that fails."""
    command = ["cargo", "test", "--workspace", "--tests", "--no-run"]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit(built.returncode)
    programs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            name = os.path.relpath(message["target"]["src_path"])
            package = Path(message["manifest_path"]).parent
            programs.append(Program(name, [message["executable"]], package))
    if not programs:
        sys.exit("error: cargo has built no test program, so nothing was tested")
    return programs


def run(program: Program, timeout_s: float) -> Ended:
    """Runs a program to its end."""
    began = time.monotonic()
    command = [
        "timeout",
        "--foreground",
        "--verbose",
        str(timeout_s),
        *program.command,
    ]
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(program.directory)}
    ended = subprocess.run(
        command,
        cwd=program.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Ended(program, ended.returncode, ended.stdout, time.monotonic() - began)


def main() -> int:
    """Runs all and says which failed."""
    at_once, timeout_s = int(sys.argv[1]), float(sys.argv[2])
    here = Path.cwd()
    others = [Program(command, shlex.split(command), here) for command in sys.argv[3:]]
    # The commands take longest, so they begin first.
    programs = others + build()
    failed = []
    pool = ThreadPoolExecutor(at_once)
    try:
        runs = [pool.submit(run, program, timeout_s) for program in programs]
        for done in as_completed(runs):
            ended = done.result()
            name = ended.program.name
            print(
                f"     Running {name} ({ended.seconds:.0f} s)\n{ended.output}",
                flush=True,
            )
            if ended.status != 0:
                failed.append(name)
    except KeyboardInterrupt:
        return 130
    finally:
        # After Ctrl-C, which the programs that run have got as well, no other is to begin.
        pool.shutdown(cancel_futures=True)
    for name in failed:
        print(f"error: {name} failed", file=sys.stderr)
    return 101 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
