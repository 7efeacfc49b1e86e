"""Recordings of episodes: observations, actions, values, rewards and attention of every step.

An ordinary actor plays them. `reports/` makes videos and pages of recordings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image

from actors.actor import Actor, Episode
from actors.config import MAX_EPISODE_STEPS
from actors.evaluation import check_length
from agent import AgentOutput, EnvOutput
from agent.core import CompressiveTransformer, State, Transformer, leaves, map_state
from agent.core.config import RoutedSizes
from agent.policies import Shown
from agent.trajectory import image_of, sensed_of
from envs import guard
from envs.actions import ActionVector, Part
from envs.outputs import described, is_picture

COUNTERS = ("correct_choices", "wrong_choices")
"""Counters of an episode that environments with right and wrong choices have."""
MOST_FRAMES = 16
"""Frames of a step beyond which the views between steps are not recorded."""
RENDERED = 200
"""Most lines of what environments draw of themselves; larger pictures are made smaller."""
RENDERED_STEPS = 3000
"""Most steps of an episode of which environments draw something."""


Situation = dict[str, Any]
"""What an environment knows of a step beside the observation, by name: words, or words with an x and a y."""
Counterfactuals = Callable[[list[object]], Iterable[tuple[int, np.ndarray]]]
"""A method of environments. Given their state before each step of an episode, it yields for each choice the step at
which its room was entered, and what would have been seen from the first step up to the choice, had its example been the
other object: [at most T, ...]."""


class Compressed(NamedTuple):
    """What the first layer compressed of an episode. K slots of c steps.

    slots: [K, D] float32.
    steps: [K, c], the steps in each.
    inputs: [K, c, D], the core's inputs at these steps.
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
        first = self.steps[..., 0]
        last = self.steps[..., 1]
        held = first >= 0
        length = last - first + 1
        share = np.where(held, self.weights.mean(axis=1) / length, 0.0)
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
    observations: before each action: [T, D] float32, or [T, height, width, channels] uint8; of several parts the first.
    more_observations: of several parts the others, of the same form: images first, then a vector if there is one; else
        none.
    observation_names: of all parts, if there are several; else none.
    actions: [T] int64 of Discrete spaces; else [T, K] float32, as the environment received them.
    values, rewards: [T] the value before the action (in the learner's units) and the reward after it (in the
        environment's).
    probabilities: [T, A] of the actions, by the policy; of a vector, those of all values of all its choices.
    means, scales: [T, N] of the numbers of a vector by the policy; see `agent.policies.Shown`.
    choices: [T] 1 where the action led to a correct choice, -1 to a wrong one, by the environment's counters; else 0.
    attention: one per layer; empty for cores without attention.
    mass: [T, L, H, 3] the attention on each of `kinds`.
    kinds: the core's kinds of slots, such as compressed, memory and segment; empty for cores without attention.
    poses: [T, 4] x, y, yaw in degrees and room before each action; None if the environment has no `poses`.
    situations: for each of the T steps what the environment knows of it beside the observation, by name: words, such as
        the right object, or words with the x and y of what they name; None if it has no `situations`.
    renderings: [at most RENDERED_STEPS, height, width, 3] uint8 what the environment's `render()` draws before each
        action; None if it was not made for that (see `envs.drawing`).
    otherwise: [T] the counterfactual probability of the action taken: with the example of the choice swapped for its
        other object. NaN outside of rooms of choices, and after the choice, whose reward would differ as well. None if
        that was not asked for, the environment has no `counterfactuals`, or its actions are vectors or its observations
        several parts or words.
    apart: [T] in rooms of choices, how much the core's inputs since the previous choice differ from the counterfactual
        ones: root mean square over the steps whose views differ, in units of the distance between two steps of the
        episode; 0 if no view differs. NaN and None as `otherwise`.
    entered: [T] the step at which the room of this choice was entered; -1 where `otherwise` is NaN, None where it is.
    between: [at most RENDERED_STEPS, K, height, width, channels] uint8 the views between each observation and the next;
        None if they were not asked for, or the environment has no `between`.
    compressed: None if the first layer compressed nothing of the episode.
    reconstructions: [T, height, width, channels] uint8 the small images that the agent predicts from the inputs of
        its core; None if it was not trained to, or sees no images.
    action_names: one for each action of a Discrete space; of a vector one for each column.
    parts: those of an action that is a vector, in the order of its columns; else none. See `envs.actions`.
    fps: agent steps per second of real time.
    floor_plan: to draw `poses` on; see `envs.rooms.level.floor_plan`.
    rule: of the task, in words; empty if the environment's metadata have none.
    """

    episode: Episode
    observations: np.ndarray
    more_observations: tuple[np.ndarray, ...]
    observation_names: tuple[str, ...]
    actions: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    probabilities: np.ndarray
    means: np.ndarray
    scales: np.ndarray
    choices: np.ndarray
    attention: tuple[Attention, ...]
    mass: np.ndarray
    kinds: tuple[str, ...]
    poses: np.ndarray | None
    situations: tuple[Situation, ...] | None
    renderings: np.ndarray | None
    between: np.ndarray | None
    otherwise: np.ndarray | None
    apart: np.ndarray | None
    entered: np.ndarray | None
    compressed: Compressed | None
    reconstructions: np.ndarray | None
    action_names: tuple[str, ...]
    parts: tuple[Part, ...]
    fps: float
    floor_plan: dict[str, Any] | None
    rule: str

    @property
    def returns(self) -> np.ndarray:
        """[T] the sum of rewards before each action."""
        return np.concatenate([[0.0], self.rewards.cumsum()[:-1]])


class _StepAttention(NamedTuple):
    """Attention of the first row at one step: per layer the weights [H, S] and the steps of the slots [S, 2]; and the
    mass by kind [L, H, 3]."""

    weights: tuple[np.ndarray, ...]
    slots: tuple[np.ndarray, ...]
    mass: np.ndarray


class _Counterfactual(NamedTuple):
    """Fields of a `Recording`; see there."""

    otherwise: np.ndarray | None = None
    apart: np.ndarray | None = None
    entered: np.ndarray | None = None


class _Step(NamedTuple):
    """What is recorded of one step. Most fields are those of `Recording` at this step.

    observation: of the first environment, of one or several parts.
    given: what the agent received, of all rows.
    state: of the environments before the action; None if it is not needed.
    counts: the counters of `COUNTERS` after the step.
    input: [D] of the core.
    compressed: the slots that this step's segment began with and their steps; see `_compressed`.
    """

    observation: tuple[np.ndarray, ...]
    given: EnvOutput
    state: object
    action: np.ndarray
    value: float
    reward: float
    policy: Shown
    counts: list[float]
    attention: _StepAttention
    pose: np.ndarray | None
    situation: Situation | None
    rendering: np.ndarray | None
    between: np.ndarray | None
    input: np.ndarray
    compressed: tuple[np.ndarray, np.ndarray] | None
    reconstruction: np.ndarray | None


def record_episodes(
    actor: Actor, episodes: int, max_steps: int = MAX_EPISODE_STEPS, in_detail: bool = True
) -> list[Recording]:
    """Plays and records complete episodes in the actor's first environment.

    The actor is at the start of an episode; `max_steps` is that of `play_episodes`. `in_detail` asks for what takes
    longer: counterfactuals, and the views between steps, but not where a step has more than MOST_FRAMES frames.
    """
    recorder = _Recorder(actor, max_steps, in_detail)
    recordings: list[Recording] = []
    with actor.acting():
        while len(recordings) < episodes:
            episode = recorder.play()
            if episode is not None:
                recordings.append(recorder.finish(episode))
    return recordings


class _Recorder:
    """Plays an actor step by step, and notes what a `Recording` has of each. Only within the actor's `acting`."""

    def __init__(self, actor: Actor, max_steps: int, in_detail: bool) -> None:
        self.actor = actor
        self.max_steps = max_steps
        self.steps: list[_Step] = []
        self.begin: State = None  # of the core, before the episode

        envs = actor.envs
        self.counterfactuals: Counterfactuals | None = None
        is_one_choice = isinstance(envs.single_action_space, spaces.Discrete)
        is_one_part = isinstance(actor.env_output.observation, torch.Tensor)
        if in_detail and is_one_choice and is_one_part:
            self.counterfactuals = getattr(envs, "counterfactuals", None)
        self.every_frame = in_detail and envs.metadata.get("action_repeat", 1) <= MOST_FRAMES

        self.reconstruct: Callable[[torch.Tensor], torch.Tensor] | None = None
        sees_images = image_of(actor.env_output.observation).ndim > 2
        if actor.agent.reconstruction is not None and sees_images:
            self.reconstruct = actor.agent.reconstruction.picture

    def play(self) -> Episode | None:
        """One step of all environments; returns the first one's episode if it has ended."""
        actor = self.actor
        core = actor.agent.core
        given = actor.env_output
        before = actor.core_state
        resets = bool(actor.over[0])  # this step only resets the environment: it belongs to no episode
        if not self.steps:
            # A copy, because acting writes into the cache.
            self.begin = map_state(torch.clone, core.without_cache(before))

        # What there is to know before the action.
        pose = _ask(actor, "poses")
        situation = _ask(actor, "situations")
        state = None
        if self.counterfactuals is not None:
            state = actor.envs.get_state()  # type: ignore[attr-defined]
        early = len(self.steps) < RENDERED_STEPS
        rendering = _render(actor) if early else None

        action, output = actor.act(return_attention=True)
        between = None
        if self.every_frame and early and not resets:
            between = _ask(actor, "between", actor.agent.distribution.effect(action).numpy())
        ended = actor.step(action)
        check_length(actor, np.arange(actor.envs.num_envs) == 0, self.max_steps)
        if resets:
            return None

        # What the agent made of it: the first row at the only step.
        policy = actor.agent.distribution
        shown = policy.show(output.policy_parameters[0, 0].float().cpu())
        attention = _attention(core, before, output.attention, len(self.steps))
        self.steps.append(
            _Step(
                observation=tuple(part[0].numpy() for part in leaves(sensed_of(given.observation))),
                given=given,
                state=state,
                action=policy.effect(action)[0].numpy(),
                value=float(output.value[0, 0].flatten()[0]),  # of the first task
                reward=float(actor.env_output.reward[0]),
                policy=shown,
                counts=self._counts(),
                attention=attention,
                pose=pose,
                situation=situation,
                rendering=rendering,
                between=between,
                input=output.inputs[0, 0].float().cpu().numpy(),
                compressed=_compressed(core, before, attention.slots),
                reconstruction=self._reconstruction(output),
            )
        )
        for episode in ended:
            if episode.environment == 0:
                return episode
        return None

    def _counts(self) -> list[float]:
        """The counters of right and wrong choices in the episode so far; 0 if the environment has none."""
        counts = []
        for name in COUNTERS:
            counted = name in self.actor.episode_metrics
            counts.append(float(self.actor.infos[name][0]) if counted else 0.0)
        return counts

    def _reconstruction(self, output: AgentOutput) -> np.ndarray | None:
        """The image that the agent predicts from the input of its core."""
        if self.reconstruct is None:
            return None
        return self.reconstruct(output.inputs[0, :1]).cpu().numpy()[0]

    def finish(self, episode: Episode) -> Recording:
        """The recording of the episode that has just ended."""
        counterfactual = _Counterfactual()
        if self.counterfactuals is not None:
            counterfactual = _suppose(self.actor, self.counterfactuals, self.begin, self.steps)
        recording = _join(self.steps, episode, self.actor, counterfactual)
        self.steps = []
        return recording


def _suppose(actor: Actor, counterfactuals: Counterfactuals, begin: State, steps: list[_Step]) -> _Counterfactual:
    """Plays an episode's actions again with other examples, given the core's state before the episode."""
    otherwise = np.full(len(steps), np.nan, np.float32)
    apart = np.full(len(steps), np.nan, np.float32)
    entries = np.full(len(steps), -1)

    # What the agent was given beside the views, [1, T]. It stays the same.
    last_action = torch.stack([step.given.last_action[:1] for step in steps], dim=1)
    reward = torch.stack([step.given.reward[:1] for step in steps], dim=1)
    reset = torch.stack([step.given.reset[:1] for step in steps], dim=1)
    first = map_state(lambda leaf: leaf[:1], begin)

    received = np.stack([step.input for step in steps])
    seen = np.stack([step.observation[0] for step in steps])
    unit = np.sqrt(2 * received.var(axis=0).sum())  # the root mean square distance of two steps
    chosen = np.diff([sum(step.counts) for step in steps], prepend=0.0) > 0
    since = 0  # the end of the room before
    for entered, views in counterfactuals([step.state for step in steps]):
        # The agent is given the rewards of the episode. Up to the choice they do not depend on its example; that of the
        # choice does. It would say what the example was, and what is asked is whether memory does.
        choices = entered + np.flatnonzero(chosen[entered : len(views)])
        until = choices[0] + 1 if len(choices) else len(views)
        output = actor.agent(
            torch.from_numpy(views[:until])[None].to(actor.device),
            last_action[:, :until].to(actor.device),
            reward[:, :until].to(actor.device),
            reset[:, :until].to(actor.device),
            first,
        )

        # The probabilities of the actions that were taken in this room.
        taken = torch.tensor([int(step.action) for step in steps[entered:until]])
        chances = actor.agent.distribution.show(output.policy_parameters[0, entered:].float().cpu()).probabilities
        otherwise[entered:until] = chances[torch.arange(len(taken)), taken].numpy()

        # How different the core's inputs are, over the steps before this room whose views differ.
        changed = views[since:entered] != seen[since:entered]
        pixels = tuple(range(1, changed.ndim))
        differ = since + np.flatnonzero(changed.any(axis=pixels))
        far = output.inputs[0, differ].float().cpu().numpy() - received[differ]
        distance = np.sqrt(np.square(far).sum() / max(1, len(differ)))
        apart[entered:until] = distance / max(unit, 1e-9)
        entries[entered:until] = entered
        since = len(views)
    return _Counterfactual(otherwise, apart, entries)


def _ask(actor: Actor, name: str, *arguments: object) -> Any:
    """What a method that only recordings call returns for the first environment; None if there is no such method."""
    method = getattr(actor.envs, name, None)
    if method is None:
        return None
    with guard.calling(actor.name, f"in {name}"):
        return method(*arguments)[0]


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
) -> _StepAttention:
    """The attention at a step of the episode, given the core's state before it."""
    if weights is None or not isinstance(core, Transformer):
        return _StepAttention((), (), np.zeros((0, 0, 3)))
    slots = []
    for layer in range(len(weights)):
        ages = core.slot_ages(layer, state)[0].cpu()
        newest = ages[:, 1]
        absent = (newest > step) | (newest < 0)  # of another episode, or empty
        steps = (step - ages).clamp(min=0).masked_fill(absent[:, None], -1)
        slots.append(steps.numpy())
    by_layer = [layer[0, :, 0].cpu().numpy() for layer in weights]
    mass = core.attention_by_kind(weights)[:, 0, :, 0].cpu().numpy()
    return _StepAttention(tuple(by_layer), tuple(slots), mass)


def _compressed(
    core: torch.nn.Module, state: State, slots: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The slots that the last segment added to the first layer, and their steps; see `Compressed`.

    Given, of each layer, the first and the last step of its slots. None within a segment."""
    if not isinstance(core, CompressiveTransformer) or state.offset or not core.layers[0].sizes.compressed:
        return None
    sizes = core.layers[0].sizes
    added = sizes.segment // sizes.rate
    new = np.arange(max(0, sizes.compressed - added), sizes.compressed)
    first, last = slots[0][new].T
    whole = (first >= 0) & (last - first == sizes.rate - 1)  # all steps are of this episode
    filled = state.compressed[0][0].float().cpu().numpy()[new[whole]]
    return filled, first[whole, None] + np.arange(sizes.rate)


def _join(steps: list[_Step], episode: Episode, actor: Actor, counterfactual: _Counterfactual) -> Recording:
    """The recording of an episode's steps."""
    core = actor.agent.core
    metadata = actor.envs.metadata
    situations = None
    if steps[0].situation is not None:
        situations = tuple(step.situation or {} for step in steps)
    choices = np.diff([step.counts for step in steps], axis=0, prepend=0.0)  # right and wrong ones
    parts_of_steps = zip(*(step.observation for step in steps), strict=True)
    first, *others = [np.stack(part) for part in parts_of_steps]
    return Recording(
        episode=episode,
        observations=first,
        more_observations=tuple(others),
        observation_names=tuple(metadata.get("observation_names") or ()) if others else (),
        actions=np.stack([step.action for step in steps]),
        values=np.array([step.value for step in steps], np.float32),
        rewards=np.array([step.reward for step in steps], np.float32),
        probabilities=np.stack([step.policy.probabilities.numpy() for step in steps]),
        means=np.stack([step.policy.means.numpy() for step in steps]),
        scales=np.stack([step.policy.scales.numpy() for step in steps]),
        choices=(choices[:, 0] - choices[:, 1]).astype(int),
        attention=_join_attention(core, steps),
        mass=np.stack([step.attention.mass for step in steps]),
        kinds=core.attention_kinds if isinstance(core, Transformer) else (),
        poses=_stack(step.pose for step in steps),
        situations=situations,
        renderings=_stack(step.rendering for step in steps),
        between=_stack(step.between for step in steps),
        otherwise=counterfactual.otherwise,
        apart=counterfactual.apart,
        entered=counterfactual.entered,
        compressed=_join_compressed(steps),
        reconstructions=_stack(step.reconstruction for step in steps),
        action_names=_action_names(actor),
        parts=tuple(getattr(actor.envs.single_action_space, "parts", ())),
        fps=float(metadata.get("render_fps", 15)),
        floor_plan=metadata.get("floor_plan"),
        rule=str(metadata.get("rule") or ""),
    )


def _action_names(actor: Actor) -> tuple[str, ...]:
    """A name for each action of a Discrete space, or for each column of a vector.

    If the environment has none, those are their numbers, and the names of the parts."""
    names = actor.envs.metadata.get("action_names")
    space = actor.envs.single_action_space
    if isinstance(space, ActionVector):
        return tuple(names or space.column_names)
    return tuple(names or map(str, range(actor.agent.distribution.num_parameters)))


def _join_attention(core: torch.nn.Module, steps: Sequence[_Step]) -> tuple[Attention, ...]:
    """The attention of each layer; empty for cores without attention."""
    if not isinstance(core, Transformer):
        return ()
    found = []
    for index, layer in enumerate(core.layers):
        sizes = layer.sizes
        rings = None
        if isinstance(sizes, RoutedSizes) and sizes.window:
            rings = (sizes.groups, sizes.clusters, sizes.window)
        weights = np.stack([step.attention.weights[index] for step in steps])
        slots = np.stack([step.attention.slots[index] for step in steps])
        found.append(Attention(sizes.by_kind, weights, slots, rings))
    return tuple(found)


def _join_compressed(steps: Sequence[_Step]) -> Compressed | None:
    """What the first layer compressed; None if nothing."""
    slots: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for step in steps:
        if step.compressed is not None and len(step.compressed[0]):
            filled, their_steps = step.compressed
            slots.append(filled)
            held.append(their_steps)
    if not slots:
        return None
    numbers = np.concatenate(held)
    inputs = np.stack([step.input for step in steps])
    return Compressed(np.concatenate(slots), numbers, inputs[numbers])


def _stack(arrays: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """The arrays of those steps that have one; None if no step does."""
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    return np.stack(present)
