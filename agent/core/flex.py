"""Relative attention by FlexAttention: an optional path for GPUs that gives the numbers of the default.

The default shifts the scores by distance, masks them and adds them, three tensors [B, H, T, S] a layer; here a kernel
looks each entry up instead. That kernel exists inside `torch.compile` only (elsewhere torch runs a slow reference), and
on a CPU torch has no gradient for it.

Axes: B batch, H heads, T queries, S key slots, K features a head.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    near: Tensor,
    far: tuple[Tensor, Tensor] | None,
    visible: Tensor,
    scale: float,
) -> Tensor:
    """Softmax attention whose scores are (query key + position) * scale.

    Args:
        query: [B, H, T, K].
        keys: [B, H, S, K]; the last T slots are the queries' own.
        values: [B, H, S, K].
        near: [H, B, T, S], scores by position, for the distances S - 1, ..., 0.
        far: where the first N slots have distances of their own: scores [H, B, T, M] for the distances 0, ..., M - 1,
            and which of them is whose, [T, N] int64.
        visible: [B, 1, T, S], 0 where a query may see a slot, -infinity where not.
        scale: of all scores.

    Returns:
        [B, H, T, K].
    """
    steps, slots = near.shape[2:]

    def positioned(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        # Slots in a query's future would lie beyond the end; they are not visible.
        position = near[h, b, t, (s + steps - 1 - t).clamp(max=slots - 1)]
        if far is not None:
            table, index = far
            count = index.shape[1]
            position = torch.where(s < count, table[h, b, t, index[t, s.clamp(max=count - 1)]], position)
        return score + scale * position + visible[b, 0, t, s]

    # Under autocast the biases have made the queries wider than the keys.
    return flex_attention(query.to(keys.dtype), keys, values, score_mod=positioned, scale=scale)
