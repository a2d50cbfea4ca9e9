"""What a lake knows of a file of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LakeFile:
    """A file of the table: its path from where the lake has its files, and what is in it.

    The path of one elsewhere is absolute. `sensor` is empty where a file may have rows of several.
    """

    path: str
    kind: str
    day: str
    sensor: str
    bytes: int
    rows: int
    first_us: int | None
    last_us: int | None

    @property
    def is_as_landed(self) -> bool:
        """Whether it is a file that a sensor shipped."""
        return self.path.startswith("landed/")
