"""An environment with one fault at a chosen call: raise, exit, hang, or never end an episode."""

import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.guard import ProcessDied


def parse(reply: str) -> tuple[str, str]:
    """Raises a ValueError in a further frame."""
    word, number = reply.split()
    return word, number


def die() -> None:
    """Raises what the loss of an environment's process raises."""
    raise ProcessDied("environment process 0 of 1 died, status 1")


def pause() -> None:
    """Says that it pauses, and does so for a moment."""
    print("pause", flush=True)
    time.sleep(0.3)


FAULTS: dict[str, Callable[[], Any]] = {
    "die": die,
    "raise": lambda: parse("door"),
    "exit": lambda: sys.exit(0),
    "sleep": lambda: time.sleep(10_000),
    "pause": pause,
}


class Faulty(gymnasium.Env):
    """Episodes of `length` steps; does `fault` at an instance's `at`-th call of `when`: init, reset, step, close."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, fault: str = "", when: str = "step", at: int = 1, length: int = 4) -> None:
        self.fault = fault
        self.when = when
        self.at = at
        self.length = length
        self.calls = dict.fromkeys(("init", "reset", "step", "close"), 0)
        self._called("init")

    def _called(self, name: str) -> None:
        """Counts a call, and does the fault if this is the one."""
        self.calls[name] += 1
        if name == self.when and self.calls[name] == self.at and self.fault:
            FAULTS[self.fault]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._called("reset")
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._called("step")
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == self.length, False, {}

    def close(self) -> None:
        self._called("close")


gymnasium.register("Faulty-v0", Faulty)
