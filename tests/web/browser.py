"""A real Chromium, driven headless: found on the machine, never fetched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SIZES = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 844)}


def chromium() -> str | None:
    """The browser of the machine, if there is one."""
    named = os.environ.get("LOOPX_CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser with a profile of its own, ended at the end."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(FLAGS), headless=True)
        try:
            yield browser
        finally:
            browser.close()


def look(browser: Browser, kind: str) -> BrowserContext:
    """A window of one kind: `light`, `dark` or `phone`."""
    width, height = SIZES[kind]
    return browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if kind == "dark" else "light",
        device_scale_factor=1 if kind != "phone" else 2,
        is_mobile=kind == "phone",
        has_touch=kind == "phone",
        timezone_id="Europe/Berlin",
        locale="en",
        reduced_motion="reduce",
    )


def shoot(page: Page, path: str) -> None:
    """The whole page as a picture."""
    page.screenshot(path=path, full_page=True, animations="disabled")
