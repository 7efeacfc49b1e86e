"""Future prediction: its definition, what it trains, and that it learns."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agent.prediction import FuturePrediction
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent.agents import CORES, agent_inputs, make_agent, make_trajectory

ROWS, LENGTH, MODEL, ACTION, SEEN, STEPS = 2, 7, 6, 3, 5, 3


def literal(module: FuturePrediction, features: Tensor, actions: Tensor, seen: Tensor, reset: Tensor) -> list[Tensor]:
    """The error of every prediction that does not leave its episode, one by one."""
    errors = []
    for row in range(ROWS):
        for start in range(LENGTH):
            hidden = torch.tanh(module.begin(features[row, start]))[None]
            for later in range(start + 1, min(start + STEPS, LENGTH - 1) + 1):
                if reset[row, later]:
                    break
                hidden = module.cell(actions[row, later][None], hidden)
                target = seen[row, later]
                scaled = (target - target.mean()) / (target.var(unbiased=False) + 1e-5).sqrt()
                errors.append((module.decoder(hidden)[0] - scaled).square().mean())
    return errors


def test_it_is_what_its_definition_says() -> None:
    torch.manual_seed(0)
    module = FuturePrediction(MODEL, ACTION, SEEN, STEPS)
    shapes = ((ROWS, LENGTH, size) for size in (MODEL, ACTION, SEEN))
    features, actions, seen = map(torch.randn, shapes)
    reset = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    reset[0, 0] = reset[0, 4] = reset[1, 6] = True
    errors = literal(module, features, actions, seen, reset)
    found = module(features, actions, seen, reset)
    assert found.count.tolist() == [len(errors)]
    torch.testing.assert_close(found.value, torch.stack(errors).mean())


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences(length: int) -> None:
    module = FuturePrediction(MODEL, ACTION, SEEN, STEPS)
    parts = (torch.randn(ROWS, length, size) for size in (MODEL, ACTION, SEEN))
    found = module(*parts, torch.zeros(ROWS, length, dtype=torch.bool))
    assert found.count.tolist() == [ROWS * (length - 1)]
    assert (found.value == 0) == (length == 1)


@pytest.mark.parametrize("skip", [False, True])
def test_it_trains_what_leads_to_the_features_of_memory(skip: bool) -> None:
    """And the torso only through these: what is predicted has no gradient."""
    agent = make_agent(prediction_cost=0.5, prediction_steps=2, skip=skip)
    output = agent(**agent_inputs(2, 13), state=agent.initial_state(2))
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1", "prediction"}
    output.losses["prediction"].value.backward()
    for name, parameter in agent.named_parameters():
        trained = parameter.grad is not None and bool(parameter.grad.any())
        head = name.startswith(("policy.", "value."))
        compression = any(parameter is other for other in agent.compression_parameters())
        assert trained != (head or compression), name
    seen = torch.randn(ROWS, LENGTH, SEEN, requires_grad=True)
    module = FuturePrediction(MODEL, ACTION, SEEN, STEPS)
    parts = torch.randn(ROWS, LENGTH, MODEL), torch.randn(ROWS, LENGTH, ACTION)
    module(*parts, seen, torch.zeros(ROWS, LENGTH, dtype=torch.bool)).value.backward()
    assert seen.grad is None


def test_its_cost_and_agents_without_it() -> None:
    inputs = agent_inputs(2, 5)
    agents = [make_agent(CORES["lstm"], prediction_cost=cost) for cost in (1.0, 2.0)]
    one, two = (each(**inputs, state=each.initial_state(2)).losses["prediction"].value for each in agents)
    torch.testing.assert_close(2 * one, two)
    with torch.no_grad():
        assert agents[0](**inputs, state=agents[0].initial_state(2)).losses == {}
    assert not any("prediction" in name for name in make_agent(CORES["lstm"]).state_dict())


def test_it_learns_what_actions_do() -> None:
    """Features are a code of the sum of the actions so far, which only the actions in between tell."""
    torch.manual_seed(0)
    module = FuturePrediction(8, 4, 8, STEPS)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    code = F.layer_norm(torch.randn(4, 8), (8,))
    reset = torch.zeros(16, 12, dtype=torch.bool)
    errors = []
    for _ in range(300):
        taken = torch.randint(0, 4, (16, 12))
        seen = code[taken.cumsum(dim=1) % 4]
        loss = module(seen, F.one_hot(taken, 4).float(), seen, reset).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    assert errors[0] > 0.8
    assert errors[-1] < 0.1


def test_a_learner_reports_it() -> None:
    learner = Learner(make_agent(prediction_cost=1.0), LearnerConfig(device="cpu", learning_rate=1e-3), 10_000)
    batch = make_trajectory(4, 12)
    found = [learner.update(batch)["loss/prediction"] for _ in range(60)]
    assert found[-1] < 0.9 * found[0]
