"""Attention by kind of memory, on any device."""

import pytest

from learner.diagnostics import attention_mass
from tests.agent.agents import CORES, make_agent, make_trajectory


def test_shares_of_attention_sum_to_1_and_follow_the_resets() -> None:
    agent, trajectory = make_agent(), make_trajectory(6, 24)
    trajectory.reset[:] = False
    shares = attention_mass(agent, trajectory)
    assert shares.keys() == {"attention/compressed", "attention/memory", "attention/segment"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert min(shares.values()) > 0
    trajectory.reset[4:] = True
    assert attention_mass(agent, trajectory) == shares, "only the first four rows count"
    trajectory.reset[:] = True
    assert attention_mass(agent, trajectory)["attention/segment"] == pytest.approx(1, abs=1e-6)
    routed = attention_mass(make_agent(CORES["routing"]), make_trajectory(6, 24, core=CORES["routing"]))
    assert routed.keys() == {"attention/routed", "attention/memory", "attention/segment"}
    assert attention_mass(make_agent(CORES["lstm"]), make_trajectory(6, 24, core=CORES["lstm"])) == {}


@pytest.mark.gpu
def test_an_agent_on_a_gpu_takes_trajectories_from_the_cpu() -> None:
    agent, trajectory = make_agent(), make_trajectory(6, 24)
    expected = attention_mass(agent, trajectory)
    assert attention_mass(agent.to("cuda"), trajectory) == pytest.approx(expected, abs=1e-4)
