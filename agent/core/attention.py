"""Multi-head attention with Transformer-XL's relative positions.

Keys and values come ready-made: memory does not change during a segment, so that a step projects only itself
(docs/core.md). Which slots exist and who may see them is the business of the core.

Axes: B batch, T queries, S key slots, H heads, K features a head, D features.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core.flex import attend


class KeyValue(NamedTuple):
    """Projected keys and values, each [B, H, S, K]."""

    keys: Tensor
    values: Tensor

    def between(self, begin: int, end: int) -> "KeyValue":
        """Those of slots `begin` to `end`."""
        return KeyValue(self.keys[:, :, begin:end], self.values[:, :, begin:end])

    @staticmethod
    def join(*parts: "KeyValue") -> "KeyValue":
        """Those of the slots of all parts, in their order."""
        return KeyValue(*(torch.cat(tensors, dim=2) for tensors in zip(*parts)))


def sinusoids(distances: Tensor, size: int) -> Tensor:
    """The sinusoidal encoding of distances [N], as in Transformer-XL: [N, size], sines first, then cosines."""
    inverse_frequency = 10000 ** -(torch.arange(0, size, 2, dtype=torch.float64, device=distances.device) / size)
    angles = distances.to(torch.float64)[:, None] * inverse_frequency
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :size]


def relative_shift(scores: Tensor) -> Tensor:
    """Aligns scores by distance with keys: out[..., t, s] = scores[..., t, s + T - 1 - t].

    `scores` is [..., T, S] with the farthest distance first (Dai et al. 2019,
    appendix B). Entries that lie in a query's future are garbage.
    """
    *batch, queries, slots = scores.shape
    if queries == 1:
        return scores
    padded = F.pad(scores, (1, 0)).reshape(*batch, slots + 1, queries)
    return padded[..., 1:, :].reshape(*batch, queries, slots)


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores are (q + u)k + (q + v)r, with r the projected encoding of the distance.

    Source: Dai et al. 2019 (Transformer-XL), section 3.3; used unchanged by the Compressive Transformer.
    """

    def __init__(self, model_size: int, num_heads: int, use_flex: bool = False) -> None:
        super().__init__()
        self.use_flex = use_flex
        self.num_heads = num_heads
        self.head_size = model_size // num_heads
        self.scale = self.head_size**-0.5
        self.query = nn.Linear(model_size, model_size, bias=False)
        self.key_value = nn.Linear(model_size, 2 * model_size, bias=False)
        self.position = nn.Linear(model_size, model_size, bias=False)
        self.output = nn.Linear(model_size, model_size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, self.head_size))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, 1, self.head_size))

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)

    def project(self, slots: Tensor, norm: nn.LayerNorm | None = None) -> KeyValue:
        """Projects slots [B, S, D], after a norm if there is one, to keys and values."""
        weight, bias = self.key_value.weight, None
        if norm is not None:
            # Its affine map is done on the weights: memory needs no gradient, so none has to be carried to the norm.
            slots = F.layer_norm(slots, norm.normalized_shape, eps=norm.eps)
            weight, bias = weight * norm.weight, weight @ norm.bias
        keys, values = F.linear(slots, weight, bias).chunk(2, dim=-1)
        return KeyValue(self._heads(keys), self._heads(values))

    def project_positions(self, encoding: Tensor) -> Tensor:
        """Projects encodings of distances [S, D] to [H, K, S]; they depend on the weights alone."""
        return self.position(encoding).unflatten(-1, (self.num_heads, self.head_size)).permute(1, 2, 0)

    def forward(
        self,
        queries: Tensor,
        slots: KeyValue,
        positions: Tensor,
        visible: Tensor,
        far: tuple[Tensor, Tensor] | None = None,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from queries to slots.

        Args:
            queries: [B, T, D].
            slots: keys and values of S slots in temporal order; the last T are the queries' own.
            positions: [H, K, S], projected encodings of the distances S - 1, ..., 0.
            visible: [B, 1, T, S], 0 where a query may see a slot, -infinity where not; at least one each.
            far: where the first N slots have distances of their own: projected encodings [H, K, M] and, for every
                query and slot, which of them is its distance, [T, N] int64.
            return_weights: also return the attention weights [B, H, T, S].

        Returns:
            [B, T, D] and the weights or None.
        """
        query = self._heads(self.query(queries))
        content_query = query + self.content_bias
        # Heads first: the positions are the same for all rows, and so is then one matrix product a head.
        position_query = (query + self.position_bias).transpose(0, 1)
        near = _by_head(position_query, positions)
        if far is not None:
            far = _by_head(position_query, far[0]), far[1]
        in_parallel = queries.shape[1] > 1 and not return_weights
        if in_parallel and self.use_flex:
            attended = attend(content_query, *slots, near, far, visible, self.scale)
            return self.output(attended.transpose(1, 2).flatten(2)), None
        bias = relative_shift(near)
        if far is not None:
            scores, index = far
            scores = scores.gather(-1, index.expand(*scores.shape[:2], -1, -1))
            bias = torch.cat([scores, bias[..., index.shape[1] :]], dim=-1)
        bias = torch.add(visible, bias.transpose(0, 1), alpha=self.scale)
        if in_parallel and query.is_cuda:
            attended = F.scaled_dot_product_attention(content_query, *slots, attn_mask=bias)
            return self.output(attended.transpose(1, 2).flatten(2)), None
        # On a CPU torch does the same in more steps, for it also provides for queries that see nothing.
        content = content_query @ slots.keys.transpose(-1, -2)
        weights = torch.add(bias, content, alpha=self.scale).softmax(dim=-1)
        attended = weights @ slots.values
        return self.output(attended.transpose(1, 2).flatten(2)), weights

    def reconstruct(self, query: Tensor, slots: Tensor) -> Tensor:
        """Content-based attention of projected queries [B, T, D] over slots [B, S, D]: [B, T, D] (Algorithm 2).

        No mask, no relative positions, no output projection; the weights receive no gradient, the slots do.
        """
        keys, values = F.linear(slots, self.key_value.weight.detach()).chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(self._heads(query), self._heads(keys), self._heads(values))
        return attended.transpose(1, 2).flatten(2)


def _by_head(queries: Tensor, positions: Tensor) -> Tensor:
    """Scores [H, B, T, S] of queries [H, B, T, K] with positions [H, K, S]."""
    heads, rows, steps, size = queries.shape
    return (queries.reshape(heads, rows * steps, size) @ positions).unflatten(1, (rows, steps))
