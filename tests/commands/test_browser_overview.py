"""The pages of `compressive watch` in a browser: runs that are sorted and copied from, and updates while they train."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.browser import LOAD_MS, READY, Tab, assert_accessible, watched_tab
from tests.commands.test_watch import serving

PATIENCE_MS = 20_000
"""How long an update may take: pages ask for one every few seconds."""


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """An empty tab for pages of a server of this machine."""
    with watched_tab(browser, r"http://127\.0\.0\.1:") as tab:
        yield tab


@pytest.fixture
def overview(tab: Tab, copied: Callable[..., Path], tmp_path: Path) -> Iterator[Path]:
    """A folder whose overview is shown: two runs that can be compared, `a` with a score of 10 and `b` of 90, and one on
    other data."""
    folder = tmp_path / "runs"
    runs = {
        copied("runs/a"): 10.0,
        copied("runs/b"): 90.0,
        copied("runs/other", env="rooms:small,episode_frames=100"): 50.0,
    }
    for run, score in runs.items():
        summary = json.loads((run / "evaluation.json").read_text())
        (run / "evaluation.json").write_text(json.dumps(summary | {"oracle_normalized": score}))
    with serving(folder) as server:
        tab.goto(server.url)
        tab.wait_for_selector(READY)
        yield folder


def add_metrics(run: Path, time: float) -> None:
    """A row with a return of 77, as a run in training adds it at a time in seconds."""
    row = {"step": 1_000_000, "time": time, "learner/frames": 4_000_000.0, "episode/return": 77.0}
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(f"{json.dumps(row)}\n")


def test_an_update_of_a_report_keeps_what_was_chosen(tab: Tab, copied: Callable[..., Path], tmp_path: Path) -> None:
    """The open group and the chosen axis. The overview leads to the report, and the report to the page of a film."""
    run = copied("runs/run")
    with serving(tmp_path / "runs") as server:
        tab.goto(server.url)
        tab.wait_for_selector(READY)
        tab.click("td a, th a")
        tab.wait_for_selector(f"{READY} #main svg")
        tab.click("#system > summary")
        tab.select_option("#controls select", "steps")
        tab.locator("#controls input").fill("0")

        # The update.
        add_metrics(run, time=2e9)
        tab.wait_for_selector("#main .legend:has-text('77')", timeout=PATIENCE_MS)
        assert tab.locator("details.group[open]").get_attribute("id") == "system"
        assert tab.locator("#controls select").input_value() == "steps"

        # The film and its page.
        assert tab.locator("video").get_attribute("src") == "videos/final.mp4"
        tab.click("text=final.html")
        tab.wait_for_selector(READY, timeout=LOAD_MS)


COMPARED = ".data:has(tbody tr + tr)"
"""The table of the runs that can be compared, which is the only one with two rows."""


def names_of(tab: Tab) -> list[str]:
    """The runs that can be compared, in the order in which they are shown."""
    return tab.locator(f"{COMPARED} tbody a").all_inner_texts()


def order_of(score: Any) -> str:
    """How runs are sorted by a column, given its heading."""
    return score.get_attribute("aria-sort")


def test_runs_are_sorted_by_click_and_by_key(tab: Tab, overview: Path) -> None:
    """First the highest score, then the lowest."""
    score = tab.locator(f"{COMPARED} th[data-key=score]")
    assert order_of(score) == "none"
    score.locator("button").click()
    assert (names_of(tab), order_of(score)) == (["b", "a"], "descending")
    tab.keyboard.press("Enter")
    assert (names_of(tab), order_of(score)) == (["a", "b"], "ascending")


def test_runs_are_sorted_by_a_menu_on_a_narrow_screen(tab: Tab, overview: Path) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.select_option("#order", label="score, ascending")
    assert names_of(tab) == ["a", "b"]
    tab.select_option("#order", label="score, descending")
    assert names_of(tab) == ["b", "a"]


def test_an_update_of_the_overview_keeps_what_was_chosen(tab: Tab, overview: Path) -> None:
    """The order, the groups that were closed, and the focus."""
    score = tab.locator(f"{COMPARED} th[data-key=score]")
    score.locator("button").click()
    tab.keyboard.press("Enter")
    other = tab.locator("details:has-text('Other runs')")
    other.locator("summary").click()
    score.locator("button").focus()

    add_metrics(overview / "a", time=1e9)
    tab.wait_for_selector("tr:has-text('d ago')", timeout=PATIENCE_MS)
    assert (names_of(tab), order_of(score)) == (["a", "b"], "ascending")
    assert tab.evaluate("document.activeElement.textContent") == "score"
    assert other.evaluate("(details) => details.open") is False


ALLOW_COPYING = """Object.defineProperty(navigator, 'clipboard', {
    configurable: true,
    value: { writeText: async (text) => { window.copied = text; } },
})"""
"""A clipboard whose content can be read here."""
REFUSE_COPYING = "Object.defineProperty(navigator, 'clipboard', { configurable: true, value: undefined })"


def test_a_command_is_copied_or_selected(tab: Tab, overview: Path) -> None:
    command = f"compressive report {overview / 'a'}"
    button = tab.locator("tr:has(a:text-is('a')) .copy")

    tab.evaluate(ALLOW_COPYING)
    button.click()
    tab.wait_for_selector(".copy:text-is('Copied')")
    assert tab.evaluate("window.copied") == command

    tab.evaluate(REFUSE_COPYING)
    button.click()
    tab.wait_for_selector(".copy:text-is('Selected')")
    assert tab.evaluate("getSelection().toString()") == command


def test_an_overview_shows_what_there_is_of_each_run(tab: Tab, overview: Path) -> None:
    """Learning curves, and scores of the evaluation or else of training."""
    assert tab.locator(".spark").count() == 3
    assert tab.locator(".tag").count() == 0
    assert_accessible(tab)

    # A run without an evaluation, and one without metrics.
    (overview / "b" / "evaluation.json").unlink()
    (overview / "a" / "metrics.jsonl").unlink()
    tab.reload()
    tab.wait_for_selector(READY)
    assert tab.locator(".spark").count() == 2
    assert tab.locator("tr:has(a:text-is('a')) td:has-text('no values yet')").count() == 1
    assert "training" in tab.locator("tr:has(a:text-is('b'))").inner_text()
    assert_accessible(tab)
