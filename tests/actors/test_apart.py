"""How far apart the two examples of a choice would be in memory; see `Recording.counterfactual_distances`."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.recorder import record_episodes
from agent.core import LSTMConfig
from tests.actors.test_recording import make_actor


@pytest.mark.parametrize("rounds", ["", ",examples=3,delay_frames=16,delay_halvings=0"])
def test_how_far_apart_the_examples_of_a_choice_are_in_memory(rounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The literal formula. Inputs of the core do not depend on its state. Of three examples in a round, those of the
    second and the third choice were seen before the choice before.

    What preceded the first step of the episode is not recorded, so that its input is slightly different: 0.5 %.
    """
    actor = make_actor(LSTMConfig(8), f"rooms:small-recall,episode_frames=600{rounds}")
    found: list[tuple[int, NDArray[Any]]] = []
    counterfactuals = actor.envs.counterfactuals

    def keep(states: Any) -> list[Any]:
        found.extend(counterfactuals(states))
        return found

    monkeypatch.setattr(actor.envs, "counterfactuals", keep, raising=False)
    (recording,) = record_episodes(actor, 1)

    def inputs_of_core(views: NDArray[Any]) -> NDArray[Any]:
        """[T, D] for the views of the first T steps, with the actions and rewards before them."""
        length = len(views)
        last_actions = np.concatenate([[0], recording.actions[: length - 1]])
        last_rewards = np.concatenate([[0], recording.rewards[: length - 1]])
        reset = torch.arange(length) == 0
        output = actor.agent(
            torch.from_numpy(views)[None],
            torch.from_numpy(last_actions)[None],
            torch.from_numpy(last_rewards)[None].float(),
            reset[None],
            actor.agent.initial_state(1),
        )
        return output.inputs[0].detach().numpy()

    # The unit is the distance between two steps of the episode, as a root mean square.
    own_inputs = inputs_of_core(recording.observations)
    unit = np.mean([np.square(a - b).sum() for a in own_inputs for b in own_inputs]) ** 0.5

    previous_choice = 0
    earlier_examples = 0
    for entered, views in found:
        differing = [step for step in range(entered) if (views[step] != recording.observations[step]).any()]
        steps = [step for step in differing if step >= previous_choice]
        if not steps:
            steps = differing
            earlier_examples += 1
        other_inputs = inputs_of_core(views)
        distance = np.mean([np.square(other_inputs[step] - own_inputs[step]).sum() for step in steps]) ** 0.5
        assert distance > 0
        in_room = recording.counterfactual_distances[entered : len(views)]
        np.testing.assert_allclose(in_room, distance / unit, rtol=5e-3)
        previous_choice = len(views)
    assert (earlier_examples > 1) == bool(rounds)
    assert 0 < previous_choice <= len(recording.actions)
