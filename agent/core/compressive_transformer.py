"""The Compressive Transformer (Rae et al. 2020) as a recurrent core; without compressed memory it is Transformer-XL.

docs/core.md explains the semantics with drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate; all but n_s may differ by layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import sinusoids
from .cache import KVCache
from .compression import COMPRESSIONS, Compression, attention_loss, autoencoding_loss
from .config import CompressiveTransformerConfig, LayerSizes
from .contract import Mean
from .transformer import Transformer, TransformerLayer


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
    """What one layer remembers: its part of each field of a `CompressiveState`.

    usage, source: None unless compression is most-used.
    losses: sum and count of the compression loss, one of each segment that was compressed in this call.
    """

    segment: Tensor
    memory: Tensor
    compressed: Tensor
    usage: Tensor | None
    source: Tensor | None
    cache: KVCache
    losses: tuple[Mean, ...] = ()


class Layer(TransformerLayer[LayerState]):
    """A transformer's layer, and the compression of its memories."""

    config: CompressiveTransformerConfig
    sizes: LayerSizes

    def __init__(self, config: CompressiveTransformerConfig, sizes: LayerSizes) -> None:
        super().__init__(config, sizes, use_flex=config.attention == "flex")
        self.compression: Compression | None = None
        self.decoder: nn.Module | None = None
        if sizes.compressed:
            size = config.model_size
            make_compression = COMPRESSIONS[config.compression]
            self.compression = make_compression(size, sizes.rate)
            if config.compression_loss == "autoencoding":
                # A transposed convolution with kernel = stride = c: the mirror of the convolution.
                self.decoder = nn.Linear(size, sizes.rate * size)

    def minimum_ages(self, offset: int, device: torch.device) -> Tensor:
        """See `TransformerLayer`; the slots are [compressed | memory | segment up to `offset`]."""
        recent = super().minimum_ages(offset, device)
        if self.compression is None:
            return recent
        compressed = self.compression.minimum_ages(self.sizes, device) + offset
        return torch.cat([compressed, recent])

    def make_cache(self, offset: int, encoding: Tensor, older: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """See `TransformerLayer`; the older slots are the compressed ones [B, n_cm, D]."""
        filled_segment = segment[:, :offset]
        slots = torch.cat([older, memory, filled_segment], dim=1)
        keys, values = self.project(slots)

        # Room for the rest of the segment. Padding also makes them contiguous: or each step's product would copy them.
        empty = self.sizes.segment - offset
        keys = F.pad(keys, (0, 0, 0, empty))
        values = F.pad(values, (0, 0, 0, empty))
        newest = encoding[-self.sizes.slots :]
        near = self.attention.project_positions(newest)

        # A compressed slot counts as one position, unless it counts as the c steps in it.
        far = None
        far_index = None
        if self.config.compressed_position == "time" and self.sizes.compressed:
            far, far_index = self._far_positions(like=memory)
        return KVCache(keys, values, near, far, far_index)

    def _far_positions(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """`far` and `far_index` of the cache: the positions of compressed slots that count as c steps each."""
        n_s, n_m, n_cm, rate = self.sizes
        num_distances = n_s + n_m + rate * n_cm
        distances = torch.arange(num_distances, device=like.device)
        encoding = sinusoids(distances, self.config.model_size)
        far = self.attention.project_positions(encoding.to(like))

        # From each step of the segment: first to the segment's start, and from there to the oldest step of a slot.
        to_segment_start = distances[:n_s, None]
        slots_from_newest = torch.arange(n_cm, 0, -1, device=like.device)
        from_segment_start = n_m + rate * slots_from_newest
        far_index = to_segment_start + from_segment_start  # [n_s, n_cm]
        return far, far_index

    def needs_weights(self, state: LayerState) -> bool:
        """Most-used compression measures the usage of memories."""
        return state.usage is not None

    def observe(self, x: Tensor, state: LayerState, weights: Tensor, mask: Tensor) -> LayerState:
        """Adds the attention that memory and segment receive, a mean over heads, to their usage."""
        assert state.usage is not None
        empty = self.sizes.slots - weights.shape[-1]  # of the segment, after the steps
        by_slot = F.pad(weights, (0, empty)).detach()  # [B, H, T, S]
        mean_of_heads = by_slot.mean(dim=1)
        received = mean_of_heads.sum(dim=1)  # [B, S]
        by_memory_and_segment = received[:, self.sizes.compressed :]
        return state._replace(usage=state.usage + by_memory_and_segment)

    def update_memory(self, state: LayerState, age: Tensor, keep_cache: bool) -> LayerState:
        """A full segment enters memory; the memories that no longer fit are compressed (Algorithm 1, lines 8 to 11).

        Adds sum and count of the compression loss to the state, if gradients are enabled.
        """
        n_s = self.sizes.segment
        n_m = self.sizes.memory

        # Lines 8 and 10: the oldest n_s steps of memory and segment are evicted, the newest n_m are memory.
        both = torch.cat([state.memory, state.segment], dim=1)  # [B, n_m + n_s, D]
        evicted, memory = both.split([n_s, n_m], dim=1)
        # Contiguous: a view would keep the dropped slots in memory, and compiled code would see another layout.
        state = state._replace(memory=memory.contiguous())

        # Lines 9 and 11.
        if self.compression is not None:
            state = self._compress(self.compression, evicted, state, age)

        if state.usage is not None:
            # The new segment was not attended to so far.
            usage_of_memory = state.usage[:, n_s:]
            usage = F.pad(usage_of_memory, (0, n_s))
            state = state._replace(usage=usage)
        if keep_cache:
            cache = self._updated_cache(state.cache, state.compressed)
            state = state._replace(cache=cache)
        empty_segment = torch.zeros_like(state.segment)
        return state._replace(segment=empty_segment)

    def _compress(self, compression: Compression, evicted: Tensor, state: LayerState, age: Tensor) -> LayerState:
        """The state after the evicted memories [B, n_s, D] were compressed, and its oldest compressed slots dropped.

        `age` [B] is that after the segment.
        """
        n_s, n_m, n_cm, rate = self.sizes
        loss_kind = self.config.compression_loss

        # The compression loss must not train the network, nor the task's loss the compression (but in BPTT).
        if loss_kind != "bptt":
            evicted = evicted.detach()
        # Memories that precede an episode start are zeroed.
        ages = torch.arange(n_m + n_s, n_m, -1, device=evicted.device)  # [n_s]
        valid = age[:, None] >= ages  # [B, n_s]
        evicted = evicted * valid[:, :, None]

        # Line 9.
        usage = None
        if state.usage is not None:
            usage_of_evicted = state.usage[:, :n_s]
            usage = usage_of_evicted / ages  # a mean over the steps that could attend to a memory
        new, source = compression(evicted, valid, usage)

        # Algorithm 2, or its alternative. Actors need no losses.
        losses = state.losses
        is_learning = torch.is_grad_enabled()
        if is_learning and loss_kind == "attention":
            loss = attention_loss(self.attention, self.input_norm, state.segment, evicted, new, valid)
            losses = (*losses, loss)
        elif is_learning and self.decoder is not None:
            loss = autoencoding_loss(self.decoder, rate, evicted, new, valid)
            losses = (*losses, loss)

        # Line 11. Contiguous for the same reasons as memory.
        if loss_kind != "bptt":
            new = new.detach()
        compressed = torch.cat([state.compressed, new], dim=1)
        newest = compressed[:, -n_cm:].contiguous()
        state = state._replace(compressed=newest, losses=losses)
        if state.source is not None and source is not None:
            # Most-used compression also remembers which of the memories it kept.
            sources = torch.cat([state.source, source], dim=1)
            newest_sources = sources[:, -n_cm:].contiguous()
            state = state._replace(source=newest_sources)
        return state

    def _updated_cache(self, cache: KVCache, compressed: Tensor) -> KVCache:
        """The cache after a full segment entered memory: only the new ones of the compressed slots are projected."""
        n_s, n_m, n_cm, rate = self.sizes
        num_added = min(n_s // rate, n_cm)
        num_kept = n_cm - num_added
        added = compressed[:, num_kept:]
        new_keys, new_values = self.project(added)

        # Memory moves by n_s slots: the segment follows it in the cache.
        first_kept = n_cm + n_s
        end = first_kept + n_m

        def update(old: Tensor, new: Tensor) -> Tensor:
            still_compressed = old[:, :, num_added:n_cm]
            memory = old[:, :, first_kept:end]
            filled = torch.cat([still_compressed, new, memory], dim=2)
            return F.pad(filled, (0, 0, 0, n_s))  # an empty segment follows

        keys = update(cache.keys, new_keys)
        values = update(cache.values, new_values)
        return cache.replaced(keys, values)


class CompressiveTransformer(Transformer[CompressiveState, LayerState]):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call. They stop at compression (unless the loss is BPTT),
    and at the incoming state only if the caller detached it, as learners do. The losses are `compression/layer_<i>`.
    """

    state_type = CompressiveState
    attention_kinds = ("compressed", "memory", "segment")
    resizable = ("memory_size", "compressed_size")
    config: CompressiveTransformerConfig
    layers: Sequence[Layer]

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        layers = [Layer(config, sizes) for sizes in config.layer_sizes]
        super().__init__(config, layers)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains; none if the task trains them (BPTT)."""
        if self.config.compression_loss == "bptt":
            return []
        parameters: list[nn.Parameter] = []
        for layer in self.layers:
            if layer.compression is not None:
                parameters += layer.compression.parameters()
            if layer.decoder is not None:
                parameters += layer.decoder.parameters()
        return parameters

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Zero slots, none of which belongs to an episode, at offset 0."""
        zeros = next(self.parameters()).new_zeros
        model_size = self.config.model_size
        measures_usage = self._measures_usage()

        segment: list[Tensor] = []
        memory: list[Tensor] = []
        compressed: list[Tensor] = []
        usage: list[Tensor] = []
        source: list[Tensor] = []
        for layer in self.layers:
            n_s, n_m, n_cm, _ = layer.sizes
            segment.append(zeros(batch_size, n_s, model_size))
            memory.append(zeros(batch_size, n_m, model_size))
            compressed.append(zeros(batch_size, n_cm, model_size))
            if measures_usage:
                usage.append(zeros(batch_size, n_m + n_s))
                source.append(zeros(batch_size, n_cm, dtype=torch.int64))

        return CompressiveState(
            segment=tuple(segment),
            memory=tuple(memory),
            compressed=tuple(compressed),
            age=zeros(batch_size, dtype=torch.int64),
            offset=0,
            usage=tuple(usage),
            source=tuple(source),
        )

    def _measures_usage(self) -> bool:
        """Whether states know how much attention memories have received."""
        any_compressed = any(layer.sizes.compressed for layer in self.layers)
        return self.config.compression == "most-used" and any_compressed

    def older_slots(self, state: CompressiveState) -> tuple[Tensor, ...]:
        """The compressed slots."""
        return state.compressed

    def split(self, state: CompressiveState) -> list[LayerState]:
        """See `Transformer`."""
        assert state.cache is not None
        if bool(state.usage) != self._measures_usage():
            expected = "the usage of memories" if self._measures_usage() else "no usage of memories"
            raise ValueError(f"state: expected {expected} for compression {self.config.compression}, got the opposite")
        layer_states = []
        for index in range(len(self.layers)):
            usage = None
            source = None
            if state.usage:
                usage = state.usage[index]
                source = state.source[index]
            layer_state = LayerState(
                segment=state.segment[index],
                memory=state.memory[index],
                compressed=state.compressed[index],
                usage=usage,
                source=source,
                cache=state.cache[index],
            )
            layer_states.append(layer_state)
        return layer_states

    def join(self, layer_states: list[LayerState], age: Tensor, offset: int, cached: bool) -> CompressiveState:
        """See `Transformer`."""
        cache = None
        if cached:
            cache = tuple(layer.cache for layer in layer_states)
        return CompressiveState(
            segment=tuple(layer.segment for layer in layer_states),
            memory=tuple(layer.memory for layer in layer_states),
            compressed=tuple(layer.compressed for layer in layer_states),
            age=age,
            offset=offset,
            usage=tuple(layer.usage for layer in layer_states if layer.usage is not None),
            source=tuple(layer.source for layer in layer_states if layer.source is not None),
            cache=cache,
        )

    def losses(self, layer_states: list[LayerState]) -> dict[str, Mean]:
        """The compression loss of each layer, with an entry for each compressed segment."""
        losses = {}
        for index, layer in enumerate(layer_states):
            if layer.losses:
                totals = [loss.total for loss in layer.losses]
                counts = [loss.count for loss in layer.losses]
                mean = Mean(torch.stack(totals), torch.stack(counts))
                losses[f"compression/layer_{index}"] = mean
        return losses

    def slot_ages(self, layer: int, state: CompressiveState) -> Tensor:
        """See `Transformer`; a compressed slot holds several steps."""
        sizes = self.layers[layer].sizes
        compression = self.layers[layer].compression
        rows = state.age.shape[0]
        device = state.age.device

        # Slots of memory and segment hold one step.
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=device)
        oldest_and_newest = torch.stack([recent, recent], dim=-1)  # [n_m + n_s, 2]
        ages = oldest_and_newest.expand(rows, -1, -1)
        if compression is not None:
            source = None
            if state.source:
                source = state.source[layer]
            compressed = compression.slot_ages(sizes, device, source)
            compressed = compressed.expand(rows, -1, -1)
            ages = torch.cat([compressed, ages], dim=1)

        # Ages were those at the first step of the segment.
        return ages + state.offset
