"""What a memory caused: how much the log-odds of an action change if the agent does not see a part of its memory.

Attention says where an agent looked, not what of it decided. Here slots are left out, one after the other, and the
policy is computed again. All variants of a step are computed in one batch. A slot is hidden only from the step that
acts; what earlier steps copied from it stays.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent import Agent
from agent.core import Transformer, map_state
from agent.core.state import State
from agent.policies import IMPOSSIBLE, Categorical

STRETCH = 8
"""Steps of a stretch."""


class Effects(NamedTuple):
    """Of one step, by how much the log-odds of its action fall without a part of memory; negative where they rise.

    Of an action that is a vector, by how much the logarithm of its probability falls.

    slots: [S] without the steps that a slot of the first layer holds, in all layers; 0 for empty slots.
    kinds: [3] without a kind of slots, in the order of the core's `attention_kinds`, but for the step itself.
    stretch: [2] the first and last step without which they fall most, of up to `STRETCH` steps of the episode or one
        slot that holds more; -1 if there are no earlier steps.
    stretch_effect: without these.
    """

    slots: np.ndarray
    kinds: np.ndarray
    stretch: np.ndarray
    stretch_effect: float


def effects(
    agent: Agent,
    state: State,
    core_input: Tensor,
    action: Tensor,
    steps: tuple[np.ndarray, ...],
    possible: Tensor | None = None,
) -> Effects:
    """The effects of what the first row of a batch remembered on the action that it took.

    Args:
        agent: one whose core is a `Transformer`.
        state: of the core, before the step, which does not begin an episode.
        core_input: [D] of the first row at the step.
        action: [] or [K], as it was drawn.
        steps: of each layer [S, 2], the first and the last step of the episode in each slot; -1 if there is none.
        possible: [A] bool, the actions that were possible at the step; None if all were.
    """
    core = agent.core
    assert isinstance(core, Transformer)

    # The ranges of steps that are left out: those that a slot of the first layer holds, and the stretches.
    steps_of_first_layer = steps[0]
    own_step = int(max(held[:, 1].max() for held in steps))
    units = _units(steps_of_first_layer, own_step)
    stretches = _stretches(units)
    ranges = np.concatenate([units, stretches])

    # The policy without each range and without each kind of slots, then with all of memory.
    hidden = []
    for layer, held in zip(core.layers, steps):
        hidden.append(_hidden_slots(held, ranges, layer.sizes.by_kind))
    parameters = _policy(agent, state, core_input, hidden, possible)
    odds = _log_odds(agent, parameters, action)
    odds_with_all = odds[-1]
    falls = (odds_with_all - odds[:-1]).numpy()
    falls_of_units, falls_of_stretches, falls_of_kinds = np.split(falls, [len(units), len(ranges)])

    # Back to the slots of the first layer, of which several may hold the same steps.
    fall_of_unit = {}
    for (first, last), fall in zip(units.tolist(), falls_of_units):
        fall_of_unit[first, last] = fall
    of_slots = np.zeros(len(steps_of_first_layer), np.float32)
    for slot, (first, last) in enumerate(steps_of_first_layer.tolist()):
        of_slots[slot] = fall_of_unit.get((first, last), 0.0)

    # The stretch without which the odds fall most.
    stretch = np.array([-1, -1])
    stretch_effect = 0.0
    if len(stretches):
        best = int(falls_of_stretches.argmax())
        stretch = stretches[best]
        stretch_effect = float(falls_of_stretches[best])
    return Effects(of_slots, falls_of_kinds.astype(np.float32), stretch, stretch_effect)


def _hidden_slots(held: np.ndarray, ranges: np.ndarray, sizes: tuple[int, int, int]) -> Tensor:
    """Which slots of a layer are left out, [R + 3 + 1, S] bool: a row for each range, for each kind, and for nothing.

    Args:
        held: [S, 2], the first and the last step in each slot; -1 if there is none.
        ranges: [R, 2], first and last steps. A slot is left out if it holds any step of a range.
        sizes: the number of slots of each kind.
    """
    first_held = held[:, 0]
    last_held = held[:, 1]
    begin = ranges[:, 0, None]  # [R, 1]
    end = ranges[:, 1, None]
    overlaps = (first_held <= end) & (last_held >= begin)  # [R, S]
    of_ranges = overlaps & (first_held >= 0)

    each_kind = np.eye(3, dtype=bool)
    of_kinds = np.repeat(each_kind, sizes, axis=1)  # [3, S]
    nothing = np.zeros((1, len(held)), bool)
    return torch.from_numpy(np.concatenate([of_ranges, of_kinds, nothing]))


def _units(held: np.ndarray, own_step: int) -> np.ndarray:
    """The different ranges of steps in slots [S, 2], sorted, [N, 2]; without empty slots and the step itself."""
    is_filled = held[:, 0] >= 0
    is_earlier = held[:, 1] < own_step
    present = held[is_filled & is_earlier]
    return np.unique(present, axis=0).reshape(-1, 2)


def _stretches(units: np.ndarray) -> np.ndarray:
    """The longest stretch of units that begins with each unit [N, 2]: first and last steps, [N, 2].

    A stretch has up to `STRETCH` steps, or is a single unit that has more.
    """
    found = []
    for first, last in units.tolist():
        fits = (units[:, 0] >= first) & (units[:, 1] < first + STRETCH)
        end = last
        if fits.any():
            end = int(units[fits, 1].max())
        found.append((first, end))
    return np.array(found, int).reshape(-1, 2)


def _policy(agent: Agent, state: Any, core_input: Tensor, hidden: list[Tensor], possible: Tensor | None) -> Tensor:
    """Parameters of the policy [rows, P], each row without its hidden slots."""
    core = agent.core
    device = agent.policy.weight.device
    rows = len(hidden[0])

    def repeated(leaf: Tensor) -> Tensor:
        """The first row as all rows."""
        return leaf[:1].expand(rows, *leaf.shape[1:]).contiguous()

    several = map_state(repeated, core.without_cache(state))
    inputs = core_input.to(device).expand(rows, 1, -1)
    reset = torch.zeros(rows, 1, dtype=torch.bool, device=device)
    masks = [mask.to(device) for mask in hidden]
    if possible is not None:
        possible = possible.to(device)
    with torch.no_grad():
        features = agent.remember(inputs, reset, several, hidden=masks).features
        parameters = agent.act_on(features, inputs, possible)
    return parameters[:, 0].cpu()


def _log_odds(agent: Agent, parameters: Tensor, action: Tensor) -> Tensor:
    """[rows] of the action, by the policies with parameters [rows, P]."""
    exact = parameters.double()
    if isinstance(agent.distribution, Categorical):
        chosen = exact.log_softmax(dim=-1)[:, int(action)]
        others = exact.index_fill(1, action.reshape(1), -torch.inf)
        not_chosen = others.logsumexp(dim=-1) - exact.logsumexp(dim=-1)
        # Where no other action is possible, the odds are infinite and nothing changes them.
        is_forced = (others < IMPOSSIBLE / 2).all(dim=-1)
        return (chosen - not_chosen).masked_fill(is_forced, 0.0)
    actions = action.to(exact.dtype)[None].expand(len(exact), -1)
    return agent.distribution.log_prob(exact, actions)
