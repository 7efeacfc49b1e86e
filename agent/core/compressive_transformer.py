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
            self.compression = COMPRESSIONS[config.compression](config.model_size, sizes.rate)
            if config.compression_loss == "autoencoding":
                # A transposed convolution with kernel = stride = c: the mirror of the convolution.
                self.decoder = nn.Linear(config.model_size, sizes.rate * config.model_size)

    def minimum_ages(self, offset: int, device: torch.device) -> Tensor:
        """See `TransformerLayer`; the slots are [compressed | memory | segment up to `offset`]."""
        recent = super().minimum_ages(offset, device)
        if self.compression is None:
            return recent
        compressed = self.compression.minimum_ages(self.sizes, device) + offset
        return torch.cat([compressed, recent])

    def make_cache(self, offset: int, encoding: Tensor, older: Tensor, memory: Tensor, segment: Tensor) -> KVCache:
        """See `TransformerLayer`; the older slots are the compressed ones [B, n_cm, D]."""
        slots = torch.cat([older, memory, segment[:, :offset]], dim=1)
        keys, values = self.project(slots)
        # Room for the rest of the segment. Padding also makes them contiguous: or each step's product would copy them.
        empty = self.sizes.segment - offset
        keys = F.pad(keys, (0, 0, 0, empty))
        values = F.pad(values, (0, 0, 0, empty))
        near = self.attention.project_positions(encoding[-self.sizes.slots :])

        # A compressed slot counts as one position, unless it counts as the c steps in it.
        far = None
        far_index = None
        if self.config.compressed_position == "time" and self.sizes.compressed:
            n_s, n_m, n_cm, rate = self.sizes
            distances = torch.arange(n_s + n_m + rate * n_cm, device=memory.device)
            far_encoding = sinusoids(distances, self.config.model_size).to(memory)
            far = self.attention.project_positions(far_encoding)
            from_segment_start = n_m + rate * torch.arange(n_cm, 0, -1, device=memory.device)
            far_index = distances[:n_s, None] + from_segment_start
        return KVCache(keys, values, near, far, far_index)

    def needs_weights(self, state: LayerState) -> bool:
        """Most-used compression measures the usage of memories."""
        return state.usage is not None

    def observe(self, x: Tensor, state: LayerState, weights: Tensor, mask: Tensor) -> LayerState:
        """Adds the attention that memory and segment receive, a mean over heads, to their usage."""
        assert state.usage is not None
        weights = F.pad(weights, (0, self.sizes.slots - weights.shape[-1]))
        received = weights.detach().mean(dim=1).sum(dim=1)
        return state._replace(usage=state.usage + received[:, self.sizes.compressed :])

    def update_memory(self, state: LayerState, age: Tensor, keep_cache: bool) -> LayerState:
        """A full segment enters memory; the memories that no longer fit are compressed (Algorithm 1, lines 8 to 11).

        Adds sum and count of the compression loss to the state, if gradients are enabled.
        """
        n_s = self.sizes.segment
        n_m = self.sizes.memory

        # Lines 8 and 10: the oldest n_s steps of memory and segment are evicted, the newest n_m are memory.
        both = torch.cat([state.memory, state.segment], dim=1)
        evicted, memory = both.split([n_s, n_m], dim=1)
        # Contiguous: a view would keep the dropped slots in memory, and compiled code would see another layout.
        state = state._replace(memory=memory.contiguous())

        # Lines 9 and 11.
        if self.compression is not None:
            state = self._compress(self.compression, evicted, state, age)

        if state.usage is not None:
            # The new segment was not attended to so far.
            usage = F.pad(state.usage[:, n_s:], (0, n_s))
            state = state._replace(usage=usage)
        if keep_cache:
            state = state._replace(cache=self._updated_cache(state.cache, state.compressed))
        return state._replace(segment=torch.zeros_like(state.segment))

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
        ages = torch.arange(n_m + n_s, n_m, -1, device=evicted.device)
        valid = age[:, None] >= ages
        evicted = evicted * valid[:, :, None]

        # Line 9.
        usage = None
        if state.usage is not None:
            usage = state.usage[:, :n_s] / ages  # a mean over the steps that could attend to a memory
        new, source = compression(evicted, valid, usage)

        losses = state.losses
        if torch.is_grad_enabled() and loss_kind == "attention":
            loss = attention_loss(self.attention, self.input_norm, state.segment, evicted, new, valid)
            losses = (*losses, loss)
        elif torch.is_grad_enabled() and self.decoder is not None:
            loss = autoencoding_loss(self.decoder, rate, evicted, new, valid)
            losses = (*losses, loss)

        # Line 11.
        if loss_kind != "bptt":
            new = new.detach()
        compressed = torch.cat([state.compressed, new], dim=1)[:, -n_cm:]
        state = state._replace(compressed=compressed.contiguous(), losses=losses)
        if state.source is not None and source is not None:
            source = torch.cat([state.source, source], dim=1)[:, -n_cm:]
            state = state._replace(source=source.contiguous())
        return state

    def _updated_cache(self, cache: KVCache, compressed: Tensor) -> KVCache:
        """The cache after a full segment entered memory: only the new ones of the compressed slots are projected."""
        n_s, n_m, n_cm, rate = self.sizes
        added = min(n_s // rate, n_cm)
        new_keys, new_values = self.project(compressed[:, n_cm - added :])

        def update(old: Tensor, new: Tensor) -> Tensor:
            still_compressed = old[:, :, added:n_cm]
            memory = old[:, :, n_cm + n_s : n_cm + n_s + n_m]
            filled = torch.cat([still_compressed, new, memory], dim=2)
            return F.pad(filled, (0, 0, 0, n_s))  # an empty segment follows

        return cache.replaced(update(cache.keys, new_keys), update(cache.values, new_values))


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
        sizes = [layer.sizes for layer in self.layers]

        usage: tuple[Tensor, ...] = ()
        source: tuple[Tensor, ...] = ()
        if self.config.compression == "most-used" and any(each.compressed for each in sizes):
            usage = tuple(zeros(batch_size, each.memory + each.segment) for each in sizes)
            source = tuple(zeros(batch_size, each.compressed, dtype=torch.int64) for each in sizes)

        return CompressiveState(
            segment=tuple(zeros(batch_size, each.segment, model_size) for each in sizes),
            memory=tuple(zeros(batch_size, each.memory, model_size) for each in sizes),
            compressed=tuple(zeros(batch_size, each.compressed, model_size) for each in sizes),
            age=zeros(batch_size, dtype=torch.int64),
            offset=0,
            usage=usage,
            source=source,
        )

    def older_slots(self, state: CompressiveState) -> tuple[Tensor, ...]:
        """The compressed slots."""
        return state.compressed

    def split(self, state: CompressiveState) -> list[LayerState]:
        """See `Transformer`."""
        assert state.cache is not None
        layer_states = []
        for index in range(len(self.layers)):
            layer_states.append(
                LayerState(
                    segment=state.segment[index],
                    memory=state.memory[index],
                    compressed=state.compressed[index],
                    usage=state.usage[index] if state.usage else None,
                    source=state.source[index] if state.source else None,
                    cache=state.cache[index],
                )
            )
        return layer_states

    def join(self, layer_states: list[LayerState], age: Tensor, offset: int, cached: bool) -> CompressiveState:
        """See `Transformer`."""
        return CompressiveState(
            segment=tuple(layer.segment for layer in layer_states),
            memory=tuple(layer.memory for layer in layer_states),
            compressed=tuple(layer.compressed for layer in layer_states),
            age=age,
            offset=offset,
            usage=tuple(layer.usage for layer in layer_states if layer.usage is not None),
            source=tuple(layer.source for layer in layer_states if layer.source is not None),
            cache=tuple(layer.cache for layer in layer_states) if cached else None,
        )

    def losses(self, layer_states: list[LayerState]) -> dict[str, Mean]:
        """The compression loss of each layer, with an entry for each compressed segment."""
        losses = {}
        for index, layer in enumerate(layer_states):
            if layer.losses:
                total = torch.stack([loss.total for loss in layer.losses])
                count = torch.stack([loss.count for loss in layer.losses])
                losses[f"compression/layer_{index}"] = Mean(total, count)
        return losses

    def slot_ages(self, layer: int, state: CompressiveState) -> Tensor:
        """See `Transformer`; a compressed slot holds several steps."""
        sizes = self.layers[layer].sizes
        compression = self.layers[layer].compression
        rows = len(state.age)
        device = state.age.device

        # Slots of memory and segment hold one step.
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=device)
        ages = torch.stack([recent, recent], dim=-1).expand(rows, -1, -1)
        if compression is not None:
            source = state.source[layer] if state.source else None
            compressed = compression.slot_ages(sizes, device, source)
            ages = torch.cat([compressed.expand(rows, -1, -1), ages], dim=1)
        return ages + state.offset
