"""The clock of transformers: steps know how many of their episode were before them."""

import dataclasses

import pytest
import torch

from agent.core import make_core
from agent.core.attention import sinusoids
from tests.agent.cores import CASES, SIZE

CLOCKED = ("compressive/pre-clock", "routing/clock")
ROWS = 3
STEPS = 23


def ages_of(reset: torch.Tensor) -> torch.Tensor:
    """Steps of the episode before each step [B, T], counted one by one."""
    ages = torch.zeros(reset.shape, dtype=torch.int64)
    for row in range(reset.shape[0]):
        age = 0
        for step in range(reset.shape[1]):
            if reset[row, step]:
                age = 0
            ages[row, step] = age
            age += 1
    return ages


@pytest.mark.parametrize("name", CLOCKED)
def test_a_clock_is_an_input_of_the_number_of_steps(name: str) -> None:
    """A core with a clock is one without, given these inputs; whatever the parts in which it is called."""
    torch.manual_seed(0)
    config = CASES[name]
    core = make_core(config).double()
    plain = make_core(dataclasses.replace(config, clock=False)).double()
    weights = core.state_dict()
    clock = weights.pop("clock.weight")
    plain.load_state_dict(weights)

    inputs = torch.randn(ROWS, STEPS, SIZE, dtype=torch.float64)
    reset = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    reset[0, 7] = True
    reset[1, [0, 9, 10]] = True
    ages = ages_of(reset)
    times = sinusoids(ages.flatten(), SIZE).unflatten(0, ages.shape)
    state = plain.initial_state(ROWS)
    expected = plain(inputs + times @ clock.T, reset, state).features

    whole = core(inputs, reset, core.initial_state(ROWS)).features
    torch.testing.assert_close(whole, expected)
    in_parts = []
    state = core.initial_state(ROWS)
    for begin, end in ((0, 1), (1, 6), (6, 15), (15, STEPS)):
        output = core(inputs[:, begin:end], reset[:, begin:end], state)
        state = output.state
        in_parts.append(output.features)
    torch.testing.assert_close(torch.cat(in_parts, dim=1), expected)
