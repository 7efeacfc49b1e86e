"""What the learner looks at now and then but does not train on: where the agent's attention goes."""

import torch
from torch import Tensor

from agent import Agent, Trajectory
from agent.core import CompressiveTransformer, index_state
from agent.core.state import detach_state

ATTENTION_KINDS = ("compressed", "memory", "segment")


def attention_by_kind(weights: tuple[Tensor, ...], memory_size: int, compressed_size: int) -> Tensor:
    """Sums attention weights, one [B, H, T, S] a layer, over each kind of slot: [L, B, H, T, 3].

    The kinds are `ATTENTION_KINDS`; they sum to 1.
    """
    stacked = torch.stack(weights)
    segment_size = stacked.shape[-1] - memory_size - compressed_size
    parts = stacked.split([compressed_size, memory_size, segment_size], dim=-1)
    return torch.stack([part.sum(dim=-1) for part in parts], dim=-1)


def attention_mass(agent: Agent, trajectory: Trajectory, rows: int = 4) -> dict[str, float]:
    """Mean attention on compressed memory, memory and segment, over layers, heads, steps and the first rows.

    Empty for cores without attention.
    """
    core = agent.core
    if not isinstance(core, CompressiveTransformer):
        return {}
    part = index_state(trajectory, slice(0, rows))
    agent.eval()  # without dropout, and without drawing from the random stream of training
    with torch.no_grad():
        output = agent(part.observation, part.last_action, part.reward, part.reset, detach_state(part.core_state), True)
    assert output.attention is not None
    kinds = attention_by_kind(output.attention, core.config.memory_size, core.config.compressed_size)
    means = kinds.mean(dim=(0, 1, 2, 3)).tolist()
    return {f"attention/{kind}": mean for kind, mean in zip(ATTENTION_KINDS, means)}
