"""Measurements of an agent that are no part of its training: the distribution of attention."""

import torch

from agent import Agent, Trajectory
from agent.core import Transformer, detach_state, index_state, state_to


def attention_mass(agent: Agent, trajectory: Trajectory, rows: int = 4) -> dict[str, float]:
    """Mean attention to each kind of slots over layers, heads, steps and the first rows.

    Replayed rows are used only if there are no others: the burn-in at their end consists of steps that attend only to
    themselves. Returns an empty dict for cores without attention.
    """
    core = agent.core
    if not isinstance(core, Transformer):
        return {}
    # Some rows are enough for a mean, and attention weights take much memory.
    device = next(agent.parameters()).device
    chosen: slice | torch.Tensor = slice(0, rows)
    if trajectory.replayed is not None and not trajectory.replayed.all():
        chosen = (~trajectory.replayed).nonzero()[:rows, 0]
    first_rows = index_state(trajectory, chosen)
    part = state_to(first_rows, device)
    state = detach_state(part.core_state)
    agent.eval()  # no dropout, which would also draw from the random generator of training
    with torch.no_grad():
        output = agent(part.observation, part.last_action, part.reward, part.reset, state, return_attention=True)
    assert output.attention is not None
    by_kind = core.attention_by_kind(output.attention)  # [L, B, H, T, 3]
    means = by_kind.mean(dim=(0, 1, 2, 3))
    mass = {}
    for kind, mean in zip(core.attention_kinds, means.tolist()):
        mass[f"attention/{kind}"] = mean
    return mass
