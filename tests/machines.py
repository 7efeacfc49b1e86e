"""Machines of a network, which are network namespaces of this one: each has an address and ports of its own."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CAN_BE_MADE = (
    os.geteuid() == 0
    and shutil.which("ip") is not None
    and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
)
NEEDED = "needs root and network namespaces"


@contextmanager
def machines(count: int) -> Iterator[dict[str, str]]:
    """Namespaces by address, as many as asked for, which all reach each other; they are removed at the end."""
    prefix = f"m{secrets.token_hex(3)}"
    switch = f"{prefix}-switch"
    found = {f"10.97.0.{number}": f"{prefix}-{number}" for number in range(1, count + 1)}
    made = []
    try:
        for name in (switch, *found.values()):
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, (address, name) in enumerate(found.items()):
            port = f"port{number}"
            _ip("-n", name, "link", "add", "wire", "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
            _ip("-n", name, "route", "add", "default", "dev", "wire")  # Ray looks where it leads for its own address
        yield found
    finally:
        for name in made:
            _ip("netns", "del", name)


def machine_of(pid: int) -> str:
    """The namespace of a process; empty if it has ended, or is in none."""
    named = subprocess.run(["ip", "netns", "identify", str(pid)], capture_output=True, text=True)
    return named.stdout.strip()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
