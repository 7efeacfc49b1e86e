"""A scripted player that reads the state, and the number of steps that a memory has to bridge."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.physics import DEGREES_PER_PIXEL


def oracle_actions(env: Any, choose_match: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Actions [N] that walk to the pad, then to the object that does not match (the matching one where asked).

    `env` is a `RoomsVectorEnv`.

    The player turns towards the target while running, whenever one look action brings him nearer to its bearing.
    """
    state, plan = env.state, env.level
    side = 1 - state.match_side
    if choose_match is not None:
        side = np.where(choose_match, 1 - side, side)
    # The target is the middle of the pad, or the near edge of the pickup zone, a little inside.
    inner, goal = 0.85 * plan.pickup[2], plan.choices[side]
    goal_y = np.where(goal[:, 1] > plan.arrival[1], goal[:, 1] - inner, goal[:, 1] + inner)
    goal_x = goal[:, 0] + 0.9 * plan.pickup[0]
    first = state.room == level.ROOM_1
    goal_x = np.where(first, (plan.pad[0] + plan.pad[2]) / 2, goal_x)
    goal_y = np.where(first, (plan.pad[1] + plan.pad[3]) / 2, goal_y)
    bearing = np.degrees(np.arctan2(goal_y - state.y, np.maximum(goal_x - state.x, 1.0)))
    off = (bearing - state.yaw + 180.0) % 360.0 - 180.0
    names = env.config.action_names
    forward, left, right = map(names.index, ("forward", "look left, forward", "look right, forward"))
    step = 0.5 * plan.actions[right, 0] * DEGREES_PER_PIXEL * plan.action_repeat
    return np.where(off > step, left, np.where(off < -step, right, forward))


def memory_spans(env: Any, altered: Any, seed: int = 0) -> NDArray[np.int64]:
    """Steps that a memory has to bridge for each choice [K] of one episode of the oracle in every environment.

    `env` and `altered` are two equal `RoomsVectorEnv`.

    Counted from the last view in which another object in the example's place would look different, to the first view
    of the choice. A slower player, or one that sees less of the example, needs more.
    """
    num_envs, examples = env.num_envs, env.config.examples
    rows = np.arange(num_envs)
    view, state = env.reset(seed=seed)[0], env.state
    seen = np.zeros((num_envs, examples), int)
    visit, spans = state.visit.copy(), []
    for step in range(env.config.episode_steps):
        other = altered.set_state(env.get_state() | {"match": (state.match + 1) % env.config.num_objects})
        shown = (state.room == level.ROOM_1) & (view != other).any((1, 2, 3))
        seen[rows[shown], state.visit[shown]] = step
        asked = (state.room == level.ROOM_2) & (state.visit != visit)
        spans.append(step - seen[rows[asked], state.visit[asked] - examples - 1])
        visit[:] = state.visit
        view = env.step(oracle_actions(env))[0]
    return np.concatenate(spans)
