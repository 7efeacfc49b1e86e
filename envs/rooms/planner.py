"""A player that plans: the fastest trials that a beam search finds in the level's exact physics.

From the first decision of a trial it knows which object is right, and searches series of actions up to the reward. The
scripted player of `oracle.py` runs straight to its targets instead. Most of the gain comes from looking half to the
side and running and strafing in turn: the engine limits the speed along the direction that is asked for, not the speed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.config import RoomsConfig
from envs.rooms.oracle import oracle_actions
from envs.rooms.physics import FRAME_SECONDS, FRICTION
from envs.rooms.scene import build_scene

BEAM = 512
"""Series of actions that are kept at every step of a search."""
MOST_FRAMES = 512
"""A search looks so many frames ahead. If it finds no reward there, the best series so far is played, then the
script."""
FRESH_FRAMES = 8
"""A trial is planned where so many of its frames have passed or fewer."""
ALIKE = {"x": 3.0, "y": 3.0, "vx": 16.0, "vy": 16.0, "yaw": 4.0}
"""Of two states that differ by less in x and y (u), vx and vy (u/s) and yaw (degrees) the better one is kept."""
_DECIDES = ("x", "y", "z", "vx", "vy", "vz", "yaw", "pitch", "thrown", "room", "time", "taken")
"""What decides a trial, besides its frame, its look, the side of the correct object and how long the episode lasts."""
MOST_KNOWN = 100_000
"""States whose actions are remembered; then all are forgotten, and trials in progress are played by the script. Random
looks have a pace of their own in every episode."""


def is_planned(config: RoomsConfig) -> bool:
    """Whether trials of a config can be planned: one choice each, and as long as the player takes."""
    return config.visit_frames == 0 and config.examples == 1


class _Node(NamedTuple):
    """A step of a search: for each series of actions that is kept its last action, and the series before."""

    actions: NDArray[np.int64]
    parents: NDArray[np.int64]


class Planner:
    """The actions of the fastest trials, searched where a trial begins and then remembered.

    Args:
        config: one for which `is_planned` is true.
        run: the compiled step of `env.py`, which draws as well.
        beam: series of actions that are kept at every step of a search; more find faster trials in more time.
    """

    def __init__(self, config: RoomsConfig, run: Callable[..., None], beam: int = BEAM) -> None:
        if not is_planned(config):
            raise ValueError("config: expected one example a round and no fixed time of visits")
        blind = dataclasses.replace(config, image_height=8, image_width=8, shrink=1, hud=False)
        self.plan = level.build(config)
        self.scene = build_scene(blind)
        self.beam = beam
        self._run = run
        self._known: dict[tuple[Any, ...], int] = {}

    def actions(self, env: Any) -> NDArray[np.int64]:
        """Actions [N] for a `RoomsVectorEnv`: those of a plan, or of the scripted player where there is none."""
        chosen = oracle_actions(env)
        for row, key in enumerate(self._keys(env.state)):
            if key not in self._known and self._is_fresh(env.state, row):
                self._search(_take(env.state, np.array([row])))
            chosen[row] = self._known.get(key, chosen[row])
        return chosen

    def _is_fresh(self, state: level.State, row: int) -> bool:
        age = state.frame[row] - state.shown[row]
        return bool(state.room[row] == level.ROOM_1 and age <= FRESH_FRAMES and not state.done[row])

    def _keys(self, state: level.State) -> list[tuple[Any, ...]]:
        """By environment: all that decides how its trial goes on."""
        age = state.frame - state.shown
        frames_left = np.minimum(self.plan.episode_frames - state.shown, MOST_FRAMES)
        columns = [age, state.match_side, frames_left]
        columns += [getattr(state, name) for name in _DECIDES]
        rows = np.stack(columns, axis=1, dtype=np.float64).tolist()
        # A look has 64 bits, more than a float64 keeps.
        looks = state.look.tolist()
        return [(look, *row) for look, row in zip(looks, rows)]

    def _search(self, start: level.State) -> None:
        """Remembers the actions of the fastest trial from a state of one environment."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        state = _take(start, np.zeros(1, np.int64))
        nodes: list[_Node] = []
        num_actions = len(self.plan.actions)
        while len(nodes) * self.plan.action_repeat < MOST_FRAMES:
            # Every action in every state.
            num_states = len(state.x)
            parents = np.repeat(np.arange(num_states), num_actions)
            actions = np.tile(np.arange(num_actions), num_states)
            state = _take(state, parents)
            self._step(state, actions)

            kept = self._best(state, start)
            nodes.append(_Node(actions[kept], parents[kept]))
            state = _take(state, kept)
            if state.correct[0] > start.correct[0] or state.done[0]:
                break
        self._remember(start, nodes)

    def _step(self, state: level.State, actions: NDArray[np.int64]) -> None:
        """Moves all environments of a state by one step; one pixel of each is drawn."""
        images = np.zeros((len(actions), 1, 1, 3), np.uint8)
        rewards = np.zeros(len(actions))
        begin = np.zeros(len(actions), bool)
        self._run(self.plan, self.scene, state, begin, actions, rewards, images[:1], images)

    def _best(self, state: level.State, start: level.State) -> NDArray[np.int64]:
        """The rows to keep, the best first, and of those that are alike the best."""
        value = self._remaining(state)
        ended = state.correct > start.correct[0]
        # Of those that have ended the one that is ahead in the next trial, which the held action has begun.
        value = np.where(ended, self._to_pad(state) - 1e6, value)
        # At the end of an episode the score counts.
        value = np.where(state.done & ~ended, -state.score, value)
        order = np.argsort(value, kind="stable")

        # States are alike that lie in the same cell of a grid, in the same room. One number stands for the cell: a hash
        # of its place. Of each cell the first in order is kept.
        cells = np.zeros(len(order), np.int64)
        for name, size in ALIKE.items():
            cells = 1_000_003 * cells + np.round(getattr(state, name)[order] / size).astype(np.int64)
        cells = 8 * cells + state.room[order]
        _, firsts = np.unique(cells, return_index=True)
        return order[np.sort(firsts)[: self.beam]]

    def _remaining(self, state: level.State) -> NDArray[np.float64]:
        """About the way in u to the correct object's zone; see `_way`."""
        plan = self.plan
        from_x, to_x, half_y = plan.pickup
        correct_object = plan.choices[1 - state.match_side]
        x = correct_object[:, 0]
        y = correct_object[:, 1]
        along = np.stack([from_x + x, to_x + x], axis=1)
        across = np.stack([y - half_y, y + half_y], axis=1)

        # From where the player is, and from where a teleporter throws one into the second room.
        from_here = self._way(state.x, state.y, state.vx, state.vy, along, across)
        zeros = np.zeros_like(state.x)
        arrival_x = zeros + plan.arrival[0]
        arrival_y = zeros + plan.arrival[1]
        thrown_vx = zeros + plan.throw_speed
        from_arrival = self._way(arrival_x, arrival_y, thrown_vx, zeros, along, across)

        remaining = np.where(state.room == level.GRAY, from_arrival, from_here)
        return np.where(state.room == level.ROOM_1, self._to_pad(state) + from_arrival, remaining)

    def _to_pad(self, state: level.State) -> NDArray[np.float64]:
        """The same to the pad. A player with the reward for an object goes from the start, a frame later."""
        pad = self.plan.pad[None]
        along = pad[:, [0, 2]]
        across = pad[:, [1, 3]]
        from_here = self._way(state.x, state.y, state.vx, state.vy, along, across)

        start = self.plan.start
        zero = np.zeros(1)
        from_start = self._way(start[:1], start[1:], zero, zero, along, across)
        from_start = from_start + self.plan.run_speed * FRAME_SECONDS
        return np.where(state.room == level.CHOSEN, from_start, from_here)

    def _way(
        self,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
        vx: NDArray[np.float64],
        vy: NDArray[np.float64],
        along: NDArray[np.float64],
        across: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """The distance [N] to boxes (x in along [N or 1, 2], y in across), plus that lost until the player runs.

        From the speed v towards the box to full speed, a player loses (full speed - v) / `FRICTION`.
        """
        dx = np.clip(x, along[:, 0], along[:, 1]) - x
        dy = np.clip(y, across[:, 0], across[:, 1]) - y
        distance = np.hypot(dx, dy)
        towards = (vx * dx + vy * dy) / np.maximum(distance, 1e-9)
        lost = (self.plan.run_speed - towards) / FRICTION
        return np.maximum(distance + lost, 0.5 * distance)

    def _remember(self, start: level.State, nodes: list[_Node]) -> None:
        """Notes the actions of the best series of a search for the states through which it goes."""
        # From the best of the last step back to the start.
        series = []
        row = 0
        for node in reversed(nodes):
            series.append(node.actions[row])
            row = node.parents[row]

        # The same series again, to see the states.
        state = _take(start, np.zeros(1, np.int64))
        for action in reversed(series):
            (key,) = self._keys(state)
            self._known[key] = int(action)
            self._step(state, np.array([action]))


def _take(state: level.State, rows: NDArray[np.int64]) -> level.State:
    """Copies of some environments."""
    taken = {name: np.ascontiguousarray(field[rows]) for name, field in state._asdict().items()}
    return level.State(**taken)
