"""A generator and a capture method that are known exactly, to test the lab without a wire.

python -m tapdeck_lab.fake capture PIPE SHARE FILE
    reads packets from a pipe, loses a share, and says in a file what it kept
python -m tapdeck_lab.fake generate PIPE N PPS FILE
    writes N packets of eight bytes, each its number
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time


def capture(pipe: str, share: float, file: str) -> None:
    """Lose packet n where the whole part of n * share grows.

    So of N packets exactly floor(N * share) are lost, up to rounding.
    """
    received = kept = 0

    def finish(*_: object) -> None:
        with open(file, "w") as out:
            json.dump({"received": received, "kept": kept}, out)
        os._exit(0)

    signal.signal(signal.SIGINT, finish)
    # Opened for both, so that it stays open when the generator ends.
    descriptor = os.open(pipe, os.O_RDWR)
    print("ready", file=sys.stderr, flush=True)
    rest = b""
    while True:
        rest += os.read(descriptor, 65536)
        whole = len(rest) // 8 * 8
        for (number,) in struct.iter_unpack("<Q", rest[:whole]):
            assert number == received
            kept += int((received + 1) * share) == int(received * share)
            received += 1
        rest = rest[whole:]


def generate(pipe: str, packets: int, pps: float, file: str) -> None:
    begin, started_ns = time.monotonic(), time.time_ns()
    with open(pipe, "wb") as out:
        for number in range(packets):
            if number % 100 == 0:
                time.sleep(max(0.0, begin + number / pps - time.monotonic()))
            out.write(struct.pack("<Q", number))
    elapsed = time.monotonic() - begin
    with open(file, "w") as out:
        record = {
            "sent": packets,
            "bytes": packets * 64,
            "elapsed_s": elapsed,
            "seed": 0,
            "streams": [packets],
        }
        json.dump(record | {"started_ns": started_ns, "ended_ns": time.time_ns()}, out)


if __name__ == "__main__":
    what, pipe, number, *rest = sys.argv[1:]
    if what == "capture":
        capture(pipe, float(number), *rest)
    else:
        generate(pipe, int(number), float(rest[0]), rest[1])
