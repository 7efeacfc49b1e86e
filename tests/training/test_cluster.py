"""A run's cluster: how the silence of its head is counted, and a driver without the GPUs of its learners."""

import dataclasses
import itertools
import socket
import threading
from typing import Any

import pytest

from tests.training.test_resident import CONFIG
from training import cluster
from training.cluster import HeadWatch
from training.impala import Trainer
from training.run import Run


@pytest.mark.parametrize(("seconds", "silent"), [(0.0, 4.0), (1.0, 8.0)], ids=["refused", "vanished"])
def test_silence_is_the_time_of_failed_probes(seconds: float, silent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that refuses a connection does so at once; one that vanished takes a probe's time as well."""
    watch, clock = HeadWatch.__new__(HeadWatch), itertools.count(step=seconds)
    watch.address, watch.silent, watch._closed = "10.0.0.1:6379", 0.0, threading.Event()
    waits = iter([False] * 4 + [True])
    monkeypatch.setattr(watch._closed, "wait", lambda timeout: next(waits))
    monkeypatch.setattr(cluster.time, "monotonic", lambda: next(clock))

    def fail(address: Any, timeout: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", fail)
    watch._probe()
    assert watch.silent == silent


def test_a_driver_needs_no_gpu_although_its_learners_do() -> None:
    learning = dataclasses.replace(CONFIG.learner, device="cuda", precision="auto")
    trainer = Trainer(dataclasses.replace(CONFIG, resident=False, learners=2, learner=learning), Run(""), local=False)
    assert trainer.learner.device.type == "cpu"
    assert trainer.config.learner.device == "cuda"
