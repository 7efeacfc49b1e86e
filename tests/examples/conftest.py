"""What the tests of examples have in common."""

import importlib.util
from collections.abc import Generator, Iterator

import pytest
import torch


@pytest.fixture
def two_threads() -> Iterator[None]:
    """A program begins with two threads, as torch takes on a machine with two cores; it must end with one."""
    # TorchRL closes environments with up to as many threads as there were when it was imported.
    if importlib.util.find_spec("torchrl"):
        importlib.import_module("torchrl")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Checks what `two_threads` says, unless the test is skipped or fails."""
    yield
    if "two_threads" in getattr(item, "fixturenames", ()):
        assert torch.get_num_threads() == 1
