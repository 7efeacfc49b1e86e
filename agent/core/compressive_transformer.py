"""The Compressive Transformer (Rae et al. 2020) as a recurrent core; without compressed memory it is Transformer-XL.

docs/core.md explains the semantics with drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate; all but n_s may differ by layer.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    """Attention over the slots, then an MLP, each joined to the stream; and the compression of the layer's memories."""

    compressed_ages: Tensor
    far_encoding: Tensor | None
    far_index: Tensor | None

    def __init__(self, config: CompressiveTransformerConfig, sizes: LayerSizes) -> None:
        super().__init__()
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
        self.resize(config, sizes, torch.empty(()))

    def resize(self, config: CompressiveTransformerConfig, sizes: LayerSizes, like: Tensor) -> None:
        """Changes the numbers of slots, on which no weight depends; `like` gives dtype and device of encodings."""
        self.config, self.sizes = config, sizes
        ages = self.compression.valid_ages(sizes) if self.compression else torch.arange(0)
        self.register_buffer("compressed_ages", ages.to(like.device), persistent=False)
        far, index = None, None
        if config.compressed_position == "time" and sizes.compressed:
            # Distances from each step of a segment to compressed slots, which count as c steps each.
            spans = sizes.memory + sizes.rate * torch.arange(sizes.compressed, 0, -1)
            index = (torch.arange(sizes.segment)[:, None] + spans).to(like.device)
            farthest = sizes.segment + sizes.memory + sizes.rate * sizes.compressed
            far = sinusoids(torch.arange(farthest), config.model_size).to(like)
        self.register_buffer("far_encoding", far, persistent=False)
        self.register_buffer("far_index", index, persistent=False)

    def ages(self, offset: int) -> Tensor:
        """Ages [S] that a row's episode must have reached at `offset` for each slot before that step to be valid."""
        recent = torch.arange(self.sizes.memory + offset, 0, -1, device=self.compressed_ages.device)
        return torch.cat([self.compressed_ages + offset, recent])

    def project(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of layer inputs [B, S, D]."""
        return self.attention.project(slots, self.attention_norm if self.pre_norm else None)

    def make_cache(self, offset: int, encoding: Tensor, compressed: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """Projects the slots, of the segment the first `offset`; `encoding` [.., D] is of the distances ..., 1, 0."""
        keys_values = self.project(torch.cat([compressed, memory, segment[:, :offset]], dim=1))
        empty = self.sizes.segment - offset
        # Padding also makes them contiguous; without that, the product of each step would copy them.
        keys, values = (F.pad(part, (0, 0, 0, empty)) for part in keys_values)
        near = self.attention.project_positions(encoding[-self.sizes.slots :])
        far = None if self.far_encoding is None else self.attention.project_positions(self.far_encoding)
        return KVCache(keys, values, near, far)

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
        first = begin - self.sizes.compressed - self.sizes.memory
        far_index = None if self.far_index is None else self.far_index[first : first + x.shape[1]]
        attended, weights = self.attention(queries, cache, bias, far_index, return_weights)
        x = self._join(self.attention_gate, self.attention_norm, x, attended)
        x = self._join(self.mlp_gate, self.mlp_norm, x, self.mlp(self.mlp_norm(x) if self.pre_norm else x))
        return x, cache, weights

    def _join(self, gate: Callable[[Tensor, Tensor], Tensor], norm: nn.LayerNorm, x: Tensor, branch: Tensor) -> Tensor:
        # GTrXL: with the norm at the input, a ReLU separates the linear maps of consecutive branches.
        branch = F.relu(branch) if self.config.gate == "gru" else branch
        x = gate(x, F.dropout(branch, self.config.dropout, self.training))
        return x if self.pre_norm else norm(x)

    def update_memory(
        self, segment: Tensor, memory: Tensor, compressed: Tensor, age: Tensor, usage: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
        """A full segment enters memory; the memories that no longer fit are compressed (Algorithm 1, lines 8 to 11).

        Returns memory, compressed memory, which of the evicted memories the new compressed slots are (most-used only),
        and sum and count of the compression loss (only with gradients).
        """
        n_s, n_m, n_cm, rate = self.sizes
        evicted, memory = torch.cat([memory, segment], dim=1).split([n_s, n_m], dim=1)
        # Contiguous: a view would keep the dropped slots in memory, and compiled code would see another layout.
        memory = memory.contiguous()
        if self.compression is None:
            return memory, compressed, None, None
        ages = torch.arange(n_m + n_s, n_m, -1, device=segment.device)
        valid = age[:, None] >= ages
        kind, norm = self.config.compression_loss, self.attention_norm if self.pre_norm else None
        # Memories that precede an episode start are zeroed. The task's loss must not train the compression, and the
        # compression loss must not train the network.
        evicted = (evicted if kind == "bptt" else evicted.detach()) * valid[:, :, None]
        new, source = self.compression(evicted, valid, None if usage is None else usage[:, :n_s] / ages)
        loss = None
        if torch.is_grad_enabled() and kind == "attention":
            loss = attention_loss(self.attention, norm, segment, evicted, new, valid)
        elif torch.is_grad_enabled() and self.decoder is not None:
            loss = autoencoding_loss(self.decoder, rate, evicted, new, valid)
        compressed = torch.cat([compressed, new if kind == "bptt" else new.detach()], dim=1)[:, -n_cm:].contiguous()
        return memory, compressed, source, loss


class CompressiveTransformer(Core):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call. They stop at compression (unless the loss is BPTT),
    and at the incoming state only if the caller detached it, as learners do.
    """

    encoding: Tensor

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        self.config = config
        layers = nn.ModuleList(Layer(config, sizes) for sizes in config.layer_sizes)
        self.layers: Sequence[Layer] = layers  # type: ignore[assignment]
        self.final_norm = nn.LayerNorm(config.model_size) if config.norm == "pre" else nn.Identity()
        self._make_encoding(torch.empty(()))

    def _make_encoding(self, like: Tensor) -> None:
        farthest = max(sizes.slots for sizes in self.config.layer_sizes)
        encoding = sinusoids(torch.arange(farthest - 1, -1, -1), self.config.model_size)
        self.register_buffer("encoding", encoding.to(like), persistent=False)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains; none if the task trains them (BPTT)."""
        if self.config.compression_loss == "bptt":
            return []
        modules = [module for layer in self.layers for module in (layer.compression, layer.decoder)]
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Zero slots, none of which belongs to an episode, at offset 0."""
        zeros, size = self.encoding.new_zeros, self.config.model_size
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
        segment, memory, compressed, usage = (
            tuple(map(finite, part)) for part in (state.segment, state.memory, state.compressed, state.usage)
        )
        cache = tuple(
            layer.make_cache(state.offset, self.encoding, *slots)
            for layer, *slots in zip(self.layers, compressed, memory, segment)
        )
        return state._replace(segment=segment, memory=memory, compressed=compressed, usage=usage, cache=cache)

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
        memory_size = self.config.memory_size if memory_size is None else memory_size
        compressed_size = self.config.compressed_size if compressed_size is None else compressed_size
        config = dataclasses.replace(self.config, memory_size=memory_size, compressed_size=compressed_size)
        for old, new in zip(self.config.layer_sizes, config.layer_sizes):
            if (old.compressed > 0) != (new.compressed > 0):
                expected = f"0 exactly where it was 0 before ({self.config.compressed_size})"
                raise ValueError(f"compressed_size: expected {expected}, got {config.compressed_size}")
        # Not a new core, whose initialization would draw random numbers.
        resized = copy.deepcopy(self)
        resized.config = config
        resized._make_encoding(self.encoding)
        for layer, sizes in zip(resized.layers, config.layer_sizes):
            layer.resize(config, sizes, self.encoding)
        return resized

    def slot_ages(self, layer: int, offset: int = 0, state: CompressiveState | None = None) -> Tensor:
        """Ages [S, 2] int64 of the oldest and the newest step in each slot, seen from the step at `offset`.

        Slot s of a query at time t holds the steps t - oldest, ..., t - newest; later steps have negative ages. With
        most-used compression the ages span all steps that a slot may hold, unless a state of the segment is given: then
        they are those of the one step that it holds, [B, S, 2].
        """
        sizes, compression = self.layers[layer].sizes, self.layers[layer].compression
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=self.encoding.device)
        near = torch.stack([recent, recent], dim=-1) + offset
        if compression is None:
            return near
        source = state.source[layer] if state is not None and state.source else None
        far = compression.slot_ages(sizes, source).to(near.device) + offset
        return torch.cat([far, near.expand(*far.shape[:-2], -1, -1)], dim=-2)

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
        self._check_sizes(state)
        cached = state.cache is not None
        state = state if cached else self.with_cache(state)
        clean, steps, begin = finite(inputs), inputs.shape[1], 0
        features, attention = [], []
        losses: dict[str, list[tuple[Tensor, Tensor]]] = {}
        while begin < steps:
            end = min(begin + self.config.segment_size - state.offset, steps)
            x, state, weights = self._advance(clean[:, begin:end], reset[:, begin:end], state, return_attention)
            features.append(x)
            attention.append(weights)
            begin = end
            if begin == steps and not cached:
                state = state._replace(cache=None)
            if state.offset == self.config.segment_size:
                state = self._update_memory(state, losses)
        joined = tuple(torch.cat(layer, dim=2) for layer in zip(*attention)) if return_attention else None
        means = {name: Mean(*map(torch.stack, zip(*parts))) for name, parts in losses.items()}
        return CoreOutput(mark_broken(self.final_norm(torch.cat(features, dim=1)), inputs), state, means, joined)

    def _check_sizes(self, state: CompressiveState) -> None:
        expected = [tuple(layer.sizes[:3]) for layer in self.layers]
        sizes = [tuple(part.shape[1] for part in layer) for layer in zip(state.segment, state.memory, state.compressed)]
        if sizes != expected:
            raise ValueError(f"state: expected slots (segment, memory, compressed) by layer {expected}, got {sizes}")

    def _advance(
        self, x: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool
    ) -> tuple[Tensor, CompressiveState, list[Tensor]]:
        """Runs the layers over steps of the segment in progress (Algorithm 1, lines 5 to 7 and 12)."""
        assert state.cache is not None
        begin, end = state.offset, state.offset + x.shape[1]
        resets = reset.long().cumsum(dim=1)
        unbroken = resets == 0
        own = resets[:, :, None] == resets[:, None, :]
        own = own & torch.ones_like(own[0]).tril()
        biases: dict[LayerSizes, Tensor] = {}
        segments, caches, attention, usage = [], [], [], []
        for index, (layer, cache) in enumerate(zip(self.layers, state.cache)):
            sizes = layer.sizes
            if sizes not in biases:
                old = (state.age[:, None] >= layer.ages(begin))[:, None, :] & unbroken[:, :, None]
                seen = torch.cat([old, own], dim=2)[:, None]
                # Added to scores: unlike a selection, a sum costs nothing backward.
                biases[sizes] = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, -torch.inf)
            segments.append(cache.write(state.segment[index], x, begin))
            x, cache, weights = layer(x, cache, biases[sizes], return_attention or bool(state.usage))
            caches.append(cache)
            if return_attention or state.usage:
                attention.append(F.pad(weights, (0, sizes.segment - end)))
            if state.usage:
                received = attention[-1].detach().mean(dim=1).sum(dim=1)[:, sizes.compressed :]
                usage.append(state.usage[index] + received)
        state = state._replace(
            segment=tuple(segments),
            age=own[:, -1].sum(dim=1) + state.age * unbroken[:, -1],
            offset=end,
            usage=tuple(usage),
            cache=tuple(caches),
        )
        return x, state, attention

    def _update_memory(
        self, state: CompressiveState, losses: dict[str, list[tuple[Tensor, Tensor]]]
    ) -> CompressiveState:
        """Moves a full segment into memory in every layer, and adds the compression losses to `losses`."""
        memories, compressed, sources, caches = [], [], list(state.source), list(state.cache or ())
        for index, layer in enumerate(self.layers):
            _, _, n_cm, rate = layer.sizes
            usage = state.usage[index] if state.usage else None
            memory, slots, source, loss = layer.update_memory(
                state.segment[index], state.memory[index], state.compressed[index], state.age, usage
            )
            memories.append(memory)
            compressed.append(slots)
            if source is not None:
                sources[index] = torch.cat([state.source[index], source], dim=1)[:, -n_cm:].contiguous()
            if loss is not None:
                losses.setdefault(f"compression/layer_{index}", []).append(loss)
            if caches:
                added = min(self.config.segment_size // rate, n_cm)
                caches[index] = caches[index].shift(*layer.project(slots[:, n_cm - added :]), layer.sizes)
        n_s = self.config.segment_size
        return state._replace(
            segment=tuple(torch.zeros_like(segment) for segment in state.segment),
            memory=tuple(memories),
            compressed=tuple(compressed),
            offset=0,
            usage=tuple(F.pad(usage[:, n_s:], (0, n_s)) for usage in state.usage),
            source=tuple(sources),
            cache=tuple(caches) if caches else None,
        )
