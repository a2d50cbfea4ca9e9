"""Where the files of a lake lie: on a disk, or on S3.

A file has a name from there on, such as `landed/berlin/STEM.parquet`, a path by which DuckDB and
messages know it, and a URI by which Iceberg does. Whatever writes one, it is there whole or not at
all. Engines read files by themselves; this is for whoever lists, looks at, puts and removes them.

What S3 is asked with stands in the environment, as `tapdeck-remote` has it: `AWS_ENDPOINT_URL`,
`AWS_REGION`, `AWS_ACCESS_KEY_ID` and their like. It is never written into a lake.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from . import durable
from .errors import AwayError, LakeError

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3://"
MARK = "lake.json"
"""The object by which a lake on S3 is known."""
VERSION = 1
ALL = 1 << 10
"""More folders in each other than there are."""
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What is said of a name behind which there is no file."""
PART_BYTES = 64 << 20
"""How much of a file S3 is given at once: a range over the end of a part takes longer to read."""
AT_ONCE = 2
"""Parts of a file under way."""
TRIES = 3
"""How often S3 is asked."""
PATIENCE = timedelta(seconds=30)
"""How long an answer of S3's may take."""
PATIENCE_FOR_PARTS = timedelta(minutes=15)
"""How long a part may take: two at a time take nine minutes at 2 Mbit/s."""


@dataclass(frozen=True)
class Found:
    """A file, and when it was written and changed, UTC microseconds since 1970.

    One that got another name was changed. What S3 has is not changed there, as far as is known.
    """

    name: str
    bytes: int
    written_us: int
    changed_us: int


class Place(Protocol):
    """Where files lie. Names of others, elsewhere, are absolute."""

    def path(self, name: str) -> str:
        """Returns a file's path, as DuckDB and messages have it."""
        ...

    def uri(self, name: str) -> str:
        """Returns a file's URI, as Iceberg's metadata has it."""
        ...

    def name_of(self, uri: str) -> str:
        """Returns the name of a file. Raises LakeError where nobody here could read it."""
        ...

    def begin(self, folders: Sequence[str], lake: str) -> None:
        """Makes what a lake begins with. Raises LakeError where there is something else.

        `lake` is a word that no other lake has. An attempt that was killed had the same.
        """
        ...

    def look(self, name: str) -> Found | None:
        """Returns what is known of a file; None where it is not there."""
        ...

    def files(self, folder: str, depth: int = ALL) -> Iterator[Found]:
        """Gives all files in a folder, drafts too, and in those in it down to a depth.

        Raises FileNotFoundError where a disk has no such folder.
        """
        ...

    def open(self, name: str) -> io.IOBase:
        """Opens a file to be read. Raises FileNotFoundError where it is not there."""
        ...

    def put(self, source: Path, name: str) -> None:
        """Copies a file there. Raises FileNotFoundError where the source is gone."""
        ...

    def draft(self, name: str, scratch: Path) -> AbstractContextManager[Path]:
        """Gives a path to write a file at, which is there when all of it is written.

        `scratch` is a folder for what is to lie elsewhere.
        """
        ...

    def remove(self, name: str) -> None:
        """Removes a file, unless it is gone."""
        ...


@dataclass(frozen=True)
class Disk:
    """A directory."""

    directory: Path

    def path(self, name: str) -> str:
        """Returns a file's path."""
        return str(self.directory / name)

    def uri(self, name: str) -> str:
        """Returns a file's URI."""
        return f"file://{self.directory / name}"

    def name_of(self, uri: str) -> str:
        """Returns the name of a file. Raises LakeError where it lies on no disk."""
        if urlsplit(uri).scheme not in ("", "file"):
            raise LakeError(f"{uri} lies on no disk of this machine")
        path = Path(uri.removeprefix("file://").removeprefix("file:"))
        if path.is_relative_to(self.directory):
            return path.relative_to(self.directory).as_posix()
        return str(path)

    def begin(self, folders: Sequence[str], _lake: str) -> None:
        """Makes folders."""
        for name in folders:
            (self.directory / name).mkdir(exist_ok=True)

    def look(self, name: str) -> Found | None:
        """Returns what is known of a file; None where it is not there."""
        try:
            told = (self.directory / name).stat()
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        if stat.S_ISDIR(told.st_mode):
            return None
        return Found(name, told.st_size, told.st_mtime_ns // 1000, told.st_ctime_ns // 1000)

    def files(self, folder: str, depth: int = ALL) -> Iterator[Found]:
        """Gives all files in a folder, drafts too, and in those in it down to a depth."""
        with os.scandir(self.directory / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}".lstrip("/")
                # What goes meanwhile is not there.
                if is_folder(entry, may_be_link=depth < ALL):
                    if depth:
                        with suppress(FileNotFoundError):
                            yield from self.files(name, depth if depth == ALL else depth - 1)
                elif found := self.look(name):
                    yield found

    def open(self, name: str) -> io.IOBase:
        """Opens a file to be read."""
        return (self.directory / name).open("rb")

    def put(self, source: Path, name: str) -> None:
        """Copies a file there."""
        durable.copy(source, self.directory / name)

    @contextmanager
    def draft(self, name: str, _scratch: Path) -> Iterator[Path]:
        """Gives a path to write a file at, which gets its name when all of it is written."""
        path = self.directory / name
        durable.make_directory(path.parent)
        yield durable.draft_of(path)
        durable.publish(path)

    def remove(self, name: str) -> None:
        """Removes a file, unless it is gone."""
        (self.directory / name).unlink(missing_ok=True)


def is_folder(entry: os.DirEntry[str], may_be_link: bool) -> bool:
    """Returns whether an entry is a folder, or where it may be one, a link to one.

    A folder may lie on another disk. Where any number of folders follow, links may be a ring.
    """
    try:
        return entry.is_dir(follow_symlinks=may_be_link)
    except OSError as error:
        if error.errno in GONE:
            return False
        raise


ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The first that is set counts, as for Amazon's own programs."""
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass(frozen=True)
class Service:
    """What is asked for buckets."""

    endpoint: str
    """Its URL; empty for Amazon's."""
    region: str
    keys: dict[str, str] = field(repr=False)
    """What requests are signed with, by the names of the environment, in that order; or nothing."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it is asked by TLS."""
        return not self.endpoint.startswith("http://")

    @classmethod
    def of_environment(cls) -> Service:
        """Returns what the environment names. Raises LakeError where that cannot be asked."""
        variable = next((name for name in ENDPOINTS if os.environ.get(name)), ENDPOINTS[1])
        endpoint = os.environ.get(variable, "")
        try:
            parts = urlsplit(endpoint)
            scheme, host, _ = parts.scheme, parts.hostname or "", parts.port
        except ValueError:
            scheme = host = ""
        if endpoint and (scheme not in ("http", "https") or not host or "@" in parts.netloc):
            raise LakeError(f"{variable} is to be as https://HOST:PORT, or not set for Amazon's S3")
        if scheme == "http" and not is_this_machine(host):
            raise LakeError(
                f"{variable} is {endpoint}: without TLS only this machine is asked; use https"
            )
        is_signed = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in ("true", "1")
        if is_signed and not all(map(os.environ.get, KEYS)):
            raise LakeError(
                f"S3 is asked with keys, and {' and '.join(KEYS)} are not set; "
                "AWS_SKIP_SIGNATURE=true asks without"
            )
        region = os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
        names = (*KEYS, "AWS_SESSION_TOKEN") if is_signed else ()
        keys = {name: os.environ[name] for name in names if os.environ.get(name)}
        return cls(endpoint.rstrip("/"), region or "us-east-1", keys)


def is_this_machine(host: str) -> bool:
    """Returns whether a host is this one, without asking for its address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class S3:
    """A prefix in a bucket."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> S3:
        """Returns what a URL names. Raises LakeError where it names no place for a lake."""
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        prefix = prefix.strip("/")
        parts = prefix.split("/") if prefix else []
        has_dots = any(part in ("", ".", "..") for part in parts)
        if not url.startswith(SCHEME) or not bucket or has_dots:
            raise LakeError(f"{url} is no place for a lake: name it as s3://BUCKET/PREFIX")
        odd = sorted(c for c in {*url} if c in "?#%*[]\\" or c.isspace() or not c.isprintable())
        if odd:
            raise LakeError(f"{url} has {odd[0]!r}, which URLs have another use for: rename it")
        return cls(bucket, prefix)

    @cached_property
    def service(self) -> Service:
        """Who is asked."""
        return Service.of_environment()

    @cached_property
    def store(self) -> S3Store:
        """The bucket, from the prefix on, to be asked."""
        return self.store_of(PATIENCE)

    @cached_property
    def store_to_put(self) -> S3Store:
        """The same, to be given files."""
        return self.store_of(PATIENCE_FOR_PARTS)

    def store_of(self, patience: timedelta) -> S3Store:
        """Returns the bucket, from the prefix on, with how long a request may take."""
        # What it needs takes a while to be read.
        from obstore.store import S3Store

        service = self.service
        told = {"region": service.region, "skip_signature": str(not service.keys).lower()}
        told |= {name.lower(): key for name, key in service.keys.items()}
        if service.endpoint:
            told["endpoint"] = service.endpoint
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            config=told,  # type: ignore[arg-type]
            client_options={"allow_http": not service.is_encrypted, "timeout": patience},
            retry_config={"max_retries": TRIES - 1, "retry_timeout": patience * TRIES},
        )

    def __getstate__(self) -> dict[str, object]:
        # A connection cannot be given to another process, and who is asked by it can.
        return {"bucket": self.bucket, "prefix": self.prefix, "service": self.service}

    def path(self, name: str) -> str:
        """Returns a file's URL."""
        if name.startswith(SCHEME):
            return name
        root = f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")
        return f"{root}/{name}" if name else root

    uri = path

    def name_of(self, uri: str) -> str:
        """Returns the name of a file. Raises LakeError where it does not lie on S3."""
        # Hadoop has a name of its own for the same.
        if uri.startswith("s3a://"):
            uri = SCHEME + uri.removeprefix("s3a://")
        if not uri.startswith(SCHEME):
            raise LakeError(f"{uri} does not lie on S3, where the lake has its files")
        return uri.removeprefix(self.path("") + "/")

    def begin(self, folders: Sequence[str], lake: str) -> None:
        """Puts the object by which the lake is known."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        mark = json.dumps({"version": VERSION, "lake": lake}).encode()
        refused = LakeError(f"{self.path('')} is not empty: name a prefix of its own for the lake")
        if self.look(MARK) is None:
            if next(self.files(""), None) is not None:
                raise refused
            with self.told_as_ours(MARK), suppress(AlreadyExistsError):
                obstore.put(self.store, MARK, mark, mode="create")
        # Of two at once, one was first.
        with self.told_as_ours(MARK):
            if obstore.get(self.store, MARK).bytes().to_bytes() != mark:
                raise refused

    def must_be_lake(self) -> None:
        """Raises LakeError where there is no lake, or one that is not known here."""
        where = self.path("")
        try:
            with self.open(MARK) as file:
                version = json.loads(file.read())["version"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            raise LakeError(f"{where} is no lake: tapdeck-lake init --files {where} DIR") from None
        if version != VERSION:
            raise LakeError(f"{where} has version {version}, and {VERSION} is known here")

    def look(self, name: str) -> Found | None:
        """Returns what is known of a file; None where it is not there."""
        import obstore

        if name.startswith(SCHEME):
            # It is another's.
            bucket, _, key = name.removeprefix(SCHEME).partition("/")
            return S3(bucket, "").look(key)
        with self.told_as_ours(name):
            try:
                told = obstore.head(self.store, name)
            except FileNotFoundError:
                return None
        return found_of(dict(told))

    def files(self, folder: str, depth: int = ALL) -> Iterator[Found]:
        """Gives all files in a folder, and in those in it down to a depth."""
        most = folder.count("/") + bool(folder) + depth
        with self.told_as_ours(folder):
            listing = iter(self.store.list(folder or None))
        while True:
            with self.told_as_ours(folder):
                some = next(listing, None)
            if some is None:
                return
            for told in some:
                found = found_of(dict(told))
                # A name that is empty marks a folder, as some programs have it.
                if found.name and found.name.count("/") <= most:
                    yield found

    def open(self, name: str) -> io.IOBase:
        """Opens a file to be read."""
        found = self.look(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "is not there", self.path(name))
        return Ranges(self, found)

    def put(self, source: Path, name: str) -> None:
        """Copies a file there."""
        import obstore

        with source.open("rb") as file:
            try:
                with self.told_as_ours(name):
                    obstore.put(
                        self.store_to_put,
                        name,
                        file,
                        chunk_size=PART_BYTES,
                        max_concurrency=AT_ONCE,
                    )
            except FileNotFoundError as error:
                # The source is there: what is gone is the bucket, or the parts that were put.
                raise self.away(name, error) from None

    @contextmanager
    def draft(self, name: str, scratch: Path) -> Iterator[Path]:
        """Gives a path to write a file at, which is put there when all of it is written."""
        scratch.mkdir(exist_ok=True)
        path = scratch / uuid.uuid4().hex
        try:
            yield path
            self.put(path, name)
        finally:
            path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Removes a file, unless it is gone."""
        import obstore

        with self.told_as_ours(name), suppress(FileNotFoundError):
            obstore.delete(self.store, name)

    @contextmanager
    def told_as_ours(self, name: str) -> Iterator[None]:
        """Makes what S3 refuses to failures of the lake."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "is not there", self.path(name)) from None
        except (BaseError, OSError) as error:
            raise self.away(name, error) from None

    def away(self, name: str, error: Exception) -> AwayError:
        """Returns what is told where S3 refuses."""
        # The same is told in the same words, however long it took.
        why = re.sub(r" in [\d.]+[mµn]?s\b", "", str(error).strip().split("\n", 1)[0])
        return AwayError(
            f"{self.path(name)} cannot be asked for or written ({why}): see whether the server "
            "answers, the bucket is there, and AWS_ENDPOINT_URL, AWS_REGION and the keys are right"
        )


class Ranges(io.RawIOBase):
    """A file on S3, read as others are."""

    def __init__(self, place: S3, found: Found) -> None:
        super().__init__()
        self.place, self.found, self.at = place, found, 0

    def readable(self) -> bool:
        """Says that it can be read."""
        return True

    def seekable(self) -> bool:
        """Says that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Returns where it is read next."""
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Says where it is read next."""
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.found.bytes}
        self.at = begins[whence] + offset
        return self.at

    def readinto(self, buffer: bytearray, /) -> int:  # type: ignore[override]
        """Reads, and returns how many bytes that were."""
        import obstore

        end = min(self.at + len(buffer), self.found.bytes)
        if end <= self.at:
            return 0
        with self.place.told_as_ours(self.found.name):
            got = obstore.get_range(
                self.place.store, self.found.name, start=self.at, end=end
            ).to_bytes()
        buffer[: len(got)] = got
        self.at += len(got)
        return len(got)


def found_of(told: dict[str, object]) -> Found:
    """Returns what S3 tells of an object."""
    at, size = told["last_modified"], told["size"]
    if not isinstance(at, datetime) or not isinstance(size, int):
        raise AssertionError("an object has a length and a time")
    return Found(str(told["path"]), size, int(at.timestamp() * 1e6), 0)


def place_of(url: str, directory: Path) -> Place:
    """Returns the place of a lake's files: what a URL names, or a directory where it is empty."""
    return S3.parse(url) if url else Disk(directory)
