"""What the other systems' halves share: their options, the level as a single environment, and the report of progress.

It runs with gymnasium 0.29 too, which Sample Factory and CleanRL's file require.
"""

import enum
import json
import sys
from typing import Any

import gymnasium.vector

if not hasattr(gymnasium.vector, "AutoresetMode"):  # before gymnasium 1.1; our environments only name their mode
    gymnasium.vector.AutoresetMode = enum.Enum("AutoresetMode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])

from envs.registry import rooms_config
from envs.rooms import RoomsConfig
from envs.specs import parse_spec


def read_options() -> dict[str, Any]:
    """The options of benchmarks/peers.py for this half, which are one JSON object on its command line."""
    return json.loads(sys.argv[1])


def level_config(spec: str) -> RoomsConfig:
    """The level of a spec, e.g. "rooms:full". Raises ValueError if it is another kind of environment."""
    kind, name, overrides = parse_spec(spec)
    if kind != "rooms":
        raise ValueError(f"--env: expected a variant of the rooms level, such as rooms:full, got {spec!r}")
    return rooms_config(name, overrides)


def report(steps: float) -> None:
    """Reports the number of agent steps learned from so far."""
    print(json.dumps({"steps": int(steps)}), flush=True)
