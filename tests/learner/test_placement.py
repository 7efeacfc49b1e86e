"""The resources that learners wait for on a Ray cluster."""

import pytest

from learner import placement
from learner.placement import Placement
from tests.learner import threads


def test_a_long_wait_for_resources_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads.replace_ray(monkeypatch, cpus=1.0)
    monkeypatch.setattr(placement, "STALL_SECONDS", 0.0)
    has_room = iter([False, True])
    with Placement(2, "cpu", "spread", {"disk": "fast"}) as places:
        monkeypatch.setattr(places.group, "wait", lambda seconds: next(has_room))
        places.wait(lambda: None)
    needs = "each needs {'CPU': 1} on a node with {'disk': 'fast'}, and the cluster has free {'CPU': 1.0}"
    assert caplog.messages == [f"no room for 2 learners yet (SPREAD); {needs}"]


def test_learners_need_a_gpu_each_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.replace_ray(monkeypatch, gpus=1.0)
    assert Placement(1, "auto", "pack").device == "cuda"
    assert Placement(2, "cpu", "pack").device == "cpu"
    with pytest.raises(ValueError, match="expected at most one for each of the cluster's 1 GPUs, got 2"):
        Placement(2, "auto", "pack")
