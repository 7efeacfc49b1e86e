"""Everywhere actions happen: actors and their pools, evaluation and recording. Ray only in `ray_pool`."""

from actors.actor import Actor, Episode, Unroll
from actors.pool import ActorsConfig, ClusterError, LocalPool, Pool, PoolStatus
from envs import EnvironmentFailed, EnvironmentHung

__all__ = [
    "Actor",
    "ActorsConfig",
    "ClusterError",
    "EnvironmentFailed",
    "EnvironmentHung",
    "Episode",
    "LocalPool",
    "Pool",
    "PoolStatus",
    "Unroll",
]
