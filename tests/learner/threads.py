"""What `learner.group` uses of Ray, with threads of this process in place of processes of a cluster.

The learners, their process group and its collectives are real. A killed learner answers nothing any more and leaves the
process group, so that the others notice it in their collectives, as they do when a process ends.
"""

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from ray import cloudpickle
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from learner import group as learner_group
from learner import placement, remote_learner

local = threading.local()


class Reference:
    """A value that is or will be in the object store, or an error."""

    def __init__(self) -> None:
        self.future: Future[bytes] = Future()

    def fulfill(self, value: object) -> None:
        with suppress(Exception):  # the learner was killed meanwhile
            self.future.set_result(cloudpickle.dumps(value))

    def fail(self, error: Exception) -> None:
        with suppress(Exception):
            self.future.set_exception(error)


def put(value: object) -> Reference:
    reference = Reference()
    reference.fulfill(value)
    return reference


def get(references: Any) -> Any:
    if isinstance(references, list):
        return [get(each) for each in references]
    return cloudpickle.loads(references.future.result())


def wait(references: list[Reference], num_returns: int = 1, timeout: float | None = None) -> tuple[list, list]:
    deadline = time.monotonic() + (3600.0 if timeout is None else timeout)
    while True:
        done = [each for each in references if each.future.done()][:num_returns]
        if len(done) == num_returns or time.monotonic() > deadline:
            return done, [each for each in references if each not in done]
        time.sleep(0.001)


def lost_object() -> Reference:
    """A reference to an object whose node is lost."""
    reference = Reference()
    reference.fail(ObjectLostError("00", None, ""))
    return reference


class Member:
    """The handle of an actor: `handle.method.remote(...)`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.instance: Any = None
        self.dead = False
        self.pending: list[Reference] = []
        self.threads = {name: ThreadPoolExecutor(1) for name in ("", "fetch")}
        self.begun = self.threads[""].submit(self._begin, make)

    def _begin(self, make: Callable[[], Any]) -> None:
        self.instance = make()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        method = getattr(remote_learner.RemoteLearner, name)
        references = [Reference() for _ in range(getattr(method, "__ray_num_returns__", 1))]
        self.pending += references

        def work() -> None:
            try:
                self.begun.result()
                values = [get(each) if isinstance(each, Reference) else each for each in arguments]
                result = method(self.instance, *values)
                results = result if len(references) > 1 else [result]
                for reference, value in zip(references, results):
                    reference.fulfill(value)
            except Exception as error:
                for reference in references:
                    reference.fail(RayTaskError(name, traceback.format_exc(), error))

        if self.dead:
            self._fail()
        else:
            self.threads[getattr(method, "__ray_concurrency_group__", "")].submit(work)
        return references if len(references) > 1 else references[0]

    def _fail(self) -> None:
        for reference in self.pending:
            reference.fail(RayActorError())

    def kill(self) -> None:
        """Ends the learner between two calls. Its place in the process group is left by the thread that has it."""
        if self.dead:
            return
        self.dead = True

        def leave() -> None:
            vars(self.instance).clear()
            local.group = None

        self.threads[""].submit(leave)
        self._fail()
        for each in self.threads.values():
            each.shutdown(wait=False)


def join(backend: str, store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
    """In place of `dist.init_process_group`: the process group of a thread."""
    local.group = dist.ProcessGroupGloo(store, rank, world_size, timeout)


class World:
    """In place of `dist.group`, whose WORLD is the default process group."""

    @property
    def WORLD(self) -> Any:
        return local.group


def replace_ray(monkeypatch: pytest.MonkeyPatch, cpus: float = 4.0, gpus: float = 0.0) -> None:
    """Lets groups of learners place them in threads."""

    def remote(**_: Any) -> Callable[[Any], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *arguments: Member(lambda: kind(*arguments)))

    ray = SimpleNamespace(
        put=put,
        get=get,
        wait=wait,
        remote=remote,
        kill=Member.kill,
        cluster_resources=lambda: {"CPU": cpus, "GPU": gpus},
        available_resources=lambda: {"CPU": cpus, "GPU": gpus},
        util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
        ObjectRef=Reference,
    )
    for module in (learner_group, placement, remote_learner):
        monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr(placement, "placement_group", lambda *_, **__: SimpleNamespace(wait=lambda seconds: True))
    monkeypatch.setattr(placement, "remove_placement_group", lambda group: None)
    monkeypatch.setattr(placement, "PlacementGroupSchedulingStrategy", lambda *_, **__: None)
    replaced = SimpleNamespace(TCPStore=dist.TCPStore, init_process_group=join, group=World())
    monkeypatch.setattr(remote_learner, "dist", replaced)
