"""A browser without a window for tests of the console: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 20_000
MISSING = (
    "there is no Chromium: `sudo apt-get install -y chromium`, or `.venv/bin/playwright install chromium`"
)
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Where there is none the test fails: what people see is not left unseen."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, (*NAMES, own))), None)
        if found is None:
            pytest.fail(MISSING, pytrace=False)
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, address: str, path: str = "", **options: object) -> Iterator[Page]:
    """A page of its own, with nothing kept from another. What goes wrong in it unseen fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on(
        "console",
        lambda said: (
            wrong.append(said.text) if said.type == "error" and "Failed to load" not in said.text else None
        ),
    )
    try:
        page.goto(address + path)
        yield page
        assert wrong == []
    finally:
        context.close()
