"""Where the learners of a group are in tests, and what can happen to them there."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import ray

from learner.group import LearnerGroup
from tests.learner import threads


class Place(NamedTuple):
    """kill: ends the learners of these ranks.
    lost_object: makes a reference to an object that is lost, as if its node were.
    """

    kill: Callable[..., None]
    lost_object: Callable[[], Any]


def in_threads(monkeypatch: pytest.MonkeyPatch) -> Place:
    """In threads of this process."""
    threads.replace_ray(monkeypatch)

    def kill(group: LearnerGroup, *ranks: int) -> None:
        for rank in ranks:
            group.members[rank].kill()

    return Place(kill, threads.lost_object)


def on_ray() -> Place:
    """In processes on the Ray cluster that this process is connected to."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors do not import tests
    return Place(kill_processes, lost_object)


def kill_processes(group: LearnerGroup, *ranks: int) -> None:
    for pid in ray.get([group.members[rank].pid.remote() for rank in ranks]):
        os.kill(pid, signal.SIGKILL)


@ray.remote(num_cpus=0)
class Owner:
    """Its objects are lost when it dies."""

    def put(self) -> list[ray.ObjectRef]:
        return [ray.put(np.zeros(10**6))]


def lost_object() -> ray.ObjectRef:
    owner: Any = Owner.remote()
    (reference,) = ray.get(owner.put.remote())
    ray.kill(owner)
    while True:  # until Ray has noticed it
        try:
            ray.get(reference)
        except ray.exceptions.ObjectLostError:
            return reference
