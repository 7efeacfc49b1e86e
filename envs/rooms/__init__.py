"""The re-created level rooms_select_nonmatching_object: same timing, motion and rewards, own textures and shapes.

This package is the level; how environments are asked for by name is in `envs`.
"""

import gymnasium

from envs.rooms.config import VARIANTS, RoomsConfig
from envs.rooms.env import RoomsEnv
from envs.rooms.oracle import oracle_actions
from envs.rooms.vector import RoomsVectorEnv, warm_up

__all__ = ["VARIANTS", "RoomsConfig", "RoomsEnv", "RoomsVectorEnv", "oracle_actions", "warm_up"]

for _name, _variant in (("RoomsSelectNonmatchingObject", "full"), ("RoomsSelectNonmatchingObject-Small", "small")):
    gymnasium.register(
        f"compressive/{_name}-v0",
        entry_point="envs.rooms.env:RoomsEnv",
        vector_entry_point="envs.rooms.vector:RoomsVectorEnv",
        kwargs={"config": _variant},
    )
