"""What is written of the module is so: the notebook runs, and stubs say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tapdeck

DOCS = Path(__file__).parents[3] / "docs"


def test_the_notebook_answers_five_questions_with_pictures() -> None:
    notebook = nbformat.read(DOCS / "python.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    titles = [cell.source for cell in notebook.cells if re.match(r"## \d", cell.source)]
    assert len(pictures) == len(titles) == 5
    text = "".join(output.get("text", "") for output in outputs)
    # The one that knocked at 1,024 doors.
    assert re.search(r"10\.1\.0\.13 +10\.1\.0\.2 +1024", text), text


def test_stubs_are_of_what_is_there() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "tapdeck._native"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", tapdeck.__all__)
def test_each_thing_has_a_description(name: str) -> None:
    thing = getattr(tapdeck, name)
    if not isinstance(thing, type):
        return
    assert thing.__doc__
    for method in (method for method in vars(thing) if not method.startswith("_")):
        assert getattr(thing, method).__doc__, method
