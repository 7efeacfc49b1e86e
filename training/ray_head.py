"""Whether the head of the Ray cluster still answers, so that a run can save and stop before Ray ends its process.

Without the head's control service (GCS) actors and learners work on for 60 s; then Ray ends every process, the driver
without an error that could be caught.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import ray

from actors import ClusterError

logger = logging.getLogger(__name__)

RAY_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Environment variable of Ray: how long it waits for the head before it ends a process."""
PROBE_SECONDS = 1.0
"""Time between two probes, and the longest time that one may take."""
NOTICE_SECONDS = 3.0
"""Time without an answer after which to save a checkpoint."""


def is_reachable() -> bool:
    """Whether this process talks to the head itself, rather than through Ray Client, which hides its address."""
    from ray.util.client import ray as client

    return not client.is_connected()


class HeadWatch:
    """Connects to the head's control service once a second, in a thread; a context manager.

    Attributes:
        address: of the service, HOST:PORT.
        silent: seconds for which it has not answered, 0 while it does. Only failed probes count, so a process that
            was suspended does not take its own pause for the head's.
        patience: seconds of silence after which the cluster is lost: half of what Ray itself waits.
    """

    def __init__(self) -> None:
        self.address = ray.get_runtime_context().gcs_address
        self.silent = 0.0
        self.patience = float(os.environ.get(RAY_SECONDS, 60)) / 2
        self._warned = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)

    def _probe(self) -> None:
        host, _, port = self.address.rpartition(":")
        while not self._closed.wait(PROBE_SECONDS):
            self.silent += PROBE_SECONDS
            with suppress(OSError):
                socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
                self.silent = 0.0

    def check(self, save: Callable[[], object]) -> None:
        """Saves once when the head falls silent.

        Args:
            save: writes what was learned, where that is possible, and returns where the last checkpoint is.

        Raises:
            ClusterError: when it has been silent for `patience`.
        """
        if self.silent < NOTICE_SECONDS:
            if self._warned:
                logger.warning("the head of the Ray cluster (%s) answers again", self.address)
            self._warned = False
            return
        if not self._warned:
            self._warned = True
            message = "the head of the Ray cluster (%s) does not answer, waiting %.0f s for it; last checkpoint: %s"
            logger.warning(message, self.address, self.patience, save())
        if self.silent >= self.patience:
            raise ClusterError(f"the head of the Ray cluster ({self.address}) is lost")

    def __enter__(self) -> "HeadWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
