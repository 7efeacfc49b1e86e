"""Where several learners run on a Ray cluster: the resources that are reserved for each of them."""

import logging
import threading
import time
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from learner.remote_learner import GRACE_SECONDS, Check

logger = logging.getLogger(__name__)

STALL_SECONDS = 30.0
"""Seconds of waiting for resources between two warnings."""


class Placement:
    """A placement group with a bundle of resources for each learner; a context manager.

    Ray finds another node for the bundles of a lost one by itself.

    Args:
        size: number of learners.
        device: auto (GPUs if the cluster has any), cpu, or cuda, which is one GPU each.
        strategy: pack, spread, strict_pack or strict_spread, as Ray has them.
        labels: labels that a learner's node must have.

    Attributes:
        device: of each learner, cpu or cuda, by its name in the learner's process.

    Raises:
        ValueError: if the cluster has fewer GPUs than learners, unless it has none and `device` is auto.
    """

    def __init__(self, size: int, device: str, strategy: str, labels: dict[str, str] | None = None) -> None:
        self.size = size
        self.device, self.resources = _resources(device, size)
        self.strategy = strategy.upper()
        self.labels = labels or {}
        self.group: PlacementGroup | None = None

    def __enter__(self) -> "Placement":
        bundles = [self.resources] * self.size
        labels = [self.labels] * self.size
        self.group = placement_group(bundles, self.strategy, bundle_label_selector=labels)
        return self

    def __exit__(self, *_: object) -> None:
        # In a thread, because this call does not return if the cluster's head is lost.
        remove = threading.Thread(target=remove_placement_group, args=(self.group,), daemon=True)
        remove.start()
        remove.join(GRACE_SECONDS / 2)

    def wait(self, check: Check) -> None:
        """Waits until the cluster has reserved all bundles, and warns if that takes long."""
        assert self.group is not None
        begin = time.monotonic()
        while not self.group.wait(1):  # a second: Ray truncates fractions
            check()
            if time.monotonic() - begin >= STALL_SECONDS:
                begin = time.monotonic()
                self._warn()

    def _warn(self) -> None:
        """Says what is missing."""
        free = ray.available_resources()
        has = {name: free.get(name, 0.0) for name in self.resources}
        needs = f"{self.resources}"
        if self.labels:
            needs += f" on a node with {self.labels}"
        room = f"no room for {self.size} learners yet ({self.strategy})"
        logger.warning("%s; each needs %s, and the cluster has free %s", room, needs, has)

    def start(self, kind: type, rank: int, *arguments: object) -> Any:
        """Starts `kind(*arguments)` as the actor of learner `rank`, in its bundle; returns its handle."""
        assert self.group is not None
        # Ray restarts nothing by itself, and `fetch` has a thread of its own.
        options: dict[str, Any] = {
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {"fetch": 1},
            "num_cpus": 1,
            "num_gpus": self.resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=rank),
        }
        return ray.remote(**options)(kind).remote(*arguments)


def _resources(device: str, size: int) -> tuple[str, dict[str, float]]:
    """The device of each learner and the resources that it needs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu", {"CPU": 1}
    if gpus < size:
        raise ValueError(f"learners: expected at most one for each of the cluster's {gpus} GPUs, got {size}")
    return "cuda", {"CPU": 1, "GPU": 1}
