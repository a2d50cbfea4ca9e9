"""A server of PostgreSQL of a test's own, on a loopback port, with a password."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

USER = "postgres"
"""The server's own user, and the database's: it does not run as root."""
PASSWORD = "as-good-as-any"
PATIENCE_S = 120.0


@dataclass
class Server:
    """Where the server is. It can be stopped, and started again."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def uri(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(self.uri(database), autocommit=True)

    def make(self, database: str) -> str:
        """Makes a database. Returns its URI."""
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
        return self.uri(database)

    def start(self) -> None:
        command = [str(programs() / "postgres"), "-D", str(self.directory / "data")]
        command += ["-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", f"unix_socket_directories={self.directory}", "-c", "fsync=off"]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, user=USER, group=USER, cwd=self.directory
            )
        patience = time.monotonic() + PATIENCE_S
        while True:
            with suppress(psycopg.OperationalError):
                self.connect("postgres").close()
                return
            is_late = time.monotonic() > patience or self.process.poll() is not None
            assert not is_late, (self.directory / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        if self.process is not None:
            # At once, as if it were killed, and nothing of it is left behind.
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None


def programs() -> Path:
    """Where Debian has the newest version's programs."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "there is no server of PostgreSQL: scripts/setup.sh --fleet"
    return max(found, key=lambda path: int(path.parts[4])).parent


@contextmanager
def server() -> Iterator[Server]:
    """Starts a server, and removes all of it in the end. Who asks it has its password from a file.

    Its directory is one that its user may reach.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tapdeck-pg-")))
        shutil.chown(directory, USER, USER)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        password = directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        passwords = directory / "pgpass"
        passwords.write_text(f"127.0.0.1:{port}:*:{USER}:{PASSWORD}\n")
        passwords.chmod(0o600)
        initdb = [str(programs() / "initdb"), "-D", str(directory / "data"), "-U", USER]
        initdb += ["-A", "scram-sha-256", f"--pwfile={password}", "--no-sync"]
        subprocess.run(
            initdb, check=True, stdout=subprocess.DEVNULL, user=USER, group=USER, cwd=directory
        )
        stack.enter_context(named("PGPASSFILE", str(passwords)))
        begun = Server(directory, port)
        stack.callback(begun.stop)
        begun.start()
        yield begun


@contextmanager
def named(name: str, value: str) -> Iterator[None]:
    """Sets a variable of the environment for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
