"""Readers of a recording at the gateway: many connections that ask for packets without end."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from pathlib import Path

from .build import Build
from .methods import Failed

READERS = 50
"""Connections at once."""
PACKETS = 20_000
"""Packets of an answer."""
PATIENCE_S = 10.0
"""How long a gateway may take to begin."""

CONFIG = """\
audit = "{directory}/audit.jsonl"

[[listen]]
unix = "{directory}/gateway.sock"
user = "lab"

[[store]]
name = "tape"
directory = "{store}"

[[role]]
name = "all"
kind = "reader"
questions = {readers}

[[user]]
name = "lab"
role = "all"
"""


class Readers(threading.Thread):
    """A gateway, and readers that ask it for packets over and over.

    Both run on the CPUs of the capture. The readers are one process.
    """

    def __init__(self, build: Build, store: Path, cpus: str, delay_s: float) -> None:
        super().__init__(daemon=True)
        self.answers: list[tuple[float, float, int]] = []
        """When each was asked (time.monotonic()), how long it took, and its bytes."""
        self.failed = ""
        directory = store.parent
        self._socket = directory / "gateway.sock"
        config = directory / "gateway.toml"
        config.write_text(CONFIG.format(directory=directory, store=store, readers=READERS))
        pin = ["taskset", "-c", cpus] if cpus else []
        self._gateway = [*pin, str(build.gateway), "--config", str(config)]
        question = f"http://localhost/v1/packets?store=tape&limit={PACKETS}#[1-1000000]"
        self._readers = [
            *[*pin, "curl", "--silent", "--no-progress-meter"],
            *["--parallel", "--parallel-immediate", "--parallel-max", str(READERS)],
            *["--unix-socket", str(self._socket), "--output", "/dev/null"],
            # Standard error is not buffered, so each answer is told when it has ended.
            *["--write-out", "%{stderr}%{http_code} %{time_total} %{size_download}\n", question],
        ]
        self._delay_s = delay_s
        self._over = threading.Event()

    def run(self) -> None:
        self._over.wait(self._delay_s)
        if self._over.is_set():
            return
        with subprocess.Popen(self._gateway, stderr=subprocess.PIPE, text=True) as gateway:
            try:
                self._ask(gateway)
            finally:
                gateway.terminate()

    def _ask(self, gateway: subprocess.Popen[str]) -> None:
        patience = time.monotonic() + PATIENCE_S
        while not self._listens():
            if gateway.poll() is not None or time.monotonic() > patience:
                said = gateway.stderr.read() if gateway.stderr and gateway.poll() else "nothing"
                self.failed = f"tapdeck-gateway did not begin, and said: {said.strip()}"
                return
            time.sleep(0.01)
        with subprocess.Popen(self._readers, stderr=subprocess.PIPE, text=True) as readers:
            ending = threading.Thread(target=self._end, args=(readers,), daemon=True)
            ending.start()
            for line in readers.stderr or ():
                if self._over.is_set():
                    break
                code, *numbers = line.split()
                if code != "200":
                    self.failed = self.failed or f"a reader was told {line.strip()}"
                    continue
                took, size = map(float, numbers)
                self.answers.append((time.monotonic() - took, took, int(size)))

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def _end(self, readers: subprocess.Popen[str]) -> None:
        self._over.wait()
        readers.kill()

    def stop(self) -> None:
        """End them; an answer that is under way does not count. Raises Failed if one was none."""
        self._over.set()
        if self.is_alive():
            self.join()
        if self.failed:
            raise Failed(self.failed)

    def metrics(self) -> dict[str, float]:
        """Returns what they were answered."""
        took = [took for _, took, _ in self.answers]
        return {
            "queries": len(took),
            "query_ms": 1e3 * sum(took) / len(took) if took else float("nan"),
            "answered_mib": sum(size for _, _, size in self.answers) / 2**20,
        }
