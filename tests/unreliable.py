"""An object store in memory that can be told which of its operations fail, behind URLs that begin with unreliable://."""

from collections.abc import Collection
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Unreliable(MemoryFileSystem):
    """Counts its operations; those whose numbers are in `failing` raise `error`, before or after they had effect."""

    protocol = "unreliable"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    calls = 0
    failing: Collection[int] = ()
    late = False
    error: Exception = ConnectionResetError("the network is down")

    @classmethod
    def fail(cls, operations: Collection[int], late: bool = False, error: Exception | None = None) -> None:
        """Counts from 1 anew and fails at the given operations."""
        cls.calls, cls.failing, cls.late = 0, operations, late
        cls.error = error or ConnectionResetError("the network is down")

    def _operate(self, name: str, *args: Any, **kwargs: Any) -> Any:
        Unreliable.calls += 1
        fails = Unreliable.calls in self.failing
        if fails and not self.late:
            raise self.error
        result = getattr(super(), name)(*args, **kwargs)
        if fails:
            raise self.error
        return result

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        return self._operate("cat_file", *args, **kwargs)

    def pipe_file(self, *args: Any, **kwargs: Any) -> Any:
        return self._operate("pipe_file", *args, **kwargs)

    def find(self, *args: Any, **kwargs: Any) -> Any:
        return self._operate("find", *args, **kwargs)

    def rm(self, *args: Any, **kwargs: Any) -> Any:
        return self._operate("rm", *args, **kwargs)

    def rm_file(self, *args: Any, **kwargs: Any) -> Any:
        return self._operate("rm_file", *args, **kwargs)


fsspec.register_implementation("unreliable", Unreliable)
