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
    even_features = torch.arange(0, size, 2, dtype=torch.float64, device=distances.device)
    exponents = even_features / size
    frequencies = 10000**-exponents
    exact_distances = distances.to(torch.float64)
    angles = exact_distances[:, None] * frequencies  # [N, size / 2]
    encoding = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return encoding[:, :size]  # one fewer cosine, if the size is odd


def relative_shift(scores: Tensor) -> Tensor:
    """Aligns scores [..., T, S] by distance, farthest first, with keys: out[..., t, s] = scores[..., t, s + T - 1 - t].

    Entries in a query's future are undefined. Source: Dai et al. 2019, appendix B.
    """
    *batch, queries, slots = scores.shape
    if queries == 1:
        return scores
    # One column more, read as rows of T numbers: each row of scores then starts one number further to the left.
    padded = F.pad(scores, (1, 0))  # [..., T, S + 1]
    reread = padded.reshape(*batch, slots + 1, queries)
    shifted = reread[..., 1:, :]
    return shifted.reshape(*batch, queries, slots)


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores are (q + u)k + (q + v)r, with r the projected encoding of the distance.

    Args:
        use_flex: use FlexAttention for several steps at once, see `_attend_with_flex`.
        rings: number of rings of routed slots, which come before all other slots; see `_for_every_ring`.
    """

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

        # The biases of all queries, u and v.
        bias_shape = (num_heads, 1, self.head_size)
        self.content_bias = nn.Parameter(torch.zeros(bias_shape))
        self.position_bias = nn.Parameter(torch.zeros(bias_shape))

    def project(self, slots: Tensor, norm: nn.LayerNorm | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, H, S, K] each, of slots [B, S, D] after a norm, if there is one."""
        weight = self.key_value.weight
        if norm is None:
            projected = F.linear(slots, weight)
        else:
            # The affine map of the norm is applied to the weights, so that its gradient needs no gradient of memory.
            normed = F.layer_norm(slots, norm.normalized_shape, eps=norm.eps)
            scaled_weight = weight * norm.weight
            bias = weight @ norm.bias
            projected = F.linear(normed, scaled_weight, bias)
        keys, values = projected.chunk(2, dim=-1)
        return self._by_head(keys), self._by_head(values)

    def project_positions(self, encoding: Tensor) -> Tensor:
        """Projects encodings of distances [S, D] to [H, K, S]; the result depends on the weights alone."""
        projected = self.position(encoding)  # [S, D]
        heads_and_features = (self.num_heads, self.head_size)
        by_head = projected.unflatten(-1, heads_and_features)  # [S, H, K]
        return by_head.permute(1, 2, 0)

    def forward(
        self, queries: Tensor, cache: KVCache, mask: Tensor, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from queries [B, T, D] to S slots: [B, T, D], and the weights [B, H, T, S] or None.

        Args:
            queries: the inputs of the last T of the S slots.
            cache: keys and values of at least S slots, oldest first.
            mask: [B, 1 or H, T, S], 0 where a query may attend to a slot, -infinity elsewhere; at least one 0 in each
                row.
            return_weights: whether the weights are needed.
        """
        num_steps, num_slots = mask.shape[-2:]
        keys = cache.keys[:, :, :num_slots]
        values = cache.values[:, :, :num_slots]
        query = self._by_head(self.query(queries))  # [B, H, T, K]
        content_query = query + self.content_bias
        position_query = query + self.position_bias

        # Heads first: positions are shared by the rows, so this is one matrix product for each head.
        position_query = position_query.transpose(0, 1)  # [H, B, T, K]
        near = self._near_scores(position_query, cache, num_slots)
        far = self._far_scores(position_query, cache, num_slots)

        # Fused kernels return no weights.
        weights = None
        in_parallel = num_steps > 1 and not return_weights
        if in_parallel and self.use_flex:
            attended = self._attend_with_flex(content_query, keys, values, near, far, mask)
        else:
            positions = self._position_scores(near, far, num_slots)
            positions = positions.transpose(0, 1)  # [B, H, T, S]
            bias = torch.add(mask, positions, alpha=self.scale)
            if in_parallel and query.is_cuda:
                attended = F.scaled_dot_product_attention(content_query, keys, values, attn_mask=bias)
            else:
                # On a CPU the fused kernel is slower, because it also supports queries that attend to nothing.
                content = content_query @ keys.transpose(-1, -2)
                scores = torch.add(bias, content, alpha=self.scale)
                weights = scores.softmax(dim=-1)
                attended = weights @ values
        joined = _join_heads(attended)
        return self.output(joined), weights

    def _by_head(self, flat: Tensor) -> Tensor:
        """[B, S, D] to [B, H, S, K]."""
        heads_last = flat.unflatten(-1, (self.num_heads, self.head_size))  # [B, S, H, K]
        return heads_last.transpose(1, 2)

    def _near_scores(self, query: Tensor, cache: KVCache, num_slots: int) -> Tensor:
        """Scores [H, B, T, N] of queries [H, B, T, K] with the distances N - 1, ..., 1, 0.

        N is the number of different positions of slots. The rings of routed slots share their positions.
        """
        num_distances = num_slots - cache.shared_positions
        nearest = cache.near[..., -num_distances:]
        return _position_products(query, nearest)

    def _far_scores(self, query: Tensor, cache: KVCache, num_slots: int) -> Tensor | None:
        """Scores [H, B, T, n_cm] of queries [H, B, T, K] with compressed slots; None if these count as one step each.

        Otherwise a compressed slot counts as c steps, so the distances to compressed slots are not consecutive. They
        are looked up by the query's place in its segment.
        """
        if cache.far is None or cache.far_index is None:
            return None
        heads, rows, num_steps, _ = query.shape

        # The queries are the last of the slots. `offset` is the number of the first one in its segment.
        segment_size = len(cache.far_index)
        slots_before_segment = cache.keys.shape[2] - segment_size
        offset = num_slots - num_steps - slots_before_segment

        # Scores of all distances, of which each query takes those to the compressed slots.
        by_distance = _position_products(query, cache.far)  # [H, B, T, M]
        distances = cache.far_index[offset : offset + num_steps]  # [T, n_cm]
        index = distances.expand(heads, rows, -1, -1)
        return by_distance.gather(-1, index)

    def _position_scores(self, near: Tensor, far: Tensor | None, num_slots: int) -> Tensor:
        """Scores by position [H, B, T, S] of all slots, aligned with the keys."""
        positions = relative_shift(near)
        if far is not None:
            # Compressed slots come first.
            num_compressed = far.shape[-1]
            others = positions[..., num_compressed:]
            return torch.cat([far, others], dim=-1)
        if positions.shape[-1] < num_slots:
            return self._for_every_ring(positions, num_slots)
        return positions

    def _for_every_ring(self, positions: Tensor, num_slots: int) -> Tensor:
        """Scores by position [H, B, T, S] of all rings and the slots after them, given those with one ring alone.

        A query sees one ring at most, so each has the positions that it would have alone: right before memory.
        """
        # The number of slots of a ring may change (see `resized`), so it follows from the lengths.
        missing = num_slots - positions.shape[-1]
        window = missing // (self.rings - 1)
        ring = positions[..., :window]
        recent = positions[..., window:]
        return torch.cat([ring.repeat(1, 1, 1, self.rings), recent], dim=-1)

    def _attend_with_flex(
        self, query: Tensor, keys: Tensor, values: Tensor, near: Tensor, far: Tensor | None, mask: Tensor
    ) -> Tensor:
        """Attention [B, H, T, K] by FlexAttention, whose kernel looks up the scores by position.

        So it makes no tensors [B, H, T, S]. The kernel exists only inside torch.compile; on a CPU it has no gradient.
        """
        num_steps, num_slots = mask.shape[-2:]
        last_step = num_steps - 1
        last_slot = num_slots - 1

        def add_position(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            # As in `relative_shift`. Slots in a query's future would lie beyond the end; the mask hides them.
            shifted = s + last_step - t
            shifted = shifted.clamp(max=last_slot)
            position = near[h, b, t, shifted]
            if far is not None:
                # Compressed slots come first.
                num_compressed = far.shape[-1]
                is_compressed = s < num_compressed
                compressed_slot = s.clamp(max=num_compressed - 1)
                far_position = far[h, b, t, compressed_slot]
                position = torch.where(is_compressed, far_position, position)
            position_score = self.scale * position
            bias = mask[b, 0, t, s]
            return score + position_score + bias

        query = query.to(keys.dtype)  # under autocast the queries are wider than the keys
        return flex_attention(query, keys, values, score_mod=add_position, scale=self.scale)

    def reconstruct(self, query: Tensor, slots: Tensor) -> Tensor:
        """Content-based attention of projected queries [B, T, D] over slots [B, S, D]: [B, T, D] (Algorithm 2).

        No mask, no relative positions, no output projection; the weights receive no gradient, the slots do.
        """
        weight = self.key_value.weight.detach()
        projected = F.linear(slots, weight)
        keys, values = projected.chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(
            self._by_head(query),
            self._by_head(keys),
            self._by_head(values),
        )
        return _join_heads(attended)


def _join_heads(by_head: Tensor) -> Tensor:
    """[B, H, S, K] to [B, S, D], the opposite of `RelativeAttention._by_head`."""
    heads_last = by_head.transpose(1, 2)  # [B, S, H, K]
    return heads_last.flatten(2)


def _position_products(query: Tensor, positions: Tensor) -> Tensor:
    """Scores [H, B, T, S] of queries [H, B, T, K] with projected positions [H, K, S]."""
    heads, rows, steps, size = query.shape
    by_head = query.reshape(heads, rows * steps, size)
    products = by_head @ positions  # [H, B T, S]
    return products.unflatten(1, (rows, steps))
