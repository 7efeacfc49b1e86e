"""An object store in memory behind URLs that begin with unreliable://, some of whose operations fail."""

from collections.abc import Collection
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Unreliable(MemoryFileSystem):
    """Counts its operations; those whose numbers are in `failing` raise `error`, before or after their effect."""

    protocol = "unreliable"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    calls = 0
    failing: Collection[int] = ()
    late = False
    error: Exception = ConnectionResetError("the network is down")

    @classmethod
    def fail(cls, operations: Collection[int], late: bool = False, error: Exception | None = None) -> None:
        """Restarts the count at 1, and fails at the given operations."""
        cls.calls, cls.failing, cls.late = 0, operations, late
        cls.error = error or ConnectionResetError("the network is down")


def _operation(name: str) -> Any:
    def operate(self: Unreliable, *args: Any, **kwargs: Any) -> Any:
        Unreliable.calls += 1
        fails = Unreliable.calls in self.failing
        if fails and not self.late:
            raise self.error
        result = getattr(super(Unreliable, self), name)(*args, **kwargs)
        if fails:
            raise self.error
        return result

    return operate


for name in ("cat_file", "pipe_file", "find", "rm", "rm_file"):
    setattr(Unreliable, name, _operation(name))
fsspec.register_implementation("unreliable", Unreliable)
