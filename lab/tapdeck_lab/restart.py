"""A capture process that ends while packets come, and the next one, which is started at once.

The packets are numbered, and `tapdeck check-traffic` says of all that the processes stored which
came and how often. So a packet that was lost at the change is told from one that was stored twice.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from .capture import Capture
from .methods import Counts, Failed
from .settings import Settings

SIGNALS = {
    "restart": signal.SIGTERM,
    "kill": signal.SIGKILL,
    "upgrade": signal.SIGTERM,
}
"""What ends the process, by the setting `interruption`."""


@contextmanager
def bpf_file_system(directory: Path) -> Iterator[None]:
    """Have a BPF file system in `directory/bpf`, and nothing of what is pinned there afterwards."""
    place = directory / "bpf"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


def unmount_stale(work: Path) -> None:
    """Unmount what a lab that was killed has left below its directory."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = Path(line.split()[1])
        if place.is_relative_to(work):
            subprocess.run(["umount", "--lazy", place], capture_output=True)


class Interruption:
    """Ends the capture process at a moment of the run, by a seed, and starts the next one.

    All of it is done on the lab's main thread: stenotype ends with the thread that started it.
    """

    def __init__(self, capture: Capture, settings: Settings, seed: int) -> None:
        self.capture = capture
        self.signal = SIGNALS[settings["interruption"]]
        self.delay_s = random.Random(seed).uniform(0.3, 0.5) * settings["seconds"]
        self.program: Path | None = None
        if settings["interruption"] == "upgrade":
            self.program = self._copy()
        self.ended = self.ready = self.mended = math.nan
        """When the one process had ended, when the other was ready, and when all that the first
        had left was mended, as time.monotonic()."""
        self._before = capture.bed.received()

    def _copy(self) -> Path:
        """Copies the program, as a new version of it is another file."""
        ((name, *_),) = self.capture.method.pipeline(self.capture.contexts[0])
        found = shutil.which(name)
        if not found:
            raise Failed(f"{name} is not there")
        directory = self.capture.context.directory / "next"
        directory.mkdir()
        return Path(shutil.copy2(found, directory))

    def take_place(self, generator: subprocess.Popen[str]) -> None:
        """Interrupt the capture while the generator runs.

        Raises
        ------
        Failed
            The next process was not ready, or packets ended before it was.
        """

        def wait_until(done: Callable[[], bool]) -> None:
            while not done() and generator.poll() is None:
                time.sleep(0.002)

        wait_until(lambda: self.capture.bed.received() > self._before)
        at = time.monotonic() + self.delay_s
        wait_until(lambda: time.monotonic() >= at)
        live = self._live()
        self.ended = self.capture.end_process(self.signal)
        # What is closed in order is whole before its process ends.
        left = [file for file in live if file.exists()]
        self.ready = self.capture.start_next(self.program)
        if generator.poll() is not None:
            raise Failed("packets ended before the next process was ready: set seconds to more")
        if live:
            wait_until(lambda: not any(file.exists() for file in left))
        if live and generator.poll() is None:
            self.mended = time.monotonic() if left else self.ended

    def _live(self) -> list[Path]:
        """Returns what the process is writing, where its files tell that by their names."""
        return list(self.capture.contexts[0].directory.rglob("*.live"))

    def metrics(self, pps: float, lost: float) -> dict[str, float]:
        """Returns what the interruption took.

        Parameters
        ----------
        pps : float
            Packets sent per second.
        lost : float
            How many of them are not in the output.
        """
        return {
            "unread_ms": 1e3 * (self.ready - self.ended),
            "lost_ms": 1e3 * lost / pps,
            "mended_ms": 1e3 * (self.mended - self.ended),
        }


def judge(capture: Capture, sent: dict[str, Any]) -> tuple[Counts, dict[str, float]]:
    """Hold all that the processes of a capture stored against what was sent.

    Returns
    -------
    Counts, dict of str to float
        What was captured, each packet once; and how many more were stored a second time and how
        many the processes say were lost.
    """
    report = check(capture, sent)
    context, method = capture.contexts[0], capture.method
    logs = capture.logs()
    counts = Counts(report["arrived"], ring_used=method.ring_used(context, logs))
    told = method.told_lost(context, logs)
    return counts, {"repeated": report["repeated"], "told": told}


def check(capture: Capture, sent: dict[str, Any]) -> dict[str, Any]:
    """Returns what `check-traffic` says of all that a capture stored."""
    context, method = capture.contexts[0], capture.method
    record = context.directory / "sent.json"
    record.write_text(json.dumps(sent))
    words = [context.build.tapdeck, "check-traffic", "--json", "--up-to-damage", "--sent", record]
    out = subprocess.run(
        [str(word) for word in (*words, *method.recording(context))],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(out.stdout)
    except ValueError as error:
        raise Failed(f"check-traffic: {out.stderr.strip()}") from error
    if report["damaged"]:
        raise Failed(f"{report['damaged']} packets are damaged")
    return cast(dict[str, Any], report)
