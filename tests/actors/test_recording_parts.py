"""Recordings of actions that are vectors and of observations of several parts: what films and pages make of them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from actors import Actor
from actors.interface import read_interface
from actors.recorder import record_episodes
from actors.recording import Recording
from agent import Agent, AgentConfig, AgentOutput
from agent.core import LSTMConfig
from envs.actions import ChoiceColumn
from envs.gym import adapt
from envs.outputs import checked
from envs.processes import batch
from reports.actions import columns, means, received
from reports.episode import _episode, page_data
from reports.pages import render_page
from reports.video import Frame, action_lines, count_frames, film, instruction_lines, pictures, signed
from reports.views import BACKGROUND, BARS, WIDTH, Panel, colored, panels, views, what_is_seen
from tests.commands.pages import Elements, shown_frames, unpacked

STEPS = 4
CAMERA = 40
"""Brightness of the camera's first image; it grows by one a step."""
DEPTH = 200
"""Brightness of all images of the depth."""
SAMPLED = [2.0, 0.5, -3.0, 1.0, 0.0]
"""The action of each step: a choice of 7, 8 and 9, a number within 0..8, one without bounds, and two switches."""


class Robot(gymnasium.Env[Any, Any]):
    """It has a Tuple of actions, and a Dict of two images and two numbers as observations."""

    metadata = {"render_modes": [], "render_fps": 10, "episode_metrics": ("correct_choices", "wrong_choices")}  # noqa: RUF012
    action_space = spaces.Tuple(
        [
            spaces.Discrete(3, start=7),
            spaces.Box(0.0, 8.0, (1,)),
            spaces.Box(-np.inf, np.inf, (1,)),
            spaces.MultiBinary(2),
        ]
    )
    observation_space = spaces.Dict(
        arm=spaces.Box(-1.0, 1.0, (2,), np.float32),
        camera=spaces.Box(0, 255, (12, 16, 3), np.uint8),
        depth=spaces.Box(0, 255, (6, 4, 1), np.uint8),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {"correct_choices": 0, "wrong_choices": 0}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.time += 1
        counts = {"correct_choices": int(self.time > 2), "wrong_choices": 0}
        return self._look(), 1.0, self.time == STEPS, False, counts

    def _look(self) -> dict[str, Any]:
        return {
            "arm": np.array([0.5, self.time / 8], np.float32),
            "camera": np.full((12, 16, 3), CAMERA + self.time, np.uint8),
            "depth": np.full((6, 4, 1), DEPTH, np.uint8),
        }


TAG = "</script><img src=x onerror=alert(1)>"
TEXTS = ["Go to the red ball", "Go to the red ball", f"{TAG}\0\n\ud800<!-- {{{{ json }}}}", ""]
"""Of each step; the third one tries to leave a page, and has characters that no font can draw."""


class Told(Robot):
    """It says what to do, and this changes within an episode."""

    observation_space = spaces.Dict(arm=Robot.observation_space["arm"], told=spaces.Text(100))

    def _look(self) -> dict[str, Any]:
        return {"arm": super()._look()["arm"], "told": TEXTS[self.time % STEPS]}


def unknown(states: object) -> Any:
    """What would have been seen with another example; it is not asked for where actions are vectors."""
    raise AssertionError("counterfactuals were asked for")


def record_robot(robot: type[Robot] = Robot) -> Recording:
    """An episode with the actions `SAMPLED`."""
    torch.manual_seed(0)
    envs = batch(lambda: adapt(checked(robot())), 1)
    envs.counterfactuals = unknown  # type: ignore[attr-defined]
    seen = read_interface(envs)
    config = AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8), action_bounds="squash")
    agent = Agent(config, seen.observation_shape, seen.actions, seen.vocabulary)
    actor = Actor(envs, agent, actor_id=0, seed=3)

    # The actor has a known policy and takes a known action.
    act = actor.act
    choice_logits = [math.log(0.2), math.log(0.3), math.log(0.5)]
    means = [math.atanh(0.25), -3.5]
    log_scales = [math.log(0.5), math.log(2.0)]
    switch_logits = [0.0, 0.0, math.log(3.0), 0.0]
    parameters = torch.tensor([*choice_logits, *means, *log_scales, *switch_logits])

    def chosen(**options: Any) -> tuple[Tensor, AgentOutput]:
        _, output = act(**options)
        return torch.tensor([SAMPLED]), output._replace(policy_parameters=parameters[None, None])

    actor.act = chosen  # type: ignore[method-assign]
    (found,) = record_episodes(actor, 1)
    return found


def number_of_frames(path: Path) -> int:
    """Of a film."""
    with av.open(path) as video:
        return sum(1 for _ in video.decode(video=0))


def held(recording: Recording) -> int:
    """Frames for which the end of an episode stays."""
    return round(0.7 * recording.fps)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """An episode of the robot without texts."""
    return record_robot()


def test_all_parts_of_an_observation_are_recorded(recording: Recording) -> None:
    camera = recording.observations
    depth, arm = recording.more_observations
    assert recording.observation_names == ("camera", "depth", "numbers")
    assert camera.shape == (STEPS, 12, 16, 3)
    assert camera[:, 0, 0, 0].tolist() == [40, 41, 42, 43]
    assert depth.shape == (STEPS, 6, 4, 1)
    np.testing.assert_array_equal(arm, [[0.5, 0.0], [0.5, 0.125], [0.5, 0.25], [0.5, 0.375]])


def test_actions_are_in_units_of_the_environment(recording: Recording) -> None:
    """The number within 0..8 is 4 + 4 tanh(x). The action has x = 0.5; its mean has tanh(x) = 0.25, which gives 5."""
    assert [column.name for column in columns(recording)] == list(recording.action_names)
    assert [(column.size, column.low, column.high) for column in columns(recording)] == [
        (3, 7.0, 9.0),
        (0, 0.0, 8.0),
        (0, -math.inf, math.inf),
        (2, 0.0, 1.0),
        (2, 0.0, 1.0),
    ]
    taken = 4 + 4 * math.tanh(0.5)
    np.testing.assert_allclose(received(recording), [[9, taken, -3, 1, 0]] * STEPS, rtol=1e-6)
    np.testing.assert_allclose(means(recording), [[5.0, -3.5]] * STEPS, rtol=1e-6)


def test_a_page_has_the_action_by_column(recording: Recording) -> None:
    data = page_data([recording], "title", "lstm")
    assert data["actions"] == []
    names = recording.action_names
    assert data["columns"] == [
        {"name": names[0], "size": 3, "low": 7.0, "high": 9.0},
        {"name": names[1], "size": 0, "low": 0.0, "high": 8.0},
        {"name": names[2], "size": 0, "low": None, "high": None},
        {"name": names[3], "size": 2, "low": 0.0, "high": 1.0},
        {"name": names[4], "size": 2, "low": 0.0, "high": 1.0},
    ]

    # The numbers of the last step.
    (episode,) = data["episodes"]
    assert episode["actions"] is None
    numbers = {name: unpacked(values, "<f4").reshape(STEPS, -1) for name, values in episode["numbers"].items()}
    np.testing.assert_allclose(numbers["received"][3], [9, 4 + 4 * math.tanh(0.5), -3, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(numbers["means"][3], [5.0, -3.5], rtol=1e-6)
    np.testing.assert_allclose(numbers["scales"][3], [0.5, 2.0], rtol=1e-6)
    probabilities = (unpacked(episode["probabilities"], "<u2").reshape(STEPS, 7) / 65_535) ** 2
    np.testing.assert_allclose(probabilities[3], [0.2, 0.3, 0.5, 0.5, 0.5, 0.75, 0.25], atol=2e-5)
    assert episode["choices"] == [0, 0, 1, 0]

    page = render_page("episode", data)
    Elements(page)
    assert 'id="columns"' in page
    assert 'id="policy"' not in page
    assert "A choice has bars" in page
    assert "A number is a line" in page
    assert "A number without bounds" in page


def test_small_probabilities_of_a_page_are_not_0(recording: Recording) -> None:
    """400 equal ones add up to 1, and one of 0.15 % is told from 0."""
    equal = np.full((STEPS, 400), 1 / 400)
    equal[1] = [0.0015, *[0.9985 / 399] * 399]
    many = replace(recording, probabilities=equal)
    (episode,) = page_data([many], "Many", "lstm")["episodes"]
    shown = (unpacked(episode["probabilities"], "<u2").reshape(STEPS, 400) / 65_535) ** 2
    np.testing.assert_allclose(shown.sum(axis=1), 1, atol=1e-3)
    assert shown[1, 0] == pytest.approx(0.0015, rel=1e-2)


def test_the_note_of_a_page_names_all_that_is_left_out(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the first episode and another episode. Of what is left out nothing is counted."""
    counted: list[int] = []
    monkeypatch.setattr("reports.episode.agreement", lambda recordings: counted.append(len(recordings)))
    _, bytes_of_two_steps = _episode(recording, views(recording)[:2])
    page = page_data([recording] * 2, "Small", "lstm", limit=100_000 + bytes_of_two_steps)
    assert page["note"] == (
        f"The page shows the first 2 of {STEPS} steps of episode 1 and 1 of 2 episodes, because of its size."
    )
    assert counted == [1]


def test_images_are_beside_each_other_above_the_vector(recording: Recording) -> None:
    """Both have 12 rows then, with 16 and 8 columns, and are enlarged 13 times, to at least 300 columns in all."""
    assert panels(recording) == [Panel("camera", 0, 208), Panel("depth", 212, 104)]
    shown = views(recording)
    assert shown.shape == (STEPS, 156 + BARS, 316, 3)
    assert (shown[3, :156, :208] == CAMERA + 3).all()
    assert (shown[3, :156, 208:212] == BACKGROUND).all()
    assert (shown[3, :156, 212:] == DEPTH).all()
    assert what_is_seen(recording).startswith("Below: the vector")

    # The page says where each image is.
    data = page_data([recording], "title", "lstm")
    assert data["panels"] == [{"name": "camera", "left": 0, "width": 208}, {"name": "depth", "left": 212, "width": 104}]
    np.testing.assert_allclose(shown_frames(data, data["episodes"][0])[..., :3], shown, atol=3)
    assert '<span style="width: 67.0886075949367%" title="camera">camera</span>' in render_page("episode", data)


def test_images_alone_are_not_enlarged(recording: Recording) -> None:
    depth, _ = recording.more_observations
    images = replace(recording, more_observations=(depth,), observation_names=("camera", "depth"))
    assert views(images).shape == (STEPS, 12, 28, 3)
    assert what_is_seen(images) == ""


def test_one_image_above_a_vector_is_enlarged(recording: Recording) -> None:
    _, arm = recording.more_observations
    vector = replace(recording, more_observations=(arm,), observation_names=("camera", "numbers"))
    assert panels(vector) == [Panel("camera", 0, 304)]
    assert views(vector).shape[2] >= WIDTH


@pytest.mark.parametrize(
    ("sizes", "with_vector", "expected"),
    [
        ([(480, 640), (480, 640), (480, 640)], False, (373, [497, 497, 497])),  # three cameras
        ([(480, 640), (480, 640), (480, 640)], True, (373, [497, 497, 497])),
        ([(3000, 10), (3000, 10)], True, (1500, [5, 5])),
        ([(32, 32), (1, 64)], False, (32, [32, 128])),  # a strip, which is not as wide as it would have to be
        ([(32, 32), (1, 64)], True, (64, [64, 256])),
        ([(3000, 100), (100, 100)], False, (1447, [48, 1447])),
        ([(1, 5000), (1, 5000)], True, (37, [148, 148])),
        ([(12, 16)], False, None),
        ([(2000, 3300)], False, (667, [1100])),
        ([(1, 1500)], False, (1, [1500])),
    ],
)
def test_images_of_all_sizes_are_shown(
    sizes: list[tuple[int, int]], with_vector: bool, expected: Any, recording: Recording, tmp_path: Path
) -> None:
    images = [np.full((STEPS, *size, 3), 30 * (1 + number), np.uint8) for number, size in enumerate(sizes)]
    first, *others = images
    vectors = [np.zeros((STEPS, 3), np.float32)] if with_vector else []
    names = tuple(f"image {number}" for number in range(len(sizes))) + ("numbers",) * with_vector
    odd = replace(
        recording, observations=first, more_observations=(*others, *vectors), observation_names=names, renderings=None
    )
    shown = views(odd)
    _, height, width, _ = shown.shape
    height -= BARS * with_vector
    if expected is not None:
        places = panels(odd) or [Panel("", 0, width)]
        assert (height, [panel.width for panel in places]) == expected
        assert width == places[-1].left + places[-1].width
        for number, panel in enumerate(places, 1):
            assert (shown[:, :height, panel.left : panel.left + panel.width] == 30 * number).all()
    page_data([odd], "title", "lstm")
    film([odd], tmp_path / "odd.mp4")


def test_the_film_says_what_each_column_is(recording: Recording, tmp_path: Path) -> None:
    # Few columns have a line each, with their names; more are numbers alone.
    names = ("gear", "throttle", "a long name of a number")
    three = replace(recording, parts=recording.parts[:3], actions=recording.actions[:, :3], action_names=names)
    assert action_lines(three)[0] == [("action", "gear 9"), ("", "throttle 5.85"), ("", "…f a number -3")]
    assert action_lines(recording)[0] == [("action", "9  5.85  -3  1  0")]

    # All steps have as many lines as the longest.
    uneven = replace(recording, actions=np.array([[0, 0, 0, 0, 0], [0, 0, -1234.5, 0, 0], [0, 0, -1.2345e-20, 0, 0]]))
    assert [len(lines) for lines in action_lines(uneven)] == [2, 2, 2]

    film([recording], tmp_path / "robot.mp4")
    assert number_of_frames(tmp_path / "robot.mp4") == STEPS + held(recording)


def test_the_film_ends_with_the_last_reward(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of any size are readable, and the reward is beside them."""
    said: list[tuple[str, str]] = []

    def line(frame: Frame, name: str, value: str, more: str = "", color: object = None) -> None:
        if name == "score":
            said.append((value, more))
        drawn(frame, name, value, more, (1, 2, 3))

    drawn = Frame.line
    monkeypatch.setattr(Frame, "line", line)
    last = [0.0] * (STEPS - 2) + [12345.4, 1.5]
    film = list(pictures([replace(recording, rewards=np.array(last))]))
    assert said == [("+0", "")] * (STEPS - 1) + [("+12,345", "+12,345"), ("+12,347", "+12,347")]
    assert count_frames([recording]) == len(film) == STEPS + held(recording)
    assert not np.array_equal(film[STEPS - 1], film[-1])
    assert [signed(score) for score in (-1.25, 999.5, -1000.0, 2e9)] == ["-1.25", "+999.5", "-1,000", "+2e+09"]

    # The reward begins behind the score.
    frame = Frame(False)
    texts: list[float] = []
    monkeypatch.setattr(frame, "text", lambda left, top, text, color=None: texts.append(left))
    drawn(frame, "score", "+1,234,567", "+1,234,567")
    _, score, reward = texts
    assert reward > score + frame.font.getlength("+1,234,567")


def test_a_long_name_of_an_action_has_two_lines(recording: Recording) -> None:
    names = ("CompassIntercardinalDirection.NE", "go", f"{'x' * 50}.end")
    discrete = replace(recording, parts=(), action_names=names, actions=np.arange(3))
    long, short, longer = action_lines(discrete)
    assert long == [("action", "CompassIntercardinal"), ("", "Direction.NE")]
    assert short == [("action", "go"), ("", "")]
    assert "".join(line for _, line in longer) == f"…{'x' * 35}.end"


def test_the_film_leaves_out_what_does_not_fit(recording: Recording) -> None:
    count = 90
    many = replace(
        recording,
        parts=(ChoiceColumn("switch", 2),) * count,
        action_names=tuple(f"switch[{index}]" for index in range(count)),
        actions=np.ones((1, count), np.float32),
    )
    (lines,) = action_lines(many)
    assert len(lines) == 4
    assert lines[0] == ("action", "1  1  1  1  1  1  1")
    assert lines[3][1].endswith(" …")


def test_texts_are_recorded_beside_the_numbers_of_their_words(recording: Recording) -> None:
    told = record_robot(Told)
    assert told.instructions == tuple(TEXTS)
    assert told.observations.shape == (STEPS, 2)
    assert recording.instructions is None
    assert instruction_lines(recording) == [[]] * STEPS


def test_a_page_shows_texts_where_they_change_and_escapes_them() -> None:
    data = page_data([record_robot(Told)], "Told", "lstm")
    (episode,) = data["episodes"]
    assert episode["instructions"] == [(0, TEXTS[0]), (2, TEXTS[2]), (3, "")]
    page = render_page("episode", data | {"related": []})
    Elements(page)
    assert "<img" not in page
    assert "\\u003c/script>\\u003cimg src=x onerror=alert(1)>" in page


def test_a_page_speaks_only_of_what_there_is(recording: Recording) -> None:
    """Its crosses mark choices; a report on compression is of cores that compress."""
    crosses = "Crosses above the slider"
    report = "What compression keeps and loses"
    page = render_page("episode", page_data([recording], "title", "lstm") | {"related": []})
    assert crosses in page
    assert report not in page
    never = replace(recording, choices=np.zeros(STEPS, int))
    assert crosses not in render_page("episode", page_data([never], "title", "lstm") | {"related": []})


def test_the_film_shows_texts_in_few_lines_as_far_as_a_font_can_draw_them(tmp_path: Path) -> None:
    """All steps have as many lines as the longest text, here three."""
    told = record_robot(Told)
    first, second, hostile, last = instruction_lines(told)
    empty = ("", "")
    assert first == second == [("instruction", "Go to the red ball"), empty, empty]
    assert last == [("instruction", ""), empty, empty]
    assert [title for title, _ in hostile] == ["instruction", "", ""]
    lines_of_hostile = [line for _, line in hostile]
    assert "".join(lines_of_hostile).isprintable()
    assert lines_of_hostile[0] == "</script><img src=x"
    film([told], tmp_path / "told.mp4")
    assert number_of_frames(tmp_path / "told.mp4") == STEPS + held(told)


def test_a_film_shows_five_lines_of_a_long_text() -> None:
    told = record_robot(Told)
    long = replace(told, instructions=("word " * 99,) * STEPS)
    (lines, *_) = instruction_lines(long)
    assert len(lines) == 5
    assert lines[4][1].endswith(" …")


def test_counterfactuals_are_for_actions_of_discrete_spaces(recording: Recording) -> None:
    assert recording.counterfactual_probabilities is None
    assert recording.counterfactual_distances is None
    assert recording.room_entries is None


@pytest.mark.parametrize(
    ("channels", "shown"),
    [
        ([1], [1, 1, 1]),
        ([10, 20], [15, 15, 15]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4], [4, 4, 4]),
        ([1, 2, 3, 255], [1, 2, 3]),
        ([1, 2, 3, 4, 5, 6], [4, 5, 6]),
        ([1, 2, 3, 4, 5], [5, 5, 5]),
    ],
)
def test_of_a_stack_of_frames_the_last_one_is_shown(channels: list[int], shown: list[int]) -> None:
    """A fourth channel that is 255 everywhere is transparency; all other channels differ in one pixel."""
    pictures = np.tile(np.array(channels, np.uint8), (2, 3, 5, 1))
    one_pixel = pictures[0, 0, 0]
    one_pixel[one_pixel < 255] += 1
    _, second = colored(pictures)
    assert second.tolist() == np.tile(shown, (3, 5, 1)).tolist()


@pytest.mark.parametrize(("fourth", "shown"), [(255, [10, 20, 30]), (100, [40, 40, 40])])
def test_what_the_agent_draws_has_the_channels_of_what_it_saw(fourth: int, shown: list[int]) -> None:
    """A fourth channel is transparency if it was in the observation, whatever the agent draws in its place."""
    seen = np.full((2, 3, 3, 4), 255, np.uint8)
    seen[0, 0, 0, 3] = fourth
    drawn = np.tile(np.array([10, 20, 30, 40], np.uint8), (2, 3, 3, 1))
    drawn[0, 0, 0, 3] = 41
    assert colored(drawn, seen)[1, 2, 2].tolist() == shown
