"""The Compressive Transformer (Rae et al. 2020) as a recurrent core, and Transformer-XL, which is the same without
compressed memory. `docs/core.md` explains the semantics with drawings; its layers live in `layer.py`, attention in
`attention.py`, compression functions in `compression.py`.

Axes: B batch, T time, L layers, S slots, H heads, K features a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate; all but n_s may differ by layer.
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core.attention import KeyValue, sinusoids
from agent.core.compression import MostUsed
from agent.core.contract import Core, CoreOutput, check_call, finite, mark_broken
from agent.core.layer import Layer, LayerSizes
from agent.core.state import Shared
from agent.fields import Checked, Decay, Layers, Size, Slots

Sizes = Slots | tuple[Slots, ...]

ATTENTION_KINDS = ("compressed", "memory", "segment")
"""The kinds of slots, in their order in attention weights."""


@dataclass(frozen=True)
class CompressiveTransformerConfig(Checked):
    """Sizes and variants of a Compressive Transformer; `compressed_size = 0` makes it a Transformer-XL."""

    model_size: Size = 256
    """Features of inputs, outputs and memory slots (D)."""
    num_layers: Layers = 4
    """Layers (L)."""
    num_heads: Layers = 8
    """Attention heads a layer (H); divides model_size."""
    mlp_size: Size = 1024
    """Hidden features of each layer's MLP."""
    segment_size: Size = 64
    """Steps processed in parallel before they enter memory (n_s)."""
    memory_size: Sizes = 64
    """Slots of uncompressed memory (n_m), one number or one a layer."""
    compressed_size: Sizes = 64
    """Slots of compressed memory (n_cm), one number or one a layer; 0 for none."""
    compression_rate: Size | tuple[Size, ...] = 4
    """Evicted memories that become one compressed slot (c), one number or one a layer; divides segment_size."""
    compression: Literal["convolution", "dilated", "mean", "max", "most-used"] = "convolution"
    """Compression function."""
    compression_loss: Literal["attention", "autoencoding", "bptt", "none"] = "attention"
    """What trains the compression function: attention reconstruction (Algorithm 2), auto-encoding, the task's own
    gradients through time, or nothing. Losses of functions without parameters are reported but train nothing."""
    norm: Literal["pre", "post"] = "post"
    """Layer normalisation before each sub-layer, or after the residual sum as in Algorithm 1."""
    gate: Literal["residual", "gru"] = "residual"
    """How a sub-layer's output joins the stream: sum, or GTrXL's GRU gate (Parisotto et al. 2019)."""
    compressed_position: Literal["slot", "time"] = "slot"
    """A compressed slot counts as one position or as the c steps that it summarises."""
    dropout: Decay = 0.0
    """Dropout on the output of each sub-layer while training."""
    attention: Literal["sdpa", "flex"] = "sdpa"
    """How a segment attends: scaled_dot_product_attention (on a CPU its formula, which is faster there), or
    FlexAttention (inside torch.compile, on a GPU)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_size % self.num_heads:
            raise ValueError(f"model_size: expected a multiple of num_heads = {self.num_heads}, got {self.model_size}")
        if self.model_size % 2:
            raise ValueError(f"model_size: expected an even number (sines and cosines), got {self.model_size}")
        for sizes in self.layer_sizes:
            if sizes.compressed and sizes.segment % sizes.rate:
                raise ValueError(
                    f"compression_rate: expected a divisor of segment_size = {self.segment_size}, got {sizes.rate}"
                )
        if self.attention == "flex" and self.compression == "most-used":
            raise ValueError("attention: expected sdpa with most-used compression, which needs the weights, got 'flex'")

    def by_layer(self, name: str) -> tuple[int, ...]:
        """The values of memory_size, compressed_size or compression_rate, one a layer."""
        value = getattr(self, name)
        if not isinstance(value, (tuple, list)):
            return (value,) * self.num_layers
        if len(value) != self.num_layers:
            raise ValueError(f"{name}: expected one number or {self.num_layers} (num_layers), got {tuple(value)}")
        return tuple(value)

    @property
    def layer_sizes(self) -> tuple[LayerSizes, ...]:
        """Segment, memory and compressed slots and rate of each layer."""
        names = ("memory_size", "compressed_size", "compression_rate")
        return tuple(LayerSizes(self.segment_size, *sizes) for sizes in zip(*(self.by_layer(name) for name in names)))


NOT_OURS = -1
"""`Cache.written` where the tensors of the segment are somebody else's and must be copied before they are changed."""


class Cache(NamedTuple):
    """What the slots are projected to, while weights do not change; an entry a layer.

    slots: of [compressed | memory | segment], of which the first `phase` steps of the segment are filled.
    positions: projected encodings of distances.
    written: how many steps of the segment's tensors are filled, by this state or one that came of it. The newest state
        may write its next step into them without a copy: the others end before it, so what is theirs does not change.
    """

    slots: tuple[KeyValue, ...]
    positions: Shared
    written: Shared


class CompressiveState(NamedTuple):
    """What the core remembers. Layer inputs, one tensor a layer; slots in temporal order, oldest first.

    segment: [B, n_s, D], of which the first `phase` steps are filled.
    memory: [B, n_m, D].
    compressed: [B, n_cm, D].
    age: [B] int64, steps of the row's episode so far. Every slot's distance in time is known, so this one number says
        which slots belong to the episode: it is the validity mask of all of them.
    phase: steps into the segment, a host integer shared by the batch.
    usage: [B, n_m + n_s], attention received so far by memory and segment; only with most-used compression and any
        compressed slots.
    source: [B, n_cm] int64, which of the n_s memories evicted together a slot was; where there is usage.
    cache: projected keys, values and positions while weights do not change (see `with_cache`), else None.
    """

    segment: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    compressed: tuple[Tensor, ...]
    age: Tensor
    phase: int
    usage: tuple[Tensor, ...] = ()
    source: tuple[Tensor, ...] = ()
    cache: Cache | None = None


class CompressiveTransformer(Core):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Any way of cutting a sequence into calls gives the same features and state; acting is the call with T = 1. Gradients
    flow through memory between the segments of one call. They stop at compression (unless BPTT was asked for), and at
    the state that comes in only if the caller detached it, as learners do.
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
        """The parameters that only the compression loss trains; none of them if gradients flow through time."""
        if self.config.compression_loss == "bptt":
            return []
        modules = [module for layer in self.layers for module in (layer.compression, layer.decoder)]
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Zero slots, none of which belongs to an episode, at phase 0."""
        zeros, size = self.encoding.new_zeros, self.config.model_size
        most_used = self.config.compression == "most-used" and any(self.config.by_layer("compressed_size"))
        return CompressiveState(
            segment=tuple(zeros(batch_size, layer.sizes.segment, size) for layer in self.layers),
            memory=tuple(zeros(batch_size, layer.sizes.memory, size) for layer in self.layers),
            compressed=tuple(zeros(batch_size, layer.sizes.compressed, size) for layer in self.layers),
            age=zeros(batch_size, dtype=torch.int64),
            phase=0,
            usage=tuple(
                zeros(batch_size, layer.sizes.memory + layer.sizes.segment) for layer in self.layers if most_used
            ),
            source=tuple(
                zeros(batch_size, layer.sizes.compressed, dtype=torch.int64) for layer in self.layers if most_used
            ),
        )

    def with_cache(self, state: CompressiveState) -> CompressiveState:
        """Projects the state's keys and values once, so that calls that follow do not project them again.

        For acting, evaluation and sampling: the cache is right as long as the weights stay as they are, and states that
        come out of a call with a cache carry one. What lies beyond the phase in their segment is not theirs: it may
        hold steps of states that came of them.
        """
        state = state._replace(
            segment=tuple(map(finite, state.segment)),
            memory=tuple(map(finite, state.memory)),
            compressed=tuple(map(finite, state.compressed)),
            usage=tuple(map(finite, state.usage)),
        )
        projected = []
        for layer, *parts in zip(self.layers, state.compressed, state.memory, state.segment):
            parts[-1] = parts[-1][:, : state.phase]
            empty = layer.sizes.segment - state.phase
            # Padding also makes them contiguous: each step's product with them would copy them all.
            projected.append(
                KeyValue(*(F.pad(part, (0, 0, 0, empty)) for part in layer.project(torch.cat(parts, dim=1))))
            )
        cache = Cache(tuple(projected), Shared(self._positions()), Shared([NOT_OURS]))
        return state._replace(cache=cache)

    def without_cache(self, state: CompressiveState) -> CompressiveState:
        """Drops the cache, and from the segment what is not this state's."""
        if state.cache is None:
            return state
        phase, size = state.phase, self.config.segment_size
        own = tuple(F.pad(segment[:, :phase], (0, 0, 0, size - phase)) for segment in state.segment)
        return state._replace(segment=own, cache=None)

    def resized(
        self, memory_size: Sizes | None = None, compressed_size: Sizes | None = None
    ) -> "CompressiveTransformer":
        """A copy with other memory sizes and the same weights, which do not depend on them (paper, tables 8 and 9).

        Raises:
            ValueError: if a layer would gain or lose its compressed memory, and so its compression function.
        """
        changes = {"memory_size": memory_size, "compressed_size": compressed_size}
        config = dataclasses.replace(
            self.config,
            **{name: size for name, size in changes.items() if size is not None},  # type: ignore[arg-type]
        )
        for old, new in zip(self.config.layer_sizes, config.layer_sizes):
            if (old.compressed > 0) != (new.compressed > 0):
                raise ValueError(
                    f"compressed_size: expected 0 exactly where it was 0 before ({self.config.compressed_size}), "
                    f"got {config.compressed_size}"
                )
        # Not a new core: that would draw from the random stream.
        resized = copy.deepcopy(self)
        resized.config = config
        resized._make_encoding(self.encoding)
        for layer, sizes in zip(resized.layers, config.layer_sizes):
            layer.resize(config, sizes, self.encoding)
        return resized

    def slot_ages(self, layer: int, phase: int = 0, state: CompressiveState | None = None) -> Tensor:
        """How many steps before the step at `phase` the oldest and the newest member of each slot were taken in.

        Slots are those of the attention weights, [compressed | memory | segment]; later steps of the segment have
        negative ages. So slot s of a query at time t holds the steps t - oldest, ..., t - newest.

        Args:
            layer: which layer.
            phase: the query's step in its segment.
            state: with most-used compression, the state before that segment, to tell which step a slot was; without
                it a slot's ages span all steps that it may have been.

        Returns:
            [S, 2] int64; [B, S, 2] with most-used compression and a state.
        """
        sizes = self.layers[layer].sizes
        device = self.encoding.device
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=device)
        block = torch.arange(sizes.compressed - 1, -1, -1, device=device)
        if self.config.compression == "most-used" and sizes.compressed:
            first = sizes.memory + block // (sizes.segment // sizes.rate) * sizes.segment
            far = torch.stack([first + sizes.segment, first + 1], dim=-1)
            if state is not None:
                age = first + sizes.segment - state.source[layer]
                far = torch.stack([age, age], dim=-1)
                near = torch.stack([recent, recent], dim=-1).expand(far.shape[0], -1, -1)
                return torch.cat([far, near], dim=1) + phase
        else:
            newest = sizes.memory + sizes.rate * block + 1
            far = torch.stack([newest + sizes.rate - 1, newest], dim=-1)
        return torch.cat([far, torch.stack([recent, recent], dim=-1)], dim=0) + phase

    def attention_by_kind(self, attention: tuple[Tensor, ...]) -> Tensor:
        """Sums attention weights, one [B, H, T, S] a layer, over each of `ATTENTION_KINDS`: [L, B, H, T, 3]."""
        parts = [
            weights.split([layer.sizes.compressed, layer.sizes.memory, layer.sizes.segment], dim=-1)
            for layer, weights in zip(self.layers, attention)
        ]
        return torch.stack([torch.stack([kind.sum(dim=-1) for kind in layer], dim=-1) for layer in parts])

    def forward(
        self, inputs: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool = False
    ) -> CoreOutput:
        """See `agent.core.contract.Core`; losses are `compression/layer_<i>`, means over the segments of the call."""
        check_call(inputs, reset, state, self.config.model_size, CompressiveState)
        self._check_sizes(state)
        cached = state.cache is not None
        if not cached:
            state = self.with_cache(state)
        clean = finite(inputs)
        features, attention, start = [], [], 0
        losses: dict[str, list[Tensor]] = {}
        while start < inputs.shape[1]:
            stop = min(start + self.config.segment_size - state.phase, inputs.shape[1])
            stream, state, weights = self._advance(clean[:, start:stop], reset[:, start:stop], state, return_attention)
            features.append(stream)
            attention.append(weights)
            start = stop
            if start == inputs.shape[1] and not cached:
                state = state._replace(cache=None)
            if state.phase == self.config.segment_size:
                state = self._turn(state, losses)
        joined = tuple(torch.cat(layer, dim=2) for layer in zip(*attention)) if return_attention else None
        means = {name: torch.stack(values).mean() for name, values in losses.items()}
        return CoreOutput(mark_broken(self.final_norm(torch.cat(features, dim=1)), inputs), state, means, joined)

    def _check_sizes(self, state: CompressiveState) -> None:
        expected = [(layer.sizes.segment, layer.sizes.memory, layer.sizes.compressed) for layer in self.layers]
        slots = zip(state.segment, state.memory, state.compressed)
        sizes = [tuple(part.shape[1] for part in layer) for layer in slots]
        if sizes != expected:
            raise ValueError(f"state: expected slots (segment, memory, compressed) by layer {expected}, got {sizes}")

    def _positions(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Projected encodings of all distances, one pair (near, far) a layer; see `RelativeAttention`."""
        return tuple(
            (
                layer.attention.project_positions(self.encoding[-layer.sizes.slots :]),
                None if layer.far_encoding is None else layer.attention.project_positions(layer.far_encoding),
            )
            for layer in self.layers
        )

    def _advance(
        self, stream: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool
    ) -> tuple[Tensor, CompressiveState, list[Tensor]]:
        """Runs the layers over steps that lie within the segment in progress; the state has a cache."""
        assert state.cache is not None
        begin, end = state.phase, state.phase + stream.shape[1]
        resets = reset.long().cumsum(dim=1)
        unbroken = resets == 0
        own = resets[:, :, None] == resets[:, None, :]
        own = own & torch.ones_like(own[0]).tril()
        written = state.cache.written
        # Learning needs its tensors unchanged, and compiled code knows of no other line of states.
        may_write = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        in_place = may_write and written.value[0] == begin
        masks: dict[LayerSizes, Tensor] = {}
        segments, attention, cached, usage = [], [], [], []
        for index, layer in enumerate(self.layers):
            if layer.sizes not in masks:
                old = (state.age[:, None] >= layer.old_ages(begin))[:, None, :] & unbroken[:, :, None]
                # Added to scores: unlike a choice between them, a sum costs nothing backward.
                seen = torch.cat([old, own], dim=2)[:, None]
                masks[layer.sizes] = torch.zeros_like(seen, dtype=stream.dtype).masked_fill(~seen, -torch.inf)
            segments.append(_written(state.segment[index], stream, begin, in_place))
            queries = layer.normalised(stream)
            remembered = layer.sizes.slots - layer.sizes.segment
            slots = KeyValue(
                *(
                    _written(old, new, remembered + begin, in_place)
                    for old, new in zip(state.cache.slots[index], layer.attention.project(queries))
                )
            )
            cached.append(slots)
            near, far = state.cache.positions.value[index]
            attended, weights = layer.attention(
                queries,
                slots.between(0, remembered + end),
                near[..., -(remembered + end) :],
                masks[layer.sizes],
                None if far is None else (far, layer.far_index(begin, end)),
                return_attention or bool(state.usage),
            )
            if return_attention or state.usage:
                assert weights is not None
                weights = F.pad(weights, (0, layer.sizes.segment - end))
                attention.append(weights)
            if state.usage:
                received = weights.detach().mean(dim=1).sum(dim=1)[:, layer.sizes.compressed :]
                usage.append(state.usage[index] + received)
            stream = layer(stream, attended)
        if in_place:
            written.value[0] = end
        else:
            written = Shared([end if may_write else NOT_OURS])
        state = state._replace(
            segment=tuple(segments),
            age=own[:, -1].sum(dim=1) + state.age * unbroken[:, -1],
            phase=end,
            usage=tuple(usage),
            cache=state.cache._replace(slots=tuple(cached), written=written),
        )
        return stream, state, attention

    def _turn(self, state: CompressiveState, losses: dict[str, list[Tensor]]) -> CompressiveState:
        """A full segment enters memory; what no longer fits is compressed (Algorithm 1, lines 8 to 11)."""
        config = self.config
        through_time = config.compression_loss == "bptt"
        learns = torch.is_grad_enabled() and config.compression_loss in ("attention", "autoencoding")
        memories, compressed, usages, sources = [], [], [], list(state.source)
        for index, layer in enumerate(self.layers):
            sizes, segment = layer.sizes, state.segment[index]
            ages = torch.arange(sizes.memory + sizes.segment, 0, -1, device=segment.device)
            valid = (state.age[:, None] >= ages)[:, : sizes.segment]
            evicted, memory = torch.cat([state.memory[index], segment], dim=1).split([sizes.segment, sizes.memory], 1)
            # Contiguous: a view would keep what was dropped in memory, and compiled code would see another layout.
            memories.append(memory.contiguous())
            kept = state.compressed[index]
            if state.usage:
                mean_usage = (state.usage[index] / ages)[:, : sizes.segment]
                usages.append(F.pad(state.usage[index][:, sizes.segment :], (0, sizes.segment)))
            if layer.compression is None:
                compressed.append(kept)
                continue
            # What precedes a reset is zeroed. The task's loss must not train the compression, nor the compression's
            # loss the network.
            evicted = (evicted if through_time else evicted.detach()) * valid[:, :, None]
            if isinstance(layer.compression, MostUsed):
                chosen = layer.compression.select(mean_usage, valid)
                new = layer.compression.gather(evicted, chosen)
                sources[index] = torch.cat([state.source[index], chosen], dim=1)[:, -sizes.compressed :].contiguous()
            else:
                new = layer.compression(evicted)
            if learns:
                loss = layer.compression_loss(config.compression_loss, segment, evicted, new, valid, self.total)
                losses.setdefault(f"compression/layer_{index}", []).append(loss)
            kept = torch.cat([kept, new if through_time else new.detach()], dim=1)
            compressed.append(kept[:, -sizes.compressed :].contiguous())
        return state._replace(
            segment=tuple(torch.zeros_like(segment) for segment in state.segment),
            memory=tuple(memories),
            compressed=tuple(compressed),
            phase=0,
            usage=tuple(usages),
            source=tuple(sources),
            cache=None if state.cache is None else self._turn_cache(state.cache, compressed),
        )

    def _turn_cache(self, cache: Cache, compressed: list[Tensor]) -> Cache:
        """The same for keys and values: only the newly compressed slots have to be projected."""
        turned = []
        for layer, old, slots in zip(self.layers, cache.slots, compressed):
            n_s, n_m, n_cm, c = layer.sizes
            added = min(n_s // c, n_cm)
            new = layer.project(slots[:, n_cm - added :])
            joined = KeyValue.join(old.between(added, n_cm), new, old.between(n_cm + n_s, n_cm + n_s + n_m))
            turned.append(KeyValue(*(F.pad(part, (0, 0, 0, n_s)) for part in joined)))
        return cache._replace(slots=tuple(turned), written=Shared([0]))


def _written(slots: Tensor, new: Tensor, begin: int, in_place: bool) -> Tensor:
    """`slots` [..., S, D] with `new` [..., T, D] from slot `begin` on: the same tensor, or a new one."""
    end = begin + new.shape[-2]
    if in_place:
        slots[..., begin:end, :] = new
        return slots
    return torch.cat([slots[..., :begin, :], new, slots[..., end:, :]], dim=-2)
