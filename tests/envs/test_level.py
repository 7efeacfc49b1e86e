"""The rules of the rooms level against the facts measured on the original: timing, zones, rewards, draws, scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs import make_vector
from envs.lab_interface import NINE
from envs.rooms import RoomsConfig, RoomsVectorEnv, oracle_actions
from envs.rooms.level import CHOICES, CHOSEN, GREY, ROOM_1, ROOM_2, is_gray

FORWARD, LEFT, RIGHT, FIRE = (NINE.index(n) for n in ("forward", "look left", "look right", "fire"))
FRAMES = RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1)
"""One frame a step and small images, for tests of the rules."""
STEPS = RoomsConfig(image_height=8, image_width=8, hud=False)
CHOOSING = {"room": ROOM_2, "visit": 2}
"""State in which the second room follows the first."""


def start(config: RoomsConfig = FRAMES, num_envs: int = 1, seed: int = 0, **state: Any) -> RoomsVectorEnv:
    env = RoomsVectorEnv(num_envs, config)
    env.reset(seed=seed)
    for name, value in state.items():
        getattr(env.state, name)[:] = value
    return env


def step(env: RoomsVectorEnv, action: int) -> Any:
    _, reward, terminated, truncated, infos = env.step(np.full(env.num_envs, action))
    assert not truncated.any()
    return reward, terminated, infos


def play(env: RoomsVectorEnv, policy: Callable[..., Any] = oracle_actions) -> Any:
    """Rewards [T, N] of one episode and its last infos; policy(env) -> actions [N]."""
    steps = [env.step(policy(env)) for _ in range(env.config.episode_steps)]
    assert steps[-1][2].all()
    return np.array([reward for _, reward, *_ in steps]), steps[-1][-1]


@pytest.mark.parametrize(
    ("room", "x", "y", "stops"),
    [
        # In room 1 there are fences around the two pedestals: x 0..80, y 24..104 and -232..-152.
        (ROOM_1, 110, 110, (112.875, 112.875, 95.125, -240.875)),
        (ROOM_1, -100, 64, (-15.125, 112.875, -240.875, -240.875)),
        (ROOM_1, -100, -192, (-15.125, 112.875, -240.875, -240.875)),
        (ROOM_1, 112, -192, (112.875, 112.875, 95.125, -240.875)),
        (ROOM_1, 10, -64, (624.875, 8.875, -240.875, -136.875)),  # through the teleporter to the end of room 2
        (ROOM_2, 320, -64, (624.875, -15.125, 271.125, -112.875)),
        (ROOM_2, 500, -64, (624.875, 112.875, 271.125, -232.875)),
    ],
)
def test_walls_stop_the_player_15_and_an_eighth_u_before_them(
    room: Any, x: int, y: int, stops: tuple[float, float, float, float]
) -> None:
    """To the east, north, west and south."""
    env = start(num_envs=4, room=room, x=x, y=y, yaw=(0, 90, 180, -90))
    for _ in range(90):
        step(env, FORWARD)
    state = env.state
    assert (state.x[0], state.y[1], state.x[2], state.y[3]) == pytest.approx(stops)


def test_the_teleporter_acts_one_frame_later_after_a_gray_view() -> None:
    """Measured on DeepMind Lab: on the pad at frame 55, +1 and the second room at 56, passive from there to 443.6."""
    env = start(RoomsConfig(action_repeat=1))
    for _ in range(55):
        assert env.state.room[0] == ROOM_1
        view, reward = env.step(np.array([FORWARD]))[:2]
        assert reward[0] == 0.0
    assert (env.state.room[0], round(env.state.x[0], 3)) == (GREY, 29.122)
    assert (view[0, 12:48] == 56).all(), "the low byte of the client's clock, 1336 ms, beside the display"
    assert (view != 56).any()
    assert env.poses()[0, 3] == 0
    view, reward = env.step(np.array([LEFT]))[:2]
    assert reward[0] == env.state.score[0] == 1.0
    assert (view[0, 12:48] != 56).any()
    assert (env.state.room[0], env.state.x[0], env.state.y[0]) == (ROOM_2, 294.8, -64)
    assert env.state.yaw[0] == pytest.approx(2.112), "turned by this frame's action alone"
    for _ in range(100):
        step(env, FIRE)
    assert env.state.vx[0] == 0.0
    assert env.state.x[0] == pytest.approx(443.6062, abs=1e-3)


@pytest.mark.parametrize(("waits", "grays"), [(0, [56]), (1, [73, 87, 104]), (3, [87, 104])])
def test_the_view_is_gray_until_the_servers_next_frame(waits: int, grays: list[int]) -> None:
    """Every 50 ms: for one frame or for up to three, in which the player moves on in the second room."""
    env = start(RoomsConfig(action_repeat=1, hud=False))
    seen = []
    for frame in range(waits + 55 + 8):
        view = env.step(np.array([FIRE if frame < waits else FORWARD]))[0][0]
        if (view == view[0, 0, 0]).all():
            seen.append(int(view[0, 0, 0]))
    assert seen == grays
    assert env.state.room[0] == ROOM_2


def touched(env: RoomsVectorEnv) -> Any:
    """The rewards of the second of two frames; there are none in the first."""
    assert not step(env, FIRE)[0].any()
    return step(env, FIRE)[0]


def test_pad_trigger() -> None:
    x, y = np.transpose([(24.9, -64), (25.1, -64), (60, -25.1), (60, -24.9), (60, -102.9), (60, -103.1)])
    assert touched(start(num_envs=6, x=x, y=y)).tolist() == [0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize(("side", "match_side"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_pickup_zone(side: int, match_side: int) -> None:
    offsets = [(-50.1, 0), (-49.9, 0), (24.9, 0), (0, 35.9), (0, 36.1), (0, -35.9), (0, -36.1)]
    touches, reward = np.array([0, 1, 1, 1, 0, 1, 0]), -10.0 if side == match_side else 10.0
    x, y = (np.array(CHOICES[side]) + offsets).T
    env = start(num_envs=7, room=ROOM_2, x=x, y=y, match_side=match_side)
    assert (touched(env) == reward * touches).all()
    infos = env.counters
    assert (infos["wrong_choices"] == touches * (reward < 0)).all()
    assert (infos["correct_choices"] == touches * (reward > 0)).all()


def test_players_stay_in_the_rooms() -> None:
    """Random players stay out of every solid, within the room they are in, and always see something."""
    env, rng = start(STEPS, 64), np.random.default_rng(1)
    hurried = rng.integers(0, 9, 64)
    for _ in range(170):
        hurried = np.where(rng.random(64) < 0.1, rng.integers(0, 9, 64), hurried)
        views = env.step(hurried)[0]
        gray = [is_gray(env.state, i) for i in range(64)]
        assert ((views.max((1, 2, 3)) == views.min((1, 2, 3))) == gray).all()
        x, y, solids = env.state.x, env.state.y, env.level.solids
        inside = (solids[:, :1] < x) & (x < solids[:, 2:3]) & (solids[:, 1:2] < y) & (y < solids[:, 3:])
        assert not inside.any()
        assert ((x < 200) == np.isin(env.state.room, (ROOM_1, GREY))).all()
    assert (env.state.x > 200).any()


def test_a_choice_leads_to_a_new_trial() -> None:
    """Reward one frame after the touch, then a frame at the start in which the engine ignores the action."""
    env = start(**CHOOSING, x=600.0, y=64.0, yaw=30.0, vx=50.0)
    match = env.state.match[0]
    assert (step(env, FORWARD)[0][0], env.state.room[0]) == (0.0, ROOM_2)
    assert env.state.taken[0] == 0
    assert abs(step(env, FORWARD)[0][0]) == 10.0
    assert env.state.room[0] == CHOSEN
    assert step(env, FORWARD)[0][0] == 0.0
    assert env.state.room[0] == ROOM_1
    assert (env.state.x[0], env.state.y[0], env.state.yaw[0], env.state.vx[0]) == (-232, -64, 0, 0)
    assert env.state.shown[0] == env.state.frame[0] - 1 == 2
    speeds = []
    for _ in range(3):
        step(env, FORWARD)
        speeds.append(env.state.vx[0])
    assert speeds == [45, 89, 133], "moves of 14 and 17 ms, as in DeepMind Lab"
    assert env.state.match[0] == match


def test_with_action_repeat() -> None:
    """A step of four frames is those frames, and a look step turns 8.4 degrees."""
    by_step, by_frame = start(STEPS), start(FRAMES)
    rng = np.random.default_rng(0)
    for _ in range(180):
        action = int(rng.choice([oracle_actions(by_step)[0], LEFT, RIGHT, FIRE], p=[0.7, 0.1, 0.1, 0.1]))
        reward = step(by_step, action)[0][0]
        assert reward == sum(step(by_frame, action)[0][0] for _ in range(4))
        for name, array in by_step.get_state().items():
            assert (array == by_frame.get_state()[name]).all(), name
    env = start(STEPS)
    step(env, RIGHT)
    assert env.state.yaw[0] == pytest.approx(-8.448)


def test_the_last_step_gives_the_reward_of_what_was_touched_last() -> None:
    """DeepMind Lab runs one frame more at the end of an episode to collect it."""
    assert step(start(x=30.0, y=-64.0, frame=719), FIRE)[0][0] == 1.0
    assert step(start(x=30.0, y=-64.0, frame=718), FIRE)[0][0] == 0.0


@pytest.mark.parametrize(("repeat", "steps"), [(4, 180), (1, 720), (7, 103)])
def test_an_episode_lasts_720_frames(repeat: int, steps: int) -> None:
    earned = {"score": 9.0, "correct": 2, "wrong": 1}
    env = start(RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=repeat), **earned)
    for count in range(1, steps + 1):
        assert env.state.frame[0] < 720
        _, terminated, _ = step(env, FIRE)
        assert terminated[0] == (count == steps)
    assert env.state.frame[0] == 720
    reward, terminated, infos = step(env, FORWARD)  # ignored: the first observation of the next episode
    assert (reward[0], terminated[0], env.state.frame[0], env.state.x[0]) == (0.0, False, 0, -232)
    assert infos["correct_choices"][0] == infos["wrong_choices"][0] == env.state.score[0] == 0


def test_the_oracle_scores_67_for_every_seed() -> None:
    """At the same steps as in DeepMind Lab: six choices and seven teleports."""
    rewards, infos = play(start(STEPS, 32, seed=1))
    steps = 1 + np.flatnonzero(rewards[:, 0])
    assert steps.tolist() == [14, 28, 42, 56, 70, 83, 97, 111, 125, 139, 153, 166, 180]
    assert (rewards.sum(axis=0) == 67).all()
    assert (infos["correct_choices"] == 6).all()
    assert (infos["wrong_choices"] == 0).all()


def test_the_rewards_of_a_blind_runner() -> None:
    """Measured on DeepMind Lab: at steps 14, 27, 42, 55, ..., 179; he turns left for five steps after a teleport."""
    turns = 0

    def run(env: RoomsVectorEnv) -> NDArray[Any]:
        nonlocal turns
        begun = env.state.score[0] > scores[-1] and env.state.room[0] == ROOM_2
        scores.append(float(env.state.score[0]))
        turns = 5 if begun else turns - 1
        return np.full(1, NINE.index("look left, forward") if turns > 0 else FORWARD)

    scores = [0.0]
    rewards, _ = play(start(STEPS), run)
    steps = 1 + np.flatnonzero(rewards[:, 0])
    assert (steps[:4].tolist(), steps[-1], len(steps)) == ([14, 27, 42, 55], 179, 13)


def test_draws_of_a_trial() -> None:
    env, names = start(STEPS, 64, seed=4), ("match", "other", "example_side", "match_side")
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(60):  # each trial is cut short by a choice
        for name in names:
            seen[name].append(getattr(env.state, name).copy())
        env.state.room[:], env.state.visit[:], env.state.frame[:] = CHOSEN, 2, 0
        step(env, FIRE)
    match, other, example_side, match_side = (np.array(seen[name]) for name in names)
    assert (match == match[0]).all(), "the match object is fixed for the episode"
    assert (match != other).all(), "a pair is never identical"
    # Uniform over the other 35: chi-square with 34 degrees of freedom (99.9 % below 66).
    counts = np.bincount(((other - match) % 36).ravel(), minlength=36)[1:]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 66
    # Sides are even, independent of each other and of those of the trial before.
    for flags in (example_side, match_side, example_side == match_side, match_side[1:] == match_side[:-1]):
        assert flags.mean() == pytest.approx(0.5, abs=0.03)


def test_the_match_object_is_uniform_over_episodes() -> None:
    env = start(FRAMES, 3600, seed=5, frame=719)
    match = env.state.match.copy()
    assert ((np.bincount(match, minlength=36) - 100.0) ** 2 / 100.0).sum() < 67
    step(env, FIRE)
    step(env, FIRE)
    assert (env.state.match != match).mean() > 0.9, "a new episode draws a new object"


def test_poses_lie_on_the_floor_plan() -> None:
    env = RoomsVectorEnv(4, "small")
    env.reset(seed=0)
    plan, poses = env.metadata["floor_plan"], []
    for _ in range(40):
        poses.append(env.poses())
        np.testing.assert_array_equal(poses[-1][:, 2], env.state.yaw)
        env.step(oracle_actions(env))
    places, corners = np.array(poses).reshape(-1, 4), np.array(plan["walls"]).reshape(-1, 2)
    assert ((places[:, :2] >= corners.min(0)) & (places[:, :2] <= corners.max(0))).all()
    rooms = [plan["rooms"][int(room)] for room in np.unique(places[:, 3])]
    assert rooms == ["room of the example", "room of the choice"]


@pytest.mark.parametrize("config", ["full", "full-recall-112"])
def test_situations_name_the_example_and_the_object_to_take(config: str) -> None:
    """The oracle walks to the object to take, on its side; what was shown is what is to be left."""
    env = RoomsVectorEnv(8, config)
    env.reset(seed=0)
    chosen, spots = 0, {name: tuple(spot) for name, spot in env.metadata["floor_plan"]["spots"].items()}
    shown: list[set[Any]] = [set() for _ in range(8)]
    for _ in range(env.config.episode_steps):
        before, left = env.situations(), env.state.y > -64
        rewards = env.step(oracle_actions(env))[1]
        for i, known in enumerate(before):
            words = {name: each if isinstance(each, str) else each[0] for name, each in known.items()}
            if "to take" not in words:
                name, _, side = words["example"].partition(", ")
                assert not side or known["example"][1:] == spots[f"example, {side}"]
                assert side in ("", ("left", "right")[env.state.example_side[i]]) or rewards[i]
                shown[i].add(name)
                continue
            assert words["example"] in shown[i]
            assert words["to leave"].startswith(words["example"] + ", ")
            if rewards[i] == 10:
                chosen += 1
                assert words["to take"].endswith(", left") == left[i] != words["to leave"].endswith(", left")
                assert known["to take"][1:] == spots[f"choice, {'left' if left[i] else 'right'}"]
    assert chosen > 8
    names = {env.config.object_name(number) for number in range(36)}
    assert len(names) == 36
    assert {"pink cone", "light blue glow ball", "green sphere"} <= names
    assert RoomsConfig(shapes=("cube",), colours=((1, 2, 3), (4, 5, 6))).object_name(1) == "#040506 cube"


@pytest.mark.parametrize("frames", [89, 90, 92, 720])
def test_views_between_two_steps_are_those_of_single_frames(frames: int) -> None:
    """To the end of an episode, whose last view is repeated; environments stay as they are."""
    spec = f"rooms:small,episode_frames={frames}"
    env, slow = make_vector(spec, 3), make_vector(f"{spec},action_repeat=1", 3)
    for each in (env, slow):
        view = each.reset(seed=2)[0]
    for step in range(24):
        actions, before = oracle_actions(env), env.get_state()
        found = env.between(actions)
        for name, array in env.get_state().items():
            np.testing.assert_array_equal(array, before[name])
        for frame in range(4):
            view = slow.step(actions)[0] if 4 * step + frame < frames else view
            if frame < 3:
                np.testing.assert_array_equal(found[:, frame], view)
        env.step(actions)
    assert found.shape[:2] == (3, 3)
