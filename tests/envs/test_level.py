"""The rules of the rooms level against the facts measured on the original: timing, zones, rewards, draws, scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs import make_vector
from envs.lab_interface import NINE
from envs.rooms import RoomsConfig, RoomsVectorEnv, oracle_actions
from envs.rooms.level import CHOICES, CHOSEN, GRAY, ROOM_1, ROOM_2, is_gray

FORWARD = NINE.index("forward")
LEFT = NINE.index("look left")
RIGHT = NINE.index("look right")
FIRE = NINE.index("fire")
"""Actions. FIRE does nothing in the rooms: the player waits."""
FRAMES = RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1)
"""One frame a step and small images, for tests of the rules."""
STEPS = RoomsConfig(image_height=8, image_width=8, hud=False)
"""Four frames a step and small images."""
CHOOSING = {"room": ROOM_2, "visit": 2}
"""State in which the second room follows the first."""


def start(config: RoomsConfig = FRAMES, num_envs: int = 1, seed: int = 0, **state: Any) -> RoomsVectorEnv:
    """Environments at the beginning of an episode, with some fields of their state set."""
    env = RoomsVectorEnv(num_envs, config)
    env.reset(seed=seed)
    for name, value in state.items():
        getattr(env.state, name)[:] = value
    return env


def step(env: RoomsVectorEnv, action: int) -> Any:
    """Takes one action in all environments: their rewards, whether episodes terminated, and infos."""
    _, reward, terminated, truncated, infos = env.step(np.full(env.num_envs, action))
    assert not truncated.any()
    return reward, terminated, infos


def play(env: RoomsVectorEnv, policy: Callable[..., Any] = oracle_actions) -> Any:
    """Rewards [T, N] of one episode and its last infos; policy(env) -> actions [N]."""
    rewards = []
    for _ in range(env.config.episode_steps):
        _, reward, terminated, _, infos = env.step(policy(env))
        rewards.append(reward)
    assert terminated.all()
    return np.array(rewards), infos


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
    state = env.state
    for _ in range(55):
        assert state.room[0] == ROOM_1
        view, reward, *_ = env.step(np.array([FORWARD]))
        assert reward[0] == 0.0

    # On the pad.
    assert state.room[0] == GRAY
    assert round(state.x[0], 3) == 29.122
    assert (view[0, 12:48] == 56).all(), "the low byte of the client's clock, 1336 ms, beside the display"
    assert (view != 56).any()
    assert env.poses()[0, 3] == 0

    # The next frame is in the second room.
    view, reward, *_ = env.step(np.array([LEFT]))
    assert reward[0] == state.score[0] == 1.0
    assert (view[0, 12:48] != 56).any()
    assert (state.room[0], state.x[0], state.y[0]) == (ROOM_2, 294.8, -64)
    assert state.yaw[0] == pytest.approx(2.112), "turned by this frame's action alone"

    # A player who does nothing slides on.
    for _ in range(100):
        step(env, FIRE)
    assert state.vx[0] == 0.0
    assert state.x[0] == pytest.approx(443.6062, abs=1e-3)


@pytest.mark.parametrize(("waits", "grays"), [(0, [56]), (1, [73, 87, 104]), (3, [87, 104])])
def test_the_view_is_gray_until_the_servers_next_frame(waits: int, grays: list[int]) -> None:
    """Every 50 ms: for one frame or for up to three, in which the player moves on in the second room."""
    env = start(RoomsConfig(action_repeat=1, hud=False))
    to_the_pad = 55
    actions = [FIRE] * waits + [FORWARD] * (to_the_pad + 8)
    seen = []
    for action in actions:
        views, *_ = env.step(np.array([action]))
        shade = views[0, 0, 0, 0]
        if (views[0] == shade).all():
            seen.append(int(shade))
    assert seen == grays
    assert env.state.room[0] == ROOM_2


def touched(env: RoomsVectorEnv) -> Any:
    """The rewards of the second of two frames; there are none in the first."""
    assert not step(env, FIRE)[0].any()
    return step(env, FIRE)[0]


def test_pad_trigger() -> None:
    """Players just outside and just inside each edge of the pad but the far one."""
    touches = {
        (24.9, -64): 0,
        (25.1, -64): 1,
        (60, -25.1): 1,
        (60, -24.9): 0,
        (60, -102.9): 1,
        (60, -103.1): 0,
    }
    x, y = np.transpose(list(touches))
    assert touched(start(num_envs=6, x=x, y=y)).tolist() == list(touches.values())


@pytest.mark.parametrize(("side", "match_side"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_pickup_zone(side: int, match_side: int) -> None:
    """By the player's place beside an object: the match is the wrong one to take."""
    touches = {
        (-50.1, 0): 0,
        (-49.9, 0): 1,
        (24.9, 0): 1,
        (0, 35.9): 1,
        (0, 36.1): 0,
        (0, -35.9): 1,
        (0, -36.1): 0,
    }
    x, y = np.transpose(np.array(CHOICES[side]) + list(touches))
    expected = np.array(list(touches.values()))
    nothing = np.zeros(7)

    env = start(num_envs=7, room=ROOM_2, x=x, y=y, match_side=match_side)
    reward = touched(env)
    infos = env.counters

    if side == match_side:
        assert (reward == -10.0 * expected).all()
        assert (infos["wrong_choices"] == expected).all()
        assert (infos["correct_choices"] == nothing).all()
    else:
        assert (reward == 10.0 * expected).all()
        assert (infos["wrong_choices"] == nothing).all()
        assert (infos["correct_choices"] == expected).all()


def test_players_stay_in_the_rooms() -> None:
    """Random players stay out of every solid, within the room they are in, and see one color only in a teleport."""
    env = start(STEPS, 64)
    state = env.state
    x_low, y_low, x_high, y_high = env.level.solids.T[:, :, None]
    between_rooms = 200
    rng = np.random.default_rng(1)
    actions = rng.integers(0, 9, 64)
    for _ in range(170):
        # Each player keeps its action for ten steps on average, which leads it further than a new one for each step.
        changes = rng.random(64) < 0.1
        actions = np.where(changes, rng.integers(0, 9, 64), actions)
        views, *_ = env.step(actions)

        one_color = views.max((1, 2, 3)) == views.min((1, 2, 3))
        gray = [is_gray(state, i) for i in range(64)]
        assert (one_color == gray).all()

        inside = (x_low < state.x) & (state.x < x_high) & (y_low < state.y) & (state.y < y_high)
        assert not inside.any()
        assert ((state.x < between_rooms) == np.isin(state.room, (ROOM_1, GRAY))).all()
    assert (state.x > between_rooms).any(), "some have been in both rooms"


def test_a_choice_leads_to_a_new_trial() -> None:
    """Reward one frame after the touch, then a frame at the start in which the engine ignores the action."""
    env = start(**CHOOSING, x=600.0, y=64.0, yaw=30.0, vx=50.0)
    state = env.state
    match = state.match[0]

    # Frame 1: the player touches the object on the left.
    reward, _, _ = step(env, FORWARD)
    assert (reward[0], state.room[0], state.taken[0]) == (0.0, ROOM_2, 0)

    # Frame 2: the reward.
    reward, _, _ = step(env, FORWARD)
    assert abs(reward[0]) == 10.0
    assert state.room[0] == CHOSEN

    # Frame 3: at the start again, where the example appeared one frame ago.
    reward, _, _ = step(env, FORWARD)
    assert reward[0] == 0.0
    assert state.room[0] == ROOM_1
    assert (state.x[0], state.y[0], state.yaw[0], state.vx[0]) == (-232, -64, 0, 0)
    assert state.shown[0] == state.frame[0] - 1 == 2

    speeds = []
    for _ in range(3):
        step(env, FORWARD)
        speeds.append(state.vx[0])
    assert speeds == [45, 89, 133], "moves of 14 and 17 ms, as in DeepMind Lab"
    assert state.match[0] == match


def test_with_action_repeat() -> None:
    """A step of four frames is those frames, and a look step turns 8.4 degrees."""
    by_step = start(STEPS)
    by_frame = start(FRAMES)
    rng = np.random.default_rng(0)
    for _ in range(180):
        action = int(rng.choice([oracle_actions(by_step)[0], LEFT, RIGHT, FIRE], p=[0.7, 0.1, 0.1, 0.1]))
        reward, _, _ = step(by_step, action)
        reward_of_frames = 0.0
        for _ in range(4):
            reward_of_frame, _, _ = step(by_frame, action)
            reward_of_frames += reward_of_frame[0]
        assert reward[0] == reward_of_frames
        expected = by_frame.get_state()
        for name, array in by_step.get_state().items():
            assert (array == expected[name]).all(), name

    env = start(STEPS)
    step(env, RIGHT)
    assert env.state.yaw[0] == pytest.approx(-8.448)


def test_the_last_step_gives_the_reward_of_what_was_touched_last() -> None:
    """DeepMind Lab runs one frame more at the end of an episode to collect it."""
    for frame, expected in ((719, 1.0), (718, 0.0)):
        env = start(x=30.0, y=-64.0, frame=frame)  # on the pad
        reward, _, _ = step(env, FIRE)
        assert reward[0] == expected


@pytest.mark.parametrize(("repeat", "steps"), [(4, 180), (1, 720), (7, 103)])
def test_an_episode_lasts_720_frames(repeat: int, steps: int) -> None:
    earned = {"score": 9.0, "correct": 2, "wrong": 1}
    env = start(RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=repeat), **earned)
    for count in range(1, steps + 1):
        assert env.state.frame[0] < 720
        _, terminated, _ = step(env, FIRE)
        assert terminated[0] == (count == steps)
    assert env.state.frame[0] == 720

    # The next step ignores its action: it returns the first observation of the next episode.
    reward, terminated, infos = step(env, FORWARD)
    assert (reward[0], terminated[0]) == (0.0, False)
    assert (env.state.frame[0], env.state.x[0]) == (0, -232)
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
    turns_left = 0
    last_score = 0.0

    def run(env: RoomsVectorEnv) -> NDArray[Any]:
        """Forward, and to the left for five steps after a reward in the second room."""
        nonlocal turns_left, last_score
        score = float(env.state.score[0])
        if score > last_score and env.state.room[0] == ROOM_2:
            turns_left = 5
        last_score = score
        if turns_left == 0:
            return np.array([FORWARD])
        turns_left -= 1
        return np.array([NINE.index("look left, forward")])

    rewards, _ = play(start(STEPS), run)
    steps = 1 + np.flatnonzero(rewards[:, 0])
    assert steps[:4].tolist() == [14, 27, 42, 55]
    assert steps[-1] == 179
    assert len(steps) == 13


def chi_square(counts: NDArray[Any], expected: float) -> float:
    """Pearson's statistic of counts that are expected to be equal."""
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_of_a_trial() -> None:
    env = start(STEPS, 64, seed=4)
    names = ("match", "other", "example_side", "match_side")
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(60):
        for name in names:
            seen[name].append(getattr(env.state, name).copy())

        # The trial is cut short: the next one follows a choice.
        env.state.room[:] = CHOSEN
        env.state.visit[:] = 2
        env.state.frame[:] = 0
        step(env, FIRE)

    match, other, example_side, match_side = (np.array(seen[name]) for name in names)
    assert (match == match[0]).all(), "the match object is fixed for the episode"
    assert (match != other).all(), "a pair is never identical"

    # Uniform over the other 35: 34 degrees of freedom (99.9 % below 66).
    counts = np.bincount(((other - match) % 36).ravel(), minlength=36)[1:]
    assert chi_square(counts, counts.mean()) < 66

    # Sides are even, independent of each other and of those of the trial before.
    same_sides = example_side == match_side
    as_before = match_side[1:] == match_side[:-1]
    for flags in (example_side, match_side, same_sides, as_before):
        assert flags.mean() == pytest.approx(0.5, abs=0.03)


def test_the_match_object_is_uniform_over_episodes() -> None:
    """Of 36 objects: 35 degrees of freedom (99.9 % below 67)."""
    env = start(FRAMES, 3600, seed=5, frame=719)
    match = env.state.match.copy()
    assert chi_square(np.bincount(match, minlength=36), 100.0) < 67

    step(env, FIRE)  # the last frame of the episode
    step(env, FIRE)
    assert (env.state.match != match).mean() > 0.9, "a new episode draws a new object"


def test_poses_lie_on_the_floor_plan() -> None:
    env = RoomsVectorEnv(4, "small")
    env.reset(seed=0)
    plan = env.metadata["floor_plan"]
    corners = np.array(plan["walls"]).reshape(-1, 2)
    rooms = set()
    for _ in range(40):
        places, yaw, room = np.split(env.poses(), [2, 3], axis=1)
        assert (places >= corners.min(0)).all()
        assert (places <= corners.max(0)).all()
        np.testing.assert_array_equal(yaw[:, 0], env.state.yaw)
        rooms |= {plan["rooms"][int(number)] for number in room[:, 0]}
        env.step(oracle_actions(env))
    assert rooms == {"room of the example", "room of the choice"}


def words_of(situation: dict[str, Any]) -> dict[str, str]:
    """A situation's entries without the places of those that have one."""
    return {name: entry if isinstance(entry, str) else entry[0] for name, entry in situation.items()}


@pytest.mark.parametrize("config", ["full", "full-recall-112"])
def test_situations_name_the_example_and_the_object_to_take(config: str) -> None:
    """The oracle walks to the object to take, on its side; what was shown is what is to be left."""
    env = RoomsVectorEnv(8, config)
    env.reset(seed=0)
    spots = {name: tuple(spot) for name, spot in env.metadata["floor_plan"]["spots"].items()}
    sides = ("left", "right")
    chosen = 0
    shown: list[set[str]] = [set() for _ in range(8)]
    for _ in range(env.config.episode_steps):
        before = env.situations()
        is_left = env.state.y > -64
        _, rewards, *_ = env.step(oracle_actions(env))
        for i, situation in enumerate(before):
            words = words_of(situation)

            # With the example in view: its name, and its side and place where it stands.
            if "to take" not in words:
                name, _, side = words["example"].partition(", ")
                if side:
                    assert situation["example"][1:] == spots[f"example, {side}"]
                    assert side == sides[env.state.example_side[i]] or rewards[i], "a reward begins the next visit"
                shown[i].add(name)
                continue

            # Later the example is the object to leave; the oracle takes the other one.
            assert words["example"] in shown[i]
            assert words["to leave"].startswith(words["example"] + ", ")
            if rewards[i] == 10:
                chosen += 1
                taken = "left" if is_left[i] else "right"
                left = "right" if is_left[i] else "left"
                assert words["to take"].endswith(f", {taken}")
                assert words["to leave"].endswith(f", {left}")
                assert situation["to take"][1:] == spots[f"choice, {taken}"]
    assert chosen > 8


def test_objects_have_names() -> None:
    env = RoomsVectorEnv(1, "full")
    names = {env.config.object_name(number) for number in range(36)}
    assert len(names) == 36
    assert {"pink cone", "light blue glow ball", "green sphere"} <= names
    assert RoomsConfig(shapes=("cube",), colors=((1, 2, 3), (4, 5, 6))).object_name(1) == "#040506 cube"


@pytest.mark.parametrize("frames", [89, 90, 92, 720])
def test_views_between_two_steps_are_those_of_single_frames(frames: int) -> None:
    """To the end of an episode, whose last view is repeated; environments stay as they are."""
    spec = f"rooms:small,episode_frames={frames}"
    env = make_vector(spec, 3)
    by_frame = make_vector(f"{spec},action_repeat=1", 3)
    env.reset(seed=2)
    by_frame.reset(seed=2)
    played = 0
    for _ in range(24):
        actions = oracle_actions(env)
        before = env.get_state()
        between = env.between(actions)
        for name, array in env.get_state().items():
            np.testing.assert_array_equal(array, before[name])

        # The fourth view is that of the step itself.
        assert between.shape[:2] == (3, 3)
        for frame in range(4):
            if played < frames:
                view, *_ = by_frame.step(actions)
            played += 1
            if frame < 3:
                np.testing.assert_array_equal(between[:, frame], view)
        env.step(actions)
