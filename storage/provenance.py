"""What made a run: its launches, each with the command, the code, the versions and the machine, in `launches.jsonl`."""

import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from storage.files import Json, is_finite, open_regular, read_regular, redact
from storage.run import Run

PACKAGES = ("compressive-impala", "torch", "numpy", "ray", "gymnasium", "numba")
MOST = 1 << 20
"""Bytes of the file that are read."""


def note_launch(run: Run, step: int) -> None:
    """Adds a line about this process, which now trains the run from a step; an incomplete last line is ended."""
    launch = {
        "time": time.time(),
        "step": step,
        "command": _command(),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": _machine(),
    }
    line = json.dumps(launch) + "\n"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    descriptor = open_regular(run.launches_file, flags)
    with os.fdopen(descriptor, "r+b") as file:
        # A line that a killed process left half-written is ended first.
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        last_byte = file.read(1)
        if last_byte not in (b"", b"\n"):
            file.write(b"\n")
        file.write(line.encode())


def read_launches(run: Run) -> list[Json]:
    """The launches of a run in their order; empty if it has noted none. Damaged lines are left out."""
    content = b""
    with suppress(OSError, ValueError):  # it is missing or too large
        content = read_regular(run.launches_file, MOST)
    found = []
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            launch = json.loads(line)
            if isinstance(launch, dict) and is_finite(launch.get("time")):
                found.append(launch)
    return found


def was_local(run: Run) -> bool:
    """Whether the last launch that a run noted had the option `--local`, which resuming it needs again."""
    launches = read_launches(run)
    if not launches:
        return False
    command = launches[-1].get("command")
    return isinstance(command, str) and "--local" in command.split()


def training_time(times: np.ndarray, launches: list[Json]) -> np.ndarray:
    """Seconds of training up to each row [N], over all launches; the pauses between them do not count.

    A launch lasts from its beginning to its last row. Rows before the first launch count from the first of them.
    `times` are those of the rows in seconds since 1970 [N], NaN where unknown. They ascend, unless a clock was set
    back; seconds of training ascend nevertheless.
    """
    begins = [float(launch["time"]) for launch in launches]
    known = times[np.isfinite(times)]
    if len(known) and not any(begin <= known[0] for begin in begins):
        # Rows without a launch, as those of an exported run, have a first one of their own.
        begins.insert(0, float(known[0]))

    seconds = np.full(len(times), np.nan)
    number = 0  # of the launch
    before = 0.0  # seconds of the earlier launches
    trained = 0.0
    for row, time_of_row in enumerate(times):
        if not math.isfinite(time_of_row):
            continue
        while number + 1 < len(begins) and _is_over(begins[number], begins[number + 1], time_of_row):
            number += 1
            before = trained
        trained = max(trained, before + time_of_row - begins[number])
        seconds[row] = trained
    return seconds


def _is_over(begin: float, next_begin: float, now: float) -> bool:
    """Whether a launch is over at the time of a row. The clock may have been set back before the next one began."""
    if next_begin >= begin:
        return now >= next_begin
    return now < begin


def _command() -> str:
    """The command of this process, without passwords; empty in a worker of Ray, which the sweep's command started."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "compressive")
    if program == "default_worker.py":
        return ""
    return redact(shlex.join([program, *sys.argv[1:]]))


def _commit() -> str:
    """The commit of the code, with "-dirty" if it was changed since; empty if the code is no git repository."""
    root = Path(__file__).parents[1]
    git = shutil.which("git")
    is_repository = (root / ".git").exists()
    if not git or not is_repository:
        return ""
    words = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    return ""


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _machine() -> str:
    """Processor, cores and memory of this machine, and its GPUs."""
    parts = [_processor(), f"{os.cpu_count()} cores"]
    with suppress(OSError, ValueError):
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{size / 2**30:.0f} GiB")
    for index in range(torch.cuda.device_count()):
        parts.append(torch.cuda.get_device_name(index))
    return ", ".join(parts)


def _processor() -> str:
    """The model of the processor, or its architecture where the system does not name the model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.startswith("model name"):
                return value.strip()
    return platform.machine()
