"""Future prediction: its definition, what it trains, and that it learns."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agent.prediction import FuturePrediction
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent.agents import CORES, agent_inputs, make_agent, make_trajectory

ROWS = 2
LENGTH = 7
STEPS = 3  # that are predicted
# Features of the core, of an action and of what is predicted.
MODEL = 6
ACTION = 3
SEEN = 5


def literal(module: FuturePrediction, features: Tensor, actions: Tensor, seen: Tensor, reset: Tensor) -> list[Tensor]:
    """The error of every prediction that does not leave its episode, one by one."""
    errors = []
    for row in range(ROWS):
        for start in range(LENGTH):
            hidden = torch.tanh(module.begin(features[row, start]))[None]
            last = min(start + STEPS, LENGTH - 1)
            for later in range(start + 1, last + 1):
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
    features = torch.randn(ROWS, LENGTH, MODEL)
    actions = torch.randn(ROWS, LENGTH, ACTION)
    seen = torch.randn(ROWS, LENGTH, SEEN)
    reset = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    for row, step in ((0, 0), (0, 4), (1, 6)):
        reset[row, step] = True
    errors = literal(module, features, actions, seen, reset)
    found = module(features, actions, seen, reset)
    assert found.count.tolist() == [len(errors)]
    torch.testing.assert_close(found.value, torch.stack(errors).mean())


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences(length: int) -> None:
    """One step has nothing to predict; of two, the first predicts the second."""
    module = FuturePrediction(MODEL, ACTION, SEEN, STEPS)
    found = module(
        torch.randn(ROWS, length, MODEL),
        torch.randn(ROWS, length, ACTION),
        torch.randn(ROWS, length, SEEN),
        torch.zeros(ROWS, length, dtype=torch.bool),
    )
    assert found.count.tolist() == [ROWS * (length - 1)]
    assert (found.value == 0) == (length == 1)


@pytest.mark.parametrize("skip", [False, True])
def test_it_trains_what_leads_to_the_features_of_memory(skip: bool) -> None:
    """All but the heads and the compression."""
    agent = make_agent(prediction_cost=0.5, prediction_steps=2, skip=skip)
    output = agent(**agent_inputs(2, 13), state=agent.initial_state(2))
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1", "prediction"}
    output.losses["prediction"].value.backward()
    compression = {id(parameter) for parameter in agent.compression_parameters()}
    for name, parameter in agent.named_parameters():
        trained = parameter.grad is not None and bool(parameter.grad.any())
        is_head = name.startswith(("policy.", "value."))
        assert trained != (is_head or id(parameter) in compression), name


def test_what_is_predicted_has_no_gradient() -> None:
    """So the loss trains the torso through the features of memory only."""
    module = FuturePrediction(MODEL, ACTION, SEEN, STEPS)
    features = torch.randn(ROWS, LENGTH, MODEL)
    actions = torch.randn(ROWS, LENGTH, ACTION)
    seen = torch.randn(ROWS, LENGTH, SEEN, requires_grad=True)
    module(features, actions, seen, torch.zeros(ROWS, LENGTH, dtype=torch.bool)).value.backward()
    assert seen.grad is None


def test_agents_that_act_or_do_not_predict_have_no_loss() -> None:
    agent = make_agent(CORES["lstm"], prediction_cost=1.0)
    with torch.no_grad():
        assert agent(**agent_inputs(2, 5), state=agent.initial_state(2)).losses == {}
    assert not any("prediction" in name for name in make_agent(CORES["lstm"]).state_dict())


def test_it_learns_what_actions_do() -> None:
    """Features are a code of the sum of the actions so far, which only the actions in between tell."""
    num_actions = 4
    torch.manual_seed(0)
    module = FuturePrediction(8, num_actions, 8, STEPS)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    codes = F.layer_norm(torch.randn(num_actions, 8), (8,))
    reset = torch.zeros(16, 12, dtype=torch.bool)
    errors = []
    for _ in range(300):
        actions = torch.randint(0, num_actions, (16, 12))
        seen = codes[actions.cumsum(dim=1) % num_actions]
        loss = module(seen, F.one_hot(actions, num_actions).float(), seen, reset).value
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
