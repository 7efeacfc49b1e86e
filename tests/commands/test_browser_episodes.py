"""The page of episodes in a browser: the ways to a step, what is shown of it, and where the page opens."""

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reports.episode import page_data
from reports.pages import write_page
from tests.actors.test_recording_parts import TAG, TEXTS, Robot, Told, record_robot
from tests.commands.browser import LOAD_MS, READY, STEPS, Tab, current_step, show, shown
from tests.commands.cli import Commands
from tests.commands.pages import shown_frames


def test_keys_go_to_steps(tab: Tab, filmed: Path) -> None:
    """To the one after and before, the last and the first, and the next with a reward."""
    data = show(tab, filmed, "#1.0")
    (episode,) = data["episodes"]
    tab.select_option("#show", "attention")
    last = len(episode["actions"]) - 1
    first = shown(tab)
    assert (first["step"], first["slider"]) == (0, 0)

    keys = [("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", last), ("Home", 0)]
    rewarded = [step for step, reward in enumerate(episode["rewards"]) if reward and step > 0]
    if rewarded:
        keys.append(("n", rewarded[0]))
    for key, step in keys:
        tab.keyboard.press(key)
        now = shown(tab)
        assert (now["step"], now["slider"]) == (step, step), key
        assert f"{step} of {last}" in now["facts"]
        action = data["actions"][episode["actions"][step]]
        assert action in now["facts"]
        assert tab.locator("#policy .chosen").first.inner_text() == action
        if step == last:
            assert now["frame"] != first["frame"]
            assert now["map"] != first["map"]


LAY_MISTAKES = """(wrong) => {
    episode.choices = episode.values.map((_, at) => (wrong.includes(at) ? -1 : 0));
    go(100);
}"""
"""Lets choices at some steps be wrong, and goes to step 100."""


def test_a_key_goes_to_the_next_wrong_choice(tab: Tab, filmed: Path) -> None:
    """After the last one to the first one; without any it stays."""
    (episode,) = show(tab, filmed, "#1.150")["episodes"]
    assert tab.locator("#mistake").is_visible() == any(episode["choices"])
    wrong = [step for step, choice in enumerate(episode["choices"]) if choice < 0]
    later = [step for step in wrong if step > 150]
    tab.keyboard.press("m")
    assert current_step(tab) == [*later, *wrong, 150][0]

    # Whatever was chosen in the episode.
    tab.evaluate(LAY_MISTAKES, [60, 160])
    for step in (160, 60, 160):
        tab.keyboard.press("m")
        assert current_step(tab) == step


def write_with_choices(page: Path, choices: dict[int, int], copy: Path) -> Path:
    """A copy of a page with other choices, by step: 1 is a right one, -1 a wrong one."""
    text = page.read_text()
    given = re.search(r'"choices":\[[^]]*\]', text)
    assert given is not None
    of_steps = [choices.get(step, 0) for step in range(STEPS)]
    copy.write_text(text.replace(given.group(), f'"choices":{json.dumps(of_steps)}'))
    return copy


def test_a_link_leads_to_its_step(tab: Tab, filmed: Path, tmp_path: Path) -> None:
    """Also where the page would open at a mistake."""
    page = write_with_choices(filmed, {90: -1}, tmp_path / "page.html")
    show(tab, page, "#1.7")
    assert tab.evaluate("step") == 7

    # The page's own link.
    tab.locator("#slider").fill("150")
    link = tab.locator("#here").get_attribute("href")
    tab.keyboard.press("Home")
    assert current_step(tab) == 0
    tab.goto(page.as_uri() + link)
    tab.wait_for_function("document.body.dataset.step === '150'")


def test_a_key_plays_and_pauses(tab: Tab, filmed: Path) -> None:
    show(tab, filmed, "#1.0")
    tab.keyboard.press(" ")
    tab.wait_for_function("Number(document.body.dataset.step) > 3")
    assert tab.locator("#play").inner_text() == "Pause"
    tab.keyboard.press(" ")
    assert tab.locator("#play").inner_text() == "Play"


def test_each_step_has_its_picture(tab: Tab, filmed: Path) -> None:
    """Each pixel of a frame is drawn as a square of 24 x 24."""
    data = show(tab, filmed, "#1.0")
    (episode,) = data["episodes"]
    frames = shown_frames(data, episode)
    for step in (99, 100, 179, 0):
        tab.evaluate("(step) => go(step)", step)
        _, _, encoded = shown(tab)["frame"].partition(",")
        drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"))
        assert drawn.shape == (24 * 24, 32 * 24, 3)
        middles = drawn[12::24, 12::24]
        np.testing.assert_array_equal(middles, frames[step])


@pytest.mark.parametrize(
    ("choices", "opened"),
    [
        pytest.param({60: 1, 90: -1, 120: -1}, 90, id="first mistake"),
        pytest.param({60: 1}, 60, id="first choice"),
        pytest.param({}, 90, id="middle"),
    ],
)
def test_a_page_opens_where_something_was_decided(
    tab: Tab, filmed: Path, tmp_path: Path, choices: dict[int, int], opened: int
) -> None:
    show(tab, write_with_choices(filmed, choices, tmp_path / "page.html"))
    assert tab.evaluate("step") == opened


def test_on_a_telephone_the_picture_stays_in_sight(tab: Tab, filmed: Path, tmp_path: Path) -> None:
    width, height = (390, 844)
    show(tab, write_with_choices(filmed, {}, tmp_path / "page.html"), "#1.7")
    assert tab.evaluate("step") == 7
    tab.set_viewport_size({"width": width, "height": height})
    tab.mouse.wheel(0, 2000)
    tab.wait_for_function("window.scrollY > 300")
    view = tab.locator("#view").bounding_box()
    assert view["y"] >= 0
    assert view["height"] == pytest.approx(0.32 * height, abs=1.5)
    assert tab.locator("#watch").bounding_box()["width"] == view["width"], "names are above what they name"
    assert tab.locator("#slider").bounding_box()["y"] < height / 2


@pytest.mark.slow
def test_pages_side_by_side_go_together(tab: Tab, copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    """In both, a step of one is chosen with its slider, and an episode, which begins with its first step."""
    run = copied(env="rooms:small,episode_frames=100")
    cli.run("visualize", run, run, "--output", tmp_path / "both")
    tab.goto((tmp_path / "both" / "episodes.html").as_uri())
    _, one, two = tab.frames
    for frame in (one, two):
        frame.wait_for_selector(READY, timeout=LOAD_MS)

    def wait_for_both(step: int, episode: int) -> None:
        place = "document.body.dataset.step + ' ' + get('episode').value"
        for frame in (one, two):
            frame.wait_for_function(f"{place} === '{step} {episode}'")

    one.locator("#slider").fill("12")
    wait_for_both(step=12, episode=0)
    two.select_option("#episode", "1")
    wait_for_both(step=0, episode=1)
    two.locator("#slider").fill("7")
    wait_for_both(step=7, episode=1)


def write_robot(file: Path, robot: type[Robot] = Robot) -> Path:
    """The page of an episode with vectors of actions."""
    return write_page(file, "episode", page_data([record_robot(robot)], "Robot", "lstm"))


INSTRUCTIONS = """[...document.querySelectorAll('#facts dt')]
    .filter((name) => name.textContent === 'instruction')
    .map((name) => name.nextElementSibling.textContent)"""
"""The values of the facts of that name."""


def test_an_instruction_is_text_whatever_it_says(tab: Tab, tmp_path: Path) -> None:
    show(tab, write_robot(tmp_path / "told.html", Told), "#1.0")
    instructions = []
    for _ in TEXTS:
        (instruction,) = tab.evaluate(INSTRUCTIONS)
        instructions.append(instruction)
        tab.keyboard.press("ArrowRight")
    assert instructions[0] == instructions[1] == TEXTS[0]
    assert instructions[2].startswith(TAG)
    assert instructions[3] == ""
    assert tab.locator("img").count() == 0


@pytest.fixture
def narrow_robot(tab: Tab, tmp_path: Path) -> None:
    """The tab shows a page with vectors of actions on a narrow screen."""
    tab.set_viewport_size({"width": 390, "height": 860})
    show(tab, write_robot(tmp_path / "robot.html"), "#1.0")


@pytest.mark.usefixtures("narrow_robot")
def test_vectors_of_actions_fit_on_a_narrow_screen(tab: Tab) -> None:
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("get('columns').scrollWidth - get('columns').clientWidth") == 0
    texts = tab.locator("#columns > *").evaluate_all("(nodes) => nodes.map((node) => node.lastChild.textContent)")
    assert texts[1:3] == ["5.85", "−3"]

    # What was taken is a dot between the lowest value and the highest: 0.5, squashed into 0..8.
    dot = tab.locator(".track em").bounding_box()
    track = tab.locator(".track").bounding_box()
    middle = dot["x"] + dot["width"] / 2 - track["x"]
    taken = 4 + 4 * np.tanh(0.5)
    assert middle / track["width"] == pytest.approx(taken / 8, abs=0.01)


@pytest.mark.usefixtures("narrow_robot")
def test_keys_of_a_choice_fold_it_and_do_not_play(tab: Tab) -> None:
    """A space folds the probabilities of the focused column; an arrow goes to the next step all the same."""
    tab.locator("#columns summary").first.focus()
    tab.keyboard.press(" ")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("[document.querySelector('#columns details').open, timer, step]") == [False, None, 1]
