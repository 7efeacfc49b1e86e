"""Waiting for what other processes do. Nothing here imports torch: environments in processes of their own import it."""

import subprocess
import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds to wait for what takes five on an idle machine."""


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, patience: float = PATIENCE
) -> None:
    """Waits for a condition; fails if the process ends first."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process is None or process.poll() is None, f"the process ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"waited {patience} s"
        time.sleep(0.05)
