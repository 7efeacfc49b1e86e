"""Plays episodes with an ordinary actor, and records every step of them; see `actors.recording.Recording`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image

from actors.actor import Actor, Episode
from actors.causes import Effects, effects
from actors.config import MAX_EPISODE_STEPS
from actors.evaluation import CHOICES, check_length
from actors.interface import action_names
from actors.recording import RENDERED_STEPS, Attention, Compressed, Recording, Situation
from agent import AgentOutput, EnvOutput
from agent.core import CompressiveTransformer, State, Transformer, leaves, map_state, state_to
from agent.core.config import LayerSizes
from agent.policies import PolicySummary
from agent.trajectory import Observation, image_of, sensed_of
from envs import guard
from envs.outputs import describe_value, is_picture

MOST_FRAMES = 16
"""Frames of a step beyond which the views between steps are not recorded."""
RENDERED = 200
"""Most lines of what environments draw of themselves; larger pictures are made smaller."""

Counterfactuals = Callable[[list[object]], Iterable[tuple[int, np.ndarray]]]
"""A method of environments. Given their state before each step of an episode, it yields for each choice the step at
which its room was entered, and what would have been seen from the first step up to the choice, had its example been the
other object: [at most T, ...]."""


class _StepAttention(NamedTuple):
    """Attention of the first row at one step.

    weights: [H, S] of each layer.
    slots: [S, 2] the first and the last step of each layer's slots.
    by_kind: [L, H, 3] the attention on each kind of slots.
    """

    weights: tuple[np.ndarray, ...]
    slots: tuple[np.ndarray, ...]
    by_kind: np.ndarray


class _Counterfactual(NamedTuple):
    """What a `Recording` has of choices with another example; see there."""

    probabilities: np.ndarray | None = None
    distances: np.ndarray | None = None
    room_entries: np.ndarray | None = None


class _Step(NamedTuple):
    """What is recorded of one step. Most fields are those of `Recording` at this step.

    observation: of the first environment, of one or several parts.
    given: what the agent received, of all rows.
    state: of the environments before the action; None if it is not needed.
    counts: the counters of `CHOICES` after the step.
    input: [D] of the core.
    compressed: the slots that this step's segment began with and their steps; see `_compressed`.
    """

    observation: tuple[np.ndarray, ...]
    given: EnvOutput
    state: object
    action: np.ndarray
    value: float
    reward: float
    policy: PolicySummary
    counts: list[float]
    attention: _StepAttention
    pose: np.ndarray | None
    situation: Situation | None
    instruction: str | None
    rendering: np.ndarray | None
    views_between: np.ndarray | None
    effects: Effects | None
    input: np.ndarray
    compressed: tuple[np.ndarray, np.ndarray] | None
    reconstruction: np.ndarray | None


def record_episodes(
    actor: Actor,
    episodes: int,
    max_steps: int = MAX_EPISODE_STEPS,
    in_detail: bool = True,
    with_effects: bool = False,
    progress: Callable[[int, int], None] = lambda finished, step: None,
    value_column: int = 0,
) -> list[Recording]:
    """Plays and records complete episodes in the actor's first environment.

    Args:
        actor: at the start of an episode.
        max_steps: see `play_episodes`.
        in_detail: also record counterfactuals, and the views between steps, but not where a step has more than
            MOST_FRAMES frames. Films are smooth with these views.
        with_effects: also compute at each step what memory caused, see `actors.causes`. Pages show it, films do not,
            and a step takes about twice as long.
        progress: called after each step with the number of finished episodes, and of steps in the present one.
        value_column: which value is recorded, if the agent has one for each of several tasks.
    """
    recorder = _Recorder(actor, max_steps, in_detail, with_effects, value_column)
    recordings: list[Recording] = []
    with actor.acting():
        while len(recordings) < episodes:
            episode = recorder.play()
            if episode is not None:
                recording = recorder.finish(episode)
                recordings.append(recording)
            progress(len(recordings), len(recorder.steps))
    return recordings


class _Recorder:
    """Plays an actor step by step, and notes what a `Recording` has of each. Only within the actor's `acting`."""

    def __init__(self, actor: Actor, max_steps: int, in_detail: bool, with_effects: bool, value_column: int) -> None:
        self.actor = actor
        self.max_steps = max_steps
        self.value_column = value_column
        # Only the slots of a transformer can be left out one after the other.
        self.with_effects = with_effects and isinstance(actor.agent.core, Transformer)
        self.steps: list[_Step] = []
        self.begin: State = None  # of the core, before the episode

        # Counterfactuals exchange one view for another, and ask for the probability of one action.
        envs = actor.envs
        self.counterfactuals: Counterfactuals | None = None
        is_one_choice = isinstance(envs.single_action_space, spaces.Discrete)
        is_one_part = isinstance(actor.env_output.observation, torch.Tensor)
        if in_detail and is_one_choice and is_one_part:
            self.counterfactuals = getattr(envs, "counterfactuals", None)
        action_repeat = envs.metadata.get("action_repeat", 1)
        self.every_frame = in_detail and action_repeat <= MOST_FRAMES

        # What the agent predicts is a picture only if it sees one.
        self.reconstruct: Callable[[torch.Tensor], torch.Tensor] | None = None
        observed = image_of(actor.env_output.observation)
        sees_images = observed.ndim > 2
        if actor.agent.reconstruction is not None and sees_images:
            self.reconstruct = actor.agent.picture

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
        instruction = _ask(actor, "instructions")
        state = None
        if self.counterfactuals is not None:
            state = actor.envs.get_state()  # type: ignore[attr-defined]
        early = len(self.steps) < RENDERED_STEPS
        rendering = None
        if early:
            first = self.steps[0].rendering if self.steps else None
            rendering = _render(actor, first)

        # The step.
        policy = actor.agent.distribution
        action, output = actor.act(return_attention=True)
        received = policy.effect(action).numpy()
        views_between = None
        if self.every_frame and early and not resets:
            views_between = _ask(actor, "between", received)
        ended = actor.step(action)
        is_first = np.arange(actor.envs.num_envs) == 0
        check_length(actor, is_first, self.max_steps)
        if resets:
            return None

        # What the agent made of it: the first row at the only step.
        parameters = output.policy_parameters[0, 0].float().cpu()
        values = output.value[0, 0].flatten()  # one for each task
        core_input = output.inputs[0, 0].float().cpu()
        attention = _attention(core, before, output.attention, len(self.steps))
        step = _Step(
            observation=_parts_of_first_row(given),
            given=given,
            state=state,
            action=received[0],
            value=float(values[self.value_column]),
            reward=float(actor.env_output.reward[0]),
            policy=policy.show(parameters),
            counts=self._counts(),
            attention=attention,
            pose=pose,
            situation=situation,
            instruction=instruction,
            rendering=rendering,
            views_between=views_between,
            effects=self._effects(given, before, core_input, action[0], attention.slots),
            input=core_input.numpy(),
            compressed=_compressed(core, before, attention.slots),
            reconstruction=self._reconstruction(output),
        )
        self.steps.append(step)
        for episode in ended:
            if episode.environment == 0:
                return episode
        return None

    def _effects(
        self,
        given: EnvOutput,
        before: State,
        core_input: torch.Tensor,
        action: torch.Tensor,
        slots: tuple[np.ndarray, ...],
    ) -> Effects | None:
        """What memory caused of the first row's action; None if that was not asked for."""
        if not self.with_effects:
            return None
        agent = self.actor.agent
        if not self.steps:
            # The core forgets the episode before, which `effects` knows nothing of.
            before = state_to(agent.initial_state(1), self.actor.device)
        possible = agent.possible_actions(sensed_of(given.observation))
        of_first_row = None if possible is None else possible[0]
        return effects(agent, before, core_input, action, slots, of_first_row)

    def _counts(self) -> list[float]:
        """The counters of right and wrong choices in the episode so far; 0 if the environment has none."""
        counts = []
        for name in CHOICES:
            count = 0.0
            if name in self.actor.episode_metrics:
                count = float(self.actor.infos[name][0])
            counts.append(count)
        return counts

    def _reconstruction(self, output: AgentOutput) -> np.ndarray | None:
        """The image that the agent predicts from the input of its core."""
        if self.reconstruct is None:
            return None
        core_input = output.inputs[0, :1]  # [1, D]
        pictures = self.reconstruct(core_input)
        return pictures.cpu().numpy()[0]

    def finish(self, episode: Episode) -> Recording:
        """The recording of the episode that has just ended."""
        counterfactual = _Counterfactual()
        if self.counterfactuals is not None:
            counterfactual = _with_other_examples(self.actor, self.counterfactuals, self.begin, self.steps)
        recording = _join(self.steps, episode, self.actor, counterfactual)
        self.steps = []
        return recording


def _with_other_examples(
    actor: Actor, counterfactuals: Counterfactuals, begin: State, steps: list[_Step]
) -> _Counterfactual:
    """What the agent would have made of an episode, of each choice in turn if its example had been the other object.

    Args:
        begin: the core's state before the episode.
        steps: those of the episode, whose actions stay as they were.
    """
    probabilities = np.full(len(steps), np.nan, np.float32)
    distances = np.full(len(steps), np.nan, np.float32)
    entries = np.full(len(steps), -1)

    # The episode as it was: views [T, ...], the core's inputs [T, D], and whether a step led to a choice.
    own_views = np.stack([step.observation[0] for step in steps])
    own_inputs = np.stack([step.input for step in steps])
    choices_so_far = [sum(step.counts) for step in steps]
    led_to_choice = np.diff(choices_so_far, prepend=0.0) > 0
    distance_of_two = _distance_of_two(own_inputs)

    end_of_last_room = 0
    states = [step.state for step in steps]
    for entered, views in counterfactuals(states):
        # The agent is given the rewards of the episode. Up to the choice they do not depend on its example; that of the
        # choice does. It would say what the example was, and what is asked is whether memory does.
        until = len(views)
        choices = np.flatnonzero(led_to_choice[entered:until])
        if len(choices):
            until = entered + choices[0] + 1
        output = _act_again(actor, begin, steps[:until], views[:until])

        # The probabilities of the actions that were taken in this room.
        room = slice(entered, until)
        parameters = output.policy_parameters[0, room].float().cpu()
        summary = actor.agent.distribution.show(parameters)
        probabilities_of_all = summary.probabilities.numpy()  # [steps in the room, A]
        taken = [int(step.action) for step in steps[room]]
        probabilities[room] = probabilities_of_all[np.arange(len(taken)), taken]

        # How different the core's inputs are, over the steps before the room whose views differ: since the last room,
        # or, if the example was not seen since then, since the episode began.
        differing = _differing(views[:entered], own_views[:entered])
        since_last_room = differing[differing >= end_of_last_room]
        changed_steps = since_last_room if len(since_last_room) else differing
        inputs = output.inputs[0].float().cpu().numpy()  # [T, D]
        distance = _distance(inputs[changed_steps], own_inputs[changed_steps])
        distances[room] = distance / max(distance_of_two, 1e-9)
        entries[room] = entered
        end_of_last_room = len(views)
    return _Counterfactual(probabilities, distances, entries)


def _distance(inputs: np.ndarray, others: np.ndarray) -> float:
    """The root mean square distance of inputs of the core [N, D] from others; 0 if there are none."""
    square = np.square(inputs - others).sum()
    mean_square = square / max(1, len(inputs))
    return float(np.sqrt(mean_square))


def _differing(views: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The steps, counted from 0, at which the views [T, ...] are not the others."""
    changed = views != others
    pixels = tuple(range(1, changed.ndim))
    return np.flatnonzero(changed.any(axis=pixels))


def _distance_of_two(inputs: np.ndarray) -> float:
    """The root mean square distance of two steps of an episode, given the core's inputs [T, D]."""
    variance = inputs.var(axis=0).sum()
    return float(np.sqrt(2 * variance))


def _act_again(actor: Actor, begin: State, steps: list[_Step], views: np.ndarray) -> AgentOutput:
    """What the agent makes of the first steps with other views [T, ...]; all else that it was given stays the same."""
    # The first row, as a batch of one.
    first = map_state(lambda leaf: leaf[:1], begin)
    observation = torch.from_numpy(views)[None]
    last_action = torch.stack([step.given.last_action[:1] for step in steps], dim=1)  # [1, T, ...]
    reward = torch.stack([step.given.reward[:1] for step in steps], dim=1)  # [1, T]
    reset = torch.stack([step.given.reset[:1] for step in steps], dim=1)  # [1, T]
    device = actor.device
    return actor.agent(
        observation.to(device),
        last_action.to(device),
        reward.to(device),
        reset.to(device),
        first,
    )


def _ask(actor: Actor, name: str, *arguments: object) -> Any:
    """What a method that only recordings call returns for the first environment; None if there is no such method."""
    method = getattr(actor.envs, name, None)
    if method is None:
        return None
    with guard.calling(actor.name, f"in {name}"):
        return method(*arguments)[0]


def _render(actor: Actor, first: np.ndarray | None) -> np.ndarray | None:
    """What the first environment draws of itself, [height, width, 3] uint8 with at most `RENDERED` lines.

    It has the size of the first picture of the episode, if there is one.
    """
    if actor.envs.render_mode != "rgb_array":
        return None
    picture = _ask(actor, "render")
    with guard.calling(actor.name, "in render"):
        if not is_picture(picture):
            raise guard.OutputError(f"render: expected uint8 [height, width, 3], got {describe_value(picture)}")
    drawn = Image.fromarray(picture)
    most_columns = 2 * RENDERED
    drawn.thumbnail((most_columns, RENDERED))  # smaller pictures stay as they are
    if first is not None:
        height, width, _ = first.shape
        drawn = drawn.resize((width, height))
    return np.asarray(drawn)


def _attention(
    core: torch.nn.Module, state: State, weights: tuple[torch.Tensor, ...] | None, step: int
) -> _StepAttention:
    """The attention at a step of the episode, given the core's state before it."""
    if weights is None or not isinstance(core, Transformer):
        return _StepAttention((), (), np.zeros((0, 0, 3)))
    by_layer = []
    slots = []
    for layer, weights_of_layer in enumerate(weights):
        of_first_row = weights_of_layer[0, :, 0].cpu()  # [H, S]
        by_layer.append(of_first_row.numpy())

        # From ages to the numbers of steps. Steps of a slot that precede the episode are left out.
        ages = core.slot_ages(layer, state)[0].cpu()  # [S, 2]
        steps = (step - ages).clamp(min=0)
        newest = ages[:, 1]
        is_of_another = newest > step
        is_empty = newest < 0
        absent = is_of_another | is_empty
        steps = steps.masked_fill(absent[:, None], -1)
        slots.append(steps.numpy())
    by_kind = core.attention_by_kind(weights)
    by_kind_now = by_kind[:, 0, :, 0].cpu().numpy()
    return _StepAttention(tuple(by_layer), tuple(slots), by_kind_now)


def _compressed(
    core: torch.nn.Module, state: State, slots: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The slots that the last segment added to the first layer, and their steps; see `Compressed`.

    Given, of each layer, the first and the last step of its slots. None within a segment."""
    if not isinstance(core, CompressiveTransformer) or state.offset:
        return None
    sizes = core.layers[0].sizes
    if not sizes.compressed:
        return None

    # The newest slots, and of these the ones all of whose steps are of this episode.
    num_added = sizes.segment // sizes.rate
    first_added = max(0, sizes.compressed - num_added)
    new = np.arange(first_added, sizes.compressed)
    first, last = slots[0][new].T
    num_steps = last - first + 1
    is_whole = (first >= 0) & (num_steps == sizes.rate)
    whole = new[is_whole]

    of_first_layer = state.compressed[0]
    compressed = of_first_layer[0].float().cpu().numpy()  # [n_cm, D]
    steps = first[is_whole, None] + np.arange(sizes.rate)
    return compressed[whole], steps


def _parts_of_first_row(given: EnvOutput) -> tuple[np.ndarray, ...]:
    """Copies of the parts of the first environment's observation, without its instruction."""
    return tuple(part[0].numpy().copy() for part in leaves(sensed_of(given.observation)))


def _words_of_first_row(given: EnvOutput) -> np.ndarray | None:
    """A copy of the words of the first environment's instruction; None if there are none."""
    if not isinstance(given.observation, Observation):
        return None
    return given.observation.instruction[0].numpy().copy()


def _join(steps: list[_Step], episode: Episode, actor: Actor, counterfactual: _Counterfactual) -> Recording:
    """The recording of an episode's steps."""
    core = actor.agent.core
    metadata = actor.envs.metadata
    observations = _join_observations(steps)
    given = [step.given for step in steps]
    given.append(actor.env_output)  # after the last action
    slot_kinds: tuple[str, ...] = ()
    if isinstance(core, Transformer):
        slot_kinds = core.attention_kinds
    return Recording(
        episode=episode,
        observations=observations[0],
        more_observations=tuple(observations[1:]),
        observation_names=_observation_names(metadata, observations),
        element_names=_element_names(metadata, observations),
        actions=np.stack([step.action for step in steps]),
        values=np.array([step.value for step in steps], np.float32),
        rewards=np.array([step.reward for step in steps], np.float32),
        probabilities=np.stack([step.policy.probabilities.numpy() for step in steps]),
        means=np.stack([step.policy.means.numpy() for step in steps]),
        scales=np.stack([step.policy.scales.numpy() for step in steps]),
        choices=_choices(steps),
        attention=_join_attention(core, steps),
        attention_by_kind=np.stack([step.attention.by_kind for step in steps]),
        slot_kinds=slot_kinds,
        poses=_stack(step.pose for step in steps),
        situations=_situations(steps),
        instructions=_instructions(steps),
        renderings=_stack(step.rendering for step in steps),
        views_between=_stack(step.views_between for step in steps),
        counterfactual_probabilities=counterfactual.probabilities,
        counterfactual_distances=counterfactual.distances,
        room_entries=counterfactual.room_entries,
        effects=_all_or_none(step.effects for step in steps),
        compressed=_join_compressed(steps),
        reconstructions=_stack(step.reconstruction for step in steps),
        last_observation=_parts_of_first_row(actor.env_output),
        words=_stack(_words_of_first_row(output) for output in given),
        terminated=bool(actor.env_output.discount[0] == 0),
        action_names=action_names(actor.envs),
        parts=tuple(getattr(actor.envs.single_action_space, "parts", ())),
        fps=float(metadata.get("render_fps") or 15),
        floor_plan=metadata.get("floor_plan"),
        rule=str(metadata.get("rule") or ""),
    )


def _join_observations(steps: Sequence[_Step]) -> list[np.ndarray]:
    """Each part of the observations over all steps, [T, ...]."""
    observations = []
    num_parts = len(steps[0].observation)
    for index in range(num_parts):
        part = np.stack([step.observation[index] for step in steps])
        observations.append(part)
    return observations


def _observation_names(metadata: Mapping[str, Any], observations: Sequence[np.ndarray]) -> tuple[str, ...]:
    """What the parts of an observation are; empty if there is one part, or the environment does not say it."""
    if len(observations) == 1:
        return ()
    return tuple(metadata.get("observation_names") or ())


def _element_names(metadata: Mapping[str, Any], observations: Sequence[np.ndarray]) -> tuple[str, ...]:
    """What the elements of the last part are; empty if the environment does not say it of all."""
    names = tuple(metadata.get("element_names") or ())
    if observations[-1].shape[1:] != (len(names),):
        return ()
    return names


def _choices(steps: Sequence[_Step]) -> np.ndarray:
    """[T] 1 at a right choice, -1 at a wrong one. Counters only grow at a choice."""
    counts = [step.counts for step in steps]
    choices = np.diff(counts, axis=0, prepend=0.0)
    right = choices[:, 0]
    wrong = choices[:, 1]
    return (right - wrong).astype(int)


def _situations(steps: Sequence[_Step]) -> tuple[Situation, ...] | None:
    if steps[0].situation is None:
        return None
    return tuple(step.situation or {} for step in steps)


def _instructions(steps: Sequence[_Step]) -> tuple[str, ...] | None:
    if steps[0].instruction is None:
        return None
    return tuple(step.instruction or "" for step in steps)


def _join_attention(core: torch.nn.Module, steps: Sequence[_Step]) -> tuple[Attention, ...]:
    """The attention of each layer; empty for cores without attention."""
    if not isinstance(core, Transformer):
        return ()
    found = []
    for index, layer in enumerate(core.layers):
        sizes = layer.sizes
        rings = None
        rate = 1
        if isinstance(sizes, LayerSizes):
            rate = sizes.rate
        elif sizes.window:
            rings = (sizes.groups, sizes.clusters, sizes.window)
        weights = np.stack([step.attention.weights[index] for step in steps])  # [T, H, S]
        slots = np.stack([step.attention.slots[index] for step in steps])  # [T, S, 2]
        attention = Attention(sizes.by_kind, weights, slots, rings, rate)
        found.append(attention)
    return tuple(found)


def _join_compressed(steps: Sequence[_Step]) -> Compressed | None:
    """What the first layer compressed; None if nothing."""
    slots: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for step in steps:
        if step.compressed is None:
            continue
        filled, their_steps = step.compressed
        if len(filled):
            slots.append(filled)
            held.append(their_steps)
    if not slots:
        return None
    numbers = np.concatenate(held)  # [K, c]
    inputs = np.stack([step.input for step in steps])  # [T, D]
    inputs_of_slots = inputs[numbers]
    return Compressed(np.concatenate(slots), numbers, inputs_of_slots)


def _all_or_none(found: Iterable[Effects | None]) -> tuple[Effects, ...] | None:
    """The effects of all steps; None if they are not known."""
    known = tuple(each for each in found if each is not None)
    return known or None


def _stack(arrays: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """The arrays of those steps that have one; None if no step does."""
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    return np.stack(present)
