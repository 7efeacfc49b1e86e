"""Environments with masks of actions."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envs
from actors.evaluation import ScriptedActor, play_episodes
from actors.interface import read_interface
from envs.guard import OutputError
from envs.gym import adapt, make_env
from envs.masks import MASK, MaskMoved, PossibleActions
from tests.envs.masked import ACTIONS, Dials, Doors, Plain

DOORS = "gym:tests.envs.masked:Doors"


class Shown(gymnasium.Env[Any, Any]):
    """Has these spaces, says that nothing is possible, and keeps what it is asked for."""

    def __init__(self, mask: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Dict({MASK: mask, "x": spaces.Box(0, 1, (2,), np.float32)})
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        return {MASK: np.zeros(5, np.int8), "x": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        self.asked_for = action
        observation, _ = self.reset()
        return observation, 0.0, False, False, {}


@pytest.mark.parametrize("in_infos", [False, True])
def test_where_the_mask_is(in_infos: bool) -> None:
    name = f"{DOORS},in_infos=True,action_mask=True" if in_infos else DOORS
    vector = envs.make_vector(name, 3)
    known = read_interface(vector)
    assert known.mask_at is not None
    assert f"with a mask of actions at {known.mask_at}" in str(known)
    observation, _ = vector.reset(seed=0)
    for _ in range(30):
        masks = observation[:, known.mask_at : known.mask_at + ACTIONS]
        assert set(masks.sum(axis=1)) <= {0.0, 2.0}
        right = observation[:, 3 : 3 + ACTIONS].argmax(axis=1)  # behind one of three
        rows = np.flatnonzero(masks.any(axis=1))
        assert masks[rows, right[rows]].all()
        observation, *_ = vector.step(right)
    vector.close()


def test_in_place_of_impossible_actions_possible_ones_are_drawn() -> None:
    env = PossibleActions(Doors())
    counts = np.zeros(2, int)
    for seed in range(150):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            right = int(observation["right"])
            shut = int(np.flatnonzero(observation[MASK] == 0)[0])
            observation, reward, over, _, _ = env.step(shut)
            counts[int(reward)] += 1
            assert right != shut
    assert abs(counts[1] / counts.sum() - 0.5) < 5 * 0.5 / np.sqrt(counts.sum())


def test_random_actions_are_uniform_among_the_possible() -> None:
    vector = envs.make_vector(DOORS, 16)
    episodes = play_episodes(ScriptedActor(vector, "random", seed=0), 320)
    returns = [episode.score for episode in episodes]
    deviation = np.sqrt(Doors.length / 4 / len(returns))
    assert abs(np.mean(returns) - Doors.length / 2) < 5 * deviation


def test_possible_actions_stay_and_seeds_repeat() -> None:
    def play(action: int) -> list[float]:
        env = PossibleActions(Doors())
        env.reset(seed=3)
        rewards = []
        for _ in range(Doors.length):
            rewards.append(env.step(action)[1])
        return rewards

    assert play(0) == play(0)
    env = PossibleActions(Doors())
    observation, _ = env.reset(seed=0)
    for _ in range(Doors.length):
        observation, reward, *_ = env.step(int(observation["right"]))
        assert reward == 1.0


@pytest.mark.parametrize(("actions", "asked_for"), [(spaces.Discrete(5), 4), (spaces.MultiDiscrete([2, 3]), [1, 2])])
def test_a_mask_of_nothing_does_not_count(actions: spaces.Space[Any], asked_for: Any) -> None:
    env = Shown(spaces.MultiBinary(5), actions)
    adapted = adapt(env)
    adapted.reset(seed=0)
    for _ in range(3):
        adapted.step(4 if isinstance(actions, spaces.Discrete) else np.array(asked_for, np.float32))
        np.testing.assert_array_equal(env.asked_for, asked_for)


@pytest.mark.parametrize("in_infos", [False, True])
def test_each_choice_of_several_has_a_mask(in_infos: bool) -> None:
    """The environment raises an error for impossible values; a random possible one is right in half of the cases."""
    name = "gym:tests.envs.masked:Dials" + (",in_infos=True,action_mask=True" if in_infos else "")
    vector = envs.make_vector(name, 16)
    known = read_interface(vector)
    assert known.mask_at is not None
    observation, _ = vector.reset(seed=0)
    mask = observation[:, known.mask_at : known.mask_at + sum(Dials.sizes)]
    of_dials = np.split(mask, np.cumsum(Dials.sizes)[:-1], axis=1)
    assert [set(dial.sum(axis=1)) for dial in of_dials] == [{2.0}, {1.0}, {2.0}]

    episodes = play_episodes(ScriptedActor(vector, "random", seed=0), 320)
    mean = np.mean([episode.score for episode in episodes])
    # Two of three dials have a variance of 1 / 4; the reward is the mean of three.
    deviation = np.sqrt(Dials.length * 2 / 4 / 9 / len(episodes))
    assert abs(mean - Dials.length * 2 / 3) < 5 * deviation


def test_values_that_do_not_exist_are_named_although_there_is_a_mask() -> None:
    env = adapt(Dials())
    env.reset(seed=0)
    for row in ([0, 0, 4], [-1, 0, 0], [0, 0.5, 0], [np.nan, 0, 0]):
        with pytest.raises(OutputError, match="step: action: expected"):
            env.step(np.array(row, np.float32))


@pytest.mark.parametrize(
    ("mask", "actions", "words"),
    [
        (spaces.MultiBinary(4), spaces.Discrete(5), "expected MultiBinary(5), or a Box of 0 to 1"),
        (spaces.Box(-1, 1, (5,)), spaces.Discrete(5), "one for each action, got Box(-1.0, 1.0, (5,), float32)"),
        (spaces.Discrete(5), spaces.Discrete(5), "got Discrete(5)"),
        (spaces.MultiBinary(6), spaces.MultiDiscrete([2, 3]), "expected MultiBinary(5), or a Box of 0 to 1"),
        (spaces.MultiBinary(6), spaces.MultiDiscrete([2, 3]), "one for each value of each choice, got MultiBinary(6)"),
        (spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)), "expected actions that are choices, got ActionVector"),
    ],
)
def test_a_mask_of_another_form(mask: spaces.Space[Any], actions: spaces.Space[Any], words: str) -> None:
    with pytest.raises(ValueError, match="observation\\['action_mask'\\]: expected") as raised:
        adapt(Shown(mask, actions))
    assert words in str(raised.value)


@pytest.mark.parametrize("mask", [spaces.MultiBinary(5), spaces.Box(0, 1, (5,)), spaces.Box(0, 1, (5,), np.int8)])
def test_masks_of_numbers(mask: spaces.Space[Any]) -> None:
    for actions in (spaces.Discrete(5), spaces.MultiDiscrete([2, 3])):
        assert adapt(Shown(mask, actions)).metadata["action_mask_at"] == 0


@pytest.mark.parametrize("mask", [[1], [1, 2], [1, np.nan], [1, [2]], "yes", np.ones((2, 1))])
def test_infos_with_a_mask_of_another_form(mask: Any) -> None:
    with pytest.raises(OutputError, match=r"^reset: info\['action_mask'\]: expected .*2"):
        MaskMoved(Plain({MASK: mask})).reset()


class Asked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """As for sb3-contrib's MaskablePPO: a method of a wrapper, here with what the environment has drawn."""

    def action_masks(self) -> Any:
        """Flags for all values of all choices."""
        return [bool(flag) for mask in self.get_wrapper_attr("masks") for flag in mask]


def test_a_method_may_have_the_mask(caplog: pytest.LogCaptureFixture) -> None:
    """In an environment that raises an error for impossible values."""
    assert "action_mask_at" not in make_env("tests.envs.test_masks:asked_dials").metadata
    (hint,) = caplog.messages
    assert hint == "Dials has a method action_masks: the field action_mask=True excludes the actions that it names"
    make_env("tests.envs.test_masks:asked_dials")
    assert len(caplog.messages) == 1
    env = make_env("tests.envs.test_masks:asked_dials", action_mask=True)
    mask_at = env.metadata["action_mask_at"]
    dials = env.unwrapped
    assert isinstance(dials, Dials)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            mask = observation[mask_at : mask_at + sum(Dials.sizes)]
            np.testing.assert_array_equal(mask, np.concatenate(dials.masks))
            observation, _, over, _, _ = env.step(np.zeros(3, np.float32))
    assert len(caplog.messages) == 1


def asked_dials() -> gymnasium.Env[Any, Any]:
    """With no mask but that of the method."""
    return Asked(Dials(in_infos=True))


@pytest.mark.parametrize("mask", [None, [1], [1, 2], [[1], [1]]])
def test_a_method_with_a_mask_of_another_form(mask: Any) -> None:
    class Wrong(Plain):
        def action_masks(self) -> Any:
            """Not what it should be."""
            return mask

    env = MaskMoved(Wrong({}))
    with pytest.raises(OutputError, match=r"^action_masks\(\): expected .*2"):
        env.reset()


@pytest.mark.parametrize("infos", [None, {}, {"mask": [1, 1]}, [1, 1]])
def test_infos_without_a_mask(infos: Any) -> None:
    env = MaskMoved(Plain(infos))
    with pytest.raises(OutputError, match=r"^reset: info: expected a dict of 'action_mask', got "):
        env.reset()
    with pytest.raises(OutputError, match=r"^step: info: expected a dict of 'action_mask', got "):
        env.step(0)


def test_the_field_asks_for_a_mask_that_can_be() -> None:
    with pytest.raises(ValueError, match="action_mask: expected True or False, got 1"):
        make_env("tests.envs.masked:Plain", action_mask=1)
    with pytest.raises(ValueError, match="action_mask: expected observations without a mask"):
        make_env("tests.envs.masked:Doors", action_mask=True)
    with pytest.raises(ValueError, match="action_mask: expected actions that are choices"):
        make_env("Pendulum-v1", action_mask=True)
    assert "action_mask_at" not in make_env("tests.envs.masked:Plain", action_mask=False).metadata


def test_taxi_has_one() -> None:
    vector = envs.make_vector("gym:Taxi-v4,action_mask=True", 2)
    known = read_interface(vector)
    assert known.observation_shape == (506,)
    observation, _ = vector.reset(seed=0)
    assert known.mask_at is not None
    columns = range(known.mask_at, known.mask_at + 6)
    mask = observation[:, columns]
    env = gymnasium.make("Taxi-v4")
    state, infos = env.reset(seed=0)
    np.testing.assert_array_equal(mask[0], infos["action_mask"])
    assert np.delete(observation[0], columns).argmax() == state
    vector.close()
