"""What a page of episodes says of memory: the earlier steps that decided an action, or those that it attended to."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.recorder import record_episodes
from actors.recording import Recording
from reports.episode import page_data
from reports.pages import write_page
from tests.actors.test_recording import compressive, make_actor
from tests.commands.browser import (
    STEPS,
    Ends,
    Tab,
    all_heads,
    current_step,
    expected_attention,
    show,
    shown,
    sizes_of,
    slot_steps,
)
from tests.commands.pages import unpacked

PICTURES = 12
"""Of slots, at most: those of the largest."""
FELT = 0.05
"""Smaller changes of the logarithm of odds are not shown."""


@pytest.fixture
def episode(tab: Tab, filmed: Path) -> dict[str, Any]:
    """The episode of the finished run; the tab shows its first step, and what decided the action."""
    (episode,) = show(tab, filmed, "#1.0")["episodes"]
    assert len(episode["values"]) == STEPS
    return episode


def test_pictures_are_of_the_slots_without_which_the_odds_change_most(tab: Tab, episode: dict[str, Any]) -> None:
    """At the step with the largest change; the present step is not among them."""
    changes = unpacked(episode["effects"]["slots"], "<i2").reshape(STEPS, -1) / 1000
    steps = slot_steps(episode, episode["layers"][0])
    at = int(np.abs(changes).max(axis=1).argmax())
    sizes: dict[Ends, float] = {}
    for (first, last), change in zip(steps[at].tolist(), changes[at]):
        is_earlier = first >= 0 and last < at
        if is_earlier and abs(change) >= FELT:
            sizes[first, last] = abs(change)

    tab.evaluate("(step) => go(step)", at)
    assert tab.locator("#layer").is_hidden(), "it is one of attention"
    found = sizes_of(shown(tab)["slots"])
    largest = sorted(sizes, key=lambda ends: -sizes[ends])[:PICTURES]
    assert set(found) == set(largest)
    for ends, size in found.items():
        assert size == pytest.approx(sizes[ends], abs=1e-3)


LAY_CAUSES = """([ofStretch, ofOneStep]) => {
    const { effects, values } = episode;
    const { slots, steps } = episode.layers[0];
    const last = values.length - 1;
    effects.stretches[last] = [last - 3, last - 1];
    effects.of_stretches[last] = ofStretch;
    for (let index = last * slots; index < (last + 1) * slots; index++) {
        const first = steps[2 * index];
        effects.slots[index] = first === last - 2 ? 1000 * ofOneStep : 0;
    }
    go(last);
    return get('said').textContent;
}"""
"""Lets the last action depend on a stretch of three steps, and on its middle one alone; all other slots do nothing.

Numbers are by how much the logarithm of the action's odds would fall without them. Returns what the page says.
"""


def said_of_causes(tab: Tab, of_stretch: float, of_one_step: float = 0.0) -> str:
    """What the page says of the last action with these causes."""
    return tab.evaluate(LAY_CAUSES, [of_stretch, of_one_step])


@pytest.mark.usefixtures("episode")
def test_a_sentence_says_what_decided(tab: Tab) -> None:
    """A stretch of steps, unless one of them alone does the same; and how much it mattered, for or against."""
    assert tab.locator("#said").inner_text() == "There is nothing to remember yet."
    assert "spoke for this action" in said_of_causes(tab, of_stretch=np.log(5))
    assert said_of_causes(tab, of_stretch=0.01).startswith("Memory made no difference")
    assert "less than a millionth" in said_of_causes(tab, of_stretch=20.0)

    # Which steps.
    last = STEPS - 1
    odds = "in memory its odds would be 1/20 of what they are."
    said = said_of_causes(tab, of_stretch=np.log(20))
    assert said == f"Steps {last - 3} to {last - 1} decided this action: without them {odds}"
    said = said_of_causes(tab, of_stretch=np.log(20), of_one_step=np.log(20))
    assert said == f"Step {last - 2} decided this action: without it {odds}"
    assert tab.locator(".slot").count() == 1
    assert tab.locator(".slot b").inner_text() == "÷ 20"

    # A step that speaks against the action is named where little speaks for it.
    said = said_of_causes(tab, of_stretch=0.01, of_one_step=-np.log(3))
    assert said == f"Step {last - 2} spoke against this action: without it in memory its odds would be 3 times as high."
    assert "spoke for" in said_of_causes(tab, of_stretch=np.log(5), of_one_step=-np.log(3))
    said = said_of_causes(tab, of_stretch=0.01, of_one_step=-np.log(1.5))
    assert said.startswith("Memory made little difference to this action: without")
    assert said.endswith("which matters most, its odds would be 1.5 times as high.")


LAY_KINDS = """(falls) => {
    const last = episode.values.length - 1;
    episode.effects.kinds[last] = falls;
    go(last);
}"""
"""By how much the logarithm of the last action's odds would fall without each kind of memory."""


@pytest.mark.usefixtures("episode")
def test_odds_without_each_kind_of_memory(tab: Tab) -> None:
    tab.evaluate(LAY_KINDS, [np.log(2), 0.0, -np.log(3)])
    assert tab.locator("#shares span").all_inner_texts() == [
        "odds without compressed memory ÷ 2",
        "odds without memory same",
        "odds without earlier steps of the segment × 3",
    ]


def assert_largest(shown_sizes: dict[Ends, float], expected: dict[Ends, float]) -> None:
    """The largest of the expected slots are shown, with their sizes."""
    assert len(shown_sizes) == min(PICTURES, len(expected))
    for ends, size in shown_sizes.items():
        assert size == pytest.approx(expected[ends], abs=1e-3)
    left_out = [size for ends, size in expected.items() if ends not in shown_sizes]
    assert max(left_out, default=0.0) <= min(shown_sizes.values()) + 1e-4


def test_attention_of_the_chosen_layer_and_head(tab: Tab, episode: dict[str, Any]) -> None:
    """At a step that is chosen with the slider; the first option of each menu is the mean."""
    tab.select_option("#show", "attention")
    assert_largest(sizes_of(shown(tab)["slots"]), {(0, 0): 1.0})

    def checked(layers: list[int], heads: list[int]) -> dict[str, Any]:
        """What is shown, which is the attention of some layers and heads."""
        now = shown(tab)
        assert_largest(sizes_of(now["slots"]), expected_attention(episode, 150, layers, heads))
        assert {slot["kind"] for slot in now["slots"]} <= {"compressed", "memory", "segment"}
        return now

    tab.locator("#slider").fill("150")
    views = [checked([0, 1], all_heads(episode))]
    tab.select_option("#layer", index=2)
    views.append(checked([1], all_heads(episode)))
    tab.select_option("#head", index=3)
    views.append(checked([1], [2]))

    different = {json.dumps([view["slots"], view["ribbon"]]) for view in views}
    assert len(different) == 3
    assert len({view["frame"] for view in views}) == 1


@pytest.mark.usefixtures("episode")
def test_a_slot_leads_to_its_first_step(tab: Tab) -> None:
    tab.select_option("#show", "attention")
    tab.select_option("#layer", index=2)
    tab.select_option("#head", index=3)
    tab.evaluate("go(150)")
    slot = tab.locator(".slot").first
    first = int(slot.get_attribute("data-first"))
    slot.click()
    assert current_step(tab) == first


def steps_in(text: str) -> set[int]:
    """The steps in a text such as "3, 7–9"."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:–(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_routed_slots_name_their_cluster_and_its_steps(tab: Tab, routed: tuple[Path, Recording]) -> None:
    """The first 24 slots are routed: two groups of three clusters of four. A head reads one cluster."""
    (episode,) = show(tab, routed[0])["episodes"]
    tab.keyboard.press("End")
    last = len(episode["actions"]) - 1
    layer = episode["layers"][0]
    steps = slot_steps(episode, layer)[last, :, 0]
    is_read = unpacked(layer["weights"], "u1").reshape(last + 1, 2, -1)[last] > 0
    for head in (0, 1):
        slots = np.flatnonzero(is_read[head, :24])
        (ring,) = {int(slot) // 4 for slot in slots}
        cluster = f"cluster {ring % 3 + 1} of group {ring // 3 + 1}"

        # In the pictures.
        tab.select_option("#head", index=1 + head)  # after the mean
        pictures = shown(tab)["slots"]
        clusters = {int(slot["first"]): slot["cluster"] for slot in pictures if slot["kind"] == "routed"}
        assert clusters == dict.fromkeys(steps[slots].tolist(), cluster)
        assert {slot["cluster"] for slot in pictures if slot["kind"] != "routed"} == {""}

        # In a sentence.
        line = tab.locator("#rings").inner_text()
        assert f"goes to {cluster}, which holds step" in line
        _, _, held = line.partition("holds")
        assert steps_in(held) == clusters.keys()

    # The other layer has no clusters.
    tab.select_option("#layer", index=1)
    assert tab.locator("#rings").inner_text() == ""


def test_a_page_of_routed_slots_offers_what_it_has(tab: Tab, routed: tuple[Path, Recording]) -> None:
    show(tab, routed[0])
    assert "mean of all" not in tab.locator("#layer").inner_text(), "clusters of layers are not the same"
    tab.keyboard.press("End")
    assert tab.locator("#show").is_hidden(), "what memory caused was not recorded"


HAS_WIDE = "[...document.querySelectorAll('.slot canvas')].some((canvas) => canvas.clientWidth > 200)"
WIDTHS = "(all) => all.map((canvas) => [canvas.clientWidth, Number(canvas.parentElement.dataset.size)])"
"""[width, size] of the slot of each picture."""


def test_wide_pictures_are_beside_each_other(tab: Tab, tmp_path: Path) -> None:
    """The largest slot has a picture of 208 pixels; the areas of others are as their attention."""
    (recording,) = record_episodes(make_actor(compressive(), "diagnostic:tmaze,length=9"), 1)
    page = write_page(tmp_path / "wide.html", "episode", page_data([recording], "Wide", "compressive"))
    show(tab, page)
    tab.keyboard.press("End")
    assert tab.evaluate("DATA.sheet.width / DATA.sheet.height") > 4

    # Pictures get their size when they are drawn, soon after the key.
    tab.wait_for_function(HAS_WIDE)
    widths, sizes = np.array(tab.locator(".slot canvas").evaluate_all(WIDTHS)).T
    assert widths.max() == pytest.approx(208, abs=2)
    np.testing.assert_allclose(widths, 208 * np.sqrt(sizes / sizes.max()), atol=3)
