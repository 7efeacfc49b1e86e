"""The re-created level rooms_select_nonmatching_object: same timing, motion and rewards, own textures and shapes.

`envs.make_vector` makes environments by name, and `gymnasium.make` by those of `envs.names`.
"""

from envs.rooms.config import VARIANTS, RoomsConfig
from envs.rooms.env import RoomsEnv, RoomsVectorEnv
from envs.rooms.oracle import memory_spans, oracle_actions

__all__ = ["VARIANTS", "RoomsConfig", "RoomsEnv", "RoomsVectorEnv", "memory_spans", "oracle_actions"]
