"""Trajectories: the data that actors send to learners.

B rows (environments), T steps, A actions; every tensor is batch first. Outputs of the environment have T + 1 entries:
the last is the bootstrap, and also the first of the next trajectory of the same environment.

| field         | shape [dtype]                  | meaning |
|---------------|--------------------------------|---------------------------------------------------------------------|
| observation   | [B, T+1, ...] uint8 or float32 | at step t; an `Observation` if there are instructions |
| last_action   | [B, T+1] int64                 | the action that led to it; -1 at an episode start |
| reward        | [B, T+1] float32               | the reward that came with it, as the environment returned it |
| discount      | [B, T+1] float32               | 0 where the environment terminated at step t, else 1  |
| reset         | [B, T+1] bool                  | true at an episode start |
| action        | [B, T] int64                   | the action that the behaviour policy chose |
| policy_logits | [B, T, A] float32              | the behaviour policy's logits |
| core_state    | state of B rows                | the recurrent state before step 0: once, never per step |
| actor_id      | [B] int64                      | the actor |
| version       | [B] int64                      | learner version of the acting weights |
| replayed      | [B] bool, or None for no row   | whether the row was learned from before: its steps count once |

Episodes reset on the *next* step (gymnasium's `AutoresetMode.NEXT_STEP`): the step after an episode's last observation
ignores its action and returns the first observation of the next episode. So where `reset[t + 1]` is true, step t is the
last observation of an episode; its action has no effect, `reward[t + 1]` is 0, and it counts neither as a step nor in
any loss (see `loss_mask`). A truncated episode bootstraps from the value of that last observation.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from agent.core.state import State, leaves


class Observation(NamedTuple):
    """The observation of an environment with instructions.

    image: [..., height, width, channels] uint8.
    instruction: [..., W] int64, ids of words, padded with 0.
    """

    image: Tensor
    instruction: Tensor


def image_of(observation: Tensor | Observation) -> Tensor:
    """An observation without its instruction."""
    if isinstance(observation, Observation):
        return observation.image
    return observation


class EnvOutput(NamedTuple):
    """What environments return: at one step [B, ...], or at several [B, T, ...]; fields as in the module's table."""

    observation: Tensor | Observation
    last_action: Tensor
    reward: Tensor
    discount: Tensor
    reset: Tensor


class Trajectory(NamedTuple):
    """T steps of B environments; see the module's table. A nest of tuples like a state, so that `map_state`,
    `concatenate_states`, `index_state` and `state_to` of `agent.core` work on whole trajectories.

    The first fields are those of `EnvOutput`, in its order."""

    observation: Tensor | Observation
    last_action: Tensor
    reward: Tensor
    discount: Tensor
    reset: Tensor
    action: Tensor
    policy_logits: Tensor
    core_state: State
    actor_id: Tensor
    version: Tensor
    replayed: Tensor | None = None

    @property
    def env_output(self) -> EnvOutput:
        """The environments' part: the same tensors, T + 1 steps of each."""
        return EnvOutput(self.observation, self.last_action, self.reward, self.discount, self.reset)


def loss_mask(trajectory: Trajectory) -> Tensor:
    """[B, T] bool: true where the action of step t had an effect, false at the last observation of an episode."""
    return ~trajectory.reset[:, 1:]


def validate(trajectory: Trajectory) -> tuple[int, int]:
    """Checks ranks, sizes and dtypes; returns (B, T).

    Raises:
        ValueError: names the field, the expected and the actual shape and dtype.
    """
    if trajectory.action.ndim != 2 or trajectory.action.shape[1] < 1:
        raise ValueError(f"action: expected [B, T >= 1], got {list(trajectory.action.shape)}")
    rows, steps = trajectory.action.shape
    outputs = (rows, steps + 1)
    image = image_of(trajectory.observation)
    logits = trajectory.policy_logits
    pixels = torch.uint8 if image.dtype == torch.uint8 else torch.float32

    # Each tensor with the shape and dtype that it should have. Sizes that are free are those that it has.
    expected = [
        ("observation", image, (*outputs, *image.shape[2:]), pixels),
        ("last_action", trajectory.last_action, outputs, torch.int64),
        ("reward", trajectory.reward, outputs, torch.float32),
        ("discount", trajectory.discount, outputs, torch.float32),
        ("reset", trajectory.reset, outputs, torch.bool),
        ("action", trajectory.action, (rows, steps), torch.int64),
        ("policy_logits", logits, (rows, steps, logits.shape[-1]), torch.float32),
        ("actor_id", trajectory.actor_id, (rows,), torch.int64),
        ("version", trajectory.version, (rows,), torch.int64),
    ]
    for leaf in leaves(trajectory.core_state):
        expected.append(("core_state", leaf, (rows, *leaf.shape[1:]), leaf.dtype))
    if isinstance(trajectory.observation, Observation):
        words = trajectory.observation.instruction
        expected.append(("instruction", words, (*outputs, words.shape[-1]), torch.int64))
    if trajectory.replayed is not None:
        expected.append(("replayed", trajectory.replayed, (rows,), torch.bool))
    for name, tensor, shape, dtype in expected:
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(f"{name}: expected {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    return rows, steps
