"""What a sensor of a fleet does beside recording: flow tables, and their way to a lake.

`tapdeck flows --watch` makes tables of closed segments, and `tapdeck-lake ship --watch` delivers
them, both as docs/FLEET.md has it.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from . import interrupt
from .build import Build
from .methods import LAB, Failed

PROGRAM = LAB.parent / "lake" / "tapdeck-lake"
"""The program of the lake, which is of the same revision as the lab."""
SENSOR = "lab"
PATIENCE_S = 60.0
"""How long after the last packet the first segment may take to be shipped, and both to end, s."""


def missing(program: Path) -> str:
    """Returns what must be set up before the lake's program runs, or nothing.

    An environment is whole, and has the versions of today, where the list of versions is in it,
    which scripts/setup.sh puts there last.
    """
    wanted = program.with_name("requirements.txt")
    venv = program.with_name(".venv")
    there = venv / wanted.name
    if there.exists() and there.read_bytes() == wanted.read_bytes():
        return ""
    return f"{venv} is not there, or of other versions (scripts/setup.sh --fleet)"


class Fleet:
    """Who makes flow tables of a recording and who ships them, on the CPUs of the capture."""

    def __init__(self, build: Build, program: Path, store: Path, cpus: str) -> None:
        self._directory, self._store = store.parent, store
        self._flows, self._lake = store.parent / "flows", store.parent / "lake"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._meanwhile: dict[str, float] = {}
        pin = ["taskset", "-c", cpus] if cpus else []
        flows = ["flows", "--dir", str(store), "-o", str(self._flows), "--sensor", SENSOR]
        ship = ["ship", "--flows", str(self._flows), "--lake", str(self._lake)]
        self._commands = {
            "tapdeck flows": [*pin, str(build.tapdeck), *flows, "--watch"],
            "tapdeck-lake ship": [*pin, str(program), *ship, "--watch"],
        }
        # Who ships may begin before the first table is made.
        self._flows.mkdir()
        made = subprocess.run([program, "init", self._lake], capture_output=True, text=True)
        if made.returncode:
            raise Failed(f"tapdeck-lake init ended with {made.returncode}: {made.stderr.strip()}")

    def start(self) -> None:
        """Begin both."""
        for name, command in self._commands.items():
            with interrupt.held_back(), self._log(name).open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    # Ctrl-C is for the lab.
                    start_new_session=True,
                )

    def note(self) -> None:
        """Note what was done while packets came."""
        self._meanwhile = self._done()

    def deliver(self, lost: float) -> None:
        """Wait until a segment has been shipped, and end both.

        A run may be too short for that; what was done after it is in no metric.

        Raises
        ------
        Failed
            One of them ended by itself or with an error, or did nothing. It also says how many
            packets were lost.
        """
        try:
            self._deliver()
        except Failed as why:
            raise Failed(f"{why}; {lost:,.0f} packets were lost") from None

    def _deliver(self) -> None:
        patience = time.monotonic() + PATIENCE_S
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise Failed(self._ended(name))
            done = self._done()
            if done["shipped"]:
                break
            if time.monotonic() > patience:
                idle = "tapdeck-lake ship shipped" if done["tables"] else "tapdeck flows made"
                raise Failed(f"{idle} nothing, of {done['segments']:.0f} closed segments")
            time.sleep(0.02)
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)
        for name, process in self._processes.items():
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired as late:
                raise Failed(f"{name} did not end within {PATIENCE_S:.0f} s") from late
            if code:
                raise Failed(self._ended(name))

    def stop(self) -> None:
        """Kill what has not ended."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def metrics(self) -> dict[str, float]:
        """Returns how many segments were closed while packets came, made into tables, shipped."""
        return self._meanwhile

    def _log(self, name: str) -> Path:
        return self._directory / f"{name.replace(' ', '-')}.log"

    def _ended(self, name: str) -> str:
        said = self._log(name).read_text(errors="replace").strip().rpartition("\n")[2]
        return f"{name} ended with {self._processes[name].returncode}: {said or 'it said nothing'}"

    def _done(self) -> dict[str, float]:
        # The first file of a segment has the segment's name, and gets it when all are whole.
        closed = {file.stem for file in self._store.glob("*.pcapng")}
        made = closed & {file.stem for file in self._flows.glob("*.parquet")}
        shipped = made & {file.stem for file in self._lake.glob("landed/*/*.parquet")}
        return {"segments": len(closed), "tables": len(made), "shipped": len(shipped)}
