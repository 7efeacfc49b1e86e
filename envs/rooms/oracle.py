"""A scripted player that reads the state: what a perfect memory could score, by the nine actions alone, and how far it
had to reach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.config import RoomsConfig
from envs.rooms.physics import DEGREES_PER_PIXEL
from envs.rooms.vector import RoomsVectorEnv

_FORWARD, _LEFT_FORWARD, _RIGHT_FORWARD = (
    level.ACTION_NAMES.index(name) for name in ("forward", "look left, forward", "look right, forward")
)


def oracle_actions(env: RoomsVectorEnv, choose_match: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Actions [N] that walk to the pad, then to the object that does not match (the matching one where asked).

    The player turns towards the target while running, whenever one look action brings him nearer to its bearing.
    """
    state, plan = env.state, env.level
    side = 1 - state.match_side
    if choose_match is not None:
        side = np.where(choose_match, 1 - side, side)
    first = state.room == level.ROOM_1
    # Aim at the middle of the pad, or at the near edge of the pickup zone, a little inside.
    inner = 0.85 * plan.pickup[2]
    centre = plan.arrival[1]
    goal = plan.choices[side]
    goal_y = np.where(goal[:, 1] > centre, goal[:, 1] - inner, goal[:, 1] + inner)
    goal_x = goal[:, 0] + 0.9 * plan.pickup[0]
    goal_x = np.where(first, (plan.pad[0] + plan.pad[2]) / 2, goal_x)
    goal_y = np.where(first, (plan.pad[1] + plan.pad[3]) / 2, goal_y)
    bearing = np.degrees(np.arctan2(goal_y - state.y, np.maximum(goal_x - state.x, 1.0)))
    off = (bearing - state.yaw + 180.0) % 360.0 - 180.0
    step = 0.5 * plan.actions[_RIGHT_FORWARD, 0] * DEGREES_PER_PIXEL * plan.action_repeat
    return np.where(off > step, _LEFT_FORWARD, np.where(off < -step, _RIGHT_FORWARD, _FORWARD))


def memory_spans(config: RoomsConfig | str, num_envs: int = 32, seed: int = 0) -> NDArray[np.int64]:
    """How many steps a memory has to bridge for each choice [K] of one episode a member, as the oracle walks.

    Counted from the last view that the example changes, i.e. that another object in its place would change, to the
    first view of the choice about it. A player who sees less of an example, or dawdles, needs more.
    """
    env, altered = RoomsVectorEnv(num_envs, config), RoomsVectorEnv(num_envs, config)
    examples, members = env.config.examples, np.arange(num_envs)
    view, state = env.reset(seed=seed)[0], env.state
    seen = np.zeros((num_envs, examples), int)
    visit, spans = state.visit.copy(), []
    for step in range(env.config.episode_steps):
        other = altered.set_state(env.get_state() | {"match": (state.match + 1) % env.config.num_objects})
        shown = (state.room == level.ROOM_1) & (view != other).any((1, 2, 3))
        seen[members[shown], state.visit[shown]] = step
        asked = (state.room == level.ROOM_2) & (state.visit != visit)
        spans.append(step - seen[members[asked], state.visit[asked] - examples - 1])
        visit[:] = state.visit
        view = env.step(oracle_actions(env))[0]
    return np.concatenate(spans)
