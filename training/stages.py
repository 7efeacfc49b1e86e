"""Stages of a run as they are written: an environment, and conditions, any of which ends it."""

import math
import re
from typing import NamedTuple

MEASURES = ("correct", "return", "frames")
"""Measures that are no counters of an environment."""
_CONDITION = re.compile(r"(\S+) (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)([kMG]?)")
_SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Stage(NamedTuple):
    """An environment that is trained on until a measure reaches its limit; without limits until the run's end.

    Measures: over the last episodes of the stage "correct", the share of correct choices (0 to 1), "return", the mean
    score, and any counter of the environment by its name, its mean; "frames", learned from in the stage.
    """

    env: str
    limits: dict[str, float]

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters of the environment that end the stage."""
        return tuple(name for name in self.limits if name not in MEASURES)


def read_stage(text: str) -> Stage:
    """The stage of a text such as "rooms:small until correct 0.9 or frames 2M".

    Raises:
        ValueError: if the text has another form.
    """
    before, _, after = text.rpartition(" until ")
    env = before.strip()
    conditions = after.split(" or ")
    limits = {}
    for condition in conditions:
        match = _CONDITION.fullmatch(condition.strip())
        if match:
            measure, number, unit = match.groups()
            limits[measure] = float(number) * _SIZES[unit]

    # A condition that is no condition, or one of a measure that another has already, has left no limit.
    if not env or len(limits) < len(conditions):
        conditions_there_are = "correct SHARE, return SCORE, COUNTER MEAN or frames NUMBER"
        expected = f"'ENV until CONDITION', the conditions being {conditions_there_are}, as in"
        raise ValueError(f"stages: expected {expected} 'rooms:small until correct 0.9 or frames 2M', got {text!r}")
    share = limits.get("correct", 1.0)
    frames = limits.get("frames", 1.0)
    # A limit that is no finite number, such as 1e999, would never be reached, or at once.
    are_finite = all(map(math.isfinite, limits.values()))
    if not 0 < share <= 1 or frames <= 0 or not are_finite:
        expected = "a share of correct choices in (0, 1] and frames above 0, all of them finite"
        raise ValueError(f"stages: expected {expected}, got {text!r}")
    return Stage(env, limits)
