"""The oracle's scores and ways on the rooms level, with nine and fifteen actions, beside those of the scripted player.

The oracle plans each trial in the level's exact physics (`envs/rooms/planner.py`); the scripted player runs to its
targets. Both know which object is right.

    python -m benchmarks.oracle --picture docs/oracle.png     (the picture needs matplotlib)
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import run
from envs.lab_interface import ACTION_SETS
from envs.rooms import RoomsVectorEnv, level, oracle_actions
from envs.rooms.config import resolve

Choose = Callable[[RoomsVectorEnv], NDArray[np.int64]]
PLAYERS: dict[str, Choose] = {"scripted": oracle_actions, "planned": RoomsVectorEnv.oracle_actions}


@dataclass
class Options:
    """What is played."""

    variant: str = "full"
    episodes: int = 64
    picture: Path | None = None
    """File for a picture of the ways of two trials, seen from above."""


@dataclass
class Played:
    """Episodes of a player."""

    scores: NDArray[np.float64]  # [N]
    reward_steps: list[int]  # of the first episode, counted from 1
    poses: NDArray[np.float64]  # [T, 4] of the first episode after every frame, see `RoomsVectorEnv.poses`
    actions: list[str]  # of the first episode
    seconds: float


def play(variant: str, actions: str, choose: Choose, episodes: int) -> Played:
    """Plays one episode in each of some environments, without drawing views."""
    config = dataclasses.replace(resolve(variant), actions=actions, image_height=8, image_width=8, shrink=1, hud=False)
    env = RoomsVectorEnv(episodes, config)
    slow = RoomsVectorEnv(1, dataclasses.replace(config, action_repeat=1))
    env.reset(seed=list(range(episodes)))
    slow.reset(seed=[0])

    begin = time.perf_counter()
    rewards = []
    names = []
    poses = [slow.poses()[0]]
    for _ in range(config.episode_steps):
        chosen = choose(env)
        _, reward, *_ = env.step(chosen)
        rewards.append(reward)
        names.append(config.action_names[chosen[0]])
        for _ in range(config.action_repeat):
            slow.step(chosen[:1])
            poses.append(slow.poses()[0])
    seconds = time.perf_counter() - begin

    scores = np.sum(rewards, axis=0)
    of_first = np.stack(rewards)[:, 0]
    steps = 1 + np.flatnonzero(of_first)
    return Played(scores, steps.tolist(), np.stack(poses), names, seconds)


def draw(played: dict[str, Played], variant: str, path: Path) -> None:
    """The ways of the first two trials from above, a panel for each player; dots are steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    config = resolve(variant)
    plan = level.floor_plan(config)
    built = level.build(config)
    figure, axes = pyplot.subplots(len(played), 1, figsize=(8, 2.9 * len(played)), sharex=True)
    for axis, (name, one) in zip(axes, played.items()):
        for x0, y0, x1, y1 in plan["walls"]:
            axis.plot([x0, x1], [y0, y1], color="0.6")
        low, high, across = built.pickup
        for x, y in built.choices:
            zone = pyplot.Rectangle((x + low, y - across), high - low, 2 * across, color="tab:pink", alpha=0.2)
            axis.add_patch(zone)
        x0, y0, x1, y1 = built.pad
        axis.add_patch(pyplot.Rectangle((x0, y0), x1 - x0, y1 - y0, color="tab:purple", alpha=0.2))

        # Two trials have four rewards: for a teleport and a choice each. A pose is x, y, yaw and the room.
        last_step = one.reward_steps[:4][-1]
        poses = one.poses[: config.action_repeat * last_step]
        for room, color in ((0, "tab:blue"), (1, "tab:orange")):
            is_here = poses[:, 3:] == room
            way = np.where(is_here, poses[:, :2], np.nan)
            axis.plot(way[:, 0], way[:, 1], color=color)
            at_steps = way[:: config.action_repeat]
            axis.plot(at_steps[:, 0], at_steps[:, 1], ".", color=color)
        axis.set_title(
            f"{name}: {one.scores.mean():.0f} an episode, a choice after steps {one.reward_steps[1::2]}", fontsize=9
        )
        axis.set_aspect("equal")
        axis.set_ylabel("y (u)")
    axes[-1].set_xlabel("x (u)")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main(options: Options) -> dict[str, Any]:
    """Plays, draws, and returns the figures."""
    played = {}
    for actions in ACTION_SETS:
        for player, choose in PLAYERS.items():
            played[f"{player}, {actions} actions"] = play(options.variant, actions, choose, options.episodes)
    if options.picture:
        draw(played, options.variant, options.picture)
    return {
        name: {
            "score": float(one.scores.mean()),
            "least": float(one.scores.min()),
            "most": float(one.scores.max()),
            "reward_steps": one.reward_steps,
            "first_trial": one.actions[: one.reward_steps[1]],
            "seconds": round(one.seconds, 1),
        }
        for name, one in played.items()
    }


if __name__ == "__main__":
    run(main, Options)
