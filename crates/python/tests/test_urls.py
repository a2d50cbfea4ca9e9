"""A store at a URL gives what its copy in a directory gives, or says why it cannot."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tapdeck
from conftest import PATIENCE_S, Program


class Site(http.server.BaseHTTPRequestHandler):
    """A directory as nginx gives it with `autoindex_format json`, by ranges."""

    protocol_version = "HTTP/1.1"
    released = threading.Event()
    """Whether files are given; the listing always is."""
    waiting = threading.Semaphore(0)
    """Has one more for each request that waits for that."""
    released.set()

    def __init__(self, directory: Path, *arguments: object) -> None:
        self.directory = directory
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.directory / self.path.removeprefix("/tape/")
        if path == self.directory:
            names = [{"name": name.name, "type": "file"} for name in path.iterdir()]
            self.answer(200, json.dumps(names).encode())
            return
        if not self.released.is_set():
            self.waiting.release()
            self.released.wait(PATIENCE_S)
        if not path.is_file():
            self.answer(404, b"")
            return
        content = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert asked is not None
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first > last:
            self.answer(416, b"", f"bytes */{len(content)}")
            return
        told = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, content[first : last + 1], told)

    def answer(self, code: int, content: bytes, told: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        if told is not None:
            self.send_header("Content-Range", told)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serves a directory on loopback; gives its URL."""
    handler = functools.partial(Site, directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/tape/"
        server.shutdown()


@pytest.fixture(autouse=True)
def reader_in_path(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that reads URLs lies beside `tapdeck`."""
    monkeypatch.setenv("PATH", f"{program.path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def url(store: Path) -> Iterator[str]:
    with served(store) as url:
        yield url


def test_answers_are_those_of_the_directory(store: Path, url: str) -> None:
    here, there = tapdeck.open(store), tapdeck.open(url)
    assert there.path == url and repr(there) == f"tapdeck.open({url!r})"
    for expression in ("", "udp", "port 9999"):
        assert there.query(expression).to_arrow() == here.query(expression).to_arrow()
    packets = list(there.query(limit=3))
    assert [packet.data for packet in packets] == [p.data for p in here.query(limit=3)]
    assert there.flows(sensor="x").to_arrow() == here.flows(sensor="x").to_arrow()
    assert there.split(size=1 << 20) == here.split(size=1 << 20)
    assert there.segments() == here.segments()
    wanted, got = here.stat(), there.stat()
    assert got["dir"] == url and wanted["packets"] == got["packets"] > 0
    assert {**got, "dir": wanted["dir"]} == wanted


def test_segments_are_told_by_name(store: Path) -> None:
    names = tapdeck.open(store).segments()
    there = {path.name.split(".")[0] for path in store.glob("tapdeck-*.pcapng*")}
    assert names == sorted(there) and names
    assert set(tapdeck.open(store).flows().to_arrow()["segment"].to_pylist()) <= set(names)


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("s3://tape?x=1", tapdeck.QuestionError, "is no store: write s3://BUCKET"),
        ("ftp://host/tape", tapdeck.QuestionError, "is no store"),
        ("http://sensor.example.org/tape/", tapdeck.QuestionError, "without TLS"),
        ("http://127.0.0.1:9/tape/", tapdeck.StoreError, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_asked_is_told(url: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=re.escape(told)):
        tapdeck.open(url)


def test_keys_that_are_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with pytest.raises(tapdeck.QuestionError, match="set AWS_ACCESS_KEY_ID"):
        tapdeck.open("s3://bucket/sensor-1")


def test_ctrl_c_does_not_wait_for_a_server(url: str) -> None:
    there = tapdeck.open(url)
    Site.released.clear()

    def interrupt() -> None:
        if Site.waiting.acquire(timeout=PATIENCE_S):
            os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            there.stat()
        assert not Site.released.is_set(), "the server has said nothing yet"
    finally:
        Site.released.set()
        interrupter.join()
