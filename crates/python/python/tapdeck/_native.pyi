"""The native half of the module: `src/lib.rs`."""

from datetime import datetime
from os import PathLike
from typing import Self, final

__all__ = ["Packet", "Stream", "check", "flows", "parse_time", "query", "segments", "split", "stat"]

@final
class Packet:
    @property
    def time_ns(self) -> int: ...
    @property
    def time(self) -> datetime: ...
    @property
    def interface(self) -> str: ...
    @property
    def link_type(self) -> int: ...
    @property
    def direction(self) -> str | None: ...
    @property
    def original_length(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def shed(self) -> int: ...
    @property
    def data(self) -> bytes: ...

@final
class Stream:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Packet: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def end(
        self,
    ) -> tuple[int, bool, int, int, int, int, list[str], list[str]] | None: ...
    def is_over(self) -> bool: ...
    def failure(self) -> BaseException | None: ...
    def close(self) -> None: ...

def check(path: str | PathLike[str]) -> None: ...
def segments(path: str | PathLike[str]) -> list[str]: ...
def parse_time(text: str) -> int: ...
def query(
    path: str | PathLike[str],
    expression: str,
    *,
    after: int,
    before: int,
    community_id: str | None,
    interfaces: list[str],
    direction: str | None,
    inner: bool,
    limit: int | None,
) -> Stream: ...
def split(
    path: str | PathLike[str],
    expression: str,
    *,
    after: int,
    before: int,
    community_id: str | None,
    interfaces: list[str],
    direction: str | None,
    inner: bool,
    bytes: int,
) -> list[tuple[int, int]]: ...
def flows(
    path: str | PathLike[str],
    expression: str,
    *,
    after: int,
    before: int,
    sensor: str | None,
) -> Stream: ...
def stat(
    path: str | PathLike[str], *, after: int, before: int, top: int
) -> tuple[str, list[str]]: ...
