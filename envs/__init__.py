"""Environments: all that an agent observes. `make_vector` turns a spec such as "rooms:small" into a batch of them.

A spec is "kind:name" or "kind:name,field=value,..."; several, joined by commas, are several tasks. `specs.py`
reads specs, `registry.py` makes what they name. The level is in `rooms/`, DeepMind Lab in `dmlab.py`, other libraries
in `gym.py` and `dm.py`, their batched environments in `atari.py` and `pool.py`, small tasks in `diagnostic.py`;
`actions.py` and `observations.py` bring any space into the few forms that agents know; `scores.py` has reference
scores, `guard.py` handles environments that raise or hang.
"""

import importlib
from typing import TYPE_CHECKING, Any

from envs import names
from envs.guard import EnvironmentFailed, EnvironmentLost, WrongOutput, limit_calls

if TYPE_CHECKING:
    from envs.actions import ActionVector, ChoiceColumn, NumberColumns
    from envs.registry import drawing, make_device, make_vector, observe, prepare, with_view
    from envs.scores import chance_of_choice, mean_normalized, reference_scores
    from envs.specs import foreign_code, held_out, parse_spec, require_consent, tasks, untaught

__all__ = [
    "ActionVector",
    "ChoiceColumn",
    "EnvironmentFailed",
    "EnvironmentLost",
    "NumberColumns",
    "WrongOutput",
    "chance_of_choice",
    "drawing",
    "foreign_code",
    "held_out",
    "limit_calls",
    "make_device",
    "make_vector",
    "mean_normalized",
    "observe",
    "parse_spec",
    "prepare",
    "reference_scores",
    "require_consent",
    "tasks",
    "untaught",
    "with_view",
]

names.register()

_MODULES = {
    "actions": ("ActionVector", "ChoiceColumn", "NumberColumns"),
    "registry": ("drawing", "make_device", "make_vector", "observe", "prepare", "with_view"),
    "scores": ("chance_of_choice", "mean_normalized", "reference_scores"),
    "specs": ("foreign_code", "held_out", "parse_spec", "require_consent", "tasks", "untaught"),
}
"""What is imported on first use: the registry and the scores need numba, which takes 60 MB."""


def __getattr__(name: str) -> Any:
    """Imports the module of a name in `_MODULES`."""
    for module, exported in _MODULES.items():
        if name in exported:
            return getattr(importlib.import_module(f"envs.{module}"), name)
    raise AttributeError(f"module 'envs' has no attribute {name!r}")
