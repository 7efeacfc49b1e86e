"""What a recording of an episode holds: observations, actions, values, rewards and attention of every step.

`actors.recorder` plays and records episodes. `reports/` makes videos and pages of recordings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from actors.actor import Episode
from actors.causes import Effects
from envs.actions import Part

RENDERED_STEPS = 3000
"""Most steps of an episode of which environments draw something."""
ELEMENTS_AT_ONCE = 1 << 22
"""Numbers of a matrix of steps by steps that are computed at once."""

Situation = dict[str, Any]
"""What an environment knows of a step beside the observation, by name: words, or words with an x and a y."""


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
    rate: the compression rate c, the number of steps in a compressed slot.
    """

    sizes: tuple[int, int, int]
    weights: np.ndarray
    steps: np.ndarray
    rings: tuple[int, int, int] | None = None
    rate: int = 1

    def rows_by_step(self) -> Iterator[np.ndarray]:
        """The rows of `by_step`, of which all together may not fit in memory."""
        time = len(self.weights)
        rows_at_once = max(1, ELEMENTS_AT_ONCE // max(1, time))
        for begin in range(0, time, rows_at_once):
            rows = slice(begin, begin + rows_at_once)
            yield from self._replace(weights=self.weights[rows], steps=self.steps[rows]).by_step(time)

    def by_step(self, time: int | None = None) -> np.ndarray:
        """Mean over heads of the attention of each step to each step of the episode, [T, T].

        The attention to a compressed slot is divided equally among its steps. `time` is the number of columns, if that
        is not the number of rows.
        """
        num_rows = len(self.weights)
        if time is None:
            time = num_rows
        first = self.steps[..., 0]  # [T, S]
        last = self.steps[..., 1]
        held = first >= 0

        # Each of the steps in a slot has an equal share of its attention.
        mean_of_heads = self.weights.mean(axis=1)  # [T, S]
        length = last - first + 1
        share = np.where(held, mean_of_heads / length, 0.0)

        # The slots that hold steps, in one list.
        row_of_slot = np.broadcast_to(np.arange(num_rows)[:, None], first.shape)
        rows = row_of_slot[held]
        begins = first[held]
        ends = last[held] + 1
        shares = share[held]

        # The cumulative sum adds a slot's share at its first step and removes it after its last.
        changes = np.zeros((num_rows, time + 1))
        np.add.at(changes, (rows, begins), shares)
        np.add.at(changes, (rows, ends), -shares)
        attention = changes.cumsum(axis=1)
        return attention[:, :-1]


@dataclass(frozen=True)
class Recording:
    """One episode. T steps, L layers, H heads.

    episode: its score and counters.
    observations: before each action: [T, D] float32, or [T, height, width, channels] uint8; of several parts the first.
    more_observations: of several parts the others, of the same form: images first, then a vector if there is one; else
        none.
    observation_names: of all parts, if there are several; else none.
    element_names: of the elements of the vector that is observed, if the environment names them; else none.
    actions: [T] int64 of Discrete spaces; else [T, K] float32, as the environment received them.
    values, rewards: [T] the value before the action (in the learner's units) and the reward after it (in the
        environment's).
    probabilities: [T, A] of the actions, by the policy; of a vector, those of all values of all its choices.
    means, scales: [T, N] of the numbers of a vector by the policy; see `agent.policies.PolicySummary`.
    choices: [T] 1 where the action led to a correct choice, -1 to a wrong one, by the environment's counters; else 0.
    attention: one per layer; empty for cores without attention.
    attention_by_kind: [T, L, H, 3] the attention on each of `slot_kinds`.
    slot_kinds: the core's kinds of slots, such as compressed, memory and segment; empty for cores without attention.
    poses: [T, 4] x, y, yaw in degrees and room before each action; None if the environment has no `poses`.
    situations: for each of the T steps what the environment knows of it beside the observation, by name: words, such as
        the right object, or words with the x and y of what they name; None if it has no `situations`.
    instructions: of T steps the text that the observation came with, of which the agent gets numbers of words; None if
        there is none, or the environment has no `instructions`.
    renderings: [at most RENDERED_STEPS, height, width, 3] uint8 what the environment's `render()` draws before each
        action; None if it was not made for that (see `envs.drawing`).
    counterfactual_probabilities: [T] of the action taken, with the example of the choice swapped for its other object.
        NaN outside of rooms of choices, and after the choice, whose reward would differ as well. None if that was not
        asked for, the environment has no `counterfactuals`, or its actions are vectors or its observations several
        parts or words.
    counterfactual_distances: [T] in rooms of choices, how much the core's inputs before differ from the counterfactual
        ones: root mean square over the steps whose views differ, since the previous choice or, if none has since then,
        since the episode began; in units of the distance between two steps of the episode. 0 if no view differs. NaN
        and None as `counterfactual_probabilities`.
    room_entries: [T] the step at which the room of this choice was entered; -1 where `counterfactual_probabilities` is
        NaN, None where it is.
    effects: of each of the T steps, what memory caused of its action; None for cores without attention, or if it was
        not asked for. See `actors.causes`.
    views_between: [at most RENDERED_STEPS, K, height, width, channels] uint8 the views between each observation and the
        next; None if they were not asked for, or the environment has no `between`.
    compressed: None if the first layer compressed nothing of the episode.
    reconstructions: [T, height, width, channels] uint8 the small images that the agent predicts from the inputs of
        its core; None if it was not trained to, or sees no images.
    last_observation: all parts of the observation after the last action, without words.
    words: [T + 1, W] int64 ids of the words of each observation's instruction, also of the last one; None if there are
        no instructions.
    terminated: whether the episode ended by itself, not by a limit of time.
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
    element_names: tuple[str, ...]
    actions: np.ndarray
    values: np.ndarray
    rewards: np.ndarray
    probabilities: np.ndarray
    means: np.ndarray
    scales: np.ndarray
    choices: np.ndarray
    attention: tuple[Attention, ...]
    attention_by_kind: np.ndarray
    slot_kinds: tuple[str, ...]
    poses: np.ndarray | None
    situations: tuple[Situation, ...] | None
    instructions: tuple[str, ...] | None
    renderings: np.ndarray | None
    views_between: np.ndarray | None
    counterfactual_probabilities: np.ndarray | None
    counterfactual_distances: np.ndarray | None
    room_entries: np.ndarray | None
    effects: tuple[Effects, ...] | None
    compressed: Compressed | None
    reconstructions: np.ndarray | None
    last_observation: tuple[np.ndarray, ...]
    words: np.ndarray | None
    terminated: bool
    action_names: tuple[str, ...]
    parts: tuple[Part, ...]
    fps: float
    floor_plan: dict[str, Any] | None
    rule: str

    @property
    def returns(self) -> np.ndarray:
        """[T] the sum of rewards before each action."""
        after_each = self.rewards.cumsum()
        return np.concatenate([[0.0], after_each[:-1]])
