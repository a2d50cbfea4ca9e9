"""A capture method at work.

Start it, wait until it is seen to be ready, wait until it has nothing left to do, end it as Ctrl-C
does, count what it left behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from . import interrupt, samplers
from .methods import LAB, Context, CountOnly, Counts, Drop, Failed, Method
from .testbed import Bed, run

READY_S = 60
"""How long a method may take to become ready, s."""
SETTLE_S = 120
"""How long a method may take to write what it has, s."""

Process = subprocess.Popen[bytes]


class Capture:
    """A method at work: a context manager, at whose end none of the method's processes is left."""

    def __init__(self, method: Method, bed: Bed, context: Context) -> None:
        self.method, self.bed, self.context = method, bed, context
        self.processes: list[list[Process]] = []
        self.contexts: list[Context] = []
        self.service: Process | None = None
        self.command = ""

    def __enter__(self) -> Capture:
        try:
            if isinstance(self.method, Drop):
                self._attach_drop()
            if not isinstance(self.method, CountOnly):
                self._start_service()
                for i in range(self.context.settings["apps"]):
                    self._start(self.context.for_app(i))
                self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A process that is killed ends at once, so this is short.
        with interrupt.held_back():
            for process in self._all():
                if process.poll() is None:
                    process.kill()
                process.wait()
        if isinstance(self.method, Drop):
            words = f"ip link set dev {self.context.device} xdp off".split()
            run(self.bed.capture_command(words))

    def _all(self) -> list[Process]:
        service = [self.service] if self.service else []
        return [process for pipeline in self.processes for process in pipeline] + service

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._all()]

    def _attach_drop(self) -> None:
        program = LAB / "build" / "drop.o"
        set_xdp = f"ip link set dev {self.context.device} xdp".split()
        run(self.bed.capture_command([*set_xdp, "obj", str(program), "sec", "xdp"]))
        self.command = shlex.join([*set_xdp, "obj", program.name, "sec", "xdp"])

    def _start_service(self) -> None:
        words = self.method.service(self.context)
        if not words:
            return
        self.command = shlex.join(words)
        with interrupt.held_back():
            service = self._spawn(
                words, self.context, "service", subprocess.DEVNULL, subprocess.DEVNULL
            )
            self.service = service
        log = self.context.directory / "service"

        def ready() -> bool:
            self._check()
            return self.method.is_ready(service.pid, log.read_text(errors="replace"))

        self._wait("ready", READY_S, ready)

    def _spawn(
        self,
        words: list[str],
        context: Context,
        log: str,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
    ) -> Process:
        cpus = context.settings["capture_cpu"]
        pin = ["taskset", "-c", cpus] if cpus else []
        with open(context.file(log), "w") as errors:
            return subprocess.Popen(
                self.bed.capture_command([*pin, *words]),
                stdin=stdin,
                stdout=stdout,
                stderr=errors,
                cwd=LAB,
                env=os.environ | self.method.environment(context),
                # Ctrl-C is for the lab, which ends them in its own time.
                start_new_session=True,
            )

    def _start(self, context: Context) -> None:
        pipeline = self.method.pipeline(context)
        if not self.contexts:
            command = " | ".join(shlex.join(words) for words in pipeline)
            self.command = f"{self.command} & {command}" if self.command else command
        self.contexts.append(context)
        started: list[Process] = []
        self.processes.append(started)
        before: IO[bytes] | None = None
        with (context.directory / "stdout").open("wb") as out:
            for i, words in enumerate(pipeline):
                stdout = out if i + 1 == len(pipeline) else subprocess.PIPE
                with interrupt.held_back():
                    process = self._spawn(
                        words, context, f"log{i}", before or subprocess.DEVNULL, stdout
                    )
                    started.append(process)
                # A reader has a copy of its own; while the lab holds one, the reader sees no end.
                if before:
                    before.close()
                before = process.stdout

    def _log(self, i: int) -> str:
        """Returns what the present process of an application has said."""
        context = self.contexts[i]
        parts = [
            context.file("log0"),
            *([context.file("stdout")] if len(self.processes[i]) == 1 else []),
        ]
        return "".join(p.read_text(errors="replace") for p in parts if p.exists())

    def logs(self) -> list[str]:
        """Returns what each process of the only application has said, one after the other."""
        last = self.contexts[0]
        files = [replace(last, turn=turn).file("log0") for turn in range(last.turn + 1)]
        return [file.read_text(errors="replace") for file in files]

    def end_process(self, signal_number: int) -> float:
        """End the process of the only application. Returns when it had ended, time.monotonic()."""
        ((process,),) = self.processes
        process.send_signal(signal_number)
        _wait_for_end(process)
        return time.monotonic()

    def start_next(self, program: Path | None) -> float:
        """Start the next process of the only application.

        Parameters
        ----------
        program : Path or None
            What is started in the place of the program that the method names.

        Returns
        -------
        float
            When it was ready, time.monotonic().
        """
        context = self.contexts[0].after()
        (words,) = self.method.pipeline(context)
        if program:
            words[0] = str(program)
        with context.file("stdout").open("wb") as out:
            process = self._spawn(words, context, "log0", subprocess.DEVNULL, out)
        self.contexts[0], self.processes[0] = context, [process]
        self._wait_until_ready()
        return time.monotonic()

    def _wait(self, what: str, seconds: float, done: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                late = f"{self.method.name} was not {what} within {seconds:.0f} s"
                raise Failed(f"{late}: {self._last_words()}")
            time.sleep(0.002)

    def _last_words(self) -> str:
        said = [
            line for i in range(len(self.processes)) for line in self._log(i).strip().splitlines()
        ]
        if self.service:
            said = (self.context.directory / "service").read_text(
                errors="replace"
            ).strip().splitlines() + said
        errors = [line for line in said if "error" in line.lower()]
        return (errors or said or ["it said nothing"])[-1][:300]

    def _check(self) -> None:
        for process in self._all():
            if process.poll() is not None:
                raise Failed(
                    f"{self.method.name} ended with {process.returncode}: {self._last_words()}"
                )

    def _wait_until_ready(self) -> None:
        def ready() -> bool:
            self._check()
            return all(
                self.method.is_ready(p[0].pid, self._log(i)) for i, p in enumerate(self.processes)
            )

        self._wait("ready", READY_S, ready)

    def settle(self) -> None:
        """Wait until the method has done nothing for longer than it holds packets back."""
        done, since, looked = self._work_done(), time.monotonic(), 0.0

        def idle() -> bool:
            nonlocal done, since, looked
            self._check()
            now = time.monotonic()
            if now - looked >= 0.05:
                was, done = done, self._work_done()
                # Less than 5 % of a core is what waiting takes. Who waits for a CPU is not idle.
                if done - was > 0.05 * max(now - looked, 0.05) or (
                    not self.method.polls and samplers.is_at_work(self.pids)
                ):
                    since = now
                looked = now
            return now - since > self.method.holds_back_s

        if self.pids:
            self._wait("idle", SETTLE_S, idle)

    def _work_done(self) -> float:
        """Returns the CPU time used so far, s, or of a method that polls the bytes written."""
        if not self.method.polls:
            return samplers.used(self.pids).cpu_s
        files = (file for c in self.contexts for file in c.directory.rglob("*") if file.is_file())
        return float(
            sum(
                file.stat().st_size for file in files if not file.name.startswith(("log", "stdout"))
            )
        )

    def stop(self) -> None:
        """End the method."""
        for pipeline in self.processes:
            pipeline[0].send_signal(signal.SIGINT)
        if self.method.stays:
            self._wait(
                "done",
                SETTLE_S,
                lambda: all(self.method.is_done(self._log(i)) for i in range(len(self.processes))),
            )
            for process in self._all():
                process.kill()
        for process in self._all():
            if process is self.service:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(SETTLE_S)
            except subprocess.TimeoutExpired as error:
                raise Failed(f"{self.method.name} did not end: {self._last_words()}") from error

    def counts(self) -> list[Counts]:
        """Count what each application has, once the method was stopped."""
        return [self.method.count(context, self._log(i)) for i, context in enumerate(self.contexts)]


def _wait_for_end(process: Process) -> None:
    """Wait until a process has ended, without a look now and then: the moment is measured.

    Raises
    ------
    Failed
        It has not ended within `SETTLE_S`.
    """
    with contextlib.closing(select.epoll()) as ends:
        descriptor = os.pidfd_open(process.pid)
        try:
            ends.register(descriptor, select.EPOLLIN)
            if not ends.poll(SETTLE_S):
                raise Failed(f"process {process.pid} did not end")
        finally:
            os.close(descriptor)
    process.wait()
