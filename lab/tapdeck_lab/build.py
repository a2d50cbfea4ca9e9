"""The build that is measured: the directory where one build of tapdeck left its programs.

The lab never looks for a build. Whoever starts the lab names one (`--build DIR`), because a
directory that happens to be there may hold half of a build, or one of another day.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """What a directory lacks to be a build of tapdeck."""


@dataclass(frozen=True)
class Build:
    """What `cargo build --workspace` leaves in a directory, as far as the lab uses it."""

    directory: Path

    @classmethod
    def at(cls, directory: Path) -> Build:
        """Returns the build in a directory. Raises BuildError where the directory lacks a part."""
        build = cls(directory.resolve())
        for file in (build.tapdeck, build.pcap_library, build.gateway):
            if not os.access(file, os.X_OK):
                raise BuildError(
                    f"{file} is not there, or cannot be run: --build names the directory that "
                    "`cargo build --workspace` fills"
                )
        return build

    @property
    def tapdeck(self) -> Path:
        """The program."""
        return self.directory / "tapdeck"

    @property
    def gateway(self) -> Path:
        """The program that serves a store over HTTP."""
        return self.directory / "tapdeck-gateway"

    @property
    def pcap_library(self) -> Path:
        """The shared object that stands in for libpcap."""
        return self.directory / "libtapdeck_pcap.so"
