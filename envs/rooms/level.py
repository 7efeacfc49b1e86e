"""The level: its plan, the state of a batch of environments, and the rules of a trial as scalar functions.

Coordinates and rules are those of rooms_select_nonmatching_object (see docs), scaled in plan by
`RoomsConfig.distance_scale`. How the player moves is in `physics.py`, how it looks in `render.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.rooms import physics
from envs.rooms.config import RoomsConfig

#: Values of `State.room`. CHOSEN is room 2 in the one frame between touching an object and what follows; in the DARK
#: nothing is seen and nothing moves.
ROOM_1, ROOM_2, CHOSEN, DARK = 0, 1, 2, 3

#: x0, y0, x1, y1 of the box around each room. Room 2 is an alcove (x 256..384, y -128..0) that opens into a hall.
BOUNDS = ((-256, -256, 128, 128), (256, -248, 640, 128))
#: Walls a view may meet, by room: (0 if at a fixed x, 1 if at a fixed y; that coordinate; from; to).
WALLS = (
    ((0, -256, -256, 128), (0, 128, -256, 128), (1, -256, -256, 128), (1, 128, -256, 128)),
    (
        (0, 256, -128, 0),
        (1, -128, 256, 384),
        (1, 0, 256, 384),
        (0, 384, -248, -128),
        (0, 384, 0, 128),
        (1, -248, 384, 640),
        (1, 128, 384, 640),
        (0, 640, -248, 128),
    ),
)
#: Everything solid: beyond and between the rooms, beside the alcove, and the two invisible fences.
SOLIDS = (
    (-9999, -9999, -256, 9999),
    (128, -9999, 256, 9999),
    (640, -9999, 9999, 9999),
    (-9999, 128, 9999, 9999),
    (-9999, -9999, 128, -256),
    (256, -9999, 9999, -248),
    (256, -248, 384, -128),
    (256, 0, 384, 128),
    (0, 24, 80, 104),
    (0, -232, 80, -152),
)
START = (-232, -64)
ARRIVAL = (288, -64)
PAD = (40, -88, 88, -40)
#: Positions by side (0 left, 1 right) of the example and of the two choices.
EXAMPLES = ((40, 64), (40, -192))
CHOICES = ((600, 64), (600, -192))
#: Pickup zone, player minus object: dx from, dx to, |dy| up to.
PICKUP = (-50.0, 44.0, 36.0)

#: The nine actions of scalable_agent, rows of (look right, look down, strafe right, move forward, fire, jump, crouch);
#: the look columns are multiples of `RoomsConfig.look_pixels`.
ACTION_NAMES = (
    "forward",
    "backward",
    "strafe left",
    "strafe right",
    "look left",
    "look right",
    "look left, forward",
    "look right, forward",
    "fire",
)
ACTIONS: NDArray[np.int64] = np.array(
    [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-1, 0, 0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0, 0, 0),
        (-1, 0, 0, 1, 0, 0, 0),
        (1, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ]
)


class Level(NamedTuple):
    """The constants of a level, in the form the scalar functions read. Lengths in u, already scaled."""

    solids: NDArray[np.float64]  # [K, 4] grown by the player's half width
    examples: NDArray[np.float64]  # [2, 2] side, (x, y)
    choices: NDArray[np.float64]  # [2, 2]
    start: NDArray[np.float64]  # [2]
    arrival: NDArray[np.float64]  # [2]
    pad: NDArray[np.float64]  # [4] grown by the player's half width
    pickup: NDArray[np.float64]  # [3]
    actions: NDArray[np.float64]  # [9, 7]
    rewards: NDArray[np.float64]  # [3] teleport, correct, wrong
    num_objects: int
    randomise: bool
    redraw_match: bool
    fixed_sides: bool
    num_examples: int
    delay_frames: int
    delay_halvings: int
    visit_frames: int
    episode_frames: int
    action_repeat: int
    run_speed: float
    throw_speed: float
    throw_moves: int


class State(NamedTuple):
    """The state of N environments, one array [N] a field (but `round`); whatever changes during an episode is here."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    vx: NDArray[np.float64]
    vy: NDArray[np.float64]
    yaw: NDArray[np.float64]  # degrees, 0 along +x, growing to the left
    pitch: NDArray[np.float64]  # degrees, positive down
    flying: NDArray[np.int64]  # moves left without friction
    room: NDArray[np.int64]  # ROOM_1, ROOM_2, CHOSEN or DARK
    frame: NDArray[np.int64]  # frames since the episode began
    visit: NDArray[np.int64]  # 0..examples-1 shows an example, `examples` is the delay, the choices follow
    clock: NDArray[np.int64]  # frames left of a visit whose end is fixed, else 0 or less
    match: NDArray[np.int64]  # the object of the example
    other: NDArray[np.int64]  # the object to choose
    example_side: NDArray[np.int64]  # 0 left, 1 right
    match_side: NDArray[np.int64]
    round: NDArray[np.int64]  # [N, examples, 3] match, other and match_side of every example of the round
    taken: NDArray[np.int64]  # side of the object touched, -1 for none
    score: NDArray[np.float64]  # sum of rewards of the episode
    correct: NDArray[np.int64]  # choices of the episode
    wrong: NDArray[np.int64]
    done: NDArray[np.bool_]  # the episode has ended; the next step begins another
    rng: NDArray[np.uint64]  # counter of this environment's own random stream
    look: NDArray[np.uint64]  # what the episode's look is drawn from, 0 for the level's own


def build(config: RoomsConfig) -> Level:
    """The level a config describes."""
    scale, half = config.distance_scale, physics.HALF_WIDTH
    grow = np.array([-half, -half, half, half])
    look = np.array([config.look_pixels, config.look_pixels, 1, 1, 1, 1, 1])
    return Level(
        solids=np.array(SOLIDS) * scale + grow,
        examples=np.array(EXAMPLES) * scale,
        choices=np.array(CHOICES) * scale,
        start=_clear_of_wall(START, BOUNDS[0], scale),
        arrival=_clear_of_wall(ARRIVAL, BOUNDS[1], scale),
        pad=np.array(PAD) * scale + grow,
        pickup=np.array(PICKUP) * config.pickup_scale,
        actions=(ACTIONS * look).astype(np.float64),
        rewards=np.array([config.reward_teleport, config.reward_correct, config.reward_wrong], float),
        num_objects=config.num_objects,
        randomise=config.randomise,
        redraw_match=config.redraw_match,
        fixed_sides=config.fixed_sides,
        num_examples=config.examples,
        delay_frames=config.delay_frames,
        delay_halvings=config.delay_halvings,
        visit_frames=config.visit_frames,
        episode_frames=config.episode_frames,
        action_repeat=config.action_repeat,
        run_speed=float(config.run_speed),
        throw_speed=float(config.throw_speed * scale),
        throw_moves=round(config.throw_seconds / physics.MOVE_SECONDS),
    )


def floor_plan(config: RoomsConfig) -> dict[str, Any]:
    """What to draw a path on, in the units and axes of `State.x` and `State.y` (y grows to the left), for people.

    "rooms": names by the number in a pose; in the first is shown what must be remembered. "walls": segments
    (x0, y0, x1, y1). "areas" and "spots": boxes and points by name.
    """
    scale = config.distance_scale
    ends = [(at, low, at, high) if axis == 0 else (low, at, high, at) for room in WALLS for axis, at, low, high in room]
    points = {f"example, {side}": spot for side, spot in zip(("left", "right"), EXAMPLES)}
    points |= {f"choice, {side}": spot for side, spot in zip(("left", "right"), CHOICES)}
    return {
        "rooms": ("room of the example", "room of the choice", "the dark"),
        "walls": [[scale * end for end in wall] for wall in ends],
        "areas": {"teleporter": [scale * edge for edge in PAD]},
        "spots": {name: [scale * at for at in spot] for name, spot in points.items()},
    }


def _clear_of_wall(position: tuple[int, int], bounds: tuple[int, int, int, int], scale: float) -> NDArray[np.float64]:
    """The position, scaled, but with room for the player between him and the wall behind him (matters below 0.63)."""
    return np.array([max(position[0] * scale, bounds[0] * scale + physics.HALF_WIDTH), position[1] * scale])


def allocate(num_envs: int, examples: int) -> State:
    """The state of environments that have not begun an episode: their first step or reset begins one."""
    types = {"done": np.bool_, "rng": np.uint64, "look": np.uint64}
    floats = {"x", "y", "vx", "vy", "yaw", "pitch", "score"}
    state = State(*(np.zeros(num_envs, types.get(f, np.float64 if f in floats else np.int64)) for f in State._fields))
    state = state._replace(round=np.zeros((num_envs, examples, 3), np.int64))
    state.done[:] = True
    return state


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE, _30, _27, _31, _32 = np.uint64(1), np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@register_jitable
def mixed(z):
    """Random bits from a counter that grows by GOLDEN (splitmix64; Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@register_jitable
def draw(state, i, n):
    """A number uniform in 0..n-1 from environment i's own stream."""
    state.rng[i] += GOLDEN
    return np.int64(((mixed(state.rng[i]) >> _32) * np.uint64(n)) >> _32)


@register_jitable
def place(state, i, position, speed):
    """Put the player at a position (x, y), looking and moving along +x."""
    state.x[i] = position[0]
    state.y[i] = position[1]
    state.vx[i] = speed
    state.vy[i] = 0.0
    state.yaw[i] = 0.0
    state.pitch[i] = 0.0


@register_jitable
def draw_trial(level, state, i):
    """A fresh example, or the old one where it is fixed for the episode, a fresh object beside it and fresh sides."""
    if level.redraw_match:
        state.match[i] = draw(state, i, level.num_objects)
    other = draw(state, i, level.num_objects - 1)
    state.other[i] = other + 1 if other >= state.match[i] else other
    state.example_side[i] = draw(state, i, 2)
    state.match_side[i] = draw(state, i, 2)
    if level.fixed_sides:
        state.example_side[i] = 0
        state.match_side[i] = 1 if state.match[i] > state.other[i] else 0


@register_jitable
def go_on(level, state, i):
    """To the next visit of the round, or to the first of the next round."""
    visit = state.visit[i] + 1
    if visit == level.num_examples and level.delay_frames == 0:
        visit += 1
    if visit > 2 * level.num_examples:
        visit = 0
    state.visit[i] = visit
    state.clock[i] = level.visit_frames
    state.flying[i] = 0
    state.taken[i] = -1
    if visit < level.num_examples:
        draw_trial(level, state, i)
        told = state.round[i, visit]
        told[0], told[1], told[2] = state.match[i], state.other[i], state.match_side[i]
        state.room[i] = ROOM_1
        place(state, i, level.start, 0.0)
    elif visit == level.num_examples:
        halvings = draw(state, i, level.delay_halvings + 1) if level.delay_halvings > 0 else 0
        state.room[i] = DARK
        state.clock[i] = level.delay_frames >> halvings
    else:
        told = state.round[i, visit - level.num_examples - 1]
        state.match[i], state.other[i], state.match_side[i] = told[0], told[1], told[2]
        state.room[i] = ROOM_2
        state.flying[i] = level.throw_moves
        place(state, i, level.arrival, level.throw_speed)


@register_jitable
def begin_episode(level, state, i):
    """A new match object and a full clock; the random stream goes on, and a look takes nothing from it."""
    state.frame[i] = 0
    state.score[i] = 0.0
    state.correct[i] = 0
    state.wrong[i] = 0
    state.done[i] = False
    if level.randomise:
        state.look[i] = mixed(~state.rng[i]) | _ONE
    if not level.redraw_match:
        state.match[i] = draw(state, i, level.num_objects)
    state.visit[i] = 2 * level.num_examples
    go_on(level, state, i)


@register_jitable
def touch(level, state, i):
    """Whatever the player now touches takes effect; returns the reward of this frame."""
    x, y = state.x[i], state.y[i]
    if state.room[i] == ROOM_1:
        if level.pad[0] <= x <= level.pad[2] and level.pad[1] <= y <= level.pad[3]:
            if level.visit_frames > 0:
                state.room[i] = DARK
            else:
                go_on(level, state, i)
            return level.rewards[0]
        return 0.0
    for side in range(2):
        dx, dy = x - level.choices[side, 0], y - level.choices[side, 1]
        if level.pickup[0] <= dx <= level.pickup[1] and abs(dy) <= level.pickup[2]:
            state.taken[i] = side
            state.room[i] = DARK if level.visit_frames > 0 else CHOSEN
            if side == state.match_side[i]:
                state.wrong[i] += 1
                return level.rewards[2]
            state.correct[i] += 1
            return level.rewards[1]
    return 0.0


@register_jitable
def advance_frame(level, state, i, action):
    """One frame (1/60 s) with the action of this number; returns its reward."""
    state.frame[i] += 1
    state.clock[i] -= 1
    if state.clock[i] == 0 or state.room[i] == CHOSEN:
        go_on(level, state, i)
        return 0.0
    if state.room[i] == DARK:
        return 0.0
    look_right, look_down = level.actions[action, 0], level.actions[action, 1]
    right, forward = level.actions[action, 2], level.actions[action, 3]
    state.yaw[i], state.pitch[i] = physics.turn(state.yaw[i], state.pitch[i], look_right, look_down)
    for _ in range(physics.MOVES_PER_FRAME):
        grounded = state.flying[i] == 0
        if not grounded:
            state.flying[i] -= 1
        vx, vy = physics.accelerate(state.vx[i], state.vy[i], state.yaw[i], forward, right, level.run_speed, grounded)
        state.x[i], state.vx[i] = physics.slide_x(level.solids, state.x[i], state.y[i], vx)
        state.y[i], state.vy[i] = physics.slide_y(level.solids, state.x[i], state.y[i], vy)
    reward = touch(level, state, i)
    state.score[i] += reward
    return reward


@register_jitable
def advance_step(level, state, i, action):
    """One agent step, `action_repeat` frames or what the clock leaves of them; returns the reward summed."""
    total = 0.0
    for _ in range(level.action_repeat):
        total += advance_frame(level, state, i, action)
        if state.frame[i] >= level.episode_frames:
            state.done[i] = True
            break
    return total
