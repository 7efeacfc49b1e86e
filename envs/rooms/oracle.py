"""A scripted player that reads the state, and the number of steps that a memory has to bridge."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.physics import DEGREES_PER_PIXEL


def oracle_actions(env: Any) -> NDArray[np.int64]:
    """Actions [N] that walk to the pad, then to the object that does not match.

    `env` is a `RoomsVectorEnv`.

    The player turns towards the target while running, whenever one look action brings him nearer to its bearing.
    """
    state = env.state
    plan = env.level
    side = 1 - state.match_side

    # In the room of the choice the target is the near edge of the object's pickup zone, a little inside.
    goal = plan.choices[side]
    inward = 0.85 * plan.pickup[2]
    is_left = goal[:, 1] > plan.arrival[1]
    goal_x = goal[:, 0] + 0.9 * plan.pickup[0]
    goal_y = np.where(is_left, goal[:, 1] - inward, goal[:, 1] + inward)

    # In the room of the example it is the middle of the pad.
    in_room_1 = state.room == level.ROOM_1
    goal_x = np.where(in_room_1, (plan.pad[0] + plan.pad[2]) / 2, goal_x)
    goal_y = np.where(in_room_1, (plan.pad[1] + plan.pad[3]) / 2, goal_y)

    # The angle to the target, -180 to 180 degrees, positive to the left.
    ahead = np.maximum(goal_x - state.x, 1.0)
    bearing = np.degrees(np.arctan2(goal_y - state.y, ahead))
    off = (bearing - state.yaw + 180.0) % 360.0 - 180.0

    names = env.config.action_names
    forward = names.index("forward")
    left = names.index("look left, forward")
    right = names.index("look right, forward")
    # Turning helps where the target is more than half of an action's turn away.
    half_turn = 0.5 * plan.actions[right, 0] * DEGREES_PER_PIXEL * plan.action_repeat
    return np.select([off > half_turn, off < -half_turn], [left, right], forward)


def memory_spans(env: Any, altered: Any, seed: int = 0) -> NDArray[np.int64]:
    """Steps that a memory has to bridge for each choice [K] of one episode of the oracle in every environment.

    `env` and `altered` are two equal `RoomsVectorEnv`.

    Counted from the last view in which another object in the example's place would look different, to the first view
    of the choice. A slower player, or one that sees less of the example, needs more.
    """
    examples = env.config.examples
    rows = np.arange(env.num_envs)
    view, _ = env.reset(seed=seed)
    state = env.state
    last_seen = np.zeros((env.num_envs, examples), int)  # the step at which each example was visible last
    visit_before = state.visit.copy()
    spans = []
    for step in range(env.config.episode_steps):
        # An example is visible where another object in its place changes the view.
        another = (state.match + 1) % env.config.num_objects
        altered_view = altered.set_state(env.get_state() | {"match": another})
        is_visible = (state.room == level.ROOM_1) & (view != altered_view).any((1, 2, 3))
        last_seen[rows[is_visible], state.visit[is_visible]] = step

        # Where the room of a choice has just been entered; visit `examples` + 1 asks for example 0.
        is_asked = (state.room == level.ROOM_2) & (state.visit != visit_before)
        example = state.visit[is_asked] - examples - 1
        spans.append(step - last_seen[rows[is_asked], example])

        visit_before[:] = state.visit
        view, *_ = env.step(oracle_actions(env))
    return np.concatenate(spans)
