"""What the console's tests share: a store with known packets, a gateway, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import bed

CHROMIUM = "/usr/bin/chromium"

# A machine that does much else is slow, and no less right.
expect.set_options(timeout=bed.PATIENCE_S * 1000)

LOCAL = """
[[listen]]
address = "127.0.0.1:0"
user = "local"
[[role]]
name = "all"
kind = "reader"
[[user]]
name = "local"
role = "all"
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the build."""
    parser.addoption(
        "--build", type=Path, metavar="DIR", help="the build that is tested, as cargo left it"
    )
    parser.addoption(
        "--pictures", type=Path, metavar="DIR", help="where pictures of all views are put"
    )


@dataclass(frozen=True)
class Place:
    """A store that is recorded, and a gateway that gives it to whoever is on this machine."""

    bed: bed.Bed
    url: str


@pytest.fixture(scope="session")
def place(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Record known packets and known losses, and serve them."""
    build = pytestconfig.getoption("--build")
    assert build is not None, "no build is named: run `make test`, or give --build DIR"
    made = bed.Bed(build.resolve(), tmp_path_factory.mktemp("console"))
    try:
        recorder = made.record()
        made.send(bed.FRAMES)
        bed.wait_for("the frames", lambda: made.statistics()["seen"] == len(bed.FRAMES))
        made.trouble(recorder)
        url = made.gateway(LOCAL)
        losses = f"{url}/v1/losses"
        bed.wait_for("the losses", lambda: bed.get(losses)["lost"] and bed.get(losses)["unseen"])
        yield Place(made, url)
    finally:
        made.end()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium. Tests run as root, for whom it has no sandbox."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser that has seen nothing yet."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def said(context: BrowserContext) -> list[str]:
    """What the browser complains of, in any page."""
    said: list[str] = []
    context.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    context.on("weberror", lambda error: said.append(str(error.error)))
    return said


@pytest.fixture
def page(context: BrowserContext, said: list[str], place: Place) -> Iterator[Page]:
    """The console, which shows all of the store. At the end nothing may have gone wrong in it."""
    page = context.new_page()
    elsewhere: list[str] = []
    page.on("request", lambda r: None if r.url.startswith(place.url) else elsewhere.append(r.url))
    page.goto(f"{place.url}/")
    page.wait_for_selector("#packets .page .row")
    page.wait_for_selector("#hosts table")
    yield page
    assert said == []
    assert [url for url in elsewhere if not url.startswith("blob:")] == []
    assert page.evaluate("typeof owned") == "undefined"
