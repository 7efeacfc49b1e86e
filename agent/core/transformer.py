"""What all transformers with a memory share: segments, a memory of layer inputs, resets, caches and the loop over them.

Slots of a layer are [older | memory | segment]. A subclass says where the steps that leave memory go: they are
compressed (`compressive_transformer.py`) or filed by content (`routing.py`). docs/core.md has drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import RelativeAttention, sinusoids
from .cache import KVCache
from .config import LayerSizes, RoutedSizes, Sizes, TransformerConfig
from .contract import Core, CoreOutput, Mean, check_call, finite, mark_broken


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


class TransformerLayer(nn.Module):
    """Attention over the slots, then an MLP, each joined to the stream.

    No weight depends on the numbers of slots: `sizes` may be changed.
    """

    def __init__(
        self, config: TransformerConfig, sizes: LayerSizes | RoutedSizes, use_flex: bool = False, rings: int = 1
    ) -> None:
        super().__init__()
        self.config: Any = config
        self.sizes: Any = sizes
        size, gate = config.model_size, GRUGate if config.gate == "gru" else lambda _: torch.add
        self.pre_norm = config.norm == "pre"
        self.attention = RelativeAttention(size, config.num_heads, use_flex, rings)
        self.attention_norm = nn.LayerNorm(size)
        self.attention_gate = gate(size)
        self.mlp = nn.Sequential(nn.Linear(size, config.mlp_size), nn.ReLU(), nn.Linear(config.mlp_size, size))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp_gate = gate(size)

    def ages(self, offset: int, device: torch.device) -> Tensor:
        """Ages that a row's episode must have reached at `offset` for each slot before that step to be valid.

        [S], the last slots; what `bias` adds to them is not among them.
        """
        return torch.arange(self.sizes.memory + offset, 0, -1, device=device)

    def bias(self, x: Tensor, slots: Any, bias: Tensor, age: Tensor, offset: int, unbroken: Tensor) -> Tensor:
        """The bias [B, 1 or H, T, S] of all slots for steps x [B, T, D], given that of the slots in `ages`.

        `age` [B] is that before the first step, at `offset`; `unbroken` [B, T] is false from a row's first reset on.
        """
        return bias

    def observes(self, slots: Any) -> bool:
        """Whether `observe` needs the attention weights."""
        return False

    def observe(self, x: Tensor, slots: Any, weights: Tensor, bias: Tensor) -> Any:
        """The layer's state after the attention [B, H, T, S] of steps x [B, T, D]; `bias` is that of `bias`."""
        return slots

    def update_memory(self, slots: Any, age: Tensor, keep_cache: bool) -> Any:
        """The layer's state after a full segment has entered memory; `age` [B] is that after the segment."""
        raise NotImplementedError

    def slot_weights(self, weights: Tensor) -> Tensor:
        """Attention weights over the slots as they are in the state, if heads see different ones."""
        return weights

    def project(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of layer inputs [B, S, D]."""
        return self.attention.project(slots, self.attention_norm if self.pre_norm else None)

    def forward(
        self, x: Tensor, cache: KVCache, bias: Tensor, return_weights: bool = False
    ) -> tuple[Tensor, KVCache, Tensor | None]:
        """Maps T steps x [B, T, D] of a segment to [B, T, D], the cache with these steps, and attention weights.

        The cache has the slots before the steps. `bias` [B, 1 or H, T, S] is 0 where a step may attend to a slot,
        -infinity elsewhere; the last T slots are the steps. The weights are [B, H, T, S], or None unless they are
        requested.
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


class Transformer(Core):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call, and stop at the incoming state only if the caller
    detached it, as learners do.

    A state is a NamedTuple with the fields segment [B, n_s, D], memory [B, n_m, D] and that of the older slots, each
    with one tensor for each layer, age [B], offset and cache; subclasses document theirs.
    """

    state_type: ClassVar[Any]
    layer_state: ClassVar[Any]
    """What one layer remembers; its fields, but for the last, are fields of the state."""
    layer_type: ClassVar[Any]
    """Makes a layer of the core's configuration and the layer's sizes."""
    attention_kinds: ClassVar[tuple[str, str, str]]
    """The kinds of slots, in their order in attention weights; the first is also the state's field of older slots."""
    resizable: ClassVar[tuple[str, str]]
    """The sizes that `resized` may change: of memory, and of the older slots."""
    layers: Sequence[Any]
    config: Any

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        layers = nn.ModuleList(self.layer_type(config, sizes) for sizes in config.layer_sizes)
        self.layers = layers  # type: ignore[assignment]
        self.final_norm = nn.LayerNorm(config.model_size) if config.norm == "pre" else nn.Identity()

    def by_layer(self, state: Any) -> list[Any]:
        """What each layer remembers: its part of each field of a state with a cache."""
        none, names = (None,) * len(self.layers), self.layer_state._fields[:-1]  # all but `losses`
        return [self.layer_state(*parts) for parts in zip(*(getattr(state, name) or none for name in names))]

    def join(self, slots: list[Any], age: Tensor, offset: int, cached: bool) -> Any:
        """The state, of the parts of each layer."""
        by_name: Any = zip(self.layer_state._fields, zip(*slots))
        parts = {name: () if part[0] is None else part for name, part in by_name} | {"age": age, "offset": offset}
        parts["cache"] = parts["cache"] if cached else None
        return self.state_type(*(parts[name] for name in self.state_type._fields))

    def losses(self, slots: list[Any]) -> dict[str, Mean]:
        """The losses of a call, from the parts of each layer."""
        raise NotImplementedError

    def slot_ages(self, layer: int, state: Any) -> Tensor:
        """Ages [B, S, 2] int64 of the oldest and the newest step in each slot, seen from the state's next step.

        For a next step at time t, a slot holds the steps t - oldest, ..., t - newest. Later steps have negative ages.
        """
        raise NotImplementedError

    def with_cache(self, state: Any) -> Any:
        """Projects the state's keys and values once; later calls with the state project new steps only.

        For acting, evaluation and sampling: the cache is valid while the weights do not change. Calls with a cache
        return states with a cache, in which the segment after the offset is undefined.
        """
        # Field by field, because `map_state` compares offsets, for each of which a compiler would make a graph.
        floats = {
            name: tuple(map(finite, part))
            for name, part in state._asdict().items()
            if isinstance(part, tuple) and part and isinstance(part[0], Tensor) and part[0].is_floating_point()
        }
        state = state._replace(**floats)
        farthest = max(layer.sizes.slots for layer in self.layers) - 1
        distances = torch.arange(farthest, -1, -1, device=state.age.device)
        encoding = sinusoids(distances, self.config.model_size).to(state.memory[0])
        slots = zip(self.layers, getattr(state, self.attention_kinds[0]), state.memory, state.segment)
        return state._replace(cache=tuple(layer.make_cache(state.offset, encoding, *parts) for layer, *parts in slots))

    def without_cache(self, state: Any) -> Any:
        """Drops the cache, and zeroes the segment after the offset."""
        if state.cache is None:
            return state
        empty = self.config.segment_size - state.offset
        segment = tuple(F.pad(part[:, : state.offset], (0, 0, 0, empty)) for part in state.segment)
        return state._replace(segment=segment, cache=None)

    def resized(self, **sizes: Sizes | None) -> Any:
        """A copy with other sizes (`resizable`) and the same weights, which do not depend on them (paper, tables 8 and
        9); None keeps a size.

        Raises:
            ValueError: if a layer would gain or lose its older slots, and the weights that belong to them; if the core
                does not have such slots.
        """
        given = {name: size for name, size in sizes.items() if size is not None}
        for name in given.keys() - {*self.resizable}:
            raise ValueError(f"{name}: expected none for a core with {self.resizable[-1]}, got {given[name]}")
        config = dataclasses.replace(self.config, **given)
        if [layer.sizes.by_kind[0] > 0 for layer in self.layers] != [new.by_kind[0] > 0 for new in config.layer_sizes]:
            name = self.resizable[-1]
            expected = f"0 exactly where it was 0 before ({getattr(self.config, name)})"
            raise ValueError(f"{name}: expected {expected}, got {getattr(config, name)}")
        resized = copy.deepcopy(self)
        resized.config = config
        for layer, new in zip(resized.layers, config.layer_sizes):
            layer.sizes = new
        return resized

    def attention_by_kind(self, attention: tuple[Tensor, ...]) -> Tensor:
        """Sums attention weights, one [B, H, T, S] for each layer, over each of `attention_kinds`: [L, B, H, T, 3]."""
        by_layer = []
        for layer, weights in zip(self.layers, attention):
            kinds = weights.split(layer.sizes.by_kind, dim=-1)
            by_layer.append(torch.stack([kind.sum(dim=-1) for kind in kinds], dim=-1))
        return torch.stack(by_layer)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        check_call(inputs, reset, state, self.config.model_size, self.state_type)
        names = ("segment", "memory", self.attention_kinds[0])
        expected = [layer.sizes.stored for layer in self.layers]
        parts = zip(*(getattr(state, name) for name in names))
        sizes = [tuple(size for part in layer for size in part.shape[1:-1]) for layer in parts]
        if sizes != expected:
            raise ValueError(f"state: expected slots ({', '.join(names)}) by layer {expected}, got {sizes}")
        cached, clean, n_s = state.cache is not None, finite(inputs), self.config.segment_size
        slots = self.by_layer(state if cached else self.with_cache(state))
        age, offset, begin, steps = state.age, state.offset, 0, inputs.shape[1]
        features, attention = [], []
        while begin < steps:
            end = min(begin + n_s - offset, steps)
            part = clean[:, begin:end], reset[:, begin:end]
            x, age, slots, weights = self._advance(*part, age, slots, offset, return_attention)
            features.append(x)
            attention.append(weights)
            offset, begin = offset + end - begin, end
            if offset == n_s:
                keep_cache, offset = cached or begin < steps, 0
                slots = [layer.update_memory(part, age, keep_cache) for layer, part in zip(self.layers, slots)]
        joined = tuple(torch.cat(layer, dim=2) for layer in zip(*attention)) if return_attention else None
        broken = mark_broken(self.final_norm(torch.cat(features, dim=1)), inputs)
        return CoreOutput(broken, self.join(slots, age, offset, cached), self.losses(slots), joined)

    def _advance(
        self, x: Tensor, reset: Tensor, age: Tensor, slots: list[Any], offset: int, return_attention: bool
    ) -> tuple[Tensor, Tensor, list[Any], list[Tensor]]:
        """Runs the layers over steps of the segment in progress (Rae et al. 2020, Algorithm 1, lines 5 to 7 and 12).

        Returns features, age, slots, and attention weights if they are requested.
        """
        resets = reset.long().cumsum(dim=1)
        unbroken = resets == 0
        own = (resets[:, :, None] == resets[:, None, :]).tril()
        biases: dict[Any, Tensor] = {}
        after, attention = [], []
        for layer, part in zip(self.layers, slots):
            if layer.sizes not in biases:
                old = (age[:, None] >= layer.ages(offset, x.device))[:, None, :] & unbroken[:, :, None]
                # Added to scores: unlike a selection, a sum costs nothing backward.
                biases[layer.sizes] = additive(torch.cat([old, own], dim=2)[:, None], x)
            inputs, shared = x, biases[layer.sizes]
            part = part._replace(segment=part.cache.write(part.segment, x, offset))
            bias, observes = layer.bias(x, part, shared, age, offset, unbroken), layer.observes(part)
            x, cache, weights = layer(x, part.cache, bias, return_attention or observes)
            part = part._replace(cache=cache)
            if observes:
                part = layer.observe(inputs, part, weights, bias)
            if return_attention:
                weights = layer.slot_weights(weights)
                attention.append(F.pad(weights, (0, layer.sizes.slots - weights.shape[-1])))
            after.append(part)
        return x, own[:, -1].sum(dim=1) + age * unbroken[:, -1], after, attention


def additive(seen: Tensor, like: Tensor) -> Tensor:
    """0 where `seen` is true, -infinity elsewhere, in the dtype of `like`."""
    return like.new_full(seen.shape, -torch.inf).masked_fill(seen, 0.0)
