"""Environments drawn from a number: spaces, lengths of episodes, values, infos, and often one thing that is wrong.

`Generated-v0,case=N` is the Nth. Most are wrong in one way, from one moment on; the others are right in all but taste.
"""

import contextlib
import itertools
import random
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.envs.odd import INFOS

COUNTS = (0, 1, 1, 2, 2, 3, 3)
"""Parts of Dicts and Tuples."""
DTYPES = (np.uint8, np.int8, np.int64, np.float16, np.float32, np.float64, np.bool_)


class OwnSpace(spaces.Space[Any]):
    """A kind of space that gymnasium does not know."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return "mine"


def draw_space(draw: random.Random, depth: int = 0) -> Any:
    """A space of any kind; Dicts and Tuples at most two deep."""
    nests = ["dict", "tuple"] if depth < 2 else []
    kind = draw.choice(["box", "box", "image", "discrete", "whole", "bits", *nests])
    if draw.random() < 0.03:
        kind = "other"
    if kind == "box":
        dtype = np.dtype(draw.choice(DTYPES))
        shape = tuple(draw.choice([1, 2, 3, 5]) for _ in range(draw.choice([0, 1, 1, 1, 2, 3])))
        low, high = (0, 1) if dtype.kind == "b" else (0, 9)
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "image":
        sizes = draw.choice([(8, 8, 3), (12, 9), (7, 5, 1), (3, 8, 8), (2, 2, 2), (1, 1, 1), (20, 3, 3), (4, 8, 8, 3)])
        return spaces.Box(0, 255, sizes, np.uint8)
    if kind == "discrete":
        is_huge = draw.random() < 0.05
        choices = 10**13 if is_huge else draw.choice([1, 2, 7])
        return spaces.Discrete(choices, start=draw.choice([0, -3, 4]))
    if kind == "whole":
        return spaces.MultiDiscrete(draw.choice([[2, 3], [1], [[2, 2], [3, 4]]]), start=None)
    if kind == "bits":
        return spaces.MultiBinary(draw.choice([1, 4, [2, 3]]))
    if kind == "dict":
        return spaces.Dict({f"part {index}": draw_space(draw, depth + 1) for index in range(draw.choice(COUNTS))})
    if kind == "tuple":
        return spaces.Tuple([draw_space(draw, depth + 1) for _ in range(draw.choice(COUNTS))])
    box = spaces.Box(0, 1, (2,), np.float32)
    others: list[Any] = [spaces.Text(5), spaces.OneOf([box, spaces.Discrete(2)]), spaces.Sequence(box), OwnSpace()]
    if depth == 0:
        others += [None, "a space"]
    return draw.choice(others)


def draw_value(draw: random.Random, value: Any) -> Any:
    """Something else in place of a value, often like it."""
    if isinstance(value, dict) and value and draw.random() < 0.7:
        key = draw.choice(list(value))
        return {**value, key: draw_value(draw, value[key])}
    if isinstance(value, tuple) and value and draw.random() < 0.7:
        index = draw.randrange(len(value))
        return (*value[:index], draw_value(draw, value[index]), *value[index + 1 :])
    arrays: list[Callable[[np.ndarray], Any]] = [
        lambda array: array[None],
        lambda array: array.ravel()[:-1],
        lambda array: np.append(array, array),
        lambda array: array.astype(draw.choice([*DTYPES, np.complex64, object, str])),
        lambda array: array.astype(np.float64) + 0.5,
        lambda array: np.full_like(array, np.nan, np.float64),
        lambda array: np.full_like(array, -np.inf, np.float32),
        lambda array: np.full_like(array, 1e300, np.float64),
        lambda array: array.astype(np.int64) + 300,
        lambda array: -array.astype(np.int64) - 1,
        lambda array: array.tolist(),
    ]
    with contextlib.suppress(Exception):
        return draw.choice(arrays)(np.asarray(value))
    return draw.choice([None, "door", (), [], {}, [[1], [1, 2]], 10**400, object(), {"part 0": 1}, float("nan")])


class Unspeakable(Exception):
    """Its text cannot be made: `str` of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def recurse() -> None:
    """Raises a RecursionError."""
    recurse()


def chain() -> None:
    """Raises an error with a cause."""
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


def error(*arguments: Any, kind: type[BaseException] = RuntimeError) -> None:
    """Raises an error of a kind, made of the arguments."""
    raise kind(*arguments)


WITH_TEXT = (ValueError, KeyError, ImportError, Unspeakable)
WITHOUT_TEXT = (
    TypeError, AssertionError, StopIteration, MemoryError, EOFError, NotImplementedError, FloatingPointError,
    ConnectionError,
)  # fmt: skip
FAULTS: list[Callable[[], Any]] = [
    chain,
    recurse,
    sys.exit,
    partial(sys.exit, 3),
    partial(sys.exit, "a reason"),
    partial(time.sleep, 10_000),
    partial(error, "two\nlines\n\nand more"),
    partial(error, "x" * 5000),
    partial(error, "\udcff [bold]"),
    partial(error, 2, "No such file", "/door", kind=FileNotFoundError),
    partial(error, 32, "Broken pipe", kind=BrokenPipeError),
    partial(error, "several", [ValueError(1), KeyError(2)], kind=ExceptionGroup),
    partial(error, "utf-8", b"\xff", 0, 1, "bad", kind=UnicodeDecodeError),
    partial(error, "reset me", kind=gymnasium.error.ResetNeeded),
    *(partial(error, "a door", kind=kind) for kind in WITH_TEXT),
    *(partial(error, kind=kind) for kind in WITHOUT_TEXT),
]
"""Raise something, exit or hang."""

WRONGS = ("nothing", "nothing", "observation", "observation", "reward", "end", "arity", "error", "error", "space")
"""What is wrong in an environment; those that come twice are drawn twice as often."""
MOMENTS = (("init", 1), ("reset", 1), ("reset", 2), ("step", 1), ("step", 9), ("close", 1))
"""From which call on it is wrong: the name of a method, and the number of the call."""


class Generated(gymnasium.Env):
    """The environment number `case`."""

    def __init__(self, case: int = 0, render_mode: str | None = None) -> None:
        draw = random.Random(case)
        self.draw = draw
        self.render_mode = render_mode
        self.wrong = draw.choice(WRONGS)
        self.moment = draw.choice(MOMENTS)
        self.calls = dict.fromkeys(("init", "reset", "step", "close", "render"), 0)
        self.length = draw.choice([1, 1, 2, 5, 30, 10**9])
        self.truncates = draw.random() < 0.3
        self.chatty = draw.random() < 0.1  # it prints and warns in each step
        self.observation_space = draw_space(draw)
        self.action_space = spaces.Discrete(draw.choice([1, 2, 5]))
        if draw.random() < 0.05:
            self.action_space = draw.choice([draw_space(draw), None])  # type: ignore[list-item]
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
        self.infos = itertools.cycle(draw.sample(INFOS, len(INFOS)))
        for space in (self.observation_space, self.action_space):
            if isinstance(space, spaces.Space):
                space.seed(case)
        self._called("init")

    def _called(self, name: str) -> bool:
        """Counts a call. Whether it is to be wrong from now on; if it is to fail, it does."""
        self.calls[name] += 1
        call, number = self.moment
        reached = name == call and self.calls[name] >= number
        if reached and self.wrong == "error":
            self.draw.choice(FAULTS)()
        return reached

    def _observe(self, wrong: bool) -> Any:
        value = self.observation_space.sample()
        if wrong and self.wrong == "observation":
            return draw_value(self.draw, value)
        return value

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        wrong = self._called("reset")
        self.time = 0
        if wrong and self.wrong == "space":
            self.observation_space = draw_space(self.draw)
        answer = (self._observe(wrong), next(self.infos))
        if wrong and self.wrong == "arity":
            return self.draw.choice([answer[:1], answer[0], None, (*answer, 1)])
        return answer

    def step(self, action: Any) -> Any:
        wrong = self._called("step")
        self.time += 1
        if self.chatty:
            print("a door", flush=True)
            warnings.warn("a door", stacklevel=1)
        reward: Any = self.draw.choice([0, 1.5, np.float32(-1), np.int64(2), np.array(0.5), True])
        over: Any = self.time >= self.length
        if wrong and self.wrong == "reward":
            reward = self.draw.choice([draw_value(self.draw, 1.0), np.ones(1), np.ones(2), None, "1"])
        if wrong and self.wrong == "end":
            over = self.draw.choice([None, "yes", np.ones(2, bool), np.ones(1, bool), 2, object()])
        observation = self._observe(wrong)
        info = next(self.infos)
        answer = (observation, reward, over, False, info)
        if self.truncates:
            answer = (observation, reward, False, over, info)
        if wrong and self.wrong == "arity":
            return self.draw.choice([answer[:4], answer[0], None, (*answer, 1), list(answer[:2])])
        return answer

    def render(self) -> Any:
        self.calls["render"] += 1
        picture = np.zeros((8, 8, 3), np.uint8)
        # Where nothing else is wrong, pictures are wrong from the fourth on.
        if self.wrong == "nothing" and self.calls["render"] > 3:
            return draw_value(self.draw, picture)
        return picture

    def close(self) -> None:
        self._called("close")


gymnasium.register("Generated-v0", Generated)
