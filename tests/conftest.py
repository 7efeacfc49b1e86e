"""What all tests share: one thread a process, how many examples hypothesis draws, one Ray cluster, and which tests stay
together when pytest-xdist runs them in several processes."""

import os

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # torch, imported later, reads it here and in the processes that tests start

settings.register_profile("quick", max_examples=4, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("quick")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share what is expensive run in one process of pytest-xdist: a Ray cluster, a finished run.

    Those with clusters of their own mostly wait, and one at a time is enough of it.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if item.get_closest_marker("ray"):
        item.add_marker(pytest.mark.xdist_group("ray" if fixtures & {"cluster", "make_pool"} else "clusters"))
    elif "finished" in fixtures:
        item.add_marker(pytest.mark.xdist_group("finished"))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray cluster of four CPUs, whatever other clusters this machine has; all tests that want no other share it."""
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    if not ray.is_initialized():
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
