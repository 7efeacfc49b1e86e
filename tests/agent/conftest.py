"""Cores with weights that hide nothing, for all tests of this folder."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core import Core, make_core

pytest.register_assert_rewrite("tests.agent.literal")


def _build(config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Core:
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            core = make_core(config).eval()
            # Biases start at 0 and norms at 1: noise, so that a test can see them.
            with torch.no_grad():
                for parameter in core.parameters():
                    parameter += 0.3 * torch.randn_like(parameter)
    finally:
        torch.set_default_dtype(default_dtype)
    return core


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Makes a core in evaluation mode: `build(config, dtype=torch.float64, seed=0)`, every parameter random."""
    return _build
