"""What comments.py finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import comments

LONG = "word " * 20 + "w"
"""101 columns."""


@pytest.mark.parametrize(
    ("name", "text", "at"),
    [
        ("a.rs", f"// {LONG}", [1]),
        ("a.rs", f"let a = 1; // {LONG}", [1]),
        ("a.rs", f'let a = "// {LONG}";', []),
        ("a.rs", f"// https://example.org/{LONG.replace(' ', '-')}", []),
        ("a.rs", "/// Its number.\n/// It is small.", [1]),
        ("a.rs", "/// The number.\n/// It is small.\n//! Says.\nlet a = 1; // It is.", []),
        ("a.rs", "/// The number. Gives back\n/// it.\na(); // It gives back a.", [1, 3]),
        ("a.rs", 'let a = "// Gives back";\n// Returned by give().', []),
        ("src/a.rs", "/// By number.\na\n/// The number.\n/// By name.\n//! In which?", [1]),
        ("src/flags/a.rs", "/// Only this interface", []),
        ("tests/a.rs", "/// So many that it counts.", []),
        ("a.c", f"/* A\n * {LONG}\n */\nint a; {LONG}", [2]),
        ("a.c", "/*" + "\t" * 12 + "word */", [1]),
        ("a.sh", f'# {LONG}\necho "# {LONG}"\necho {LONG}\ntrue # {LONG}', [1, 4]),
        ("Makefile", f"all: ## {LONG}\n\techo {LONG}", [1]),
        ("a.toml", f'a = "{LONG}" # a\nb = "{LONG}"', [1]),
        ("a.md", f"{LONG}\n\n- {LONG}\n\n| {LONG} |\n\n```\n{LONG}\n```\n\n    {LONG}", [1, 3]),
        ("a.md", f"word\n    {LONG}", [2]),
    ],
)
def test_offences_are_named_with_their_lines(
    tmp_path: Path, name: str, text: str, at: list[int]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    found = [offence.removeprefix(f"{file}:") for offence in comments.offences(file)]
    assert [int(offence.partition(":")[0]) for offence in found] == at


def test_everything_but_what_others_made_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory in ("docs", "target", "lab/.venv"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "a.md").write_text(LONG)
    monkeypatch.chdir(tmp_path)
    assert comments.main() == 1
    assert capsys.readouterr().out == "docs/a.md:1: 101 columns, 100 at most\n"
