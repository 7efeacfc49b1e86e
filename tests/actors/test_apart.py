"""How far apart the two examples of a choice would be in memory; see `Recording.counterfactual_distances`."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.recorder import record_episodes
from agent.core import LSTMConfig
from tests.actors.test_recording import make_actor


def test_how_far_apart_the_examples_of_a_choice_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The literal formula; inputs do not depend on the core. What preceded the first step is not recorded: 0.5 %."""
    actor, found = make_actor(LSTMConfig(8), "rooms:small-recall,episode_frames=600"), []
    counterfactuals = actor.envs.counterfactuals

    def keep(states: Any) -> list[Any]:
        found.extend(counterfactuals(states))
        return found

    monkeypatch.setattr(actor.envs, "counterfactuals", keep, raising=False)
    (recording,) = record_episodes(actor, 1)
    count = len(recording.actions)

    def inputs(others: Any) -> NDArray[Any]:
        before = (np.concatenate([[0], of[: len(others) - 1]])[None] for of in (recording.actions, recording.rewards))
        actions, rewards = map(torch.from_numpy, before)
        given = torch.from_numpy(others)[None], actions, rewards.float(), torch.arange(len(others))[None] == 0
        return actor.agent(*given, actor.agent.initial_state(1)).inputs[0].detach().numpy()

    mine, since = inputs(recording.observations), 0
    unit = np.mean([np.square(a - b).sum() for a in mine for b in mine]) ** 0.5
    for entered, others in found:
        steps = [at for at in range(since, entered) if (others[at] != recording.observations[at]).any()]
        theirs = inputs(others)
        far = np.mean([np.square(theirs[at] - mine[at]).sum() for at in steps]) ** 0.5
        assert far > 0
        np.testing.assert_allclose(recording.counterfactual_distances[entered : len(others)], far / unit, rtol=5e-3)
        since = len(others)
    assert 0 < since <= count
