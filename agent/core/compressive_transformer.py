"""The Compressive Transformer (Rae et al. 2020) as a recurrent core; without compressed memory it is Transformer-XL.

docs/core.md explains the semantics with drawings.

Axes: B batch, T time, L layers, S slots, H heads, K features of a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate; all but n_s may differ by layer.
"""

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

    losses: sum and count of each compressed segment's loss in this call.
    """

    segment: Tensor
    memory: Tensor
    compressed: Tensor
    usage: Tensor | None
    source: Tensor | None
    cache: KVCache
    losses: tuple[tuple[Tensor, Tensor], ...] = ()


class Layer(TransformerLayer):
    """A transformer's layer, and the compression of its memories."""

    def __init__(self, config: CompressiveTransformerConfig, sizes: LayerSizes) -> None:
        super().__init__(config, sizes, config.attention == "flex")
        size = config.model_size
        self.compression: Compression | None = None
        self.decoder: nn.Module | None = None
        if sizes.compressed:
            self.compression = COMPRESSIONS[config.compression](size, sizes.rate)
            if config.compression_loss == "autoencoding":
                # A transposed convolution with kernel = stride = c: the mirror of the convolution.
                self.decoder = nn.Linear(size, sizes.rate * size)

    def ages(self, offset: int, device: torch.device) -> Tensor:
        """Ages [S] that a row's episode must have reached at `offset` for each slot before that step to be valid."""
        recent = super().ages(offset, device)
        if self.compression is None:
            return recent
        return torch.cat([self.compression.valid_ages(self.sizes, device) + offset, recent])

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

    def observes(self, slots: LayerState) -> bool:
        return slots.usage is not None

    def observe(self, x: Tensor, slots: LayerState, weights: Tensor, bias: Tensor) -> LayerState:
        """Adds to the usage of memory and segment."""
        assert slots.usage is not None
        weights = F.pad(weights, (0, self.sizes.slots - weights.shape[-1]))
        usage = slots.usage + weights.detach().mean(dim=1).sum(dim=1)[:, self.sizes.compressed :]
        return slots._replace(usage=usage)

    def update_memory(self, slots: LayerState, age: Tensor, keep_cache: bool) -> LayerState:
        """A full segment enters memory; the memories that no longer fit are compressed (Algorithm 1, lines 8 to 11).

        Adds sum and count of the compression loss to the state, if gradients are enabled.
        """
        (n_s, n_m, n_cm, rate), (segment, memory, compressed, usage, source, cache, losses) = self.sizes, slots
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
            added, kept = min(n_s // rate, n_cm), slice(n_cm + n_s, n_cm + n_s + n_m)
            keys, values = (
                F.pad(torch.cat([old[:, :, added:n_cm], part, old[:, :, kept]], dim=2), (0, 0, 0, n_s))
                for old, part in zip((cache.keys, cache.values), self.project(compressed[:, n_cm - added :]))
            )
            cache = cache.replaced(keys, values)
        losses = losses if loss is None else (*losses, loss)
        return LayerState(torch.zeros_like(segment), memory, compressed, usage, source, cache, losses)


class CompressiveTransformer(Transformer):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Gradients flow through memory between the segments of one call. They stop at compression (unless the loss is BPTT),
    and at the incoming state only if the caller detached it, as learners do. The losses are `compression/layer_<i>`.
    """

    state_type, layer_type, layer_state = CompressiveState, Layer, LayerState
    attention_kinds = ("compressed", "memory", "segment")
    resizable = ("memory_size", "compressed_size")
    config: CompressiveTransformerConfig

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

    def losses(self, slots: list[LayerState]) -> dict[str, Mean]:
        """The compression loss of each layer, with an entry for each compressed segment."""
        return {
            f"compression/layer_{index}": Mean(*map(torch.stack, zip(*part.losses)))
            for index, part in enumerate(slots)
            if part.losses
        }

    def slot_ages(self, layer: int, state: CompressiveState) -> Tensor:
        """See `Transformer`; a compressed slot holds several steps."""
        sizes, compression = self.layers[layer].sizes, self.layers[layer].compression
        rows, device = len(state.age), state.age.device
        recent = torch.arange(sizes.memory, -sizes.segment, -1, device=device)
        ages = torch.stack([recent, recent], dim=-1).expand(rows, -1, -1)
        if compression is not None:
            far = compression.slot_ages(sizes, device, state.source[layer] if state.source else None)
            ages = torch.cat([far.expand(rows, -1, -1), ages], dim=1)
        return ages + state.offset
