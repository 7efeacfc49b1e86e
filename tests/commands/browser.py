"""Pages as a person uses them, in a headless Chromium: tabs that notice errors, and what a page of episodes shows."""

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.pages import embedded, unpacked

Tab = Any
"""`playwright.sync_api.Page`: Playwright is imported only when a browser is started, as it may be missing."""
Ends = tuple[int, int]
"""The first and the last step of a slot of memory."""

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
STEPS = 180
"""Of the episode that the finished run filmed."""
LOAD_MS = 60_000
"""How long a page may take to unpack what it holds."""
READY = "body[data-ready]"
"""Matches when the script of a page has shown its data."""
PAPER = "getComputedStyle(document.body).backgroundColor"
"""The color of a page, such as "rgb(251, 251, 250)"."""


def _find_chromium() -> str | None:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


CHROMIUM = _find_chromium()
"""The path of an installed browser; None if there is none."""


def missing() -> str:
    """What tests of a browser lack on this machine; an empty text if nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "needs playwright, which is in the extra dev"
    if CHROMIUM is None:
        return "needs an installed Chromium or Chrome"
    return ""


@contextlib.contextmanager
def running_chromium() -> Iterator[Any]:
    """A `playwright.sync_api.Browser`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def watched_tab(browser: Any, addresses: str) -> Iterator[Tab]:
    """An empty tab, in which errors and requests to other addresses than those of a pattern fail the test."""
    allowed = re.compile(rf"(data|blob):|{addresses}")
    problems: list[str] = []

    def read_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def check_request(request: Any) -> None:
        if not allowed.match(request.url):
            problems.append(request.url)

    tab = browser.new_page(viewport={"width": 1280, "height": 860})
    tab.on("console", read_message)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", check_request)
    yield tab
    tab.close()
    assert problems == [], problems


def show(tab: Tab, page: Path, place: str = "") -> dict[str, Any]:
    """Opens a page, of episodes at a place such as "#1.0" (the first episode, step 0); returns the page's data."""
    tab.goto(page.as_uri() + place)
    tab.wait_for_selector(READY, timeout=LOAD_MS)
    return embedded(page)


SHOWN = """() => ({
    step: Number(document.body.dataset.step),
    slider: Number(get('slider').value),
    facts: get('facts').innerText,
    slots: [...document.querySelectorAll('.slot')].map((slot) => ({ ...slot.dataset })),
    frame: get('view').toDataURL(),
    map: get('map').toDataURL(),
    ribbon: get('ribbon').toDataURL(),
})"""


def shown(tab: Tab) -> dict[str, Any]:
    """The present step of a page of episodes, with its texts, pictures and slots of memory."""
    return tab.evaluate(SHOWN)


def current_step(tab: Tab) -> int:
    """The present step of a page of episodes."""
    return shown(tab)["step"]


def sizes_of(slots: list[dict[str, str]]) -> dict[Ends, float]:
    """The sizes of the slots that a page shows. A size is a share of attention, or a change of odds."""
    return {(int(slot["first"]), int(slot["last"])): float(slot["size"]) for slot in slots}


def slot_steps(episode: dict[str, Any], layer: dict[str, Any]) -> np.ndarray:
    """The first and the last step in each slot of a layer at each step [T, slots, 2]; -1 where a slot is empty."""
    return unpacked(layer["steps"], "<i4").reshape(len(episode["values"]), layer["slots"], 2)


def expected_attention(episode: dict[str, Any], step: int, layers: list[int], heads: list[int]) -> dict[Ends, float]:
    """The share of attention on each filled slot at a step, as the mean of some layers and heads of the page's data."""
    parts = []
    for index in layers:
        layer = episode["layers"][index]
        roots = unpacked(layer["weights"], "u1").reshape(-1, layer["heads"], layer["slots"])[step, heads]
        parts.append((roots / 255.0) ** 2)  # a byte is the square root of a weight
        steps = slot_steps(episode, layer)[step]

    weights = np.sum(parts, axis=(0, 1))
    shares = weights / weights.sum()
    return {(first, last): share for (first, last), share in zip(steps.tolist(), shares) if first >= 0}


def all_heads(episode: dict[str, Any]) -> list[int]:
    """Of each layer."""
    return list(range(episode["layers"][0]["heads"]))


def assert_accessible(tab: Tab) -> None:
    """axe-core finds no fault, in light and dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        violations = axe.run(tab).response["violations"]
        faults = [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in violations]
        assert faults == [], faults
