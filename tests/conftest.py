"""Shared by all tests: threads, hypothesis profiles, one Ray cluster, and groups of tests for pytest-xdist."""

import importlib
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # read by torch, which is imported later, and by the processes that tests start

# At Ray's niceness of 15, its workers starve beside pytest's processes: tests took ten times as long.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's own spelling)

settings.register_profile("quick", max_examples=4, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("quick")


SHARED: set[str] = set()
"""Addresses of the clusters that tests of this process share."""
SHARING = {"cluster", "make_pool", "place"}
"""Fixtures that share a cluster."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Groups tests that share a Ray cluster or a finished run by process; skips those of a GPU where there is none.

    Tests with clusters of their own are two groups: more clusters at a time would be too much for two cores.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if item.get_closest_marker("ray"):
        own = "clusters of commands" if "commands" in item.path.parts else "clusters"
        item.add_marker(pytest.mark.xdist_group("ray" if fixtures & SHARING else own))
    if item.get_closest_marker("gpu") and not importlib.import_module("torch").cuda.is_available():
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for shared in ("finished", "straight"):
        if shared in fixtures:
            item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(autouse=True)
def _own_cluster(request: pytest.FixtureRequest) -> None:
    """A test that starts a cluster of its own does not find the shared one of earlier tests in its process."""
    ray = sys.modules.get("ray")
    if ray and request.node.get_closest_marker("ray") and not SHARING & set(request.fixturenames):
        ray.shutdown()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray cluster of four CPUs that tests share."""
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    if ray.is_initialized() and ray.get_runtime_context().gcs_address not in SHARED:  # an earlier test left its own
        ray.shutdown()
    if not ray.is_initialized():
        store = 200 << 20
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=store)
        SHARED.add(ray.get_runtime_context().gcs_address)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """A double of DeepMind Lab, with episodes of two steps and a return of 2; (level, mixer seed, seed) of all of them
    but the first of an instance."""
    from tests.envs.lab import Lab, Module
    from training.factories import inspect_task

    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    for name, value in {"frames": 8, "rewards": {4: 2.0}, "begun": []}.items():
        monkeypatch.setattr(Lab, name, value)
    inspect_task.cache_clear()
    yield Lab.begun
    inspect_task.cache_clear()
