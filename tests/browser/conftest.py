"""A browser: Debian's Chromium, driven by Playwright. Without either these tests are skipped."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(".cache/browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
SHAPES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Ends with its module: as long as it is there, no test of the process can run a loop."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


def picture(page: Any, name: str) -> None:
    """Keep how a page looks in `.cache/browser`."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@pytest.fixture
def look(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`look(url, shape="phone", scheme="dark")`: the page, and no error in its console at the end.

    A test that fails leaves a picture of each page in `.cache/browser`.
    """
    errors: list[str] = []
    opened: list[Any] = []

    def open_page(url: str, shape: str = "desktop", scheme: str = "light", **more: Any) -> Any:
        width, height = SHAPES[shape]
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **more
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and errors.append(said.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        opened.append(page)
        page.goto(url)
        return page

    failed_before = request.session.testsfailed
    yield open_page
    for number, page in enumerate(opened):
        if request.session.testsfailed > failed_before:
            picture(page, f"{request.node.name}-{number}")
        page.context.close()
    assert errors == []
