"""The Compressive Transformer (Rae et al. 2020) as a recurrent core; without compressed memory it is Transformer-XL.

docs/core.md explains the semantics with drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate; all but n_s may differ by layer.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core.attention import RelativeAttention, sinusoids
from agent.core.cache import KVCache
from agent.core.compression import COMPRESSIONS, Compression, attention_loss, autoencoding_loss
from agent.core.config import CompressiveTransformerConfig, LayerSizes, Sizes
from agent.core.contract import Core, CoreOutput, Mean, check_call, finite, mark_broken

ATTENTION_KINDS = ("compressed", "memory", "segment")
"""The kinds of slots, in their order in attention weights."""


class CompressiveState(NamedTuple):
    """The memory. One tensor for each layer; slots hold layer inputs in temporal order, oldest first.

    segment: [B, n_s, D], the segment in progress; the first `offset` steps are filled.
    memory: [B, n_m, D].
    compressed: [B, n_cm, D].
    age: [B] int64, steps of the row's episode so far. Every slot's distance in time is known, so this number says which
        slots belong to the episode: it is the validity mask of all of them.
    offset: steps into the segment, an integer shared by the batch.
    usage: [B, n_m + n_s], attention received so far by memory and segment; () unless compression is most-used.
    source: [B, n_cm] int64, which of the n_s memories evicted together a slot was; () where usage is ().
    cache: projected keys and values of each layer while weights do not change (see `with_cache`), else None.
    """

    segment: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    compressed: tuple[Tensor, ...]
    age: Tensor
    offset: int
    usage: tuple[Tensor, ...] = ()
    source: tuple[Tensor, ...] = ()
    cache: tuple[KVCache, ...] | None = None


class LayerState(NamedTuple):
    """What one layer remembers: its part of each field of a `CompressiveState`."""

    segment: Tensor
    memory: Tensor
    compressed: Tensor
    usage: Tensor | None
    source: Tensor | None
    cache: KVCache


class GRUGate(nn.Module):
    """GTrXL's gate (Parisotto et al. 2019, section 3.2): a GRU cell whose bias starts it near the identity."""

    def __init__(self, model_size: int, bias: float = 2.0) -> None:
        super().__init__()
        self.branch = nn.Linear(model_size, 3 * model_size, bias=False)
        self.stream = nn.Linear(model_size, 2 * model_size, bias=False)
        self.candidate = nn.Linear(model_size, model_size, bias=False)
        self.bias = nn.Parameter(torch.full((model_size,), bias))

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        branch_r, branch_z, branch_h = self.branch(branch).chunk(3, dim=-1)
        stream_r, stream_z = self.stream(stream).chunk(2, dim=-1)
        r = torch.sigmoid(branch_r + stream_r)
        z = torch.sigmoid(branch_z + stream_z - self.bias)
        # Not torch.lerp: under autocast the stream may be wider than the branch.
        return stream + z * (torch.tanh(branch_h + self.candidate(r * stream)) - stream)


class Layer(nn.Module):
    """Attention over the slots, then an MLP, each joined to the stream; and the compression of the layer's memories.

    No weight depends on the numbers of slots: `sizes` may be changed.
    """

    def __init__(self, config: CompressiveTransformerConfig, sizes: LayerSizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        size, gate = config.model_size, GRUGate if config.gate == "gru" else lambda _: torch.add
        self.pre_norm = config.norm == "pre"
        self.attention = RelativeAttention(size, config.num_heads, config.attention == "flex")
        self.attention_norm = nn.LayerNorm(size)
        self.attention_gate = gate(size)
        self.mlp = nn.Sequential(nn.Linear(size, config.mlp_size), nn.ReLU(), nn.Linear(config.mlp_size, size))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp_gate = gate(size)
        self.compression: Compression | None = None
        self.decoder: nn.Module | None = None
        if sizes.compressed:
            self.compression = COMPRESSIONS[config.compression](size, sizes.rate)
            if config.compression_loss == "autoencoding":
                # A transposed convolution with kernel = stride = c: the mirror of the convolution.
                self.decoder = nn.Linear(size, sizes.rate * size)

    def ages(self, offset: int, device: torch.device) -> Tensor:
        """Ages [S] that a row's episode must have reached at `offset` for each slot before that step to be valid."""
        recent = torch.arange(self.sizes.memory + offset, 0, -1, device=device)
        if self.compression is None:
            return recent
        return torch.cat([self.compression.valid_ages(self.sizes, device) + offset, recent])

    def project(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of layer inputs [B, S, D]."""
        return self.attention.project(slots, self.attention_norm if self.pre_norm else None)

    def make_cache(self, offset: int, encoding: Tensor, compressed: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """Projects the slots, of the segment the first `offset`; `encoding` [.., D] is of the distances ..., 1, 0."""
        n_s, n_m, n_cm, rate = self.sizes
        keys_values = self.project(torch.cat([compressed, memory, segment[:, :offset]], dim=1))
        # Padding also makes them contiguous; without that, the product of each step would copy them.
        keys, values = (F.pad(part, (0, 0, 0, n_s - offset)) for part in keys_values)
        near, far, far_index = self.attention.project_positions(encoding[-self.sizes.slots :]), None, None
        if self.config.compressed_position == "time" and n_cm:
            distances = torch.arange(n_s + n_m + rate * n_cm, device=memory.device)
            far = self.attention.project_positions(sinusoids(distances, self.config.model_size).to(memory))
            far_index = distances[:n_s, None] + n_m + rate * torch.arange(n_cm, 0, -1, device=memory.device)
        return KVCache(keys, values, near, far, far_index)

    def forward(
        self, x: Tensor, cache: KVCache, bias: Tensor, return_weights: bool = False
    ) -> tuple[Tensor, KVCache, Tensor | None]:
        """Maps T steps x [B, T, D] of a segment to [B, T, D], the cache with these steps, and attention weights.

        The cache has the slots before the steps. `bias` [B, 1, T, S] is 0 where a step may attend to a slot, -infinity
        elsewhere; the last T slots are the steps. The weights are [B, H, T, S], or None unless they are requested.
        """
        queries = self.attention_norm(x) if self.pre_norm else x
        begin = bias.shape[-1] - x.shape[1]
        cache = cache.append(*self.attention.project(queries), begin)
        attended, weights = self.attention(queries, cache, bias, return_weights)
        x = self._join(self.attention_gate, self.attention_norm, x, attended)
        x = self._join(self.mlp_gate, self.mlp_norm, x, self.mlp(self.mlp_norm(x) if self.pre_norm else x))
        return x, cache, weights

    def _join(self, gate: Callable[[Tensor, Tensor], Tensor], norm: nn.LayerNorm, x: Tensor, branch: Tensor) -> Tensor:
        # GTrXL: with the norm at the input, a ReLU separates the linear maps of consecutive branches.
        branch = F.relu(branch) if self.config.gate == "gru" else branch
        x = gate(x, F.dropout(branch, self.config.dropout, self.training))
        return x if self.pre_norm else norm(x)

    def update_memory(
        self, slots: LayerState, age: Tensor, keep_cache: bool
    ) -> tuple[LayerState, tuple[Tensor, Tensor] | None]:
        """A full segment enters memory; the memories that no longer fit are compressed (Algorithm 1, lines 8 to 11).

        Also returns sum and count of the compression loss, if gradients are enabled.
        """
        (n_s, n_m, n_cm, rate), (segment, memory, compressed, usage, source, cache) = self.sizes, slots
        evicted, memory = torch.cat([memory, segment], dim=1).split([n_s, n_m], dim=1)
        # Contiguous: a view would keep the dropped slots in memory, and compiled code would see another layout.
        memory, loss = memory.contiguous(), None
        if self.compression is not None:
            ages = torch.arange(n_m + n_s, n_m, -1, device=segment.device)
            valid = age[:, None] >= ages
            kind, norm = self.config.compression_loss, self.attention_norm if self.pre_norm else None
            # Memories that precede an episode start are zeroed. The task's loss must not train the compression, and the
            # compression loss must not train the network.
            evicted = (evicted if kind == "bptt" else evicted.detach()) * valid[:, :, None]
            new, index = self.compression(evicted, valid, None if usage is None else usage[:, :n_s] / ages)
            if torch.is_grad_enabled() and kind == "attention":
                loss = attention_loss(self.attention, norm, segment, evicted, new, valid)
            elif torch.is_grad_enabled() and self.decoder is not None:
                loss = autoencoding_loss(self.decoder, rate, evicted, new, valid)
            new = new if kind == "bptt" else new.detach()
            compressed = torch.cat([compressed, new], dim=1)[:, -n_cm:].contiguous()
            if source is not None:
                source = torch.cat([source, index], dim=1)[:, -n_cm:].contiguous()
        if usage is not None:
            usage = F.pad(usage[:, n_s:], (0, n_s))
        if keep_cache:
            added = min(n_s // rate, n_cm)
            cache = cache.shift(*self.project(compressed[:, n_cm - added :]), self.sizes)
        return LayerState(torch.zeros_like(segment), memory, compressed, usage, source, cache), loss


class CompressiveTransformer(Core):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call. They stop at compression (unless the loss is BPTT),
    and at the incoming state only if the caller detached it, as learners do.
    """

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        self.config = config
        layers = nn.ModuleList(Layer(config, sizes) for sizes in config.layer_sizes)
        self.layers: Sequence[Layer] = layers  # type: ignore[assignment]
        self.final_norm = nn.LayerNorm(config.model_size) if config.norm == "pre" else nn.Identity()

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains; none if the task trains them (BPTT)."""
        if self.config.compression_loss == "bptt":
            return []
        modules = [module for layer in self.layers for module in (layer.compression, layer.decoder)]
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Zero slots, none of which belongs to an episode, at offset 0."""
        zeros, size = next(self.parameters()).new_zeros, self.config.model_size
        sizes = [layer.sizes for layer in self.layers]
        most_used = self.config.compression == "most-used" and any(n_cm for _, _, n_cm, _ in sizes)
        return CompressiveState(
            segment=tuple(zeros(batch_size, n_s, size) for n_s, _, _, _ in sizes),
            memory=tuple(zeros(batch_size, n_m, size) for _, n_m, _, _ in sizes),
            compressed=tuple(zeros(batch_size, n_cm, size) for _, _, n_cm, _ in sizes),
            age=zeros(batch_size, dtype=torch.int64),
            offset=0,
            usage=tuple(zeros(batch_size, n_m + n_s) for n_s, n_m, _, _ in sizes if most_used),
            source=tuple(zeros(batch_size, n_cm, dtype=torch.int64) for _, _, n_cm, _ in sizes if most_used),
        )

    def with_cache(self, state: CompressiveState) -> CompressiveState:
        """Projects the state's keys and values once; later calls with the state project new steps only.

        For acting, evaluation and sampling: the cache is valid while the weights do not change. Calls with a cache
        return states with a cache, in which the segment after the offset is undefined.
        """
        # Field by field, because `map_state` compares offsets, for each of which a compiler would make a graph.
        parts = state.segment, state.memory, state.compressed, state.usage
        segment, memory, compressed, usage = (tuple(map(finite, part)) for part in parts)
        state = state._replace(segment=segment, memory=memory, compressed=compressed, usage=usage)
        farthest = max(layer.sizes.slots for layer in self.layers) - 1
        distances = torch.arange(farthest, -1, -1, device=state.age.device)
        encoding = sinusoids(distances, self.config.model_size).to(state.memory[0])
        slots = zip(self.layers, state.compressed, state.memory, state.segment)
        return state._replace(cache=tuple(layer.make_cache(state.offset, encoding, *parts) for layer, *parts in slots))

    def without_cache(self, state: CompressiveState) -> CompressiveState:
        """Drops the cache, and zeroes the segment after the offset."""
        if state.cache is None:
            return state
        empty = self.config.segment_size - state.offset
        segment = tuple(F.pad(part[:, : state.offset], (0, 0, 0, empty)) for part in state.segment)
        return state._replace(segment=segment, cache=None)

    def resized(
        self, memory_size: Sizes | None = None, compressed_size: Sizes | None = None
    ) -> "CompressiveTransformer":
        """A copy with other memory sizes and the same weights, which do not depend on them (paper, tables 8 and 9).

        Raises:
            ValueError: if a layer would gain or lose its compressed memory, and so its compression function.
        """
        sizes: dict[str, Any] = {"memory_size": memory_size, "compressed_size": compressed_size}
        config = dataclasses.replace(self.config, **{name: size for name, size in sizes.items() if size is not None})
        if [layer.sizes.compressed > 0 for layer in self.layers] != [new.compressed > 0 for new in config.layer_sizes]:
            expected = f"0 exactly where it was 0 before ({self.config.compressed_size})"
            raise ValueError(f"compressed_size: expected {expected}, got {config.compressed_size}")
        resized = copy.deepcopy(self)
        resized.config = config
        for layer, new in zip(resized.layers, config.layer_sizes):
            layer.sizes = new
        return resized

    def slot_ages(self, layer: int, state: CompressiveState) -> Tensor:
        """Ages [B, S, 2] int64 of the oldest and the newest step in each slot, seen from the state's next step.

        For a next step at time t, a slot holds the steps t - oldest, ..., t - newest. Later steps have negative ages.
        """
        sizes, compression = self.layers[layer].sizes, self.layers[layer].compression
        rows, device = len(state.age), state.age.device
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=device)
        ages = torch.stack([recent, recent], dim=-1).expand(rows, -1, -1)
        if compression is not None:
            far = compression.slot_ages(sizes, device, state.source[layer] if state.source else None)
            ages = torch.cat([far.expand(rows, -1, -1), ages], dim=1)
        return ages + state.offset

    def attention_by_kind(self, attention: tuple[Tensor, ...]) -> Tensor:
        """Sums attention weights, one [B, H, T, S] for each layer, over each of `ATTENTION_KINDS`: [L, B, H, T, 3]."""
        by_layer = []
        for layer, weights in zip(self.layers, attention):
            kinds = weights.split([layer.sizes.compressed, layer.sizes.memory, layer.sizes.segment], dim=-1)
            by_layer.append(torch.stack([kind.sum(dim=-1) for kind in kinds], dim=-1))
        return torch.stack(by_layer)

    def forward(
        self, inputs: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool = False
    ) -> CoreOutput:
        """See `agent.core.contract.Core`; the losses are `compression/layer_<i>`."""
        check_call(inputs, reset, state, self.config.model_size, CompressiveState)
        expected = [tuple(layer.sizes[:3]) for layer in self.layers]
        sizes = [tuple(part.shape[1] for part in layer) for layer in zip(state.segment, state.memory, state.compressed)]
        if sizes != expected:
            raise ValueError(f"state: expected slots (segment, memory, compressed) by layer {expected}, got {sizes}")
        cached, clean, n_s = state.cache is not None, finite(inputs), self.config.segment_size
        slots = _by_layer(state if cached else self.with_cache(state))
        age, offset, begin, steps = state.age, state.offset, 0, inputs.shape[1]
        features, attention, losses = [], [], []
        while begin < steps:
            end = min(begin + n_s - offset, steps)
            part = clean[:, begin:end], reset[:, begin:end]
            x, age, slots, weights = self._advance(*part, age, slots, offset, return_attention)
            features.append(x)
            attention.append(weights)
            offset, begin = offset + end - begin, end
            if offset == n_s:
                keep_cache, offset = cached or begin < steps, 0
                updated = (layer.update_memory(part, age, keep_cache) for layer, part in zip(self.layers, slots))
                slots, loss = zip(*updated)
                losses.append(loss)
        segment, memory, compressed, usage, source, cache = zip(*slots)
        usage, source = (usage, source) if state.usage else ((), ())
        after = CompressiveState(segment, memory, compressed, age, offset, usage, source, cache if cached else None)
        means = {
            f"compression/layer_{index}": Mean(*map(torch.stack, zip(*parts)))
            for index, parts in enumerate(zip(*losses))
            if parts[0] is not None
        }
        joined = tuple(torch.cat(layer, dim=2) for layer in zip(*attention)) if return_attention else None
        return CoreOutput(mark_broken(self.final_norm(torch.cat(features, dim=1)), inputs), after, means, joined)

    def _advance(
        self, x: Tensor, reset: Tensor, age: Tensor, slots: Sequence[LayerState], offset: int, return_attention: bool
    ) -> tuple[Tensor, Tensor, list[LayerState], list[Tensor | None]]:
        """Runs the layers over steps of the segment in progress (Algorithm 1, lines 5 to 7 and 12).

        Returns features, age, slots, and attention weights if they are requested or measured.
        """
        resets = reset.long().cumsum(dim=1)
        unbroken = resets == 0
        own = (resets[:, :, None] == resets[:, None, :]).tril()
        biases: dict[LayerSizes, Tensor] = {}
        after, attention = [], []
        for layer, (segment, memory, compressed, usage, source, cache) in zip(self.layers, slots):
            if layer.sizes not in biases:
                old = (age[:, None] >= layer.ages(offset, x.device))[:, None, :] & unbroken[:, :, None]
                seen = torch.cat([old, own], dim=2)[:, None]
                # Added to scores: unlike a selection, a sum costs nothing backward.
                biases[layer.sizes] = x.new_full(seen.shape, -torch.inf).masked_fill(seen, 0.0)
            segment, show = cache.write(segment, x, offset), return_attention or usage is not None
            x, cache, weights = layer(x, cache, biases[layer.sizes], show)
            if show:
                weights = F.pad(weights, (0, layer.sizes.slots - weights.shape[-1]))
            if usage is not None:
                usage = usage + weights.detach().mean(dim=1).sum(dim=1)[:, layer.sizes.compressed :]
            attention.append(weights)
            after.append(LayerState(segment, memory, compressed, usage, source, cache))
        return x, own[:, -1].sum(dim=1) + age * unbroken[:, -1], after, attention


def _by_layer(state: CompressiveState) -> Sequence[LayerState]:
    assert state.cache is not None
    none = (None,) * len(state.memory)
    fields = state.segment, state.memory, state.compressed, state.usage or none, state.source or none, state.cache
    return [LayerState(*parts) for parts in zip(*fields)]
