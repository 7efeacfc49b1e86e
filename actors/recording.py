"""Recordings of episodes: observations, actions, values, rewards and attention of every step.

An ordinary actor plays them. `reports/` makes videos and pages of recordings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from actors.actor import Actor, Episode
from actors.config import MAX_EPISODE_STEPS
from actors.evaluation import check_length
from agent.core import CompressiveTransformer, State, Transformer, map_state
from agent.core.config import RoutedSizes
from agent.trajectory import image_of
from envs import guard
from envs.outputs import described, is_picture

COUNTERS = ("correct_choices", "wrong_choices")
"""Counters of an episode that environments with right and wrong choices have."""
MOST_FRAMES = 16
"""Frames of a step beyond which the views between steps are not recorded."""
RENDERED, RENDERED_STEPS = 200, 3000
"""Most lines of what environments draw of themselves (larger pictures are made smaller), and most steps."""


class Compressed(NamedTuple):
    """What the first layer compressed of an episode. K slots of c steps.

    slots: [K, D] float32. steps: [K, c], the steps in each. inputs: [K, c, D], the core's inputs at these steps.
    """

    slots: np.ndarray
    steps: np.ndarray
    inputs: np.ndarray


class Attention(NamedTuple):
    """Attention of one layer at each step of an episode. T steps, H heads, S key slots.

    sizes: numbers of slots of each of the core's kinds, which are in this order, oldest first.
    weights: [T, H, S] float32, with sum 1 over the slots.
    steps: [T, S, 2] int64, the first and the last step of the episode in a slot; -1 if there is none.
    rings: groups, clusters and window of the routed slots, which are first; None if the layer has none.
    """

    sizes: tuple[int, int, int]
    weights: np.ndarray
    steps: np.ndarray
    rings: tuple[int, int, int] | None = None

    def by_step(self) -> np.ndarray:
        """Mean over heads of the attention of each step to each step of the episode, [T, T].

        The attention to a compressed slot is divided equally among its steps.
        """
        time = len(self.weights)
        first, last = self.steps[..., 0], self.steps[..., 1]
        held = first >= 0
        share = np.where(held, self.weights.mean(axis=1) / (last - first + 1), 0.0)
        # The cumulative sum adds a slot's share at its first step and removes it after its last.
        changes = np.zeros((time, time + 1))
        rows = np.broadcast_to(np.arange(time)[:, None], first.shape)[held]
        np.add.at(changes, (rows, first[held]), share[held])
        np.add.at(changes, (rows, last[held] + 1), -share[held])
        return changes.cumsum(axis=1)[:, :-1]


@dataclass(frozen=True)
class Recording:
    """One episode. T steps, L layers, H heads.

    episode: its score and counters.
    observations: before each action: [T, D] float32, or [T, height, width, channels] uint8.
    actions, values, rewards: [T] the action, the value before it (in the learner's units) and the reward after it (in
        the environment's).
    probabilities: [T, A] of the actions, by the policy.
    choices: [T] 1 where the action led to a correct choice, -1 to a wrong one, by the environment's counters; else 0.
    attention: one per layer; empty for cores without attention.
    mass: [T, L, H, 3] the attention on each of `kinds`.
    kinds: the core's kinds of slots, such as compressed, memory and segment; empty for cores without attention.
    poses: [T, 4] x, y, yaw in degrees and room before each action; None if the environment has no `poses`.
    situations: for each of the T steps what the environment knows of it beside the observation, by name: words, such as
        the right object, or words with the x and y of what they name; None if it has no `situations`.
    renderings: [at most RENDERED_STEPS, height, width, 3] uint8 what the environment's `render()` draws before each
        action; None if it was not made for that (see `envs.drawing`).
    otherwise: [T] of the action taken the probability that it would have had, had the example of the choice been its
        other object; NaN outside of rooms of choices and after the choice, whose reward would have been the other as
        well. None if that was not asked for, or the environment has no `counterfactuals`.
    apart: [T] in rooms of choices, how far what the core received since the choice before would have been from what it
        was, had the example been the other: root mean square over the steps whose views differ, in units of the
        distance between two steps of the episode; 0 if no view differs. NaN and None as `otherwise`.
    entered: [T] the step at which the room of this choice was entered; -1 where `otherwise` is NaN. None as it.
    between: [at most RENDERED_STEPS, K, height, width, channels] uint8 the views between each observation and the next;
        None if they were not asked for, or the environment has no `between`.
    compressed: None if the first layer compressed nothing of the episode.
    reconstructions: [T, height, width, channels] uint8 the small images that the agent predicts from the inputs of
        its core; None if it was not trained to, or sees no images.
    action_names: one for each action.
    fps: agent steps per second of real time.
    floor_plan: to draw `poses` on; see `envs.rooms.level.floor_plan`.
    rule: of the task, in words; empty if the environment's metadata have none.
    """

    episode: Episode
    observations: np.ndarray
    actions: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    probabilities: np.ndarray
    choices: np.ndarray
    attention: tuple[Attention, ...]
    mass: np.ndarray
    kinds: tuple[str, ...]
    poses: np.ndarray | None
    situations: tuple[dict[str, Any], ...] | None
    renderings: np.ndarray | None
    between: np.ndarray | None
    otherwise: np.ndarray | None
    apart: np.ndarray | None
    entered: np.ndarray | None
    compressed: Compressed | None
    reconstructions: np.ndarray | None
    action_names: tuple[str, ...]
    fps: float
    floor_plan: dict[str, Any] | None
    rule: str

    @property
    def returns(self) -> np.ndarray:
        """[T] the sum of rewards before each action."""
        return np.concatenate([[0.0], self.rewards.cumsum()[:-1]])


def record_episodes(
    actor: Actor, episodes: int, max_steps: int = MAX_EPISODE_STEPS, in_detail: bool = True
) -> list[Recording]:
    """Plays and records complete episodes in the actor's first environment.

    The actor is at the start of an episode; `max_steps` is that of `play_episodes`. `in_detail` asks for what takes
    longer: what the agent would have done otherwise, and the views between steps, but not where a step has more than
    MOST_FRAMES frames.
    """
    agent = actor.agent
    counterfactuals = getattr(actor.envs, "counterfactuals", None) if in_detail else None
    every_frame = in_detail and actor.envs.metadata.get("action_repeat", 1) <= MOST_FRAMES
    images = image_of(actor.env_output.observation).ndim > 2
    reconstruct = agent.reconstruction.picture if agent.reconstruction and images else None
    recordings: list[Recording] = []
    steps: list[dict[str, Any]] = []
    with actor.acting():
        while len(recordings) < episodes:
            resets = bool(actor.over[0])  # this step only resets the environment: it belongs to no episode
            given, before = actor.env_output, actor.core_state
            if not steps:
                begin = map_state(torch.clone, agent.core.without_cache(before))  # acting writes into the cache
            pose, situation = _ask(actor, "poses"), _ask(actor, "situations")
            state = actor.envs.get_state() if counterfactuals else None  # type: ignore[attr-defined]
            early = len(steps) < RENDERED_STEPS
            rendering = _render(actor) if early else None
            action, output = actor.act(return_attention=True)
            views = _ask(actor, "between", action.numpy()) if every_frame and early and not resets else None
            ended = actor.step(action)
            check_length(actor, np.arange(actor.envs.num_envs) == 0, max_steps)
            if resets:
                continue
            weights, slots, mass = _attention(agent.core, before, output.attention, len(steps))
            steps.append(
                {
                    "observation": image_of(given.observation)[0].numpy(),
                    "given": given,
                    "state": state,
                    "action": int(action[0]),
                    "value": float(output.value[0, 0].flatten()[0]),  # of the first task
                    "reward": float(actor.env_output.reward[0]),
                    "probabilities": torch.softmax(output.policy_logits[0, 0].float(), dim=-1).cpu().numpy(),
                    "counts": [
                        float(actor.infos[name][0]) if name in actor.episode_metrics else 0.0 for name in COUNTERS
                    ],
                    "weights": weights,
                    "slots": slots,
                    "mass": mass,
                    "pose": pose,
                    "situation": situation,
                    "rendering": rendering,
                    "between": views,
                    "input": output.inputs[0, 0].float().cpu().numpy(),
                    "compressed": _compressed(agent.core, before, slots),
                    "reconstruction": reconstruct and reconstruct(output.inputs[0, :1]).cpu().numpy()[0],
                }
            )
            for episode in ended:
                if episode.environment == 0:
                    supposed = _suppose(actor, counterfactuals, begin, steps) if counterfactuals else (None,) * 3
                    recordings.append(_join(steps, episode, actor, *supposed))
                    steps = []
    return recordings


def _suppose(
    actor: Actor, counterfactuals: Callable[..., Any], begin: State, steps: list[dict[str, Any]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`otherwise`, `apart` and `entered` of an episode's recording, given the core's state before it."""
    otherwise, apart = np.full((2, len(steps)), np.nan, np.float32)
    entries = np.full(len(steps), -1)
    names = "last_action", "reward", "reset"
    inputs = [torch.stack([getattr(step["given"], name)[:1] for step in steps], dim=1) for name in names]
    first = map_state(lambda leaf: leaf[:1], begin)
    received, seen = np.stack([step["input"] for step in steps]), np.stack([step["observation"] for step in steps])
    unit = np.sqrt(2 * received.var(axis=0).sum())  # the root mean square distance of two steps
    chosen = np.diff([sum(step["counts"]) for step in steps], prepend=0.0) > 0
    since = 0
    for entered, views in counterfactuals([step["state"] for step in steps]):
        # The agent is given the rewards of the episode. Up to the choice they do not depend on its example; that of the
        # choice does. It would say what the example was, and what is asked is whether memory does.
        choices = entered + np.flatnonzero(chosen[entered : len(views)])
        until = choices[0] + 1 if len(choices) else len(views)
        given = (each[:, :until].to(actor.device) for each in inputs)
        output = actor.agent(torch.from_numpy(views[:until])[None].to(actor.device), *given, first)
        taken = torch.tensor([step["action"] for step in steps[entered:until]])
        chances = output.policy_logits[0, entered:].float().softmax(dim=-1).cpu()
        otherwise[entered:until] = chances[torch.arange(len(taken)), taken].numpy()
        changed = views[since:entered] != seen[since:entered]
        differ = since + np.flatnonzero(changed.any(axis=tuple(range(1, changed.ndim))))
        far = output.inputs[0, differ].float().cpu().numpy() - received[differ]
        apart[entered:until] = np.sqrt(np.square(far).sum() / max(1, len(differ))) / max(unit, 1e-9)
        entries[entered:until] = entered
        since = len(views)
    return otherwise, apart, entries


def _ask(actor: Actor, name: str, *arguments: Any) -> Any:
    """What a method that only recordings call returns for the first environment; None if there is no such method."""
    method = getattr(actor.envs, name, None)
    with guard.calling(actor.name, f"in {name}"):
        return method and method(*arguments)[0]


def _render(actor: Actor) -> np.ndarray | None:
    """What the first environment draws of itself, [height, width, 3] uint8 with at most `RENDERED` lines."""
    if actor.envs.render_mode != "rgb_array":
        return None
    picture = _ask(actor, "render")
    with guard.calling(actor.name, "in render"):
        if not is_picture(picture):
            raise guard.OutputError(f"render: expected uint8 [height, width, 3], got {described(picture)}")
    drawn = Image.fromarray(picture)
    drawn.thumbnail((2 * RENDERED, RENDERED))
    return np.asarray(drawn)


def _attention(
    core: torch.nn.Module, state: State, weights: tuple[torch.Tensor, ...] | None, step: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Weights, steps of slots and mass by kind of the first row at a step of its episode, given the state before."""
    if weights is None or not isinstance(core, Transformer):
        return (), (), np.zeros((0, 0, 3))
    slots = []
    for layer in range(len(weights)):
        ages = core.slot_ages(layer, state)[0].cpu()
        absent = (ages[:, 1] > step) | (ages[:, 1] < 0)
        slots.append((step - ages).clamp(min=0).masked_fill(absent[:, None], -1).numpy())
    mass = core.attention_by_kind(weights)[:, 0, :, 0].cpu().numpy()
    return tuple(layer[0, :, 0].cpu().numpy() for layer in weights), tuple(slots), mass


def _compressed(
    core: torch.nn.Module, state: Any, slots: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The slots that the first row's last segment added to the first layer, and their steps; see `Compressed`.

    Given the first and the last step of its slots.
    """
    if not isinstance(core, CompressiveTransformer) or state.offset or not core.layers[0].sizes.compressed:
        return None
    n_s, _, count, rate = core.layers[0].sizes
    new = np.arange(max(0, count - n_s // rate), count)
    first, last = slots[0][new].T
    whole = (first >= 0) & (last - first == rate - 1)  # of this episode
    return state.compressed[0][0].float().cpu().numpy()[new[whole]], first[whole, None] + np.arange(rate)


def _join(
    steps: list[dict[str, Any]],
    episode: Episode,
    actor: Actor,
    otherwise: np.ndarray | None,
    apart: np.ndarray | None,
    entered: np.ndarray | None,
) -> Recording:
    metadata, core, attention = actor.envs.metadata, actor.agent.core, []
    of = SimpleNamespace(**{name: tuple(step[name] for step in steps) for name in steps[0]})
    new = [part for part in of.compressed if part is not None and len(part[0])]
    compressed = None
    if new:
        filled, held = map(np.concatenate, zip(*new))
        compressed = Compressed(filled, held, np.stack(of.input)[held])
    if isinstance(core, Transformer):
        for layer, weights, slots in zip(core.layers, zip(*of.weights), zip(*of.slots)):
            sizes = layer.sizes
            rings = sizes[2:] if isinstance(sizes, RoutedSizes) and sizes.window else None
            attention.append(Attention(sizes.by_kind, np.stack(weights), np.stack(slots), rings))
    right, wrong = np.diff(of.counts, axis=0, prepend=0.0).T
    return Recording(
        episode=episode,
        observations=np.stack(of.observation),
        actions=np.array(of.action),
        values=np.array(of.value, np.float32),
        rewards=np.array(of.reward, np.float32),
        probabilities=np.stack(of.probabilities),
        choices=(right - wrong).astype(int),
        attention=tuple(attention),
        mass=np.stack(of.mass),
        kinds=core.attention_kinds if isinstance(core, Transformer) else (),
        poses=_stack(of.pose),
        situations=None if of.situation[0] is None else of.situation,
        renderings=_stack(of.rendering),
        between=_stack(of.between),
        otherwise=otherwise,
        apart=apart,
        entered=entered,
        compressed=compressed,
        reconstructions=_stack(of.reconstruction),
        action_names=tuple(metadata.get("action_names") or map(str, range(actor.agent.num_actions))),
        fps=float(metadata.get("render_fps", 15)),
        floor_plan=metadata.get("floor_plan"),
        rule=str(metadata.get("rule") or ""),
    )


def _stack(arrays: Sequence[Any]) -> np.ndarray | None:
    return None if arrays[0] is None else np.stack([array for array in arrays if array is not None])
