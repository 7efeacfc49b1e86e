"""The level: its plan, the state of a batch of environments, and the rules of a trial as scalar functions.

Coordinates and rules are those of rooms_select_nonmatching_object (docs/environments.md), scaled in plan by
`RoomsConfig.distance_scale`. Motion is in `physics.py`, views in `render.py`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.batched import draw, mixed
from envs.lab_interface import ACTION_SETS, action_rows
from envs.rooms import look, physics
from envs.rooms.config import RoomsConfig

ROOM_1 = 0
ROOM_2 = 1
CHOSEN = 2
DARK = 3
GRAY = 4
"""Values of `State.room`. CHOSEN is room 2 in the frame of the reward for an object, before the next visit. In the DARK
the view is black and the player does not move. GRAY is room 1 in the frame in which the player touched the pad."""

BOUNDS = ((-256, -256, 128, 128), (256, -248, 640, 128))
"""x0, y0, x1, y1 of the box around each room. Room 2 is an alcove (x 256..384, y -128..0) that opens into a hall."""
WALLS = (
    (
        (0, -256, -256, 128),
        (0, 128, -256, 128),
        (1, -256, -256, 128),
        (1, 128, -256, 128),
    ),
    (
        # The alcove.
        (0, 256, -128, 0),
        (1, -128, 256, 384),
        (1, 0, 256, 384),
        # The hall.
        (0, 384, -248, -128),
        (0, 384, 0, 128),
        (1, -248, 384, 640),
        (1, 128, 384, 640),
        (0, 640, -248, 128),
    ),
)
"""Walls a view may meet, by room: (0 if at a fixed x, 1 if at a fixed y; that coordinate; from; to)."""
SOLIDS = (
    # Beyond and between the rooms.
    (-9999, -9999, -256, 9999),
    (128, -9999, 256, 9999),
    (640, -9999, 9999, 9999),
    (-9999, 128, 9999, 9999),
    (-9999, -9999, 128, -256),
    (256, -9999, 9999, -248),
    # Beside the alcove.
    (256, -248, 384, -128),
    (256, 0, 384, 128),
    # The two invisible fences.
    (0, 24, 80, 104),
    (0, -232, 80, -152),
)
"""All solids, x0, y0, x1, y1."""
START = (-232, -64)
ARRIVAL = (288, -64)
PAD = (40, -88, 88, -40)
EXAMPLES = ((40, 64), (40, -192))
CHOICES = ((600, 64), (600, -192))
"""Positions by side (0 left, 1 right) of the example and of the two choices."""
PICKUP = (-50.0, 44.0, 36.0)
"""Pickup zone, player minus object: dx from, dx to, |dy| up to."""


class Level(NamedTuple):
    """The constants of a level for the scalar functions. Lengths in u, already scaled."""

    solids: NDArray[np.float64]  # [K, 4] grown by the player's half width and the gap to a wall
    examples: NDArray[np.float64]  # [2, 2] side, (x, y)
    choices: NDArray[np.float64]  # [2, 2]
    start: NDArray[np.float64]  # [2]
    arrival: NDArray[np.float64]  # [2]
    pad: NDArray[np.float64]  # [4] grown by the player's half width
    pickup: NDArray[np.float64]  # [3]
    actions: NDArray[np.float64]  # [9, 7]
    rewards: NDArray[np.float64]  # [3] teleport, correct, wrong
    run_speed: float
    throw_speed: float
    throw_time: int  # ms
    drop_height: float
    num_examples: int
    random_looks: bool
    num_objects: int  # this and the rest as in `RoomsConfig`
    redraw_match: bool
    fixed_sides: bool
    delay_frames: int
    delay_halvings: int
    visit_frames: int
    episode_frames: int
    action_repeat: int


_OF_CONFIG = Level._fields[Level._fields.index("num_objects") :]


class State(NamedTuple):
    """All that changes in N environments: an array [N] for each field, except `round`."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    z: NDArray[np.float64]  # of the feet above the floor
    vx: NDArray[np.float64]
    vy: NDArray[np.float64]
    vz: NDArray[np.float64]
    yaw: NDArray[np.float64]  # degrees, 0 along +x, growing to the left
    pitch: NDArray[np.float64]  # degrees, positive down
    thrown: NDArray[np.int64]  # ms left in which a thrown player has neither friction nor control
    room: NDArray[np.int64]  # ROOM_1, ROOM_2, CHOSEN, DARK or GRAY
    frame: NDArray[np.int64]  # frames since the episode began
    shown: NDArray[np.int64]  # `frame` when the level was loaded and its items appeared
    time: NDArray[np.int64]  # of the engine since then, ms; see `physics.move_time`
    gray_until: NDArray[np.int64]  # the view is gray while `physics.client_time` is below this
    visit: NDArray[np.int64]  # 0..examples-1 shows an example, `examples` is the delay, the choices follow
    clock: NDArray[np.int64]  # frames left of a visit whose end is fixed, else 0 or less
    match: NDArray[np.int64]  # the object of the example
    other: NDArray[np.int64]  # the object to choose
    example_side: NDArray[np.int64]  # 0 left, 1 right
    match_side: NDArray[np.int64]
    round: NDArray[np.int64]  # [N, examples, 3] match, other and match_side of every example of the round
    taken: NDArray[np.int64]  # side of the object touched, -1 for none; its reward is given one frame later
    score: NDArray[np.float64]  # sum of rewards of the episode
    correct: NDArray[np.int64]  # choices of the episode
    wrong: NDArray[np.int64]
    done: NDArray[np.bool_]  # the episode is over; the next step begins another
    rng: NDArray[np.uint64]  # counter of this environment's own random stream
    look: NDArray[np.uint64]  # random bits of the episode's look, 0 for the level's own


def build(config: RoomsConfig) -> Level:
    """The level a config describes."""
    scale = config.distance_scale
    names, look_pixels_of_set = ACTION_SETS[config.actions]
    look_pixels = config.look_pixels or look_pixels_of_set
    # Boxes grow by the half width of the player, who is then a point.
    half = physics.HALF_WIDTH
    outward = np.array([-1.0, -1.0, 1.0, 1.0])
    return Level(
        solids=np.array(SOLIDS) * scale + outward * (half + physics.WALL_GAP),
        examples=np.array(EXAMPLES) * scale,
        choices=np.array(CHOICES) * scale,
        start=_clear_of_wall(START, BOUNDS[0], scale),
        arrival=_clear_of_wall(ARRIVAL, BOUNDS[1], scale),
        pad=np.array(PAD) * scale + outward * half,
        pickup=np.array(PICKUP) * config.pickup_scale,
        actions=action_rows(names, look_pixels).astype(np.float64),
        rewards=np.array([config.reward_teleport, config.reward_correct, config.reward_wrong], float),
        run_speed=float(config.run_speed),
        throw_speed=float(config.throw_speed * scale),
        throw_time=round(1000 * config.throw_seconds),
        drop_height=float(config.drop_height),
        num_examples=config.examples,
        random_looks=config.looks != "own",
        **{name: getattr(config, name) for name in _OF_CONFIG},
    )


def floor_plan(config: RoomsConfig) -> dict[str, Any]:
    """A plan on which paths can be drawn, in the units and axes of `State.x` and `State.y` (y grows to the left).

    "rooms": names by the number in a pose. "walls": x0, y0, x1, y1. "areas": boxes. "spots": points. "view": degrees.
    """
    scale = config.distance_scale
    walls = []
    for room in WALLS:
        for axis, at, low, high in room:
            ends = (at, low, at, high) if axis == 0 else (low, at, high, at)
            walls.append([scale * end for end in ends])

    spots = {}
    for name, places in (("example", EXAMPLES), ("choice", CHOICES)):
        for side, place in zip(("left", "right"), places):
            spots[f"{name}, {side}"] = [scale * at for at in place]

    return {
        "rooms": ("room of the example", "room of the choice", "the dark"),
        "walls": walls,
        "areas": {"teleporter": [scale * edge for edge in PAD]},
        "spots": spots,
        "view": config.fov_degrees,
    }


def rule(config: RoomsConfig) -> str:
    """The task in words."""
    shown = "an example"
    each = ""
    if config.examples > 1:
        shown = f"{config.examples} examples"
        each = ", for each in turn,"
    same = "" if config.redraw_match else " The example is the same object in all rounds of an episode."
    return (
        f"A round shows {shown} in one room and then{each} a choice of two objects in another.{same} The object that "
        f"differs from the example gives {config.reward_correct:+g}, the one that is like it {config.reward_wrong:+g}, "
        f"and the teleporter between the rooms {config.reward_teleport:+g}."
    )


def _clear_of_wall(position: tuple[int, int], bounds: tuple[int, int, int, int], scale: float) -> NDArray[np.float64]:
    """The scaled position, moved away from the wall behind it by the player's half width where needed (below 0.63)."""
    x = position[0] * scale
    y = position[1] * scale
    nearest_x = bounds[0] * scale + physics.HALF_WIDTH
    return np.array([max(x, nearest_x), y])


def allocate(num_envs: int, examples: int) -> State:
    """The state of environments that have not begun an episode."""
    types: dict[str, Any] = dict.fromkeys(State._fields, np.int64)
    types |= dict.fromkeys(("x", "y", "z", "vx", "vy", "vz", "yaw", "pitch", "score"), np.float64)
    types |= {"done": np.bool_, "rng": np.uint64, "look": np.uint64}
    arrays = {name: np.zeros(num_envs, types[name]) for name in State._fields}
    arrays["round"] = np.zeros((num_envs, examples, 3), np.int64)
    return State(**arrays)


@register_jitable
def place(state: State, i: int, position: NDArray[np.float64], height: float, speed: float) -> None:
    """Puts the player at a position (x, y) and a height, looking and moving along +x."""
    state.x[i] = position[0]
    state.y[i] = position[1]
    state.z[i] = height
    state.vx[i] = speed
    state.vy[i] = 0.0
    state.vz[i] = 0.0
    state.yaw[i] -= physics.stepped(state.yaw[i])  # as in the engine, what it rounds off remains
    state.pitch[i] = 0.0


@register_jitable
def draw_trial(level: Level, state: State, i: int) -> None:
    """Draws the trial's other object and sides, and its match where that is not fixed for the episode."""
    if level.redraw_match:
        state.match[i] = draw(state, i, level.num_objects)
    # One of the objects without the match.
    other = draw(state, i, level.num_objects - 1)
    if other >= state.match[i]:
        other += 1
    state.other[i] = other
    state.example_side[i] = draw(state, i, 2)
    state.match_side[i] = draw(state, i, 2)
    if level.fixed_sides:
        state.example_side[i] = 0
        state.match_side[i] = 1 if state.match[i] > state.other[i] else 0  # the lower number is left


@register_jitable
def next_visit(level: Level, state: State, i: int) -> None:
    """Begins the next visit of the round, or the first of the next round."""
    delay = level.num_examples  # the visit between the examples and the choices
    visit = state.visit[i] + 1
    if visit == delay and level.delay_frames == 0:
        visit += 1
    if visit > 2 * level.num_examples:
        visit = 0
    state.visit[i] = visit
    state.clock[i] = level.visit_frames
    state.thrown[i] = 0
    state.taken[i] = -1

    # An example in the first room, the delay in the dark, or a choice in the second room.
    if visit < delay:
        draw_trial(level, state, i)
        shown = state.round[i, visit]
        shown[0] = state.match[i]
        shown[1] = state.other[i]
        shown[2] = state.match_side[i]
        state.room[i] = ROOM_1
        state.shown[i] = state.frame[i]
        state.time[i] = physics.LOADED
        state.gray_until[i] = 0
        state.yaw[i] = 0.0
        place(state, i, level.start, 0.0, 0.0)
    elif visit == delay:
        halvings = draw(state, i, level.delay_halvings + 1) if level.delay_halvings > 0 else 0
        state.room[i] = DARK
        state.clock[i] = level.delay_frames >> halvings
    else:
        shown = state.round[i, visit - delay - 1]
        state.match[i] = shown[0]
        state.other[i] = shown[1]
        state.match_side[i] = shown[2]
        state.room[i] = ROOM_2
        state.thrown[i] = level.throw_time
        place(state, i, level.arrival, level.drop_height, level.throw_speed)


@register_jitable
def begin_episode(level: Level, state: State, i: int) -> None:
    """Begins an episode. The random stream continues, and drawing a look does not change it."""
    state.frame[i] = 0
    state.score[i] = 0.0
    state.correct[i] = 0
    state.wrong[i] = 0
    state.done[i] = False
    if level.random_looks:
        state.look[i] = mixed(~state.rng[i]) | np.uint64(1)
    if not level.redraw_match:
        state.match[i] = draw(state, i, level.num_objects)
    state.visit[i] = 2 * level.num_examples
    next_visit(level, state, i)


@register_jitable
def clock(state: State, i: int) -> int:
    """The time that the engine's client shows, see `physics.client_time`."""
    return physics.client_time(state.time[i], state.frame[i] - state.shown[i])


@register_jitable
def is_gray(state: State, i: int) -> bool:
    """Whether the view is gray: from the touch of the pad to the server's next frame; reward and motion do not wait."""
    return clock(state, i) < state.gray_until[i]


@register_jitable
def touch(level: Level, state: State, i: int) -> None:
    """Notes the pad or the object that the player touches; the engine acts on it one frame later (see `earned`)."""
    x = state.x[i]
    y = state.y[i]
    if state.room[i] == ROOM_1:
        pad = level.pad
        is_on_pad = pad[0] <= x <= pad[2] and pad[1] <= y <= pad[3]
        if is_on_pad:
            state.room[i] = GRAY
            state.gray_until[i] = physics.next_server_frame(clock(state, i))
        return
    zone = level.pickup
    for side in range(2):
        dx = x - level.choices[side, 0]
        dy = y - level.choices[side, 1]
        if zone[0] <= dx <= zone[1] and abs(dy) <= zone[2]:
            state.taken[i] = side


@register_jitable
def earned(level: Level, state: State, i: int) -> float:
    """The reward for the pad or the object that the player touched in the frame before, which is added to the score."""
    reward = 0.0
    if state.room[i] == GRAY:
        reward = level.rewards[0]
    elif state.room[i] == ROOM_2 and state.taken[i] == state.match_side[i]:
        state.wrong[i] += 1
        reward = level.rewards[2]
    elif state.room[i] == ROOM_2 and state.taken[i] >= 0:
        state.correct[i] += 1
        reward = level.rewards[1]
    state.score[i] += reward
    return reward


@register_jitable
def advance_frame(level: Level, state: State, i: int, action: int) -> float:
    """One frame (1/60 s) with the action numbered `action`; returns its reward.

    Loading the level takes a frame, in which the action is ignored.
    """
    # What was touched in the frame before has its effect.
    reward = earned(level, state, i)
    state.clock[i] -= 1
    loads = state.clock[i] == 0 or state.room[i] == CHOSEN
    if level.visit_frames > 0 and (state.room[i] == GRAY or state.taken[i] >= 0):
        state.room[i] = DARK
    elif state.room[i] == GRAY:
        next_visit(level, state, i)
    elif state.taken[i] >= 0:
        state.room[i] = CHOSEN

    state.frame[i] += 1
    if loads:
        next_visit(level, state, i)
        if state.room[i] != ROOM_1:
            return reward
        # The frame of loading is the first since the level was loaded: it advances the engine's clock, too.
        state.shown[i] = state.frame[i] - 1
    age = state.frame[i] - state.shown[i]
    milliseconds = physics.move_time(state.time[i], age - 1)
    state.time[i] += milliseconds
    if loads or state.room[i] == DARK:
        return reward

    look_right = level.actions[action, 0]
    look_down = level.actions[action, 1]
    right = level.actions[action, 2]
    forward = level.actions[action, 3]
    state.yaw[i], state.pitch[i] = physics.turn(state.yaw[i], state.pitch[i], look_right, look_down)
    # In a random look the player is a little slower or faster.
    pace = 1.0
    if state.look[i] != 0:
        pace = look.uniform(state.look[i], look.PACE, 0.97, 1.03)
    physics.move(state, i, level.solids, forward, right, level.run_speed, pace * milliseconds)
    if state.taken[i] < 0:
        touch(level, state, i)
    return reward


@register_jitable
def advance_step(level: Level, state: State, i: int, action: int) -> float:
    """One agent step: `action_repeat` frames, or fewer at the end of the episode; returns the sum of rewards.

    At the end the engine goes one frame further and gives the rewards of what the player touched last.
    """
    total = 0.0
    for _ in range(level.action_repeat):
        total += advance_frame(level, state, i, action)
        if state.frame[i] >= level.episode_frames:
            total += earned(level, state, i)
            state.done[i] = True
            break
    return total
