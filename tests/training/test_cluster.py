"""A run's cluster: joined only if it answers, or started whatever the user's home and temporary folder; its head's
silence, and a driver without the GPUs of its learners."""

import dataclasses
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray._private import ray_constants, services
from ray._private.utils import validate_socket_filepath
from rich.console import Console

from storage.errors import UserError
from storage.run import Run
from tests.training.test_resident import CONFIG
from training import cluster
from training.cluster import HeadWatch, _require_head
from training.trainer import Trainer


@pytest.mark.parametrize(("seconds", "silent"), [(0.0, 4.0), (1.0, 8.0)], ids=["refused", "vanished"])
def test_silence_is_the_time_of_failed_probes(seconds: float, silent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four probes a second apart. A machine that refuses a connection does so at once; one that vanished takes a
    second of each probe as well."""
    watch = HeadWatch.__new__(HeadWatch)  # without its thread
    watch.address = "10.0.0.1:6379"
    watch.silent = 0.0
    watch._closed = threading.Event()
    closed = iter([False, False, False, False, True])
    monkeypatch.setattr(watch._closed, "wait", lambda timeout: next(closed))

    clock = itertools.count(step=seconds)
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
    # What is fast there is not known here.
    assert trainer.config.learner.precision == "auto"


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of a server that accepts connections and never answers, like a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def other_service() -> Iterator[int]:
    """The port of a gRPC server that has none of Ray's services."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is on this machine, and answers must come in half a second."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def join(address: str) -> None:
    """Joins a cluster and leaves it."""
    with cluster.start_ray(address, 1, 0, Console()):
        pass


@pytest.mark.usefixtures("impatient")
def test_auto_may_stand_for_a_cluster_that_has_ended(
    listening: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would try to reach it for 15 minutes."""
    begin = "ray-address: expected a Ray cluster, got auto: 127.0.0.1:"

    # RAY_ADDRESS names a port that nothing listens to.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=f"^{begin}1, which RAY_ADDRESS names: .*Connection refused"):
        join("auto")

    # It names a server that never answers.
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening}")
    with pytest.raises(UserError, match=f"^{begin}{listening}, which RAY_ADDRESS names: it did not answer .* in 0.5 s"):
        join("auto")

    # Ray's own file names a cluster that has ended.
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    current = tmp_path / "ray" / "ray_current_cluster"
    current.parent.mkdir()
    current.write_text("127.0.0.1:1")
    with pytest.raises(UserError, match=f"^{begin}1, which the last `ray start` on this machine names: .*refused"):
        join("auto")

    # There is none at all.
    current.unlink()
    with pytest.raises(UserError, match="got auto: Could not find any running Ray instance"):
        join("auto")


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_no_head_is_not_waited_for(listening: int, other_service: int) -> None:
    for address in (f"127.0.0.1:{listening}", f"ray://127.0.0.1:{listening}"):
        with pytest.raises(UserError, match=f"got {address}: it did not answer as a Ray cluster in 0.5 s"):
            join(address)
    with pytest.raises(UserError, match="it is another service, not the head of a Ray cluster"):
        join(f"127.0.0.1:{other_service}")
    with pytest.raises(UserError, match="got local: local is no cluster that can be joined"):
        join("local")


@pytest.mark.ray
def test_the_head_of_a_cluster_answers(cluster: None) -> None:
    import ray

    _require_head(ray.get_runtime_context().gcs_address)


def test_workers_of_an_own_cluster_start_under_uv_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's environments of `uv run`, one for each worker, are off unless the user has set the variable."""
    name = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    assert hasattr(ray_constants, name)
    for before, after in ((None, "0"), ("1", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, before or "")
            if before is None:
                patch.delenv(name)
            cluster._prepare_own_cluster()
            assert os.environ[name] == after


def test_rays_sockets_fit_whatever_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def socket_in(folder: str) -> str:
        return f"{folder}/ray/session_2026-11-25_12-34-56_123456_4194304/sockets/plasma_store"

    longest = "/" + "x" * (cluster.MOST_TEMPORARY - 1)
    validate_socket_filepath(socket_in(longest))
    with pytest.raises(OSError, match="path length"):
        validate_socket_filepath(socket_in(f"{longest}x"))

    # If TMPDIR is too long, Ray is given another folder, with a warning.
    monkeypatch.setenv("RAY_TMPDIR", "")
    monkeypatch.setenv("TMPDIR", longest)
    cluster._require_short_paths()
    assert os.environ["RAY_TMPDIR"] == ""
    assert "TMPDIR is too long" not in caplog.text
    monkeypatch.setenv("TMPDIR", f"{longest}x")
    cluster._require_short_paths()
    assert os.environ["RAY_TMPDIR"] == "/tmp"
    assert "TMPDIR is too long" in caplog.text

    # If the user's own RAY_TMPDIR is too long, in bytes, it is an error.
    monkeypatch.setenv("RAY_TMPDIR", longest)
    cluster._require_short_paths()
    monkeypatch.setenv("RAY_TMPDIR", f"{longest}é")
    with pytest.raises(UserError, match=f"RAY_TMPDIR: expected a folder of at most 39 bytes, .* got {longest}é"):
        cluster._require_short_paths()


def test_a_user_without_a_home_has_a_token_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray writes the token of a new cluster into the home. A home that is a file can have none."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster._provide_token()
    assert not os.environ["RAY_AUTH_TOKEN"], "Ray makes it"
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    cluster._provide_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
