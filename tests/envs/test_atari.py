"""Atari's preprocessing, by a literal loop over frames of the emulator; ids and fields."""

import re
from typing import Any

import numpy as np
import pytest

import envs

ale_py = pytest.importorskip("ale_py", reason="ale-py is not installed: pip install -e '.[envs]'")


@pytest.mark.parametrize(("name", "steps"), [("Pong", 120), ("Breakout", 400)])
def test_a_game_is_what_the_emulator_plays_frame_by_frame(name: str, steps: int) -> None:
    """Four frames a step, the maximum of the last two, four of these; and the scores of the game."""
    fields = "img_height=210,img_width=160,noop_max=0,use_fire_reset=False"
    env = envs.make_vector(f"gym:{name}NoFrameskip-v4,{fields}", 1)
    seen = env.reset(seed=3)[0]

    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", 3)
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(ale_py.roms.get_rom_path(name.lower()))
    emulator.reset_game()
    actions = emulator.getMinimalActionSet()
    assert env.metadata["action_names"] == [action.name for action in actions]
    empty = np.zeros((210, 160), np.uint8)
    stack = [empty, empty, empty, emulator.getScreenGrayscale()]
    assert np.array_equal(seen[0], np.stack(stack, -1))

    rng = np.random.default_rng(0)
    score = 0.0
    for _ in range(steps):
        action = int(rng.integers(len(actions)))
        frames = []
        reward = 0
        for _ in range(4):
            reward += emulator.act(actions[action])
            frames.append(emulator.getScreenGrayscale())
            if emulator.game_over():
                break
        seen, rewards, terminated, truncated, _ = env.step(np.array([action]))
        assert (rewards[0], terminated[0], truncated[0]) == (reward, emulator.game_over(), False)
        score += abs(reward)
        if emulator.game_over():
            break
        stack = [*stack[1:], np.maximum(frames[2], frames[3])]
        assert np.array_equal(seen[0], np.stack(stack, -1))
    assert score > 0


@pytest.mark.parametrize(
    ("spec", "shape", "frames"),
    [
        ("gym:ALE/Pong-v5", (84, 84, 4), 4),
        ("gym:ale_py:ALE/Pong-v5,stack_num=2,grayscale=False,frameskip=3", (84, 84, 6), 3),
        ("gym:PongNoFrameskip-v4,img_height=42,full_action_space=True", (42, 84, 4), 4),
        ("gym:ALE/Pong-v5,raw=True", (210, 160, 3), 1),
        ("gym:ALE/Pong-v5,raw=True,obs_type=ram", (128,), 1),
    ],
)
def test_what_is_seen_and_how_many_frames_a_step_has(spec: str, shape: tuple[int, ...], frames: int) -> None:
    env = envs.make_vector(spec, 2)
    assert env.single_observation_space.shape == shape
    assert env.metadata["action_repeat"] == frames
    num_actions = 18 if "full_action_space" in spec else 6
    assert env.single_action_space.n == num_actions
    assert not envs.foreign_code(spec)


def pictures(spec: str) -> Any:
    """The observations of 60 steps, whose actions follow from the number of the step."""
    env = envs.make_vector(spec, 1)
    env.reset(seed=1)
    seen = []
    for step in range(60):
        observation, *_ = env.step(np.array([step % 6]))
        seen.append(observation)
    return np.stack(seen)


def test_the_id_says_whether_actions_are_sticky() -> None:
    """With the same seed, games are the same where the probability is."""
    sticky = pictures("gym:ALE/Pong-v5")
    plain = pictures("gym:PongNoFrameskip-v4")
    assert np.array_equal(sticky, pictures("gym:PongNoFrameskip-v4,repeat_action_probability=0.25"))
    assert np.array_equal(plain, pictures("gym:ALE/Pong-v5,repeat_action_probability=0"))
    assert not np.array_equal(sticky, plain)


def breakout(fields: str, action: Any) -> tuple[list[int], Any]:
    """Breakout with one and the same action; returns the steps that end an episode, and all pictures."""
    env = envs.make_vector(f"gym:BreakoutNoFrameskip-v4,noop_max=0{fields}", 1)
    env.reset(seed=0)
    ends = []
    pictures = []
    for step in range(260):
        seen, _, terminated, _, _ = env.step(np.array([action]))
        pictures.append(seen[0])
        if terminated[0]:
            ends.append(step)
    return ends, np.stack(pictures)


NOTHING = 0
LIFE = 25
"""Steps of a life in Breakout in which nothing is done: FIRE is pressed, and the ball falls."""


def test_every_life_begins_with_fire() -> None:
    """A game of Breakout has five lives. With the step that begins the next game, it is over every 125 steps."""
    ends, _ = breakout("", NOTHING)
    game = 5 * LIFE
    assert ends == [game - 2, 2 * game - 2]
    never, _ = breakout(",use_fire_reset=False", NOTHING)
    assert not never
    continuous, _ = breakout(",continuous=True", np.zeros(3, np.float32))
    assert continuous == ends


def test_a_life_may_be_an_episode_in_training() -> None:
    """The game is the same, picture by picture. Tests are of whole games."""
    game = "gym:BreakoutNoFrameskip-v4,noop_max=0"
    _, whole = breakout("", NOTHING)
    ends, lives = breakout(",episodic_life=True", NOTHING)
    assert ends == list(range(LIFE - 2, 260, LIFE))
    assert np.array_equal(lives, whole)
    assert envs.held_out(f"{game},episodic_life=True") == envs.held_out(game) == game


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("img_height=0", "img_height: expected an integer from 1 to 512, got 0"),
        ("stack_num=2.5", "stack_num: expected an integer from 1 to 64, got 2.5"),
        ("noop_max=-1", "noop_max: expected an integer from 0 to 1000, got -1"),
        ("grayscale=3", "grayscale: expected True or False, got 3"),
        ("repeat_action_probability=2", "repeat_action_probability: expected a number from 0.0 to 1.0, got 2"),
        ("raw=1", "raw: expected True or False, got '1'"),
        ("obs_type=ram", "gym:ALE/Pong-v5 without raw=True has no field 'obs_type'; there are: frameskip, stack_num"),
        ("processes=2", "gym:ALE/Pong-v5 without raw=True has no field 'processes'"),
    ],
)
def test_wrong_fields_are_named(fields: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^environment gym:ALE/Pong-v5,{fields}: {re.escape(message)}"):
        envs.make_vector(f"gym:ALE/Pong-v5,{fields}", 1)


def test_wrong_games_and_numbers_are_named() -> None:
    with pytest.raises(ValueError, match=r"environment gym:ALE/Pongg-v5: .* Did you mean: `Pong`"):
        envs.make_vector("gym:ALE/Pongg-v5", 1)
    with pytest.raises(ValueError, match="num_envs: expected at least 1, got 0"):
        envs.make_vector("gym:ALE/Pong-v5", 0)
