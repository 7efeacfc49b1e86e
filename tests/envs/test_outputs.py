"""What environments return: what is taken, and the one line that says what is wrong with the rest."""

import itertools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envs
from actors.evaluation import ScriptedActor, play_episodes
from envs import guard
from envs.dm import DmEnv
from envs.guard import OutputError
from envs.outputs import CheckedEnv, checked, conformer, flag, number
from envs.processes import batch
from tests.envs.odd import INFOS, Odd, OddDm, OldOdd

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy would write them to users' terminals

IMAGE = spaces.Box(0, 255, (2, 3, 3), np.uint8)
WHOLE = spaces.MultiDiscrete([2, 3])
NEST = spaces.Dict(eye=IMAGE, arm=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3, start=5)]))
GOOD = {"eye": np.zeros((2, 3, 3), np.uint8), "arm": (np.zeros(2, np.float32), 6)}


def with_arm(*arm: Any) -> dict[str, Any]:
    """A value of the nest with another tuple as its arm."""
    return {**GOOD, "arm": arm}


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], np.array([0.5, 1], np.float32)),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0.1, 7.0]), np.array([0.1, 7.0], np.float32)),
        (spaces.Box(-1, 1, (), np.float64), 0.25, np.array(0.25)),
        (spaces.Box(-1, 1, (2,), np.float16), np.full(2, 6e4, np.float16), np.full(2, 6e4, np.float16)),
        (spaces.Box(-1, 1, (2,), np.float32), np.full(2, 3e38), np.full(2, 3e38, np.float32)),
        (IMAGE, np.full((2, 3, 3), 255, np.int64), np.full((2, 3, 3), 255, np.uint8)),
        (IMAGE, np.full((2, 3, 3), 7.0), np.full((2, 3, 3), 7, np.uint8)),
        (WHOLE, (1, 2), np.array([1, 2])),
        (spaces.MultiBinary(2), [True, False], np.array([1, 0], np.int8)),
    ],
)
def test_values_that_can_be_converted_without_loss_are(space: spaces.Space[Any], value: Any, expected: Any) -> None:
    found = conformer(space, "it")(value)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    assert found.dtype == space.dtype


@pytest.mark.parametrize("value", [7, np.array(7), np.int8(7), np.uint8(7), 7.0])
def test_a_choice_is_a_number_of_python(value: Any) -> None:
    """Sums with one of a small dtype would overflow, and arrays are no keys of a dict."""
    found = conformer(spaces.Discrete(3, start=5), "it")(value)
    assert (type(found), found) == (int, 7)


def test_a_nest_is_converted_leaf_by_leaf_and_further_keys_are_left_out() -> None:
    found = conformer(NEST, "it")({**GOOD, "more": None})
    assert found.keys() == GOOD.keys()
    assert NEST.contains(found)


BOX = spaces.Box(-1, 1, (2,), np.float32)
FINITE = r"expected finite numbers \(float32\), got "


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (BOX, np.zeros(3), r": expected float32 \[2\] as in its space, got float64 \[3\] \[0.0, 0.0, 0.0\]"),
        (BOX, np.zeros(1, np.float32), r": expected float32 \[2\] as in its space, got float32 \[1\] \[0.0\]"),
        (BOX, np.zeros((2, 9)), r": expected float32 \[2\] .*, got float64 \[2, 9\] from 0.0 to 0.0"),
        (BOX, 3.5, r": expected float32 \[2\] as in its space, got float64 3.5"),
        (BOX, None, r": expected float32 \[2\] as in its space, got None"),
        (BOX, "door", r": expected float32 \[2\] as in its space, got str 'door'"),
        (BOX, [[1], [1, 2]], r": expected float32 \[2\] as in its space, got list \[\[1\], \[1, 2\]\]"),
        (BOX, {"a": 1}, r": expected float32 \[2\] as in its space, got a dict of 'a'"),
        (BOX, np.array([0, np.nan], np.float32), rf": {FINITE}nan at \[1\], 1 of 2"),
        (BOX, np.array([-np.inf, np.inf]), rf": {FINITE}-inf at \[0\], 2 of 2"),
        (spaces.Box(-1, 1, (2,), np.float16), np.array([0, np.inf], np.float16), rf": {FINITE}inf at \[1\]"),
        (BOX, np.array([0, 1e300]), rf": {FINITE}inf at \[1\]"),
        (spaces.Box(-1, 1, (), np.float64), np.float64("nan"), rf": {FINITE}nan$"),
        (spaces.Box(-1e300, 1e300, (2,), np.float64), np.array([0, 1e39]), rf": {FINITE}1e\+39"),
        (IMAGE, np.full((2, 3, 3), 0.5), r": expected uint8 \[2, 3, 3\] .*, got float64 \[2, 3, 3\] from 0.5 to 0.5"),
        (IMAGE, np.full((2, 3, 3), 256), r": expected uint8 .*, got int64 \[2, 3, 3\] from 256 to 256"),
        (IMAGE, np.full((2, 3, 3), np.nan), r": expected uint8 .*, got float64 \[2, 3, 3\] from nan to nan"),
        (spaces.Discrete(3, start=5), 8, r": expected a value of Discrete\(3, start=5\), got int64 8"),
        (spaces.Discrete(3, start=5), 4, r": expected a value of Discrete\(3, start=5\), got int64 4"),
        (spaces.Discrete(3), 1.5, r": expected int64 \[\] as in its space, got float64 1.5"),
        (WHOLE, [2, 0], r": expected a value of MultiDiscrete\(\[2 3\]\), got int64 \[2\] \[2, 0\]"),
        (WHOLE, [0, -1], r": expected a value of MultiDiscrete"),
        (spaces.MultiBinary(2), [0, 2], r": expected a value of MultiBinary\(2\), got int8 \[2\] \[0, 2\]"),
        (NEST, None, ": expected a dict of 'eye', 'arm', got None"),
        (NEST, {"eye": 0}, ": expected a dict of 'eye', 'arm', got a dict of 'eye'"),
        (NEST, with_arm(np.zeros(2)), r"\['arm'\]: expected a tuple of 2, got one of 1$"),
        (NEST, {**GOOD, "arm": 5}, r"\['arm'\]: expected a tuple of 2, got int64 5"),
        (NEST, with_arm(np.zeros(3), 6), r"\['arm'\]\[0\]: expected float32 \[2\] as in its space, got float64 \[3\]"),
        (NEST, with_arm(np.zeros(2), 9), r"\['arm'\]\[1\]: expected a value of Discrete\(3, start=5\), got int64 9"),
        (NEST, {**GOOD, "eye": None}, r"\['eye'\]: expected uint8 \[2, 3, 3\] as in its space, got None"),
    ],
)
def test_other_values_are_named(space: spaces.Space[Any], value: Any, problem: str) -> None:
    with pytest.raises(OutputError, match=f"^it{problem}") as caught:
        conformer(space, "it")(value)
    assert "\n" not in str(caught.value)


class Elsewhere:
    """An array of another library that cannot be one of numpy, as a tensor that requires a gradient."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("it is on another device\nand says how to move it")

    def __repr__(self) -> str:
        return "Elsewhere"


def test_why_an_array_is_none_of_numpy_is_told() -> None:
    expected = r"^it: expected float32 \[2\] as in its space, got Elsewhere Elsewhere \(it is on another device\)$"
    with pytest.raises(OutputError, match=expected):
        conformer(BOX, "it")(Elsewhere())
    with pytest.raises(OutputError, match=r"got Elsewhere Elsewhere \(it is on another device\)$"):
        number(Elsewhere(), "it")


@pytest.mark.parametrize(
    "value", [2, True, 2.5, np.float16(0.5), np.float32(0.5), np.int8(3), np.array(4.0), np.bool_(True)]
)
def test_numbers(value: Any) -> None:
    assert number(value, "it") == float(value)
    assert type(number(value, "it")) is float


ONE = r"expected one number, shape \[\], got "


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, f"{ONE}None"),
        ("1", f"{ONE}str '1'"),
        ([1.0], rf"{ONE}float64 \[1\] \[1.0\]"),
        (np.ones((1, 1)), rf"{ONE}float64 \[1, 1\] \[\[1.0\]\]"),
        (np.ones(2), rf"{ONE}float64 \[2\] \[1.0, 1.0\]"),
        (1 + 1j, rf"{ONE}complex \(1\+1j\)"),
        (10**400, f"{ONE}int 10+\\.\\.\\.0+"),
        (float("nan"), r"expected a finite number \(float32\), got nan"),
        (np.array(-np.inf), r"expected a finite number \(float32\), got -inf"),
        (1e39, r"expected a finite number \(float32\), got 1e\+39"),
    ],
)
def test_what_is_not_one_number_is_named(value: Any, problem: str) -> None:
    with pytest.raises(OutputError, match=f"^it: {problem}$"):
        number(value, "it")


def test_flags() -> None:
    for true in (True, np.bool_(True), 1, np.array(1.0)):
        assert flag(true, "it") is True
    for false in (False, np.bool_(False), 0, np.array(0.0)):
        assert flag(false, "it") is False
    for wrong in (None, "yes", 2, np.array([True]), float("nan")):
        with pytest.raises(OutputError, match=r"^it: expected True or False, got "):
            flag(wrong, "it")


BOX_LINE = r"observation: expected float32 \[2\] as in its space, got "
VALUES = r"\(observation, reward, terminated, truncated, info\) as gymnasium's Env"
LINES = {
    "Odd-v0,wrong=wide": rf"step: {BOX_LINE}float32 \[3\] \[0.0, 0.0, 0.0\]",
    "Odd-v0,wrong=narrow": rf"step: {BOX_LINE}float32 \[1\] \[0.0\]",
    "Odd-v0,wrong=none": f"step: {BOX_LINE}None",
    "Odd-v0,wrong=words": rf"step: {BOX_LINE}list \['door', 'wall'\]",
    "Odd-v0,wrong=wide,in_reset=True": rf"reset: {BOX_LINE}float32 \[3\] \[0.0, 0.0, 0.0\]",
    "Odd-v0,space_changes=True": rf"reset: {BOX_LINE}float32 \[3\] \[0.0, 0.0, 0.0\]",
    "Odd-v0,wrong=nan,at=6": rf"step: observation: {FINITE}nan at \[1\], 1 of 2",
    "Odd-v0,wrong=inf": rf"step: observation: {FINITE}inf at \[0\], 1 of 2",
    "Odd-v0,wrong=reward1": rf"step: reward: {ONE}float64 \[1\] \[1.0\]",
    "Odd-v0,wrong=reward11": rf"step: reward: {ONE}float64 \[1, 1\] \[\[1.0\]\]",
    "Odd-v0,wrong=reward2": rf"step: reward: {ONE}float64 \[2\] \[1.0, 1.0\]",
    "Odd-v0,wrong=reward_none": f"step: reward: {ONE}None",
    "Odd-v0,wrong=reward_nan": r"step: reward: expected a finite number \(float32\), got nan",
    "Odd-v0,wrong=done_none": "step: terminated: expected True or False, got None",
    "Odd-v0,wrong=cut_pair": r"step: truncated: expected True or False, got bool \[2\] \[False, False\]",
    "Odd-v0,arity=4": f"step: expected 5 values {VALUES}, got 4",
    "Odd-v0,arity=6": f"step: expected 5 values {VALUES}, got 6",
    "BareOdd-v0": r"reset: expected 2 values \(observation, info\) as gymnasium's Env, got float32 \[2\] \[0.0, 0.0\]",
    "Odd-v0,metrics=True,wrong=metric_word": rf"info\['doors'\]: {ONE}str 'open'",
    "Odd-v0,metrics=True,wrong=metric_none": r"info: expected 'doors' .* at the end of an episode, got none",
    "Odd-v0,metrics=True,wrong=metric_missing": r"info: expected 'doors' .* at the end of an episode, got none",
}


def play(spec: str, steps: int = 9) -> list[Any]:
    """Resets two environments and steps them as actors do."""
    env = envs.make_vector(spec, 2)
    with guard.calling(spec, "in some call", [0, 1]):
        try:
            env.reset(seed=0)
            return [env.step(np.array([0, 1])) for _ in range(steps)]
        finally:
            env.close()


@pytest.mark.parametrize("fields", LINES)
def test_an_environment_that_returns_what_it_should_not_is_named(fields: str) -> None:
    spec = f"gym:tests.envs.odd:{fields}"
    with pytest.raises(envs.WrongOutput, match=f"^environment {spec}, {LINES[fields]}$"):
        play(spec)


def test_the_line_is_the_same_from_a_process_of_its_own() -> None:
    spec = "gym:tests.envs.odd:Odd-v0,wrong=reward2,at=3,processes=2"
    with pytest.raises(envs.WrongOutput, match=f"^environment {spec}, {LINES['Odd-v0,wrong=reward2']}$"):
        play(spec)


@pytest.mark.parametrize("processes", [0, 2])
def test_an_episode_that_a_time_limit_cuts_may_lack_a_counter(processes: int) -> None:
    """The second and all others, of two steps each; one that ends by itself, after four, may not."""
    spec = f"gym:tests.envs.odd:Odd-v0,metrics=True,wrong=metric_unknown,at=3,processes={processes}"
    player = ScriptedActor(envs.make_vector(f"{spec},max_episode_steps=2", 2), "random", seed=0)
    try:
        episodes = play_episodes(player, 6)
    finally:
        player.close()
    assert [episode.metrics for episode in episodes] == [{"doors": 3.0}] * 2 + [{}] * 4

    with pytest.raises(envs.WrongOutput, match=r"info: expected 'doors' .* at the end of an episode, got none"):
        play(spec)


@pytest.mark.parametrize("processes", [0, 2])
def test_infos_that_are_no_counters_are_ignored(processes: int) -> None:
    """Of any type; gymnasium's vector environments would join them to arrays by the type of the first."""
    steps = play(f"gym:tests.envs.odd:Odd-v0,infos=True,processes={processes}", 3 * len(INFOS))
    assert all(step[-1] == {} for step in steps)


def test_options_of_a_reset_reach_the_environment() -> None:
    class Optional(gymnasium.Env[Any, Any]):
        observation_space = BOX
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            return np.full(2, (options or {}).get("at", 0.0)), {}

    env = checked(Optional())
    assert env.reset(options={"at": 0.5})[0].tolist() == [0.5, 0.5]
    assert env.reset()[0].tolist() == [0, 0]


def test_counters_that_an_environment_names_are_read() -> None:
    *_, infos = play("gym:tests.envs.odd:Odd-v0,metrics=True")[-1]
    assert infos["doors"].tolist() == [3.0, 3.0]
    assert infos["_doors"].tolist() == [True, True]


class Repaired(gymnasium.Wrapper):
    """Gives an environment of the old interface the `reset` of now."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset(), {}


class Broken(gymnasium.Wrapper):
    """Takes the seed away again."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.env.reset()


def test_what_is_called_is_checked_and_not_what_a_wrapper_repairs() -> None:
    env = CheckedEnv(gymnasium.wrappers.TransformReward(Repaired(OldOdd()), lambda reward: reward))
    observation, _ = env.reset(seed=3)
    assert observation.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="reset: expected parameters as gymnasium's"):
        CheckedEnv(Broken(Odd()))


def test_gyms_old_interface_is_refused_when_the_environment_is_made() -> None:
    expected = r"reset: expected parameters as gymnasium's \(self, .*seed.*\).*, got \(\)"
    with pytest.raises(ValueError, match=f"^environment gym:tests.envs.odd:OldOdd-v0: {expected}"):
        envs.make_vector("gym:tests.envs.odd:OldOdd-v0", 1)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("reward=reward1", LINES["Odd-v0,wrong=reward1"]),
        ("reward=reward2", LINES["Odd-v0,wrong=reward2"]),
        ("reward=reward_none", LINES["Odd-v0,wrong=reward_none"]),
        ("discount=reward2", rf"step: discount: {ONE}float64 \[2\] \[1.0, 1.0\]"),
        ("discount=reward_none", f"step: discount: {ONE}None"),
        ("observation=wide", LINES["Odd-v0,wrong=wide"]),
        ("observation=nan", LINES["Odd-v0,wrong=nan,at=6"]),
        ("step=False", "step: expected a dm_env.TimeStep, got tuple .*"),
    ],
)
def test_a_dm_env_that_returns_what_it_should_not_is_named(fields: str, line: str) -> None:
    spec = f"dm:tests.envs.odd:OddDm,{fields}"
    with pytest.raises(envs.WrongOutput, match=f"^environment {spec}, {line}$"):
        play(spec)


def test_rewards_and_discounts_of_dm_env_may_be_scalar_arrays() -> None:
    env = DmEnv(OddDm)
    env.reset()
    task = env._environment
    task.reward = np.array(0.5)

    task.discount = np.array(0.0)
    _, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (0.5, True, False)

    task.discount = np.array(1.0)
    _, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (0.5, False, True)


class Sharing(Odd):
    """All instances write their observations into one array."""

    seen = np.zeros(2, np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        self.seen[:] = action
        _, *others = super().step(action)
        return (self.seen, *others)


def test_environments_that_share_memory_have_their_own_observations() -> None:
    env = batch(Sharing, 3)
    env.reset()
    first, *_ = env.step(np.array([0, 1, 2]))
    assert first.tolist() == [[0, 0], [1, 1], [2, 2]]
    env.step(np.array([2, 2, 2]))
    assert first.tolist() == [[0, 0], [1, 1], [2, 2]]


class Growing(Odd):
    """Every instance has a larger space than the one before."""

    sizes = itertools.count(2)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (next(self.sizes),), np.float32)


def test_environments_of_a_batch_must_have_the_same_spaces() -> None:
    with pytest.raises(OutputError, match=r"^observation space: expected the same .*, got .*\(2,\).* then .*\(3,\)"):
        batch(Growing, 2)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"action_repeat": 0}, "metadata['action_repeat']: expected the number of frames of a step, got 0"),
        ({"action_repeat": 1.5}, "metadata['action_repeat']: expected the number of frames of a step, got 1.5"),
        ({"action_repeat": "four"}, "metadata['action_repeat']: expected the number of frames of a step, got 'four'"),
        ({"episode_metrics": None}, "metadata['episode_metrics']: expected a tuple of words, got None"),
        ({"episode_metrics": "success"}, "metadata['episode_metrics']: expected a tuple of words, got 'success'"),
        ({"action_names": (1, 2, 3)}, "metadata['action_names']: expected a tuple of words, got (1, 2, 3)"),
        ({"element_names": [1, 2]}, "metadata['element_names']: expected a tuple of words, got [1, 2]"),
        ({"observation_names": "map"}, "metadata['observation_names']: expected a tuple of words, got 'map'"),
        ({"render_fps": "fast"}, "metadata['render_fps']: expected a number of pictures a second, got 'fast'"),
        ({"render_fps": -1}, "metadata['render_fps']: expected a number of pictures a second, got -1"),
    ],
)
def test_metadata_of_another_form_are_refused(metadata: dict[str, Any], message: str) -> None:
    env = Odd()
    env.metadata = metadata
    with pytest.raises(ValueError, match=re.escape(message)):
        checked(env)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_spaces_are_expected(name: str) -> None:
    env: Any = Odd()
    setattr(env, name, None)
    with pytest.raises(ValueError, match=f"^{name}: expected a space of gymnasium, got None$"):
        checked(env)


def test_a_counter_may_be_unknown_until_the_episode_ends() -> None:
    class Late(Odd):
        """Says only at the end whether a door was found."""

        def step(self, action: int) -> Any:
            *answer, _ = super().step(action)
            is_over = answer[2]
            return (*answer, {"doors": 1.0 if is_over else None})

    env = batch(lambda: checked(Late(metrics=True)), 1)
    env.reset()
    given = []
    for _ in range(4):
        *_, infos = env.step(np.array([0]))
        given.append(bool(infos["_doors"][0]))
    assert given == [False, False, False, True]
    assert infos["doors"].tolist() == [1.0]
