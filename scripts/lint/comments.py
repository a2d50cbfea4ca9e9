#!/usr/bin/env python3
"""Holds comments and documents to 100 columns, and the first words of Rust's doc comments.

Formatters hold the width of code, and ruff that of Python; neither rustfmt nor clang-format minds
how long a comment is, and nothing minds Markdown. Lines of code are not looked at here, because
rustfmt leaves long string literals alone. In Markdown, tables and code blocks may be wider, and a
URL anywhere.

A doc comment that begins with a pronoun cannot be understood where it stands, nor one of a field or
a function that begins with a word that leans on what stands around it, such as "By" or "So". The
texts of flags are those of `--help`, and tests say what is so, so only the crates' sources are held
to that. What a function returns is said by "Returns", never by "Gives back".

Prints each offence as FILE:LINE, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
TAB = 8
LEFT_OUT = {".git", ".tools", ".venv", "lab-results", "target"}
URL = re.compile(r"https?://\S+")
STRING = re.compile(r'"(?:\\.|[^"\\])*"|' + r"'(?:\\.|[^'\\])*'")
POOR_BEGINNING = re.compile(r"\s*//[/!] (It|Its|They|Their|Them)\b")
LEANING_BEGINNING = re.compile(
    r"\s*/// (This|These|So|As|Of|By|In|Before|At|Only|Not|Since|Nothing|Who|There)\b"
)
GIVES_BACK = re.compile(r"//.*\b([Gg]ives back)\b")

Line = tuple[int, str]


def rust(lines: list[str]) -> Iterator[Line]:
    """Yields the numbers and texts of the lines of Rust that hold a comment."""
    for number, line in enumerate(lines, 1):
        if "//" in STRING.sub('""', line):
            yield number, line


def c(lines: list[str]) -> Iterator[Line]:
    """Yields the numbers and texts of the lines of C that hold a comment."""
    inside = False
    for number, line in enumerate(lines, 1):
        code = STRING.sub('""', line)
        begins = "/*" in code
        if inside or begins or "//" in code:
            yield number, line
        if inside or begins:
            inside = "*/" not in code[code.rfind("/*") if begins else 0 :]


def hashed(lines: list[str]) -> Iterator[Line]:
    """Yields the numbers and texts of the lines of shell, TOML or make that hold a comment."""
    for number, line in enumerate(lines, 1):
        if re.search(r"(^|\s)#+(\s|$)", STRING.sub('""', line)):
            yield number, line


def prose(lines: list[str]) -> Iterator[Line]:
    """Yields the numbers and texts of the lines of Markdown outside of tables and code blocks."""
    fenced = indented = False
    before = ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        indented = line.startswith("    ") and (indented or not before.strip())
        if not fenced and not indented and not line.lstrip().startswith("|"):
            yield number, line
        before = line


KINDS = {
    ".rs": rust,
    ".c": c,
    ".h": c,
    ".sh": hashed,
    ".toml": hashed,
    "Makefile": hashed,
    "lab": hashed,
    "init": hashed,
    "run": hashed,
    ".md": prose,
}
"""How the lines are found, by a file's suffix, or by the name of one that has none."""


def offences(file: Path) -> Iterator[str]:
    """Yields what is wrong with a file, as FILE:LINE: REASON."""
    lines = file.read_text().splitlines()
    for number, line in KINDS[file.suffix or file.name](lines):
        width = len(URL.sub("", line).expandtabs(TAB))
        if width > WIDTH:
            yield f"{file}:{number}: {width} columns, {WIDTH} at most"
    if file.suffix == ".rs":
        stands_alone = "src" in file.parts and "flags" not in file.parts
        for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1):
            goes_on = before.lstrip().startswith(("///", "//!"))
            poor = POOR_BEGINNING.match(line)
            if stands_alone:
                poor = poor or LEANING_BEGINNING.match(line)
            if not goes_on and poor:
                yield f'{file}:{number}: a doc comment begins with "{poor[1]}"'
        for number, line in rust(lines):
            if gives := GIVES_BACK.search(STRING.sub('""', line)):
                yield f'{file}:{number}: a comment says "{gives[1]}" for "Returns"'


def main() -> int:
    files = [
        path
        for path in sorted(Path().rglob("*"))
        if (path.suffix or path.name) in KINDS
        and not LEFT_OUT.intersection(path.parts)
        and path.is_file()
    ]
    found = [offence for file in files for offence in offences(file)]
    print("\n".join(found) or f"comments: {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
