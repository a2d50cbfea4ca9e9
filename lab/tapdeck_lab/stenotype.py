"""The packet files of stenotype, as capture files that other programs read.

Such a file is the blocks of a packet socket's ring (`TPACKET_V3`, linux/if_packet.h) as the kernel
left them, one after the other.
"""

from __future__ import annotations

import struct
from pathlib import Path

BLOCK_BYTES = 2**20
HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
"""Of a pcap file with nanoseconds and Ethernet frames."""


def to_pcap(file: Path, to: Path) -> Path:
    """Write the packets of a file of stenotype, up to its end or to the first block that is empty.

    Returns
    -------
    Path
        `to`, a pcap file.
    """
    with open(file, "rb") as source, open(to, "wb") as out:
        out.write(HEADER)
        while len(block := source.read(BLOCK_BYTES)) == BLOCK_BYTES:
            packets, at = struct.unpack_from("<II", block, 12)
            if packets == 0:
                break
            for _ in range(packets):
                after, seconds, nanoseconds, kept, length, _, begin = struct.unpack_from(
                    "<IIIIIIH", block, at
                )
                out.write(struct.pack("<IIII", seconds, nanoseconds, kept, length))
                out.write(block[at + begin : at + begin + kept])
                at += after
    return to
