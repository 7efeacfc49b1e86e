"""Environments: all that an agent observes. `make_vector` turns a spec such as "rooms:small" into a batch of them.

A spec is "kind:name" or "kind:name,field=value,..."; several, joined by commas, are several tasks. The level is
in `rooms/`, DeepMind Lab in `dmlab.py`, other libraries in `gym.py` and `dm.py`, their batched environments in
`atari.py` and `pool.py`, small tasks in `diagnostic.py`;
`actions.py` and `observations.py` bring any space into the few forms that agents know; `scores.py` has reference
scores, `guard.py` handles environments that raise or hang.
"""

import importlib
from typing import TYPE_CHECKING, Any

from envs import names
from envs.guard import EnvironmentFailed, EnvironmentLost, WrongOutput, limit_calls

if TYPE_CHECKING:
    from envs.actions import ActionVector, Choice, Numbers
    from envs.registry import (
        drawing,
        foreign_code,
        held_out,
        make_device,
        make_vector,
        parse_spec,
        prepare,
        require_consent,
        tasks,
        untaught,
        with_view,
    )
    from envs.scores import chance_of_choice, mean_normalised, reference_scores

__all__ = ["EnvironmentFailed", "EnvironmentLost", "WrongOutput", "limit_calls"]
__all__ += ["ActionVector", "Choice", "Numbers"]
__all__ += ["drawing", "foreign_code", "held_out", "make_device", "make_vector"]
__all__ += ["parse_spec", "prepare", "require_consent", "tasks", "untaught", "with_view"]
__all__ += ["chance_of_choice", "mean_normalised", "reference_scores"]

names.register()

_MODULES = {
    **dict.fromkeys(("ActionVector", "Choice", "Numbers"), "envs.actions"),
    **dict.fromkeys(("chance_of_choice", "mean_normalised", "reference_scores"), "envs.scores"),
}
"""Where names are that are not in the registry."""


def __getattr__(name: str) -> Any:
    """Imports the registry and the scores on first use: they need numba, which takes 60 MB."""
    if name not in __all__:
        raise AttributeError(f"module 'envs' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "envs.registry")), name)
