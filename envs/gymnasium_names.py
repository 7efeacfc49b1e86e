"""What the numbers of gymnasium's own environments mean: they have no names for them, and pages and films show names.

From the documentation of each environment (gymnasium.farama.org). Those of MuJoCo name the joints of their models.
"""

import math
from typing import Any, NamedTuple

import gymnasium
from gymnasium import spaces

from envs.outputs import wrappers_of

Names = tuple[str, ...]


class KnownNames(NamedTuple):
    """What is known of an environment.

    actions: names of all actions; of an environment with several spaces of actions those of each.
    elements: names of the elements of a vector of observations; empty if it observes none.
    """

    actions: tuple[Names, ...]
    elements: Names = ()


KNOWN_NAMES = {
    "AcrobotEnv": KnownNames(
        (("torque -1", "no torque", "torque 1"),),
        ("cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "velocity 1", "velocity 2"),
    ),
    "BipedalWalker": KnownNames((("hip 1", "knee 1", "hip 2", "knee 2"),)),
    "BlackjackEnv": KnownNames((("stick", "hit"),)),
    "CarRacing": KnownNames((("steering", "gas", "brake"), ("nothing", "right", "left", "gas", "brake"))),
    "CartPoleEnv": KnownNames((("left", "right"),), ("position", "velocity", "angle", "angular velocity")),
    "CliffWalkingEnv": KnownNames((("up", "right", "down", "left"),)),
    "Continuous_MountainCarEnv": KnownNames((("force",),), ("position", "velocity")),
    "FrozenLakeEnv": KnownNames((("left", "down", "right", "up"),)),
    "LunarLander": KnownNames(
        (("nothing", "left engine", "main engine", "right engine"), ("main engine", "side engines")),
        ("x", "y", "velocity x", "velocity y", "angle", "angular velocity", "left leg", "right leg"),
    ),
    "MountainCarEnv": KnownNames((("left", "nothing", "right"),), ("position", "velocity")),
    "PendulumEnv": KnownNames((("torque",),), ("cos angle", "sin angle", "angular velocity")),
    "TaxiEnv": KnownNames((("down", "up", "right", "left", "pick up", "drop off"),)),
}
"""By the name of the environment's class."""


def with_known_names(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, whose metadata has names of its actions and observations now, if it had none and they are known.

    They are not known beneath a wrapper that may give them another meaning.
    """
    own = env.unwrapped
    is_theirs = type(own).__module__.startswith("gymnasium.envs.")
    if not is_theirs or not all(map(_keeps_meaning, wrappers_of(env))):
        return env

    known = KNOWN_NAMES.get(type(own).__name__, KnownNames((_joints(own),)))
    found: dict[str, Names] = {}
    for names in known.actions:
        if names and len(names) == _number_of_actions(env.action_space):
            found["action_names"] = names
    if known.elements and env.observation_space.shape == (len(known.elements),):
        found["element_names"] = known.elements
    if found:
        env.metadata = {**found, **env.metadata}
    return env


def _keeps_meaning(wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether actions and observations mean the same outside of a wrapper: it limits time, say, or counts episodes."""
    return type(wrapper).__module__ in ("gymnasium.wrappers.common", "envs.outputs")


def _number_of_actions(space: spaces.Space[Any]) -> int:
    """How many names the actions of a space have: one for each choice, or for each number."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return math.prod(space.shape or ())


def _joints(env: Any) -> Names:
    """The joints that the actions of an environment of MuJoCo move; none of another one."""
    model = getattr(env, "model", None)
    if model is None:
        return ()
    names = []
    for joint, *_ in model.actuator_trnid:
        names.append(model.joint(joint).name)
    return tuple(names)
