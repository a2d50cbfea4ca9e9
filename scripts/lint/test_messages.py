"""What messages.py finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import messages


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('say("it can\'t be");', ["can't"]),
        ('say("the user\'s file");', []),
        ('say("{name} could not be read");', ["could not"]),
        ('say("it took {n}ms of {} s");', ["{n}ms"]),
        ('say("write 64MiB, in {:.1} %");', []),
        ('say("{} segments are there");', ["{} segments"]),
        ('say("1 of {n} segments is there");', []),
        ('say("at most {MAX_GROUPS} groups");', []),
        ('say("`{0}` is no word");', ["`{0}`"]),
        ('say("{word:?} is no word");', []),
        ('say("error: it is gone");', ["error:"]),
        ('say("wait...");\nsay("wait a moment...");', ["t..."]),
        ('say("a line \\\n      that goes on and can\'t end");', ["can't"]),
        ('say(r#"it "can\'t" be"#);', ["can't"]),
        ("// it can't be\n/* nor can't this */ a('\"'); b(\"one-word\");", []),
        ('a("it is");\n#[cfg(test)]\nmod tests {\n    b("it can\'t be");\n}', []),
        ('#[cfg(test)]\nuse a;\nb("it can\'t be");', ["can't"]),
    ],
)
def test_messages_are_held_to_the_style(tmp_path: Path, text: str, found: list[str]) -> None:
    file = tmp_path / "a.rs"
    file.write_text(text)
    assert [offence.split('"')[1] for offence in messages.offences(file)] == found


def test_an_offence_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.rs"
    file.write_text('a();\n\nsay("this can\'t be");\n')
    [offence] = messages.offences(file)
    assert offence == f'{file}:3: "can\'t" in a message: write both words in full'
