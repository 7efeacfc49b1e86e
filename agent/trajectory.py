"""Trajectories: the data that actors send to learners.

B rows (environments), T steps, P parameters of the policy, K columns of an action that is a vector; every tensor is
batch first. Outputs of the environment have T + 1 entries: the last is the bootstrap, and also the first of the next
trajectory of the same environment.

| field             | shape [dtype]                  | meaning |
|-------------------|--------------------------------|-----------------------------------------------------------------|
| observation       | [B, T+1, ...] uint8 or float32 | at step t; a tuple of several, or an `Observation` |
| last_action       | [B, T+1] or [B, T+1, K]        | as the environment received it before step t; see below |
| reward            | [B, T+1] float32               | the reward that came with it, as the environment returned it |
| discount          | [B, T+1] float32               | 0 where the environment terminated at step t, else 1  |
| reset             | [B, T+1] bool                  | true at an episode start |
| action            | [B, T] int64, [B, T, K] float32 | sampled by the behavior policy: a number, or a vector |
| policy_parameters | [B, T, P] float32              | the behavior policy's, logits for example; see `policies` |
| core_state        | state of B rows                | the recurrent state before step 0: once, never per step |
| actor_id          | [B] int64                      | the actor |
| version           | [B] int64                      | learner version of the acting weights |
| replayed          | [B] bool, None if none was     | whether the row was learned from before: its steps count once |

The last action has the dtype of `action`. It differs from it where numbers were brought within their bounds. At an
episode start it is -1, and 0 in columns of numbers.

Episodes reset on the *next* step (gymnasium's `AutoresetMode.NEXT_STEP`): the step after an episode's last observation
ignores its action and returns the first observation of the next episode. So where `reset[t + 1]` is true, step t is the
last observation of an episode; its action has no effect, `reward[t + 1]` is 0, and it counts neither as a step nor in
the losses of V-trace (see `loss_mask`); those that need no action, such as reconstruction, take all T + 1 entries. A
truncated episode bootstraps from the value of that last observation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from agent.core.state import State, leaves

Sensed = Tensor | tuple[Tensor, ...]
"""An image or a vector of each step; or several, images first."""


class Observation(NamedTuple):
    """The observation of an environment with instructions.

    image: [..., height, width, channels] uint8, [..., features] float32, or a tuple of these.
    instruction: [..., W] int64, ids of words, padded with 0.
    """

    image: Sensed
    instruction: Tensor


def sensed_of(observation: Sensed | Observation) -> Sensed:
    """An observation without its instruction."""
    if isinstance(observation, Observation):
        return observation.image
    return observation


def image_of(observation: Sensed | Observation) -> Tensor:
    """The image or vector of an observation without its instruction; the first of several."""
    sensed = sensed_of(observation)
    if isinstance(sensed, tuple):
        return sensed[0]
    return sensed


def map_sensed(function: Callable[[Tensor], Tensor], sensed: Sensed) -> Sensed:
    """Applies `function` to an image or vector, or to each of several."""
    if isinstance(sensed, tuple):
        return tuple(function(part) for part in sensed)
    return function(sensed)


class EnvOutput(NamedTuple):
    """What environments return: at one step [B, ...], or at several [B, T, ...]; fields as in the module's table."""

    observation: Sensed | Observation
    last_action: Tensor
    reward: Tensor
    discount: Tensor
    reset: Tensor


class Trajectory(NamedTuple):
    """T steps of B environments; see the module's table. A nest of tuples like a state, so that `map_state`,
    `concatenate_states`, `index_state` and `state_to` of `agent.core` work on whole trajectories.

    The first fields are those of `EnvOutput`, in its order."""

    observation: Sensed | Observation
    last_action: Tensor
    reward: Tensor
    discount: Tensor
    reset: Tensor
    action: Tensor
    policy_parameters: Tensor
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
    action = trajectory.action
    if action.ndim not in (2, 3) or action.shape[1] < 1:
        raise ValueError(f"action: expected [B, T >= 1] or [B, T >= 1, K], got {list(action.shape)}")
    rows, steps, *columns = action.shape
    action_dtype = torch.int64
    if columns:
        action_dtype = torch.float32

    # What the policy did, at T steps.
    parameters = trajectory.policy_parameters
    num_parameters = parameters.shape[-1]
    _check("action", action, (rows, steps, *columns), action_dtype)
    _check("policy_parameters", parameters, (rows, steps, num_parameters), torch.float32)

    # What the environments returned, at T + 1 steps.
    outputs = (rows, steps + 1)
    _check("last_action", trajectory.last_action, (*outputs, *columns), action_dtype)
    _check("reward", trajectory.reward, outputs, torch.float32)
    _check("discount", trajectory.discount, outputs, torch.float32)
    _check("reset", trajectory.reset, outputs, torch.bool)
    for part in leaves(sensed_of(trajectory.observation)):
        size = part.shape[2:]
        dtype = torch.float32
        if part.dtype == torch.uint8:
            dtype = torch.uint8
        _check("observation", part, (*outputs, *size), dtype)
    if isinstance(trajectory.observation, Observation):
        words = trajectory.observation.instruction
        num_words = words.shape[-1]
        _check("instruction", words, (*outputs, num_words), torch.int64)

    # What there is once for each row.
    _check("actor_id", trajectory.actor_id, (rows,), torch.int64)
    _check("version", trajectory.version, (rows,), torch.int64)
    if trajectory.replayed is not None:
        _check("replayed", trajectory.replayed, (rows,), torch.bool)
    for leaf in leaves(trajectory.core_state):
        size = leaf.shape[1:]
        _check("core_state", leaf, (rows, *size), leaf.dtype)
    return rows, steps


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises a ValueError that names the field if the tensor has another shape or dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        got = f"{tensor.dtype} {list(tensor.shape)}"
        raise ValueError(f"{name}: expected {dtype} {list(shape)}, got {got}")
