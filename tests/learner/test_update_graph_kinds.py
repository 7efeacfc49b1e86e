"""Updates of agents of other kinds as a CUDA graph, in the emulation of `test_update_graph`: actions, observations,
values and losses."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from agent import Agent, AgentConfig, Trajectory
from agent.policies import Choice, Numbers
from learner.learner import WARM_UP
from tests.agent import agents
from tests.learner.test_unread_updates import assert_same
from tests.learner.test_update_graph import make

ROWS = 3
STEPS = 8


class Kind(NamedTuple):
    """An agent, the shape of what it sees, its actions, and options of its learner."""

    agent: dict[str, Any]
    shape: Any
    actions: Any
    learner: dict[str, Any]
    popart_tasks: int = 0


UNCLIPPED = {"clip_rho": None, "clip_c": None, "clip_pg_rho": None, "reward_clipping": "none"}
KINDS = {
    "numbers": Kind({"standardize": True, "value_torso": True}, (3,), (Numbers((True, True)),), {}),
    "clipped numbers": Kind({"action_bounds": "clip", "action_scale": "state"}, (3,), (Numbers((True, False)),), {}),
    "joint actions": Kind(
        {"standardize": True, "prediction_cost": 0.1, "reconstruction_cost": 0.1},
        (agents.IMAGE, (3,)),
        (Choice(3), Numbers((False,)), Choice(4)),
        {},
    ),
    "prediction": Kind({"prediction_cost": 0.1, "skip": True}, agents.IMAGE, 5, {}),
    "deep torso": Kind({"torso": "deep"}, (24, 32, 3), 5, {}),
    "several tasks": Kind(
        {},
        (3,),
        5,
        {"popart": True, "normalize_advantages": True, "exploration": "evenness", "trust": 0.2, **UNCLIPPED},
        3,
    ),
    "sums": Kind({}, (3,), (Numbers((True,)),), {"exploration": "evenness", "reduction": "sum"}),
}


def make_agent(kind: Kind) -> Agent:
    torch.manual_seed(0)
    config = AgentConfig(**{"torso": "small", "torso_size": 16, "core": agents.CORES["lstm"], **kind.agent})
    return Agent(config, kind.shape, kind.actions, popart_tasks=kind.popart_tasks)


def random_trajectory(agent: Agent, shape: Any, seed: int) -> Trajectory:
    """Random steps of an agent, whose version is the seed."""
    generator = torch.Generator().manual_seed(seed)

    def observe(shape: tuple[int, ...]) -> Tensor:
        size = (ROWS, STEPS + 1, *shape)
        if len(shape) == 3:
            return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        return torch.randn(size, generator=generator)

    is_joint = isinstance(shape[0], tuple)
    observation = tuple(observe(part) for part in shape) if is_joint else observe(shape)
    distribution = agent.distribution
    parameters = torch.randn(ROWS * STEPS, distribution.num_parameters, generator=generator)
    noise = torch.rand(ROWS * STEPS, distribution.num_uniform, generator=generator)
    action = distribution.sample(parameters, noise)
    effect = distribution.effect(action).unflatten(0, (ROWS, STEPS))
    before_first = distribution.none(ROWS)[:, None].to(effect.dtype)
    return Trajectory(
        observation=observation,
        last_action=torch.cat([before_first, effect], dim=1),
        reward=torch.randn(ROWS, STEPS + 1, generator=generator),
        discount=(torch.rand(ROWS, STEPS + 1, generator=generator) > 0.1).float(),
        reset=torch.rand(ROWS, STEPS + 1, generator=generator) < 0.15,
        action=action.unflatten(0, (ROWS, STEPS)),
        policy_parameters=parameters.unflatten(0, (ROWS, STEPS)),
        core_state=agent.initial_state(ROWS),
        actor_id=torch.arange(ROWS),
        version=torch.full((ROWS,), seed),
    )


@pytest.mark.parametrize("name", KINDS)
def test_agents_of_every_kind_are_replayed(name: str) -> None:
    kind = KINDS[name]
    recorded = make(make_agent(kind), True, **kind.learner)
    plain = make(make_agent(kind), False, **kind.learner)
    for seed in range(WARM_UP + 2):
        batch = random_trajectory(make_agent(kind), kind.shape, seed)
        assert recorded.update(batch) == plain.update(batch)
    assert len(recorded.graphs) == 1  # type: ignore[attr-defined]
    assert_same(recorded, plain)
