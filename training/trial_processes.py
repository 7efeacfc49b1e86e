"""The processes of a sweep's trials on Ray: each starts in its turn, as soon as the cluster has room for it.

What they do, and which of them failed, is in `sweep.py`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ROOM_SECONDS = 1
"""How long to wait for Ray to find room that there is, before it is taken that there is none."""


class TrialProcesses:
    """Trials that wait for room, and those that have it. A trial's process is a Ray task in its placement group.

    Args:
        names: of the trials, in the order in which they are to start.
        bundles: resources of each trial, of which the first one is for its process.
        arguments: those of `run_trial` for a trial.
        run_trial: what the process does.
    """

    def __init__(
        self,
        names: Iterable[str],
        bundles: list[dict[str, float]],
        run_trial: Callable[..., None],
        arguments: Callable[[str], tuple[object, ...]],
    ) -> None:
        cpus = bundles[0].get("CPU", 0)
        gpus = bundles[0].get("GPU", 0)
        make_remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, max_retries=0)
        self.run_trial = make_remote(run_trial)
        self.arguments = arguments
        self.bundles = bundles
        self.waiting = deque(names)
        self.groups: dict[str, PlacementGroup] = {}
        self.tasks: dict[ray.ObjectRef, str] = {}

    @property
    def any_left(self) -> bool:
        """Whether a trial runs or waits."""
        return bool(self.tasks or self.waiting)

    def start_next(self) -> None:
        """Starts trials until one has to wait for room.

        Only one asks for room at a time: of several, Ray serves any, and the trials would not start in their order.
        """
        has_room = self.running() == self.groups.keys()
        while has_room and self.waiting:
            name = self.waiting.popleft()
            self.groups[name] = placement_group(self.bundles)
            self.start(name)
            has_room = self.groups[name].wait(ROOM_SECONDS)

    def start(self, name: str) -> None:
        """Starts the process of a trial that has asked for room; again, if it has died."""
        place = PlacementGroupSchedulingStrategy(self.groups[name], 0, placement_group_capture_child_tasks=True)
        run_trial = self.run_trial.options(scheduling_strategy=place)
        task = run_trial.remote(*self.arguments(name))
        self.tasks[task] = name

    def wait(self, seconds: float) -> list[tuple[str, ray.exceptions.RayError | None]]:
        """The trials whose processes end within so many seconds, with the error of those that did not end well."""
        ended, _ = ray.wait(list(self.tasks), timeout=seconds)
        found: list[tuple[str, ray.exceptions.RayError | None]] = []
        for task in ended:
            name = self.tasks.pop(task)
            try:
                ray.get(task)
                found.append((name, None))
            except ray.exceptions.RayError as error:
                found.append((name, error))
        return found

    def release(self, name: str) -> None:
        """Gives the room of a trial to those that wait."""
        remove_placement_group(self.groups.pop(name))

    def forget_waiting(self) -> None:
        """Leaves only those that have room."""
        self.waiting.clear()
        running = self.running()
        self.tasks = {task: name for task, name in self.tasks.items() if name in running}

    def wait_for_all(self, seconds: float) -> None:
        """Waits for so many seconds at most until all processes have ended."""
        ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=seconds)

    def no_room(self) -> str:
        """What a trial needs, and what the cluster has free, for people who wait."""
        # Bundles that are alike are named once, with their number.
        resources = dict[str, None]()  # in order, each name once
        described = Counter[str]()
        for bundle in self.bundles:
            resources |= dict.fromkeys(bundle)
            amounts = [f"{number:g} {name}" for name, number in bundle.items()]
            described[" and ".join(amounts)] += 1
        needs = []
        for words, count in described.items():
            needs.append(f"{count} x {words}" if count > 1 else words)

        free = ray.available_resources()
        has = [f"{free.get(name, 0.0):g} {name}" for name in resources]
        return f"no room for a run yet: it needs {', '.join(needs)}, and the cluster has free {', '.join(has)}"

    def running(self) -> set[str]:
        """The trials for which the cluster has made room: their processes run, or are about to."""
        table = placement_group_table()
        found = set()
        for name, group in self.groups.items():
            if table[group.id.hex()]["state"] == "CREATED":
                found.add(name)
        return found
