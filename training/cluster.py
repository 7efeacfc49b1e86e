"""The Ray cluster of a run: started or joined, watched for the loss of its head, and shown the run's metrics.

Ray is imported inside functions, since it reads environment variables when it is imported.
"""

import logging
import math
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from actors import ClusterError
from envs.caches import is_writable
from storage.errors import UserError
from training.console import Busy

if TYPE_CHECKING:
    from ray.job_config import JobConfig
    from ray.util.metrics import Gauge

logger = logging.getLogger(__name__)

PACKAGES = ("agent", "envs", "actors", "learner", "storage", "training", "sequences", "reports", "commands")
RAY_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Environment variable of Ray: how long it waits for the head before it ends a process."""
ANSWER_SECONDS = 10.0
"""Longest time to wait for the answer of a cluster that is joined."""
MOST_TEMPORARY = 39
"""Most bytes of Ray's temporary folder: 107 of a socket's path less /ray/session_DATE_TIME_PID/sockets/plasma_store."""
PROBE_SECONDS = 1.0
"""Time between two probes of the head, and the longest time that one may take."""
NOTICE_SECONDS = 3.0
"""Time without an answer after which to save a checkpoint."""
_is_starting_ray = threading.Event()


@contextmanager
def start_ray(address: str | None, cpus: int, store: int, console: Console, remedy: str = "") -> Iterator[None]:
    """Joins the cluster at an address, or starts one on this machine.

    One that is started has so many CPUs, and an object store of at least `store` bytes. `remedy` is what the user can
    do if Ray does not start.

    Raises:
        UserError: if Ray does not start, or there is no cluster at the address.
        MemoryError: if Ray's object store is full, and the disk that it moves objects to as well.
    """
    _set_defaults()
    if address is None:
        _prepare_own_cluster()
    import ray
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster: dict[str, Any] = {"address": address}
    if address is None:
        # "local" is a new cluster, not one that RAY_ADDRESS names or that an earlier program left running.
        cluster = {
            "address": "local",
            "num_cpus": cpus,
            "object_store_memory": max(512 << 20, store),
            "include_dashboard": False,
        }
    # Ray's processes inherit that hang-ups are ignored: the terminal may close, the last unrolls still arrive.
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        activity = "starting Ray" if address is None else f"joining {address}"
        with Busy(console, activity), _in_own_groups():
            # Ray itself would wait for minutes.
            if address:
                _require_head(address)
            job: dict[str, Any] = {"runtime_env": _runtime_env(), "job_config": _job_config()}
            ray.init(**cluster, **job, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises this class, for example if the machine is too busy
        raise UserError(_why_not_started(error, address, remedy)) from error
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise MemoryError("Ray's object store is full, and so is the disk that it moves objects to") from error
    finally:
        ray.shutdown()


def _set_defaults() -> None:
    """Sets what Ray reads from the environment wherever it runs, unless the user has set it."""
    # Nothing is sent to Ray's makers unasked.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The pool of actors says by itself which of them died.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    # An unroll has two results. If it fails, only one is read, and Ray would print the error of the other.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")


def _why_not_started(error: Exception, address: str | None, remedy: str) -> str:
    """Says that Ray did not start, or that there is no cluster at an address, and what the user can do."""
    if not address:
        hint = f" ({remedy})" if remedy else ""
        return f"Ray did not start{hint}: {error}"
    reason = f"ray-address: expected a Ray cluster, got {address}: {error}"
    # Something answers there, or `_require_head` would have said so. Most of the time its token is another.
    if "Failed to connect to Ray cluster" in str(error):
        reason += "; it is up, so set RAY_AUTH_MODE and the token as where `ray start` was typed"
    return reason


@contextmanager
def _in_own_groups() -> Iterator[None]:
    """Within it, each process that this one forks leads a process group of its own.

    `timeout`, for one, sends SIGTERM to a whole group. Ray's processes would end at once, and with them those that
    learn, before these could write a checkpoint. If this process is killed, the system still ends Ray's.
    """
    _is_starting_ray.set()
    try:
        yield
    finally:
        _is_starting_ray.clear()


def _lead_group() -> None:
    """In a process that was just forked."""
    if _is_starting_ray.is_set():
        os.setpgid(0, 0)


# Python calls it where Ray starts processes, because Ray has a function of its own called there.
os.register_at_fork(after_in_child=_lead_group)


def _prepare_own_cluster() -> None:
    """Sets what Ray reads from the environment where it starts a cluster of its own, unless the user has set it."""
    # These events are not read, and Ray keeps 3.5 KB for each of 100,000 unrolls.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # At Ray's 15, actors starve beside the machine's other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Under `uv run` Ray would upload the folder and build an environment for each worker, which then never starts.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    _provide_token()
    _require_short_paths()


def _provide_token() -> None:
    """A token for a cluster of one's own, where Ray cannot write the one that it makes into the user's home."""
    chosen = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path("~/.ray/auth_token").expanduser()
    if not chosen and not file.exists() and not is_writable(file.parent):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _require_short_paths() -> None:
    """Lets Ray use /tmp where TMPDIR is too long for the sockets that it puts there; RAY_TMPDIR is before TMPDIR.

    Raises a UserError if RAY_TMPDIR is too long.
    """
    chosen = os.environ.get("RAY_TMPDIR", "")
    if len(os.fsencode(chosen)) > MOST_TEMPORARY:
        expected = f"a folder of at most {MOST_TEMPORARY} bytes, because Ray's sockets are below it"
        raise UserError(f"RAY_TMPDIR: expected {expected}, got {chosen}")

    default = os.environ.get("TMPDIR", "")
    is_too_long = len(os.fsencode(default)) > MOST_TEMPORARY
    if not chosen and is_too_long:
        logger.warning("TMPDIR is too long for Ray's sockets: Ray's files are in /tmp; RAY_TMPDIR names another folder")
        os.environ["RAY_TMPDIR"] = "/tmp"


def _job_config() -> "JobConfig":
    """Keeps Ray's workers from looking for modules in the working directory if this process does not do so.

    Ray would put it first in their path. There a file of someone else would be taken for an optional package of its
    name that a library looks for. `envs.gym` has put it on this process's path if an environment was found there.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _serialize(self) -> str:
            if not _is_on_path(Path.cwd()):
                own = [path for path in self._py_driver_sys_path if path != os.getcwd()]
                self._py_driver_sys_path = own
            return super()._serialize()

    return Job()


def _is_on_path(folder: Path) -> bool:
    """Whether this process looks for modules in a folder."""
    return str(folder) in sys.path


def _runtime_env() -> dict[str, object]:
    """Keeps a user's folder such as `agent/` from hiding the package of that name in Ray's workers.

    If the working directory is on their path, it is the first place. If that would hide a package, workers import all
    packages before. Otherwise the environment is empty: workers then start faster.
    """
    folder = Path.cwd()
    root = str(Path(__file__).parents[1])
    hides_some = any((folder / name).exists() for name in PACKAGES)
    if root == str(folder) or not (hides_some and _is_on_path(folder)):
        return {}

    def import_packages() -> None:  # a nested function, so that Ray pickles it by value
        import importlib
        import sys

        sys.path.insert(0, root)
        for name in PACKAGES:
            importlib.import_module(name)
        sys.path.remove(root)

    return {"worker_process_setup_hook": import_packages}


def _require_head(address: str) -> None:
    """Raises an OSError if no cluster answers at an address within `ANSWER_SECONDS`; Ray itself would try for minutes.

    What "auto" stands for is found as Ray finds it: RAY_ADDRESS, a node that runs on this machine, or what the last
    `ray start` wrote down. The first and the last may be of a cluster that has ended.
    """
    from ray._private.services import get_ray_address_from_environment

    found = address
    if address == "auto":
        found = get_ray_address_from_environment("auto", None)
    if found == "local":
        raise OSError("local is no cluster that can be joined; without --ray-address one is started")
    protocol, _, server = found.rpartition("://")
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or protocol not in ("", "ray"):
        return  # Ray itself says what it expects
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        _connect(server, ANSWER_SECONDS)
        _require_answer(server, deadline - time.monotonic(), is_head=not protocol)
    except OSError as error:
        if address != "auto":
            raise
        source = "RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") else "the last `ray start` on this machine"
        raise OSError(f"{found}, which {source} names: {error}") from error


def _require_answer(server: str, seconds: float, is_head: bool) -> None:
    """Raises an OSError if the server at HOST:PORT does not answer in time, or is not that of a cluster's head.

    Something else may have taken the port of a head that has ended. A missing token is left to Ray.

    Args:
        server: HOST:PORT.
        seconds: to wait.
        is_head: whether it is to be the head's control service (GCS), not the one for Ray Client.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return  # it answers only who has Ray's certificates
    import grpc

    with grpc.insecure_channel(server, [("grpc.enable_http_proxy", 0)]) as channel:
        check_alive = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            check_alive(b"", timeout=max(seconds, 0.1), wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED and is_head:
                raise OSError("it is another service, not the head of a Ray cluster") from error
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                raise OSError(f"it did not answer as a Ray cluster in {ANSWER_SECONDS:g} s") from error


def _connect(address: str, seconds: float) -> None:
    """Raises an OSError if no server answers at HOST:PORT within so many seconds; IPv6 hosts are in brackets."""
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    connection = socket.create_connection(place, seconds)
    connection.close()


class HeadWatch:
    """Connects to the head's control service (GCS) once a second, in a thread; a context manager.

    Without that service actors and learners continue for 60 s; then Ray ends every process, the driver without an error
    that could be caught. So a run saves and stops before that. Ray Client (ray://) hides the address: then nothing is
    watched.

    Attributes:
        address: of the service, HOST:PORT; None through Ray Client.
        silent: seconds for which it has not answered, 0 while it does. Only failed probes count, so a process that was
            suspended does not take its own pause for the head's.
        patience: seconds of silence after which the cluster is lost: half of what Ray itself waits.
    """

    def __init__(self) -> None:
        import ray
        from ray.util.client import ray as ray_client

        self.address: str | None = None
        if not ray_client.is_connected():
            self.address = ray.get_runtime_context().gcs_address
        self.silent = 0.0
        self.patience = float(os.environ.get(RAY_SECONDS, 60)) / 2
        self._warned = False
        self._closed = threading.Event()

    def _probe(self) -> None:
        """Connects again and again, in a thread of its own, until the watch is closed."""
        while not self._closed.wait(PROBE_SECONDS):
            begun = time.monotonic()
            try:
                _connect(self.address or "", PROBE_SECONDS)
                self.silent = 0.0
            except OSError:  # at once if it is refused; a machine that vanished takes the time of the probe
                self.silent += PROBE_SECONDS + min(time.monotonic() - begun, PROBE_SECONDS)

    def check(self, save: Callable[[], object]) -> None:
        """Saves once when the head becomes silent; `save` returns where the last checkpoint is.

        Raises a ClusterError when it has been silent for `patience`.
        """
        if self.silent < NOTICE_SECONDS:
            if self._warned:
                logger.warning("the head of the Ray cluster (%s) answers again", self.address)
            self._warned = False
            return
        # The checkpoint is written at once: later, Ray may end this process.
        if not self._warned:
            self._warned = True
            message = "the head of the Ray cluster (%s) does not answer, waiting %.0f s for it; last checkpoint: %s"
            logger.warning(message, self.address, self.patience, save())
        if self.silent >= self.patience:
            raise ClusterError(f"the head of the Ray cluster ({self.address}) is lost")

    def __enter__(self) -> "HeadWatch":
        if self.address:
            threading.Thread(target=self._probe, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()


class RayGauges:
    """A run's metrics as gauges for the dashboard, Prometheus and Grafana; `episode/return` becomes
    `ray_compressive_episode_return{run="..."}`.

    Nodes that run Ray's agent (the extra `cluster`) serve them; elsewhere they are not read. A gauge keeps its last
    value, and vanishes with the process that set it.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.gauges: dict[str, Gauge] = {}

    def set(self, metrics: Mapping[str, float]) -> None:
        """Shows the finite numbers of a row of metrics."""
        from ray.util.metrics import Gauge

        for name, value in metrics.items():
            if not math.isfinite(value):
                continue
            if name not in self.gauges:
                gauge = Gauge(gauge_name(name), f"{name} of a run", ("run",))
                self.gauges[name] = gauge.set_default_tags({"run": self.run})
            self.gauges[name].set(float(value))


def gauge_name(metric: str) -> str:
    """A metric's name in letters, digits and underscores, which is all that Ray and Prometheus allow."""
    return f"compressive_{re.sub('[^a-zA-Z0-9_]', '_', metric)}"
