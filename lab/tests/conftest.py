"""What all tests of the lab share: the build that they test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapdeck_lab.build import Build, BuildError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--build", type=Path, metavar="DIR", help="the build that is tested, as cargo left it"
    )


@pytest.fixture(scope="session")
def build(pytestconfig: pytest.Config) -> Build:
    """The build that whoever started the tests has named."""
    directory = pytestconfig.getoption("--build")
    if directory is None:
        pytest.fail("no build is named: run `make lab-test`, or give --build DIR", pytrace=False)
    try:
        return Build.at(directory)
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)
