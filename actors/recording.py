"""Recording: episodes step by step, with what the agent saw, did, expected, earned and attended to.

They are played by an ordinary actor with one environment, so what is seen is what was evaluated. How a recording is
shown is not decided here: `video.py` makes a film of it, `commands` a page.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from actors.actor import Actor, Episode
from actors.evaluation import check_length
from actors.pool import MAX_EPISODE_STEPS
from agent.core import CompressiveTransformer, State
from agent.trajectory import image_of


class Attention(NamedTuple):
    """Where one layer's attention goes at each step of an episode. T steps, H heads, S key slots.

    sizes: how many of the slots are compressed memory, memory and segment; they come in this order, oldest first.
    weights: [T, H, S] float32, which add up to 1 over the slots.
    steps: [T, S, 2] int64, the first and the last step of the episode that a slot holds; -1 where it holds none.
    """

    sizes: tuple[int, int, int]
    weights: np.ndarray
    steps: np.ndarray

    def by_step(self) -> np.ndarray:
        """Mean over heads of the attention of each step to each step of the episode, [T, T].

        What goes to a compressed slot is shared out equally among the steps that it holds.
        """
        time = len(self.weights)
        first, last = self.steps[..., 0], self.steps[..., 1]
        held = first >= 0
        share = np.where(held, self.weights.mean(axis=1) / (last - first + 1), 0.0)
        # A slot adds its share from its first step on and takes it away after its last.
        changes = np.zeros((time, time + 1))
        rows = np.broadcast_to(np.arange(time)[:, None], first.shape)[held]
        np.add.at(changes, (rows, first[held]), share[held])
        np.add.at(changes, (rows, last[held] + 1), -share[held])
        return changes.cumsum(axis=1)[:, :-1]


@dataclass(frozen=True)
class Recording:
    """One episode. T steps, L layers, H heads.

    episode: its score and counters.
    observations: what was seen before each action; of images [T, height, width, channels] uint8.
    actions, values, rewards: [T] what was done, the value expected before (in the learner's units) and the reward that
        followed (in the environment's).
    attention: one a layer; none for cores without attention.
    mass: [T, L, H, 3] the attention on each of `agent.core.ATTENTION_KINDS`.
    poses: [T, 4] x, y, yaw in degrees and room before each action, where the environment tells; see `floor_plan`.
    action_names: one for each action.
    fps: agent steps a second, for real time.
    floor_plan: what `poses` can be drawn on; see `envs.rooms.level.floor_plan`.
    """

    episode: Episode
    observations: np.ndarray
    actions: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    attention: tuple[Attention, ...]
    mass: np.ndarray
    poses: np.ndarray | None
    action_names: tuple[str, ...]
    fps: float
    floor_plan: dict[str, Any] | None

    @property
    def returns(self) -> np.ndarray:
        """[T] the score before each action."""
        return np.concatenate([[0.0], self.rewards.cumsum()[:-1]])


class _Step(NamedTuple):
    """One step of a recording, fields as there."""

    observation: np.ndarray
    action: int
    value: float
    reward: float
    weights: tuple[np.ndarray, ...]
    slots: tuple[np.ndarray, ...]
    mass: np.ndarray
    pose: np.ndarray | None


@torch.no_grad()
def record_episodes(actor: Actor, episodes: int, max_steps: int = MAX_EPISODE_STEPS) -> list[Recording]:
    """Plays complete episodes in the actor's first environment, from the beginning of one.

    Args:
        actor: with one environment or more, at the beginning of an episode.
        episodes: how many to play.
        max_steps: as in `play_episodes`.
    """
    core = actor.agent.core
    actor.core_state = core.with_cache(actor.core_state)
    poses = getattr(actor.envs, "poses", None)
    recordings: list[Recording] = []
    steps: list[_Step] = []
    while len(recordings) < episodes:
        resets = bool(actor.over[0])  # the environment only resets in this step: it belongs to no episode
        observation, before = image_of(actor.moment.observation)[0].numpy(), actor.core_state
        pose = None if poses is None else poses()[0]
        action, output = actor.act(before, return_attention=True)
        actor.core_state = output.state
        ended = actor.step(action)
        check_length(actor, np.arange(actor.envs.num_envs) == 0, max_steps)
        if resets:
            continue
        weights, slots, mass = _attention(core, before, output.attention, len(steps))
        value, reward = float(output.value[0, 0]), float(actor.moment.reward[0])
        steps.append(_Step(observation, int(action[0]), value, reward, weights, slots, mass, pose))
        for episode in ended:
            if episode.environment == 0:
                recordings.append(_join(steps, episode, actor))
                steps = []
    return recordings


def _attention(
    core: torch.nn.Module, state: State, weights: tuple[torch.Tensor, ...] | None, step: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Of the first row at a step of its episode, given the state before: weights, steps of slots and mass by kind."""
    if weights is None or not isinstance(core, CompressiveTransformer):
        return (), (), np.zeros((0, 0, 3))
    slots = []
    for layer in range(len(weights)):
        ages = core.slot_ages(layer, state.offset, state).cpu()
        ages = ages[0] if ages.ndim == 3 else ages
        absent = (ages[:, 1] > step) | (ages[:, 1] < 0)
        slots.append((step - ages).clamp(min=0).masked_fill(absent[:, None], -1).numpy())
    mass = core.attention_by_kind(weights)[:, 0, :, 0].cpu().numpy()
    return tuple(layer[0, :, 0].cpu().numpy() for layer in weights), tuple(slots), mass


def _join(steps: list[_Step], episode: Episode, actor: Actor) -> Recording:
    metadata, core = actor.envs.metadata, actor.agent.core
    attention = []
    if isinstance(core, CompressiveTransformer):
        for index, layer in enumerate(core.layers):
            sizes = (layer.sizes.compressed, layer.sizes.memory, layer.sizes.segment)
            weights, slots = (np.stack(parts) for parts in zip(*((s.weights[index], s.slots[index]) for s in steps)))
            attention.append(Attention(sizes, weights, slots))
    names = metadata.get("action_names") or map(str, range(actor.agent.num_actions))
    poses = [step.pose for step in steps if step.pose is not None]
    return Recording(
        episode=episode,
        observations=np.stack([step.observation for step in steps]),
        actions=np.array([step.action for step in steps]),
        values=np.array([step.value for step in steps], np.float32),
        rewards=np.array([step.reward for step in steps], np.float32),
        attention=tuple(attention),
        mass=np.stack([step.mass for step in steps]),
        poses=np.stack(poses) if poses else None,
        action_names=tuple(names),
        fps=float(metadata.get("render_fps", 15)),
        floor_plan=metadata.get("floor_plan"),
    )
