"""Reads the ends of flow tables in a process of its own.

Some damage at the end of a Parquet file ends the process that reads it by pyarrow. What that costs
is this process, which is then started anew; the file is named, and whoever asked goes on. It has
the same rights as they, so it guards against files that are damaged, and not against an attacker's.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from . import flow_files
from .errors import AwayError, LakeError
from .flow_files import Account, FlowFile
from .place import Place

ENDED = (EOFError, BrokenPipeError, pickle.UnpicklingError)
"""What whoever asks the process sees when it has ended."""


class Reader:
    """The process, which begins when it is needed and ends with whoever has it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def read_segment(
        self, place: Place, stem: str, names: Sequence[str]
    ) -> tuple[Account, list[FlowFile]]:
        """Reads the ends of a segment's files, as `flow_files.read_segment` does."""
        found = self.asked("read_segment", (place, stem, names), place.path(names[-1]))
        return cast(tuple[Account, list[FlowFile]], found)

    def read_listed(
        self, place: Place, folder: str, stem: str, names: Sequence[str]
    ) -> tuple[Account, list[FlowFile]]:
        """Reads the ends of a segment's files, which stood in a list of a folder.

        A list that was made while they came may have the first and lack others, so where they are
        not whole the folder is listed again.
        """
        try:
            return self.read_segment(place, stem, names)
        except AwayError:
            raise
        except LakeError:
            listed = (found.name for found in place.files(folder, 0))
            again = flow_files.segments_in(listed).get((folder, stem), names)
            if again == names:
                raise
            return self.read_segment(place, stem, again)

    def read_account(self, place: Place, name: str) -> Account:
        """Reads what a segment's first file tells, as `flow_files.read_account` does."""
        return cast(Account, self.asked("read_account", (place, name), place.path(name)))

    def asked(self, name: str, arguments: tuple[object, ...], path: str) -> object:
        """Returns what a function returned there. Raises what it raised there."""
        if self.process is None or self.process.poll() is not None:
            self.process = started()
        process = self.process
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process was started without pipes")
        try:
            pickle.dump((name, arguments), process.stdin)
            process.stdin.flush()
            told: object
            is_answer, told = pickle.load(process.stdout)
        except ENDED:
            self.process = None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            code = process.wait()
            by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise LakeError(
                f"{path} is damaged: the process that read its end was ended by that ({by}); copy "
                "it again"
            ) from None
        if not is_answer:
            raise cast(Exception, told)
        return told


def started() -> subprocess.Popen[bytes]:
    """Starts the process, out of reach of a terminal's Ctrl-C."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        process_group=0,
    )


def main() -> None:
    """Answers until nobody asks any more."""
    # Whoever asks says when it is over, by its own end at the latest.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions: dict[str, Callable[..., object]] = {
        "read_account": flow_files.read_account,
        "read_segment": flow_files.read_segment,
    }
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            answer = True, functions[name](*arguments)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


READER = Reader()
"""The one of this process."""


if __name__ == "__main__":
    main()
