"""The re-created level rooms_select_nonmatching_object: same timing, motion and rewards, own textures and shapes.

This package is the level; how environments are asked for by name is in `envs`.
"""

import gymnasium

from envs.rooms.config import VARIANTS, RoomsConfig
from envs.rooms.env import RoomsEnv
from envs.rooms.oracle import memory_spans, oracle_actions
from envs.rooms.vector import RoomsVectorEnv, warm_up

__all__ = ["VARIANTS", "RoomsConfig", "RoomsEnv", "RoomsVectorEnv", "memory_spans", "oracle_actions", "warm_up"]

for _variant in VARIANTS:  # "full" is RoomsSelectNonmatchingObject-v0, "small" RoomsSelectNonmatchingObject-Small-v0...
    _suffix = "" if _variant == "full" else f"-{_variant.title()}"
    gymnasium.register(
        f"compressive/RoomsSelectNonmatchingObject{_suffix}-v0",
        entry_point="envs.rooms.env:RoomsEnv",
        vector_entry_point="envs.rooms.vector:RoomsVectorEnv",
        kwargs={"config": _variant},
    )
