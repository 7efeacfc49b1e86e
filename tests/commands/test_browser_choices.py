"""What a page of episodes says of a choice: whether memory decided it, and its numbers beside those of correct ones.

Choices, rooms and evidence are laid over a real episode, so that it is known what the page has to say.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.browser import STEPS, Tab, all_heads, current_step, expected_attention, show, slot_steps

CHOICE = 100
"""The step of the choice of which a page is asked."""
LATER = np.arange(102, STEPS, 5)
"""Steps of correct choices after the room of that choice."""
DECIDED = np.log(200)
"""Evidence that memory decided: actions were 200 times as likely as with the other object as the example."""
GUESS = np.log(2.5)
"""Evidence that is too little to say so."""


@pytest.fixture
def episode(tab: Tab, filmed: Path) -> dict[str, Any]:
    """The episode of the finished run; the tab shows it."""
    (episode,) = show(tab, filmed)["episodes"]
    assert len(episode["values"]) == STEPS
    return episode


@pytest.fixture
def right(episode: dict[str, Any]) -> np.ndarray:
    """Steps at which a choice is laid that is correct: all slots of memory are in use there."""
    layer = episode["layers"][0]
    of_memory = slice(0, sum(layer["sizes"][:2]))
    first_steps = slot_steps(episode, layer)[:, of_memory, 0]
    return np.array([step for step in range(25, STEPS, 11) if (first_steps[step] >= 0).all()])


LAY_CHOICES = """([right, wrong, choice]) => {
    episode.choices = episode.values.map((_, at) => Number(right.includes(at)) - Number(at === wrong));
    compared.clear();
    get('choice').open = true;  // what is folded away has no text
    go(choice);
}"""
"""Lays correct choices and a wrong one over the episode, and goes to a choice."""


def said_of_choice(tab: Tab, right: np.ndarray, wrong: int = CHOICE) -> str:
    """Lays choices over the episode and returns what the page says of the one at step `CHOICE`."""
    tab.evaluate(LAY_CHOICES, [right.tolist(), wrong, CHOICE])
    return tab.locator("#answer").inner_text().replace("−", "-")


def attention_to_the_example(episode: dict[str, Any], step: int) -> float:
    """Percent of the attention at a step that goes to the latest stay in the first room, that of the example."""
    rooms = np.array(episode["poses"])[:, 3]
    leaves = np.flatnonzero(rooms[: step + 1] == 0)[-1]
    enters = max(np.flatnonzero(rooms[:leaves]), default=-1) + 1
    total = 0.0
    for (first, last), share in expected_attention(episode, step, [0, 1], all_heads(episode)).items():
        common = max(0, min(last, leaves) - max(first, enters) + 1)
        total += share * common / (last - first + 1)
    return 100 * total


def test_numbers_of_a_choice_are_beside_those_of_correct_ones(
    tab: Tab, episode: dict[str, Any], right: np.ndarray
) -> None:
    """The number of the choice, and the median and quartiles of the correct choices."""
    said = said_of_choice(tab, right)
    known = {
        "value before the choice": np.array(episode["values"]),
        "attention at the choice to the latest stay in the room of the example": np.array(
            [attention_to_the_example(episode, step) for step in range(STEPS)]
        ),
    }
    for name, numbers in known.items():
        _, _, after = said.partition(f"{name}\t")
        row, _, _ = after.partition("\n")
        found = [float(number) for number in re.findall(r"[+-]?\d[\d.]*", row)]
        expected = [numbers[CHOICE], *np.quantile(numbers[right], [0.5, 0.25, 0.75])]
        assert found == pytest.approx(expected, rel=0.02, abs=0.1)


def test_a_number_is_unusual_if_few_correct_choices_have_one_as_far_out(
    tab: Tab, episode: dict[str, Any], right: np.ndarray
) -> None:
    values = np.array(episode["values"])
    as_low = (values[right] <= values[CHOICE]).sum()
    as_high = (values[right] >= values[CHOICE]).sum()
    chance = 2 * (min(as_low, as_high) + 1) / (len(right) + 1)
    is_said = "Unusual: value before" in said_of_choice(tab, right)
    assert is_said == (chance <= 0.2)


def test_too_few_correct_choices_are_not_compared(tab: Tab, right: np.ndarray) -> None:
    assert "There are only 3 correct choices: too few" in said_of_choice(tab, right[:3])
    assert "There are no correct choices" in said_of_choice(tab, right[:0])


def test_without_a_wrong_choice_there_is_none_to_go_to(tab: Tab, right: np.ndarray) -> None:
    no_step = -1
    said_of_choice(tab, right, wrong=no_step)
    tab.evaluate("choose(0, 100)")
    tab.wait_for_selector("#mistake:disabled:has-text('no mistake')")


LAY_ROOM = """(evidence) => {
    const isInRoom = (at) => at >= 80 && at <= 100;
    const pose = (at) => {
        if (isInRoom(at)) return [-1, 0, 90, 1];
        if (at < 60) return [10, 0, 0, 0];
        if (at < 80) return [10, 0, 180, 0];
        return [10, 0, 90, 0];
    };
    const cone = ["red cone, left", 50, 9];
    const cube = ["red cube, right", -50, 9];
    const things = (at) => (isInRoom(at) ? { take: cone, leave: cube } : { example: cone });
    const weighed = (at) => (at === 86 ? evidence : 0);
    const steps = episode.values.map((_, at) => at);
    episode.poses = steps.map(pose);
    episode.situations = steps.map(things);
    episode.evidence = steps.map((at) => (isInRoom(at) ? weighed(at) : null));
    episode.apart = null;
    episode.entered = null;
}"""
"""Lays two rooms over the episode, with evidence that memory decided at step 86 (a logarithm of a likelihood ratio).

In the first room the example, a cone, is in view up to step 59; then the agent turns. The room of the choice is entered
at step 80, between a cone, which is to be taken, and a cube, which is a little nearer and so is what it takes. A pose
is x, y, the direction in degrees, and the room.
"""


def counts_of_wrong(misled: int = 0, guessed: int = 0, against: int = 0) -> str:
    """A part of the sentence on all choices of the page, of which one is wrong."""
    return f"of 1 wrong one it misled {misled}, made little difference in {guessed} and spoke against {against}"


VERDICTS = {
    "misled": (
        DECIDED,
        "Wrong: memory misled it",
        [
            "its actions in this room would have been 200 times less likely (100 or more means that memory decided)",
            "it seems to have mistaken the example for the other object",
            "It took the red cube (leave), not the red cone (take).",
        ],
    ),
    "against": (
        -DECIDED,
        "Wrong, against its memory",
        ["its actions in this room would have been 200 times more likely"],
    ),
    "guessed": (
        GUESS,
        "Wrong: a guess",
        [
            "it would have done much the same (likelihood ratio 2.5; 100 or more would mean that memory decided)",
            "the page cannot say which",
        ],
    ),
}
"""How a wrong choice is counted; the evidence that is laid, how what is said of it begins, and parts of the rest."""


@pytest.mark.parametrize("counted", VERDICTS)
def test_a_wrong_choice_has_a_verdict(tab: Tab, right: np.ndarray, counted: str) -> None:
    evidence, beginning, parts = VERDICTS[counted]
    tab.evaluate(LAY_ROOM, evidence)
    said = said_of_choice(tab, right)
    assert said.startswith(beginning)
    for part in [*parts, counts_of_wrong(**{counted: 1})]:
        assert part in said


def test_what_happened_before_a_choice(tab: Tab, right: np.ndarray) -> None:
    """Which object it took, the step that changed the verdict, the stay before, and choices between things alike."""
    tab.evaluate(LAY_ROOM, DECIDED)
    said = said_of_choice(tab, right)
    assert "It took the red cube, right (leave), not the red cone, left (take)" in said
    assert "changed the verdict most is 86, 6 after entering" in said
    assert "60 of the 80 steps of the latest stay (0–79) had the example in view" in said

    # Choices in this room are between two red things.
    in_room = 1 + np.isin(right, range(80, 101)).sum()
    rates = f"of choices between such things, 1 of {in_room} on this page were wrong, of the others 0 of"
    assert f'alike ("red"): {rates}' in said


def test_objects_are_shown_as_they_were_seen_best(tab: Tab, right: np.ndarray) -> None:
    """It turns to one of the two at step 90, and never sees the other."""
    tab.evaluate(LAY_ROOM, DECIDED)
    said_of_choice(tab, right)
    tab.evaluate("episode.poses[90][2] = 170; go(100)")
    objects = [text.split("\n") for text in tab.locator(".object").all_inner_texts()]
    assert objects == [["the example", "red cone", "seen at step 0"], ["✗ it took", "red cube", "seen at step 90"]]


LAY_OTHERS = """(apart) => {
    const isInRoom = episode.evidence.map((one) => one !== null);
    episode.evidence = episode.evidence.map((one) => one ?? 9);
    episode.apart = isInRoom.map((is) => (is ? apart : 1));
}"""
"""Lets memory decide all steps outside the room, and says how far apart the two objects were in memory in the room.

At correct choices, which are outside, the distance is 1.
"""


def lay_guess(tab: Tab, apart: float) -> None:
    """A choice that is a guess, with a distance in memory between its objects."""
    tab.evaluate(LAY_ROOM, GUESS)
    tab.evaluate(LAY_OTHERS, apart)


@pytest.mark.usefixtures("episode")
def test_a_guess_says_whether_the_objects_were_told_apart(tab: Tab) -> None:
    """By their distance in memory, if it is as large as at correct choices."""
    lay_guess(tab, apart=1)
    assert "It told the two apart when it saw the example" in said_of_choice(tab, LATER)

    lay_guess(tab, apart=0.1)
    said = said_of_choice(tab, LATER)
    far = "with the other object as the example, what entered its memory would have been 0.1 away from what it was"
    assert f"Probably it never told the two apart: {far}, at correct choices typically 1" in said
    assert f"it was more at {len(LATER)} of {len(LATER)} correct choices" in said
    assert f"In 1 of 1 guesses, and in 0 of {len(LATER)} choices that memory decided" in said


@pytest.mark.usefixtures("episode")
def test_the_step_that_changed_a_verdict_is_a_click_away(tab: Tab) -> None:
    """And the choice is a click back. A step before the room belongs to no choice."""
    lay_guess(tab, apart=0.1)
    said_of_choice(tab, LATER)
    tab.locator("#decisive").click()
    assert current_step(tab) == 86
    assert tab.locator("#verdict").inner_text() == "Wrong: a guess (the choice at step 100)"
    tab.get_by_role("button", name="back to the choice, step 100").click()
    assert current_step(tab) == 100

    # Before the room of the choice, where the name of the example is above it.
    assert tab.locator("#answer").is_visible()
    tab.evaluate("go(10)")
    assert tab.locator("#named").inner_text() == "example ▾"
    assert tab.locator("#answer").is_hidden()
