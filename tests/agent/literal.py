"""The Compressive Transformer of the paper, transcribed slowly: one query, one head and one slot at a time.

`Literal` is Algorithm 1 with Transformer-XL's relative attention and `literal_loss` is Algorithm 2 (Rae et al. 2020).
They know no masks, no batches and no fixed shapes: memories are python lists that grow, each member remembers its
episode and the attention that it got, and what is of another episode is left out of the sum.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import CompressiveTransformer
from agent.core.compressive_transformer import Layer
from tests.agent.tiny import HEADS, SIZE, assert_same, validity


@dataclass(eq=False)
class Slot:
    """A layer input [D], its episode (None: nothing valid went into it), and its use so far.

    `received` is the attention, the mean over heads, summed over the `queries` that could attend to it.
    """

    vector: Tensor
    episode: int | None
    received: float = 0.0
    queries: int = 0

    @property
    def usage(self) -> float:
        return self.received / self.queries


def literal_norm(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def literal_gate(gate: Any, x: Tensor, y: Tensor) -> Tensor:
    """Parisotto et al. 2019, section 3.2: the gated recurrent unit."""
    w_r, w_z, w_g = gate.branch.weight.chunk(3)
    u_r, u_z = gate.stream.weight.chunk(2)
    r = torch.sigmoid(w_r @ y + u_r @ x)
    z = torch.sigmoid(w_z @ y + u_z @ x - gate.bias)
    h = torch.tanh(w_g @ y + gate.candidate.weight @ (r * x))
    return (1 - z) * x + z * h


@functools.cache
def literal_encoding(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * k / SIZE) for k in range(SIZE // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def literal_attention(layer: Layer, query: Tensor, slots: list[tuple[Tensor, int]]) -> tuple[Tensor, list[float]]:
    """Dai et al. 2019, section 3.3, of one query over (slot, distance), and each slot's mean weight over heads:

    A_ij = q_i k_j + q_i W_R R_(i-j) + u k_j + v W_R R_(i-j), its softmax over j weighs the values.
    """
    attention = layer.attention
    w_k, w_v = attention.key_value.weight.chunk(2)
    size = SIZE // HEADS
    joined, mean_weights = [], [0.0] * len(slots)
    keys = [w_k @ slot for slot, _ in slots]
    values = [w_v @ slot for slot, _ in slots]
    positions = [attention.position.weight @ literal_encoding(distance) for _, distance in slots]
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        q = (attention.query.weight @ query)[part]
        u, v = attention.content_bias[head, 0], attention.position_bias[head, 0]
        scores = []
        for key, position in zip(keys, positions):
            k, r = key[part], position[part]
            scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(size))
        exponentials = [score.exp() for score in scores]
        total = sum(exponentials)
        weights = [exponential / total for exponential in exponentials]
        joined.append(sum(weight * value[part] for weight, value in zip(weights, values)))
        mean_weights = [mean + float(weight.detach()) / HEADS for mean, weight in zip(mean_weights, weights)]
    return attention.output.weight @ torch.cat(joined), mean_weights


def literal_group(layer: Layer, kind: str, group: list[Tensor]) -> Tensor:
    if kind == "mean":
        return sum(group) / len(group)  # type: ignore[return-value]
    if kind == "max":
        return torch.stack([max(column) for column in zip(*group)])
    # A convolution with kernel and stride c: one matrix for each place in the group.
    kernel = layer.compression.group
    return sum(kernel.weight[:, k * SIZE : (k + 1) * SIZE] @ x for k, x in enumerate(group)) + kernel.bias  # type: ignore[return-value]


def literal_dilation(layer: Layer, old: list[Tensor]) -> list[Tensor]:
    """Two convolutions of width 3 over all that is evicted, zeros beyond it; ReLU and residual sum after each."""
    for convolution, dilation in zip(layer.compression.dilated, (1, 2)):
        new = []
        for place, x in enumerate(old):
            y = convolution.bias
            for k, neighbour in enumerate((place - dilation, place, place + dilation)):
                if 0 <= neighbour < len(old):
                    y = y + convolution.weight[:, :, k] @ old[neighbour]
            new.append(x + y.clamp(min=0))
        old = new
    return old


def literal_compression(layer: Layer, kind: str, evicted: list[Slot], now: int) -> list[Slot]:
    """Section 3.2: from n_s slots, those that are not of this episode zeroed, to n_s / c."""
    c = layer.sizes.rate
    if kind == "most-used":
        # Of this episode the most used; of equals, and where there are too few, the newest.
        ranks = [(slot.usage if slot.episode == now else -1.0, place) for place, slot in enumerate(evicted)]
        kept = sorted(place for _, place in sorted(ranks, reverse=True)[: len(evicted) // c])
        return [Slot(evicted[place].vector, evicted[place].episode) for place in kept]
    vectors = [slot.vector for slot in evicted]
    if kind == "dilated":
        vectors = literal_dilation(layer, vectors)
    new = []
    for g in range(0, len(evicted), c):
        alive = any(slot.episode == now for slot in evicted[g : g + c])
        new.append(Slot(literal_group(layer, kind, vectors[g : g + c]), now if alive else None))
    return new


def literal_decoding(layer: Layer, new: list[Tensor]) -> list[Tensor]:
    """The mirror of the convolution: one matrix for each place in the group."""
    decoder, c = layer.decoder, layer.sizes.rate
    parts = [slice(k * SIZE, (k + 1) * SIZE) for k in range(c)]
    return [decoder.weight[part] @ x + decoder.bias[part] for x in new for part in parts]


def literal_loss(layer: Layer, pre_norm: bool, h: list[Tensor], old: list[Tensor], new: list[Tensor]) -> Tensor:
    """Algorithm 2 of one layer: content-based attention over old memories and over compressed ones, compared."""
    w_q, (w_k, w_v) = layer.attention.query.weight, layer.attention.key_value.weight.chunk(2)
    size = SIZE // HEADS
    if pre_norm:
        h, old, new = ([literal_norm(layer.attention_norm, x) for x in xs] for xs in (h, old, new))

    def attend(query: Tensor, slots: list[Tensor]) -> Tensor:
        joined = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = [(w_q @ query)[part] @ (w_k @ slot)[part] / math.sqrt(size) for slot in slots]
            weights = torch.stack(scores).softmax(dim=0)
            joined.append(sum(weight * (w_v @ slot)[part] for weight, slot in zip(weights, slots)))
        return torch.cat(joined)

    errors = [(attend(query, old) - attend(query, new)) ** 2 for query in h]
    return sum(error.sum() for error in errors) / (len(h) * SIZE)  # type: ignore[return-value]


class Literal:
    """Algorithm 1 for one row.

    `losses[layer]` has an entry a full segment, a list of the terms that the loss is the mean of: one (attention), one
    for every valid memory (auto-encoding), none where nothing valid was evicted.
    """

    def __init__(self, core: CompressiveTransformer) -> None:
        self.core, self.config = core, core.config
        self.memory: list[list[Slot]] = [[] for _ in core.layers]
        self.compressed: list[list[Slot]] = [[] for _ in core.layers]
        self.losses: list[list[list[Tensor]]] = [[] for _ in core.layers]

    def run(self, inputs: Tensor, reset: Tensor) -> Tensor:
        episodes = list(itertools.accumulate(int(begins) for begins in reset))
        n_s, features = self.config.segment_size, []
        for begin in range(0, len(inputs), n_s):
            h = [Slot(x, episode) for x, episode in zip(inputs[begin : begin + n_s], episodes[begin : begin + n_s])]
            for index, layer in enumerate(self.core.layers):
                outputs = [self.step(index, layer, h, t) for t in range(len(h))]
                if len(h) == n_s:
                    self.remember(index, layer, h)
                h = [Slot(output, slot.episode) for slot, output in zip(h, outputs)]
            features += [slot.vector for slot in h]
        if self.config.norm == "pre":
            features = [literal_norm(self.core.final_norm, x) for x in features]
        return torch.stack(features)

    def step(self, index: int, layer: Layer, h: list[Slot], t: int) -> Tensor:
        """Lines 5, 6, 7 and 12 for one step."""
        config, memory, compressed = self.config, self.memory[index], self.compressed[index]
        pre_norm, x = config.norm == "pre", h[t].vector
        width = layer.sizes.rate if config.compressed_position == "time" else 1
        slots = [(slot, t + len(memory) + width * (len(compressed) - j)) for j, slot in enumerate(compressed)]
        slots += [(slot, t + len(memory) - j) for j, slot in enumerate(memory)]
        slots += [(slot, t - j) for j, slot in enumerate(h[: t + 1])]
        own = [(slot, distance) for slot, distance in slots if slot.episode == h[t].episode]

        def sub_layer(x: Tensor, norm: Any, gate: Any, branch: Any) -> Tensor:
            y = branch(literal_norm(norm, x) if pre_norm else x)
            joined = literal_gate(gate, x, y.clamp(min=0)) if config.gate == "gru" else x + y
            return joined if pre_norm else literal_norm(norm, joined)

        def attend(query: Tensor) -> Tensor:
            keys = [
                (literal_norm(layer.attention_norm, slot.vector) if pre_norm else slot.vector, distance)
                for slot, distance in own
            ]
            attended, weights = literal_attention(layer, query, keys)
            for (slot, _), weight in zip(own, weights):
                slot.received += weight
                slot.queries += 1
            return attended

        def mlp(a: Tensor) -> Tensor:
            up, _, down = layer.mlp
            return down.weight @ (up.weight @ a + up.bias).clamp(min=0) + down.bias

        a = sub_layer(x, layer.attention_norm, layer.attention_gate, attend)
        return sub_layer(a, layer.mlp_norm, layer.mlp_gate, mlp)

    def remember(self, index: int, layer: Layer, h: list[Slot]) -> None:
        """Lines 8 to 11, and Algorithm 2: `now` is the episode that the next segment begins in."""
        config, sizes, now = self.config, layer.sizes, h[-1].episode
        both = self.memory[index] + h
        count = max(0, len(both) - sizes.memory)
        evicted, self.memory[index] = both[:count], both[count:]
        if not sizes.compressed:
            return
        if not evicted:
            self.losses[index].append([])
            return
        # Line 1: before anything was seen there were zeros.
        zero = torch.zeros(SIZE, dtype=torch.float64)
        evicted = [Slot(zero, None)] * (sizes.segment - count) + evicted
        evicted = [slot if slot.episode == now else Slot(zero, None) for slot in evicted]
        alive = [slot.episode == now for slot in evicted]
        slots = literal_compression(layer, config.compression, evicted, now)
        self.compressed[index] = (self.compressed[index] + slots)[-sizes.compressed :]
        old, new = [slot.vector for slot in evicted], [slot.vector for slot in slots]
        if config.compression_loss == "attention":
            loss = literal_loss(layer, config.norm == "pre", [slot.vector for slot in h], old, new)
            self.losses[index].append([loss] if any(alive) else [])
        if config.compression_loss == "autoencoding":
            decoded = literal_decoding(layer, new)
            errors = [((x - y) ** 2).sum() / SIZE for x, y in zip(decoded, old)]
            self.losses[index].append([error for error, present in zip(errors, alive) if present])


def literal_call(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> tuple[Tensor, dict, list[Literal]]:
    rows = [Literal(core) for _ in inputs]
    with torch.no_grad():
        features = torch.stack([row.run(x, begins) for row, x, begins in zip(rows, inputs, reset)])
        losses = {}
        for index in range(core.config.num_layers):
            segments = []
            for of_rows in zip(*(row.losses[index] for row in rows)):
                terms = [term for of_row in of_rows for term in of_row]
                segments.append(sum(terms) / len(terms) if terms else 0.0)
            if segments and core.config.compression_loss in ("attention", "autoencoding"):
                losses[f"compression/layer_{index}"] = sum(segments) / len(segments)
    return features, losses, rows


def check_against_literal(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> None:
    features, losses, rows = literal_call(core, inputs, reset)
    output = core(inputs, reset, core.initial_state(len(inputs)))
    assert_same(output.features.detach(), features)
    assert output.losses.keys() == losses.keys()
    for name, loss in losses.items():
        assert output.losses[name].value.item() == pytest.approx(float(loss), abs=1e-12)
    state = output.state
    final = reset.long().sum(dim=1)
    for row, literal in enumerate(rows):
        for index in range(core.config.num_layers):
            compressed_valid, memory_valid, _ = validity(core, state, index)
            for stored, valid, slots in (
                (state.memory[index], memory_valid, literal.memory[index]),
                (state.compressed[index], compressed_valid, literal.compressed[index]),
            ):
                alive = [slot.episode == int(final[row]) for slot in slots]
                assert valid[row].tolist() == [False] * (valid.shape[1] - len(alive)) + alive
                for slot, actual in zip(reversed(slots), reversed(stored[row])):
                    assert_same(actual, slot.vector)
