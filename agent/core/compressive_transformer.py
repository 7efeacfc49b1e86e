"""The Compressive Transformer (Rae et al. 2020) as a recurrent core, and Transformer-XL, which is the same without
compressed memory. `docs/core.md` explains the semantics with drawings; the attention itself lives in `attention.py`,
compression functions in `compression.py`.

Axes: B batch, T time, L layers, S slots, H heads, K features a head, D features (model_size).
Sizes: n_s segment_size, n_m memory_size, n_cm compressed_size, c compression_rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core.attention import KeyValue, RelativeAttention, sinusoids
from agent.core.compression import COMPRESSIONS, compress_valid
from agent.core.contract import Core, CoreOutput, check_call, check_positive


@dataclass(frozen=True)
class CompressiveTransformerConfig:
    """Sizes and variants of a Compressive Transformer; `compressed_size = 0` makes it a Transformer-XL."""

    model_size: int = 256
    """Features of inputs, outputs and memory slots (D)."""
    num_layers: int = 4
    """Layers (L)."""
    num_heads: int = 8
    """Attention heads a layer (H); divides model_size."""
    mlp_size: int = 1024
    """Hidden features of each layer's MLP."""
    segment_size: int = 64
    """Steps processed in parallel before they enter memory (n_s)."""
    memory_size: int = 64
    """Slots of uncompressed memory a layer (n_m)."""
    compressed_size: int = 64
    """Slots of compressed memory a layer (n_cm); 0 for none."""
    compression_rate: int = 4
    """Evicted memories that become one compressed slot (c); divides segment_size."""
    compression: Literal["convolution", "mean", "max"] = "convolution"
    """Compression function."""
    compression_loss: Literal["attention", "none"] = "attention"
    """What trains the compression function: attention reconstruction (Algorithm 2) or nothing."""
    norm: Literal["pre", "post"] = "post"
    """Layer normalisation before each sub-layer, or after the residual sum as in Algorithm 1."""
    gate: Literal["residual", "gru"] = "residual"
    """How a sub-layer's output joins the stream: sum, or GTrXL's GRU gate (Parisotto et al. 2019)."""
    compressed_position: Literal["slot", "time"] = "slot"
    """A compressed slot counts as one position or as the c steps that it summarises."""
    dropout: float = 0.0
    """Dropout on the output of each sub-layer while training."""

    def __post_init__(self) -> None:
        check_positive(self, "model_size", "num_layers", "num_heads", "mlp_size", "segment_size", "compression_rate")
        for name in ("memory_size", "compressed_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if self.model_size % self.num_heads:
            raise ValueError(f"model_size: expected a multiple of num_heads = {self.num_heads}, got {self.model_size}")
        if self.model_size % 2:
            raise ValueError(f"model_size: expected an even number (sines and cosines), got {self.model_size}")
        if self.compressed_size and self.segment_size % self.compression_rate:
            raise ValueError(
                f"compression_rate: expected a divisor of segment_size = {self.segment_size}, "
                f"got {self.compression_rate}"
            )
        for name, allowed in (
            ("compression", tuple(COMPRESSIONS)),
            ("compression_loss", ("attention", "none")),
            ("norm", ("pre", "post")),
            ("gate", ("residual", "gru")),
            ("compressed_position", ("slot", "time")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected 0 <= dropout < 1, got {self.dropout}")


class Cache(NamedTuple):
    """Keys and values that stay as they are until the segment is full; a tuple entry a layer."""

    memory: tuple[KeyValue, ...]
    segment: tuple[KeyValue, ...]


class CompressiveState(NamedTuple):
    """What the core remembers. Layer inputs, one tensor a layer; slots in temporal order, oldest first.

    segment: [B, n_s, D], of which the first `phase` steps are filled.
    memory: [B, n_m, D].
    compressed: [B, n_cm, D].
    segment_valid, memory_valid, compressed_valid: [B, n] bool, shared by the layers: what belongs to the row's episode.
    phase: steps into the segment, a host integer shared by the batch.
    cache: projected keys and values while weights do not change (see `CompressiveTransformer.with_cache`), else None.
    """

    segment: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    compressed: tuple[Tensor, ...]
    segment_valid: Tensor
    memory_valid: Tensor
    compressed_valid: Tensor
    phase: int
    cache: Cache | None = None


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
    """One layer: attention over the slots, then the MLP, each joined to the stream; plus its compression function."""

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        size = config.model_size
        self.pre_norm = config.norm == "pre"
        # GTrXL: with the norm at the input, a ReLU on each branch keeps two linear maps from following each other.
        self.rectify = config.gate == "gru"
        self.dropout = config.dropout
        self.attention = RelativeAttention(size, config.num_heads)
        self.attention_norm = nn.LayerNorm(size)
        self.attention_gate = GRUGate(size) if config.gate == "gru" else Residual()
        self.mlp = nn.Sequential(nn.Linear(size, config.mlp_size), nn.ReLU(), nn.Linear(config.mlp_size, size))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp_gate = GRUGate(size) if config.gate == "gru" else Residual()
        self.compression: nn.Module | None = None
        if config.compressed_size:
            self.compression = COMPRESSIONS[config.compression](size, config.compression_rate)

    def project(self, slots: Tensor) -> KeyValue:
        """Keys and values of layer inputs [B, S, D]."""
        return self.attention.project(self.attention_norm(slots) if self.pre_norm else slots)

    def join(self, gate: nn.Module, norm: nn.LayerNorm, stream: Tensor, branch: Tensor) -> Tensor:
        """Joins a branch to the stream."""
        branch = F.dropout(F.relu(branch) if self.rectify else branch, self.dropout, self.training)
        joined = gate(stream, branch)
        return joined if self.pre_norm else norm(joined)

    def forward(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, given its input and what its attention returned, both [B, T, D]."""
        stream = self.join(self.attention_gate, self.attention_norm, stream, attended)
        mixed = self.mlp(self.mlp_norm(stream) if self.pre_norm else stream)
        return self.join(self.mlp_gate, self.mlp_norm, stream, mixed)

    def reconstruction_loss(self, queries: Tensor, evicted: Tensor, compressed: Tensor, present: Tensor) -> Tensor:
        """Attention-reconstruction loss (Algorithm 2): a mean squared error over rows that evicted something.

        Args:
            queries: [B, n_s, D], the layer inputs of the segment that displaced the memories.
            evicted: [B, n_s, D].
            compressed: [B, n_s / c, D], the only argument that receives a gradient.
            present: [B] bool, whether any evicted memory of the row is valid.
        """
        if self.pre_norm:
            norm = self.attention_norm
            weight, bias = norm.weight.detach(), norm.bias.detach()
            queries, evicted, compressed = (
                F.layer_norm(slots, norm.normalized_shape, weight, bias, norm.eps)
                for slots in (queries.detach(), evicted.detach(), compressed)
            )
        with torch.no_grad():
            target = self.attention.reconstruct(queries, evicted)
        error = (self.attention.reconstruct(queries.detach(), compressed) - target).square().mean(dim=(1, 2))
        return (error * present).sum() / present.sum().clamp(min=1)


class CompressiveTransformer(Core):
    """Maps inputs [B, T, model_size] and a state to features [B, T, model_size] and the next state.

    Any way of cutting a sequence into calls gives the same features and state; acting is the call with T = 1. Gradients
    flow through memory between the segments of one call and stop at compression and at the state that came in only if
    the caller detached it (learners do).
    """

    encoding: Tensor
    time_encoding: Tensor

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(config) for _ in range(config.num_layers))  # type: ignore[assignment]
        self.final_norm = nn.LayerNorm(config.model_size) if config.norm == "pre" else nn.Identity()
        farthest = config.compressed_size + config.memory_size + config.segment_size
        encoding = sinusoids(torch.arange(farthest - 1, -1, -1), config.model_size)
        self.register_buffer("encoding", encoding.to(torch.get_default_dtype()), persistent=False)
        if config.compressed_position == "time":
            farthest += (config.compression_rate - 1) * config.compressed_size
            table = sinusoids(torch.arange(farthest + 1), config.model_size)
            self.register_buffer("time_encoding", table.to(torch.get_default_dtype()), persistent=False)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains."""
        return [
            parameter
            for layer in self.layers
            if isinstance(layer, Layer) and layer.compression is not None
            for parameter in layer.compression.parameters()
        ]

    def initial_state(self, batch_size: int) -> CompressiveState:
        """Zero slots, all of them invalid, at phase 0."""
        config = self.config
        sizes = (config.segment_size, config.memory_size, config.compressed_size)
        segment, memory, compressed = (
            tuple(self.encoding.new_zeros(batch_size, size, config.model_size) for _ in self.layers) for size in sizes
        )
        valid = (self.encoding.new_zeros(batch_size, size, dtype=torch.bool) for size in sizes)
        return CompressiveState(segment, memory, compressed, *valid, phase=0)  # type: ignore[misc, arg-type]

    def with_cache(self, state: CompressiveState) -> CompressiveState:
        """Projects the state's keys and values once, so that calls that follow do not project them again.

        For acting, evaluation and sampling: the cache is right as long as the weights stay as they are, and states that
        come out of a call with a cache carry one.
        """

        def project(layer: Layer, slots: Tensor) -> KeyValue:
            # Contiguous, or each step's product with them would copy them all.
            return KeyValue(*(part.contiguous() for part in layer.project(slots)))

        memory = tuple(
            project(layer, torch.cat([compressed, memory], dim=1))
            for layer, compressed, memory in zip(self.layers, state.compressed, state.memory)
        )
        segment = tuple(project(layer, slots) for layer, slots in zip(self.layers, state.segment))
        return state._replace(cache=Cache(memory, segment))

    def without_cache(self, state: CompressiveState) -> CompressiveState:
        """Drops the cache."""
        return state._replace(cache=None)

    def forward(
        self, inputs: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool = False
    ) -> CoreOutput:
        """See `agent.core.contract.Core`; losses are `compression/layer_<i>`, means over the segments of the call."""
        check_call(inputs, reset, state, self.config.model_size)
        self._check_sizes(state)
        features, attention, start = [], [], 0
        losses: dict[str, list[Tensor]] = {}
        while start < inputs.shape[1]:
            stop = min(start + self.config.segment_size - state.phase, inputs.shape[1])
            stream, state, weights = self._advance(inputs[:, start:stop], reset[:, start:stop], state, return_attention)
            features.append(stream)
            attention.append(weights)
            if state.phase == self.config.segment_size:
                state = self._turn(state, losses)
            start = stop
        joined = tuple(torch.cat(layer, dim=2) for layer in zip(*attention)) if return_attention else None
        means = {name: torch.stack(values).mean() for name, values in losses.items()}
        return CoreOutput(self.final_norm(torch.cat(features, dim=1)), state, means, joined)

    def _check_sizes(self, state: CompressiveState) -> None:
        config = self.config
        expected = (config.segment_size, config.memory_size, config.compressed_size)
        valid = (state.segment_valid, state.memory_valid, state.compressed_valid)
        sizes = tuple(mask.shape[1] for mask in valid)
        if sizes != expected or len(state.segment) != config.num_layers:
            raise ValueError(
                f"state: expected slots (segment, memory, compressed) {expected} in {config.num_layers} layers, "
                f"got {sizes} in {len(state.segment)}"
            )

    def _visible(self, reset: Tensor, state: CompressiveState) -> tuple[Tensor, Tensor, Tensor]:
        """Which slots [compressed | memory | segment] each new step may see: [B, 1, T, S]; then what stays valid:
        old slots [B, S - T] and new steps [B, T]."""
        resets = reset.long().cumsum(dim=1)
        old = torch.cat([state.compressed_valid, state.memory_valid, state.segment_valid[:, : state.phase]], dim=1)
        visible_old = old[:, None, :] & (resets == 0)[:, :, None]
        same = resets[:, :, None] == resets[:, None, :]
        visible_new = same & torch.ones_like(same[0]).tril()
        visible = torch.cat([visible_old, visible_new], dim=2)[:, None]
        return visible, visible_old[:, -1], same[:, -1]

    def _time_positions(self, steps: int, phase: int) -> tuple[Tensor, Tensor] | None:
        """Encodings and distances of compressed slots that count as c steps each, or None."""
        config = self.config
        if config.compressed_position == "slot" or not config.compressed_size:
            return None
        device = self.encoding.device
        queries = torch.arange(phase, phase + steps, device=device)
        ages = config.memory_size + config.compression_rate * torch.arange(config.compressed_size, 0, -1, device=device)
        return self.time_encoding, queries[:, None] + ages

    def _advance(
        self, stream: Tensor, reset: Tensor, state: CompressiveState, return_attention: bool
    ) -> tuple[Tensor, CompressiveState, list[Tensor]]:
        """Runs the layers over steps that lie within the segment in progress."""
        config, steps, begin = self.config, stream.shape[1], state.phase
        end = begin + steps
        visible, old_valid, new_valid = self._visible(reset, state)
        encoding = self.encoding[config.segment_size - end :]
        far = self._time_positions(steps, begin)
        segments, attention, cached = [], [], []
        for index, layer in enumerate(self.layers):
            past = state.segment[index]
            segments.append(torch.cat([past[:, :begin], stream, past[:, end:]], dim=1))
            queries = layer.attention_norm(stream) if layer.pre_norm else stream
            if state.cache is None:
                slots = torch.cat([state.compressed[index], state.memory[index], segments[-1][:, :end]], dim=1)
                parts = [layer.project(slots)]
            else:
                new = layer.attention.project(queries)
                earlier = state.cache.segment[index]
                cached.append(
                    KeyValue(*(torch.cat([a[:, :, :begin], b, a[:, :, end:]], dim=2) for a, b in zip(earlier, new)))
                )
                parts = [state.cache.memory[index], KeyValue(*(part[:, :, :end] for part in cached[-1]))]
            attended, weights = layer.attention(queries, parts, encoding, visible, far, return_attention)
            if return_attention:
                attention.append(F.pad(weights, (0, config.segment_size - end)))
            stream = layer(stream, attended)
        compressed_valid, memory_valid, segment_valid = old_valid.split(
            [config.compressed_size, config.memory_size, begin], dim=1
        )
        state = state._replace(
            segment=tuple(segments),
            compressed_valid=compressed_valid,
            memory_valid=memory_valid,
            segment_valid=torch.cat([segment_valid, new_valid, state.segment_valid[:, end:]], dim=1),
            phase=end,
            cache=None if state.cache is None else Cache(state.cache.memory, tuple(cached)),
        )
        return stream, state, attention

    def _turn(self, state: CompressiveState, losses: dict[str, list[Tensor]]) -> CompressiveState:
        """A full segment enters memory; what no longer fits is compressed (Algorithm 1, lines 8 to 11)."""
        config = self.config
        sizes = [config.segment_size, config.memory_size]
        evicted_valid, memory_valid = torch.cat([state.memory_valid, state.segment_valid], dim=1).split(sizes, dim=1)
        present = evicted_valid.any(dim=1)
        memories, compressed = [], []
        for index, layer in enumerate(self.layers):
            segment = state.segment[index]
            evicted, memory = torch.cat([state.memory[index], segment], dim=1).split(sizes, dim=1)
            memories.append(memory)
            if layer.compression is None:
                compressed.append(state.compressed[index])
                continue
            # The task's loss must not train the compression, nor the compression's loss the network.
            evicted = evicted.detach() * evicted_valid[:, :, None]
            new = layer.compression(evicted)
            if torch.is_grad_enabled() and config.compression_loss == "attention":
                loss = layer.reconstruction_loss(segment, evicted, new, present)
                losses.setdefault(f"compression/layer_{index}", []).append(loss)
            kept = torch.cat([state.compressed[index], new.detach()], dim=1)
            compressed.append(kept[:, -config.compressed_size :])
        if config.compressed_size:
            new_valid = compress_valid(evicted_valid, config.compression_rate)
            kept_valid = torch.cat([state.compressed_valid, new_valid], dim=1)[:, -config.compressed_size :]
        else:
            kept_valid = state.compressed_valid
        empty = self.initial_state(evicted_valid.shape[0])
        turned = CompressiveState(
            segment=empty.segment,
            memory=tuple(memories),
            compressed=tuple(compressed),
            segment_valid=empty.segment_valid,
            memory_valid=memory_valid,
            compressed_valid=kept_valid,
            phase=0,
        )
        return turned if state.cache is None else self.with_cache(turned)
