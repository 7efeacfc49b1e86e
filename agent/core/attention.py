"""Multi-head attention with Transformer-XL's relative positions (Dai et al. 2019, section 3.3).

Axes: B batch, T queries, S key slots, H heads, K features of a head, D features.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from .cache import KVCache


def sinusoids(distances: Tensor, size: int) -> Tensor:
    """The sinusoidal encoding of distances [N], as in Transformer-XL: [N, size], sines first, then cosines."""
    inverse_frequency = 10000 ** -(torch.arange(0, size, 2, dtype=torch.float64, device=distances.device) / size)
    angles = distances.to(torch.float64)[:, None] * inverse_frequency
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :size]


def relative_shift(scores: Tensor) -> Tensor:
    """Aligns scores [..., T, S] by distance, farthest first, with keys: out[..., t, s] = scores[..., t, s + T - 1 - t].

    Entries in a query's future are undefined. Source: Dai et al. 2019, appendix B.
    """
    *batch, queries, slots = scores.shape
    if queries == 1:
        return scores
    padded = F.pad(scores, (1, 0)).reshape(*batch, slots + 1, queries)
    return padded[..., 1:, :].reshape(*batch, queries, slots)


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores are (q + u)k + (q + v)r, with r the projected encoding of the distance."""

    def __init__(self, model_size: int, num_heads: int, use_flex: bool = False, rings: int = 1) -> None:
        super().__init__()
        self.use_flex = use_flex
        self.rings = rings
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

    def project(self, slots: Tensor, norm: nn.LayerNorm | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, H, S, K] each, of slots [B, S, D] after a norm, if there is one."""
        weight, bias = self.key_value.weight, None
        if norm is not None:
            # The affine map of the norm is applied to the weights, so that its gradient needs no gradient of memory.
            slots = F.layer_norm(slots, norm.normalized_shape, eps=norm.eps)
            weight, bias = weight * norm.weight, weight @ norm.bias
        keys, values = F.linear(slots, weight, bias).chunk(2, dim=-1)
        return self._heads(keys), self._heads(values)

    def project_positions(self, encoding: Tensor) -> Tensor:
        """Projects encodings of distances [S, D] to [H, K, S]; the result depends on the weights alone."""
        return self.position(encoding).unflatten(-1, (self.num_heads, self.head_size)).permute(1, 2, 0)

    def forward(
        self, queries: Tensor, cache: KVCache, bias: Tensor, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from queries [B, T, D] to S slots: [B, T, D], and the weights [B, H, T, S] or None.

        Args:
            queries: the inputs of the last T of the S slots.
            cache: keys and values of at least S slots in temporal order. The first of them may be several rings of
                slots; each has the positions that it would have alone.
            bias: [B, 1 or H, T, S], 0 where a query may attend to a slot, -infinity elsewhere; at least one 0 in each
                row.
            return_weights: whether the weights are needed.
        """
        steps, slots = bias.shape[-2:]
        keys, values = cache.keys[:, :, :slots], cache.values[:, :, :slots]
        query = self._heads(self.query(queries))
        content_query = query + self.content_bias
        # Heads first: positions are shared by the rows, so this is one matrix product for each head.
        position_query = (query + self.position_bias).transpose(0, 1)
        repeated = cache.keys.shape[2] - cache.near.shape[-1]
        near = _by_head(position_query, cache.near[..., repeated - slots :])
        far, weights = None, None
        if cache.far is not None and cache.far_index is not None:
            begin = slots - steps - (cache.keys.shape[2] - len(cache.far_index))
            far = _by_head(position_query, cache.far)
            far = far.gather(-1, cache.far_index[begin : begin + steps].expand(*far.shape[:2], -1, -1))
        in_parallel = steps > 1 and not return_weights
        if in_parallel and self.use_flex:

            def add_position(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
                # Slots in a query's future would lie beyond the end; their bias hides them.
                position = near[h, b, t, (s + steps - 1 - t).clamp(max=slots - 1)]
                if far is not None:
                    count = far.shape[-1]
                    position = torch.where(s < count, far[h, b, t, s.clamp(max=count - 1)], position)
                return score + self.scale * position + bias[b, 0, t, s]

            # Looks scores by position up, instead of making three tensors [B, H, T, S]. The kernel exists only inside
            # torch.compile, and on a CPU it has no gradient. Under autocast the queries are wider than the keys.
            content_query = content_query.to(keys.dtype)
            attended = flex_attention(content_query, keys, values, score_mod=add_position, scale=self.scale)
        else:
            positions = relative_shift(near)
            if far is not None:
                positions = torch.cat([far, positions[..., far.shape[-1] :]], dim=-1)
            if repeated:
                window = repeated // (self.rings - 1)
                positions = torch.cat([positions[..., :window]] * (self.rings - 1) + [positions], dim=-1)
            bias = torch.add(bias, positions.transpose(0, 1), alpha=self.scale)
            if in_parallel and query.is_cuda:
                attended = F.scaled_dot_product_attention(content_query, keys, values, attn_mask=bias)
            else:
                # On a CPU torch takes more steps, because it also supports queries that attend to nothing.
                content = content_query @ keys.transpose(-1, -2)
                weights = torch.add(bias, content, alpha=self.scale).softmax(dim=-1)
                attended = weights @ values
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
