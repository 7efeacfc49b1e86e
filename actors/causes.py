"""What a memory caused: how much the log-odds of an action change if the agent does not see a part of its memory.

Attention says where an agent looked, not what of it decided. Here slots are left out, one after the other, and the
policy is computed again. All that is asked of a step is one batch of the core. A slot is hidden only from the step that
acts; what earlier steps copied from it stays.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent import Agent
from agent.core import Transformer, map_state
from agent.core.state import State
from agent.policies import Categorical

STRETCH = 8
"""Steps of a stretch."""


class Effects(NamedTuple):
    """Of one step, by how much the log-odds of its action fall without a part of memory; negative where they rise.

    Of an action that is a vector, by how much the logarithm of its probability falls.

    slots: [S] without the steps that a slot of the first layer holds, in all layers; 0 for empty slots.
    kinds: [3] without a kind of slots, in the order of the core's `attention_kinds`, but for the step itself.
    stretch: [2] the first and last of up to `STRETCH` steps of the episode without which they fall most; -1 if there
        are no earlier steps.
    stretch_effect: without these.
    """

    slots: np.ndarray
    kinds: np.ndarray
    stretch: np.ndarray
    stretch_effect: float


def effects(agent: Agent, state: State, core_input: Tensor, action: Tensor, steps: tuple[np.ndarray, ...]) -> Effects:
    """The effects of what the first row of a batch remembered on the action that it took.

    Args:
        agent: one whose core is a `Transformer`.
        state: of the core, before the step, which does not begin an episode.
        core_input: [D] of the first row at the step.
        action: [] or [K], as it was drawn.
        steps: of each layer [S, 2], the first and the last step of the episode in each slot; -1 if there is none.
    """
    core = agent.core
    assert isinstance(core, Transformer)
    of_first = steps[0]
    own = int(max(held[:, 1].max() for held in steps))  # the step itself
    units = _units(of_first, own)
    stretches = _stretches(units)
    ranges = np.concatenate([units, stretches])

    # A row for each part of memory that is left out: ranges of steps, the kinds, and nothing.
    hidden = []
    for layer, held in zip(core.layers, steps):
        first, last = held.T
        begins_before_end = first[None] <= ranges[:, 1, None]
        ends_after_begin = last[None] >= ranges[:, 0, None]
        is_held = first[None] >= 0
        overlaps = begins_before_end & ends_after_begin & is_held
        of_kinds = np.repeat(np.eye(3, dtype=bool), layer.sizes.by_kind, axis=1)
        nothing = np.zeros((1, len(held)), bool)
        hidden.append(torch.from_numpy(np.concatenate([overlaps, of_kinds, nothing])))
    parameters = _policy(agent, state, core_input, hidden)
    odds = _log_odds(agent, parameters, action)
    falls = (odds[-1] - odds[:-1]).numpy()

    # Back to the slots of the first layer, of which several may hold the same steps.
    by_range = {}
    for (first, last), effect in zip(units.tolist(), falls):
        by_range[first, last] = effect
    of_slots = np.array([by_range.get((first, last), 0.0) for first, last in of_first.tolist()], np.float32)

    stretch = np.array([-1, -1])
    most = 0.0
    if len(stretches):
        of_stretches = falls[len(units) : len(ranges)]
        best = int(of_stretches.argmax())
        stretch = stretches[best]
        most = float(of_stretches[best])

    of_kinds = falls[len(ranges) :].astype(np.float32)
    return Effects(of_slots, of_kinds, stretch, most)


def _units(held: np.ndarray, own: int) -> np.ndarray:
    """The different ranges of earlier steps in slots [S, 2], sorted, [N, 2]; without the step itself."""
    present = held[(held[:, 0] >= 0) & (held[:, 1] < own)]
    return np.unique(present, axis=0).reshape(-1, 2)


def _stretches(units: np.ndarray) -> np.ndarray:
    """All longest runs of units that hold up to `STRETCH` steps, or one unit that holds more, [N, 2]."""
    found = []
    for first, last in units.tolist():
        fits = (units[:, 0] >= first) & (units[:, 1] < first + STRETCH)
        end = last
        if fits.any():
            end = int(units[fits, 1].max())
        found.append((first, end))
    return np.array(found, int).reshape(-1, 2)


def _policy(agent: Agent, state: Any, core_input: Tensor, hidden: list[Tensor]) -> Tensor:
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
    with torch.no_grad():
        features = agent.remember(inputs, reset, several, hidden=masks).features
        parameters = agent.act_on(features, inputs)
    return parameters[:, 0].cpu()


def _log_odds(agent: Agent, parameters: Tensor, action: Tensor) -> Tensor:
    """[rows] of the action, by the policies with parameters [rows, P]."""
    exact = parameters.double()
    if isinstance(agent.distribution, Categorical):
        chosen = exact.log_softmax(dim=-1)[:, int(action)]
        others = exact.index_fill(1, action.reshape(1), -torch.inf)
        not_chosen = others.logsumexp(dim=-1) - exact.logsumexp(dim=-1)
        return chosen - not_chosen
    actions = action.to(exact.dtype)[None].expand(len(exact), -1)
    return agent.distribution.log_prob(exact, actions)
