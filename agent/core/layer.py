"""One layer of the Compressive Transformer: its sub-layers, its compression function and the losses that train that.

A layer knows its own numbers of slots and how old they are; what is in them is the state, which the core keeps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core.attention import KeyValue, RelativeAttention, sinusoids
from agent.core.compression import COMPRESSIONS, Compression

if TYPE_CHECKING:
    from agent.core.compressive_transformer import CompressiveTransformerConfig

COMPRESSION_LOSSES = ("attention", "autoencoding", "bptt", "none")


class LayerSizes(NamedTuple):
    """Slots of a layer: segment n_s, memory n_m, compressed memory n_cm; and its compression rate c."""

    segment: int
    memory: int
    compressed: int
    rate: int

    @property
    def slots(self) -> int:
        """All slots that a query at the segment's end may attend to."""
        return self.compressed + self.memory + self.segment


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


class Residual(nn.Module):
    """The plain residual sum."""

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        return stream + branch


class Layer(nn.Module):
    """Attention over the slots, then the MLP, each joined to the stream; plus the layer's compression."""

    compressed_ages: Tensor
    far_encoding: Tensor | None

    def __init__(self, config: "CompressiveTransformerConfig", sizes: LayerSizes) -> None:
        super().__init__()
        size = config.model_size
        self.pre_norm = config.norm == "pre"
        # GTrXL: with the norm at the input, a ReLU on each branch keeps two linear maps from following each other.
        self.rectify = config.gate == "gru"
        self.dropout = config.dropout
        self.attention = RelativeAttention(size, config.num_heads, config.attention == "flex")
        self.attention_norm = nn.LayerNorm(size)
        self.attention_gate = GRUGate(size) if config.gate == "gru" else Residual()
        self.mlp = nn.Sequential(nn.Linear(size, config.mlp_size), nn.ReLU(), nn.Linear(config.mlp_size, size))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp_gate = GRUGate(size) if config.gate == "gru" else Residual()
        self.compression: Compression | None = None
        self.decoder: nn.Module | None = None
        if sizes.compressed:
            self.compression = COMPRESSIONS[config.compression](size, sizes.rate)
            if config.compression_loss == "autoencoding":
                # A transposed convolution with kernel = stride = c: the mirror of the convolution.
                self.decoder = nn.Linear(size, sizes.rate * size)
        self.resize(config, sizes, torch.empty(()))

    def resize(self, config: "CompressiveTransformerConfig", sizes: LayerSizes, like: Tensor) -> None:
        """Changes the numbers of slots, on which no weight depends; `like` gives dtype and device of encodings."""
        self.sizes = sizes
        block = torch.arange(sizes.compressed - 1, -1, -1)
        if config.compression == "most-used":
            # A segment's survivors keep their order and the invalid ones are the oldest, so the r-th newest of them is
            # valid exactly if r members of its segment are.
            kept = max(1, sizes.segment // sizes.rate)
            ages = sizes.memory + block // kept * sizes.segment + block % kept + 1
        else:
            ages = sizes.memory + sizes.rate * block + 1
        self.register_buffer("compressed_ages", ages.to(like.device), persistent=False)
        far = None
        if config.compressed_position == "time" and sizes.compressed:
            farthest = sizes.segment + sizes.memory + sizes.rate * sizes.compressed
            far = sinusoids(torch.arange(farthest), config.model_size).to(like)
        self.register_buffer("far_encoding", far, persistent=False)

    def old_ages(self, phase: int) -> Tensor:
        """Ages [S] of the slots [compressed | memory | first `phase` steps of the segment] at the step at `phase`.

        A slot belongs to a row's episode if the episode is at least as old; a compressed slot has the age of its newest
        member, for it is valid if any member is.
        """
        recent = torch.arange(self.sizes.memory + phase, 0, -1, device=self.compressed_ages.device)
        return torch.cat([self.compressed_ages + phase, recent])

    def far_index(self, begin: int, end: int) -> Tensor:
        """Distances [T, n_cm] from steps begin to end of the segment to compressed slots that count as c steps each."""
        device = self.compressed_ages.device
        slots = self.sizes.memory + self.sizes.rate * torch.arange(self.sizes.compressed, 0, -1, device=device)
        return torch.arange(begin, end, device=device)[:, None] + slots

    def normalised(self, slots: Tensor) -> Tensor:
        """Layer inputs as attention sees them."""
        return self.attention_norm(slots) if self.pre_norm else slots

    def project(self, slots: Tensor) -> KeyValue:
        """Keys and values of layer inputs [B, S, D]."""
        return self.attention.project(slots, self.attention_norm if self.pre_norm else None)

    def _join(self, gate: nn.Module, norm: nn.LayerNorm, stream: Tensor, branch: Tensor) -> Tensor:
        branch = F.dropout(F.relu(branch) if self.rectify else branch, self.dropout, self.training)
        joined = gate(stream, branch)
        return joined if self.pre_norm else norm(joined)

    def forward(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, given its input and what its attention returned, both [B, T, D]."""
        stream = self._join(self.attention_gate, self.attention_norm, stream, attended)
        mixed = self.mlp(self.mlp_norm(stream) if self.pre_norm else stream)
        return self._join(self.mlp_gate, self.mlp_norm, stream, mixed)

    def compression_loss(
        self,
        kind: str,
        queries: Tensor,
        evicted: Tensor,
        compressed: Tensor,
        valid: Tensor,
        total: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """The loss of one compression: a mean squared error over the rows (auto-encoding: memories) that were valid.

        Args:
            kind: "attention" (Algorithm 2) or "autoencoding" (section 3.2).
            queries: [B, n_s, D], the layer inputs of the segment that displaced the memories.
            evicted: [B, n_s, D], invalid memories zeroed; receives no gradient.
            compressed: [B, n_s / c, D], the only argument that receives one.
            valid: [B, n_s] bool, which evicted memories belong to their row's episode.
            total: see `agent.core.contract.Core`.
        """
        if kind == "autoencoding":
            assert self.decoder is not None
            decoded = self.decoder(compressed).unflatten(-1, (self.sizes.rate, -1)).flatten(1, 2)
            error = F.mse_loss(decoded, evicted.detach(), reduction="none").mean(dim=2)
            return (error * valid).sum() / total(valid.sum()).clamp(min=1)
        queries, evicted = queries.detach(), evicted.detach()
        if self.pre_norm:
            norm = self.attention_norm
            weight, bias = norm.weight.detach(), norm.bias.detach()
            queries, evicted, compressed = (
                F.layer_norm(slots, norm.normalized_shape, weight, bias, norm.eps)
                for slots in (queries, evicted, compressed)
            )
        with torch.no_grad():
            query = self.attention.query(queries)
            target = self.attention.reconstruct(query, evicted)
        # A function that autocast computes in float32, unlike a difference.
        error = F.mse_loss(self.attention.reconstruct(query, compressed), target, reduction="none").mean(dim=(1, 2))
        present = valid.any(dim=1)
        return (error * present).sum() / total(present.sum()).clamp(min=1)
