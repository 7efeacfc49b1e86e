"""Environments of gymnasium and of dm_env that return one thing that they should not, or infos of every kind."""

import itertools
import os
import sys
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

SEEN = np.zeros(2, np.float32)
STEP = {"observation": SEEN, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
WRONG: dict[str, dict[str, Any]] = {
    "": {},
    "wide": {"observation": np.zeros(3, np.float32)},
    "narrow": {"observation": np.zeros(1, np.float32)},
    "none": {"observation": None},
    "words": {"observation": ["door", "wall"]},
    "nan": {"observation": np.array([0.0, np.nan], np.float32)},
    "inf": {"observation": np.array([np.inf, 0.0])},
    "reward1": {"reward": np.ones(1)},
    "reward11": {"reward": np.ones((1, 1))},
    "reward2": {"reward": np.ones(2)},
    "reward_none": {"reward": None},
    "reward_nan": {"reward": float("nan")},
    "done_none": {"terminated": None},
    "cut_pair": {"truncated": np.zeros(2, bool)},
    "metric_word": {"info": {"doors": "open"}},
    "metric_none": {"info": {"doors": None}, "terminated": True},
    "metric_missing": {"info": {}, "terminated": True},
    "metric_unknown": {"info": {}},
}
"""What takes the place of parts of a step."""
INFOS: tuple[Any, ...] = (
    None, {"a": None}, {"a": 1}, {"a": 0.5}, {"a": np.zeros(3)}, {"a": np.zeros((2, 2))}, {"a": (1, 2)}, {"a": "door"},
    {"a": {"b": 1}}, {"a": {"b": None, "_a": 2}}, {1: 2, None: 3}, [], "door", {"final_obs": 1, "_a": "no mask"},
)  # fmt: skip
"""Infos that gymnasium's vector environments cannot join."""


class Odd(gymnasium.Env):
    """Episodes of four steps; from the step number `at` on, or in `reset` instead, it returns `wrong`.

    Args:
        wrong: a name in `WRONG`.
        arity: number of values that `step` returns.
        infos: return those of `INFOS`, one after the other, beginning with another one in every instance.
        metrics: its metadata name the counter "doors".
        space_changes: it has another space after `reset`.
    """

    made = itertools.count()
    action_space = spaces.Discrete(3)

    def __init__(
        self,
        wrong: str = "",
        at: int = 1,
        in_reset: bool = False,
        arity: int = 5,
        infos: bool = False,
        metrics: bool = False,
        space_changes: bool = False,
    ) -> None:
        self.wrong = wrong
        self.at = at
        self.in_reset = in_reset
        self.arity = arity
        self.space_changes = space_changes
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        counters = ("doors",) if metrics else ()
        self.metadata = {"render_modes": [], "episode_metrics": counters}
        self.steps = 0
        self.infos = itertools.cycle([{"doors": 3}])
        if infos:
            shift = next(self.made)
            self.infos = itertools.cycle(np.roll(np.array(INFOS, object), shift))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        if self.space_changes:
            self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
            return np.zeros(3, np.float32), {}
        if self.in_reset:
            return WRONG[self.wrong]["observation"], {}
        return SEEN, next(self.infos)

    def step(self, action: int) -> Any:
        self.time += 1
        self.steps += 1
        answer = STEP | {"terminated": self.time == 4, "info": next(self.infos)}
        if self.steps >= self.at and not self.in_reset:
            answer |= WRONG[self.wrong]
        return (*answer.values(), "more")[: self.arity]


class Zoomed(Odd):
    """The pictures that it draws of itself grow."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(metrics=True)
        self.render_mode = render_mode
        self.metadata |= {"render_modes": ["rgb_array"]}

    def render(self) -> Any:
        return np.zeros((32 + self.time, 48, 3), np.uint8)


class Careless(Odd):
    """It moves to another folder, names its counter like a result, and draws a pixel every 2.5 seconds."""

    def __init__(self, folder: str = "", render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 0.4, "episode_metrics": ("return",)}
        self.infos = itertools.cycle([{"return": 7}])
        if folder:
            os.chdir(folder)

    def render(self) -> Any:
        return np.zeros((1, 1, 3), np.uint8)


class Switching(Odd):
    """It turns off gradients and what is printed, and makes float64 torch's default, in every call."""

    def __init__(self) -> None:
        super().__init__()
        self._switch()

    def _switch(self) -> None:
        import torch  # here, because processes of the other environments need not wait for it

        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        if sys.stdout:  # else another one has been here in the same call
            sys.stdout.close()
        sys.stdout = sys.stderr = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._switch()
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        self._switch()
        return super().step(action)


class OldOdd(Odd):
    """It has the interface that gymnasium's had before: `reset` takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return SEEN


class BareOdd(Odd):
    """Its `reset` returns only an observation."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return SEEN


class Camera(Odd):
    """It shows an image beside two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            arm=spaces.Box(-1, 1, (2,), np.float32), camera=spaces.Box(0, 255, (8, 9, 3), np.uint8)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: int) -> Any:
        observation = self._look()  # of the step before
        _, *others = super().step(action)
        return (observation, *others)

    def _look(self) -> dict[str, np.ndarray]:
        return {"arm": SEEN, "camera": np.full((8, 9, 3), self.time, np.uint8)}


class Many(gymnasium.Env):
    """Actions of every kind; it shows two images, numbers and a text, all drawn anew at each step."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)
    observation_space = spaces.Dict(
        eyes=spaces.Tuple([spaces.Box(0, 255, (8, 9, 3), np.uint8), spaces.Box(0, 1, (2, 8, 9), np.float32)]),
        held=spaces.MultiDiscrete([2, 3]),
        told=spaces.Text(9, charset="ab "),
    )
    action_space = spaces.Dict(
        arm=spaces.Box(-2, 3, (2, 2), np.float64),
        hands=spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
        speed=spaces.Box(-np.inf, np.inf, (1,), np.float32),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward = float(action["arm"].sum())
        observation = self._look()
        terminated = bool(self.np_random.random() < 0.1)
        return observation, reward, terminated, False, {}

    def _look(self) -> dict[str, Any]:
        left = self.np_random.integers(256, size=(8, 9, 3), dtype=np.uint8)
        right = self.np_random.random((2, 8, 9), np.float32)
        words = "".join(self.np_random.choice(list("ab "), size=9))
        return {"eyes": (left, right), "held": self.np_random.integers([2, 3]), "told": words}


class Named(Odd):
    """Its parameters have names that mean something for other environments."""

    def __init__(self, view: str = "first", tile: int = 8, id: str = "a", shrink: float = 1) -> None:
        super().__init__()
        self.given = (view, tile, id, shrink)


class OldGym:
    """It has the methods of the gym that gymnasium came from, and is no `gymnasium.Env`."""

    def reset(self) -> Any:
        return SEEN

    def step(self, action: int) -> Any:
        return SEEN, 0.0, False, {}


class Fading(Odd):
    """It draws itself twice, and then no more."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
        self.render_mode = render_mode
        self.left = 2

    def render(self) -> Any:
        self.left -= 1
        if self.left < 0:
            return None
        return np.zeros((4, 4, 3), np.uint8)


class OddDm(dm_env.Environment):
    """Episodes of one step.

    Args:
        reward: a name in `WRONG` with a reward; "" for a reward of 1.
        discount: the same, for the discount.
        observation: a name in `WRONG` with an observation; "" for one that is right.
        step: whether `step` returns a TimeStep.
    """

    def __init__(self, reward: str = "", discount: str = "", observation: str = "", step: bool = True) -> None:
        self.reward = WRONG[reward].get("reward", 1.0)
        self.discount = WRONG[discount].get("reward", 1.0)
        self.observation = WRONG[observation].get("observation", SEEN)
        self.answers = step

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(SEEN)

    def step(self, action: int) -> Any:
        if not self.answers:
            return SEEN, 1.0, False
        return dm_env.TimeStep(dm_env.StepType.LAST, self.reward, self.discount, self.observation)

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3)


def wrapped(steps: int = 3) -> gymnasium.Env:
    """An environment as libraries are usually given one: a function that makes and wraps it."""
    return gymnasium.wrappers.TimeLimit(Odd(), steps)


def needs_two(width: int, height: int) -> gymnasium.Env:
    """Is never made with both."""
    raise AssertionError((width, height))


for made in (Odd, OldOdd, BareOdd, Camera, Fading, Named):
    gymnasium.register(f"{made.__name__}-v0", made, max_episode_steps=9)
gymnasium.register("Many-v0", Many)
