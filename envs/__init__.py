"""Everything an agent senses. `make_vector` turns a spec such as "rooms:small" into a batch of environments.

A spec is "kind:name" or "kind:name,field=value,..."; several, joined by commas, are several tasks. The level is
in `rooms/`, DeepMind Lab in `dmlab.py`, other libraries in `gym.py` and `dm.py`, small tasks in `diagnostic.py`; what
scores mean is in `scores.py`, what happens when an environment raises or hangs in `guard.py`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from envs.guard import EnvironmentFailed, EnvironmentHung, limit_calls

if TYPE_CHECKING:
    from envs.registry import foreign_code, held_out, make_vector, parse_spec, prepare, require_consent, tasks
    from envs.scores import human_normalised, mean_normalised, oracle_normalised, reference_scores

__all__ = [
    "EnvironmentFailed",
    "EnvironmentHung",
    "foreign_code",
    "held_out",
    "human_normalised",
    "limit_calls",
    "make_vector",
    "mean_normalised",
    "oracle_normalised",
    "parse_spec",
    "prepare",
    "reference_scores",
    "require_consent",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Imports the registry and the scores when they are first asked for: they need numba, which takes 60 MB."""
    if name in __all__:
        for module in ("envs.registry", "envs.scores"):
            if hasattr(found := importlib.import_module(module), name):
                return getattr(found, name)
    raise AttributeError(f"module 'envs' has no attribute {name!r}")
