"""Attention by kind of memory, on any device."""

from dataclasses import replace

import pytest
import torch

from agent.core import index_state
from learner.diagnostics import attention_mass
from tests.agent.agents import CORES, make_agent, make_trajectory


def test_shares_of_attention_sum_to_1_and_follow_the_resets() -> None:
    agent = make_agent()
    trajectory = make_trajectory(6, 24)
    trajectory.reset[:] = False
    shares = attention_mass(agent, trajectory)
    assert shares.keys() == {"attention/compressed", "attention/memory", "attention/segment"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert min(shares.values()) > 0

    trajectory.reset[4:] = True
    assert attention_mass(agent, trajectory) == shares, "only the first four rows count"

    # At an episode start, a step sees only itself.
    trajectory.reset[:] = True
    assert attention_mass(agent, trajectory)["attention/segment"] == pytest.approx(1, abs=1e-6)


def test_replayed_rows_do_not_count_beside_new_ones() -> None:
    """At their end are the steps before those that are learned again, as episodes of one step each."""
    agent = make_agent()
    trajectory = make_trajectory(6, 24)
    new = attention_mass(agent, index_state(trajectory, [1, 4]))
    trajectory.reset[[0, 2, 3, 5]] = True
    replayed = torch.tensor([True, False, True, True, False, True])
    assert attention_mass(agent, trajectory._replace(replayed=replayed)) == pytest.approx(new)
    all_replayed = attention_mass(agent, trajectory._replace(replayed=torch.ones(6, dtype=torch.bool)))
    assert all_replayed == attention_mass(agent, trajectory)


def test_kinds_of_memory_are_those_of_the_core() -> None:
    routed = attention_mass(make_agent(CORES["routing"]), make_trajectory(6, 24, core=CORES["routing"]))
    assert routed.keys() == {"attention/routed", "attention/memory", "attention/segment"}
    without_attention = attention_mass(make_agent(CORES["lstm"]), make_trajectory(6, 24, core=CORES["lstm"]))
    assert without_attention == {}


def test_shares_are_means_over_layers_heads_rows_and_steps() -> None:
    """Of an agent that is being trained; the random generator of training stays as it is."""
    core = replace(CORES["compressive"], dropout=0.5)
    agent = make_agent(core).train()
    trajectory = make_trajectory(6, 24, core=core)
    before = torch.get_rng_state()
    shares = attention_mass(agent, trajectory)
    assert torch.equal(torch.get_rng_state(), before)

    # Only the first four rows are used, and no dropout.
    used = index_state(trajectory, slice(0, 4))
    agent.eval()
    with torch.no_grad():
        output = agent(
            used.observation, used.last_action, used.reward, used.reset, used.core_state, return_attention=True
        )
    sums = dict.fromkeys(shares, 0.0)
    for layer, weights in zip(agent.core.layers, output.attention, strict=True):
        mean_by_slot = weights.double().mean(dim=(0, 1, 2))
        parts = mean_by_slot.split(list(layer.sizes.by_kind))
        for name, part in zip(sums, parts, strict=True):
            sums[name] += part.sum().item() / len(agent.core.layers)
    assert shares == pytest.approx(sums, abs=1e-5)


@pytest.mark.gpu
def test_an_agent_on_a_gpu_takes_trajectories_from_the_cpu() -> None:
    agent = make_agent()
    trajectory = make_trajectory(6, 24)
    expected = attention_mass(agent, trajectory)
    assert attention_mass(agent.to("cuda"), trajectory) == pytest.approx(expected, abs=1e-4)
