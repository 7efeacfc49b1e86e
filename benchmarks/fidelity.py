"""How far the re-created level is from DeepMind Lab: the largest differences from traces of scripted players there.

    python -m benchmarks.fidelity --traces traces.csv [--frames DIR [--out DIR]]

Every script of the file is replayed on `rooms:full`, one frame a step. A row is a frame, and row 0 of a script is its
start. Columns: script, frame, action (a name of `NINE`, held until this frame), x, y, z (u), pitch, yaw, roll
(degrees), v_forward, v_left, v_up (u/s, relative to the player), reward. Poses that are `nan` are left out: Lab's own
are old while the view is gray. Rewards agree if they come in the same frames and are of the same size; their signs may
differ, since the correct object differs from run to run. With --frames, pictures are compared as well; see
`fidelity_frames`.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fidelity_frames
from benchmarks.common import run
from envs.lab_interface import NINE
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.level import State
from envs.rooms.physics import stepped

COLUMNS = (
    "script",
    "frame",
    "action",
    "x",
    "y",
    "z",
    "pitch",
    "yaw",
    "roll",
    "v_forward",
    "v_left",
    "v_up",
    "reward",
)


@dataclass
class Options:
    traces: Path
    """CSV file of scripted players in DeepMind Lab, frame by frame."""
    frames: Path | None = None
    """Folder of pictures of the same frames."""
    out: Path | None = None
    """With --frames: folder for pictures of both levels side by side."""


def read_traces(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every script, with numbers as floats. Raises ValueError if the file has another format."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--traces {path}: cannot be read: {error}") from None
    if not rows or set(rows[0]) != set(COLUMNS):
        raise ValueError(f"--traces {path}: expected rows with the columns {', '.join(COLUMNS)}")
    scripts: dict[str, list[dict[str, Any]]] = {}
    for line, row in enumerate(rows, 2):
        frames = scripts.setdefault(row["script"], [])
        try:
            frames.append(row | {name: float(row[name]) for name in COLUMNS if name not in ("script", "action")})
        except (TypeError, ValueError):
            raise ValueError(f"--traces {path}, line {line}: expected numbers in all columns but two") from None
        number = len(frames) - 1
        if frames[-1]["frame"] != number:
            raise ValueError(f"--traces {path}, line {line}: expected frame {number}, got {row['frame']}")
        has_action = number == 0 or row["action"] in NINE  # frame 0 is the start
        if not has_action:
            expected = f"an action out of: {'; '.join(NINE)}"
            raise ValueError(f"--traces {path}, line {line}: expected {expected}, got {row['action']!r}")
    return scripts


def replay(actions: Sequence[str]) -> list[dict[str, float]]:
    """The same columns for the re-created level: the start and one row for each action."""
    env = RoomsVectorEnv(1, RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1))
    env.reset(seed=0)
    rows = [_row_of(env.state, 0.0)]
    for action in actions:
        _, rewards, *_ = env.step(np.array([NINE.index(action)]))
        rows.append(_row_of(env.state, rewards[0]))
    return rows


def _row_of(state: State, reward: float) -> dict[str, float]:
    """The columns of numbers for the first environment, but for the frame's number."""
    yaw = np.radians(stepped(state.yaw[0]))
    ahead = np.array([np.cos(yaw), np.sin(yaw)])
    left = np.array([-np.sin(yaw), np.cos(yaw)])
    velocity = np.array([state.vx[0], state.vy[0]])
    row = {
        "x": state.x[0],
        "y": state.y[0],
        "z": state.z[0] + fidelity_frames.ORIGIN,
        "pitch": state.pitch[0],
        "yaw": np.degrees(yaw),
        "roll": 0.0,
        "v_forward": ahead @ velocity,
        "v_left": left @ velocity,
        "v_up": state.vz[0],
        "reward": reward,
    }
    return {name: float(value) for name, value in row.items()}


def motion(traces: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By script: the largest distance (u), difference of velocity (u/s) and of yaw (degrees), and rewards by frame."""

    compared = {}
    for script, there in traces.items():
        here = replay([row["action"] for row in there[1:]])
        distance = np.linalg.norm(_differences(here, there, "x", "y", "z"), axis=1)
        difference = np.linalg.norm(_differences(here, there, "v_forward", "v_left", "v_up"), axis=1)
        turned = (_differences(here, there, "yaw") + 180) % 360 - 180
        compared[script] = {
            "frames": len(there) - 1,
            "position": round(float(np.nanmax(distance)), 4),
            "velocity": round(float(np.nanmax(difference)), 4),
            "yaw": round(float(np.nanmax(np.abs(turned))), 4),
            "rewards": {"lab": _sizes_of_rewards(there), "here": _sizes_of_rewards(here)},
        }
    return compared


def _differences(here: Sequence[dict[str, Any]], there: Sequence[dict[str, Any]], *names: str) -> np.ndarray:
    """Some columns of a script here less those there, [frames, names]."""
    rows = []
    for own, other in zip(here, there, strict=True):
        rows.append([own[name] - other[name] for name in names])
    return np.array(rows)


def _sizes_of_rewards(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """The rewards other than 0 by frame, without their signs."""
    return {frame: abs(float(row["reward"])) for frame, row in enumerate(rows) if row["reward"] != 0}


def main(options: Options) -> dict[str, Any]:
    """The differences by script; ends with one line if the file is missing or has another format."""
    if options.out and not options.frames:
        raise SystemExit(f"--out {options.out}: expected --frames as well, the pictures to show beside ours")
    try:
        traces = read_traces(options.traces)
        pictures = {}
        if options.frames:
            pictures = fidelity_frames.measure(traces, options.frames, options.out)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return {"motion": motion(traces)} | pictures


if __name__ == "__main__":
    run(main, Options)
