#!/usr/bin/env python3
"""Holds what the programs say to one style of words and numbers.

A message is a string of Rust with words in it, outside of tests, and of the library that speaks as
libpcap does. Each rule is a pattern, and what to
write in place of what it finds. What the programs say is read by people in several languages, and
by scripts: one way to say a thing is easier for both.

Prints each offence as FILE:LINE, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*\"""" + "|"
    r"""'(?:\\[^\n]{1,8}?|[^'\\\n])'|\#\[cfg\((?:test|all\(test)""",
    re.DOTALL,
)
TESTS = re.compile(r"#\[cfg\([^\]]*\]\s*(#\[[^\]]*\]\s*)*mod \w+ \{")
WORDS = re.compile(r"[A-Za-z]{2}\S* \S|\} [a-z]")

NOUNS = (
    "fault|file|flow|gap|group|line|member|packet|row|rule|segment|signature|stream|user"  # counted
)
RULES = [
    (re.compile(r"\b\w+n't\b|\b(it|there|that)'s\b|\w'(ll|re|ve)\b"), "write both words in full"),
    (re.compile(r"\b(could not|can not|failed to|unable to)\b"), "write cannot"),
    (
        re.compile(r"\b(in|un)?valid (argument|option|value)\b|\bsuccessfully\b|\bsorry\b"),
        "say what",
    ),
    (
        re.compile(r"\{[^{}]*\}(B|KiB|MiB|GiB|TiB|ns|us|ms|%)(?![\w\]/])"),
        "write a space in front of the unit",
    ),
    (re.compile(r"(?<!of )(?<!than )\{[^{}A-Z]*\} (" + NOUNS + r")s\b"), "take `counted`"),
    (re.compile(r"[`']\{[^{}]*\}[`']"), "quote what somebody wrote by {:?}"),
    (re.compile(r"[a-z]\.\.\.|[\u2013\u2014\u2026\u201c\u201d\u2019]"), "write plain marks"),
    (re.compile(r"^(error|warning|note):", re.IGNORECASE), "leave out what every message is"),
    (re.compile(r"[a-z)]!(\s|$)"), "write no exclamation mark"),
]
"""What is not written, and what to do in its place."""

FOR_PROGRAMS = {"{word}: {packets} packets, {dropped} dropped, {unseen} unseen"}
"""Lines that programs read, too, as docs/GATEWAY.md has them."""


def messages(text: str) -> Iterator[tuple[int, str]]:
    """Yields the numbers of lines of a source of Rust, and the messages that begin there."""
    for token in TOKEN.finditer(text):
        found = token.group()
        if found.startswith("#[cfg") and TESTS.match(text, token.start()):
            return
        quote = found.find('"')
        if quote < 0 or found.startswith(("//", "/*", "'", "#[")):
            continue
        message = found[quote + 1 : found.rindex('"')]
        if "r" not in found[:quote]:
            message = re.sub(r"\\\n\s*", "", message).replace('\\"', '"')
        if WORDS.search(message) and message not in FOR_PROGRAMS:
            yield text.count("\n", 0, token.start()) + 1, message


def offences(file: Path) -> Iterator[str]:
    """Yields what is wrong with the messages of a file, as FILE:LINE: REASON."""
    for line, message in messages(file.read_text()):
        for pattern, remedy in RULES:
            if wrong := pattern.search(message):
                yield f'{file}:{line}: "{wrong[0]}" in a message: {remedy}'


def main() -> int:
    files = [
        path
        for path in sorted(Path("crates").rglob("src/**/*.rs"))
        if not {"testkit", "tests", "pcap"}.intersection(path.parts) and "tests" not in path.stem
    ]
    found = [offence for file in files for offence in offences(file)]
    print(*found, f"messages: {len(files)} files", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
