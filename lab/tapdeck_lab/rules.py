"""Rule files for the experiments with signatures, after PFQ's filter module.

A signature is the masks of a 5-tuple: so many bits of each address, a port or none, a protocol or
none. The file has one rule for each of so many different signatures; one of them accepts the
generator's packets and the others, in networks from which nothing comes, accept nothing.
"""

from __future__ import annotations

import itertools

SOURCE, DESTINATION = "198.18.0.0", "198.19.0.0"
"""The generator's networks, of 24 bits each."""


def signatures(n: int) -> list[tuple[int, int, bool, bool, bool]]:
    """Choose different signatures, the most specific first.

    Parameters
    ----------
    n : int
        How many.

    Returns
    -------
    list of (int, int, bool, bool, bool), length n
        Bits of the source, bits of the destination, and whether source port, destination port and
        protocol count. The generator's networks fit into the last one.

    Raises
    ------
    ValueError
        There are not so many.
    """
    every = itertools.product(
        range(8, 33), range(8, 33), (True, False), (True, False), (True, False)
    )
    ordered = sorted(every, key=lambda s: (-rank(s), s))
    if not 1 <= n <= len(ordered):
        raise ValueError(f"there are {len(ordered)} signatures, not {n}")
    if n == 1:
        return ordered[-1:]
    # Evenly from the most to the least specific.
    return [ordered[i * (len(ordered) - 1) // (n - 1)] for i in range(n)]


def rank(signature: tuple[int, int, bool, bool, bool]) -> int:
    """Returns the sum of the masks' widths, bits."""
    source, destination, sport, dport, proto = signature
    return source + destination + 16 * (sport + dport) + 8 * proto


def text(n: int, match: str) -> str:
    """Write a rule file of n signatures.

    The generator's packets match the last one if `match` is `last`, and one in the middle if it is
    `middle`.
    """
    all_of_them = signatures(n)
    fits = [i for i, s in enumerate(all_of_them) if s[0] <= 24 and s[1] <= 24 and not s[2]]
    chosen = fits[-1] if match == "last" or not fits else min(fits, key=lambda i: abs(i - n // 2))
    lines = [f"# {n} signatures, the generator's packets match number {chosen + 1}"]
    for i, signature in enumerate(all_of_them):
        mine = i == chosen
        lines.append(
            line(
                signature,
                SOURCE if mine else f"10.{i % 256}.{i // 256}.1",
                DESTINATION if mine else "10.255.0.1",
            )
        )
    return "\n".join(lines) + "\n"


def line(signature: tuple[int, int, bool, bool, bool], source: str, destination: str) -> str:
    source_bits, destination_bits, sport, dport, proto = signature
    return (
        f"accept src {masked(source, source_bits)} dst {masked(destination, destination_bits)} "
        f"sport {9 if sport else 'any'} dport {9 if dport else 'any'} "
        f"proto {'udp' if proto else 'any'}"
    )


def masked(address: str, bits: int) -> str:
    number = (
        int.from_bytes(bytes(map(int, address.split("."))), "big") >> (32 - bits) << (32 - bits)
    )
    return f"{'.'.join(map(str, number.to_bytes(4, 'big')))}/{bits}"
