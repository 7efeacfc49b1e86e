"""The re-created level rooms_select_nonmatching_object: same timing, motion and rewards, own textures and shapes.

`envs.make_vector` makes environments by name.
"""

import gymnasium

from envs.rooms.config import VARIANTS, RoomsConfig
from envs.rooms.env import RoomsEnv, RoomsVectorEnv
from envs.rooms.oracle import memory_spans, oracle_actions

__all__ = ["VARIANTS", "RoomsConfig", "RoomsEnv", "RoomsVectorEnv", "memory_spans", "oracle_actions"]

for _variant in VARIANTS:  # "full" is RoomsSelectNonmatchingObject-v0, "small" RoomsSelectNonmatchingObject-Small-v0...
    _suffix = "" if _variant == "full" else f"-{_variant.title()}"
    gymnasium.register(
        f"compressive/RoomsSelectNonmatchingObject{_suffix}-v0",
        entry_point="envs.rooms.env:RoomsEnv",
        vector_entry_point="envs.rooms.env:RoomsVectorEnv",
        kwargs={"config": _variant},
    )
