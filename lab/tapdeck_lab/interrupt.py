"""Ctrl-C does not fall between the start of a process and the note that it must be ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done.

    Only the main thread may use it, and the block must be short: it ends by itself.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C was pressed meanwhile.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
