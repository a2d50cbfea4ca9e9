"""A server of S3, versitygw, that serves a directory: each directory in it is a bucket."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY, SECRET = "tapdeck", "a secret of some length"
PATIENCE_S = 60.0


@dataclass
class Server:
    """Where the server is, and what it serves."""

    endpoint: str
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What whoever asks it is told."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> Path:
        """Makes a bucket. Returns its directory."""
        command = ["curl", "-sS", "--fail-with-body", "-X", "PUT"]
        command += ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{KEY}:{SECRET}"]
        command += ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", f"{self.endpoint}/{name}"]
        subprocess.run(command, check=True)
        return self.directory / name


@contextmanager
def server(program: Path, work: Path) -> Iterator[Server]:
    """Starts the server over a directory that it makes in another, and ends it."""
    directory = work / "s3"
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (work / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "--port", address, "--quiet", "posix", str(directory)],
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=log,
            stderr=log,
        )
    try:
        patience = time.monotonic() + PATIENCE_S
        host, port = address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port))).close()
                break
            except ConnectionRefusedError:
                if time.monotonic() > patience or process.poll() is not None:
                    raise
            time.sleep(0.05)
        yield Server(f"http://{address}", directory)
    finally:
        process.kill()
        process.wait()
