"""What all transformers with a memory share: segments, a memory of layer inputs, resets, caches and the loop over them.

Steps are processed in segments of n_s. A slot is a vector that a layer's steps attend to; slots of segment and memory
are the layer's inputs at earlier steps. Slots of a layer are [older | memory | segment]. A subclass says what happens
to the steps that leave memory: they are compressed (`compressive_transformer.py`) or filed by content (`routing.py`).
docs/core.md has drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import RelativeAttention, sinusoids
from .cache import KVCache
from .config import LayerSizes, RoutedSizes, Sizes, TransformerConfig
from .contract import Core, CoreOutput, Mean, check_call, finite, mark_broken


class TransformerState(Protocol):
    """The fields that the states of all transformers have. Each subclass has a NamedTuple with these and its own."""

    @property
    def segment(self) -> tuple[Tensor, ...]:
        """Of each layer, [B, n_s, D]: the layer's inputs in the segment in progress, `offset` of them so far."""

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Of each layer, [B, n_m, D]: the layer's inputs before the segment, oldest first."""

    @property
    def age(self) -> Tensor:
        """[B] int64, steps of the row's episode so far."""

    @property
    def offset(self) -> int:
        """Steps into the segment, shared by the batch."""

    @property
    def cache(self) -> tuple[KVCache, ...] | None:
        """Of each layer: keys and values of its slots, if the weights do not change (see `with_cache`)."""

    def _replace(self, *_: Any, **fields: Any) -> Any: ...

    def _asdict(self) -> dict[str, Any]: ...


class TransformerLayerState(Protocol):
    """The fields that the states of all layers have: the layer's part of a `TransformerState`."""

    @property
    def segment(self) -> Tensor:
        """[B, n_s, D]."""

    @property
    def memory(self) -> Tensor:
        """[B, n_m, D]."""

    @property
    def cache(self) -> KVCache:
        """Keys and values of all slots."""

    def _replace(self, *_: Any, **fields: Any) -> Any: ...


StateT = TypeVar("StateT", bound=TransformerState)
LayerStateT = TypeVar("LayerStateT", bound=TransformerLayerState)


class SegmentSteps(NamedTuple):
    """T consecutive steps of one segment: where they stand in the segment, and in the episodes of their rows.

    offset: steps of the segment before the first of them.
    age: [B] int64, steps of the row's episode before the first of them.
    in_state_episode: [B, T] bool, true until the row's first reset among them: such a step belongs to the episode that
        the state remembers, and may see its slots.
    visible: [B, T, T] bool, true where step t sees step s: where s is not later, and of the same episode.
    """

    offset: int
    age: Tensor
    in_state_episode: Tensor
    visible: Tensor

    @property
    def ages(self) -> Tensor:
        """[B, T] int64, steps of the row's episode before each of them."""
        of_these = self.visible.sum(dim=2) - 1  # a step sees itself, too
        of_earlier = self.age[:, None] * self.in_state_episode
        return of_these + of_earlier

    @property
    def age_after(self) -> Tensor:
        """[B] int64, steps of the row's episode up to and including the last of them."""
        return self.ages[:, -1] + 1


def locate(reset: Tensor, age: Tensor, offset: int) -> SegmentSteps:
    """The steps with the resets [B, T], given the age [B] of each row's episode before the first of them."""
    episode = reset.long().cumsum(dim=1)  # 0 is the episode that the state remembers
    same_episode = episode[:, :, None] == episode[:, None, :]
    visible = same_episode.tril()  # and not later
    return SegmentSteps(offset, age, episode == 0, visible)


def additive_mask(seen: Tensor, like: Tensor) -> Tensor:
    """0 where `seen` is true, -infinity elsewhere, in the dtype of `like`.

    Added to scores: unlike a selection, a sum costs nothing in the backward pass.
    """
    hidden = like.new_full(seen.shape, -torch.inf)
    return hidden.masked_fill(seen, 0.0)


class GRUGate(nn.Module):
    """GTrXL's gate (Parisotto et al. 2019, section 3.2): a GRU cell whose bias starts it near the identity."""

    def __init__(self, model_size: int, bias: float = 2.0) -> None:
        super().__init__()
        self.branch = nn.Linear(model_size, 3 * model_size, bias=False)
        self.stream = nn.Linear(model_size, 2 * model_size, bias=False)
        self.candidate = nn.Linear(model_size, model_size, bias=False)
        self.bias = nn.Parameter(torch.full((model_size,), bias))

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """Joins the output of a sub-layer, `branch`, to its input, `stream`."""
        of_branch = self.branch(branch)  # [B, T, 3 D]
        of_stream = self.stream(stream)  # [B, T, 2 D]
        branch_r, branch_z, branch_h = of_branch.chunk(3, dim=-1)
        stream_r, stream_z = of_stream.chunk(2, dim=-1)

        # The reset gate, the update gate and the candidate, as in the paper.
        r = torch.sigmoid(branch_r + stream_r)
        z = torch.sigmoid(branch_z + stream_z - self.bias)
        stream_h = self.candidate(r * stream)
        candidate = torch.tanh(branch_h + stream_h)
        # Not torch.lerp: under autocast the stream may be wider than the branch.
        change = candidate - stream
        return stream + z * change


def make_gate(config: TransformerConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """The function that joins the output of a sub-layer to its input."""
    if config.gate == "gru":
        return GRUGate(config.model_size)
    return torch.add


class TransformerLayer(nn.Module, Generic[LayerStateT]):
    """Attention over the slots, then an MLP. The input of each is added to its output, or joined to it by a gate.

    No weight depends on the numbers of slots: `sizes` may be changed.
    """

    config: TransformerConfig
    sizes: LayerSizes | RoutedSizes

    def __init__(
        self, config: TransformerConfig, sizes: LayerSizes | RoutedSizes, use_flex: bool = False, rings: int = 1
    ) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes
        self.pre_norm = config.norm == "pre"
        size = config.model_size
        self.attention = RelativeAttention(size, config.num_heads, use_flex, rings)
        self.attention_norm = nn.LayerNorm(size)
        self.attention_gate = make_gate(config)
        self.mlp = nn.Sequential(
            nn.Linear(size, config.mlp_size),
            nn.ReLU(),
            nn.Linear(config.mlp_size, size),
        )
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp_gate = make_gate(config)

    @property
    def input_norm(self) -> nn.LayerNorm | None:
        """The norm of the inputs of attention, if there is one."""
        return self.attention_norm if self.pre_norm else None

    def project(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, H, S, K] each, of layer inputs [B, S, D]."""
        return self.attention.project(slots, self.input_norm)

    def forward(
        self,
        x: Tensor,
        state: LayerStateT,
        common_mask: Tensor,
        steps: SegmentSteps,
        return_weights: bool = False,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, LayerStateT, Tensor | None]:
        """Runs the layer over T steps of a segment.

        Args:
            x: [B, T, D], the layer's inputs.
            state: what the layer remembers before the steps.
            common_mask: see `attention_mask`.
            steps: where the steps stand in their segment and episodes.
            return_weights: whether the attention weights are needed.
            hidden: [B, S] bool, the slots of the state that the steps do not see; None for none.

        Returns:
            the outputs [B, T, D], the state after the steps, and the attention weights [B, H, T, S] over all slots of
            the state, or None.
        """
        # The segment remembers the layer's inputs.
        inputs = x
        segment = state.cache.write(state.segment, inputs, steps.offset)
        state = state._replace(segment=segment)

        # The mask also tells how many slots there are so far. The steps are the last of them.
        mask = self.attention_mask(inputs, state, common_mask, steps)
        if hidden is not None:
            mask = self.hide(mask, hidden, steps)
        num_slots = mask.shape[-1]
        num_steps = x.shape[1]
        num_earlier = num_slots - num_steps

        # Attention to the slots before the steps and to the steps themselves.
        normed = self._normed(self.attention_norm, x)
        keys, values = self.attention.project(normed)
        cache = state.cache.append(keys, values, begin=num_earlier)
        needs_weights = self.needs_weights(state)
        attended, weights = self.attention(normed, cache, mask, return_weights or needs_weights)
        x = self._join(self.attention_gate, self.attention_norm, x, attended)

        # MLP.
        normed = self._normed(self.mlp_norm, x)
        mapped = self.mlp(normed)
        x = self._join(self.mlp_gate, self.mlp_norm, x, mapped)

        # Some layers learn or remember what was attended to.
        state = state._replace(cache=cache)
        if needs_weights:
            state = self.observe(inputs, state, weights, mask)

        if not return_weights:
            return x, state, None
        weights = self.slot_weights(weights)
        empty = self.sizes.slots - weights.shape[-1]  # of the segment, after the steps
        padded = F.pad(weights, (0, empty))
        return x, state, padded

    def _normed(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """The input of a sub-layer. Pre-norm normalizes it."""
        if self.pre_norm:
            return norm(x)
        return x

    def _join(self, gate: Callable[[Tensor, Tensor], Tensor], norm: nn.LayerNorm, x: Tensor, branch: Tensor) -> Tensor:
        """Joins the output of a sub-layer, `branch`, to its input x. Post-norm normalizes the result."""
        if self.config.gate == "gru":
            # GTrXL: with the norm at the input, a ReLU separates the linear maps of consecutive branches.
            branch = F.relu(branch)
        branch = F.dropout(branch, self.config.dropout, self.training)
        x = gate(x, branch)
        if self.pre_norm:
            return x
        return norm(x)

    # What a subclass adds: the older slots, and what happens when a segment is full.

    def minimum_ages(self, offset: int, device: torch.device) -> Tensor:
        """For each slot the least age of the episode at which it is valid, [S] int64, before the step at `offset`.

        A slot belongs to the row's episode if that began no later than the slot's step. Slots are [older | memory |
        the first `offset` of the segment]; the older ones are left out where more than the age decides.
        """
        oldest = self.sizes.memory + offset
        return torch.arange(oldest, 0, -1, device=device)

    def attention_mask(self, x: Tensor, state: LayerStateT, common: Tensor, steps: SegmentSteps) -> Tensor:
        """The mask [B, 1 or H, T, S] of steps x [B, T, D]: 0 where a step may attend to a slot, -infinity elsewhere.

        The last T slots are the steps themselves. `common` [B, 1, T, S] is the mask of these and of the slots that
        `minimum_ages` describes.
        """
        return common

    def hide(self, mask: Tensor, hidden: Tensor, steps: SegmentSteps) -> Tensor:
        """A mask of `attention_mask` without the hidden slots [B, S] of the state. The steps themselves stay."""
        num_steps = steps.visible.shape[1]
        num_before = mask.shape[-1] - num_steps
        before = hidden[:, :num_before]
        padded = F.pad(before, (0, num_steps))  # [B, slots before the steps and the steps]
        return mask.masked_fill(padded[:, None, None], -torch.inf)

    def make_cache(self, offset: int, encoding: Tensor, older: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """The cache of the older slots, of memory [B, n_m, D] and of the first `offset` of the segment [B, n_s, D].

        `encoding` [N, D] is that of the distances N - 1, ..., 1, 0, for at least as many slots as a step can see.
        """
        raise NotImplementedError

    def needs_weights(self, state: LayerStateT) -> bool:
        """Whether `observe` is to be called with the attention weights of each step."""
        return False

    def observe(self, x: Tensor, state: LayerStateT, weights: Tensor, mask: Tensor) -> LayerStateT:
        """The layer's state after the attention weights [B, H, T, S] of steps x [B, T, D] under a mask."""
        return state

    def update_memory(self, state: LayerStateT, age: Tensor, keep_cache: bool) -> LayerStateT:
        """The layer's state after a full segment has entered memory; `age` [B] is that after the segment.

        The cache is brought up to date if `keep_cache` is true; nothing reads it otherwise.
        """
        raise NotImplementedError

    def slot_weights(self, weights: Tensor) -> Tensor:
        """Attention weights [B, H, T, S] over the slots of the state, also where heads see different slots."""
        return weights


class Transformer(Core, Generic[StateT, LayerStateT]):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call, and stop at the incoming state only if the caller
    detached it, as learners do.
    """

    state_type: ClassVar[type]
    """The NamedTuple of the core's states."""
    attention_kinds: ClassVar[tuple[str, str, str]]
    """The kinds of slots, in their order in attention weights; the first is also the state's field of older slots."""
    resizable: ClassVar[tuple[str, str]]
    """The sizes that `resized` may change: of memory, and of the older slots."""
    config: TransformerConfig
    layers: Sequence[TransformerLayer[LayerStateT]]

    def __init__(self, config: TransformerConfig, layers: Sequence[TransformerLayer[LayerStateT]]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.clock: nn.Linear | None = None
        if config.clock:
            self.clock = nn.Linear(config.model_size, config.model_size, bias=False)
        # Post-norm has normalized the last layer's output.
        self.final_norm: nn.Module = nn.Identity()
        if config.norm == "pre":
            self.final_norm = nn.LayerNorm(config.model_size)

    # What a subclass defines.

    def older_slots(self, state: StateT) -> tuple[Tensor, ...]:
        """The slots of each layer that are older than memory, [B, ..., D]."""
        raise NotImplementedError

    def split(self, state: StateT) -> list[LayerStateT]:
        """The state of each layer, out of a state with a cache."""
        raise NotImplementedError

    def join(self, layer_states: list[LayerStateT], age: Tensor, offset: int, cached: bool) -> StateT:
        """The opposite of `split`; without a cache unless `cached` is true."""
        raise NotImplementedError

    def losses(self, layer_states: list[LayerStateT]) -> dict[str, Mean]:
        """The losses of a call, which its layers have collected."""
        raise NotImplementedError

    def slot_ages(self, layer: int, state: StateT) -> Tensor:
        """Ages [B, S, 2] int64 of the oldest and the newest step in each slot, seen from the state's next step.

        For a next step at time t, a slot holds the steps t - oldest, ..., t - newest. Later steps have negative ages.
        """
        raise NotImplementedError

    # The forward pass.

    def forward(
        self,
        inputs: Tensor,
        reset: Tensor,
        state: StateT,
        return_attention: bool = False,
        hidden: Sequence[Tensor] | None = None,
    ) -> CoreOutput:
        """See `Core`. Implements Algorithm 1 of Rae et al. (2020); a call may begin and end inside a segment.

        hidden: of each layer [B, S] bool, slots of the state that the steps do not see, in the order of the attention
            weights. For calls that end before the segment does, or with it. Hidden slots stay in memory. They change
            the outputs, and so the inputs that upper layers store.
        """
        check_call(inputs, reset, state, self.config.model_size, self.state_type)
        self._check_sizes(state)
        cached = state.cache is not None
        if not cached:
            state = self.with_cache(state)
        layer_states = self.split(state)
        age = state.age
        offset = state.offset

        features: list[Tensor] = []
        attention: list[list[Tensor]] = [[] for _ in self.layers]
        clean = finite(inputs)
        num_steps = inputs.shape[1]
        segment_size = self.config.segment_size
        if hidden is not None and offset + num_steps > segment_size:
            left = segment_size - offset
            raise ValueError(f"hidden: expected at most {left} steps, which are left of the segment, got {num_steps}")
        begin = 0
        while begin < num_steps:
            # The steps up to the end of the segment or of the call.
            end_of_segment = begin + segment_size - offset
            end = min(end_of_segment, num_steps)
            steps = locate(reset[:, begin:end], age, offset)

            # Lines 4 to 7 and 12: each layer attends to its slots, then applies its MLP.
            x = clean[:, begin:end]
            if self.clock is not None:
                x = x + self._times(steps, self.clock)
            masks = self._masks(steps, x)
            for index, layer in enumerate(self.layers):
                state_before = layer_states[index]
                mask = masks[layer.sizes]
                not_seen = None if hidden is None else hidden[index]
                x, state_after, weights = layer(x, state_before, mask, steps, return_attention, not_seen)
                layer_states[index] = state_after
                if return_attention:
                    attention[index].append(weights)
            features.append(x)

            age = steps.age_after
            offset += end - begin
            begin = end

            # Lines 8 to 11: a full segment enters memory.
            if offset == segment_size:
                keep_cache = cached or begin < num_steps
                for index, layer in enumerate(self.layers):
                    full = layer_states[index]
                    layer_states[index] = layer.update_memory(full, age, keep_cache)
                offset = 0

        # The parts become one call again.
        joined_attention = None
        if return_attention:
            joined_attention = tuple(torch.cat(parts, dim=2) for parts in attention)
        joined_features = torch.cat(features, dim=1)
        output = self.final_norm(joined_features)
        return CoreOutput(
            features=mark_broken(output, inputs),
            state=self.join(layer_states, age, offset, cached),
            losses=self.losses(layer_states),
            attention=joined_attention,
        )

    def _times(self, steps: SegmentSteps, clock: nn.Linear) -> Tensor:
        """What is added to the inputs of the steps, [B, T, D], so that they know their place in the episode."""
        ages = steps.ages
        encoding = sinusoids(ages.flatten(), self.config.model_size)
        encoding = encoding.to(clock.weight.dtype).unflatten(0, ages.shape)
        return clock(encoding)

    def _masks(self, steps: SegmentSteps, x: Tensor) -> dict[LayerSizes | RoutedSizes, Tensor]:
        """The masks [B, 1, T, S] that `TransformerLayer.attention_mask` is given, in the dtype of the inputs x.

        By the sizes of layers: layers of equal sizes share one.
        """
        masks: dict[LayerSizes | RoutedSizes, Tensor] = {}
        for layer in self.layers:
            if layer.sizes in masks:
                continue
            # Slots before the steps are seen if they belong to the episode, until the row's first reset.
            minimum_ages = layer.minimum_ages(steps.offset, x.device)  # [S - T]
            valid = steps.age[:, None] >= minimum_ages  # [B, S - T]
            before = valid[:, None, :] & steps.in_state_episode[:, :, None]  # [B, T, S - T]
            seen = torch.cat([before, steps.visible], dim=2)  # [B, T, S]
            seen_by_all_heads = seen[:, None]
            masks[layer.sizes] = additive_mask(seen_by_all_heads, like=x)
        return masks

    def _check_sizes(self, state: StateT) -> None:
        """Raises a ValueError if the state has other slots than the layers, or an offset that is in no segment."""
        model_size = self.config.model_size
        expected = [layer.sizes.stored for layer in self.layers]
        found = []
        of_layers = zip(state.segment, state.memory, self.older_slots(state))
        for segment, memory, older in of_layers:
            for slots in (segment, memory, older):
                if slots.shape[-1] != model_size:
                    raise ValueError(f"state: expected slots of {model_size} features, got {slots.shape[-1]}")
            older_sizes = older.shape[1:-1]
            found.append((segment.shape[1], memory.shape[1], *older_sizes))
        if found != expected:
            fields = f"segment, memory, {self.attention_kinds[0]}"
            raise ValueError(f"state: expected slots ({fields}) by layer {expected}, got {found}")
        last = self.config.segment_size - 1
        # A compiled graph holds for many offsets, and would be made anew for each that is compared.
        if not torch.compiler.is_compiling() and not 0 <= state.offset <= last:
            raise ValueError(f"state: expected an offset of 0..{last} into the segment, got {state.offset}")

    # The cache.

    def with_cache(self, state: StateT) -> StateT:
        """Projects the state's keys and values once; later calls with the state project new steps only.

        For acting, evaluation and sampling: the cache is valid while the weights do not change. Calls with a cache
        return states with a cache, in which the segment after the offset is undefined.
        """
        # What is not finite counts as 0. `map_state` is not used because it compares offsets: a compiler would make a
        # graph for each of them.
        clean = {}
        for name, field in state._asdict().items():
            if _are_floats(field):
                clean[name] = tuple(finite(part) for part in field)
        state = state._replace(**clean)

        # All layers share the encodings of distances; a layer with fewer slots uses the last of them.
        most_slots = max(layer.sizes.slots for layer in self.layers)
        farthest = most_slots - 1
        distances = torch.arange(farthest, -1, -1, device=state.age.device)
        encoding = sinusoids(distances, self.config.model_size)
        encoding = encoding.to(state.memory[0])

        caches = []
        parts = zip(self.layers, self.older_slots(state), state.memory, state.segment)
        for layer, older, memory, segment in parts:
            cache = layer.make_cache(state.offset, encoding, older, memory, segment)
            caches.append(cache)
        return state._replace(cache=tuple(caches))

    def without_cache(self, state: StateT) -> StateT:
        """Drops the cache, and zeroes the segment after the offset."""
        if state.cache is None:
            return state
        empty = self.config.segment_size - state.offset
        segments = []
        for segment in state.segment:
            filled = segment[:, : state.offset]
            segments.append(F.pad(filled, (0, 0, 0, empty)))
        return state._replace(segment=tuple(segments), cache=None)

    # Other sizes, and what is drawn of attention.

    def resized(self, **sizes: Sizes | None) -> "Transformer[StateT, LayerStateT]":
        """A copy with other sizes (`resizable`) and the same weights, which do not depend on them (paper, tables 8 and
        9); None keeps a size.

        Raises:
            ValueError: if a layer would gain or lose its older slots, and the weights that belong to them; if the core
                does not have such slots.
        """
        older = self.resizable[1]
        given: dict[str, Any] = {}
        for name, size in sizes.items():
            if size is None:
                continue
            if name not in self.resizable:
                raise ValueError(f"sizes: expected {' or '.join(self.resizable)} of this core, got {name}={size}")
            given[name] = size

        # What compresses or files memories exists only in layers that have older slots.
        config = dataclasses.replace(self.config, **given)
        for layer, new in zip(self.layers, config.layer_sizes):
            had_older = layer.sizes.by_kind[0] > 0
            has_older = new.by_kind[0] > 0
            if has_older != had_older:
                size_before = getattr(self.config, older)
                size_now = getattr(config, older)
                raise ValueError(f"{older}: expected 0 exactly where it was 0 before ({size_before}), got {size_now}")

        # A copy, because a new core would draw random numbers.
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
            sums = [kind.sum(dim=-1) for kind in kinds]  # [B, H, T] each
            by_kind = torch.stack(sums, dim=-1)  # [B, H, T, 3]
            by_layer.append(by_kind)
        return torch.stack(by_layer)


def _are_floats(field: Any) -> bool:
    """Whether a field of a state has a tensor of floats for each layer."""
    if not isinstance(field, tuple) or not field:
        return False
    first = field[0]
    return isinstance(first, Tensor) and first.is_floating_point()
