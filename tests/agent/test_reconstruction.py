"""The reconstruction loss against its literal formula, and what it trains."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agent import Agent, AgentConfig
from agent.core import CompressiveTransformerConfig, LSTMConfig
from agent.encoders import Reconstruction

SHAPE, ACTIONS = (12, 16, 3), 5
WITH_LSTM = AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16), reconstruction_cost=1.0)


def moments(rows: int, steps: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "observation": torch.randint(0, 256, (rows, steps, *SHAPE), generator=generator, dtype=torch.uint8),
        "last_action": torch.randint(0, ACTIONS, (rows, steps), generator=generator),
        "last_reward": torch.randn(rows, steps, generator=generator),
        "reset": torch.rand(rows, steps, generator=generator) < 0.2,
    }


def make_agent(config: AgentConfig) -> Agent:
    torch.manual_seed(0)
    return Agent(config, SHAPE, ACTIONS)


def test_equals_the_literal_formula() -> None:
    """12 x 16 pixels are 6 x 8 blocks of 2 x 2, whose means are drawn."""
    torch.manual_seed(0)
    module = Reconstruction(8, 3).double()
    images, features = moments(1, 5)["observation"][0], torch.randn(5, 8, dtype=torch.float64)
    drawn = (features @ module.decoder.weight.T + module.decoder.bias).detach().view(5, 3, 6, 8)
    errors = [
        (drawn[n, channel, y, x] - ((images[n].double() - 127.5) / 63.75)[2 * y :, 2 * x :][:2, :2, channel].mean())
        ** 2
        for n in range(5)
        for channel in range(3)
        for y in range(6)
        for x in range(8)
    ]
    assert module(features, images).value.item() == pytest.approx(sum(errors).item() / len(errors), rel=1e-10)


def test_it_trains_vision_and_core_but_neither_heads_nor_compression() -> None:
    core = CompressiveTransformerConfig(16, 2, 2, 16, segment_size=4, memory_size=4, compressed_size=4)
    agent = make_agent(replace(WITH_LSTM, core=core))
    output = agent(**moments(2, 13), state=agent.initial_state(2))
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1", "reconstruction"}
    output.losses["reconstruction"].value.backward()
    compression = {id(parameter) for parameter in agent.compression_parameters()}
    for name, parameter in agent.named_parameters():
        trained = parameter.grad is not None and bool(parameter.grad.any())
        apart = id(parameter) in compression or name.startswith(("policy.", "value."))
        assert trained != apart, name


def test_the_cost_is_a_factor() -> None:
    seen, agents = moments(2, 5), [make_agent(replace(WITH_LSTM, reconstruction_cost=cost)) for cost in (1.0, 2.0)]
    one, two = (agent(**seen, state=agent.initial_state(2)).losses["reconstruction"].value for agent in agents)
    torch.testing.assert_close(2 * one, two)


def test_acting_and_the_default_do_without() -> None:
    seen, agent = moments(2, 5), make_agent(WITH_LSTM)
    with torch.no_grad():
        assert agent(**seen, state=agent.initial_state(2)).losses == {}
    agent = make_agent(AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16)))
    assert agent(**seen, state=agent.initial_state(2)).losses == {}
    assert not any("reconstruction" in name for name in agent.state_dict())


def test_vectors_are_not_drawn() -> None:
    agent = Agent(WITH_LSTM, (5,), 3)
    seen = {**moments(2, 5), "observation": torch.randn(2, 5, 5)}
    output = agent(**{**seen, "last_action": seen["last_action"].clamp(max=2)}, state=agent.initial_state(2))
    assert output.losses == {}
    assert output.policy_logits.shape == (2, 5, 3)


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_impossible_costs_are_named(cost) -> None:
    with pytest.raises(ValueError, match=re.escape(f"reconstruction_cost: expected 0 or more, got {cost}")):
        AgentConfig(reconstruction_cost=cost)
