"""`tapdeck-lake ship`: copies a sensor's flow tables, and if asked its segments, into a lake.

It runs at the sensor, reads what is finished, and asks nothing of the recorder: retention does not
wait. What retention took first is told. A file arrives under a hidden name and gets its own when it
is whole and durable; of a segment's files the first comes last, behind its packets, so that what
the lake sees is complete. What was delivered stands in a list beside the flow tables. Whoever was
killed goes on behind it, and what arrives twice counts once, because the lake knows segments by
name.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from . import durable
from .catalog import LANDED, SEGMENTS, Lake, folder_of
from .errors import AwayError, LakeError, counted
from .flow_files import Account, missing, number_of, segments_in
from .place import S3, Disk, Place
from .reader import READER

RECORD = ".tapdeck-lake-"
"""How the name of a list of what was delivered begins."""
SETTLED_NS = 2_000_000_000
"""A directory that was not changed for so long shows the next change by its time."""


@dataclass
class Shipped:
    """What was delivered, what is to be tried again, and what was found to be wrong."""

    segments: int = 0
    files: int = 0
    bytes: int = 0
    waiting: int = 0
    faults: int = 0


class Shipper:
    """Delivers from one directory of flow tables into one lake."""

    def __init__(
        self,
        flows: Path,
        lake: Lake | S3,
        store: Path | None,
        is_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.flows, self.store, self.is_to_stop = flows, store, is_to_stop
        self.place: Place = lake if isinstance(lake, S3) else lake.place
        # Sensors that ship to S3 have no way to the register.
        self.register = None if isinstance(lake, S3) else lake
        name = hashlib.sha256(os.fsencode(self.place.path(""))).hexdigest()[:16]
        self.record = flows / f"{RECORD}{name}.shipped"
        self.delivered = self.read_record()
        self.told: set[str] = set()
        self.settled_ns: int | None = None

    def read_record(self) -> set[str]:
        """Returns what was delivered before. A line that was cut short does not count."""
        try:
            lines = self.record.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return set()
        return {line[:-1] for line in lines if line.endswith("\n")}

    def note(self, stem: str) -> None:
        """Enters a segment that was delivered."""
        with self.record.open("a+b") as record:
            # Whoever was killed may have left a line without its end.
            record.seek(max(record.seek(0, os.SEEK_END) - 1, 0))
            is_whole = record.read(1) in (b"", b"\n")
            record.write(f"{stem}\n".encode() if is_whole else f"\n{stem}\n".encode())
            record.flush()
            os.fsync(record.fileno())
        self.delivered.add(stem)

    def tell(self, text: str) -> bool:
        """Tells something on standard error, once. Returns whether it was new."""
        if text in self.told:
            return False
        self.told.add(text)
        print(f"tapdeck-lake: {text}", file=sys.stderr, flush=True)
        return True

    def look(self) -> Shipped:
        """Does what `run` does, if there may be something new."""
        changed_ns = self.flows.stat().st_mtime_ns if self.flows.is_dir() else 0
        if changed_ns == self.settled_ns:
            return Shipped()
        # A directory that was changed just now may be changed again at the same time by its clock.
        is_old = time.time_ns() - changed_ns > SETTLED_NS
        done = self.run()
        self.settled_ns = changed_ns if is_old and not done.waiting else None
        return done

    def run(self) -> Shipped:
        """Delivers what is there and was not delivered. Tells on standard error what cannot be."""
        done = Shipped()
        if not self.flows.is_dir():
            raise LakeError(f"{self.flows} is not there: tapdeck flows -o makes it")
        with durable.locked(self.record.with_suffix(".lock")):
            with os.scandir(self.flows) as entries:
                listed = segments_in(entry.name for entry in entries)
            there = {stem: names for (_, stem), names in listed.items()}
            self.tell_missing(there)
            for stem, names in there.items():
                if self.is_to_stop():
                    break
                if stem not in self.delivered:
                    try:
                        self.deliver(stem, names, done)
                    except AwayError as error:
                        done.faults += self.tell(str(error))
                        done.waiting += 1
                        break
                    except FileNotFoundError:
                        # Whoever wrote the tables has taken them away meanwhile.
                        done.waiting += 1
                    except LakeError as error:
                        done.faults += self.tell(str(error))
                        done.waiting += 1
        return done

    def tell_missing(self, there: Iterable[str]) -> None:
        """Tells which segments have no flow tables among those that have, or were delivered."""
        numbers = {number_of(stem) for stem in [*there, *self.delivered]}
        for first, last in missing(numbers):
            which = f"segment {first}" if first == last else f"segments {first} to {last}"
            self.tell(
                f"{which} of {self.flows} will not be in the lake: no flow table is there, as "
                "where retention was faster"
            )

    def deliver(self, stem: str, names: list[str], done: Shipped) -> None:
        """Delivers a segment's files, the first last, behind its packets."""
        account, files = READER.read_listed(Disk(self.flows), "", stem, names)
        if self.register is not None:
            self.register.compare(files[-1].path, account)
        if self.store is not None and not self.deliver_packets(self.store, account, done):
            done.waiting += 1
            return
        folder = f"{LANDED}/{folder_of(account.sensor)}"
        for file in files:
            self.copy(self.flows / file.name, f"{folder}/{file.name}", done)
        self.note(stem)
        done.segments += 1

    def deliver_packets(self, store: Path, account: Account, done: Shipped) -> bool:
        """Delivers a segment and its index. Returns whether its rows are to follow now."""
        stem = account.segment
        if (store / f"{stem}.index.live").exists() and not (store / f"{stem}.index").exists():
            return False
        folder = f"{SEGMENTS}/{folder_of(account.sensor)}"
        try:
            # An index without a segment means nothing, so it comes first.
            if (store / f"{stem}.index").exists():
                self.copy(store / f"{stem}.index", f"{folder}/{stem}.index", done)
            self.copy(store / f"{stem}.pcapng", f"{folder}/{stem}.pcapng", done)
        except FileNotFoundError:
            if (store / f"{stem}.pcapng").exists():
                raise
            self.tell(
                f"{stem}.pcapng was deleted from {store} before it was shipped: its rows are in "
                "the lake, its packets are not"
            )
        return True

    def copy(self, source: Path, name: str, done: Shipped) -> None:
        """Copies a file, unless a copy is there."""
        size = source.stat().st_size
        found = self.place.look(name)
        if found is not None:
            if found.bytes != size:
                raise LakeError(
                    f"{self.place.path(name)} is there and has another length than {source}: "
                    "another store has the same name of a sensor, or the table was made anew; name "
                    "sensors differently"
                )
            return
        self.place.put(source, name)
        done.files += 1
        done.bytes += size


def ship(flows: Path, lake: Lake | S3, store: Path | None) -> Shipped:
    """Delivers once what is there."""
    return Shipper(flows, lake, store).run()


def said(done: Shipped) -> str:
    """Returns in words what was delivered."""
    return (
        f"{counted(done.segments, 'segment')} shipped: {counted(done.files, 'file')}, "
        f"{counted(done.bytes, 'byte')}"
    )
